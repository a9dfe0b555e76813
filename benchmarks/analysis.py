"""``python -m benchmarks.analysis``: how long a run takes to analyze and in how much memory, and beside it other tools' metric code.

First, records of rising size, up to 1,000,000 requests with 200,000,000 token stamps: read, measured and judged by every gate of a run,
each in a process of its own; making the record is not counted. Then 20,000 requests x 200 tokens: the metric code of
``vllm bench serve`` and of GuideLLM on the same numbers, with their values held against those of our timed calls under their own rules.
Like is held against like first: the figures of vLLM's result, all of them, from records in memory, its objects on its side and Arrow tables
on ours; our whole analysis, which answers much else and reads the disk, is printed beside it. These two run where
``--vllm`` and ``--guidellm`` (or TRIGPOINT_BENCH_VLLM, TRIGPOINT_BENCH_GUIDELLM) name an interpreter that has them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.bench_serve import PERCENTILES, bench_serve
from analysis.clocks import Clocks, derive_clocks
from analysis.dialects import CLIENTS, GUIDELLM, VLLM
from analysis.gates import RunContext, run_checks
from analysis.run import measure_run
from benchmarks.big_record import Shape, write_record
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord, read_run

WHOLE = 1_000_000
SIZES = (250_000, 500_000, WHOLE)
TOKENS = 200
PEERS = Path(__file__).with_name("peers")
SECONDS, MEMORY, RATIO = 25.0, 6.0, 20.0
"""What a million requests may cost (wall s, GiB), and how many times cheaper a token must be than in another tool."""

DIALECTS = {
    "vllm": {
        **{f"mean_{name}": (CLIENTS, f"{name}_mean") for name in ("ttft", "tpot", "itl")},
        **{f"p99_{name}": (CLIENTS, f"{name}_p99") for name in ("ttft", "tpot", "itl")},
        "mean_e2el": (VLLM, "e2el_mean"),
        "goodput": (CLIENTS, "goodput"),
    },
    "guidellm": {"mean_ttft": (CLIENTS, "ttft_mean"), "mean_tpot": (GUIDELLM, "tpot_mean"), "mean_itl": (GUIDELLM, "itl_mean")},
}
"""Value of a peer -> tool and quantity of measure_run's under the same rule."""

OURS = {
    "same p50 p95 p99": "bench_serve, from records in memory: every figure of vLLM's result, with p50, p95 and p99 of each clock",
    "same p99": "bench_serve with p99 alone",
    "memory": "measure_run, from records in memory: all a report shows of a run, under its own rules and those of every tool",
    "clocks": "derive_clocks of it",
    "disk": "read_run and measure_run, from disk: the same, with the seal checked and Parquet decoded",
}

COMPARED = {
    "vllm": {
        "p50 p95 p99": (
            ("same p50 p95 p99", True, "ours for the same figures, both from records in memory"),
            ("memory", False, "our whole measure_run, from memory too"),
            ("disk", False, "our whole read_run and measure_run, from disk, where theirs finds its numbers in memory"),
        ),
        "p99": (("same p99", True, "ours for the same figures, both from records in memory"),),
    },
    "guidellm": {
        "whole compile": (
            ("memory", True, "our whole measure_run: each side computes all that its report shows, from records in memory"),
            ("disk", False, "our whole read_run and measure_run, from disk"),
        ),
        "five summaries": (
            ("memory", False, "our whole measure_run, which does far more; theirs looks at one value a request, not at every token"),
            ("same p50 p95 p99", False, "our bench_serve, which has the same clocks and looks at every token"),
        ),
    },
}
"""Tool -> what it was asked for -> which of ours is held against it, whether the goal applies, and in words."""


def analyzed(path: Path) -> dict[str, float]:
    """Analyze one attempt as ``trigpoint analyze`` does one run; wall and CPU seconds by step, GiB at the peak."""
    steps: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()

    def _lap(name: str) -> None:
        steps[name] = time.perf_counter() - wall

    record = read_run(path)
    _lap("read")
    found = measure_run(record)
    _lap("measured")
    run_checks(RunContext(record, found.clocks, found.outcome, found.outcomes, found.figures, found.fairness))
    _lap("wall")
    return steps | {"cpu": time.process_time() - cpu, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def sizes(requests: list[int], folder: Path) -> None:
    """Print a line a size, and whether the cost follows the stamps."""
    print(f"{'requests':>10s}{'stamps':>13s}{'read s':>9s}{'wall s':>9s}{'CPU s':>9s}{'GiB':>7s}{'ns a stamp':>12s}")
    costs = []
    for n in requests:
        path = write_record(folder / str(n) / "bench" / "a@x1" / "0" / "1", Shape(n, n * TOKENS))
        found = _child([sys.executable, "-m", "benchmarks.analysis", "--analyze", str(path)])
        costs.append(found["cpu"] / (n * TOKENS))
        cells = f"{found['read']:9.2f}{found['wall']:9.2f}{found['cpu']:9.2f}{found['gib']:7.2f}{1e9 * costs[-1]:12.1f}"
        print(f"{n:10d}{n * TOKENS:13d}{cells}", flush=True)
        if n == WHOLE:
            verdict = "reached" if found["wall"] <= SECONDS and found["gib"] <= MEMORY else "MISSED"
            busy = os.getloadavg()[0]
            print(f"    goal {SECONDS:g} s of wall time and {MEMORY:g} GiB {verdict}; load average {busy:.1f} on {os.cpu_count()} cores")
    print("CPU a stamp against the smallest: " + ", ".join(f"{c / costs[0]:.2f}" for c in costs) + " (1 is linear)")


def peers(interpreters: Mapping[str, str | None], folder: Path, requests: int) -> None:
    """Hold cost and values of other tools' metric code against ours, on the same numbers."""
    stamps = requests * TOKENS
    path = write_record(folder / "peers" / "bench" / "a@x1" / "0" / "1", Shape(requests, stamps))
    record = read_run(path)
    record = replace(record, requests=record.whole_requests())  # in memory, as theirs are
    found, same = measure_run(record), bench_serve(record)
    own = {
        "same p50 p95 p99": _best(lambda: bench_serve(record)),
        "same p99": _best(lambda: bench_serve(record, {"p99": PERCENTILES["p99"]})),
        "memory": _best(lambda: measure_run(record)),
        "clocks": _best(lambda: derive_clocks(record)),
        "disk": _best(lambda: measure_run(read_run(path))),
    }
    print(f"\n{requests} requests, {stamps} stamps; ns of CPU a token, all threads, the least of several:")
    for name, what in OURS.items():
        print(f"{1e9 * own[name] / stamps:8.1f}  {what}")
    file = folder / "columns.npz"
    np.savez(file, **_columns(record, found.clocks))
    said = {(s.tool, s.figure.metric): s.figure.value for s in found.dialects}
    for name, python in interpreters.items():
        if python is None or not Path(python).exists():
            print(f"{name}: not measured, no interpreter (--{name} PYTHON, or TRIGPOINT_BENCH_{name.upper()})")
            continue
        theirs = _child([python, str(PEERS / f"{name}_metrics.py"), str(file)])
        _hold_costs(name, theirs["cpu_s"], own, stamps)
        _hold_values("bench_serve", theirs["values"], same if name == "vllm" else {})
        _hold_values("measure_run", theirs["values"], {key: said[where] for key, where in DIALECTS[name].items()})


def _hold_costs(name: str, theirs: Mapping[str, float], own: Mapping[str, float], stamps: int) -> None:
    """Print what a tool took for each thing asked of it, and how many times what ours took for each comparable thing."""
    for what, spent in theirs.items():
        print(f"{name}, {what}: {1e9 * spent / stamps:.0f} ns of CPU a token")
        for mine, goal, words in COMPARED[name][what]:
            ratio = spent / own[mine]
            verdict = "" if not goal else f" (goal {RATIO:g} x {'reached' if ratio >= RATIO else 'MISSED'})"
            print(f"    {ratio:6.1f} x {words}{verdict}")


def _hold_values(who: str, theirs: Mapping[str, float], ours: Mapping[str, float | None]) -> None:
    """Print values of a tool beside ours, where both have one."""
    both = [key for key in theirs if key in ours]
    if both:
        print(f"    values beside {who}'s:")
    for key in both:
        value, mine = theirs[key], ours[key]
        agrees = mine is not None and abs(mine - value) <= 1e-9 * max(abs(value), 1e-9)
        print(f"    {key:24s}{value:18.9f}{mine if mine is not None else float('nan'):18.9f}  {'equal' if agrees else 'DIFFERENT'}")


def _columns(record: RunRecord, clocks: Clocks) -> dict[str, Any]:
    """What both peers are given, s on the run's epoch."""
    spec = record.spec
    limits = [(spec.slo.ttft_ns or 0) / NS_PER_S, (spec.slo.tbt_ns or 0) / NS_PER_S, spec.window.measured_ns / NS_PER_S]
    times = {"send": clocks.send_ns, "first": clocks.first_ns, "last": clocks.last_ns, "end": clocks.end_ns, "gaps": clocks.event_gap_ns}
    return {name: ns / NS_PER_S for name, ns in times.items()} | {"tokens": clocks.tokens, "limits": np.array(limits)}


def _best(work: Callable[[], object]) -> float:
    """Least CPU seconds of seven: what others do on the machine can only add."""
    spent = []
    for _ in range(7):
        before = time.process_time()
        work()
        spent.append(time.process_time() - before)
    return min(spent)


def _child(command: list[str]) -> dict[str, Any]:
    """Run a program and read the JSON object it prints last."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} exited with {done.returncode}\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--analyze", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), help="requests of each record, 200 tokens each on average")
    parser.add_argument("--peer-requests", type=int, default=20_000)
    parser.add_argument("--vllm", default=os.environ.get("TRIGPOINT_BENCH_VLLM"), help="interpreter that has vllm")
    parser.add_argument("--guidellm", default=os.environ.get("TRIGPOINT_BENCH_GUIDELLM"), help="interpreter that has guidellm")
    asked = parser.parse_args()
    if asked.analyze:
        print(json.dumps(analyzed(asked.analyze)))
        return
    with tempfile.TemporaryDirectory() as name:
        sizes(asked.sizes, Path(name))
        peers({"vllm": asked.vllm, "guidellm": asked.guidellm}, Path(name), asked.peer_requests)


if __name__ == "__main__":
    main()
