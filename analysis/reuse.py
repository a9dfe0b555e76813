"""Prefix reuse: what an infinite cache could have given, and what the server says that its own gave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.clocks import Clocks
from analysis.model import Reuse, Tally
from analysis.planned import MISSING, SERVED, Bools, Int64, planned
from analysis.samples import AbsentError, counter_delta
from harness.record.reader import RunRecord

BLOCKS = (1, 16)
"""Block sizes that reuse is stated for beside the engine's own: 1, a cache that can share any beginning, and 16, vLLM's default on GPU."""

ON = {True: "on", False: "off", None: "unknown"}

NOT_PLANNED = "the record does not say which beginnings its prompts share"
BESIDE_TEMPLATE = "the chat template, alike in every prompt, is not counted"
BY_USAGE, BY_BOTH, BY_COUNTER = "usage", "usage, held against the server's counter", "server counter"


def engine_block(record: RunRecord) -> int | None:
    """Block size of the server's prefix cache in tokens, as it stated it; None when it did not."""
    fact = record.facts.before.get("server.block_size")
    stated = None if fact is None else fact.value
    return stated if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0 else None


def caching(record: RunRecord) -> bool | None:
    """Say whether the server's prefix cache is on; None when it did not tell."""
    fact = record.facts.before.get("server.prefix_caching")
    return fact.value if fact is not None and isinstance(fact.value, bool) else None


def template_tokens(record: RunRecord) -> int:
    """Tokens that the server's template adds to every prompt: 0 without one, MISSING when nobody wrote it down."""
    workload = record.spec.workload
    if workload.api != "chat":
        return 0
    return MISSING if workload.chat_overhead is None else workload.chat_overhead


def reusable(shared: Int64, length: Int64, block: int) -> Int64:
    """Tokens of each prompt (n,) that a cache of ``block`` tokens could give, were it infinite.

    Whole blocks of the beginning it shares with an earlier prompt, and never all of the prompt: the last token has to be computed for the
    first output to come of it.
    """
    return np.minimum(np.maximum(shared, 0), np.maximum(length - 1, 0)) // block * block


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """Reuse of one run by request that arrived (n,), row i of ``Clocks``.

    ``sent``: handed to the socket; ``shared``/``length``: tokens of the prompt that an earlier one of the schedule begins with, and all of
    them (MISSING when not recorded); ``template``: tokens that a chat template adds to every prompt alike, beyond ``shared`` (MISSING when
    there is one of unknown length); ``cached``: tokens that the server took from its cache, MISSING where nobody can tell. ``total``:
    their sum over the run and its ``source``, or the reason why there is none. ``on``: whether the server says that it caches.
    """

    sent: Bools
    shared: Int64
    length: Int64
    template: int
    cached: Int64
    block: int | None
    total: Tally
    source: str
    on: bool | None = None


def read_cache(record: RunRecord, clocks: Clocks) -> Cache:
    """Gather what plan and server say of reuse.

    Usage per request is preferred. Some servers leave the field out when it would be 0: where the stated ones add up to the growth of the
    server's own counter, what was not stated is 0. Else the counter alone gives the total, and no request its share of it.
    """
    ids = clocks.request_id
    sent = clocks.send_ns != MISSING
    served = sent & np.isin(clocks.end_kind, SERVED)
    cached = planned(record.requests, "usage_cached_tokens", ids)
    total, source = _total(record, clocks, cached, sent, served)
    if source == BY_BOTH:
        cached = np.where(served, np.maximum(cached, 0), cached)
    return Cache(
        sent=sent,
        shared=planned(record.schedule, "reusable_tokens", ids),
        length=planned(record.schedule, "input_tokens", ids),
        template=template_tokens(record),
        cached=cached,
        block=engine_block(record),
        total=total,
        source=source,
        on=caching(record),
    )


def _total(record: RunRecord, clocks: Clocks, cached: Int64, sent: Bools, served: Bools) -> tuple[Tally, str]:
    stated = cached != MISSING
    added, n = int(cached[stated].sum()), int(served.sum())
    if n and stated[served].all():
        return _stated(added, stated, sent), BY_USAGE
    try:
        counted = int(counter_delta(record, "cached_tokens_total", int(clocks.end_ns.max(initial=0))))
    except AbsentError as absent:
        return Tally(None, int(stated.sum()), f"usage states it for {int(stated[served].sum())} of {n} served requests, and {absent}"), ""
    if stated.any() and added == counted:
        return Tally(added, int(served.sum())), BY_BOTH
    return Tally(counted, int(sent.sum())), BY_COUNTER


def _stated(added: int, stated: Bools, sent: Bools) -> Tally:
    """What usage adds up to; unknown where it says nothing of any request, which is no 0."""
    n, of = int((stated & sent).sum()), int(sent.sum())
    if n == 0 and of > 0:
        return Tally(None, 0, f"usage states it for none of {of} requests")
    return Tally(added, n, "" if n == of else f"usage states it for {n} of {of} requests")


def reuse_of(cache: Cache, rows: Bools | None = None) -> Reuse:
    """Add up possible and realised reuse over the sent requests; with ``rows`` (n,) over those of a client or class alone.

    Possible is a bound from above but for a chat template: an earlier prompt that shares a beginning may itself never have been sent.
    """
    some = cache.sent if rows is None else cache.sent & rows
    possible = {str(b): _possible(cache, some, b) for b in sorted({*BLOCKS, *([cache.block] if cache.block else [])})}
    return Reuse(possible, cache.total if rows is None else _share(cache, some), cache.source, ON[cache.on])


def _possible(cache: Cache, some: Bools, block: int) -> Tally:
    n = int(some.sum())
    if (cache.shared[some] == MISSING).any():
        return Tally(None, n, NOT_PLANNED)
    return Tally(int(reusable(cache.shared[some], cache.length[some], block).sum()), n, BESIDE_TEMPLATE if cache.template else "")


def _share(cache: Cache, some: Bools) -> Tally:
    stated = some & (cache.cached != MISSING)
    if not some.any():
        return Tally(0, 0)
    if cache.source in (BY_USAGE, BY_BOTH):
        return _stated(int(cache.cached[stated].sum()), stated, some)
    why = "the server's counter does not say whose they are" if cache.source else cache.total.reason
    return Tally(None, int(stated.sum()), why)
