"""Which profile belongs to which format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads.profiles import tables, weka
from workloads.traces import servegen_profile

_PROFILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "azure-2023": tables.azure,
    "azure-2024": tables.azure,
    "azure-lmm-2025": tables.azure,
    "burstgpt": tables.burstgpt,
    "csv": tables.plain_csv,
    "jsonl": tables.plain_json_lines,
    "lengths": tables.plain_csv,
    "mooncake": tables.mooncake,
    "qwen-bailian": tables.plain_json_lines,
    "ragpulse": tables.ragpulse,
    "servegen": servegen_profile.profile,
    "text": tables.plain_text,
    "tracelab": tables.tracelab,
    "vidur": tables.plain_csv,
    "vtc-arena": tables.plain_csv,
    "weka-agentic": weka.weka,
}


def profile(path: Path, format: str) -> dict[str, Any]:  # noqa: A002 - the word manifests and records use for it
    """Return what the raw file shows; the file was read by its reader before, so its form is known to be right."""
    return _PROFILES.get(format, tables.opaque)(path)
