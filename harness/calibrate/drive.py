"""One calibration: the truth server in a process of its own, one replay through a ladder of stages, a certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from harness.calibrate.certificate import Ceilings, Certificate, RateRow, Thresholds, body_of, ceilings, certificate_id, save
from harness.calibrate.ladder import FULL, QUICK, QUICK_NS, Ladder, Stage, fitting, load_of, spans
from harness.calibrate.measure import nearest_rank, open_at_sends, rate_row
from harness.calibrate.rig import TTFT_MS, Place, Trial, conduct
from harness.clock import NS_PER_MS, NS_PER_S, Clock
from harness.errors import InconclusiveError, Problem
from harness.record.schema import MEASUREMENT_PROTOCOL
from harness.record.spec import CertificateRef

Say = Callable[[str], None]

MEMORY_STREAMS = 200
"""Memory a stream is a difference of two readings over the streams; allocators move in steps of a few hundred KB, which fewer streams
would not drown."""


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
    workers: int = 1,
) -> Certificate:
    """Measure this host's client and write a certificate into ``cache``.

    ``host``: identity of machine and boot; a certificate of another boot is never cited. Raises InconclusiveError
    ``calibration_inconclusive`` when not even the lowest rate held, HostError when server or load engine fail.
    """
    say = on_progress or (lambda _line: None)
    chosen, began_ns = ladder or (QUICK if quick else FULL), clock.now_ns()
    rig = _Rig(clock, say, Place(client_cpus, server_cpus), workers)
    rows, lateness = rig.measure(chosen, 1)
    failed = tuple(stage for stage, row in zip(chosen, rows, strict=True) if not row.certified)
    again_of = _in_time(failed, chosen, clock.now_ns() - began_ns) if quick else failed
    if failed:
        say(f"{len(failed)} of {len(chosen)} stages did not hold; trying {len(again_of)} of them once more")
    if again_of:
        again, later = rig.measure(again_of, 2)
        rows += again
        lateness = {name: max(value or 0, later[name] or 0) for name, value in lateness.items()}
    found = ceilings(rows)
    if found is None:
        raise _inconclusive(rows)
    draft = Certificate(
        ref=_reference(found, host, workers),
        quick=quick,
        thresholds=Thresholds(),
        rates=rows,
        truth_ttft_ns=TTFT_MS * NS_PER_MS,
        truth_lateness_p99_ns=lateness["p99_ns"],
        truth_lateness_max_ns=lateness["max_ns"],
        placement={"client": list(client_cpus), "server": list(server_cpus)},
    )
    certificate = draft.model_copy(update={"ref": draft.ref.model_copy(update={"id": certificate_id(body_of(draft))})})
    say(f"certificate {save(cache, certificate)}")
    return certificate


def _in_time(failed: Ladder, chosen: Ladder, spent_ns: int) -> Ladder:
    """What can be repeated before a quick calibration has lasted too long. Starting the processes again takes as long as it took."""
    start_ns = max(0, spent_ns - sum(stage.length_ns for stage in chosen))
    return fitting(failed, QUICK_NS - spent_ns - start_ns)


def _inconclusive(rows: tuple[RateRow, ...]) -> InconclusiveError:
    own = [row for row in rows if row.axis == "rate"]
    lowest = min((row.rate for row in own), default=0.0)
    tries = [f"attempt {row.attempt}: {'; '.join(row.reasons)}" for row in own if row.rate == lowest]
    return InconclusiveError(
        Problem(
            "calibration_inconclusive",
            f"rate={lowest:g} req/s, the lowest tried, did not hold ({' | '.join(tries)})",
            "free the host's cores from other work, or reserve a core for the client, and calibrate again",
        )
    )


def _reference(found: Ceilings, host: str, workers: int) -> CertificateRef:
    slip, ttft, tbt = found.best.slip_p99_ns, found.best.ttft_error_p99_ns, found.best.tbt_error_p99_ns
    if slip is None or ttft is None or tbt is None:
        raise ValueError("a certified rate has all its numbers")
    cpu = found.best.client_cpu_us_per_event
    return CertificateRef(
        id="", protocol=MEASUREMENT_PROTOCOL, host=host, created=datetime.now(UTC).isoformat(timespec="microseconds"),
        rate_ceiling=found.rate, event_ceiling=round(found.events, 1), stream_ceiling=found.streams,
        live_event_ceiling=None if found.live_events is None else round(found.live_events, 1), workers=workers,
        slip_p99_ns=slip, ttft_error_p99_ns=ttft, tbt_error_p99_ns=tbt,
        cpu_us_per_event=None if cpu is None else round(cpu, 2), memory_per_stream_bytes=found.memory_per_stream_bytes,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Rig:
    """Everything two attempts share."""

    clock: Clock
    say: Say
    place: Place
    workers: int

    def measure(self, ladder: Ladder, attempt: int) -> tuple[tuple[RateRow, ...], dict[str, int | None]]:
        """Run one ladder against a truth server of its own; a row a stage, and how late that server was itself."""
        load, of = load_of(ladder, self.workers)
        begins = [begin for begin, _ in spans(ladder)]
        lines = [(at, f"{stage.words()}, {i + 1} of {len(ladder)}") for i, (at, stage) in enumerate(zip(begins, ladder, strict=True))]
        trial = conduct(load, self.clock, self.place, lines, self.say)
        rows = [
            stage_row(stage, trial, np.flatnonzero(of == i).tolist(), span, attempt)
            for i, (stage, span) in enumerate(zip(ladder, spans(ladder), strict=True))
        ]
        return tuple(rows), trial.lateness


def stage_row(stage: Stage, trial: Trial, members: list[int], span_ns: tuple[int, int], attempt: int) -> RateRow:
    """Summarise the requests ``members`` of one stage, which lasted from ``span_ns[0]`` to ``span_ns[1]`` on the epoch."""
    seen = [item for member in members if (item := trial.exchanges[member]) is not None]
    events = sum(len(item.client) for item in seen)
    row = rate_row(stage.rate, len(members), seen, None, Thresholds(), attempt)
    late = trial.late[slice(*np.searchsorted(trial.due_at, [trial.epoch_ns + at for at in span_ns]).tolist())]
    open_then = open_at_sends(seen)
    streams = int(open_then.max(initial=0))
    return row.model_copy(
        update={
            "axis": stage.axis,
            "tokens": stage.tokens,
            "gap_ms": float(stage.gap_ms),
            "client_cpu_us_per_event": trial.cpu_us_per_event("client", *span_ns, events),
            "spooler_cpu_us_per_event": trial.cpu_us_per_event("spooler", *span_ns, events),
            "streams": streams,
            "streams_held": nearest_rank(open_then, 0.5) or 0,
            "memory_per_stream_bytes": _memory_per_stream(trial, span_ns, streams),
            "truth_lateness_p99_ns": nearest_rank(late, 0.99),
            "truth_lateness_max_ns": int(late.max()) if len(late) else None,
        }
    )


def _memory_per_stream(trial: Trial, span_ns: tuple[int, int], streams: int) -> int | None:
    """Over all workers: most resident bytes within the stage less those at the epoch, for each stream. Null below ``MEMORY_STREAMS``."""
    begin, end = (trial.epoch_ns + at for at in span_ns)
    grown = 0.0
    for role, track in trial.watch.tracks.items():
        if role.partition("/")[0] != "client":
            continue
        idle, most = track.memory_around(trial.epoch_ns, NS_PER_S), track.memory_most(begin, end)
        if idle is None or most is None:
            return None
        grown += most - idle
    return round(grown / streams) if streams >= MEMORY_STREAMS else None
