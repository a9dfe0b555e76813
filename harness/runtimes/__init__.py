"""Systems under test: one adapter per runtime, their environments and processes."""

from harness.runtimes.registry import get_runtime

__all__ = ["get_runtime"]
