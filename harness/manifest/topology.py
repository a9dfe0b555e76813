"""Rules for placement: how many servers stand behind an arm, which roles they have, and which of that we could start ourselves."""

from __future__ import annotations

from harness.manifest.arm_rules import check_url
from harness.manifest.document import Path
from harness.manifest.findings import Finding, Findings
from harness.manifest.pins import merge_pins
from harness.manifest.schema import Arm, Pins
from harness.record import spec

_ROUTER = (
    "start them behind a router of your own and measure that: runtime: endpoint, url: the router's address, members: the servers behind it"
)


def check_topology(arms: dict[str, Arm], pins: Pins) -> Findings:
    """Counts of servers fit their roles, the addresses that are given, and what a runtime of ours can start: one server an arm."""
    for name, arm in arms.items():
        split = merge_pins(pins, arm.pins).parallelism
        path: Path = ("arms", name)
        yield from _roles(path, split)
        yield from _members(path, arm, split) if arm.runtime == "endpoint" else _started(path, arm, split)


def _roles(path: Path, split: spec.ParallelismPin) -> Findings:
    roles = split.disaggregation
    if roles is None:
        return
    if roles.prefill + roles.decode == 0:
        what = ".disaggregation: no server prefills and none decodes"
        yield Finding("bad_placement", (*path, "pins"), what, "count the servers of each role, or leave disaggregation out")
    if split.replicas not in (None, 1):
        what = f".replicas={split.replicas} beside disaggregation: it counts whole servers, and here every server has a role"
        yield Finding("bad_placement", (*path, "pins"), what, "leave replicas out and count the servers of each role")


def _started(path: Path, arm: Arm, split: spec.ParallelismPin) -> Findings:
    if arm.members.given():
        what = f": {arm.runtime} is started by us, one server an arm, so nothing stands behind it"
        yield Finding("only_for_endpoint", (*path, "members"), what, f"delete it, or {_ROUTER}")
    roles = split.disaggregation
    if split.replicas not in (None, 1):
        yield Finding(
            "several_servers", path, f": {split.replicas} replicas are pinned, and Trigpoint starts one server and no router", _ROUTER
        )
    if roles is not None and roles.prefill + roles.decode > 1:
        what = f": {roles.prefill} servers that prefill and {roles.decode} that decode are pinned, and Trigpoint starts one and no router"
        yield Finding("several_servers", path, what, _ROUTER)
    elif roles is not None and arm.runtime == "reference":
        what = ": the reference engine has no role in a split; its own two pools are an argument of it"
        yield Finding("bad_placement", path, what, "leave disaggregation out; `trigpoint policies` names the split policy")


def _members(path: Path, arm: Arm, split: spec.ParallelismPin) -> Findings:
    given = arm.members.given()
    seen: set[str] = set()
    for role, urls in given.items():
        for i, url in enumerate(urls):
            where: Path = (*path, "members", role, i)
            yield from check_url(where, url)
            if url in seen:
                yield Finding("bad_placement", where, f"={url}: is named twice, and one server would count as two", "name each server once")
            seen.add(url)
    roles = split.disaggregation
    expected = {"prefill": roles.prefill, "decode": roles.decode} if roles else {"replicas": split.replicas or 1}
    found = {role: len(urls) for role, urls in given.items()}
    if given and found != {role: n for role, n in expected.items() if n}:
        what = f": {_counts(found)}, pinned is {_counts(expected)}: what is asked would not be what is claimed"
        remedy = "count them in pins.parallelism (replicas, or disaggregation: {prefill, decode}), or correct the addresses"
        yield Finding("bad_placement", (*path, "members"), what, remedy)


def _counts(roles: dict[str, int]) -> str:
    return ", ".join(f"{n} {role}" for role, n in roles.items())
