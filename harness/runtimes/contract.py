"""What a system under test is to the rest of the house: a command line, a readiness rule, facts and a metrics map. No load, no verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from harness.errors import Problem
from harness.system import Arm, EvidenceClass, Fact, Pins


@dataclass(frozen=True, slots=True)
class Command:
    """How to start a server: argv (never a shell string), whole environment, working directory."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    redacted: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    """run when it is to end, for what signals do not reach; empty: signals reach all of it"""


@dataclass(frozen=True, slots=True)
class Target:
    """A served model as the client reaches it. ``tokenizer`` names the tokenizer file or ``bytes``; ids < vocab_size are
    safe to send; 0: its model does not say."""

    base_url: str
    model: str
    tokenizer: str
    vocab_size: int
    max_model_len: int
    token_ids: bool = True
    """The server takes token ids as a completions prompt."""
    cacheable_block: int | None = None
    chat_overhead: int = 0
    """Tokens the chat template adds around one user message."""
    adds_bos: bool = False
    """A completions server adds the tokenizer's own special tokens to a text prompt."""
    reads_limits: bool = False
    """The server's scheduler looks at latency limits that a request declares."""


@dataclass(frozen=True, slots=True)
class MetricRule:
    """One canonical metric (``harness.record.metric_names``) from a Prometheus page: the samples called ``name`` whose labels contain
    ``where``, joined by ``how``.

    ``how``: counts of several engines add up, shares of their own caches do not: ``mean``. ``by``: name of a label whose values stay
    apart, such as the upper bounds ``le`` of a histogram. Rules that share a canonical name share ``how`` and ``by``.
    """

    canonical: str
    name: str
    where: Mapping[str, str] = field(default_factory=dict)
    how: Literal["sum", "mean"] = "sum"
    by: str | None = None


def histogram(canonical: str, name: str, where: Mapping[str, str] | None = None) -> tuple[MetricRule, MetricRule]:
    """Sum and count of a Prometheus histogram as ``canonical_sum`` and ``canonical_count``."""
    sum_, count = (MetricRule(f"{canonical}_{part}", f"{name}_{part}", where or {}) for part in ("sum", "count"))
    return sum_, count


class Runtime(Protocol):
    """One adapter per system under test. All methods are synchronous and free of global state."""

    name: str
    evidence_class: EvidenceClass
    managed: bool
    """True when we start and stop it."""
    metrics_path: str | None
    metrics: Sequence[MetricRule]

    def check(self, arm: Arm, pins: Pins) -> list[Problem]:
        """Problems that can be known before a start: unknown flag (with the nearest name), missing install, missing model."""
        ...

    def command(self, arm: Arm, pins: Pins, port: int, workdir: Path) -> Command:
        """Build argv and environment for a server on 127.0.0.1:port."""
        ...

    def ready(self, base_url: str) -> bool:
        """One readiness probe by protocol (short timeout); False: not yet."""
        ...

    def target(self, arm: Arm, pins: Pins, base_url: str) -> Target:
        """What the client needs to know about the served model."""
        ...

    def facts(self, arm: Arm, pins: Pins, base_url: str, log: Path | None) -> dict[str, Fact]:
        """Facts about the running server (names server.*, model.*, tokenizer.*)."""
        ...

    def flush(self, base_url: str) -> bool | None:
        """Empty the server's prefix cache. True: it is empty now; False: the server would not; None: this runtime has no way to do it.

        Called between replicates, when nothing is in flight. A runtime that answers None is restarted instead (``RESTARTED``).
        """
        ...


RESTARTED: Mapping[str, str] = {"vllm": "enable-prefix-caching"}
"""Runtimes we start whose cache only a new process empties, and the argument that, false, turns it off. vLLM has a route for it in its
development mode alone, which opens others that a measured server must not have (0.32.0)."""
