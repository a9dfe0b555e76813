"""Cache policies on a real server that two replicates share: what each finds of what was sent before it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.cli.sides import analyze_campaign
from harness.record.reader import latest_sealed, read_run
from tests.e2e.test_campaign import ROOT, TRACES, command
from tests.e2e.test_workload_campaigns import OWN, QUICKSTART, SOUND, manifest, run

pytestmark = pytest.mark.e2e

ARM = "{max-num-seqs: 16, cost-base: 4ms, prefix-cache-tokens: 1000000, prefix-block: 16}"


def campaign(folder: Path, policy: str) -> Path:
    """Two replicates of one and the same load on one server start."""
    path = manifest(
        folder, policy.replace("_", "-"), QUICKSTART, "prompts: {source: random-ids}",
        "output-length: {control: client_stop, max-tokens: 64}", arm=ARM,
        replicates="{count: 2, server-starts: 1, order: interleaved, vary: none, seed: 5}",
    )  # fmt: skip
    text = path.read_text(encoding="utf-8")
    assert "cache: cold" in text
    path.write_text(text.replace("cache: cold", f"cache: {policy}"), encoding="utf-8")
    return run(path)


def seen(folder: Path) -> list[tuple[str, int, bool]]:
    """By replicate: how the cache was emptied, replicates served before, and whether any token came from the cache."""
    records = [read_run(path) for _, path in sorted(latest_sealed(folder).items())]
    told = [next(o for o in r.observations if o["kind"] == "cache_prepared") for r in records]
    assert len({o["process"] for o in told}) == 1
    hits = [any(r.requests["usage_cached_tokens"].drop_null().to_pylist()) for r in records]
    return [(o["emptied"], o["served_before"], hit) for o, hit in zip(told, hits, strict=True)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("cold", [("flush", 0, False), ("flush", 1, False)]),
        ("warm", [("flush", 0, True), ("flush", 1, True)]),
        ("as_trace", [("kept", 0, False), ("kept", 1, True)]),
    ],
)
def test_each_policy_is_kept_and_seen_in_what_the_cache_gave(tmp_path: Path, policy: str, expected: list[tuple[str, int, bool]]) -> None:
    folder = campaign(tmp_path, policy)
    assert seen(folder) == expected
    (cell,) = analyze_campaign(folder).cells
    judged = [c for c in cell.checks if c.code == "cache_state"] + [c for r in cell.runs for c in r.checks if c.code in SOUND]
    assert len(judged) == 1 + 2 * len(SOUND)
    assert [(c.code, c.reason) for c in judged if c.verdict != "PASS"] == []


def test_a_replicate_that_resumes_on_a_new_process_is_told_and_judged(tmp_path: Path) -> None:
    folder = campaign(tmp_path, "as_trace")
    (lost,) = [path for (_, replicate), path in latest_sealed(folder).items() if replicate == 1]
    (lost / "SEAL").unlink()
    args = command("run", tmp_path / "as-trace.yaml", "--results", folder.parent, "--traces", TRACES, "--traces", OWN)
    again = subprocess.run(args, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert again.returncode == 0, again.stderr
    assert "their cache with it" in again.stderr
    (cell,) = analyze_campaign(folder).cells
    (state,) = [c for c in cell.checks if c.code == "cache_state"]
    assert (state.verdict, "1 restarts" in state.reason, "delete the attempts" in state.remedy) == ("FAIL", True, True)
