"""``python -m benchmarks.peers.ours LOAD.json PORT FOLDER``: this project's load engine as a command of its own, so that it is started,
sampled and timed like every other client.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.load import Load
from benchmarks.peers.seen import Seen
from harness.calibrate.measure import exchange
from harness.clock import NS_PER_MS, NS_PER_S, MonotonicClock
from harness.record.schema import REQUESTS
from harness.record.segments import read_segments
from harness.replay.contract import ReplayPlan
from harness.replay.session import ReplaySession
from harness.runtimes.ports import HOST
from harness.runtimes.truth_server import MODEL
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask

_LEAD_NS = 500 * NS_PER_MS
_DRAIN_NS = 5 * NS_PER_S
"""An answer takes a second; what is not there after five will not come."""


def plan(load: Load, port: int, folder: Path) -> ReplayPlan:
    """The load at constant intervals, with as many connections ready as will be needed at a time (20 ms + 99 * 10 ms a request)."""
    protocol = PROTOCOLS["completions"]
    arrivals = np.arange(load.requests, dtype=np.int64) * NS_PER_S // round(load.rate)
    asks = (Ask(MODEL, text, load.tokens, ignore_eos=True, seed=i) for i, text in enumerate(load.prompts()))
    return ReplayPlan(
        host=HOST,
        port=port,
        path=protocol.path,
        protocol=protocol.name,
        arrival_ns=arrivals,
        bodies=[protocol.encode(ask) for ask in asks],
        stop_after=np.full(load.requests, -1, dtype=np.int64),
        end_ns=int(arrivals[-1]) + _DRAIN_NS,
        segments=folder / "segments",
        warm_connections=connections(load),
    )


def connections(load: Load) -> int:
    """As many as are in use at a time, and a tenth more: an answer takes a second."""
    return round(load.rate * 1.1)


def told(folder: Path) -> dict[str, int]:
    """What the command left beside the record: ``epoch_ns``, and ``done_ns`` when the last row was on disk (CLOCK_MONOTONIC)."""
    found: dict[str, int] = json.loads((folder / "summary.json").read_text())
    return found


def read(folder: Path, load: Load) -> list[Seen]:
    """What the engine recorded."""
    epoch_ns = told(folder)["epoch_ns"]
    table, _ = read_segments(folder / "segments", "requests-w0", REQUESTS)
    return [_seen(row, epoch_ns, load.tokens) for row in table.to_pylist()]


def _seen(row: dict[str, Any], epoch_ns: int, tokens: int) -> Seen:
    stamps = exchange(row, np.zeros(tokens, dtype=np.int64), tokens).client
    sent = row["send_ns"]
    has = len(stamps) > 0
    return Seen(
        name=f"c{row['request_id']}",
        done=row["end_kind"] == "complete",
        tokens=len(stamps),
        ttft_ns=int(stamps[0]) - sent if has and sent is not None else None,
        first_ns=int(stamps[0]) + epoch_ns if has else None,
        gaps_ns=np.diff(stamps),
        slip_ns=None if sent is None else sent - row["arrival_ns"],
    )


def main() -> None:
    """Drive the load; exits when every row is on disk."""
    load = Load(**json.loads(Path(sys.argv[1]).read_text()))
    port, folder, clock = int(sys.argv[2]), Path(sys.argv[3]), MonotonicClock()
    (folder / "segments").mkdir(parents=True)
    session = ReplaySession(plan(load, port, folder), clock)
    session.start()
    epoch_ns = clock.now_ns() + _LEAD_NS
    session.go(epoch_ns)
    summary = session.wait(load.requests / load.rate + 30.0)
    (folder / "summary.json").write_text(json.dumps({"epoch_ns": epoch_ns, "done_ns": clock.now_ns()}))
    if summary.fault is not None:
        raise SystemExit(f"the load engine failed: {summary.fault}")


if __name__ == "__main__":
    main()
