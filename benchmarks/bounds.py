"""``python -m benchmarks.bounds [ROW...]``: the bounds that the load engine must keep, each measured here and now against a truth server
in a process of its own. One command prints the table; run it on a quiet host.

a 100 req/s; b 300 req/s (30,000 events/s) by one process; c 5,000 streams open at once; d 50 prompts of 128k tokens among 100 req/s of
short ones; e ten minutes at 20,000 events/s; f what two workers carry beside one. Error is the client's stamp minus the write that the
truth server logged; how late that server was itself stands beside every row. Rules for the verdicts: ``benchmarks.stalls``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from benchmarks.stalls import (
    STALLED,
    Spans,
    Verdict,
    at_least,
    growth_within,
    p99_within,
    peak_open,
    slips,
    starved,
    tbt_errors,
    ttft_errors,
    within,
)
from harness.calibrate.measure import nearest_rank
from harness.calibrate.rig import Load, Place, Trial, conduct, request_body
from harness.calibrate.watch import Numbers
from harness.clock import NS_PER_MS, NS_PER_S, MonotonicClock
from workloads.seeds import generator

MS = NS_PER_MS
TOKENS = 100
LONG_PROMPT, LONG_COUNT = 131_072, 50
STREAMS, STREAM_TOKENS = 5_000, 60
"""A token a second for a minute, begun within 25 s: all 5,000 are open for half a minute."""

KB = 1_000


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of the table: figures (None: not there to be had) and a verdict for every bound."""

    row: str
    title: str
    figures: dict[str, float | None]
    verdicts: list[Verdict] = field(default_factory=list)


def uniform(rate: float, seconds: float, salt: int) -> Numbers:
    """Instants (n,) of a Poisson process given its count, ns."""
    instants = generator(20261130, "bounds", salt).integers(0, round(seconds * NS_PER_S), round(rate * seconds))
    return np.sort(instants).astype(np.int64)


def steady(rate: float, seconds: float, workers: int = 1) -> Load:
    """``rate`` requests a second of ``TOKENS`` tokens, 20 ms and then 10 ms a token."""
    arrivals = uniform(rate, seconds, 0)
    bodies = [request_body(i, TOKENS) for i in range(len(arrivals))]
    return Load(arrivals, bodies, np.full(len(arrivals), TOKENS), round((seconds + 5) * NS_PER_S), workers=workers)


def many_streams(streams: int = STREAMS) -> Load:
    """All of ``streams`` begin within 25 s and live for a minute at a token a second."""
    arrivals = uniform(streams / 25, 25, 1)
    bodies = [request_body(i, STREAM_TOKENS) for i in range(len(arrivals))]
    end_ns = (25 + STREAM_TOKENS + 10) * NS_PER_S
    return Load(arrivals, bodies, np.full(len(arrivals), STREAM_TOKENS), end_ns, server={"ttft": 20, "gap": 1000}, warm=256)


def with_long_prompts(seconds: float) -> tuple[Load, Numbers]:
    """100 short requests a second with 50 long ones spread over them; also the places of the short ones."""
    short, long_ = uniform(100, seconds, 2), uniform(LONG_COUNT / seconds, seconds, 3)
    arrivals = np.concatenate((short, long_))
    order = np.argsort(arrivals, kind="stable")
    is_long = order >= len(short)
    bodies = [request_body(i, TOKENS, LONG_PROMPT, 32_000) if is_long[i] else request_body(i, TOKENS) for i in range(len(order))]
    load = Load(arrivals[order], bodies, np.full(len(order), TOKENS), round((seconds + 5) * NS_PER_S))
    return load, np.flatnonzero(~is_long)


# -- rows


def row_a(options: argparse.Namespace) -> list[Measured]:
    """100 req/s."""
    return [_timed("a", "100 req/s, 10,000 events/s", _run(steady(100, 20), options), (1 * MS, 3 * MS, 2 * MS))]


def row_b(options: argparse.Namespace) -> list[Measured]:
    """300 req/s by one process."""
    trial = _run(steady(300, 20), options)
    made = _timed("b", "300 req/s, 30,000 events/s, one process", trial, (2 * MS, 5 * MS, 4 * MS))
    made.verdicts.append(
        within("CPU per event", made.figures["cpu_ours_us"], 20, "us", "worker and spooler together, until all is decoded")
    )
    return [made]


def row_c(options: argparse.Namespace) -> list[Measured]:
    """5,000 streams."""
    trial = _run(many_streams(), options)
    made = _timed("c", "5,000 streams open at once, 1 token/s each", trial, (None, 5 * MS, None))
    peak = peak_open(trial)
    made.verdicts.append(at_least("streams open at once", peak, STREAMS, ""))
    client = trial.watch.tracks["client"]
    idle, most = client.memory_around(trial.epoch_ns, NS_PER_S), client.memory_peak()
    a_stream = None if idle is None or most is None or not peak else (most - idle) / peak / KB
    made.figures["kb_a_stream"] = a_stream
    words = "resident memory of the worker, peak less idle at the epoch, over the streams open at the peak"
    made.verdicts.append(within("memory a stream", a_stream, 60, "KB", words))
    return [made]


def row_d(options: argparse.Namespace) -> list[Measured]:
    """50 prompts of 128k tokens among short ones."""
    load, short = with_long_prompts(20)
    size = max(map(len, load.bodies)) / KB
    title = f"{LONG_COUNT} prompts of 128k tokens ({size:.0f} KB each) among 100 req/s of short ones"
    return [_timed("d", title, _run(load, options), (5 * MS, None, None), short)]


def row_e(options: argparse.Namespace) -> list[Measured]:
    """Ten minutes at 20,000 events/s."""
    seconds = options.minutes * 60
    trial = _run(steady(200, seconds), options)
    made = _timed("e", f"{options.minutes:g} min at 20,000 events/s", trial, (2 * MS, None, None))
    lacked = starved(trial, "spooler", trial.epoch_ns, trial.epoch_ns + round(seconds * NS_PER_S))
    for role, backlog in (("client", trial.backlog), ("spooler", 0)):
        track = trial.watch.tracks[role]
        early, late = (track.memory_around(trial.epoch_ns + round(at * NS_PER_S), 5 * NS_PER_S) for at in (seconds / 10, seconds - 5))
        made.figures[f"memory_ratio_{role}"] = None if early is None or late is None else late / early
        made.verdicts.append(growth_within(f"memory growth, {role}", early, late, 1.1, backlog, starved=lacked))
    return [made]


def row_f(options: argparse.Namespace) -> list[Measured]:
    """Two workers beside one, each with as much to do: what a wake-up costs is shared by more events where there is more to read."""
    rows = [
        _timed("f", f"{150 * workers} req/s by {words}", _run(steady(150 * workers, 15, workers), options), (None,) * 3)
        for workers, words in ((1, "one worker"), (2, "two workers"))
    ]
    one, two = (row.figures["cpu_client_us"] for row in rows)
    carried = None if not one or not two else 2 * one / two
    words = f"2 x CPU per event of one worker over that of two: {_cell('', one)} and {_cell('', two)} us. {_cores_words()}"
    rows[1].verdicts.append(at_least("what two workers carry beside one, inferred from CPU time", carried, 1.7, "x", words))
    return rows


def _cores_words() -> str:
    return (
        f"Not measured directly: with {os.cpu_count()} cores for 2 workers, 2 spoolers and a truth server, which carries little more than "
        "one worker itself, that would measure the cores"
    )


ROWS: dict[str, Callable[[argparse.Namespace], list[Measured]]] = {
    "a": row_a, "b": row_b, "c": row_c, "d": row_d, "e": row_e, "f": row_f,
}  # fmt: skip
SHORT = ("a", "b", "d", "f")


def _run(load: Load, options: argparse.Namespace) -> Trial:
    return conduct(load, MonotonicClock(), placed(options, sorted(os.sched_getaffinity(0))))


def placed(options: argparse.Namespace, cores: Sequence[int]) -> Place:
    """Where the processes run: the truth server on the last core and the workers on the others, unless told."""
    client, server = (cores[:-1], cores[-1:]) if len(cores) > 1 else ((), ())
    return Place(
        tuple(client) if options.client_cores is None else _cores(options.client_cores),
        tuple(server) if options.server_cores is None else _cores(options.server_cores),
        _cores(options.spooler_cores),
    )


def _cores(text: str) -> tuple[int, ...]:
    return tuple(int(core) for core in text.split(",") if core)


def _timed(row: str, title: str, trial: Trial, limits_ns: Sequence[int | None], chosen: Numbers | None = None) -> Measured:
    """Figures of a trial, and verdicts for delivery and for slip, TTFT error and TBT error where there is a limit.

    ``chosen``: the requests that the timing is judged by (None: all); delivery is judged over all.
    """
    every = np.arange(len(trial.exchanges))
    picked = every if chosen is None else chosen
    spans = {name: make(trial, picked) for name, make in (("slip", slips), ("TTFT error", ttft_errors), ("TBT error", tbt_errors))}
    delivered = sum(e is not None and e.delivered for e in trial.exchanges)
    verdicts = [at_least("delivered", 100 * delivered / len(every), 100, "%", f"{delivered} of {len(every)}")]
    for (name, values), limit in zip(spans.items(), limits_ns, strict=True):
        if limit is not None:
            verdicts.append(p99_within(f"{name} p99", values, limit, trial))
    return Measured(row, title, _figures(trial, spans, delivered / len(every)), verdicts)


def _figures(trial: Trial, spans: dict[str, Spans], delivered: float) -> dict[str, float | None]:
    events = sum(len(e.client) for e in trial.exchanges if e is not None)
    end_ns = max((int(e.client[-1]) for e in trial.exchanges if e is not None and len(e.client)), default=0)
    figures: dict[str, float | None] = {"delivered": delivered, "events_per_s": events * NS_PER_S / end_ns if end_ns else None}
    for name, short in (("slip", "slip"), ("TTFT error", "ttft"), ("TBT error", "tbt")):
        values = spans[name].values
        figures[f"{short}_p50_ms"], figures[f"{short}_p99_ms"] = (_ms(nearest_rank(values, p)) for p in (0.5, 0.99))
        figures[f"{short}_max_ms"] = _ms(int(values.max())) if len(values) else None
    for role in ("client", "spooler", "server"):
        # The spooler decodes behind the load: all that it still had to do counts.
        figures[f"cpu_{role}_us"] = trial.cpu_us_per_event(
            role, 0, _last_seen(trial, role, end_ns) if role == "spooler" else end_ns, events
        )
    ours = [figures["cpu_client_us"], figures["cpu_spooler_us"]]
    figures["cpu_ours_us"] = None if None in ours else sum(value for value in ours if value is not None)
    for role in ("client", "spooler"):
        peaks = [track.memory_peak() for name, track in trial.watch.tracks.items() if name.partition("/")[0] == role]
        figures[f"rss_{role}_mb"] = None if None in peaks or not peaks else sum(peak or 0 for peak in peaks) / 1e6
    figures |= {"truth_late_p99_ms": _ms(trial.lateness["p99_ns"]), "truth_late_max_ms": _ms(trial.lateness["max_ns"])}
    clients = [track for name, track in trial.watch.tracks.items() if name.partition("/")[0] == "client"]
    waited = [track.delay_between(trial.epoch_ns, trial.epoch_ns + end_ns) for track in clients]
    known = [w for w in waited if w is not None]
    figures["client_waited_share"] = max(known) * NS_PER_S / end_ns if end_ns and known and len(known) == len(waited) else None
    figures["loop_lag_p99_ms"] = _ms(nearest_rank(trial.lags.lag, 0.99))
    return figures


def _last_seen(trial: Trial, role: str, end_ns: int) -> int:
    """The last reading of a role's processes, or ``end_ns`` where that is later; on the epoch."""
    tracks = (track for name, track in trial.watch.tracks.items() if name.partition("/")[0] == role)
    return max([end_ns, *(track.at_ns[-1] - trial.epoch_ns for track in tracks if track.at_ns)])


def _ms(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / MS


# -- printing

COLUMNS = (
    ("delivered", "delivered"), ("events/s", "events_per_s"), ("slip p50", "slip_p50_ms"), ("p99", "slip_p99_ms"), ("max", "slip_max_ms"),
    ("TTFT err p99", "ttft_p99_ms"), ("TBT err p99", "tbt_p99_ms"), ("CPU/event client", "cpu_client_us"), ("spooler", "cpu_spooler_us"),
    ("both", "cpu_ours_us"), ("RSS client", "rss_client_mb"), ("spooler", "rss_spooler_mb"), ("truth late p99", "truth_late_p99_ms"),
    ("max", "truth_late_max_ms"), ("truth CPU", "cpu_server_us"), ("lag p99", "loop_lag_p99_ms"), ("waited", "client_waited_share"),
)  # fmt: skip


def print_row(made: Measured) -> None:
    """One row of figures and a line for each bound."""
    print(f"\n{made.row}  {made.title}   (times in ms, CPU in us an event, memory in MB; waited: share of the time without a core)")
    widths = [max(len(name), 9) + 1 for name, _ in COLUMNS]
    print("".join(f"{name:>{width}s}" for (name, _), width in zip(COLUMNS, widths, strict=True)))
    cells = (_cell(key, made.figures.get(key)) for _, key in COLUMNS)
    print("".join(f"{cell:>{width}s}" for cell, width in zip(cells, widths, strict=True)))
    for each in made.verdicts:
        value = "-" if each.value is None else f"{each.value:.4g}"
        print(f"   {each.verdict.upper():14s}{each.name}: {value} {each.unit} (bound {each.limit:g}) {each.words}")


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key in ("delivered", "client_waited_share"):
        return f"{100 * value:.4g}%"
    return f"{value:.0f}" if key == "events_per_s" else f"{value:.3f}" if key.endswith("_ms") else f"{value:.1f}"


def parser() -> argparse.ArgumentParser:
    """Options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.bounds", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join(ROWS)}; all when none is named")
    made.add_argument("--short", action="store_true", help=f"rows {', '.join(SHORT)}: those that take less than a minute")
    made.add_argument(
        "--client-cores",
        metavar="N,..",
        help="cores for the worker processes (default: all but the last); '': wherever the kernel puts them",
    )
    made.add_argument("--server-cores", metavar="N,..", help="cores for the truth server (default: the last)")
    made.add_argument("--spooler-cores", default="", metavar="N,..", help="cores for the spooler processes (default: any)")
    made.add_argument("--minutes", type=float, default=10.0, help="length of row e (default 10)")
    made.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the rows and print them; exit code 1 when a bound was missed through no stall of the host."""
    asked = parser()
    options = asked.parse_args(argv)
    if unknown := [name for name in options.rows if name not in ROWS]:
        asked.error(f"no such row: {', '.join(unknown)}; use {', '.join(ROWS)}")
    made: list[Measured] = []
    for name in options.rows or (SHORT if options.short else ROWS):
        for row in ROWS[name](options):
            made.append(row)
            if not options.json:
                print_row(row)
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "rows": [asdict(row) for row in made]}, indent=2))
    return int(any(each.verdict not in ("met", STALLED) for row in made for each in row.verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
