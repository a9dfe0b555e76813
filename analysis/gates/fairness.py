"""Starvation and contention: may anything be said of how service was shared out?"""

from __future__ import annotations

from analysis.fairness_run import RunFairness, measure_fairness
from analysis.fairness_words import identity_words
from analysis.gates.registry import Finding, RunContext, gate, judge, number, passed
from analysis.model import Claim
from analysis.samples import need
from harness.clock import NS_PER_S

CONTENDED = 0.1
"""Share of the measured window in which two must want service at once: the windows of the windowed gap are a tenth of it by default, so
with less most of them can hold no moment at which one was served in another's place."""


def _measured(context: RunContext) -> RunFairness | None:
    """What was measured of the run; None where there are not two to compare."""
    need(context.record.requests.num_rows > 0, "no request was recorded")
    found = context.fairness or measure_fairness(context.record, context.clocks, context.outcome, context.figures)
    return found if found is not None and len(found.who.names) > 1 else None


@gate(
    "starvation",
    protects=(Claim.FAIRNESS,),
    threshold="None allowed (F63): a client (or what else fairness.identity names) that was eligible without a break for the declared "
    "horizon, by default the whole measured window, and of which nothing was completed in it: no prompt, no token, no request.",
    remedy="Report the starved client with the result; the scheduler, or the load, does not let a fairness figure be published.",
)
def starvation(context: RunContext) -> Finding:
    """Nobody waited through a horizon for nothing."""
    found = _measured(context)
    if found is None:
        return passed("one client", starved=number(0, 0, "clients"))
    horizon, who = found.declared.horizon_ns / NS_PER_S, identity_words(found.declared.identity)
    starved = [name for name, is_so in zip(found.who.names, found.starved.tolist(), strict=True) if is_so]
    longest = int(found.drought_ns.max()) / NS_PER_S
    return judge(
        not starved,
        f"{len(found.who.names)} {who} names, starved for {horizon:g} s: {', '.join(starved) or 'none'}; longest without {longest:.4g} s",
        starved=number(len(starved), 0, "clients"),
    )


@gate(
    "contention",
    protects=(Claim.FAIRNESS,),
    threshold="Two clients or more eligible at the same time over a tenth of the measured window: the windows of the windowed gap are that "
    "wide by default, so below it most of them hold no moment at which one was served in another's place, and a server that is idle "
    "between requests looks fair whatever its scheduler does.",
    remedy="Raise the load, or choose clients that send at the same time; with less contention only outcomes by client can be reported.",
)
def contention(context: RunContext) -> Finding:
    """Clients wanted service at the same time, so that sharing was at issue."""
    found = _measured(context)
    if found is None:
        return passed("one client: nothing is shared", contended=number(None, CONTENDED, "share of the window"))
    share = found.contended
    words = f"two or more of {len(found.who.names)} eligible together for {share:.3g} of the measured window"
    return judge(share >= CONTENDED, words, contended=number(share, CONTENDED, "share of the window"))
