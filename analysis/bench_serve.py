"""What ``vllm bench serve`` would have written of a run: every figure of its result, by its rules, from the raw stamps.

The rules are those of its version 0.32.0 (``analysis.dialects`` says them one by one): clocks start at the send, an answer that ended is a
success whatever its length, percentiles are linear, no sample is too small, and a chunk is a token where tokens are counted by the second.
Every number is a diagnostic, for holding a run against one of that tool's; none is ever ranked.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from analysis.clocks import output_tokens
from analysis.dialects import meets_limits
from analysis.gaps import Union, narrow
from analysis.planned import MISSING, SERVED, Bools, Int64, in_window, integers, is_any, planned, texts
from analysis.stamps import Piece, arrived_rows, ends_of, gaps_of, spread
from analysis.tails import Floats, between, linear_ranks
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord

PERCENTILES: Final[Mapping[str, Fraction]] = {"p50": Fraction(50, 100), "p95": Fraction(95, 100), "p99": Fraction(99, 100)}
"""The levels that a report of ours prints."""


class Streamed(NamedTuple):
    """Of some requests (r,) of a run: first and last chunk, ns; all gaps between their chunks; chunks by whole second since an origin."""

    first_ns: Int64
    last_ns: Int64
    gaps: Int64
    squares: float
    by_second: Int64


class Answers(NamedTuple):
    """Successes of the cohort: send, first and last chunk (k,), ns; output and input tokens (k,), MISSING where not counted; all gaps
    between their chunks and the sum of their squares, ns and ns^2; chunks by whole second since the first send (s,). ``asked``: requests
    that arrived in the window.
    """

    send_ns: Int64
    first_ns: Int64
    last_ns: Int64
    tokens: Int64
    input_tokens: Int64
    gaps: Union
    squares: float
    by_second: Int64
    asked: int


def bench_serve(record: RunRecord, levels: Mapping[str, Fraction] = PERCENTILES) -> dict[str, float | None]:
    """Return its figures by its names without the unit (``mean_ttft``, ``p99_itl``): s, and per s of the measured window.

    None where there is nothing to tell from: no success, no answer of more than one token, a success whose tokens were not counted.
    Raises UsageError as ``derive_clocks`` does.
    """
    heard, seconds = answers(record), record.spec.window.measured_ns / NS_PER_S
    n, many = len(heard.tokens), heard.tokens > 1
    ttft, e2el = (heard.first_ns - heard.send_ns) / NS_PER_S, (heard.last_ns - heard.send_ns) / NS_PER_S
    tpot = np.where(many, (e2el - ttft) / np.maximum(heard.tokens - 1, 1), 0.0)
    counted = bool((heard.tokens != MISSING).all())
    good = int(meets_limits(record.spec.slo, ttft, tpot, e2el).sum())
    found: dict[str, float | None] = {"completed": n, "failed": heard.asked - n, "request_throughput": n / seconds}
    found |= {"goodput": good / seconds if counted else None} | _totals(heard, seconds)
    samples = {"ttft": ttft, "tpot": tpot[many] if counted else tpot[:0], "e2el": e2el}
    for name, values in samples.items():
        found |= {f"{statistic}_{name}": value for statistic, value in _summary(values, levels).items()}
    return found | {f"{statistic}_itl": value for statistic, value in _of_gaps(heard, levels).items()} | _busiest(heard)


def answers(record: RunRecord) -> Answers:
    """Gather what the tool's client would have noted, in one pass over the stamps."""
    order, table = arrived_rows(record)
    send, end_kind = integers(table, "send_ns"), texts(table, "end_kind")
    cohort = in_window(integers(table, "arrival_ns"), record.spec.window)
    served = cohort & is_any(end_kind, *SERVED) & (send != MISSING)

    def _read(piece: Piece) -> Streamed:
        return _streamed(piece, served[piece.rows], origin)

    origin = _earliest(send, served)
    read = spread(record, order, len(send), _read)
    first, last = (np.concatenate([np.zeros(0, np.int64), *(getattr(r, name) for r in read)]) for name in ("first_ns", "last_ns"))
    done = served & (first != MISSING)
    if _earliest(send, done) != origin:  # the first to be sent was answered without a token, so seconds are counted from another
        origin = _earliest(send, done)
        read = spread(record, order, len(send), _read)
    by_second = np.zeros(max((len(r.by_second) for r in read), default=0), dtype=np.int64)
    for r in read:
        by_second[: len(r.by_second)] += r.by_second
    return Answers(
        send[done],
        first[done],
        last[done],
        output_tokens(table, end_kind)[done],
        planned(record.schedule, "input_tokens", integers(table, "request_id")[done]),
        Union(tuple(r.gaps for r in read if len(r.gaps))),
        sum(r.squares for r in read),
        by_second,
        int(cohort.sum()),
    )


def _earliest(send: Int64, mask: Bools) -> int:
    return int(send[mask].min()) if mask.any() else 0


def _streamed(piece: Piece, mask: Bools, origin: int) -> Streamed:
    """Look at the requests of ``mask`` (r,) in one piece."""
    first, last = ends_of(piece)
    some = piece.only(mask)
    gaps = narrow(gaps_of(some))
    squares = gaps.astype(np.float64)
    squares *= squares
    seconds = some.ns - origin
    seconds //= NS_PER_S
    return Streamed(first, last, gaps, float(squares.sum()), np.bincount(seconds))


def _totals(heard: Answers, seconds: float) -> dict[str, float | None]:
    """Tokens in all and a second."""
    read, written = (None if (t == MISSING).any() else int(t.sum()) for t in (heard.input_tokens, heard.tokens))
    both = None if read is None or written is None else (read + written) / seconds
    rate = None if written is None else written / seconds
    return {"total_input": read, "total_output": written, "output_throughput": rate, "total_token_throughput": both}


def _summary(values: Floats, levels: Mapping[str, Fraction]) -> dict[str, float | None]:
    """Mean, standard deviation, median and percentiles of one value a request (k,)."""
    n = len(values)
    if not n:
        return dict.fromkeys(("mean", "std", "median", *levels))
    ordered, asked = np.sort(values), _with_median(levels)
    ends = [ordered[linear_ranks(n, p) - 1].tolist() for p in asked.values()]
    found = {name: between(low, high, n, p) for (name, p), (low, high) in zip(asked.items(), ends, strict=True)}
    return {"mean": float(values.mean()), "std": float(values.std()), **found}


def _of_gaps(heard: Answers, levels: Mapping[str, Fraction]) -> dict[str, float | None]:
    """The same of the gaps: moments from whole nanoseconds, percentiles without sorting."""
    gaps, n = heard.gaps, heard.gaps.size
    if not n:
        return dict.fromkeys(("mean", "std", "median", *levels))
    mean, asked = gaps.total / n, _with_median(levels)
    ranks = np.concatenate([linear_ranks(n, p) for p in asked.values()])
    ends = (gaps.at(ranks - 1, ranks[:0]) / NS_PER_S).reshape(-1, 2).tolist()
    found = {name: between(low, high, n, p) for (name, p), (low, high) in zip(asked.items(), ends, strict=True)}
    return {"mean": mean / NS_PER_S, "std": max(heard.squares / n - mean * mean, 0.0) ** 0.5 / NS_PER_S, **found}


def _with_median(levels: Mapping[str, Fraction]) -> dict[str, Fraction]:
    return {"median": Fraction(1, 2), **levels}


def _busiest(heard: Answers) -> dict[str, float | None]:
    """Most chunks in one whole second since the first send, and most answers under way in one."""
    if not len(heard.send_ns):
        return dict.fromkeys(("max_output_tokens_per_s", "max_concurrent_requests"))
    begin, end = ((ns - heard.send_ns.min()) // NS_PER_S for ns in (heard.send_ns, heard.last_ns))
    size = int(end.max()) + 2
    under_way = np.cumsum(np.bincount(begin, minlength=size) - np.bincount(end + 1, minlength=size))
    return {"max_output_tokens_per_s": int(heard.by_second.max()), "max_concurrent_requests": int(under_way.max())}
