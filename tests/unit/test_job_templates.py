"""Job templates: fields and options that the schedulers know, a manifest that is valid, nothing secret, nothing bound to the world."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.manifest import expand, parse_manifest
from harness.runtimes.launch import read_launches
from tests.unit.job_fields import KINDS, wrong

JOBS = Path(__file__).parents[2] / "manifests" / "jobs"
SBATCH = sorted(JOBS.glob("*.sbatch"))
OPTIONS = {
    "account", "constraint", "cpus-per-task", "error", "exclusive", "export", "gpus-per-node", "gres", "hint", "job-name", "mem",
    "no-requeue", "nodelist", "nodes", "ntasks", "ntasks-per-node", "output", "partition", "qos", "signal", "time",
}  # fmt: skip
"""Options of sbatch(1) that such a job may want."""
SRUN = {"overlap", "nodes", "ntasks", "nodelist", "kill-on-bad-exit"}
FLAGS = {"exclusive", "no-requeue", "overlap"}
SECRET = re.compile(r"(?i)(token|secret|password|api[_-]?key|bearer)")


class Strict(yaml.SafeLoader):
    """Refuses a key that is given twice, which YAML would let the later one win."""


def _once(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    assert len(keys) == len(set(keys)), f"{node.start_mark}: a key twice"
    return dict(zip(keys, (loader.construct_object(value, deep=True) for _, value in node.value), strict=True))


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _once)


def objects() -> dict[str, Any]:
    text = (JOBS / "kubernetes-job.yml").read_text(encoding="utf-8")
    return {found["kind"]: found for found in yaml.load_all(text, Loader=Strict)}


def problems(found: dict[str, Any]) -> list[str]:
    return list(wrong(found, KINDS[found["apiVersion"], found["kind"]], found["kind"]))


def test_every_field_is_one_that_the_api_declares() -> None:
    found = objects()
    assert set(found) == {"ConfigMap", "Job"}
    assert [p for one in found.values() for p in problems(one)] == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda job: job["spec"].update(backofLimit=1), "Job.spec.backofLimit: unknown field"),
        (lambda job: job["spec"].update(parallelism="1"), "Job.spec.parallelism='1': no int"),
        (lambda job: job["spec"]["template"]["spec"].pop("restartPolicy"), "Job.spec.template.spec.restartPolicy: missing"),
        (lambda job: job["spec"]["template"]["spec"].update(restartPolicy="Always"), "not one of"),
        (lambda job: job["metadata"].update(name="Trigpoint Job"), "Job.metadata.name='Trigpoint Job'"),
        (lambda job: job["spec"]["template"]["spec"].update(containers={}), "Job.spec.template.spec.containers: no list"),
        (lambda job: job["spec"].update(template="x"), "Job.spec.template: no mapping"),
        (lambda job: job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"].update(cpu=16), "limits.cpu=16"),
    ],
)
def test_the_check_sees_what_the_api_would_refuse(spoil: Callable[[dict[str, Any]], object], said: str) -> None:
    job = copy.deepcopy(objects()["Job"])
    spoil(job)
    assert any(said in problem for problem in problems(job))


def test_what_is_mounted_and_read_is_there() -> None:
    found = objects()
    pod = found["Job"]["spec"]["template"]["spec"]
    (container,), (before,) = pod["containers"], pod["initContainers"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    # The certificate is made where it is looked for, on the cores that the campaign gets.
    assert before["command"][:2] == ["trigpoint", "calibrate"]
    assert {"name": "cache", "mountPath": "/cache"} in before["volumeMounts"]
    assert (before["image"], before["resources"]) == (container["image"], container["resources"])
    assert next(v for v in pod["volumes"] if v["name"] == "manifest")["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    path = Path(container["command"][2])
    assert path.parent == Path(next(m["mountPath"] for m in container["volumeMounts"] if m["name"] == "manifest"))
    assert expand(parse_manifest(found["ConfigMap"]["data"][path.name], path.name)).runs
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert "ports" not in container


@pytest.mark.parametrize("path", [*SBATCH, JOBS / "kubernetes-job.yml"], ids=lambda p: p.name)
def test_nothing_secret_is_inside(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if SECRET.search(line)]
    assert [line for line in lines if "token budget" not in line and "batched-tokens" not in line and "max-tokens" not in line] == [
        line for line in lines if "automountServiceAccountToken: false" in line
    ]
    assert "0.0.0.0" not in path.read_text(encoding="utf-8")  # noqa: S104 - it is not bound


@pytest.mark.parametrize("path", SBATCH, ids=lambda p: p.name)
def test_every_option_is_one_that_sbatch_knows(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    given = [line.removeprefix("#SBATCH ").strip() for line in lines if line.startswith("#SBATCH")]
    first_command = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(i for i, line in enumerate(lines) if line.startswith("#SBATCH")) < first_command  # sbatch stops reading there
    names = []
    for option in given:
        form = re.fullmatch(r"--([a-z-]+)(?:=(\S+))?", option)
        assert form, option
        assert form[1] in OPTIONS, option
        assert (form[2] is None) == (form[1] in FLAGS), option
        names.append(form[1])
    assert len(names) == len(set(names))
    assert {"nodes", "time", "signal", "output"} <= set(names)
    assert subprocess.run(["/bin/bash", "-n", str(path)], capture_output=True, check=False).returncode == 0


def carried_out(path: Path, folder: Path, **env: str) -> tuple[int, list[str]]:
    """Run the script with programs of ours in place of the cluster's; exit code and the commands it gave."""
    programs = folder / "bin"
    programs.mkdir()
    said = folder / "said"
    for name, text in (
        ("scontrol", "printf 'n1\\nn2\\n'"),
        ("srun", "exit 0"),
        ("trigpoint", f'echo "$@" >> {said}; echo "$XDG_CONFIG_HOME" > {folder}/config'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o700)
    whole = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(folder), "SLURM_JOB_NODELIST": "n[1-2]", "XDG_CONFIG_HOME": ""} | env
    done = subprocess.run(["/bin/bash", str(path)], env=whole, cwd=folder, capture_output=True, check=False)
    return done.returncode, said.read_text().splitlines() if said.exists() else []


@pytest.mark.parametrize("path", SBATCH, ids=lambda p: p.name)
def test_a_job_without_a_manifest_says_so_and_does_nothing(path: Path, tmp_path: Path) -> None:
    code, said = carried_out(path, tmp_path)
    assert (code != 0, said) == (True, [])


def test_one_node_calibrates_and_runs(tmp_path: Path) -> None:
    code, said = carried_out(JOBS / "slurm-one-node.sbatch", tmp_path, MANIFEST="m y.yaml", RESULTS="out")
    assert (code, said) == (0, ["calibrate --quick --if-missing", "run m y.yaml --results out"])


def test_two_nodes_write_a_launch_that_is_read_and_leads_to_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = carried_out(JOBS / "slurm-two-nodes.sbatch", tmp_path, MANIFEST="m.yaml")
    assert (code, said[-1]) == (0, "run m.yaml --results results --launch second-node")
    monkeypatch.setenv("XDG_CONFIG_HOME", (tmp_path / "config").read_text().strip())
    launch = read_launches()["second-node"]
    assert (launch.where, launch.url_host, launch.same_files) == ("other-host", "n2", True)
    assert launch.prefix[0] == "srun"
    assert {word.removeprefix("--").partition("=")[0] for word in launch.prefix[1:]} == SRUN
    assert "--nodelist=n2" in launch.prefix
