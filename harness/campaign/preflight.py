"""What can be known to be wrong before a server is started; a start takes minutes and a wrong window should not cost them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.campaign.servers import check_arm
from harness.errors import Problem, TrigpointError
from harness.manifest import Campaign
from harness.record.reader import check_format
from harness.runtimes import get_runtime
from workloads import Trace, TraceSource, check_rows, load_trace


def preflight(campaign: Campaign, search_path: Sequence[Path]) -> None:
    """Check arms and flags, traces, and every distinct workload; all problems at once, each as often as it has a different text."""
    found = _Findings()
    for run in {run.arm.name: run for run in campaign.examples}.values():
        with found.collected():
            check_arm(get_runtime(run.arm.runtime), run)
    unread: set[TraceSource] = set()
    # Runs of one replicate index and load point pair by trace: their workloads are the same, but for clients that an arm leaves out.
    for run in {(run.replicate, run.load.label(), run.workload.without_clients): run for run in campaign.examples}.values():
        source = run.workload.trace
        if source in unread:
            continue
        with found.collected():
            trace: Trace | None = None
            if source is not None:
                unread.add(source)
                trace = load_trace(source, search_path, run.workload.seed)
                unread.discard(source)
            check_rows(run.workload, trace)
    found.finish()


def check_kept(sealed: Sequence[Path]) -> None:
    """Raise every reason why runs that are kept could not be read beside those that would be added (HostError ``record_newer``, ...)."""
    found = _Findings()
    for path in sealed:
        with found.collected():
            check_format(path)
    found.finish()


class _Findings:
    """Problems of several checks; raised together as the kind of error that came first."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._kind: type[TrigpointError] = TrigpointError

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Keep the problems that the block raises."""
        try:
            yield
        except TrigpointError as error:
            self._kind = self._kind if self._problems else type(error)
            self._problems += [p for p in error.problems if p not in self._problems]

    def finish(self) -> None:
        """Raise what was kept, if anything."""
        if self._problems:
            raise self._kind(*self._problems)
