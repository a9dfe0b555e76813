"""Which profile belongs to which format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from workloads.profiles import archives, tables

_PROFILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "azure-2023": tables.azure,
    "azure-2024": tables.azure,
    "azure-lmm-2025": tables.azure,
    "burstgpt": tables.plain_csv,
    "csv": tables.plain_csv,
    "jsonl": tables.plain_json_lines,
    "lengths": tables.plain_csv,
    "mooncake": tables.mooncake,
    "qwen-bailian": tables.plain_json_lines,
    "ragpulse": tables.ragpulse,
    "servegen": archives.servegen,
    "text": tables.plain_text,
    "tracelab": tables.tracelab,
    "vidur": tables.plain_csv,
    "vtc-arena": tables.plain_csv,
    "weka-agentic": archives.weka,
}


def profile(path: Path, format: str) -> dict[str, Any]:  # noqa: A002 - the word manifests and records use for it
    """Return what the raw file shows; the file was read by its reader before, so its form is known to be right."""
    return _PROFILES.get(format, tables.opaque)(path)
