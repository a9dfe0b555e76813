"""A cost model fitted to what clients of a server saw: how long an iteration took, given its prompt rows, decode rows and history.

Tokens that come together are the outputs of one iteration; the time between two such groups is the duration of the later one, as long as
some request got a token in both, so that the server cannot have been idle. The rows of an iteration follow from its tokens and from the
prompts: a prompt ends in the iteration of its first token, and began in earlier ones if the token budget did not let it in at once. A
linear model is fitted by least squares and judged on replicates that it has not seen.

It describes the server under that load, seen from its client. Rows that nobody got a token of (of clients that had left, of requests
computed again after a preemption) are in the durations and in no row: they shift parameters by more than the standard errors say. Used in
an engine it yields synthetic numbers like any other cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from analysis.clocks import Clocks, derive_clocks
from analysis.planned import integers
from harness.errors import Problem, UsageError
from harness.record.reader import RunRecord

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PARAMETERS: Final = ("base_ns", "prefill_token_ns", "decode_row_ns", "context_token_ns")
"""Of ``harness.reference.cost.CostModel``, ns: an iteration, a prompt row, a decode row, a row of history that an interval reads."""

LEAST_ITERATIONS: Final = 100
"""Of one replicate: 25 for each parameter, so that no handful of iterations decides one."""

_NO_BUDGET: Final = np.iinfo(np.int64).max
_TOGETHER: Final = 0.25
"""Share of a short gap between two tokens of one request (its lower quartile) within which tokens of others belong to the same iteration.
A server writes them one after the other, and half a gap would join two iterations when one comes late; gaps below the quartile are those
that a client which was late itself saw shortened."""


@dataclass(frozen=True, slots=True, eq=False)
class Iterations:
    """Columns (n,) of the iterations of one replicate that can be told: durations ns, and rows as ``PARAMETERS`` counts them.

    ``left_out``: iterations seen whose duration or rows are not known.
    """

    duration_ns: Int64
    rows: Int64
    left_out: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """One parameter, ns. ``error``: its standard error by the jackknife over replicates, the unit of inference here."""

    value: float
    error: float


@dataclass(frozen=True, slots=True)
class CostFit:
    """What one arm's replicates say, and how far it holds for a replicate that was not among them.

    ``median_error``, ``p90_error``: relative error of the duration of one iteration, every replicate predicted from the others.
    ``time_error``: the same of a replicate's summed durations, the worst of them. ``dropped``: parameters set to 0 because the data asked
    for less than nothing. ``source``: digest of the campaign; ``evidence_class``: the source's own, which the fit does not hand on.
    """

    arm: str
    source: str
    evidence_class: str
    replicates: int
    iterations: int
    left_out: int
    estimates: Mapping[str, Estimate]
    dropped: tuple[str, ...]
    median_error: float
    p90_error: float
    time_error: float

    def arguments(self) -> dict[str, str]:
        """Arguments of an arm of the reference engine that runs at this cost and says where it is from."""
        value = {name: max(0, round(found.value)) for name, found in self.estimates.items()}
        names = ("cost-base", "cost-prefill-token", "cost-decode-row", "cost-context-token")
        costs = {name: f"{value[parameter]}ns" for name, parameter in zip(names, PARAMETERS, strict=True)}
        return costs | {"cost-source": f"fitted:{self.source[:16]}:{self.median_error:.3f}"}


def fit_costs(records: Sequence[RunRecord]) -> tuple[list[CostFit], list[Problem]]:
    """Fit each arm of a campaign, by name, and say of the others why not. All loads of an arm count as its replicates.

    Problems: ``fit_replicates`` (fewer than two), ``fit_iterations`` (too few can be told in some replicate), ``fit_unidentified`` (the
    load did not vary what a parameter needs). Raises UsageError with all of them when no arm can be fitted.
    """
    arms: dict[str, list[RunRecord]] = {}
    for record in sorted(records, key=lambda r: (r.spec.cell, r.spec.replicate)):
        arms.setdefault(record.spec.arm.name, []).append(record)
    fits, problems = [], []
    for arm, runs in sorted(arms.items()):
        seen = [iterations_of(run) for run in runs]
        wrong = _too_little(arm, seen)
        problems += wrong
        if not wrong:
            fits.append(_fit_arm(arm, runs[0], seen))
    if not fits:
        raise UsageError(*problems)
    return fits, problems


def iterations_of(record: RunRecord) -> Iterations:
    """The iterations that the tokens of one replicate show."""
    clocks = derive_clocks(record)
    tokens = _Tokens.of(clocks)
    if not len(tokens.ns):
        return Iterations(np.zeros(0, np.int64), np.zeros((0, len(PARAMETERS)), np.int64), 0)
    prompts, cached = _joined(record.schedule, "input_tokens", clocks), _joined(record.requests, "usage_cached_tokens", clocks)
    group = tokens.groups()
    count = int(group[-1]) + 1
    ends = tokens.ns[np.searchsorted(group, np.arange(count))]
    later = tokens.index > 0
    decodes = np.bincount(group, later * tokens.carried, count).astype(np.int64)
    context = np.bincount(group, later * (prompts.take(tokens.row) + tokens.index), count).astype(np.int64)
    busy, most = _busy(tokens, group, count), _budget(record)
    room = np.full(count, _NO_BUDGET) if most is None else np.maximum(most - decodes, 0)
    slate, known = _Slate(room, np.zeros(count, np.int64), context, np.ones(count, bool), busy), busy.copy()
    first = (tokens.index == 0).nonzero()[0]
    begun = np.searchsorted(ends, clocks.send_ns.take(tokens.row.take(first)))  # what ran when the request was sent, else ran because of it
    for at, row, ran in zip(group.take(first).tolist(), tokens.row.take(first).tolist(), begun.tolist(), strict=True):
        sizes = (int(prompts[row]), max(0, int(cached[row])))
        # It waits for the end of what runs, can just have missed that cut, or waits longer: then only one start may explain its end.
        starts = (*((ran + 1, ran + 2) if busy[ran] else ()), slate.only_start(ran + int(busy[ran]), at, *sizes))
        if not (busy[at] and any(slate.place(start, at, *sizes) for start in starts)):
            known[ran : at + 1] = slate.sure[ran : at + 1] = False
    for start, stop in _silent(clocks):
        known[np.searchsorted(ends, start) : np.searchsorted(ends, stop) + 1] = False
    rows = np.stack((np.ones(count, np.int64), slate.prefill, decodes, context), axis=1)
    return Iterations(np.diff(ends, prepend=ends[0])[known], rows[known], count - int(known.sum()))


def _joined(table: Any, name: str, clocks: Clocks) -> Int64:
    """A column by request (n,) in the order of ``clocks``."""
    ids = integers(table, "request_id")
    order = np.argsort(ids)
    return integers(table, name).take(order.take(np.searchsorted(ids, clocks.request_id, sorter=order)))


def _budget(record: RunRecord) -> int | None:
    """Most rows of an iteration as the arm or the running server declares them; None where nothing says."""
    told = record.spec.arm.args.get("max-num-batched-tokens")
    fact = record.facts.before.get("server.effective_config")
    config = fact.value if fact is not None and isinstance(fact.value, dict) else {}
    found = config.get("max_num_batched_tokens") if told is None else told
    return found if isinstance(found, int) else None


@dataclass(frozen=True, slots=True, eq=False)
class _Slate:
    """Room for prompt rows, prompt rows placed, history read, and whether that is all, by iteration (count,); filled in place.

    ``busy``: no other iteration lies between this one and the one before, as can be when only prompts ran, which show no token; prompts
    that end in one that is not are not placed.
    """

    room: Int64
    prefill: Int64
    context: Int64
    sure: npt.NDArray[np.bool_]
    busy: npt.NDArray[np.bool_]

    def place(self, start: int, at: int, prompt: int, cached: int) -> bool:
        """Place a prompt that takes all the room from iteration ``start`` on; False, and nothing placed, unless that ends in ``at``."""
        rooms = np.minimum(self.room[start : at + 1], prompt).tolist()
        before = cached + sum(rooms[:-1])
        if (
            start > at
            or not (self.sure[start : at + 1].all() and self.busy[start + 1 : at + 1].all())
            or not before < prompt <= before + rooms[-1]
        ):
            return False
        rooms[-1] = prompt - before
        done = cached + np.cumsum(rooms)
        self.room[start : at + 1] -= rooms
        self.prefill[start : at + 1] += rooms
        self.context[start : at + 1] += np.where(rooms, done, 0)
        return True

    def only_start(self, first: int, at: int, prompt: int, cached: int) -> int:
        """The one iteration from ``first`` to ``at`` with room, started in which a prompt ends in ``at``; ``at`` + 1 unless just one is."""
        need, before, found = prompt - cached, 0, []
        for start in range(at, first - 1, -1):
            room = int(self.room[start])
            before += room if start < at else 0
            if before >= need:
                break
            if not self.sure[start]:
                return at + 1
            if room > 0 and need <= before + int(self.room[at]):
                found.append(start)
        return found[0] if len(found) == 1 else at + 1


@dataclass(frozen=True, slots=True, eq=False)
class _Tokens:
    """Token-carrying events (m,) of a replicate by stamp: request row, 0-based index of the first token carried, tokens carried."""

    ns: Int64
    row: Int64
    index: Int64
    carried: Int64

    @classmethod
    def of(cls, clocks: Clocks) -> _Tokens:
        """The tokens of all requests, by stamp."""
        ns, carried, row = clocks.token_event_ns, np.maximum(clocks.token_event_count, 1), clocks.token_event_request
        before = np.cumsum(carried) - carried
        first = np.ones(len(row), bool)
        first[1:] = row[1:] != row[:-1]
        index = before - np.maximum.accumulate(np.where(first, before, 0))
        order = np.argsort(ns, kind="stable")
        return cls(*(column.take(order) for column in (ns, row, index, carried)))

    def groups(self) -> Int64:
        """Number of the iteration of each event (m,), from 0."""
        by_row = np.lexsort((self.ns, self.row))
        own = np.diff(self.ns.take(by_row))[self.row.take(by_row)[1:] == self.row.take(by_row)[:-1]]
        own = own[own > 0]
        together = _TOGETHER * float(np.percentile(own, 25)) if len(own) else 0.0
        return np.concatenate(([0], np.cumsum(np.diff(self.ns) > together)))


def _busy(tokens: _Tokens, group: Int64, count: int) -> npt.NDArray[np.bool_]:
    """Whether some request got tokens in this iteration and in the one before (count,)."""
    by_row = np.lexsort((group, tokens.row))
    row, at = tokens.row.take(by_row), group.take(by_row)
    busy = np.zeros(count, bool)
    busy[at[1:][(row[1:] == row[:-1]) & (at[1:] == at[:-1] + 1)]] = True
    return busy


def _silent(clocks: Clocks) -> Iterator[tuple[int, int]]:
    """Spans in which a request without a token was in the server: its prompt may have run at any time of them."""
    rows = ((clocks.first_ns < 0) & (clocks.http_status == 200)).nonzero()[0]
    last = int(clocks.end_ns.max(initial=0))
    for row in rows.tolist():
        end = int(clocks.end_ns[row])
        yield int(clocks.send_ns[row]), end if end >= 0 else last


def _too_little(arm: str, seen: Sequence[Iterations]) -> list[Problem]:
    if len(seen) < 2:
        what = f"arm {arm}: {len(seen)} sealed replicate, so no replicate is left to tell the error of the fit on"
        return [Problem("fit_replicates", what, "run at least two replicates")]
    short = [str(len(run.duration_ns)) for run in seen if len(run.duration_ns) < LEAST_ITERATIONS]
    if short:
        what = f"arm {arm}: {', '.join(short)} iterations can be told in some replicates, {LEAST_ITERATIONS} are the least"
        return [Problem("fit_iterations", what, "measure longer, or at a load at which requests overlap")]
    rows = np.concatenate([run.rows for run in seen])
    flat = [name for name, column in zip(PARAMETERS[1:], rows.T[1:], strict=True) if np.ptp(column) == 0]
    if flat or np.linalg.matrix_rank(rows / np.maximum(rows.max(axis=0), 1)) < len(PARAMETERS):
        what = f"arm {arm}: {', '.join(flat) or 'two parameters'} cannot be told apart, because the load did not vary what they price"
        return [Problem("fit_unidentified", what, "measure prompts of several lengths under several degrees of company")]
    return []


def _fit_arm(arm: str, first: RunRecord, seen: Sequence[Iterations]) -> CostFit:
    whole, dropped = _least_squares(seen)
    without = [_least_squares([run for run in seen if run is not left])[0] for left in seen]
    spread = np.sqrt((len(seen) - 1) / len(seen) * ((np.array(without) - np.mean(without, axis=0)) ** 2).sum(axis=0))
    errors, totals = [], []
    for run, parameters in zip(seen, without, strict=True):
        predicted = run.rows @ parameters
        errors.append(np.abs(predicted / run.duration_ns - 1))
        totals.append(abs(float(predicted.sum()) / float(run.duration_ns.sum()) - 1))
    pooled = np.concatenate(errors)
    return CostFit(
        arm=arm,
        source=first.spec.campaign_digest,
        evidence_class=first.spec.evidence_class,
        replicates=len(seen),
        iterations=sum(len(run.duration_ns) for run in seen),
        left_out=sum(run.left_out for run in seen),
        estimates={n: Estimate(float(v), float(e)) for n, v, e in zip(PARAMETERS, whole, spread, strict=True)},
        dropped=tuple(PARAMETERS[at] for at in dropped),
        median_error=float(np.quantile(pooled, 0.5)),
        p90_error=float(np.quantile(pooled, 0.9)),
        time_error=max(totals),
    )


def _least_squares(runs: Sequence[Iterations]) -> tuple[Floats, list[int]]:
    """Parameters (4,) of least squared error, none below zero: the most negative is set to 0 until none is. And which were set."""
    rows = np.concatenate([run.rows for run in runs]).astype(np.float64)
    durations = np.concatenate([run.duration_ns for run in runs]).astype(np.float64)
    scale = np.maximum(rows.max(axis=0), 1.0)
    kept = list(range(len(PARAMETERS)))
    while True:
        found = np.linalg.lstsq(rows[:, kept] / scale[kept], durations, rcond=None)[0] / scale[kept]
        if len(found) == 0 or found.min() >= 0:
            break
        del kept[int(found.argmin())]
    parameters = np.zeros(len(PARAMETERS))
    parameters[kept] = found
    return parameters, [at for at in range(len(PARAMETERS)) if at not in kept]


def to_dict(fit: CostFit) -> dict[str, Any]:
    """The fit in JSON types."""
    return {
        "arm": fit.arm, "cost": "fitted", "source": fit.source, "source_evidence_class": fit.evidence_class, "evidence_class": "synthetic",
        "replicates": fit.replicates, "iterations": fit.iterations, "left_out": fit.left_out, "dropped": list(fit.dropped),
        "parameters": {name: {"value": e.value, "standard_error": e.error} for name, e in fit.estimates.items()},
        "held_out": {"median_error": fit.median_error, "p90_error": fit.p90_error, "time_error": fit.time_error},
        "args": fit.arguments(),
    }  # fmt: skip
