"""Rules of the prefix cache: a policy that wants it empty, on a server that has served and that cannot empty it."""

from __future__ import annotations

from harness.manifest.findings import Finding, Findings
from harness.manifest.schema import Arm, Load
from harness.manifest.workload import Workload
from harness.runtimes.contract import RESTARTED


def check_shared_servers(load: Load, workload: Workload, arms: dict[str, Arm]) -> Findings:
    """One server for all load points of a replicate has to be flushed between them, or to have no cache, or the policy leaves it alone."""
    if load.capacity is None or load.capacity.servers != "replicate" or workload.cache == "as_trace":
        return
    for name, arm in arms.items():
        switch = RESTARTED.get(arm.runtime)
        if switch is None or arm.args.get(switch) is False or arm.args.get(f"no-{switch}") is True:
            continue
        what = f"=replicate: workload.cache={workload.cache}, and {arm.runtime} (arms.{name}) empties its cache by a new process only"
        remedy = f"use servers: run, set {switch}: false in the arm's args, or declare cache: as_trace"
        yield Finding("cache_not_emptied", ("load", "capacity", "servers"), what, remedy)
