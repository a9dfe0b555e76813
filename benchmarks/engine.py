"""``make bench``: the load engine beside a plain client, same truth server, same load, in one run; ratios at the end.

Error is the client's stamp minus the write that the truth server logged. Run it on a quiet host.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import baseline
from harness.calibrate.certificate import RateRow, Thresholds
from harness.calibrate.drive import stage_row
from harness.calibrate.ladder import TOKENS, load_of, of_rates, spans
from harness.calibrate.measure import Exchange, rate_row
from harness.calibrate.rig import GAP_MS, TTFT_MS, Place, conduct, start_truth
from harness.clock import MonotonicClock
from harness.runtimes.ports import HOST
from harness.runtimes.truth import LOG_NAME
from harness.runtimes.truth_log import read_log
from harness.wire import PROTOCOLS

SECONDS = 6.0


def engine(rate: float) -> RateRow:
    """Measure the load engine at one rate, held or not. Its CPU time is that of worker and spooler, since the plain client decodes too."""
    ladder = of_rates((rate,), SECONDS)
    load, _ = load_of(ladder)
    row = stage_row(ladder[0], conduct(load, MonotonicClock(), Place()), list(range(len(load.arrivals))), spans(ladder)[0], 1)
    parts = (row.client_cpu_us_per_event, row.spooler_cpu_us_per_event)
    return row.model_copy(update={"client_cpu_us_per_event": None if None in parts else sum(part or 0.0 for part in parts)})


def plain(rate: float) -> RateRow:
    """Measure the plain client at one rate, in a process of its own."""
    load, _ = load_of(of_rates((rate,), SECONDS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server, port = start_truth(folder, MonotonicClock(), (), {"ttft": TTFT_MS, "gap": GAP_MS})
        try:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                path = PROTOCOLS["completions"].path
                rows, cpu_s, epoch_ns = pool.apply(baseline.drive, (HOST, port, path, load.bodies, load.arrivals.tolist()))
        finally:
            server.stop()
        truth = {e["request"]: np.asarray(e["actual_ns"], dtype=np.int64) - epoch_ns for e in read_log(folder / LOG_NAME).to_pylist()}
    exchanges = [_exchange(row, truth.get(f"c{i}")) for i, row in enumerate(rows)]
    return rate_row(rate, len(rows), exchanges, cpu_s, Thresholds())


def _exchange(row: baseline.Row, written: np.ndarray | None) -> Exchange:
    truth = written if written is not None else np.zeros(0, dtype=np.int64)
    slip = None if row.send_ns is None else row.send_ns - row.arrival_ns
    return Exchange(slip, np.asarray(row.stamps, dtype=np.int64), truth, row.done and len(truth) == TOKENS)


COLUMNS = ("slip_p50_ns", "slip_p99_ns", "ttft_error_p99_ns", "tbt_error_p99_ns", "client_cpu_us_per_event")


def main() -> None:
    """Print one table a rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="+", default=[50.0, 100.0, 200.0], help="requests per second")
    for rate in parser.parse_args().rates:
        rows = {"engine": engine(rate), "plain client": plain(rate)}
        print(f"\n{rate:g} req/s, {rate * TOKENS:g} events/s, {SECONDS:g} s  (times in ms, CPU in us an event)")
        print(f"{'':14s}{'delivered':>12s}" + "".join(f"{c.removesuffix('_ns'):>26s}" for c in COLUMNS))
        for name, row in rows.items():
            values = [getattr(row, c) for c in COLUMNS]
            scaled = [None if v is None else v / 1e6 if c.endswith("_ns") else v for c, v in zip(COLUMNS, values, strict=True)]
            shown = "".join(f"{'-' if v is None else f'{v:.3f}':>26s}" for v in scaled)
            print(f"{name:14s}{row.delivered:>6d}/{row.offered:<5d}{shown}")
        print(f"{'plain/engine':26s}" + "".join(_ratio(rows, c) for c in COLUMNS))


def _ratio(rows: dict[str, RateRow], column: str) -> str:
    a, b = (getattr(rows[name], column) for name in ("engine", "plain client"))
    return f"{f'{b / a:.1f}x' if a and b is not None else '-':>26s}"


if __name__ == "__main__":
    main()
