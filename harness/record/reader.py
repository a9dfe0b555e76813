"""Reading a sealed attempt. Analysis gets everything from here and writes nothing back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.record.coordinates import RunCoordinates
from harness.record.facts import Facts
from harness.record.spec import RunSpec


@dataclass(frozen=True, slots=True)
class SealState:
    """``intact`` None: no seal (the attempt was cut); False: a sealed file changed, is missing, or an unsealed one appeared."""

    intact: bool | None
    root: str | None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """One attempt in memory. Tables follow ``harness.record.schema``."""

    path: Path
    spec: RunSpec
    coordinates: RunCoordinates
    facts: Facts
    schedule: pa.Table
    truth: pa.Table
    requests: pa.Table
    server_metrics: pa.Table
    host: pa.Table
    observations: tuple[dict[str, Any], ...]
    seal: SealState
