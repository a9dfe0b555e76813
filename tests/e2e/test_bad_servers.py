"""Servers that misbehave, the whole way: a campaign attaches to a hostile process, is sealed, and analysis says what happened."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from analysis.clocks import derive_clocks
from analysis.model import Outcome, RunAnalysis
from analysis.outcomes import classify
from harness.cli.sides import analyze_campaign
from harness.record.reader import RunRecord, latest_sealed, read_run
from tests.e2e.bad_server import MODES

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
KEY = "not-a-real-key-5c1e7a"
NONSENSE = ("status_400", "status_404", "status_422")
REJECTED = {"status_429", "status_503", "error_vllm", "error_sglang"}
FAILED = {"overload_late", "half_character", "early_close", "bad_json", "error_internal", *NONSENSE}
PER_SECOND = 20


@dataclass(frozen=True)
class Ran:
    """A finished campaign against the hostile server, its records and analyses by arm."""

    folder: Path
    seen_key: str | None
    records: dict[str, RunRecord]
    analyses: dict[str, RunAnalysis]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-m", "tests.e2e.bad_server"], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    with child.stdout:
        yield int(child.stdout.readline())
    child.kill()
    child.wait()


def write_trace(folder: Path, name: str, modes: tuple[str, ...]) -> str:
    """Three seconds of requests that ask for ``modes`` in turn; returns the sha256."""
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for i in range(3 * PER_SECOND):
        second, part = divmod(i, PER_SECOND)
        mode = MODES.index(modes[i % len(modes)]) + 1
        lines.append(f"2026-01-01 00:00:0{second}.{part * 10_000_000 // PER_SECOND:07d},8,{mode}")
    raw = ("\n".join(lines) + "\n").encode()
    (folder / name).write_bytes(raw)
    return hashlib.sha256(raw).hexdigest()


def write_manifest(folder: Path, name: str, url: str, modes: tuple[str, ...] = MODES, extra: str = "") -> Path:
    sha = write_trace(folder, f"{name}.csv", modes)
    path = folder / f"{name}.yaml"
    path.write_text(
        f"""
trigpoint: 1
question: What does a misbehaving server look like?
pins:
  model: {{id: tiny, dtype: float32}}
arms:
  them: {{runtime: endpoint, url: {url}{extra}}}
workload:
  trace: {{format: azure-2023, name: {name}.csv, sha256: {sha}, window: [0s, 3s]}}
  prompts: {{source: text}}
  output-length: forced
  cache: cold
slo: {{ttft: 500ms, tbt: 100ms}}
window: {{warm-up: 0s, measured: 2s, drain: 1s}}
load: {{time-compression: [1.0]}}
replicates: {{count: 1, vary: none, seed: 7}}
rank: {{metric: goodput, margin: 2%}}
client: {{request-timeout: 1500ms}}
""",
        encoding="utf-8",
    )
    return path


def trigpoint(folder: Path, *args: str | Path) -> subprocess.CompletedProcess[str]:
    keys = folder / "config" / "trigpoint"
    env = os.environ | {"XDG_CONFIG_HOME": str(keys.parent)}
    return subprocess.run(
        [sys.executable, "-m", "harness.cli", *map(str, args)], capture_output=True, text=True, timeout=120, cwd=ROOT, env=env, check=False
    )


@pytest.fixture(scope="module")
def ran(port: int, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Two campaigns, each once for all tests: everything a server can do wrong, and the same without what blames the client."""
    folder = tmp_path_factory.mktemp("hostile")
    keys = folder / "config" / "trigpoint" / "keys.toml"
    keys.parent.mkdir(parents=True)
    keys.write_text(f'[hosts."127.0.0.1:{port}"]\nbearer = "{KEY}"\n')
    keys.chmod(0o600)
    records, analyses = {}, {}
    for name, modes in (("all", MODES), ("theirs", tuple(m for m in MODES if m not in NONSENSE))):
        done = trigpoint(folder, "run", write_manifest(folder, name, f"http://127.0.0.1:{port}", modes), "--results", folder / "results")
        assert done.returncode == 0, done.stderr
        (attempt,) = latest_sealed(folder / "results" / name).values()
        records[name] = read_run(attempt)
        analyses[name] = analyze_campaign(folder / "results" / name).cells[0].runs[0]
    with urlopen(f"http://127.0.0.1:{port}/seen") as answer:
        seen = json.load(answer)["authorization"]
    return Ran(folder / "results", seen, records, analyses)


@pytest.mark.parametrize("name", ["all", "theirs"])
def test_every_fault_ends_in_its_outcome_and_the_record_is_sealed(ran: Ran, name: str) -> None:
    record = ran.records[name]
    clocks = derive_clocks(record)
    outcome = classify(record, clocks)
    asked = dict(zip(record.truth["request_id"].to_pylist(), record.truth["output_tokens"].to_pylist(), strict=True))
    found: dict[str, set[Outcome]] = {}
    for ident, one in zip(clocks.request_id.tolist(), outcome, strict=True):
        found.setdefault(MODES[asked[ident] - 1], set()).add(one)
    expected = {m: {Outcome.REJECTED if m in REJECTED else Outcome.FAILED} for m in found if m in REJECTED | FAILED}
    assert {m: found[m] for m in expected} == expected
    assert found["good"] <= {Outcome.VALID, Outcome.MISS}
    assert found["never"] == {Outcome.FAILED, Outcome.OPEN}  # timed out, or unfinished when the drain ended
    assert record.seal.intact is True


def test_the_partition_closes_and_only_nonsense_of_ours_fails_its_gate(ran: Ran) -> None:
    checks = {name: {c.code: c for c in one.checks} for name, one in ran.analyses.items()}
    for name in ("all", "theirs"):
        assert ran.analyses[name].outcomes.closes()
        assert checks[name]["partition_closes"].verdict == "PASS"
        assert checks[name]["seal_intact"].verdict == "PASS"
        assert checks[name]["server_survived"].verdict == "PASS"
    assert checks["all"]["requests_wellformed"].verdict == "FAIL"
    assert checks["theirs"]["requests_wellformed"].verdict == "PASS"


def test_the_record_tells_the_errors_apart(ran: Ran) -> None:
    rows = ran.records["all"].whole_requests().to_pylist()
    truth = {r["request_id"]: MODES[r["output_tokens"] - 1] for r in ran.records["all"].truth.to_pylist()}
    ends = {m: {(r["end_kind"], r["http_status"], r["error_status"]) for r in rows if truth[r["request_id"]] == m} for m in MODES}
    assert {e[:2] for e in ends["status_429"]} == {("http_error", 429)}
    assert {e[:2] for e in ends["status_503"]} == {("http_error", 503)}
    assert {e[0] for e in ends["error_vllm"] | ends["error_sglang"]} == {"error_event"}
    assert {e[2] for e in ends["error_vllm"] | ends["error_sglang"]} == {503}
    assert {e[0] for e in ends["never"]} == {"timeout", "drain_end"}


def test_the_key_is_sent_and_is_in_no_file_of_the_record(ran: Ran) -> None:
    assert ran.seen_key == f"Bearer {KEY}"
    files = [p for p in ran.folder.rglob("*") if p.is_file()]
    assert len(files) > 20
    assert [p for p in files if KEY.encode() in p.read_bytes()] == []


def test_hostile_results_are_refused_with_reasons_and_never_ranked(ran: Ran) -> None:
    done = trigpoint(ran.folder.parent, "rank", ran.folder / "all")
    assert done.returncode == 1, done.stderr
    assert "requests_wellformed" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/locked", "endpoint_unreachable", ("HTTP 401", "keys.toml")),
        ("/v1", "endpoint_unreachable", ("/v1/v1/models", "does not end in /v1")),
        ("/drip", "endpoint_unreachable", ("no answer",)),
        ("/drip-head", "endpoint_unreachable", ("no answer",)),
        ("/silent", "length_unknown", ("attest: {max_model_len: N}",)),
    ],
)
def test_an_endpoint_that_cannot_be_measured_says_why(port: int, tmp_path: Path, path: str, code: str, words: tuple[str, ...]) -> None:
    done = trigpoint(tmp_path, "run", write_manifest(tmp_path, "m", f"http://127.0.0.1:{port}{path}"), "--results", tmp_path / "results")
    assert done.returncode == 3
    assert f"[{code}]" in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_an_attested_length_lets_a_silent_endpoint_be_measured(port: int, tmp_path: Path) -> None:
    path = write_manifest(tmp_path, "m", f"http://127.0.0.1:{port}/silent", ("good",), ", attest: {max_model_len: 512}")
    done = trigpoint(tmp_path, "run", path, "--results", tmp_path / "results")
    assert done.returncode == 0, done.stderr
