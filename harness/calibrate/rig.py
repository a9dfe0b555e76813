"""One load against a truth server of its own, watched from outside: what calibrations and benchmarks share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from harness.calibrate.joined import Exchange, Lags, backlog_of, join, lags_of, lateness_by_time
from harness.calibrate.watch import Numbers, Watch
from harness.clock import NS_PER_MS, NS_PER_S, Clock
from harness.errors import HostError
from harness.record.schema import REQUESTS, SAMPLES
from harness.record.segments import read_segments, segment_names
from harness.replay.contract import ReplayPlan, ReplaySummary
from harness.replay.session import ReplaySession
from harness.runtimes.ports import HOST, free_port
from harness.runtimes.process import ServerProcess
from harness.runtimes.truth import LOG_NAME, TruthRuntime
from harness.runtimes.truth_log import lateness_of, read_log
from harness.runtimes.truth_server import MODEL
from harness.system import Arm, ModelPin, Pins
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask
from workloads.seeds import generator

Say = Callable[[str], None]

LEAD_NS = 500 * NS_PER_MS
READY_S = 30.0
GRACE_S = 60.0
"""After the drain's end rows are still decoded: at worst as many as a minute can take."""

TTFT_MS, GAP_MS = 20, 10
"""What the published comparison of load generators used: first token after 20 ms, then one every 10 ms."""

ALPHABET = 256


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What is sent and how it is answered. ``arrivals`` (n,) ns ascending; ``tokens`` (n,) of each answer; ``end_ns``: drain end.

    ``server``: flags of the truth server (ttft, gap, jitter in ms, per-write). ``stop_after`` (n,): tokens after which the client stops,
    for which events are decoded as they come; -1, and None for all: it reads to the end.
    """

    arrivals: Numbers
    bodies: Sequence[bytes]
    tokens: Numbers
    end_ns: int
    server: dict[str, Any] = field(default_factory=lambda: {"ttft": TTFT_MS, "gap": GAP_MS})
    workers: int = 1
    warm: int = 32
    stop_after: Numbers | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Cores by role; empty for none reserved."""

    client: tuple[int, ...] = ()
    server: tuple[int, ...] = ()
    spooler: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """What both sides and the watch saw; every instant is ns on the monotonic clock but those of ``exchanges``, on the epoch.

    ``exchanges`` (n,) by request id, None: the client has no row. ``lags``: of the workers' own loops. ``due_at``/``late`` (tokens,): how
    late the truth server wrote, in the order of time. ``lateness``: the same in figures. ``backlog``: most bytes that
    waited for a spooler. ``place``: where all of them ran.
    """

    load: Load
    epoch_ns: int
    exchanges: list[Exchange | None]
    lags: Lags
    due_at: Numbers
    late: Numbers
    lateness: dict[str, int | None]
    watch: Watch
    summary: ReplaySummary
    backlog: int = 0
    place: Place = Place()

    def cpu_us_per_event(self, source: str, start_ns: int, end_ns: int, events: int) -> float | None:
        """CPU time of all processes of a role (``client``, ``spooler``, ``server``) over ``events``, between instants on the epoch."""
        tracks = [track for role, track in self.watch.tracks.items() if role.partition("/")[0] == source]
        used = [track.cpu_between(self.epoch_ns + start_ns, self.epoch_ns + end_ns) for track in tracks]
        if not used or not events or any(cpu is None for cpu in used):
            return None
        return sum(cpu for cpu in used if cpu is not None) * 1e6 / events


def request_body(index: int, tokens: int, prompt: int = 128, alphabet: int = ALPHABET, gap_ms: int | None = None) -> bytes:
    """Body of request ``index``: random ids below ``alphabet``; the ``user`` field tells the truth server who asks, ``gap_ms`` how fast."""
    ids = generator(20261130, "prompt", index).integers(0, alphabet, prompt).astype(np.int32)
    fields = orjson.loads(PROTOCOLS["completions"].encode(Ask(MODEL, [0], tokens, ignore_eos=True, seed=index)))
    speed = {} if gap_ms is None else {"gap_ms": gap_ms}
    return orjson.dumps(fields | {"prompt": ids, "user": f"c{index}"} | speed, option=orjson.OPT_SERIALIZE_NUMPY)


def conduct(load: Load, clock: Clock, place: Place, lines: Sequence[tuple[int, str]] = (), say: Say | None = None) -> Trial:
    """Run one load. ``lines``: (instant on the epoch, what to say then). Raises HostError when server or load engine fail."""
    with tempfile.TemporaryDirectory(prefix="trigpoint-calibrate-") as name:
        folder = Path(name)
        server, port = start_truth(folder, clock, place.server, load.server)
        try:
            plan = _plan(load, folder, port, place)
            epoch_ns, watch, summary = _replay(plan, server.pid, clock, lines, say or (lambda _line: None))
        finally:
            server.stop()
        truth = read_log(folder / LOG_NAME)
        rows = [read_segments(plan.segments, each, REQUESTS)[0] for each in segment_names(plan.segments, "requests")]
        samples = [read_segments(plan.segments, each, SAMPLES)[0] for each in segment_names(plan.segments, "client")]
        exchanges = join(rows, truth, load.tokens, epoch_ns)
        due_at, late = lateness_by_time(truth)
        return Trial(
            load, epoch_ns, exchanges, lags_of(samples, epoch_ns), due_at, late, lateness_of(truth), watch, summary,
            backlog_of(samples), place,
        )  # fmt: skip


def start_truth(folder: Path, clock: Clock, cpus: tuple[int, ...], flags: dict[str, Any]) -> tuple[ServerProcess, int]:
    """Start a truth server whose log goes into ``folder``; returns it, ready, and its port."""
    runtime = TruthRuntime()
    arm = Arm(name="truth", runtime="truth", args=flags)
    port = free_port()
    server = ServerProcess()
    try:
        server.start(runtime.command(arm, Pins(model=ModelPin(id=MODEL, dtype="none")), port, folder), folder / "server.log", cpus)
        server.wait_ready(lambda: runtime.ready(f"http://{HOST}:{port}"), READY_S, clock)
    except BaseException:
        server.stop()
        raise
    return server, port


def _plan(load: Load, folder: Path, port: int, place: Place) -> ReplayPlan:
    protocol = PROTOCOLS["completions"]
    segments = folder / "segments"
    segments.mkdir()
    return ReplayPlan(
        host=HOST,
        port=port,
        path=protocol.path,
        protocol=protocol.name,
        arrival_ns=load.arrivals,
        bodies=load.bodies,
        stop_after=np.full(len(load.arrivals), -1, dtype=np.int64) if load.stop_after is None else load.stop_after,
        end_ns=load.end_ns,
        segments=segments,
        cpus=place.client,
        spool_cpus=place.spooler,
        warm_connections=load.warm,
        workers=load.workers,
    )


def _replay(
    plan: ReplayPlan, server_pid: int, clock: Clock, lines: Sequence[tuple[int, str]], say: Say
) -> tuple[int, Watch, ReplaySummary]:
    session = ReplaySession(plan, clock)
    session.start()
    watch = Watch(clock, session.roles() | {"server": server_pid})
    watch.start()
    try:
        epoch_ns = clock.now_ns() + plan.workers * LEAD_NS
        session.go(epoch_ns)
        for at_ns, line in lines:
            session.finished(max(0, epoch_ns + at_ns - clock.now_ns()) / NS_PER_S)
            say(line)
        summary = session.wait(max(0, epoch_ns + plan.end_ns - clock.now_ns()) / NS_PER_S + GRACE_S)
    except BaseException:
        session.abort()
        raise
    finally:
        watch.stop()
    if summary.fault is not None:
        raise HostError.single("load_engine_fault", f"replay: {summary.fault}", "free the host and calibrate again; keep the message")
    return epoch_ns, watch, summary
