"""One calibration: the truth server in a process of its own, one replay through rising rates, a certificate."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson
import psutil
import pyarrow as pa

from harness.calibrate.certificate import Certificate, RateRow, Thresholds, body_of, ceiling, certificate_id, save
from harness.calibrate.measure import Exchange, exchange, rate_row
from harness.clock import NS_PER_MS, NS_PER_S, Clock
from harness.errors import HostError, InconclusiveError, Problem
from harness.record.schema import MEASUREMENT_PROTOCOL, REQUESTS
from harness.record.segments import read_segments
from harness.record.spec import CertificateRef
from harness.replay.contract import ReplayPlan
from harness.replay.session import ReplaySession
from harness.runtimes.ports import HOST, free_port
from harness.runtimes.process import ServerProcess
from harness.runtimes.truth import LOG_NAME, TruthRuntime
from harness.runtimes.truth_log import lateness_of, read_log
from harness.runtimes.truth_server import MODEL
from harness.system import Arm, ModelPin, Pins
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask
from workloads.schedule import Int64
from workloads.seeds import generator

Say = Callable[[str], None]

TTFT_MS, GAP_MS, TOKENS, PROMPT = 20, 10, 40, 128
"""What the published comparison of load generators used (20 ms, 10 ms a token), with answers short enough to settle between rates."""

SETTLE_NS = 700 * NS_PER_MS
"""Between rates: an answer takes 20 + 39 * 10 ms, so each rate starts with nothing in flight."""

_LEAD_NS = 500 * NS_PER_MS
_READY_S = 30.0
_SEED = 20261130
"""Fixed: two calibrations differ by the host's state only."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Rates (req/s, ascending) and how long each is offered."""

    rates: tuple[float, ...]
    seconds: float


QUICK = Ladder((25.0, 50.0, 100.0, 200.0), 4.0)
"""4 s at the lowest rate give the 100 requests that a p99 needs."""

FULL = Ladder((25.0, 50.0, 100.0, 200.0, 300.0, 400.0, 600.0), 12.0)


def calibrate(
    *,
    cache: Path,
    host: str,
    quick: bool,
    clock: Clock,
    on_progress: Say | None = None,
    client_cpus: tuple[int, ...] = (),
    server_cpus: tuple[int, ...] = (),
    ladder: Ladder | None = None,
) -> Certificate:
    """Measure this host's client and write a certificate into ``cache``.

    ``host``: identity of machine and boot; a certificate of another boot is never cited. Raises InconclusiveError
    ``calibration_inconclusive`` when not even the lowest rate held, HostError when server or load engine fail.
    """
    say = on_progress or (lambda _line: None)
    chosen = ladder or (QUICK if quick else FULL)
    rig = _Rig(clock, say, client_cpus, server_cpus)
    rows, lateness = rig.measure(chosen, 1)
    failed = tuple(row.rate for row in rows if not row.certified)
    if failed:
        say(f"did not hold at {', '.join(f'{rate:g}' for rate in failed)} req/s; trying these once more")
        again, later = rig.measure(Ladder(failed, chosen.seconds), 2)
        rows += again
        lateness = {name: max(value or 0, later[name] or 0) for name, value in lateness.items()}
    best = ceiling(rows)
    if best is None:
        raise _inconclusive(rows)
    draft = Certificate(
        ref=_reference(best, host),
        quick=quick,
        thresholds=Thresholds(),
        rates=rows,
        tokens=TOKENS,
        truth_ttft_ns=TTFT_MS * NS_PER_MS,
        truth_gap_ns=GAP_MS * NS_PER_MS,
        truth_lateness_p99_ns=lateness["p99_ns"],
        truth_lateness_max_ns=lateness["max_ns"],
        placement={"client": list(client_cpus), "server": list(server_cpus)},
    )
    certificate = draft.model_copy(update={"ref": draft.ref.model_copy(update={"id": certificate_id(body_of(draft))})})
    say(f"certificate {save(cache, certificate)}")
    return certificate


def _inconclusive(rows: tuple[RateRow, ...]) -> InconclusiveError:
    lowest = min(row.rate for row in rows)
    tries = [f"attempt {row.attempt}: {'; '.join(row.reasons)}" for row in rows if row.rate == lowest]
    return InconclusiveError(
        Problem(
            "calibration_inconclusive",
            f"rate={lowest:g} req/s, the lowest tried, did not hold ({' | '.join(tries)})",
            "free the host's cores from other work, or reserve a core for the client, and calibrate again",
        )
    )


def _reference(best: RateRow, host: str) -> CertificateRef:
    slip, ttft, tbt = best.slip_p99_ns, best.ttft_error_p99_ns, best.tbt_error_p99_ns
    if slip is None or ttft is None or tbt is None:
        raise ValueError("a certified rate has all its numbers")
    return CertificateRef(
        id="", protocol=MEASUREMENT_PROTOCOL, host=host, created=datetime.now(UTC).isoformat(timespec="microseconds"),
        rate_ceiling=best.rate, event_ceiling=round(best.events_per_s, 1),
        slip_p99_ns=slip, ttft_error_p99_ns=ttft, tbt_error_p99_ns=tbt,
    )  # fmt: skip


def stage_arrivals(ladder: Ladder) -> tuple[Int64, Int64]:
    """Arrivals (n,) ns and the index of each one's rate (n,).

    A fixed count of uniform instants for each rate, which is a Poisson process given its count: the engine meets bursts. Rates follow one
    another with a pause that lets every answer end.
    """
    window = round(ladder.seconds * NS_PER_S)
    arrivals, stages = [], []
    for index, rate in enumerate(ladder.rates):
        count = round(rate * ladder.seconds)
        offsets = np.sort(generator(_SEED, "calibrate", index).integers(0, window, count))
        arrivals.append(offsets + index * (window + SETTLE_NS))
        stages.append(np.full(count, index, dtype=np.int64))
    return np.concatenate(arrivals).astype(np.int64), np.concatenate(stages)


def request_body(index: int) -> bytes:
    """Body of request ``index``; the ``user`` field tells the truth server who asks."""
    prompt = generator(_SEED, "prompt", index).integers(0, 256, PROMPT).tolist()
    fields = orjson.loads(PROTOCOLS["completions"].encode(Ask(MODEL, prompt, TOKENS, ignore_eos=True, seed=index)))
    return orjson.dumps(fields | {"user": f"c{index}"})


@dataclass(frozen=True, slots=True)
class _Rig:
    """Everything two attempts share."""

    clock: Clock
    say: Say
    client_cpus: tuple[int, ...]
    server_cpus: tuple[int, ...]

    def measure(self, ladder: Ladder, attempt: int) -> tuple[tuple[RateRow, ...], dict[str, int | None]]:
        """Run one ladder against a truth server of its own; rows by rate, and how late that server was itself."""
        arrivals, stages = stage_arrivals(ladder)
        with tempfile.TemporaryDirectory(prefix="trigpoint-calibrate-") as name:
            folder = Path(name)
            server, port = _start_truth(folder, self.clock, self.server_cpus)
            try:
                plan = _plan(folder, port, arrivals, self.client_cpus)
                epoch_ns, cpu = _replay(plan, ladder, self.clock, self.say)
            finally:
                server.stop()
            truth = read_log(folder / LOG_NAME)
            table, _ = read_segments(plan.segments, "requests-w0", REQUESTS)
        exchanges = _join(table, truth, epoch_ns)
        return _rows(exchanges, ladder, stages, cpu, attempt), lateness_of(truth)


def _start_truth(folder: Path, clock: Clock, cpus: tuple[int, ...]) -> tuple[ServerProcess, int]:
    runtime = TruthRuntime()
    arm = Arm(name="truth", runtime="truth", args={"ttft": TTFT_MS, "gap": GAP_MS})
    port = free_port()
    server = ServerProcess()
    try:
        server.start(runtime.command(arm, Pins(model=ModelPin(id=MODEL, dtype="none")), port, folder), folder / "server.log", cpus)
        server.wait_ready(lambda: runtime.ready(f"http://{HOST}:{port}"), _READY_S, clock)
    except BaseException:
        server.stop()
        raise
    return server, port


def _plan(folder: Path, port: int, arrivals: Int64, cpus: tuple[int, ...]) -> ReplayPlan:
    protocol = PROTOCOLS["completions"]
    segments = folder / "segments"
    segments.mkdir()
    return ReplayPlan(
        host=HOST,
        port=port,
        path=protocol.path,
        protocol=protocol.name,
        arrival_ns=arrivals,
        bodies=[request_body(index) for index in range(len(arrivals))],
        stop_after=np.full(len(arrivals), -1, dtype=np.int64),
        end_ns=int(arrivals[-1]) + 2 * SETTLE_NS,
        segments=segments,
        cpus=cpus,
        warm_connections=32,
    )


def _replay(plan: ReplayPlan, ladder: Ladder, clock: Clock, say: Say) -> tuple[int, list[float | None]]:
    """Run the plan; returns the epoch and the worker's CPU seconds in each rate."""
    session = ReplaySession(plan, clock)
    session.start()
    try:
        epoch_ns = clock.now_ns() + _LEAD_NS
        session.go(epoch_ns)
        worker = _process(session.worker_pid)
        marks = [_cpu_s(worker)]
        stage_ns = round(ladder.seconds * NS_PER_S) + SETTLE_NS
        for index, rate in enumerate(ladder.rates):
            say(f"rate {rate:g} req/s ({rate * TOKENS:g} events/s), {index + 1} of {len(ladder.rates)}")
            # Marks lie in the pauses, so a rough wait is exact enough.
            end_ns = epoch_ns + (index + 1) * stage_ns - SETTLE_NS // 10
            session.finished(max(0, end_ns - clock.now_ns()) / NS_PER_S)
            marks.append(_cpu_s(worker))
        summary = session.wait(30.0)
        marks[-1] = marks[-1] if marks[-1] is not None else summary.worker_cpu_s
    except BaseException:
        session.abort()
        raise
    if summary.fault is not None:
        raise HostError.single("load_engine_fault", f"replay: {summary.fault}", "free the host and calibrate again; keep the message")
    return epoch_ns, [None if a is None or b is None else b - a for a, b in pairwise(marks)]


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _cpu_s(process: psutil.Process | None) -> float | None:
    """CPU seconds so far; None once the process is gone."""
    try:
        times = process.cpu_times() if process is not None else None
    except psutil.Error:
        return None
    return None if times is None else float(times.user + times.system)


def _join(table: pa.Table, truth: pa.Table, epoch_ns: int) -> dict[int, Exchange]:
    """Client rows and logged writes by request id, all instants on the run's epoch."""
    written = {entry["request"]: np.asarray(entry["actual_ns"], dtype=np.int64) - epoch_ns for entry in truth.to_pylist()}
    nothing = np.zeros(0, dtype=np.int64)
    return {row["request_id"]: exchange(row, written.get(f"c{row['request_id']}", nothing), TOKENS) for row in table.to_pylist()}


def _rows(exchanges: Mapping[int, Exchange], ladder: Ladder, stages: Int64, cpu: list[float | None], attempt: int) -> tuple[RateRow, ...]:
    rows = []
    for index, rate in enumerate(ladder.rates):
        members = np.flatnonzero(stages == index).tolist()
        seen = [exchanges[member] for member in members if member in exchanges]
        rows.append(rate_row(rate, len(members), seen, cpu[index], Thresholds(), attempt))
    return tuple(rows)
