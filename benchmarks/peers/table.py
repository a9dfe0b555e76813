"""The printed comparison: a line for each client, the ratio of the best peer to this engine, and a verdict on every bound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from benchmarks.peers.figures import Figures

_MS, _MIB = 1e6, 2**20


@dataclass(frozen=True, slots=True)
class Column:
    """A heading of two lines and how its value is read. ``ratio``: smaller is better, so best peer / ours says how much."""

    head: tuple[str, str]
    value: Callable[[Figures], float | None]
    digits: int
    ratio: bool = False


def _over(name: str, unit: float) -> Callable[[Figures], float | None]:
    def value(row: Figures) -> float | None:
        found = getattr(row, name)
        return None if found is None else found / unit

    return value


COLUMNS = (
    Column(("delivered", "%"), lambda row: 100 * row.delivered / row.offered, 1),
    Column(("sent", "req/s"), lambda row: row.sent_per_s, 1),
    Column(("slip p50", "ms"), _over("slip_p50_ns", _MS), 2),
    Column(("slip p99", "ms"), _over("slip_p99_ns", _MS), 2, ratio=True),
    Column(("own slip", "p99 ms"), _over("own_slip_p99_ns", _MS), 2),
    Column(("stamp err", "p99 ms"), _over("stamp_error_p99_ns", _MS), 2, ratio=True),
    Column(("TTFT err", "p99 ms"), _over("ttft_error_p99_ns", _MS), 2, ratio=True),
    Column(("TBT err", "p99 ms"), _over("tbt_error_p99_ns", _MS), 2, ratio=True),
    Column(("CPU/event", "us"), lambda row: row.cpu_us_per_event, 1, ratio=True),
    Column(("CPU whole", "s"), lambda row: row.total_cpu_s, 1, ratio=True),
    Column(("peak RSS", "MiB"), _over("peak_rss_bytes", _MIB), 0, ratio=True),
    Column(("processes", ""), _over("peak_processes", 1), 0),
    Column(("wall", "s"), lambda row: row.wall_s, 1),
    Column(("srv late", "p99 ms"), _over("late_p99_ns", _MS), 2),
)
_NAME, _WIDTH = 24, 11


def fields(peers: Mapping[str, Figures], compiled: Collection[str]) -> dict[str, Mapping[str, Figures]]:
    """Whom a ratio is taken against, by what the best of them is called: all peers, and those in Python when others took part too."""
    python = {name: row for name, row in peers.items() if name not in compiled}
    return {"best peer": peers} if len(python) in (0, len(peers)) else {"best peer": peers, "best Python peer": python}


def lines(
    ours: tuple[str, Figures], peers: Mapping[str, Figures], compiled: Collection[str] = (), beside: Mapping[str, Figures] | None = None
) -> list[str]:
    """The table without its caption. ``beside``: shown, and no peer."""
    rows = {ours[0]: ours[1], **(beside or {}), **peers}
    shown = [" " * _NAME + "".join(f"{column.head[part]:>{_WIDTH}s}" for column in COLUMNS) for part in (0, 1)]
    shown += [f"{name:{_NAME}s}" + "".join(_cell(column.value(row), column.digits) for column in COLUMNS) for name, row in rows.items()]
    for best, field in fields(peers, compiled).items() if peers else ():
        shown.append(f"{f'{best} / ours':{_NAME}s}" + "".join(_ratio_cell(column, ours[1], field) for column in COLUMNS))
    return shown


def _cell(value: float | None, digits: int) -> str:
    return f"{'-' if value is None else f'{value:.{digits}f}':>{_WIDTH}s}"


def _ratio_cell(column: Column, ours: Figures, peers: Mapping[str, Figures]) -> str:
    ratio = best_ratio(column.value, ours, peers.values()) if column.ratio else None
    return f"{'' if not column.ratio else '-' if ratio is None else f'{ratio:.1f}x':>{_WIDTH}s}"


def best_ratio(value: Callable[[Figures], float | None], ours: Figures, peers: Iterable[Figures]) -> float | None:
    """The smallest value of any peer over ours; None when one side has none."""
    own = value(ours)
    theirs = [found for row in peers if (found := value(row)) is not None]
    return min(theirs) / own if theirs and own else None


@dataclass(frozen=True, slots=True)
class Bound:
    """What must be reached. ``limit``: of this engine's own value; ``ratio``: best peer / ours, at least. ``timed``: a stall moves it."""

    what: str
    value: Callable[[Figures], float | None]
    unit: str
    limit: float | None = None
    ratio: float | None = None
    timed: bool = True


def _slip(row: Figures) -> float | None:
    """The larger of what the server saw and what the engine says of itself."""
    known = [found for found in (row.slip_p99_ns, row.own_slip_p99_ns) if found is not None]
    return max(known) / _MS if known else None


_STAMP, _TTFT, _TBT = (_over(f"{name}_error_p99_ns", _MS) for name in ("stamp", "ttft", "tbt"))

BOUNDS = {
    100.0: (
        Bound("slip p99", _slip, "ms", limit=1.0),
        Bound("first token's stamp error p99", _STAMP, "ms", limit=3.0, ratio=10.0),
        Bound("reported TTFT's error p99", _TTFT, "ms", limit=3.0, ratio=10.0),
        Bound("TBT error p99", _TBT, "ms", limit=2.0),
        Bound("CPU per event", lambda row: row.cpu_us_per_event, "us", ratio=6.0, timed=False),
    ),
    300.0: (
        Bound("slip p99", _slip, "ms", limit=2.0),
        Bound("first token's stamp error p99", _STAMP, "ms", limit=5.0),
        Bound("TBT error p99", _TBT, "ms", limit=4.0),
        Bound("CPU per event", lambda row: row.cpu_us_per_event, "us", limit=20.0, timed=False),
    ),
}
"""By requests a second; other loads have no bounds."""

OUT_OF_STEP = {101.0: 100.0, 303.0: 300.0}
"""Loads that have the bounds of another. At 100 and 300 a second arrivals keep step with a token every 10 ms: all answers write at the same
instants, and what is compared is how long a server needs for a hundred writes at once. One in a hundred more spreads them evenly."""


def verdicts(
    rate: float, ours: Figures, peers: Mapping[str, Figures], compiled: Collection[str] = (), bare: Figures | None = None
) -> list[tuple[str, str]]:
    """(bound, verdict) for a load; empty where nothing must be reached. ``bare``: what reading alone costs."""
    rate = OUT_OF_STEP.get(rate, rate)
    if rate not in BOUNDS:
        return []
    whole = f"{ours.delivered} of {ours.offered}"
    found = [("delivered: all", f"{whole}: {'met' if ours.delivered == ours.offered else 'NOT met'}")]
    for bound in BOUNDS[rate]:
        if bound.limit is not None:
            found.append((f"{bound.what} <= {bound.limit:g} {bound.unit}", _against_limit(bound, bound.limit, ours)))
        if bound.ratio is not None:
            for best, field in fields(peers, compiled).items():
                found.append((f"{bound.what} <= 1/{bound.ratio:g} of the {best}'s", _against_peers(bound, bound.ratio, ours, field, bare)))
    return found


def _against_limit(bound: Bound, limit: float, ours: Figures) -> str:
    value = bound.value(ours)
    if value is None:
        return "unknown: it could not be measured"
    said = f"{value:.3f} {bound.unit}"
    if value <= limit:
        return f"{said}: met"
    late = None if ours.late_p99_ns is None else ours.late_p99_ns / _MS
    # A server that was itself that late at one write in a hundred measures nothing finer, whatever held it up.
    if bound.timed and late is not None and late >= limit:
        return f"{said}: NOT met; the truth server was {late:.2f} ms late itself at p99: the host stalled, or it had too much to write"
    return f"{said}: NOT met"


def _against_peers(bound: Bound, ratio: float, ours: Figures, peers: Mapping[str, Figures], bare: Figures | None) -> str:
    have = {name: value for name, row in peers.items() if (value := bound.value(row)) is not None}
    own = bound.value(ours)
    if not have or not own:
        return "unknown: no peer was measured" if own else "unknown: it could not be measured"
    best = min(have, key=lambda name: have[name])
    reached = have[best] / own
    said = f"1/{reached:.1f} of {best} ({have[best]:.2f} {bound.unit}): {'met' if reached >= ratio else 'NOT met'}"
    least = None if bare is None else bound.value(bare)
    if reached < ratio and least is not None and least > have[best] / ratio:
        return f"{said}; reading alone costs {least:.2f} {bound.unit} here"
    return said
