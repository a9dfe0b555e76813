"""Refusing a plan that cannot be replayed as written."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from harness.errors import Problem, UsageError
from harness.replay.contract import ReplayPlan
from harness.replay.waits import Waits
from harness.wire import PROTOCOLS

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def check_plan(plan: ReplayPlan) -> None:
    """Refuse a plan that cannot be replayed as written; all problems at once (UsageError)."""
    problems = [*_lengths(plan), *_order(plan), *_coordinates(plan), *_head(plan)]
    if not problems:
        problems = list(_waits(plan))  # the columns fit together: now what they say can be looked at
    if problems:
        raise UsageError(*problems)


def _lengths(plan: ReplayPlan) -> Iterator[Problem]:
    columns = ("arrival_ns", "bodies", "stop_after", "after", "think_ns", "cancel_after_ns")
    sizes = {name: len(column) for name in columns if (column := getattr(plan, name)) is not None}
    if len(set(sizes.values())) != 1:
        yield Problem("plan_lengths", f"{sizes}: one entry a request is needed in each", "build the plan from one schedule")
    if (plan.after is None) != (plan.think_ns is None):
        what = "after and think_ns: one is given without the other, so the arrivals of waiting requests cannot be told"
        yield Problem("plan_lengths", what, "give both or neither")


def _order(plan: ReplayPlan) -> Iterator[Problem]:
    if bool((np.diff(plan.arrival_ns) < 0).any()):
        yield Problem("plan_order", "arrival_ns does not ascend: a later entry would be sent late", "sort the schedule")


def _coordinates(plan: ReplayPlan) -> Iterator[Problem]:
    if plan.protocol not in PROTOCOLS:
        yield Problem("plan_protocol", f"protocol={plan.protocol!r} is not one of {sorted(PROTOCOLS)}", "use one of those")
    if plan.concurrency_cap is not None and plan.concurrency_cap < 1:
        yield Problem("plan_cap", f"concurrency_cap={plan.concurrency_cap}: nothing would be sent", "use 1 or more, or none")
    if plan.failed_pause_ns is not None and plan.failed_pause_ns < 0:
        what = f"failed_pause_ns={plan.failed_pause_ns}: a request would arrive before the end it waits for"
        yield Problem("plan_pause", what, "use 0 or more, or none")
    if plan.workers < 1:
        yield Problem("plan_workers", f"workers={plan.workers}: nobody would send", "use 1 or more")
    if plan.concurrency_cap is not None and plan.workers > 1:
        what = f"concurrency_cap={plan.concurrency_cap} workers={plan.workers}: a cap is one queue, and each worker would have its own"
        yield Problem("plan_cap", what, "use one worker, or no cap")


def _head(plan: ReplayPlan) -> Iterator[Problem]:
    for name, value in {**plan.headers, ":path": plan.path}.items():
        # The value is never printed: it may be a key.
        if "\r" in value or "\n" in value or not (name == ":path" or _HEADER_NAME.fullmatch(name)) or not value.isascii():
            yield Problem("plan_header", f"header {name!r} holds characters that end or break a head", "give plain ASCII values")


def _waits(plan: ReplayPlan) -> Iterator[Problem]:
    if plan.after is None or plan.think_ns is None:
        return
    count, values = len(plan.bodies), plan.after.values.astype(np.int64)
    if bool(((values < 0) | (values >= count)).any()):
        yield Problem("plan_after", f"after names a request outside 0..{count - 1}", "build the plan from one schedule")
        return
    if bool((plan.think_ns[np.diff(plan.after.offsets) > 0] < 0).any()):
        yield Problem("plan_think", "think_ns < 0 for a request that waits: it would arrive before what it waits for", "use 0 or more")
    circle = _in_circles(plan)
    if circle:
        what = f"after: requests {circle[:5]} ({len(circle)} in all) wait for themselves, so they would never be sent"
        yield Problem("plan_circle", what, "let a turn wait for earlier turns only")


def _in_circles(plan: ReplayPlan) -> list[int]:
    """Requests that would wait even if everything completed."""
    waits = Waits(plan.after, [0] * len(plan.bodies))
    ended = [i for i in range(len(plan.bodies)) if i not in waits]
    while ended:
        ended += [follower for _, follower in waits.ended(ended.pop(), 0)]
    return waits.rest()
