"""Trace reading held against pandas: a CSV in the azure-2023 form to a Schedule, time and memory; ratios at the end.

Each measurement runs in a fresh process, ours and pandas' turn by turn, and the fastest of each counts: what else the host does only ever
adds. Both read the same file from the page cache. Memory is the growth of the process's high-water mark (``VmHWM``, which the kernel keeps)
over what it held after its imports and one small read. Run it on a quiet host.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

ROWS = 1_000_000
STREAMED_ROWS = 10_000_000
MAX_TIME_RATIO = 3.0
MAX_MEMORY_RATIO = 1.5
SEED = 20261130


def write_trace(path: Path, rows: int) -> None:
    """Write ``rows`` seeded rows in the form of the published files: exponential gaps of 1 ms, log-normal lengths, CRLF."""
    rng = np.random.default_rng(SEED)
    ticks = 0
    with path.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens")
        for start in range(0, rows, 100_000):
            count = min(100_000, rows - start)
            at = ticks + np.cumsum(np.rint(rng.exponential(10_000, count)).astype(np.int64))
            ticks = int(at[-1])
            stamps = np.datetime_as_string(np.datetime64("2023-11-16T00:00:00", "ns") + (at * 100).astype("timedelta64[ns]"), unit="ns")
            tokens_in = np.clip(np.rint(rng.lognormal(6.5, 1.0, count)), 1, 14_000).astype(int)
            tokens_out = np.clip(np.rint(rng.lognormal(4.5, 1.0, count)), 1, 1_900).astype(int)
            rows_of = zip(stamps.tolist(), tokens_in.tolist(), tokens_out.tolist(), strict=True)
            file.write("".join(f"\r\n{s[:10]} {s[11:27]},{i},{o}" for s, i, o in rows_of).encode())


def schedule(path: Path, rows: int) -> dict[str, Any]:
    """Build a schedule of the whole file: window, time compression, forced lengths, random ids; no content digest."""
    from workloads import ByteTokenizer, WorkloadPlan, build_schedule

    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    span_s = int(rows * 1e-3 * 0.9)
    plan = WorkloadPlan.model_validate(
        {
            "trace": {"format": "azure-2023", "name": path.name, "sha256": digest.hexdigest()},
            "chain": [{"transform": "window", "start_s": 0, "stop_s": span_s}, {"transform": "time_compress", "factor": 2.0}],
            "arrivals": {"process": "trace"},
            "prompts": {"source": "random-ids"},
            "output": {"control": "forced"},
            "horizon_s": span_s / 2,
            "seed": SEED,
        }
    )
    built, cost = measured(lambda: build_schedule(plan, tokens=ByteTokenizer(), search_path=[path.parent], max_model_len=1 << 20))
    columns = (built.arrival_ns, built.input_tokens, built.output_tokens, built.max_tokens, built.stop_after, built.source_row)
    return {"rows": len(built), "columns": sum(c.nbytes for c in columns), **cost}


def read(path: Path, rows: int) -> dict[str, Any]:
    """Read the whole file and nothing else."""
    from workloads import read_trace

    trace, cost = measured(lambda: read_trace("azure-2023", path))
    assert len(trace) == rows
    columns = (trace.arrival_ns, trace.input_tokens, trace.output_tokens, trace.source_row)
    return {"rows": len(trace), "columns": sum(c.nbytes for c in columns), **cost}


def pandas(path: Path, rows: int) -> dict[str, Any]:
    """Read the same file with plain ``pandas.read_csv``, which leaves the stamps text."""
    import pandas as pd

    frame, cost = measured(lambda: pd.read_csv(path))
    assert len(frame) == rows
    return {"rows": rows, "columns": int(frame.memory_usage(deep=True).sum()), **cost}


def warm_up(job: str) -> None:
    """Do the job once on a few rows, so that imports and first calls are in neither time nor memory, ours or theirs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.csv"
        write_trace(path, 10_000)
        JOBS[job](path, 10_000)


JOBS = {"schedule": schedule, "read": read, "pandas": pandas}


def measured(work: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Result of ``work``, its seconds and CPU seconds, the growth of the high-water mark over what was held before, and the mark, bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back to VmRSS: imports may have needed more than they left
    held, cpu, before = _status("VmRSS"), time.process_time(), time.perf_counter()
    made = work()
    seconds, cpu = time.perf_counter() - before, time.process_time() - cpu
    peak = _status("VmHWM")
    return made, {"seconds": seconds, "cpu": cpu, "growth": peak - held, "peak": peak}


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def measure(job: str, path: Path, rows: int) -> dict[str, Any]:
    """Run one job in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.workloads", "--job", job, "--file", str(path), "--rows", str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(path: Path, rows: int, repeats: int) -> bool:
    """Print ours beside pandas'; True when both limits hold."""
    found: dict[str, list[dict[str, Any]]] = {job: [] for job in JOBS}
    for _ in range(repeats):
        for job, results in found.items():
            results.append(measure(job, path, rows))
    best = {job: min(results, key=lambda r: r["seconds"]) for job, results in found.items()}
    for job, result in best.items():
        low, high = (pick(r["seconds"] for r in found[job]) for pick in (min, max))
        _show(job, result, f"{low:.3f}-{high:.3f} s in {repeats} runs")
    slower = best["schedule"]["seconds"] / best["pandas"]["seconds"]
    worst = max(r["growth"] / r["columns"] for r in found["schedule"])
    print(f"time: schedule / pandas.read_csv = {slower:.2f} (at most {MAX_TIME_RATIO})")
    print(f"memory: growth / schedule's columns = {worst:.2f} (at most {MAX_MEMORY_RATIO})")
    return slower <= MAX_TIME_RATIO and worst <= MAX_MEMORY_RATIO


def stream(path: Path, rows: int) -> bool:
    """Read a file whose text would not fit the limit; True when only the columns and a few blocks were held."""
    write_trace(path, rows)
    size, result = path.stat().st_size, measure("read", path, rows)
    _show("read", result, f"file of {size / 1e6:.0f} MB")
    ratio = result["growth"] / result["columns"]
    print(
        f"streamed: growth / trace's columns = {ratio:.2f} (at most {MAX_MEMORY_RATIO}; with the text {1 + size / result['columns']:.2f})"
    )
    return bool(ratio <= MAX_MEMORY_RATIO)


def _show(job: str, result: dict[str, Any], note: str) -> None:
    sizes = " ".join(f"{key} {result[key] / 1e6:.0f} MB" for key in ("columns", "growth", "peak"))
    print(f"{job:>9}: {result['rows']} rows, {result['seconds']:.3f} s, CPU {result['cpu']:.3f} s, {sizes} ({note})", flush=True)


def main() -> int:
    """Measure, print, and say by the exit code whether the limits hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--streamed-rows", type=int, default=STREAMED_ROWS, help="0 leaves the large file out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--job", choices=sorted(JOBS), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        warm_up(given.job)
        print(json.dumps(JOBS[given.job](given.file, given.rows)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(path, given.rows)
        print(f"file: {given.rows} rows, {path.stat().st_size / 1e6:.0f} MB")
        held = compare(path, given.rows, given.repeats)
        if given.streamed_rows:
            held = stream(path, given.streamed_rows) and held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
