"""What the server's prefix cache holds when a replicate's load starts: emptied, warmed with the replicate's own prompts, or left alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.campaign.bodies import encode_bodies
from harness.campaign.servers import Server
from harness.clock import NS_PER_S, Clock
from harness.errors import HostError
from harness.manifest import PlannedRun
from harness.runtimes.asking import Reply, ask
from harness.runtimes.contract import Target
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask, Decoded
from workloads import Schedule

FLUSH_TRIES = 20
FLUSH_PAUSE_S = 0.5
"""Ten seconds in all: what the last replicate left open is closed when its drain ends; engines give it up within an iteration or two."""

WAKING_TOKENS = 8
"""Less than a block of the caches seen, so that nothing of it stays, but for SGLang's pages of one token, which a flush empties."""

_LOST = (
    "{cell} replicate {replicate}: the process that served the earlier replicates of its server start is gone, and their cache with it; "
    "cache_state will fail, unless you delete the attempts of that start's replicates and run them again together"
)

WARM_PATIENCE_S = 120.0
"""Wait for the answer to one warming prompt: the longest prompts of the public traces take a CPU tens of seconds."""


@dataclass(frozen=True, slots=True)
class Means:
    """How this room reaches the server and the clock; tests bring their own."""

    clock: Clock
    say: Callable[[str], None]
    asking: Callable[..., Reply | None] = ask
    pause: Callable[[float], None] = time.sleep


def prepare_cache(
    run: PlannedRun, server: Server, schedule: Schedule, headers: Mapping[str, str], means: Means, *, caches: bool | None
) -> dict[str, Any]:
    """Bring the server's cache to what ``workload.cache`` says and return what was done, for the record; counts this use of the server.

    cold: emptied by the runtime's own means, or never used since its start. warm: the same, then every prompt of ``schedule`` is sent
    once, in order, for one token. as_trace: nothing is touched. A server just started first gets a short prompt twice. ``caches``: what the
    server says of its prefix cache; one that is off is always empty. Raises HostError ``flush_refused``, ``cache_not_emptied`` or
    ``warm_pass_failed``: no load is sent.
    """
    told: dict[str, Any] = {"policy": run.cache, "served_before": server.served}
    told["process"] = None if server.process is None else server.process.pid
    if server.process is not None and server.served == 0:
        told["woken"] = _wake(run, server.target, headers, means)
        if run.cache == "as_trace" and _follows(run):
            means.say(_LOST.format(cell=run.cell, replicate=run.replicate))
    server.served += 1
    if run.cache == "as_trace":
        return told | {"emptied": "kept"}
    told["emptied"] = "off" if caches is False else _emptied(run, server, told["served_before"], means)
    if run.cache == "warm":
        told["warm_pass"] = _warm(run, server.target, schedule, headers, means)
    return told


def _follows(run: PlannedRun) -> bool:
    """Whether an earlier replicate shares this one's server start, by the plan."""
    start_of = run.replication.start_of
    return run.probe is None and run.replicate > 0 and start_of(run.replicate) == start_of(run.replicate - 1)


def _wake(run: PlannedRun, target: Target, headers: Mapping[str, str], means: Means) -> int:
    """Send one short prompt twice to a server just started, and count the answers: no replicate pays for what an engine sets up at its
    first request, or at its first that finds something in the cache. A server that declines will decline in the run, where it is counted.
    """
    as_text = run.workload.api == "chat" or not target.token_ids
    prompt = "hello " * WAKING_TOKENS if as_text else np.arange(1, WAKING_TOKENS + 1, dtype=np.int32)
    body = PROTOCOLS[run.workload.api].encode(Ask(target.model, prompt, max_tokens=1, ignore_eos=True, seed=0))
    return sum(_whole(_post(run, target, body, headers, means)[1]) for _ in range(2))


def _post(run: PlannedRun, target: Target, body: bytes, headers: Mapping[str, str], means: Means) -> tuple[Reply | None, Decoded | None]:
    """One request and its answer, decoded where there is one."""
    protocol = PROTOCOLS[run.workload.api]
    reply = means.asking(target.base_url, protocol.path, timeout_s=WARM_PATIENCE_S, headers=headers, post=body)
    if reply is None or reply.status != 200:
        return reply, None
    decoder = protocol.decoder(stream=True)
    decoder.feed(0, reply.body)
    return reply, decoder.finish()


def _whole(decoded: Decoded | None) -> bool:
    return decoded is not None and decoded.complete and decoded.error is None


def _emptied(run: PlannedRun, server: Server, served: int, means: Means) -> str:
    """How the cache came to be empty: flush, start; attached where that is not ours to bring about."""
    for _ in range(FLUSH_TRIES):
        answer = server.runtime.flush(server.target.base_url)
        if answer is True:
            return "flush"
        if answer is None:
            return _never_used(run, server, served)
        means.pause(FLUSH_PAUSE_S)
    raise HostError.single(
        "flush_refused",
        f"workload.cache={run.cache}: {run.arm.runtime} would not empty its prefix cache in {FLUSH_TRIES * FLUSH_PAUSE_S:g} s, so this "
        "replicate would find what an earlier one left",
        "run the same command again (it starts another server), or declare as many server-starts as replicates, or cache: as_trace",
        where=run.cell,
    )


def _never_used(run: PlannedRun, server: Server, served: int) -> str:
    if server.process is None:
        return "attached"
    if served == 0:
        return "start"
    raise HostError.single(
        "cache_not_emptied",
        f"workload.cache={run.cache}: server start {run.server_start} of {run.arm.name} has served {served} replicates, and "
        f"{run.arm.runtime} has no way to empty its prefix cache but a new process",
        "use servers: run in load.capacity, turn the prefix cache off in the arm's args, or declare cache: as_trace",
        where=run.cell,
    )


def _warm(run: PlannedRun, target: Target, schedule: Schedule, headers: Mapping[str, str], means: Means) -> dict[str, Any]:
    """Send every prompt once for one token, one at a time: what a cache that is too small keeps then depends on the schedule alone.

    HostError ``warm_pass_failed`` at the first answer that is not whole.
    """
    means.say(f"warming the cache of {run.cell} with {len(schedule)} prompts")
    began = means.clock.now_ns()
    one = replace(schedule, max_tokens=np.ones(len(schedule), np.int64))
    for i, body in enumerate(encode_bodies(one, run, target).bodies):
        reply, decoded = _post(run, target, body, headers, means)
        if not _whole(decoded):
            raise _not_warmed(run, i, reply, decoded)
    return {
        "requests": len(schedule),
        "completed": len(schedule),
        "input_tokens": int(schedule.input_tokens.sum()),
        "duration_s": (means.clock.now_ns() - began) / NS_PER_S,
    }


def _not_warmed(run: PlannedRun, request: int, reply: Reply | None, decoded: Decoded | None) -> HostError:
    if reply is None:
        said = f"no answer within {WARM_PATIENCE_S:g} s"
    elif decoded is None:
        said = f"HTTP {reply.status}"
    else:
        said = decoded.error or decoded.malformed or "a cut answer"
    return HostError.single(
        "warm_pass_failed",
        f"workload.cache=warm: prompt {request} got {said}, so the cache would not hold what is declared",
        "read the server's log; where the server declines under no load at all, declare cache: cold",
        where=run.cell,
    )
