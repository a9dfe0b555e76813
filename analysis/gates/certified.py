"""What a cited calibration certificate is worth for one run: whose it is, how far it reaches, and what it did not measure."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import numpy as np

from analysis.clocks import MISSING
from analysis.gates.registry import Finding, RunContext, attempt, combine, judge, number, passed
from analysis.gates.tables import SECOND
from analysis.samples import AbsentError, need
from harness.record.coordinates import Known
from harness.record.spec import CertificateRef

HEADROOM = 2.0
"""A certificate's ceiling must be more than twice what was realised: bursts of twice the mean are ordinary in the public traces."""

MOST_AGE = timedelta(days=30)
"""A new kernel or microcode needs a boot, which the host's identity sees. What changes without one (a cgroup's limits, neighbours of a
shared host, packages of this Python) has no identity here; a month bounds it."""


def certified(context: RunContext) -> Finding:
    """The certificate is this client's, and its ceilings lie more than twice above what the run asked of it.

    One that is old, foreign or of another kind of run proves nothing about this one: UNKNOWN, never FAIL. FAIL: it does apply, and the run
    asked for more than half of what had been shown. Raises AbsentError when the run cites none.
    """
    paper = context.record.spec.certificate
    if paper is None:
        raise AbsentError("the run cites no calibration certificate")
    parts = (_protocol, _host, _age, _workers, _rates, _streams, _live)
    return combine([*(attempt(partial(part, paper=paper), context) for part in parts), *_not_measured(context)])


def _protocol(context: RunContext, paper: CertificateRef) -> Finding:
    run = context.record.spec.measurement_protocol
    need(paper.protocol == run, f"certificate protocol {paper.protocol}, run protocol {run}: it was made by another way of measuring")
    return passed(f"certificate protocol {paper.protocol}, run protocol {run}")


def _host(context: RunContext, paper: CertificateRef) -> Finding:
    host = context.record.coordinates.coordinates["client.host"]
    if not isinstance(host, Known):
        raise AbsentError("the client's host and boot are unknown")
    # Every host of a fleet that carried load needs a certificate; only the driver's is looked up, so all others stay unknown.
    carried = host.value if isinstance(host.value, list) else [host.value]
    without = [each for each in carried if each != paper.host]
    need(not without, f"certificate was made on {paper.host}, the client ran on {', '.join(map(str, without))}, for which none is cited")
    return passed(f"certificate was made on {paper.host}, the client ran on {', '.join(map(str, carried))}")


def _age(context: RunContext, paper: CertificateRef) -> Finding:
    wall = context.record.facts.epoch_wall
    need(wall is not None, "the date of the run is unknown, so the certificate's age is")
    age = datetime.fromisoformat(str(wall)) - datetime.fromisoformat(paper.created)
    words = f"certificate was {age / timedelta(days=1):.2g} days old (limit {MOST_AGE.days})"
    need(timedelta(0) <= age <= MOST_AGE, words)
    return passed(words)


def _workers(context: RunContext, paper: CertificateRef) -> Finding:
    run = context.record.spec.workers
    words = f"certificate of {paper.workers} worker{'s' if paper.workers > 1 else ''}, run with {run}"
    need(paper.workers == run, f"{words}: how they share cores was not measured; run `trigpoint calibrate --workers {run}`")
    return passed(words)


def _rates(context: RunContext, paper: CertificateRef) -> Finding:
    rate, events = realised_rates(context)
    of_rate = _above("rate_ceiling", paper.rate_ceiling, rate, "requests/s")
    return combine((of_rate, _above("event_ceiling", paper.event_ceiling, events, "events/s")))


def _streams(context: RunContext, paper: CertificateRef) -> Finding:
    return _above("stream_ceiling", paper.stream_ceiling, realised_streams(context), "streams")


def _live(context: RunContext, paper: CertificateRef) -> Finding:
    """Turns, users of a closed loop and ``client_stop`` need events decoded as they come, which costs more than keeping them."""
    load = context.record.spec.workload
    if load.output_length != "client_stop" and load.loop == "open":
        return passed("nothing was decoded while it ran")
    return _above("live_event_ceiling", paper.live_event_ceiling, realised_rates(context)[1], "events/s decoded as they came")


def _not_measured(context: RunContext) -> list[Finding]:
    """What the certificate's load did not have and the run had, said rather than passed over: the run's own CPU share, waits for a core
    and loop lag, which every run measures, are what stands for it."""
    spec = context.record.spec
    urls = (*filter(None, [spec.arm.base_url]), *(member for urls in spec.arm.members.values() for member in urls))
    said = []
    if any(url.lower().startswith("https:") for url in urls):
        said.append("TLS")
    if spec.workload.loop != "open":
        said.append(f"sends that wait for ends (loop {spec.workload.loop})")
    words = f"not measured by the certificate: {', '.join(said)}; this run's own CPU share, waits and loop lag stand for it"
    return [passed(words)] if said else []


def _above(name: str, ceiling: float | None, realised: float, unit: str) -> Finding:
    if ceiling is None:  # what other ceilings would suggest for it is a guess, and no guess passes
        raise AbsentError(f"the certificate did not measure {name}; run `trigpoint calibrate` again")
    return judge(
        ceiling > HEADROOM * realised,
        f"calibrated {name} {ceiling:.4g} {unit} against {HEADROOM:g} x {realised:.4g}",
        **{name: number(ceiling, HEADROOM * realised, unit)},
    )


def realised_rates(context: RunContext) -> tuple[float, float]:
    """Arrivals and token events per second of the measured window. Raises AbsentError when nothing was offered in it."""
    record, clocks = context.record, context.clocks
    offered = int(clocks.in_cohort.sum())
    need(offered > 0, "no request was offered in the measured window")
    width = record.spec.window.measured_ns / SECOND
    return offered / width, float(clocks.marks.inside.sum()) / width


def realised_streams(context: RunContext) -> float:
    """Mean number of requests between send and end in the measured window: their time inside it over its length (Little's area)."""
    window, clocks = context.record.spec.window, context.clocks
    begin, stop = window.warm_up_ns, window.warm_up_ns + window.measured_ns
    sent = clocks.send_ns != MISSING
    end = np.where(clocks.end_ns == MISSING, stop, clocks.end_ns)[sent]
    inside = np.minimum(end, stop) - np.maximum(clocks.send_ns[sent], begin)
    return float(np.maximum(inside, 0).sum()) / window.measured_ns
