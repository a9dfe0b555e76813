"""Two servers that somebody else runs, as arms: what they say, what their user vouches for, and what comes of both."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.model import Verdict
from harness.campaign.attached import evidence_class
from harness.cli.sides import analyze_campaign
from harness.record.coordinates import Known
from harness.record.reader import latest_sealed, read_run
from harness.runtimes.asking import served_models
from harness.runtimes.endpoint import EndpointRuntime
from harness.runtimes.reference import ReferenceRuntime
from harness.runtimes.truth import TruthRuntime
from harness.system import Arm, ModelPin, Pins
from harness.vocabulary import SIMULATED_OWNER
from tests.e2e.test_campaign import ROOT, TRACES, command
from tests.e2e.test_reference_server import running
from tests.e2e.test_workload_campaigns import QUICKSTART, manifest

pytestmark = pytest.mark.e2e

WAIVED = (
    "environment_stable", "client_slip", "receive_lag", "client_headroom", "steady_state", "window_length", "replicates", "backlog",
    "counts_agree", "output_length_agree",
)  # fmt: skip
"""What a busy host, a short window and two replicates cannot give; none of them is about who the servers are."""

PINS = Pins(model=ModelPin(id="simulated", dtype="float32"))
VOUCHED = (
    "hardware.gpu: none, hardware.gpu_count: 0, hardware.host: rack-7, runtime.env: none, runtime.launch: direct, "
    "parallelism.replicas: 1, parallelism.disaggregation: none"
)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Addresses of a fast and a slow server, started by nobody the harness knows."""
    fast, slow = (Arm(name="x", runtime="reference", args={"max-num-seqs": 16, "cost-base": cost}) for cost in ("4ms", "9ms"))
    folders = (tmp_path_factory.mktemp(name) for name in ("fast", "slow"))
    with running(ReferenceRuntime(), fast, PINS, next(folders)) as (a, _), running(ReferenceRuntime(), slow, PINS, next(folders)) as (b, _):
        yield a, b


def campaign(folder: Path, urls: tuple[str, str], *changes: tuple[str, str]) -> Path:
    arms = [
        f"{name}: {{runtime: endpoint, url: '{url}', metrics: reference, attest: {{{VOUCHED}, runtime.args: cost-base {cost}}}}}"
        for name, url, cost in zip(("fast", "slow"), urls, ("4ms", "9ms"), strict=True)
    ]
    path = manifest(
        folder, "attested", QUICKSTART, "prompts: {source: text}", "output-length: {control: client_stop, max-tokens: 64}",
        arms=f"{{{', '.join(arms)}}}", replicates="{count: 2, vary: none, seed: 5}", rank="{metric: e2e_p50, margin: 2%}",
        waivers=f"[{', '.join(f'{{gate: {gate}, reason: not what this test is about}}' for gate in WAIVED)}]",
    )  # fmt: skip
    text = path.read_text(encoding="utf-8")
    own = (
        ("{id: tiny, dtype: float32}", "{id: simulated, dtype: float32}, hardware: {gpu: none, count: 0}"),
        ("cache: cold", "cache: as_trace"),
    )
    for old, new in (*own, *changes):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return path


def run(path: Path) -> subprocess.CompletedProcess[str]:
    args = command("run", path, "--results", path.parent / "results", "--traces", TRACES, "--json")
    return subprocess.run(args, capture_output=True, text=True, timeout=180, cwd=ROOT, check=False)


def test_what_is_attested_is_matched_ranked_and_printed_and_stays_synthetic(tmp_path: Path, urls: tuple[str, str]) -> None:
    path = campaign(tmp_path, urls)
    done = run(path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "results" / "attested"
    found = analyze_campaign(folder)
    assert [c.comparable for c in found.comparisons] == [True], found.comparisons
    assert {d.coordinate: d.answer for d in found.comparisons[0].differences} == {
        "runtime.args": "differs_by_declaration", "runtime.effective_config": "differs_by_consequence",
    }  # fmt: skip
    records = [read_run(p) for p in latest_sealed(folder).values()]
    # A simulated server does not become a measured one by being called an endpoint.
    assert {r.spec.evidence_class for r in records} == {"synthetic"}
    pins = {p.pin: (p.result, p.source) for r in records for p in r.facts.pins}
    assert pins["hardware.gpu"] == pins["hardware.count"] == ("matched", "attested")
    assert pins["model.dtype"] == ("matched", "observed")
    assert {c.coordinates.coordinates["hardware.host"] for c in records} == {Known(value="rack-7", source="attested")}
    ranked = subprocess.run(command("rank", folder), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert ranked.returncode == 0, ranked.stdout + ranked.stderr
    for words in ("attested fast: ", "hardware.host rack-7", "waived environment_stable"):
        assert words in ranked.stdout
    # A host that cannot be seen is not calm: only the waiver, printed above, lets the ranking through.
    assert Verdict.PASS not in {k.verdict for c in found.cells for r in c.runs for k in r.checks if k.code == "environment_stable"}
    report = subprocess.run(command("report", folder), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert report.returncode == 0, report.stderr
    page = (folder / "report" / "report.md").read_text(encoding="utf-8")
    for words in ("Pins against facts", "attested", "environment", "By consequence of what the arms declare"):
        assert words in page


@pytest.mark.parametrize(("runtime", "model"), [(ReferenceRuntime(), "simulated"), (TruthRuntime(), "truth")])
def test_our_own_servers_are_synthetic_by_their_list_of_models_alone(
    tmp_path: Path, runtime: ReferenceRuntime | TruthRuntime, model: str
) -> None:
    pins = Pins(model=ModelPin(id=model, dtype="float32"))
    with running(runtime, Arm(name="x", runtime=runtime.name), pins, tmp_path) as (url, _):
        assert {card["owned_by"] for card in served_models(url)} == {SIMULATED_OWNER}
        facts = EndpointRuntime("vllm").facts(Arm(name="x", runtime="endpoint", base_url=url, metrics="vllm"), pins, url, None)
        assert evidence_class("measured", facts) == "synthetic"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("dtype: float32", "dtype: bfloat16"), "model.dtype='bfloat16'"),
        (("hardware.gpu_count: 0", "hardware.gpu_count: 0, runtime.version: 0.0.1"), "runtime.version='0.0.1'"),
        (("cost-base 4ms}", "cost-base 4ms}, pins: {model: {dtype: bfloat16}}"), "fast@x1: model.dtype='bfloat16'"),
    ],
)
def test_what_contradicts_the_server_stops_before_load(tmp_path: Path, urls: tuple[str, str], change: tuple[str, str], said: str) -> None:
    done = run(campaign(tmp_path, urls, change))
    assert done.returncode == 3
    assert said in done.stderr
    assert "pins_match" in done.stderr
    assert not [cell for cell, _ in latest_sealed(tmp_path / "results" / "attested") if cell.startswith("fast")]


def test_a_mismatch_that_may_run_never_ranks(tmp_path: Path, urls: tuple[str, str]) -> None:
    change = (("dtype: float32", "dtype: bfloat16"), ("count: 2", "count: 1"), ("question:", "on-pin-mismatch: run-unranked\nquestion:"))
    path = campaign(tmp_path, urls, *change)
    done = run(path)
    assert done.returncode == 0, done.stderr
    ranked = subprocess.run(
        command("rank", tmp_path / "results" / "attested", "--json"), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert ranked.returncode == 1
    assert "pins_match" in {r["code"] for r in json.loads(ranked.stdout)["reasons"]}
