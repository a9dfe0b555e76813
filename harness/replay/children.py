"""A process of ours and what it says: started, heard, buried; nothing here waits for a dead one."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait as wait_any
from multiprocessing.context import SpawnProcess
from typing import Any

STOP_S = 10.0
"""How long an ordered end may take before the process is killed: flushing a second of rows takes milliseconds."""


@dataclasses.dataclass(slots=True, eq=False)
class Child:
    """A process, its control pipe, and what it ``said`` last. ``name``: what a fault calls it; ``result``: what it was done with."""

    name: str
    process: SpawnProcess
    control: Pipe
    pid: int
    said: str = ""
    result: Any = None
    cpu_s: float = 0.0
    fault: str | None = None
    over: bool = False
    stopping: bool = False

    def tell(self, word: str, value: Any) -> None:
        """Send one order; a process that is gone says so itself, through its pipe."""
        if not self.over:
            try:
                self.control.send((word, value))
            except (OSError, ValueError):
                return

    def stop(self, why: str) -> None:
        """Order it to end, once: a process that does not listen must not fill its pipe, for then the order would block."""
        if not self.stopping:
            self.stopping = True
            self.tell("abort", why)

    def end(self, fault: str | None) -> None:
        """Take note that it is over, and see to it."""
        self.over, self.fault = True, fault
        self.process.join(STOP_S)
        if self.process.exitcode is None:
            self.kill()
        self.process.close()
        self.control.close()

    def kill(self) -> None:
        """End the process now."""
        self.process.kill()
        self.process.join()

    def hear(self) -> None:
        """Take one message; the end of the pipe is the end of the process."""
        try:
            word, value, cpu_s = self.control.recv()
        except (EOFError, OSError):
            self.process.join(STOP_S)
            self.end(f"the process died without a word (exit code {self.process.exitcode})")
            return
        if word == "done":
            self.result, self.cpu_s = value, cpu_s
            self.end(value if isinstance(value, str) else None)
        elif word in ("stopped", "fault"):
            self.end(value)
        else:
            self.said = word


def spawn(role: str, label: str | None, target: Any, *args: Any) -> Child:
    """Start ``target(*args, control)`` in a fresh interpreter."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    name = role if label is None else f"{role} {label}"
    process = context.Process(target=target, args=(*args, theirs), name=f"trigpoint-{name.replace(' ', '-')}", daemon=True)
    process.start()
    theirs.close()
    return Child(name, process, ours, process.pid or 0)


def listen(children: Sequence[Child], timeout_s: float) -> None:
    """Take messages and deaths that come within ``timeout_s``; returns after the first batch."""
    alive = [child for child in children if not child.over]
    ready = wait_any([child.control for child in alive], timeout_s) if alive else []
    for child in alive:
        if child.control in ready:
            child.hear()
