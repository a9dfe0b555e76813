"""Searches for capacity from manifest to ranking: against a capacity known by a formula, across a kill -9, and on real servers.

The truth is that of ``tests.known_queue``; ``tests/sim/test_capacity_known_queue.py`` tells bias and coverage over many such searches.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analysis.notebook import read_campaign
from harness.cli.app import main
from harness.record.journal import Journal
from harness.record.reader import latest_sealed, read_run
from tests.known_queue import KnownQueue

pytestmark = pytest.mark.e2e

QUEUES = {"slow": KnownQueue(0.020), "fast": KnownQueue(0.018)}

MANIFEST = """\
trigpoint: 1
question: Does a search find the capacity of a queue whose capacity is known?
name: {name}
pins: {{model: {{id: tiny, dtype: float32}}}}
arms:
  slow: {{runtime: reference, args: {{policy: fixed-batch, max-num-seqs: 1, max-model-len: 384, kv-cache-tokens: 2048, cost-base: 20ms}}}}
  fast: {{runtime: reference, args: {{policy: fixed-batch, max-num-seqs: 1, max-model-len: 384, kv-cache-tokens: 2048, cost-base: 18ms}}}}
workload:
  arrivals: {{process: poisson}}
  lengths: {{input: {{kind: constant, value: 32}}, output: {{kind: constant, value: 4}}}}
  prompts: {{source: random-ids}}
  output-length: {{control: forced}}
slo: {{ttft: 250ms}}
window: {window}
load: {{capacity: {search}}}
replicates: {replicates}
rank: {{metric: capacity, margin: 1%, attainment: 0.9}}
{more}"""

SMALL = {
    "window": "{warm-up: 1s, measured: 12s, drain: 2s}",
    "search": "{start: 4/s, limit: 32/s, attainment: 0.9, resolution: 0.2, grid: 3, step: 0.15, widen: 1, servers: replicate}",
    "replicates": "{count: 2, vary: seed, seed: 11}",
    "more": "",
}


def written(folder: Path, name: str, **parts: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(MANIFEST.format(name=name, **(SMALL | parts)), encoding="utf-8")
    return path


def trigpoint(*words: str | Path, code: int | None = 0) -> Any:
    result = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert code is None or result.exit_code == code, result.output
    return json.loads(result.stdout)


def printed(*words: str | Path) -> str:
    return CliRunner().invoke(main, [*map(str, words)]).stdout


# virtual time, with the truth


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("known")
    path = written(
        folder,
        "known",
        window="{warm-up: 5s, measured: 60s, drain: 3s}",
        search="{start: 2/s, limit: 32/s, attainment: 0.9, halvings: 2}",
        replicates="{count: 5, vary: seed, seed: 20261130}",
    )
    answer = trigpoint("simulate", path, "--results", folder)
    assert answer["kept"] == 0
    return folder / "known"


def test_the_interval_holds_the_true_capacity(found: Path) -> None:
    capacities = {one.arm: one.estimate for one in read_campaign(found).capacities}
    assert sorted(capacities) == ["fast", "slow"]
    for arm, estimate in capacities.items():
        truth, figure = QUEUES[arm].capacity, estimate.figures["capacity"]
        assert (estimate.status, estimate.estimand) == ("resolved", "E2")
        assert figure.value is not None
        assert figure.interval is not None
        print(f"{arm}: true {truth:.4f}, found {figure.value:.4f} [{figure.interval.low:.4f}, {figure.interval.high:.4f}] req/s, "
              f"bias {100 * math.log(figure.value / truth):+.2f}%")  # fmt: skip
        assert figure.interval.low <= truth <= figure.interval.high
        assert (estimate.bracket.low or 0.0) <= truth <= (estimate.bracket.high or math.inf)
        for row in estimate.rows:
            assert row.interval is not None
            assert row.interval.low - 0.02 <= QUEUES[arm].attainment(row.rate) <= row.interval.high + 0.02


def test_the_arms_are_ranked_by_their_capacities_paired_by_draw(found: Path) -> None:
    answer = trigpoint("rank", found)
    assert not answer["refused"], answer
    assert [(row["rank"], row["arm"]) for row in answer["ranking"]] == [(1, "fast"), (2, "slow")]
    assert "capacity under TTFT <= 250 ms at 90% of requests, searched from 2 to 32 req/s" in answer["title"]
    (effect,) = answer["effects"]
    ratio = QUEUES[effect["b"]].capacity / QUEUES[effect["a"]].capacity
    print(f"ratio: true {ratio:.4f}, found {effect['estimate']:.4f} [{effect['low']:.4f}, {effect['high']:.4f}]")
    assert effect["low"] <= ratio <= effect["high"]
    assert (effect["pairs"], effect["scale"]) == (5, "ratio")


def test_the_record_says_what_each_run_was_for(found: Path) -> None:
    sealed = latest_sealed(found)
    specs = {key: read_run(path).spec for key, path in sealed.items()}
    assert all(spec.probe is not None for spec in specs.values())
    located = {key for key, spec in specs.items() if spec.probe is not None and spec.probe.discarded}
    assert located == {key for key in sealed if key[0].endswith("+locate")}
    seeds = {phase: {s.workload.seed for k, s in specs.items() if (k in located) == phase} for phase in (True, False)}
    assert not seeds[True] & seeds[False]
    assert len(seeds[False]) == 5
    events = Journal(found / "journal.jsonl").events()
    assert [e["discarded"] for e in events if e["event"] == "sealed"].count(True) == len(located)
    assert sorted(e["search"] for e in events if e["event"] == "search") == ["fast", "slow"]


def test_discarded_data_are_no_side_of_a_comparison(found: Path) -> None:
    cells = [found / f"{arm}@rate-2+locate" for arm in ("slow", "fast")]
    answer = trigpoint("compare", *cells, "--metric", "attainment", code=2)
    assert [p["code"] for p in answer["error"]] == ["data_discarded"]


def test_the_report_tells_the_whole_search(found: Path) -> None:
    out = found / "report"
    text = printed("report", found, "--out", out)
    for words in ("Capacity by arm", "resolved", "Attainment by load", "per GPU unknown", "req/J unknown: power was not measured"):
        assert words in text
    page, markdown = ((out / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    for title in ("Capacity by arm", "Attainment by load", "Capacity by trace replicate", "Runs of the searches", "locate (discarded)"):
        assert title in page
        assert title in markdown
    assert "<h3>Attainment against load</h3>" in page
    assert "<h3>SLO scale</h3>" in page
    assert "target 90 %" in page
    state = trigpoint("status", found)
    assert {s["arm"]: s["state"] for s in state["searches"]} == {"fast": "finished", "slow": "finished"}
    assert state["counts"] == {"sealed": len(latest_sealed(found))}


# killed in the middle


def begun(campaign: Path) -> list[tuple[Any, ...]]:
    """Every probe that was begun, in order; one that was cut is begun again. A kill may come between a seal and its line in the journal."""
    events = [e for e in Journal(campaign / "journal.jsonl").events() if e["event"] == "started"]
    return [(e["cell"], e["replicate"], e["load"], e["server_start"]) for e in events]


def test_a_kill_in_the_middle_loses_no_finished_probe_and_changes_no_later_one(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    path = written(tmp_path, "killed")
    trigpoint("simulate", path, "--results", whole)
    expected = begun(whole / "killed")
    folder = cut / "killed"
    for least in (3, len(expected) // 2):
        kill_after(path, cut, least)
    kept = len(latest_sealed(folder))
    assert kept < len(expected)
    before = trigpoint("rank", folder, code=1)
    assert "search_unfinished" in {r["code"] for r in before["reasons"]}
    assert {s["state"] for s in trigpoint("status", folder)["searches"]} & {"locate", "grid"}
    assert "Capacity by arm" in printed("report", folder)
    assert trigpoint("resume", folder)["kept"] == kept
    again = begun(folder)
    assert list(dict.fromkeys(again)) == expected
    assert len(again) - len(expected) <= 2, "only what was cut is run again"
    assert len(latest_sealed(folder)) == len(expected)
    one, other = (read_campaign(c / "killed").capacities for c in (whole, cut))
    assert [a.estimate for a in one] == [b.estimate for b in other]


def kill_after(manifest: Path, results: Path, least: int) -> None:
    """Start the campaign in a process of its own and kill it once it has sealed ``least`` runs."""
    command = [sys.executable, "-m", "harness.cli", "simulate", str(manifest), "--results", str(results)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    name = manifest.stem
    for _ in range(6000):
        if process.poll() is not None or len(latest_sealed(results / name)) >= least:
            break
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


# real servers

WAIVED = (
    "client_headroom",
    "client_slip",
    "receive_lag",
    "environment_stable",
    "steady_state",
    "cache_state",
    "window_length",
    "delivered_load",
)


def test_real_servers_are_searched_too(tmp_path: Path) -> None:
    """Cores that others use prove no capacity: only the way is held here, and the gates that such a host fails are waived in writing."""
    waivers = "waivers:\n" + "".join(f"  - {{gate: {gate}, reason: a test of the way on a busy host}}\n" for gate in WAIVED)
    path = written(tmp_path, "real", window="{warm-up: 300ms, measured: 2s, drain: 700ms}", more=waivers)
    trigpoint("run", path, "--results", tmp_path)
    campaign = tmp_path / "real"
    states = {s["arm"]: s for s in trigpoint("status", campaign)["searches"]}
    assert set(states) == {"fast", "slow"}
    assert {s["state"] for s in states.values()} <= {"finished", "ended early"}
    specs = [read_run(p).spec for p in latest_sealed(campaign).values()]
    assert {s.evidence_class for s in specs} == {"synthetic"}
    for arm in states:
        starts: dict[int, set[str]] = {}
        for spec in specs:
            assert spec.probe is not None
            if spec.arm.name == arm:
                starts.setdefault(spec.server_start, set()).add("locate" if spec.probe.discarded else str(spec.replicate))
        assert all(len(served) == 1 for served in starts.values()), "a server serves one replicate, or all that locates"
    found = read_campaign(campaign)
    assert {one.arm for one in found.capacities} == {"fast", "slow"}
    assert all(one.estimate.status == "resolved" or one.reasons for one in found.capacities)
