"""Asking the driver's management library (NVML): devices opened once, every call answered or refused by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pynvml

DEVICE_NODES = (Path("/dev/nvidia0"), Path("/dev/kfd"), Path("/dev/accel"))
"""Device nodes of accelerators: with one of them here, a silent library means unknown, not none."""


class Answer(NamedTuple):
    """A value, or None with the reason. ``lasting``: asking again is no use. ``unsupported``: this kind of device has no such thing."""

    value: Any
    reason: str = ""
    lasting: bool = False
    unsupported: bool = False


class Nvml:
    """The library, opened; ``handles`` one a device, in the library's order. Raises its NVMLError where it cannot be opened."""

    def __init__(self, library: Any = pynvml) -> None:
        self._library = library
        self._lasting = {library.NVML_ERROR_NOT_SUPPORTED, library.NVML_ERROR_FUNCTION_NOT_FOUND, library.NVML_ERROR_NO_PERMISSION}
        library.nvmlInit()
        try:
            self.handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
        except library.NVMLError:
            library.nvmlShutdown()
            raise

    def close(self) -> None:
        """Let go of the library; what it answers to that changes nothing any more."""
        self.ask("nvmlShutdown")

    def ask(self, call: str, *args: Any, read: Callable[[Any], Any] = lambda value: value) -> Answer:
        """Make one call and turn what it returns by ``read``. A refusal costs this answer only."""
        try:
            return Answer(read(getattr(self._library, call)(*args)))
        except self._library.NVMLError as error:
            unsupported = error.value == self._library.NVML_ERROR_NOT_SUPPORTED
            return Answer(None, f"{call}: {error}", error.value in self._lasting, unsupported)

    def constant(self, name: str) -> int:
        """A named constant of the library."""
        return int(getattr(self._library, name))


def accelerator_nodes(nodes: Iterable[Path] = DEVICE_NODES) -> list[str]:
    """Device nodes that show an accelerator on this host, whether or not its library answers."""
    return [str(node) for node in nodes if node.exists()]


def decoded(text: str | bytes) -> str:
    """Older libraries answer in bytes."""
    return text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text


class Owners(NamedTuple):
    """Processes that compute on a device: the server's, and others'."""

    server: int
    foreign: int


def owners(seen: list[set[int]], ours: Collection[int]) -> list[Owners] | None:
    """Tell the processes of each device (process ids, a set a device) apart; ``ours``: those of the server under test.

    None when none of those seen is ours: in a container the driver may hide processes or number them as the host does, so what looks
    foreign may be the server itself.
    """
    own = set(ours)
    if not any(pids & own for pids in seen):
        return None
    return [Owners(len(pids & own), len(pids - own)) for pids in seen]


def computing(nvml: Nvml, handle: Any) -> Answer:
    """Ids of the processes that compute on a device, as a set."""
    return nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle, read=lambda found: {int(p.pid) for p in found})
