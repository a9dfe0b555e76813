"""The driver's side of a replay on a Ray cluster: deals out shares, compares clocks, gives the epoch, fetches what was written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from harness.clock import NS_PER_S, Clock
from harness.errors import HostError, Problem
from harness.replay.check import check_plan
from harness.replay.children import STOP_S
from harness.replay.contract import FleetFacts, Progress, ReplayPlan, ReplaySummary
from harness.replay.fleet.clocks import Offset, measure
from harness.replay.fleet.cluster import Cluster, Crew, LostError, Ref
from harness.replay.fleet.contract import Beside
from harness.replay.fleet.host import pid_namespace
from harness.replay.fleet.pieces import Landing
from harness.replay.fleet.post import Post
from harness.replay.session import ARM_S, READY_S
from harness.replay.shares import cores, share_out

HELLO_S = 60.0
"""A node starts an interpreter and imports this package: seconds, more on a busy one."""

ANSWER_S = 5.0
"""For what takes an actor a millisecond."""

LOOK_S = 0.5
"""Twice a second: with the spooler's own 0.7 s, a lost node takes at most 1.2 s of ended requests with it."""

SILENCE_S = 15.0
"""A host that answers nothing for so long is lost: a busy one buries a dead process within ten seconds, and all else takes milliseconds."""

BODIES_BYTES = 4 * 1024 * 1024
"""Bodies travel in parts of this size, each waited for, so that no store has to hold all of them."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class RaySession:
    """One replay of one plan by actors, once; lives like a ``ReplaySession``.

    Every actor runs the session of its share on its own host and stamps on that host's clock; the epoch is told to each on its clock.
    A lost actor or node leaves its fault in words and its requests without rows, but for those fetched before; the others go on.
    ``memory``: bytes to reserve for each actor.
    """

    def __init__(self, plan: ReplayPlan, clock: Clock, cluster: Cluster, beside: Beside, memory: int | None = None) -> None:
        check_plan(plan)
        self._plan, self._clock, self._cluster, self._beside, self._memory = plan, clock, cluster, beside, memory
        self._crew: Crew | None = None
        self._posts: list[Post] = []

    # -- life

    def start(self) -> None:
        """Hire actors, send each its share, wait until connections stand, and compare clocks. HostError; nothing is left running then."""
        if self._posts:
            raise ValueError("a session starts once")
        shares = share_out(self._plan)
        self._crew = self._cluster.hire(len(shares), self._memory, self._beside)
        self._posts = [Post(share, seat, Landing(self._plan.segments)) for share, seat in zip(shares, self._crew.seats, strict=True)]
        try:
            for post, hello in self._ask_all("hello", HELLO_S):
                post.hello = hello
            self._refuse_strangers()
            self._pin()
            self._send_bodies()
            self._stand()
            for post in self._posts:
                post.compared(self._measure(post), here=self._here(post))
                if self._here(post) and post.hello is not None and post.hello.namespace == pid_namespace():
                    post.roles = self._ask_one(post, "roles", ANSWER_S)
        except BaseException:
            self.abort()
            raise

    def go(self, epoch_ns: int) -> None:
        """Set the epoch (our CLOCK_MONOTONIC, ns, in the future). HostError when it passes before all are armed: no silent late start."""
        ahead_s = max(0.0, (epoch_ns - self._clock.now_ns()) / NS_PER_S)
        try:
            _refuse(self._ask_all("go", ahead_s + ARM_S + ANSWER_S, lambda post: (epoch_ns + post.shift_ns, bool(post.roles))))
        except BaseException:
            self.abort()
            raise

    def progress(self) -> Progress:
        """Counts over all workers as of their last looks; never blocks."""
        seen = [post.progress for post in self._need()]
        return Progress(*(sum(getattr(p, field.name) for p in seen) for field in fields(Progress)))

    def finished(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` for the end, fetching what was written; True when all actors are done or lost."""
        deadline = time.monotonic() + timeout_s
        while not self._over():
            left = deadline - time.monotonic()
            self._listen(max(0.0, left))
            if left <= 0:
                break
        if self._over():
            self._dismiss()
        return self._over()

    def wait(self, timeout_s: float) -> ReplaySummary:
        """Wait for the end and summarise. When the time is up the replay is aborted and the summary's fault says so."""
        if not self.finished(timeout_s):
            self.abort(f"not finished after {timeout_s} s")
        return self.summary()

    def summary(self) -> ReplaySummary:
        """What the engine says of itself; ValueError while it still runs."""
        if not self._over():
            raise ValueError("the replay is still running")
        told = [post.summary for post in self._posts if post.summary is not None]
        return ReplaySummary(
            offered=len(self._plan.bodies),
            recorded=sum(s.recorded for s in told),
            fault="; ".join(f"{post.name}: {post.fault}" for post in self._posts if post.fault) or None,
            worker_cpu_s=sum(s.worker_cpu_s for s in told),
            spooler_cpu_s=sum(s.spooler_cpu_s for s in told),
        )

    def facts(self) -> FleetFacts:
        """Hosts and clocks as ``fleet.<worker>.host``, ``.clock``, ``.offset_ns``, ...; null with the reason for a worker that was lost."""
        posts = self._need()
        return FleetFacts({n: f for p in posts for n, f in p.facts_before()}, {n: f for p in posts for n, f in p.facts_after()})

    def abort(self, why: str = "aborted by the parent") -> None:
        """Stop the load, fetch what was recorded, end all actors; safe to call at any time and twice."""
        for post in self._living():
            post.fault = post.fault or why
            if not post.standing:
                self._end(post)  # nothing was sent, so there is nothing to wait for
                continue
            self._cluster.ask(post.seat.actor, "abort", why)
            post.hurry = True
        deadline = time.monotonic() + 2 * STOP_S + ANSWER_S
        while self._living() and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(HostError):  # a disk that refuses may be why we are here; its post is over then
                self._listen(left)
        for post in self._living():
            self._end(post)
        self._dismiss()

    def roles(self) -> dict[str, int]:
        """Process ids of the workers and spoolers on this host; those on others are sampled by what goes on beside them."""
        return {role: pid for post in self._need() for role, pid in post.roles.items()}

    # -- starting

    def _here(self, post: Post) -> bool:
        return post.identity is not None and post.identity == self._beside.identity()

    def _refuse_strangers(self) -> None:
        """All problems of all hosts at once: another source than ours, or a server that only this host can name."""
        ours, problems = self._beside.source(), []
        for post in self._posts:
            if post.hello is not None and post.hello.source != ours:
                what = f"{post.name}: its host has another version of this package (source {post.hello.source[:12]}, here {ours[:12]})"
                problems.append(Problem("fleet_version", what, "install the same version on every host of the cluster"))
            if self._plan.host in LOOPBACK and not self._here(post):
                what = f"host={self._plan.host}: {post.name} runs on another host, where that name means the host itself"
                problems.append(Problem("fleet_loopback", what, "serve where every host reaches it, and name it in an endpoint arm's url"))
        if problems:
            raise HostError(*problems)

    def _pin(self) -> None:
        """Deal the reserved cores out anew, host by host: they are cores of each host."""
        for post in self._posts:
            there = [other for other in self._posts if other.identity == post.identity]
            at, of = there.index(post), len(there)
            pinned = replace(post.share.plan, cpus=cores(self._plan.cpus, at, of), spool_cpus=cores(self._plan.spool_cpus, at, of))
            post.share = replace(post.share, plan=pinned)

    def _send_bodies(self) -> None:
        for post in self._posts:
            for part in parts(post.share.plan.bodies):
                self._ask_one(post, "take", HELLO_S, part)

    def _stand(self) -> None:
        answers = self._ask_all("start", READY_S + STOP_S, lambda post: (replace(post.share, plan=replace(post.share.plan, bodies=())),))
        for post, problems in answers:
            post.standing = not problems
        _refuse(answers)

    def _measure(self, post: Post) -> Offset:
        return measure(lambda: int(self._ask_one(post, "now", ANSWER_S)), self._clock)

    # -- asking

    def _ask_all(
        self, method: str, timeout_s: float, arguments: Callable[[Post], tuple[Any, ...]] = lambda _: ()
    ) -> list[tuple[Post, Any]]:
        deadline = time.monotonic() + timeout_s
        asked = [(post, self._cluster.ask(post.seat.actor, method, *arguments(post))) for post in self._need()]
        return [(post, self._answer(post, ref, max(0.0, deadline - time.monotonic()), method)) for post, ref in asked]

    def _ask_one(self, post: Post, method: str, timeout_s: float, *arguments: Any) -> Any:
        return self._answer(post, self._cluster.ask(post.seat.actor, method, *arguments), timeout_s, method)

    def _answer(self, post: Post, ref: Ref, timeout_s: float, method: str) -> Any:
        try:
            return self._cluster.answer(ref, timeout_s)
        except LostError as error:
            what = f"{post.name}: {error}, when asked for `{method}`"
            raise HostError.single("fleet_lost", what, "look at the node's own logs, or take the node out of the cluster") from error

    # -- watching

    def _need(self) -> list[Post]:
        if not self._posts:
            raise ValueError("the session has not been started")
        return self._posts

    def _living(self) -> list[Post]:
        return [post for post in self._posts if not post.over]

    def _over(self) -> bool:
        return all(post.over for post in self._need())

    def _listen(self, timeout_s: float) -> None:
        """Ask for looks that are due and take the answers that come within ``timeout_s``; returns after the first of them."""
        now = time.monotonic()
        for post in self._living():
            if post.ref is None and (post.hurry or now - post.asked_s >= LOOK_S):
                post.ref, post.asked_s = self._cluster.ask(post.seat.actor, "look", dict(post.landing.have)), now
        asked = {post.ref: post for post in self._living() if post.ref is not None}
        due_s = min((post.asked_s + LOOK_S - now for post in self._living() if post.ref is None), default=timeout_s)
        patience_s = max(0.0, min(timeout_s, due_s))
        if asked:
            for ref in self._cluster.wait(list(asked), patience_s):
                self._hear(asked[ref])
        else:
            time.sleep(patience_s)
        for post in self._living():
            # An answer that lies here unheard, since we were away ourselves, is no silence.
            if post.ref is not None and time.monotonic() - post.asked_s > SILENCE_S and not self._cluster.wait([post.ref], 0.0):
                self._lose(post, f"no answer for {SILENCE_S:g} s")

    def _hear(self, post: Post) -> None:
        ref, post.ref = post.ref, None
        try:
            look = self._cluster.answer(ref, ANSWER_S)
        except LostError as error:
            self._lose(post, str(error))
            return
        try:
            for piece in look.pieces:
                post.landing.put(piece)
        except BaseException:
            self._lose(post, "what it wrote could not be put down here")
            raise
        post.progress, post.hurry = look.progress, look.more
        if look.over and not look.more:
            self._retire(post)

    def _retire(self, post: Post) -> None:
        """All has been fetched: compare clocks again and let it go."""
        try:
            post.after = None if post.before is None else self._measure(post)
            summary: ReplaySummary | None = self._ask_one(post, "close", ANSWER_S)
        except HostError as error:
            self._lose(post, error.problems[0].what)
            return
        post.summary = summary
        post.fault = post.fault or (None if summary is None else summary.fault)
        self._end(post)

    def _lose(self, post: Post, why: str) -> None:
        post.fault = f"{post.fault}; {why}" if post.fault else why
        self._end(post)

    def _end(self, post: Post) -> None:
        post.over, post.ref = True, None
        post.progress = replace(post.progress, in_flight=0)
        post.landing.close()
        self._cluster.fire(post.seat.actor)

    def _dismiss(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None:
            self._cluster.dismiss(crew)


def _refuse(answers: Sequence[tuple[Post, Sequence[Problem]]]) -> None:
    """Raise HostError with all problems of all posts, if there are any."""
    problems = [problem for _, found in answers for problem in found]
    if problems:
        raise HostError(*problems)


def parts(bodies: Sequence[bytes], limit: int = BODIES_BYTES) -> Iterator[list[bytes]]:
    """``bodies`` in order, in lists of at most ``limit`` bytes; a body longer than that is alone in its list."""
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and size + len(body) > limit:
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body)
    if part:
        yield part
