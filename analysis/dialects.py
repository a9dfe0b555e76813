"""The same run in other tools' words: their rules on our records, so that a number of theirs can be held against ours.

Every rule is that of a version and a place named in the project's survey of metric definitions; it is restated here, not copied. What the
tools count as a success (an answer that ended, whatever its length) is the population; rates are over the measured window, where most of
them take their own wall time. Every figure is a diagnostic: it is never ranked. Percentiles keep our sample floors, which no tool has, and
latencies are withheld while the backlog grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from analysis.backlog import Overload
from analysis.clocks import Clocks
from analysis.dialect_model import Said
from analysis.gaps import Pool
from analysis.latency import without_value
from analysis.marks import longest_tenth
from analysis.model import Figure
from analysis.planned import MISSING, SERVED, Bools, Int64, is_any, names, planned
from analysis.rates import rate
from analysis.tails import LEVELS, Floats, Ordered, Sample, percentile_figure
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord
from harness.record.spec import Slo

SERVED_WORDS = "requests of the cohort that ended as planned and carried a token"

CHUNKS = f"gaps between chunks of {SERVED_WORDS}, pooled; n counts requests"

CLIENTS = "vLLM bench serve 0.32.0, SGLang bench_serving 0.5.23"
VLLM, SGLANG = CLIENTS.split(", ")
GUIDELLM, AIPERF = "GuideLLM 0.7.3", "AIPerf db4f6397"
SARATHI, DISTSERVE, FASTSERVE = "Sarathi-Serve code", "DistServe code", "FastServe artifact"
ORCA, PAGED, MOONCAKE, VTC = "ORCA", "PagedAttention", "Mooncake", "VTC artifact"


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """What a client of any of the tools would have noted of a run: columns (k,) over its successes, s; ``tokens`` (k,).

    ``ttft``, ``last``, ``end``: from the send to the first token, to the last one and to the end of the exchange; ``whole``: from the
    intended arrival to that end. ``gaps``: between events, pooled. ``tenth``: mean of each request's longest tenth of token gaps, NaN
    without one. ``client``, ``input_tokens`` (k,). ``asked``: requests offered; ``uncounted``: why token counts are not known.
    """

    ttft: Floats
    last: Floats
    end: Floats
    whole: Floats
    tokens: Int64
    gaps: Pool
    tenth: Floats
    client: np.typing.NDArray[np.object_]
    input_tokens: Int64
    asked: int
    seconds: float
    slo: Slo
    uncounted: str

    @property
    def decode(self) -> Floats:
        """tn - t1, s."""
        return self.last - self.ttft

    def tpot(self, one_token: float | None) -> Floats:
        """(tn - t1) / (n - 1), s; of a one-token answer ``one_token``, or no value (None)."""
        long = self.tokens > 1
        quotient = self.decode / np.maximum(self.tokens - 1, 1)
        return quotient[long] if one_token is None else np.where(long, quotient, one_token)

    def good(self, tpot: Floats) -> Bools:
        """Which meet TTFT and E2E from the send, and the gap limit by ``tpot`` (k,); NaN meets none."""
        return meets_limits(self.slo, self.ttft, tpot, self.last)


def meets_limits(slo: Slo, ttft: Floats, tpot: Floats, last: Floats) -> Bools:
    """Which answers meet every limit of an SLO by clocks from the send, s (k,), the one on gaps by ``tpot``; NaN meets none."""
    found = np.ones(len(ttft), dtype=bool)
    for value, limit in ((ttft, slo.ttft_ns), (tpot, slo.tbt_ns), (last, slo.e2e_ns)):
        if limit is not None:
            found &= np.rint(value * NS_PER_S) <= limit  # NaN compares false
    return found


def hear(record: RunRecord, clocks: Clocks, offered: int, own: tuple[Bools, Pool] | None = None) -> Heard:
    """Gather what the tools look at. ``own``: event gaps that are pooled already, of the requests of a mask (n,)."""
    done = clocks.in_cohort & is_any(clocks.end_kind, *SERVED) & (clocks.first_ns != MISSING) & (clocks.send_ns != MISSING)
    send, ids, marks = clocks.send_ns[done], clocks.request_id[done], clocks.marks
    few = longest_tenth(np.maximum(marks.carried[done] - 1, 0))
    tenth = np.where(few > 0, marks.tenth[done] / np.maximum(few, 1) / NS_PER_S, np.nan)
    lacking = int((clocks.tokens[done] == MISSING).sum())
    return Heard(
        ttft=(clocks.first_ns[done] - send) / NS_PER_S,
        last=(clocks.last_ns[done] - send) / NS_PER_S,
        end=(clocks.end_ns[done] - send) / NS_PER_S,
        whole=(clocks.end_ns[done] - clocks.arrival_ns[done]) / NS_PER_S,
        tokens=clocks.tokens[done],
        gaps=own[1].called(CHUNKS) if own and np.array_equal(own[0], done) else clocks.event_gaps(done, CHUNKS),
        tenth=tenth,
        client=names(record.schedule, "client", ids),
        input_tokens=planned(record.schedule, "input_tokens", ids),
        asked=offered,
        seconds=record.spec.window.measured_ns / NS_PER_S,
        slo=record.spec.slo,
        uncounted=f"{lacking} answers of an unknown number of tokens" if lacking else "",
    )


def other_words(record: RunRecord, clocks: Clocks, offered: int, load: Overload, own: tuple[Bools, Pool] | None = None) -> tuple[Said, ...]:
    """Say a run in the words of every tool, in a fixed order; ``own`` as for ``hear``."""
    heard = hear(record, clocks, offered, own)
    every = (*_clients(heard), *_guidellm(heard), *_aiperf(heard), *_papers(heard), *_mooncake(heard), *_vtc(heard))
    return tuple(
        replace(s, figure=without_value(s.figure, "withheld", load.reason)) if load.flag and s.figure.unit == "s" else s for s in every
    )


def _clients(heard: Heard) -> Iterator[Said]:
    """The two clients that come with engines; where they agree they share a row."""
    tpot = Sample.of(heard.tpot(None), f"{SERVED_WORDS}, more than one token")
    for name, sample, rule in (
        ("ttft", _sample(heard.ttft), "from the send, not the intended arrival, to the first chunk"),
        ("tpot", tpot, "(last - first chunk) / (n - 1); answers of one token left out"),
        ("itl", heard.gaps, "gaps between chunks, pooled over requests; a chunk may carry several tokens"),
    ):
        unknown = heard.uncounted if name == "tpot" else ""
        yield Said(CLIENTS, f"mean; {rule}", _mean(f"{name}_mean", sample, unknown))
        yield Said(CLIENTS, f"99th percentile, linear; {rule}", _p(f"{name}_p99", sample, "p99", unknown))
    yield Said(VLLM, "mean; from the send to the last chunk", _mean("e2el_mean", _sample(heard.last)))
    yield Said(SGLANG, "mean; from the send to the last line, usage and end mark included", _mean("e2e_mean", _sample(heard.end)))
    good = int(heard.good(heard.tpot(0.0)).sum())
    rule = "TTFT and E2E from the send; the gap limit on TPOT, which is 0 and so met where there is one token"
    yield Said(CLIENTS, f"good answers a second; {rule}", _rate("goodput", good, heard))
    yield Said(SGLANG, f"good answers of all sent; {rule}", _share("slo_attainment", good, heard.asked, "offered requests", heard))


def _guidellm(heard: Heard) -> Iterator[Said]:
    n, k = heard.tokens, len(heard.tokens)
    total, later = int(n.sum()), int((n - 1).sum())
    tpot = float(heard.last.sum()) / total if total > 0 else 0.0
    itl = float(heard.decode.sum()) / later if later > 0 else 0.0
    yield Said(
        GUIDELLM, "(last token - send) / n, so TTFT is inside; each request weighs as its tokens", _said("tpot_mean", tpot, k, total, heard)
    )
    yield Said(GUIDELLM, "(tn - t1) / (n - 1) of each request, which weighs as n - 1", _said("itl_mean", itl, k, later, heard))


def _aiperf(heard: Heard) -> Iterator[Said]:
    tpot = heard.tpot(float("nan"))
    sample = Sample.of(tpot[~np.isnan(tpot)], f"{SERVED_WORDS}, more than one token")
    yield Said(
        AIPERF, "mean; (last - first) / (n - 1) of each request, called inter-token latency", _mean("itl_mean", sample, heard.uncounted)
    )
    rule = "good answers a second; an answer of one token has no ITL and is not good under a limit on it"
    yield Said(AIPERF, rule, _rate("goodput", int(heard.good(tpot).sum()), heard))


def _papers(heard: Heard) -> Iterator[Said]:
    zeros = heard.gaps.with_zeros(len(heard.tokens), len(heard.tokens))
    yield Said(SARATHI, "mean; gaps pooled, and a gap of 0 for the first token of every request", _mean("tbt_mean", zeros))
    yield Said(SARATHI, "99th percentile, linear (their sketch's 0.1% error left out); with those zeros", _p("tbt_p99", zeros, "p99"))
    tpot = heard.tpot(0.0)
    yield Said(DISTSERVE, "mean; (tn - t1) / (n - 1), 0 where there is one token", _mean("tpot_mean", _sample(tpot), heard.uncounted))
    rule = "share of answers, failures not among them, with TTFT from the send and TPOT (0 for one token) within their limits"
    good = int(replace(heard, slo=heard.slo.model_copy(update={"e2e_ns": None})).good(tpot).sum())
    yield Said(DISTSERVE, rule, _share("attainment", good, len(tpot), "answers", heard))
    normal = Sample.of(heard.whole / np.maximum(heard.tokens, 1), SERVED_WORDS)
    yield Said(ORCA, "median; (end - arrival) / n", _p("normalised_latency_p50", normal, "p50", heard.uncounted))
    yield Said(PAGED, "mean; (end - arrival) / n", _mean("normalised_latency_mean", normal, heard.uncounted))
    own = Sample.of(heard.end / np.maximum(heard.tokens, 1), SERVED_WORDS)
    yield Said(FASTSERVE, "mean; (end - send) / n, called TPOT in places", _mean("latency_per_token_mean", own, heard.uncounted))
    yield Said(FASTSERVE, "95th percentile, linear; (end - send) / n", _p("latency_per_token_p95", own, "p95", heard.uncounted))


def _mooncake(heard: Heard) -> Iterator[Said]:
    some = heard.tenth[~np.isnan(heard.tenth)]
    rule = "TBT is the mean of a request's longest tenth of gaps (rounded up to whole gaps: the paper does not say)"
    yield Said(
        MOONCAKE, f"mean over requests; {rule}", _mean("tbt_mean", Sample.of(some, f"{SERVED_WORDS}, more than one token"), heard.uncounted)
    )
    tenth = np.where(np.isnan(heard.tenth), 0.0, heard.tenth)
    good = int(replace(heard, slo=heard.slo.model_copy(update={"e2e_ns": None})).good(tenth).sum())
    words = f"share of all requests with TTFT and TBT within their limits; {rule}"
    yield Said(MOONCAKE, words, _share("effective_request_capacity", good, heard.asked, "offered requests", heard))


def _vtc(heard: Heard) -> Iterator[Said]:
    yield Said(
        VTC, "response time: mean TTFT; here over the whole window, there over windows of 60 s", _mean("response_time", _sample(heard.ttft))
    )
    known = (heard.input_tokens != MISSING) & (heard.tokens != MISSING)
    service = heard.input_tokens + 2 * heard.tokens
    clients = sorted({c for c in heard.client.tolist() if c is not None})
    sums = [int(service[(heard.client == c) & known].sum()) for c in clients]
    figure = Figure(
        metric="service_difference",
        unit="tokens",
        value=float(max(sums) - min(sums)) if len(sums) > 1 and known.all() else None,
        status="ok" if len(sums) > 1 and known.all() else "undefined" if len(sums) < 2 else "unknown",
        n=len(heard.tokens),
        population=SERVED_WORDS,
        denominator=f"clients = {len(clients)}",
        reason="" if len(sums) > 1 and known.all() else "fewer than two clients" if len(sums) < 2 else "token counts are not all known",
        diagnostic=True,
    )
    yield Said(VTC, "largest minus smallest service of a client, input + 2 x output tokens of its answers", figure)


def _sample(values: Floats) -> Sample:
    return Sample.of(values, SERVED_WORDS)


def _mean(metric: str, sample: Ordered, unknown: str = "") -> Figure:
    """Mean of a sample; a Pool adds whole nanoseconds."""
    value = sample.mean if isinstance(sample, Pool) else float(sample.at(np.arange(1, sample.size + 1)).mean()) if sample.size else 0.0
    none = "" if sample.size else "nothing of the kind was seen"
    return rate(metric, "s", value, sample.requests, sample.population, "", unknown=unknown, undefined=none, diagnostic=True)


def _p(metric: str, sample: Ordered, level: str, unknown: str = "") -> Figure:
    found = percentile_figure(metric, sample, LEVELS[level], rule="linear", diagnostic=True)
    return without_value(found, "unknown", unknown) if unknown else found


def _said(metric: str, value: float, n: int, weight: int, heard: Heard) -> Figure:
    none = "" if weight > 0 else "nothing of the kind was seen"
    return rate(metric, "s", value, n, SERVED_WORDS, f"tokens = {weight}", unknown=heard.uncounted, undefined=none, diagnostic=True)


def _rate(metric: str, good: int, heard: Heard) -> Figure:
    words = f"measured window W = {heard.seconds:g} s"
    unlimited = _unlimited(heard.slo)
    n, unknown = len(heard.tokens), heard.uncounted
    return rate(metric, "req/s", good / heard.seconds, n, SERVED_WORDS, words, unknown=unknown, undefined=unlimited, diagnostic=True)


def _share(metric: str, good: int, of: int, words: str, heard: Heard) -> Figure:
    none = _unlimited(heard.slo) or ("" if of else f"no {words}")
    share = good / of if of else 0.0
    return rate(metric, "ratio", share, of, words, f"{words} = {of}", unknown=heard.uncounted, undefined=none, diagnostic=True)


def _unlimited(slo: Slo) -> str:
    limited = any(limit is not None for limit in (slo.ttft_ns, slo.tbt_ns, slo.e2e_ns))
    return "" if limited else "the SLO sets no limit"
