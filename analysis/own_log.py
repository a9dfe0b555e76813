"""Somebody's own log of requests, measured by our rules: from a data frame to a record in memory.

Such a record says so everywhere: its evidence class is ``imported``, its coordinates are unknown, it has no seal and no server samples, and
no metric was declared before the run. It is measured like any other and ranks beside nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from harness.clock import NS_PER_S
from harness.errors import Problem, UsageError
from harness.record.canonical import digest
from harness.record.coordinates import RUN_COORDINATES, Coordinate, Known, RunCoordinates, Unknown
from harness.record.facts import Facts
from harness.record.provenance import version
from harness.record.reader import RunRecord
from harness.record.schema import REQUESTS, SAMPLES, SCHEDULE, TRUTH, EndKind, EventKind
from harness.record.seal import SealState
from harness.record.spec import Arm, Estimand, LoadPoint, ModelPin, Pins, Replication, RunSpec, Slo, Window, WorkloadSpec

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Final[Mapping[str, str]] = {
    "arrival_s": "when the request should have been sent, s on the log's clock, 0 or later (required)",
    "end_kind": f"how it ended: {', '.join(k.value for k in EndKind if k not in (EndKind.NEVER_DUE, EndKind.NEVER_SENT))} (required)",
    "end_s": "when it ended, s; missing: it had not when the log was closed (required)",
    "send_s": "when it was sent, s",
    "token_s": "stamps of its tokens, a list of s in ascending order",
    "event_tokens": "tokens that came with each stamp of token_s, a list; without it one each",
    "first_token_s": "when its first token came, s; instead of token_s, and then no gap is known",
    "request_id": "its own whole number; without it the rows are numbered",
    "input_tokens": "tokens of its prompt",
    "client": "who sent it",
    "request_class": "its class, where SLOs differ by class",
    "http_status": "status of the response",
}
"""Columns that are read, with what each holds. A missing value means: not known, or did not happen."""

REQUIRED: Final = ("arrival_s", "end_kind", "end_s")
_WHY_NOT: Final = {
    "output_tokens": "without the stamps of its tokens a length gives neither gap nor rate: give token_s",
    "last_token_s": "two stamps are no gaps, and a rule on every gap would be judged by their distance: give token_s",
    "ttft_s": "a difference has lost the instants it was taken between: give arrival_s and first_token_s",
    "e2e_s": "a difference has lost the instants it was taken between: give arrival_s and end_s",
    "latency_s": "a difference has lost the instants it was taken between: give arrival_s and end_s",
}
_MOST_S: Final = 2**31
"""Seconds and counts stay below this: sixty-eight years, which also keeps a log in wall-clock time, whose whole ns fit a record."""
_ENDS: Final = frozenset(k.value for k in EndKind) - {EndKind.NEVER_DUE.value, EndKind.NEVER_SENT.value}
_FOLLOWS: Final = (
    *(("arrival_s", late) for late in ("send_s", "first_token_s", "the first of token_s", "end_s")),
    *(("send_s", late) for late in ("first_token_s", "the first of token_s", "end_s")),
    *((early, "end_s") for early in ("first_token_s", "the last of token_s")),
)
"""Instants of a request of which the second cannot lie before the first: a token from before its request would meet every limit."""
_UNKNOWN: Final = "imported from a log, which does not say"


@dataclass(frozen=True, slots=True)
class Origin:
    """Which log a record is made from: names for the reports, and which replicate of its cell it is.

    ``estimand``: E1 when the logs of a cell hold the same requests, E2 when they are different samples of one kind of load.
    """

    name: str
    cell: str = "imported"
    replicate: int = 0
    server_start: int = 0
    estimand: Estimand = "E1"


def record_from_frame(
    frame: pd.DataFrame, *, origin: Origin, window: Window, slo: Slo, slo_classes: Mapping[str, Slo] | None = None
) -> RunRecord:
    """Make a record of a log: one row a request, columns as in ``COLUMNS``, s.

    ``window``: the measured part of the log on its own clock; requests that arrive in it are the offered cohort, and open ones are counted
    at its end. Records of one log name are replicates of one campaign for ``analysis.campaign.analyze``. Raises UsageError with every
    problem at once: ``column_missing``, ``column_unknown``, ``column_useless``, ``value_wrong`` (with rows), ``frame_empty``.
    """
    rows = _rows(frame)
    spec = _spec(origin, window, slo, dict(slo_classes or {}), rows)
    coordinates: dict[str, Coordinate] = dict.fromkeys(RUN_COORDINATES, Unknown(reason=_UNKNOWN))
    return RunRecord(
        path=Path(origin.name),
        spec=spec,
        coordinates=RunCoordinates(coordinates=coordinates | {"evidence.class": Known(value="imported", source="declared")}),
        facts=Facts(),
        schedule=pa.Table.from_pylist([_scheduled(r) for r in rows], SCHEDULE),
        truth=pa.Table.from_pylist([], TRUTH),
        requests=pa.Table.from_pylist([_request(r) for r in rows], REQUESTS),
        server_metrics=pa.Table.from_pylist([], SAMPLES),
        host=pa.Table.from_pylist([], SAMPLES),
        observations=(),
        seal=SealState(intact=None, root=None, problems=("no SEAL: imported from a log that nobody sealed",)),
    )


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows with every missing value as None, checked."""
    problems = [*_column_problems([str(c) for c in frame.columns])]
    if not problems and not len(frame):
        problems.append(Problem("frame_empty", "rows=0: there is no request to measure", "give one row a request"))
    if problems:
        raise UsageError(*problems)
    columns = {str(name): [_plain(v) for v in frame[name].tolist()] for name in frame.columns}
    columns.setdefault("request_id", list(range(len(frame))))
    problems = [*_value_problems(columns), *_order_problems(columns)]
    if problems:
        raise UsageError(*problems)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    """One cell in Python's own types; NaN, NaT and NA are None."""
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


def _column_problems(found: list[str]) -> Iterator[Problem]:
    for name in REQUIRED:
        if name not in found:
            yield Problem("column_missing", f"column={name} is not in the frame: {COLUMNS[name]}", f"add or rename a column to {name}")
    for name in found:
        if name in _WHY_NOT:
            yield Problem("column_useless", f"column={name} cannot be used: {_WHY_NOT[name]}", f"drop {name}, or give what it came from")
        elif name not in COLUMNS:
            known = ", ".join(COLUMNS)
            yield Problem("column_unknown", f"column={name} has no meaning here; known: {known}", f"drop {name}, or rename it")
    if "event_tokens" in found and "token_s" not in found:
        yield Problem("column_missing", "column=token_s is not in the frame, but event_tokens is", "give the stamps the counts belong to")
    if "first_token_s" in found and "token_s" in found:
        yield Problem("column_useless", "column=first_token_s stands beside token_s, which holds the first token", "drop first_token_s")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST_S  # NaN and infinity are outside


def _count(value: Any) -> bool:
    return _number(value) and float(value).is_integer()


def _status(value: Any) -> bool:
    return _count(value) and value < 1000


def _stamps(value: Any) -> bool:
    return isinstance(value, list) and all(_number(v) for v in value) and value == sorted(value)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(v is None or (_count(v) and v > 0) for v in value)


_KINDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    **dict.fromkeys(
        ("arrival_s", "end_s", "send_s", "first_token_s"), (_number, f"a finite number of seconds, 0 or later and below {_MOST_S}")
    ),
    **dict.fromkeys(("request_id", "input_tokens"), (_count, f"a whole number, 0 or more and below {_MOST_S}")),
    "http_status": (_status, "a status below 1000"),
    **dict.fromkeys(("client", "request_class"), (lambda v: isinstance(v, str), "text")),
    "token_s": (_stamps, "a list of seconds in ascending order"),
    "event_tokens": (_counts, "a list of whole numbers above 0, or missing where not counted"),
    "end_kind": (lambda v: isinstance(v, str) and v in _ENDS, f"one of {', '.join(sorted(_ENDS))}"),
}


def _value_problems(columns: Mapping[str, list[Any]]) -> Iterator[Problem]:
    for name, values in columns.items():
        holds, what = _KINDS[name]
        needed = name in ("arrival_s", "end_kind", "request_id")
        wrong = [i for i, v in enumerate(values) if (needed if v is None else not holds(v))]
        if wrong:
            yield _at(wrong, f"{name}={columns[name][wrong[0]]!r}: {what} belongs here", f"mend {name}: {COLUMNS[name]}")
    ids = columns["request_id"]
    first: dict[Any, int] = {}
    twice = [i for i, v in enumerate(ids) if first.setdefault(repr(v), i) != i]  # as text: a broken id may be unhashable
    if twice:
        yield _at(twice, f"request_id={ids[twice[0]]!r}: a request has one row", "give every row a number of its own")


def _order_problems(columns: Mapping[str, list[Any]]) -> Iterator[Problem]:
    """Instants of one request that cannot follow each other, and lists of one request that do not belong together."""
    blank = [None] * len(columns["arrival_s"])
    tokens, counts = columns.get("token_s", blank), columns.get("event_tokens", blank)
    stamps = [[] if t is None else t for t in tokens]
    torn = [  # what is no list was named above
        i for i, (t, c) in enumerate(zip(stamps, counts, strict=True)) if isinstance(t, list) and isinstance(c, list) and len(c) != len(t)
    ]
    if torn:
        yield _at(torn, "event_tokens: not as many counts as token_s has stamps", "give one count a stamp")
    done = (EndKind.COMPLETE.value, EndKind.CLIENT_STOP.value)
    endless = [i for i, (k, e) in enumerate(zip(columns["end_kind"], columns["end_s"], strict=True)) if k in done and e is None]
    if endless:
        yield _at(endless, "end_s is missing of a request that completed", "give its end, or end_kind=drain_end if it had none")
    listed = [t if isinstance(t, list) and t else [None] for t in tokens]
    columns = {**columns, "the first of token_s": [t[0] for t in listed], "the last of token_s": [t[-1] for t in listed]}
    for early, late in _FOLLOWS:
        pairs = zip(columns.get(early, blank), columns.get(late, blank), strict=True)
        back = [i for i, (a, b) in enumerate(pairs) if _number(a) and _number(b) and b < a]
        if back:
            yield _at(back, f"{late} lies before {early}", "give all instants on one clock, in s")


def _at(rows: list[int], what: str, remedy: str) -> Problem:
    shown = ", ".join(str(i) for i in rows[:5]) + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")
    return Problem("value_wrong", what, remedy, f"row{'s' * (len(rows) > 1)} {shown}")


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * NS_PER_S)


def _scheduled(row: Mapping[str, Any]) -> dict[str, Any]:
    """The log is all that is known of the plan. An unknown prompt length stays null: analysis reads null as not stated."""
    kept = {name: row.get(name) for name in ("request_id", "input_tokens", "client", "request_class")}
    return kept | {"arrival_ns": _ns(row["arrival_s"])}


def _request(row: Mapping[str, Any]) -> dict[str, Any]:
    stamps, counted = row.get("token_s"), row.get("event_tokens")
    if stamps is None:
        # One event that carried an uncounted number of tokens: the first token's instant is known and no gap is.
        stamps, counted = ([] if row.get("first_token_s") is None else [row["first_token_s"]]), [None]
    each = [*(counted or [1] * len(stamps))][: len(stamps)]
    known = row.get("token_s") is not None and all(c is not None for c in each)
    return {
        "request_id": row["request_id"],
        "arrival_ns": _ns(row["arrival_s"]),
        "send_ns": _ns(row.get("send_s")),
        "end_ns": _ns(row["end_s"]),
        "end_kind": row["end_kind"],
        "http_status": row.get("http_status"),
        "client_tokens": sum(each) if known else None,
        "event_ns": [_ns(s) for s in stamps],
        "event_tokens": each,
        "event_bytes": [None] * len(stamps),
        "event_kind": [int(EventKind.TOKEN)] * len(stamps),
    }


def _spec(origin: Origin, window: Window, slo: Slo, classes: dict[str, Slo], rows: list[dict[str, Any]]) -> RunSpec:
    seconds = max(window.end_ns / NS_PER_S, 1e-9)
    return RunSpec(
        campaign=origin.name,
        campaign_digest=digest({"imported": origin.name}),
        question=f"What does the log {origin.name} say by our rules?",
        cell=origin.cell,
        arm=Arm(name=origin.cell, runtime="imported"),
        load=LoadPoint(kind="rate", value=len(rows) / seconds),
        replicate=origin.replicate,
        server_start=origin.server_start,
        attempt=1,
        estimand=origin.estimand,
        evidence_class="imported",
        pins=Pins(model=ModelPin(id="unknown", dtype="unknown", quantization="unknown")),
        workload=WorkloadSpec(
            trace=None,
            arrivals={"process": "imported"},
            prompts={"source": "imported"},
            output_length="natural",
            digest=digest([_scheduled(r) for r in rows]),
            tokenizer_digest="unknown",
            seed=0,
        ),
        slo=slo,
        slo_classes=classes,
        window=window,
        replication=Replication(count=1, server_starts=1, vary="none"),
        source_digest="imported",
        version=version(),
    )
