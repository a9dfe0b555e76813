"""What was sent: arrivals, tokens and reuse, each as planned, as sent and as the server counted it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from analysis.clocks import Clocks
from analysis.model import Arrivals, Reuse, Sent, Stream, Tally, Tokens
from analysis.planned import MISSING, Bools, Int64, integers, planned, waits, without_arrival
from analysis.reuse import read_cache, reuse_of
from analysis.samples import AbsentError, counter_delta
from harness.burstiness import dispersion, gap_cv, in_order
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord

ALL = slice(None)

COUNTERS = {"input": "prompt_tokens_total", "output": "generation_tokens_total"}


def prove(record: RunRecord, clocks: Clocks) -> Sent:
    """Gather what a run planned, sent and had counted, over the whole run and not its window only."""
    return Sent(
        arrivals=_arrivals(record, clocks),
        tokens=TokenColumns.of(record, clocks).tokens(),
        server={side: _counter(record, metric, clocks) for side, metric in COUNTERS.items()},
        reuse=reuse_of(read_cache(record, clocks)),
        transforms=record.spec.workload.transforms,
    )


def _arrivals(record: RunRecord, clocks: Clocks) -> tuple[Arrivals, ...]:
    """Requests by the clock, and those that wait for others where there are any: like is held against like."""
    waiting, ids = waits(record.schedule), integers(record.schedule, "request_id")
    planned_ns, never = integers(record.schedule, "arrival_ns"), without_arrival(record)
    kinds: dict[Literal["clock", "waiting"], Bools] = {"clock": ~waiting}
    if waiting.any():
        kinds["waiting"] = waiting
    found = []
    for kind, plan in kinds.items():
        rows = np.isin(clocks.request_id, ids[plan])
        sent_ns = clocks.send_ns[rows & (clocks.send_ns != MISSING)]
        found.append(
            Arrivals(
                kind=kind,
                scheduled=int(plan.sum()),
                due=int(rows.sum()),
                sent=len(sent_ns),
                not_due=dict(sorted(Counter(k for k in never[plan] if k is not None).items())),
                planned_stream=_stream(record, planned_ns[plan] if kind == "clock" else clocks.arrival_ns[rows]),
                sent_stream=_stream(record, sent_ns),
            )
        )
    return tuple(found)


def _stream(record: RunRecord, instants: Int64) -> Stream:
    ascending = in_order(instants)
    seconds = record.spec.window.end_ns / NS_PER_S
    widths = {f"{width}s": value for width, value in dispersion(ascending).items()}
    return Stream(len(ascending), len(ascending) / seconds, gap_cv(ascending), widths)


def _counter(record: RunRecord, metric: str, clocks: Clocks) -> Tally:
    n = int((clocks.send_ns != MISSING).sum())
    try:
        return Tally(int(counter_delta(record, metric, int(clocks.end_ns.max(initial=0)))), n)
    except AbsentError as absent:
        return Tally(None, n, str(absent))


@dataclass(frozen=True, slots=True, eq=False)
class TokenColumns:
    """Token counts of one run, MISSING where nobody stated them: of the schedule's rows (m,) the plan, of the rows that arrived (n,) the
    plan, the client's count and the server's usage; ``sent`` (n,) marks those handed to the socket.
    """

    input_plan: Int64
    output_plan: Int64
    sent: Bools
    input: Int64
    input_usage: Int64
    output_client: Int64
    output_usage: Int64

    @classmethod
    def of(cls, record: RunRecord, clocks: Clocks) -> TokenColumns:
        """Read them from a record."""
        ids, plan_ids = clocks.request_id, integers(record.schedule, "request_id")
        stop = planned(record.truth, "stop_after", plan_ids)
        return cls(
            input_plan=integers(record.schedule, "input_tokens"),
            output_plan=np.where(stop != MISSING, stop, planned(record.truth, "output_tokens", plan_ids)),
            sent=clocks.send_ns != MISSING,
            input=planned(record.schedule, "input_tokens", ids),
            input_usage=planned(record.requests, "usage_prompt_tokens", ids),
            output_client=planned(record.requests, "client_tokens", ids),
            output_usage=planned(record.requests, "usage_completion_tokens", ids),
        )

    def tokens(self, scheduled: Bools | slice = ALL, rows: Bools | slice = ALL) -> Tokens:
        """Add them up over some rows of the schedule (m,) and some that arrived (n,)."""
        sent = self.sent[rows]
        return Tokens(
            input_planned=_sum(self.input_plan[scheduled], "planned"),
            input_sent=_sum(self.input[rows][sent], "planned"),
            input_counted=_sum(self.input_usage[rows][sent], "stated by the server"),
            output_planned=_sum(self.output_plan[scheduled], "planned"),
            output_received=_sum(self.output_client[rows][sent], "counted by the client"),
            output_counted=_sum(self.output_usage[rows][sent], "stated by the server"),
        )


def _sum(values: Int64, words: str) -> Tally:
    """Add what is known; nothing known of something is unknown, never 0."""
    known = values != MISSING
    n, of = int(known.sum()), len(values)
    if n == 0 and of > 0:
        return Tally(None, 0, f"not {words} for any of {of} requests")
    return Tally(int(values[known].sum()), n, "" if n == of else f"{words} for {n} of {of} requests")


def add_tallies(parts: Iterable[Tally]) -> Tally:
    """Add counts of several runs; unknown as soon as one is, for a sum with a hole is no sum."""
    found = list(parts)
    reasons = "; ".join(dict.fromkeys(p.reason for p in found if p.reason))
    lacking = [p for p in found if p.value is None]
    n = sum(p.n for p in found)
    if lacking:
        return Tally(None, n, "; ".join(dict.fromkeys(p.reason for p in lacking)))
    return Tally(sum(p.value or 0 for p in found), n, reasons)


def add_tokens(parts: Iterable[Tokens]) -> Tokens:
    """Add token counts of several runs, side by side."""
    found = list(parts)
    return Tokens(*(add_tallies(getattr(p, side.name) for p in found) for side in fields(Tokens)))


def add_reuse(parts: Iterable[Reuse]) -> Reuse:
    """Add reuse of several runs; a block size that one of them does not state is left out."""
    found = list(parts)
    shared: list[Mapping[str, Tally]] = [p.possible for p in found]
    sizes = [b for b in shared[0] if all(b in p for p in shared)] if shared else []
    possible = {size: add_tallies(p[size] for p in shared) for size in sizes}
    return Reuse(possible, add_tallies(p.realised for p in found), _words(p.source for p in found), _words(p.cache for p in found))


def _words(found: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(word for word in found if word))
