"""Steady state and backlog: does what is measured depend on when in the window it was measured?

Traces are not stationary, so raw latencies trend on a perfect server. Here the load is taken out first: latency is regressed, request by
request, on the tokens and the company each request had, and only what is left may not trend.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.polynomial import legendre
from scipy import stats

from analysis.backlog import GROWTH, overload
from analysis.gates.registry import ErrorRates, Finding, RunContext, combine, gate, judge, number, passed, unknown
from analysis.gates.tables import SECOND, Floats, in_flight, in_order
from analysis.model import Claim, Verdict
from analysis.planned import SERVED, Bools, Int64, integers, is_any, planned
from analysis.samples import need

FALSE_ALARM = 0.002
"""Nominal, per run, for drifts, over both series (Bonferroni). Block errors of bursty load come out too small, so that 0.2% nominal and
what the bends add keep the simulated rate within the one false alarm in a hundred runs that DESIGN allows."""

BEND_ALARM = 0.0004
"""Nominal, for each coefficient of a bend. A share of what drifts may cost: a server that slows down and stays slow is the common fault."""

BENDS = {"TTFT": 2, "TBT": 3}
"""Degree in time up to which each series may bend. 2 is a hump in the middle, 3 one beside it. Gaps bear a cubic; a TTFT holds the luck
of its own queue, and with a cubic more is fitted to that than found."""

DRIFT = 0.25
"""A trend counts when it moves the level by a quarter or more from one end of the window to the other: then the halves of the window
differ by an eighth. What is smaller may be there and does not change a reading; it is also as far as a load model can be trusted."""

RESOLUTION = math.log(2.0)
"""A test that could not see a doubling says nothing, so it is UNKNOWN: PASS must have been able to be FAIL."""

BLOCKS = 20
"""Delete-one-block jackknife over 20 time blocks: long enough to hold a queue's memory when the window is 10 x p99 E2E, enough of them
for an error with 19 degrees of freedom."""

MIN_REQUESTS = 60
"""Three requests a block, and ten a coefficient."""

MAX_WEIGHT = 32.0
"""A mean over k gaps weighs as k gaps, up to 32: beyond, what is left is the load's noise and not the gaps', which more gaps do not
average."""

QUEUE = 2
"""Requests without a first token that a request may find ahead of it and still speak for the server's speed rather than for the queue."""


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """One run as the trend test sees it: arrays (n,) by arrival, seconds; NaN for what did not happen. ``judged`` marks the rows tested.

    ``end_s`` is when the request left the server (the drain's end when it did not).
    """

    arrival_s: Floats
    first_s: Floats
    last_s: Floats
    end_s: Floats
    input: Floats
    tokens: Floats
    judged: Bools


@dataclass(frozen=True, slots=True)
class Trend:
    """Fitted change of log latency from one end of the window to the other, and the half-width of its interval."""

    name: str
    drift: float
    half_width: float
    n: int

    @property
    def drifts(self) -> bool:
        """Statistically there, and large enough to matter."""
        return abs(self.drift) > self.half_width and abs(self.drift) > math.log1p(DRIFT)


@dataclass(frozen=True, slots=True)
class Bend:
    """How far log latency leaves its straight line in the window and comes back: ``height`` between the least and the most of the part that
    is statistically there, 0 when none is.
    """

    name: str
    height: float
    n: int

    @property
    def bends(self) -> bool:
        """Large enough to matter; what is not statistically there has no height."""
        return self.height > math.log1p(DRIFT)


def _sum_before(stamps: Floats, weights: Floats, at: Floats) -> Floats:
    order = np.argsort(stamps, kind="stable")
    cumulative = np.concatenate([[0.0], np.cumsum(weights[order])])
    return np.asarray(cumulative[np.searchsorted(stamps[order], at, side="left")], dtype=np.float64)


def _mean_company(load: Load, start: Floats, stop: Floats) -> Floats:
    """Mean in-flight over [start, stop): the integral of in-flight is the sum over requests of their overlap."""
    knots = np.sort(np.concatenate([load.arrival_s, load.end_s]))
    level = in_flight(_nanos(load.arrival_s), _nanos(load.end_s), _nanos(knots))
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(knots))])
    return np.asarray((np.interp(stop, knots, area) - np.interp(start, knots, area)) / (stop - start), dtype=np.float64)


def _nanos(seconds: Floats) -> Int64:
    return np.rint(seconds * SECOND).astype(np.int64)


Series = tuple[Floats, Floats, Floats, Floats]
"""Time (n,), log latency (n,), load features (n, k), weight (n,)."""


def ttft_series(load: Load) -> Series:
    """Time (n,), log TTFT (n,) and features (n, 5) of requests that met at most QUEUE others without a first token.

    Who queues longer waits for the load, not for the server's speed; the rest have own input, waiting input, waiting count, company and its
    square taken out.
    """
    left = np.where(np.isnan(load.first_s), load.end_s, load.first_s)
    one = np.ones_like(load.input)
    at = load.arrival_s
    waiting = _sum_before(at, one, at) - _sum_before(left, one, at)
    ahead = _sum_before(at, load.input, at) - _sum_before(left, load.input, at)
    company = np.log1p(np.maximum(in_flight(_nanos(at), _nanos(load.end_s), _nanos(at)) - 1, 0))
    features = np.column_stack([np.log1p(load.input), np.log1p(np.maximum(ahead, 0)), waiting, company, company**2])
    use = load.judged & (load.first_s > at) & (waiting <= QUEUE)
    return at[use], np.log(load.first_s[use] - at[use]), features[use], np.ones(int(use.sum()))


def tbt_series(load: Load) -> Series:
    """Time (n,), log mean gap (n,) and features (n, 4): mean company while decoding and its square, input prefilled a second meanwhile
    (a prompt's first token marks its prefill), own length.
    """
    use = load.judged & (load.tokens >= 2) & (load.last_s > load.first_s)
    start, stop = load.first_s[use], load.last_s[use]
    company = np.log(np.maximum(_mean_company(load, start, stop), 1.0))
    known = ~np.isnan(load.first_s)
    first, size = load.first_s[known], load.input[known]
    prefilled = (_sum_before(first, size, stop) - _sum_before(first, size, start) - load.input[use]) / (stop - start)
    features = np.column_stack([company, company**2, prefilled, np.log(load.tokens[use])])
    gaps = load.tokens[use] - 1
    return load.arrival_s[use], np.log((stop - start) / gaps), features, np.minimum(gaps, MAX_WEIGHT)


def trend(name: str, series: Series, width_s: float, level: float) -> Trend:
    """Fit log latency on features and time together, and jackknife the time coefficient over time blocks.

    Fitting both at once keeps a load that itself trends from hiding or faking a drift (Frisch-Waugh). Raises AbsentError below
    MIN_REQUESTS requests.
    """
    t, y, features, weight = series
    need(len(y) >= MIN_REQUESTS, f"{name}: {len(y)} requests to judge a trend by, at least {MIN_REQUESTS} are needed")
    x = np.column_stack([_standard((t - t.mean())[:, None]), _standard(features), np.ones(len(y))])
    spread = float(t.std())
    if spread == 0:
        return Trend(name, 0.0, math.inf, len(y))
    root = np.sqrt(weight / weight.mean())
    (slope,), (error,) = _fitted(x * root[:, None], y * root, 1)
    quantile = float(stats.t.ppf((1 + level) / 2, BLOCKS - 1))
    drift, half_width = float(slope / spread * width_s), float(quantile * error / spread * width_s)
    need(math.isfinite(drift) and math.isfinite(half_width), f"{name}: the trend cannot be fitted to these stamps")
    return Trend(name, drift, half_width, len(y))


def bend(name: str, series: Series, width_s: float, degree: int) -> Bend:
    """Fit log latency on features and Legendre polynomials of time together, and test each beyond the line by the same jackknife.

    Polynomials, and not means of blocks: where the load model is off in one part of the window its blocks differ on a healthy server too,
    which a test of block means takes for a fault (6% of windows of a public trace) and a jackknife for the error it is. Raises AbsentError
    below MIN_REQUESTS requests.
    """
    t, y, features, weight = series
    need(len(y) >= MIN_REQUESTS, f"{name}: {len(y)} requests to judge a bend by, at least {MIN_REQUESTS} are needed")
    place = np.clip((2 * t - t.min() - t.max()) / width_s, -1, 1)
    shapes = legendre.legvander(place, degree)[:, :0:-1]  # the highest first, the line last; the constant is fitted below
    x = np.column_stack([shapes - shapes.mean(axis=0), _standard(features), np.ones(len(y))])
    root = np.sqrt(weight / weight.mean())
    found, error = _fitted(x * root[:, None], y * root, degree - 1)
    need(bool(np.isfinite(found).all() and np.isfinite(error).all()), f"{name}: a bend cannot be fitted to these stamps")
    there = np.abs(found) > error * float(stats.t.ppf(1 - BEND_ALARM / 2, BLOCKS - 1))
    curve = legendre.legval(np.linspace(-1, 1, 101), [0.0, 0.0, *(found * there)[::-1]])
    return Bend(name, float(np.ptp(curve)), len(y))


def _standard(columns: Floats) -> Floats:
    deviation = columns.std(axis=0)
    return np.asarray((columns - columns.mean(axis=0)) / np.where(deviation > 1e-12, deviation, 1.0), dtype=np.float64)


def _fitted(x: Floats, y: Floats, first: int) -> tuple[Floats, Floats]:
    """First coefficients (k,) and their errors (k,) by leaving out each of BLOCKS consecutive parts; a tiny ridge keeps constant columns
    solvable.
    """
    edges = np.linspace(0, len(y), BLOCKS + 1).astype(int)
    normal = np.stack([x[a:b].T @ x[a:b] for a, b in pairwise(edges.tolist())])
    moment = np.stack([x[a:b].T @ y[a:b] for a, b in pairwise(edges.tolist())])
    ridge = 1e-9 * len(y) * np.eye(x.shape[1])
    left = np.linalg.solve(normal.sum(0) - normal + ridge, (moment.sum(0) - moment)[..., None])[:, :first, 0]
    error = np.sqrt((BLOCKS - 1) / BLOCKS * ((left - left.mean(axis=0)) ** 2).sum(axis=0))
    return np.linalg.solve(normal.sum(0) + ridge, moment.sum(0))[:first], np.asarray(error, dtype=np.float64)


def assess(load: Load, width_s: float, *, growing: bool) -> tuple[list[Trend], list[Bend]]:
    """Trends and bends of TTFT and TBT over a window of ``width_s``. While the backlog grows TTFT is a function of time by construction,
    and only TBT speaks for the server.
    """
    names = [("TBT", tbt_series(load))] if growing else [("TTFT", ttft_series(load)), ("TBT", tbt_series(load))]
    usable = [(n, s) for n, s in names if len(s[1]) >= MIN_REQUESTS]
    need(bool(usable), f"no latency series has {MIN_REQUESTS} requests in the window ({', '.join(f'{n} {len(s[1])}' for n, s in names)})")
    level = 1 - FALSE_ALARM / len(usable)
    return [trend(n, s, width_s, level) for n, s in usable], [bend(n, s, width_s, BENDS[n]) for n, s in usable]


def load_of(context: RunContext) -> Load:
    """Arrays of a run for the trend tests."""
    record, clocks, table = context.record, context.clocks, in_order(context.record)
    served = is_any(clocks.end_kind, *SERVED)
    end = np.where(clocks.end_ns >= 0, clocks.end_ns, record.spec.window.end_ns)
    return Load(
        arrival_s=clocks.arrival_ns / SECOND,
        first_s=np.where(clocks.first_ns >= 0, clocks.first_ns / SECOND, np.nan),
        last_s=np.where(clocks.last_ns >= 0, clocks.last_ns / SECOND, np.nan),
        end_s=np.maximum(end, clocks.arrival_ns) / SECOND,
        input=np.maximum(planned(record.schedule, "input_tokens", integers(table, "request_id")), 0).astype(np.float64),
        tokens=clocks.tokens.astype(np.float64),
        judged=clocks.in_cohort & served,
    )


@gate(
    "steady_state",
    protects=(Claim.LATENCY, Claim.GOODPUT, Claim.CAPACITY),
    threshold="A trend in log TTFT or log TBT, left after regressing on tokens and in-flight, whose 99.8% interval (both series "
    "together, jackknife over 20 time blocks) excludes 0 and which moves the level by 25% or more over the window: a smaller one would not "
    "change a reading. Likewise a bend, there and back, whose 99.96% interval excludes 0: a server that is twice as slow in mid-window and "
    "recovers is found in 90% of the runs that this does not overload. UNKNOWN when the trend's interval is so wide that a doubling would "
    "go unseen.",
    remedy="Lengthen the warm-up (compilation, caches and clocks must settle before the window) or look for what changes on the host.",
    rates=ErrorRates(0.01, 0.90, "the server's iterations take twice as long at the end of the window", "tests/sim/test_gates_steady.py"),
)
def steady_state(context: RunContext) -> Finding:
    """The server answered alike all through the window."""
    growing = overload(context.record, context.clocks).flag
    trends, bends = assess(load_of(context), context.record.spec.window.measured_ns / SECOND, growing=growing)
    parts = [*(_trend_finding(t) for t in trends), *(_bend_finding(b) for b in bends)]
    why = "the backlog grows" if growing else f"fewer than {MIN_REQUESTS} requests tell of it"
    parts += [passed(f"{name} not judged: {why}") for name in BENDS if name not in {t.name for t in trends}]
    if min(t.half_width for t in trends) > RESOLUTION and all(p.verdict is Verdict.PASS for p in parts):
        parts.append(unknown("too few or too noisy requests: a doubling over the window could not have been seen"))
    return combine(parts)


def _trend_finding(found: Trend) -> Finding:
    # Six digits: what lies below is rounding of the linear algebra and differs between machines.
    drift, low, high = (round(math.expm1(min(found.drift + s * found.half_width, 50.0)), 6) + 0.0 for s in (0, -1, 1))
    return judge(
        not found.drifts,
        f"{found.name} drifts by {100 * drift:+.3g}% over the window (interval {100 * low:+.3g}..{100 * high:+.3g}%; limit "
        f"{100 * DRIFT:g}% with 0 outside the interval), n {found.n}",
        **{f"{found.name.lower()}_drift": number(drift, DRIFT, "ratio")},
    )


def _bend_finding(found: Bend) -> Finding:
    height = round(math.expm1(min(found.height, 50.0)), 6)
    return judge(
        not found.bends,
        f"{found.name} bends by {100 * height:.3g}% within the window (limit {100 * DRIFT:g}%)",
        **{f"{found.name.lower()}_bend": number(height, DRIFT, "ratio")},
    )


@gate(
    "backlog",
    protects=(Claim.LATENCY,),
    threshold="FAIL when the 99% lower bound of the backlog's growth is above 0 and the growth exceeds 5% of the arrivals (half of what "
    "a window of 10 x E2E holds in flight at most). Attainment stays evidence, so goodput and capacity are not protected by "
    "it.",
    remedy="The arm is overloaded at this load: lower the load for latency figures, or read attainment and goodput, which remain.",
    rates=ErrorRates(
        0.01, 0.90, "2.8 times as much offered as can be served, at a rate that swings by half", "tests/sim/test_gates_steady.py"
    ),
)
def backlog(context: RunContext) -> Finding:
    """Unfinished work does not pile up over the window."""
    need(int(context.clocks.in_cohort.sum()) > 0, "no request was offered in the measured window")
    found = overload(context.record, context.clocks)
    width_s = context.record.spec.window.measured_ns / SECOND
    share = found.slope * width_s / found.arrivals
    return judge(
        not found.flag,
        f"{'overloaded, ' if found.flag else ''}backlog {found.slope:+.3g} requests/s (99% lower bound {found.low:+.3g}), "
        f"{100 * share:+.3g}% of {found.arrivals} arrivals (limit {100 * GROWTH:g}% with a lower bound above 0)",
        backlog_growth=number(share, GROWTH, "ratio"),
        backlog_lower_bound=number(found.low, 0, "requests/s"),
    )
