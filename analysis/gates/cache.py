"""What the prefix cache held before each replicate: what the manifest's policy says, or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from analysis.gates.attached import is_attached, prompt_tokens
from analysis.gates.registry import CellContext, Finding, RunContext, attempt, combine, gate, judge, number, passed
from analysis.model import Claim
from analysis.planned import integers
from analysis.reuse import caching
from analysis.samples import AbsentError, need, summed
from analysis.virtual import WORDS, in_virtual_time
from harness.record.reader import RunRecord

PROBE_TOKENS = 128
"""One block of the largest prefix-cache block seen on supported servers: what readiness probes leave behind cannot be hit."""

SERVED_BEFORE = 0.05
"""Beyond one block: at most a twentieth of this run's input may have passed the server before, so no more than that could be reused."""

OBSERVATION = "cache_prepared"
"""Kind of the observation in which a run says how the cache was brought to the policy before its load."""


@gate(
    "cache_state",
    protects=(Claim.LATENCY, Claim.GOODPUT, Claim.CAPACITY, Claim.COMPARISON),
    scope="cell",
    threshold="No tolerance on what was done. cold: before every replicate the cache was emptied, is off, or was that of a process that "
    "had served no replicate; and on one that was not emptied the server's prompt counter before the run, where there is one, is at "
    "most max(128 tokens, 5% of the run's input). warm: the same, and then every prompt of the schedule was sent once and answered; its "
    "tokens are taken off the counter. as_trace: nothing was emptied, and replicates of one server start met one process, each after "
    "those before it. An attached endpoint is nobody's to empty or to start, so its counter alone can show that nothing was served before "
    "(cold, warm), or that it lived on between replicates of one start (as_trace).",
    remedy="Declare as many server starts as replicates, or a runtime that can flush its cache between them; on an endpoint declare cache: "
    "as_trace, or have it restarted before every replicate. as_trace after a resume: a lost replicate takes the cache of its server start "
    "with it, so delete the attempts of all replicates of that start and run again.",
)
def cache_state(context: CellContext) -> Finding:
    """What the cache held before each replicate is what the manifest says."""
    runs = [r for r in context.runs if r.record.requests.num_rows]
    need(bool(runs), "no replicate recorded a request")
    need(context.spec.evidence_class != "imported", "imported: a log does not say what the cache held before it")
    if all(in_virtual_time(r.record) for r in runs):
        return judge(context.spec.workload.cache == "cold", f"{WORDS} every replicate has an engine of its own, which begins empty")
    if context.spec.workload.cache == "as_trace":
        return combine(_one_process(runs))
    parts = [*_emptied(context.spec.workload.cache, runs)]
    if context.spec.workload.cache == "warm":
        parts += [attempt(_warmed, r) for r in runs]
    return combine(parts)


def prepared(record: RunRecord) -> Mapping[str, Any]:
    """What was observed of the cache before the load; {} in a record that says nothing of it."""
    return next((o for o in reversed(record.observations) if o.get("kind") == OBSERVATION), {})


def _emptied(policy: str, runs: list[RunContext]) -> Iterable[Finding]:
    own = [r for r in runs if prepared(r.record).get("emptied") != "flush" and caching(r.record) is not False]
    attached = [r for r in own if is_attached(r)]
    used = _used_before([r for r in own if r not in attached])
    words = f"{policy}: {len(runs) - len(own)} of {len(runs)} replicates flushed or without a cache, {used} on a server that served before"
    yield judge(used == 0, words, shared_starts=number(used, 0, "replicates"))
    for r in own:
        yield attempt(_served_before, r)


def _used_before(runs: list[RunContext]) -> int:
    """Replicates whose process had served another, by what was seen; where nothing was, by the server starts that they share."""
    seen = [prepared(r.record).get("served_before") for r in runs]
    starts = [r.record.spec.server_start for r, served in zip(runs, seen, strict=True) if served is None]
    return sum(bool(served) for served in seen) + len(starts) - len(set(starts))


def _served_before(context: RunContext) -> Finding:
    record, name = context.record, f"replicate {context.record.spec.replicate}"
    try:
        t, v = summed(record.server_metrics, "server", "prompt_tokens_total")
        need(bool((t <= 0).any()), "")
    except AbsentError:
        need(not is_attached(context), f"{name}: an attached endpoint without a prompt counter does not say what it served")
        return passed(f"{name}: own start, no counter to hold it against")
    warmed = (prepared(record).get("warm_pass") or {}).get("input_tokens", 0)
    earlier, own = float(v[t <= 0][-1]) - warmed, int(integers(record.schedule, "input_tokens").sum())
    limit = max(PROBE_TOKENS, SERVED_BEFORE * own)
    return judge(
        earlier <= limit,
        f"{name}: {earlier:g} input tokens served before it (limit {limit:g})",
        **{f"served_before_{record.spec.replicate}": number(earlier, limit, "tokens")},
    )


def _warmed(context: RunContext) -> Finding:
    """Every prompt went through once."""
    record, name = context.record, f"replicate {context.record.spec.replicate}"
    done = prepared(record).get("warm_pass")
    need(isinstance(done, Mapping), f"{name}: no warm pass was recorded")
    count, completed = record.schedule.num_rows, (done or {}).get("completed", 0)
    return judge(
        completed == count,
        f"{name}: {completed} of {count} prompts sent before the load",
        **{f"warmed_{record.spec.replicate}": number(completed, count, "prompts")},
    )


def _one_process(runs: list[RunContext]) -> Iterable[Finding]:
    """as_trace: nothing was emptied, and what shares a server start shared a process."""
    for r in runs:
        yield attempt(_kept, r)
    by_start: dict[int, list[RunContext]] = {}
    for r in sorted(runs, key=lambda r: r.record.spec.replicate):
        by_start.setdefault(r.record.spec.server_start, []).append(r)
    following = [pair for group in by_start.values() for pair in pairwise(group)]
    if is_attached(runs[0]):
        yield from (attempt(partial(_lived_on, a), b) for a, b in following)
        return
    more = sum(_restarted(a, b) for a, b in following)
    yield judge(more == 0, f"as_trace: {more} restarts within a server start", restarts=number(more, 0, "restarts"))


def _restarted(before: RunContext, after: RunContext) -> bool:
    """Whether the later replicate met another process: by its number, which may come again, and by what the process had served."""
    one, two = prepared(before.record), prepared(after.record)
    fell = two.get("served_before", 1) <= one.get("served_before", 0)
    return fell or one.get("process") != two.get("process")


def _lived_on(before: RunContext, after: RunContext) -> Finding:
    """An endpoint's process cannot be seen; its counter shows that it did not begin anew."""
    left, found = prompt_tokens(before, last=True), prompt_tokens(after, last=False)
    name = f"replicates {before.record.spec.replicate} and {after.record.spec.replicate}"
    words = f"{name} of an attached endpoint: its prompt counter went from {left:g} to {found:g}"
    return judge(found >= left, words, **{f"counter_{after.record.spec.replicate}": number(found, left, "tokens")})


def _kept(context: RunContext) -> Finding:
    done, name = prepared(context.record).get("emptied"), f"replicate {context.record.spec.replicate}"
    need(done is not None, f"{name}: nobody wrote down whether the cache was left alone")
    return judge(done == "kept", f"{name}: cache {'left alone' if done == 'kept' else f'emptied by {done}'}")
