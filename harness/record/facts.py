"""facts.json: what was found out about server, host and pins, before and after the run. Null always comes with a reason."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from harness.system import Fact, Frozen

__all__ = ["Fact", "Facts", "PinResult", "ServerExit"]


class PinResult(Frozen):
    """A pin held against a fact."""

    pin: str
    expected: Any
    observed: Any = None
    result: Literal["matched", "mismatched", "unknown"]
    reason: str = ""
    source: Literal["observed", "attested"] | None = Field(None, description="Who says what was found; null: nobody does")


class ServerExit(Frozen):
    """How the server's life ended, as seen by its keeper."""

    survived: bool | None = Field(description="alive when the drain ended; null: not ours to know (attached endpoint without health)")
    pid: int | None = None
    exit_code: int | None = None
    log_tail: tuple[str, ...] = ()


class Facts(Frozen):
    """facts.json. Fact names are dotted: host.cpu_model, host.cores, host.boot, server.version, server.dtype, server.kv_capacity_tokens."""

    before: dict[str, Fact] = Field(default_factory=dict)
    after: dict[str, Fact] = Field(default_factory=dict)
    pins: tuple[PinResult, ...] = ()
    flags_checked: bool | None = Field(None, description="argv was held against the installed version's own parser; null: no argv")
    flags_unknown: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    server_exit: ServerExit | None = None
    epoch_monotonic_ns: int | None = None
    epoch_wall: str | None = Field(None, description="ISO time of the epoch, for joining logs only")
