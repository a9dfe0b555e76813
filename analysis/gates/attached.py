"""What its prompt counter tells of the life of a server that somebody else started."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from analysis.gates.registry import RunContext
from analysis.samples import AbsentError, need, summed


def is_attached(context: RunContext) -> bool:
    """Whether nobody here started the server, so that its process cannot be seen."""
    return context.record.spec.arm.runtime == "endpoint"


def prompt_tokens(context: RunContext, *, last: bool) -> float:
    """Prompt tokens that the server had counted at its last sample, or before the load; AbsentError where it shows no such counter."""
    record, name = context.record, f"replicate {context.record.spec.replicate}"
    try:
        t, v = summed(record.server_metrics, "server", "prompt_tokens_total")
    except AbsentError as absent:
        raise AbsentError(f"{name}: an attached endpoint without a prompt counter does not say whether it lived on") from absent
    seen = v if last else v[t <= 0]
    need(len(seen) > 0, f"{name}: no prompt counter was read before the load")
    return float(seen[-1])


def starts_seen(runs: Sequence[RunContext]) -> int:
    """Processes that ``runs`` met for certain: the counter of one that began anew fell. AbsentError without a counter."""
    by_time = sorted(runs, key=lambda r: r.record.facts.epoch_wall or "")
    return 1 + sum(prompt_tokens(b, last=False) < prompt_tokens(a, last=True) for a, b in pairwise(by_time))
