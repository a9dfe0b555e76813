"""What a manifest may already say and this version cannot run yet."""

from __future__ import annotations

from collections.abc import Iterator

from harness.errors import Problem
from harness.manifest.document import Path
from harness.manifest.explain import dotted
from harness.manifest.load import LoadedManifest
from harness.manifest.schema import Manifest
from harness.manifest.workload import Workload

READERS = frozenset({"azure-2023"})
"""Trace formats that ``workloads`` reads."""
STEPS = frozenset({"window", "time-compress", "thin", "scale-lengths"})
"""Transforms that ``workloads`` carries out."""
PROMPTS = frozenset({"random-ids", "text"})
RUNTIMES = frozenset({"vllm", "reference", "endpoint"})


def not_yet(loaded: LoadedManifest) -> list[Problem]:
    """Name every part that validates but has no engine in this version; empty: all of it can run."""
    return [
        Problem("not_yet", f"{dotted(path)}={what}: validates, but this version can't run it yet", remedy, loaded.where(path))
        for path, what, remedy in _parts(loaded.manifest)
    ]


def _parts(manifest: Manifest) -> Iterator[tuple[Path, str, str]]:
    for name, arm in manifest.arms.items():
        if arm.runtime not in RUNTIMES:
            yield ("arms", name, "runtime"), arm.runtime, f"use one of: {', '.join(sorted(RUNTIMES))}"
    if manifest.slo is not None and manifest.slo.per_class:
        yield ("slo", "per-class"), ", ".join(manifest.slo.per_class), "judge all requests by one SLO"
    if manifest.load.capacity is not None:
        yield ("load", "capacity"), "{...}", "measure fixed points with time-compression or rate"
    if manifest.client.fleet is not None:
        yield ("client", "fleet"), manifest.client.fleet.mode, "drive the load from one process"
    yield from _workload_parts(manifest.workload)


def _workload_parts(workload: Workload) -> Iterator[tuple[Path, str, str]]:
    if workload.trace is not None and workload.trace.format not in READERS:
        yield ("workload", "trace", "format"), workload.trace.format, f"use one of: {', '.join(sorted(READERS))}"
    for i, step in enumerate(workload.transforms):
        if step.transform not in STEPS:
            yield ("workload", "transforms", i), step.transform, f"use one of: {', '.join(sorted(STEPS))}"
    if workload.prompts.source not in PROMPTS:
        yield ("workload", "prompts", "source"), workload.prompts.source, f"use one of: {', '.join(sorted(PROMPTS))}"
    if workload.cache != "cold":
        yield ("workload", "cache"), workload.cache, "use cache: cold"
    if workload.loop != "open":
        yield ("workload", "loop"), workload.loop, "use loop: open"
    for key, value in (("sessions", workload.sessions), ("tenants", workload.tenants), ("cancellations", workload.cancellations)):
        if value:
            yield ("workload", key), "{...}", "leave it out"
