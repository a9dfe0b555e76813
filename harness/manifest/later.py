"""What a manifest may already say and this version cannot run yet."""

from __future__ import annotations

from collections.abc import Iterator

from harness.errors import Problem
from harness.manifest.document import Path
from harness.manifest.explain import dotted
from harness.manifest.load import LoadedManifest
from harness.manifest.schema import Manifest
from harness.manifest.units import format_size


def not_yet(loaded: LoadedManifest) -> list[Problem]:
    """Name every part that validates but has no engine in this version; empty: all of it can run."""
    return [
        Problem("not_yet", f"{dotted(path)}={what}: validates, but this version can't run it yet", remedy, loaded.where(path))
        for path, what, remedy in _parts(loaded.manifest)
    ]


def _parts(manifest: Manifest) -> Iterator[tuple[Path, str, str]]:
    fleet = manifest.client.fleet
    if fleet is not None and fleet.mode == "ray":
        yield ("client", "fleet"), "ray", "use mode: processes"
    elif fleet is not None and fleet.memory is not None:
        yield ("client", "fleet", "memory"), format_size(fleet.memory), "delete it: processes of one host take what they need"
