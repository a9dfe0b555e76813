"""A server behind a launch prefix: who chose it, whether what answers is it, what is then not known, and whether it has gone."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Collection, Mapping, Sequence

import psutil

from harness.clock import NS_PER_S, Clock
from harness.errors import HostError, Problem, TrigpointError, UsageError
from harness.manifest import Campaign
from harness.manifest.explain import nearest
from harness.record.facts import Fact
from harness.runtimes import get_runtime
from harness.runtimes.launch import LOOPBACK, Launch, missing_programs, read_launches
from harness.runtimes.ports import HOST, holder, listeners
from harness.runtimes.process import ServerProcess

DIRECT = "direct"
"""The coordinate of a server that our own command line started, without a prefix."""

ATTACHED = Fact(reason="attached endpoint: somebody else started it", source="endpoint")
"""One may run behind ``numactl`` and the other may not: two of them are not alike in how they were launched until their users say so."""

GONE_S = 5.0
"""A stopped container's port is free within a second; its proxy may linger for some."""

_START_SLACK_S = 1.0
"""Start times are in kernel ticks since boot, and the boot's wall time is adjusted: two clocks agree to within a second at worst."""

_OF_FILES = ("server.packages", "server.lock_digest", "server.environment", "model.digest", "tokenizer.digest")
"""Facts that are read from files of this machine."""


def choose(options: Sequence[str], campaign: Campaign) -> dict[str, Launch]:
    """Launch of each arm from ``--launch NAME`` (every arm that we start) and ``--launch ARM=NAME`` (that arm; it wins).

    Raises with every problem at once what names no arm, no entry or no program (UsageError, HostError when only a program is missing).
    """
    if not options:
        return {}
    known, runs = read_launches(), {run.arm.name: run for run in campaign.examples}
    started = sorted(name for name, run in runs.items() if get_runtime(run.arm.runtime).managed)
    wrong: list[Problem] = []
    wanted: dict[str, str] = {}
    for option in sorted(options, key=lambda text: "=" in text):
        arm, equals, name = option.rpartition("=")
        if equals and arm not in started:
            wrong.append(_no_arm(arm, started, attached=arm in runs))
        elif name not in known:
            wrong.append(_no_entry(name, known))
        elif not started:
            wrong.append(_no_arm("", started, attached=True))
        else:
            wanted |= {arm: name} if equals else dict.fromkeys(started, name)
    for arm, name in wanted.items():
        if known[name].where == "other-host" and runs[arm].placement.get("server"):
            what = f"client.server-cpus: arm {arm} is launched on another host by {name}, where cores of this one mean nothing"
            wrong.append(Problem("placement_elsewhere", what, "leave server-cpus out, and let the prefix place it"))
    absent = [p for name in sorted(set(wanted.values())) for p in missing_programs(known[name])]
    if wrong or absent:
        kind: type[TrigpointError] = UsageError if wrong else HostError
        raise kind(*wrong, *absent)
    return {arm: known[name] for arm, name in wanted.items()}


def _no_arm(arm: str, started: list[str], *, attached: bool) -> Problem:
    if attached:
        who = f"{arm}=...: the arm is an endpoint" if arm else "...: every arm is an endpoint"
        return Problem("launch_endpoint", f"--launch {who}, which somebody else starts", "leave it out")
    near = nearest(arm, started)
    return Problem("unknown_arm", f"--launch {arm}=...: no such arm", f"did you mean {near}?" if near else f"arms: {', '.join(started)}")


def _no_entry(name: str, known: Collection[str]) -> Problem:
    near = nearest(name, sorted(known))
    remedy = f"did you mean {near}?" if near else f"launch.toml of your configuration folder has: {', '.join(sorted(known)) or 'nothing'}"
    return Problem("unknown_launch", f"--launch {name}: no such entry, and no manifest can bring one", remedy)


def refuse_answering(launch: Launch, port: int) -> None:
    """HostError ``port_in_use`` when something answers where the server will be looked for: a stale one, or a stranger."""
    if _answers(launch.url_host, port):
        what = f"{launch.url_host}:{port} answers before the server is started: its numbers would be another server's"
        raise HostError.single("port_in_use", what, "stop what listens there, then run the same command again")


def is_ours(process: ServerProcess, port: int, launch: Launch | None) -> bool:
    """Whether what answers on ``port`` is the server that was started, as far as can be known.

    In our own process tree: certain (ssh's forwarded port is in it too). Behind a prefix with a ``stop``, the server may live outside: then
    it must have begun after the prefix did. On another host, or where its process cannot be seen, it is enough that nothing answered
    before (``refuse_answering``); ``refuse_left`` then shows whether the entry's own ``stop`` ended it.
    """
    if process.listens_on(port):
        return True
    if launch is None:
        return False
    if launch.url_host not in LOOPBACK:
        return True
    found = listeners(port)
    return bool(launch.stop) and all(_began(pid) >= _began(process.pid) - _START_SLACK_S for pid in found)


def server_pid(process: ServerProcess, port: int, launch: Launch | None, cpus: Sequence[int]) -> int | None:
    """Process whose tree is the server's on this host; None where it cannot be seen.

    HostError ``placement_not_kept``: cores are reserved for the server, and it does not run on them or nobody can see whether it does.
    """
    if launch is None:
        return process.pid
    inside = process.listens_on(port)
    found = listeners(port)
    pid = None if launch.where == "other-host" else process.pid if inside else min(found, default=None)
    if cpus and not _within(found, cpus):
        what = f"server-cpus={list(cpus)}: the server that {launch.name} launched uses others, or its cores cannot be seen"
        raise HostError.single("placement_not_kept", what, "leave server-cpus out, or place it by the prefix on the same cores")
    return pid


def _within(pids: Collection[int], cpus: Sequence[int]) -> bool:
    used: set[int] = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            used |= set(psutil.Process(pid).cpu_affinity() or ())
    return bool(used) and used <= set(cpus)


def refuse_left(launch: Launch, port: int, clock: Clock) -> None:
    """HostError ``server_not_stopped`` when something still answers: what was measured is then not what the entry's ``stop`` ends."""
    deadline_ns = clock.now_ns() + round(GONE_S * NS_PER_S)
    while _answers(launch.url_host, port):
        if clock.now_ns() > deadline_ns:
            who = holder(port) if launch.url_host in LOOPBACK else "something"
            what = f"{launch.url_host}:{port}: {who} still answers after the server that {launch.name} launched was stopped"
            remedy = f"end it, and give launch.toml's {launch.name} a stop that does; a prefix must stay in the foreground"
            raise HostError.single("server_not_stopped", what, remedy)
        time.sleep(0.1)


def launched_facts(facts: Mapping[str, Fact], launch: Launch | None, *, managed: bool) -> dict[str, Fact]:
    """``facts`` of host and server as far as they hold for a server that was launched so, and how it was: ``server.launch``."""
    if launch is None:
        return {**facts, "server.launch": Fact(value=DIRECT, source="command line") if managed else ATTACHED}
    shown = dict(facts)
    elsewhere = [name for name in facts if name.startswith("host.")] if launch.where == "other-host" else []
    of_files = [] if launch.same_files else [name for name in _OF_FILES if name in facts]
    for name in (*elsewhere, *of_files):
        what = "its host cannot be seen from here" if name in elsewhere else "its files may not be those of this machine"
        shown[name] = Fact(reason=f"launched by {launch.name}: {what}", source="launch.toml")
    shown["server.launch"] = Fact(value=launch.label, source="launch.toml")
    shown["server.launch_name"] = Fact(value=launch.name, source="launch.toml")
    return shown


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((HOST if host == "localhost" else host, port), timeout=2.0):
            return True
    except OSError:
        return False


def _began(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return float("-inf")
