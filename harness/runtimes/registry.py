"""Names of systems under test -> adapters. Each is imported only when asked for, so that one never breaks another."""

from __future__ import annotations

from importlib import import_module

from harness.errors import UsageError
from harness.runtimes.contract import Runtime

ADAPTERS = {
    "vllm": ("harness.runtimes.vllm", "VllmRuntime"),
    "sglang": ("harness.runtimes.sglang", "SglangRuntime"),
    "reference": ("harness.runtimes.reference", "ReferenceRuntime"),
    "endpoint": ("harness.runtimes.endpoint", "EndpointRuntime"),
    "truth": ("harness.runtimes.truth", "TruthRuntime"),
}


def get_runtime(name: str) -> Runtime:
    """Return the adapter called ``name``; UsageError ``unknown_runtime``."""
    if name not in ADAPTERS:
        raise UsageError.single("unknown_runtime", f"runtime={name}: no such runtime", f"use one of {', '.join(ADAPTERS)}")
    module, adapter = ADAPTERS[name]
    made: Runtime = getattr(import_module(module), adapter)()
    return made
