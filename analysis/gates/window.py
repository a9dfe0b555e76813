"""Window and replicates: is there enough of the right thing?"""

from __future__ import annotations

import math

from analysis.gates.attached import is_attached, starts_seen
from analysis.gates.registry import CellContext, Finding, RunContext, combine, gate, judge, number
from analysis.gates.tables import SECOND, nearest_rank
from analysis.model import Claim
from analysis.planned import SERVED, is_any
from analysis.samples import need

E2E_MULTIPLE = 10
"""Measured window over p99 E2E: then at most about a tenth of the requests straddles an edge."""

PUBLICATION_S = 600.0
"""MLPerf Inference's minimum duration; printed, not required."""

MIN_REPLICATES = 5
"""For a claim with an interval: at five runs a t interval over replicates covered 90-97% in simulation and t(4) is 2.8; at three it is 4.3,
and a paired sign test cannot speak below five runs at all (smallest p 2/2^R)."""

FLOOR = {"p50": 2, "p95": 20, "p99": 100}
"""Requests a percentile needs: max(2, ceil(1 / (1 - p))) (DESIGN 7)."""


@gate(
    "window_length",
    protects=(Claim.LATENCY, Claim.GOODPUT, Claim.CAPACITY),
    threshold="Measured window >= 10 x p99 E2E of what was served (so about a tenth of the requests at most straddles an edge; with n < "
    "100 the maximum stands for p99), and n >= what the declared metric needs: ceil(1/(1-p)) for a percentile, "
    "ceil(1/(1-alpha)) for attainment. 600 s is the publication level: printed, not required.",
    remedy="Lengthen window.measured; where it holds too few requests, raise the load; where the arm is overloaded, lower it.",
)
def window_length(context: RunContext) -> Finding:
    """The window is long against a request's life and holds enough requests."""
    clocks, spec = context.clocks, context.record.spec
    served = clocks.in_cohort & is_any(clocks.end_kind, *SERVED)
    need(bool(served.any()), "no request of the cohort was served, so there is no E2E to hold the window against")
    e2e = (clocks.end_ns - clocks.arrival_ns)[served] / SECOND
    long, name = (nearest_rank(e2e, 0.99), "p99") if len(e2e) >= FLOOR["p99"] else (float(e2e.max()), "max")
    width, n, least = spec.window.measured_ns / SECOND, int(clocks.in_cohort.sum()), needed_requests(context)
    level = "publication level" if width >= PUBLICATION_S else f"below the publication level of {PUBLICATION_S:g} s"
    return combine(
        [
            judge(
                width >= E2E_MULTIPLE * long,
                f"window {width:g} s ({level}) against {E2E_MULTIPLE} x {name} E2E {long:.4g} s",
                window=number(width, E2E_MULTIPLE * long, "s"),
            ),
            judge(n >= least, f"{n} requests offered, {least} needed for what is declared", offered=number(n, least, "requests")),
        ]
    )


def needed_requests(context: RunContext) -> int:
    """Fewest requests that support the declared metric, or a search's target; 2 (a median) when nothing is declared."""
    rank, probe = context.record.spec.rank, context.record.spec.probe
    if probe is not None:
        return math.ceil(1 / (1 - probe.search.attainment) - 1e-9)
    if rank is None:
        return FLOOR["p50"]
    attainment = math.ceil(1 / (1 - rank.attainment) - 1e-9) if rank.metric in ("goodput", "attainment") else FLOOR["p50"]
    return max(attainment, FLOOR.get(rank.metric.rsplit("_", 1)[-1], 2))


@gate(
    "replicates",
    protects=(Claim.COMPARISON, Claim.CAPACITY),
    scope="cell",
    threshold="As many replicates and server starts as declared, and at least 5 replicates: t intervals over 5 runs covered 90-97% in "
    "simulation, one-run intervals 10-18%, and below 5 a paired sign test cannot reach its level. Who starts an attached endpoint is not "
    "ours to see: beyond one, its starts are those that its prompt counter shows by falling.",
    remedy="Run the missing replicates (`trigpoint resume`), or declare at least 5 with a server start each. Have an endpoint restarted "
    "before every replicate and let its counters be read (metrics), or waive this in writing.",
)
def replicates(context: CellContext) -> Finding:
    """The cell has the replicates it declared, and enough for an interval."""
    need(bool(context.runs), "the cell has no finished replicate")
    declared = context.spec.replication
    found = len({r.record.spec.replicate for r in context.runs})
    starts = starts_seen(context.runs) if is_attached(context.runs[0]) and declared.server_starts > 1 else _starts(context)
    least = max(declared.count, MIN_REPLICATES)
    return judge(
        found >= least and starts >= declared.server_starts,
        f"{found} replicates (declared {declared.count}, at least {MIN_REPLICATES} for an interval), "
        f"{starts} server starts (declared {declared.server_starts})",
        replicates=number(found, least, "replicates"),
        server_starts=number(starts, declared.server_starts, "starts"),
    )


def _starts(context: CellContext) -> int:
    return len({r.record.spec.server_start for r in context.runs})
