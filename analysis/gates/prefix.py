"""The prefix cache: what it gave against what the plan made possible."""

from __future__ import annotations

from analysis.gates.registry import Finding, RunContext, gate, judge, number, unknown
from analysis.model import Claim
from analysis.planned import MISSING
from analysis.reuse import BY_COUNTER, Cache, read_cache, reusable
from analysis.samples import AbsentError, counter_delta, need

SMALLEST_BLOCK = 16
"""Tokens in the smallest prefix-cache block of the supported servers."""


@gate(
    "prefix_realised",
    protects=(Claim.LATENCY, Claim.GOODPUT, Claim.CAPACITY, Claim.COMPARISON),
    threshold="Without planned sharing fewer than 16 cached tokens in every request (by usage): caches hit in whole blocks of 16 tokens "
    "or more, which random prompts do not share by chance, so less is a start token. By counter, which hides who hit, at most "
    "one start token a request. A chat template adds its own length to both. With planned sharing never more than the prompts sent "
    "share, in whole blocks of the server's cache: over any order of service the beginnings that some prompts share add up to the same "
    "number (their tokens less the nodes of their prefix tree), so more came from elsewhere. None of it, with a cache that is on, is "
    "UNKNOWN: a broken plan and a cache too small look alike. warm and as_trace: earlier contents may be hit, so nothing but the prompts' "
    "length bounds it from above; after a warm pass some must be realised where a cache is on and prompts fill a block.",
    remedy="Unplanned: make prompts distinct (another seed per replicate), flush or restart the server between replicates, or declare the "
    "sharing. None realised: look whether prompts reach the server as planned (tokens_agree) and whether its cache holds them.",
)
def prefix_realised(context: RunContext) -> Finding:
    """Cached prefix tokens are those planned: none when nothing was to be shared, never more than was shared, and some of it."""
    spec, cache = context.record.spec, read_cache(context.record, context.clocks)
    need(bool(cache.sent.any()), "no request was sent")
    if cache.on is False and cache.total.value is None:
        return judge(True, "the server's prefix cache is off, and it counts nothing of one", cached=number(0, 0, "tokens"))
    if spec.workload.cache != "cold":
        return _beside_earlier(spec.workload.cache, cache)
    if spec.workload.prefix_sharing_planned:
        return _shared(context, cache)
    total, template = _realised(cache), max(cache.template, 0)
    if cache.source == BY_COUNTER:
        value, limit, unit = total, int(cache.sent.sum()) * (1 + template), "tokens"
    else:
        value, limit, unit = int(cache.cached.max()), SMALLEST_BLOCK - 1 + template, "tokens in one request"
    measured = {"cached": number(total, None, "tokens"), "unplanned": number(value, limit, unit)}
    words = f"no sharing planned: {_words(cache, total)}; {value} {unit} (limit {limit})"
    if value > limit and cache.template == MISSING:
        return unknown(f"{words}, and nobody wrote down how much of it a chat template shares", **measured)
    return judge(value <= limit, words, **measured)


def _realised(cache: Cache) -> int:
    if cache.total.value is None:
        raise AbsentError(f"cached tokens are not known: {cache.total.reason}")
    return cache.total.value


def _words(cache: Cache, total: int) -> str:
    return f"{total} of {int(cache.length[cache.sent].sum())} input tokens cached ({cache.source})"


def _beside_earlier(policy: str, cache: Cache) -> Finding:
    """Earlier contents may be hit by declaration: hold what was realised against the prompts' own length, and warming against nothing."""
    total, length = _realised(cache), cache.length[cache.sent]
    most = int(length.sum()) + int(cache.sent.sum()) * max(cache.template, 0)
    best = int(reusable(length, length, cache.block or SMALLEST_BLOCK).sum())
    words = f"{policy}, so earlier contents may be hit: {_words(cache, total)}"
    measured = {"cached": number(total, most, "tokens")}
    if policy == "warm" and total == 0 and best > 0 and cache.on is not False:
        return unknown(f"{words}: none was realised, by a cache too small or by a warm pass that left nothing", **measured)
    if total > most and (cache.template == MISSING or cache.source == BY_COUNTER):
        return unknown(f"{words}; more than was sent, by a template or by preempted requests that found their own blocks again", **measured)
    return judge(total <= most, words, **measured)


def _shared(context: RunContext, cache: Cache) -> Finding:
    """Sharing was planned: hold what was realised between 0 and what was there."""
    total = _realised(cache)
    shared, length = cache.shared[cache.sent], cache.length[cache.sent]
    need(bool((shared != MISSING).all()), "the record does not say which beginnings its prompts share")
    block = cache.block or 1
    most = int(((shared + max(cache.template, 0)) // block * block).sum())
    best = int(reusable(shared, length, block).sum())
    words = f"sharing planned: {_words(cache, total)}, {best} possible in blocks of {block}"
    measured = {"cached": number(total, most, "tokens"), "possible": number(best, None, "tokens")}
    if total > most:
        return _beyond(context, cache, f"{words}; at most {most} were shared, so some came from elsewhere", measured)
    if cache.on is False and total > 0:
        return unknown(f"{words}, by a server that says that its prefix cache is off", **measured)
    if cache.on is False or total > 0 or best == 0:
        return judge(True, words + ("; the server's prefix cache is off" if cache.on is False else ""), **measured)
    return unknown(f"{words}: none was realised, by a cache too small or by prompts that did not arrive as planned", **measured)


def _beyond(context: RunContext, cache: Cache, words: str, measured: dict[str, dict[str, object]]) -> Finding:
    """Judge more than was shared, which has two innocent causes: a template of unknown length, and by counter the server's own preempted
    work, found again.
    """
    if cache.template == MISSING:
        return unknown(f"{words}, or from a chat template whose length nobody wrote down", **measured)
    if cache.source == BY_COUNTER and _preempted(context) != 0:
        return unknown(f"{words}, or from requests that were preempted and found their own blocks again", **measured)
    return judge(False, words, **measured)


def _preempted(context: RunContext) -> float | None:
    try:
        return counter_delta(context.record, "preemptions_total", int(context.clocks.end_ns.max(initial=0)))
    except AbsentError:
        return None
