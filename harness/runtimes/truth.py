"""Adapter of the truth server. It is an instrument's reference, never a system to compare: evidence class ``synthetic``."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from harness.errors import Problem, UsageError
from harness.runtimes import flags
from harness.runtimes.asking import ask
from harness.runtimes.contract import Command, MetricRule, Target
from harness.runtimes.ports import HOST, check_port
from harness.runtimes.reference import environment
from harness.runtimes.truth_plan import MAX_TOKENS, Timing
from harness.runtimes.truth_server import MODEL, make_parser
from harness.system import Arm, EvidenceClass, Fact, Pins

LOG_NAME = "truth.arrow"
"""The log's file name in the server's working directory."""

_RESERVED = {
    "host": "the server listens on the loopback only",
    "port": "the port is chosen when the server is started",
    "log": f"it is written to {LOG_NAME} in the server's folder",
}


class TruthRuntime:
    """Starts the server that knows when it wrote each token."""

    name = "truth"
    evidence_class: EvidenceClass = "synthetic"
    managed = True
    metrics_path: str | None = None
    metrics: ClassVar[Sequence[MetricRule]] = ()

    def check(self, arm: Arm, pins: Pins) -> list[Problem]:
        """Unknown arguments, variables, and another model than its own."""
        problems = flags.check_args(arm.args, _options(), _RESERVED)
        problems += [_bad_time(name, arm.args[name]) for name in ("ttft", "gap", "jitter") if not _is_time(arm.args.get(name, 1))]
        problems += [Problem("env_not_allowed", f"env.{name}: the server reads no variables", "remove it") for name in sorted(arm.env)]
        if pins.model.id != MODEL:
            problems.append(Problem("model_missing", f"pins.model.id={pins.model.id}: it serves only {MODEL}", f"pin {MODEL}"))
        return problems

    def command(self, arm: Arm, pins: Pins, port: int, workdir: Path) -> Command:
        """Build the start; the log goes into ``workdir``. Raises UsageError with all problems, HostError ``port_in_use``."""
        problems = self.check(arm, pins)
        if problems:
            raise UsageError(*problems)
        check_port(port)
        argv = [sys.executable, "-m", "harness.runtimes.truth_server", "--host", HOST, "--port", str(port)]
        argv += ["--log", str(workdir / LOG_NAME), *flags.to_argv(arm.args, _options())]
        return Command(tuple(argv), environment(), workdir)

    def ready(self, base_url: str) -> bool:
        """GET /health answers 200."""
        health = ask(base_url, "/health", timeout_s=1.0)
        return health is not None and health.status == 200

    def target(self, arm: Arm, pins: Pins, base_url: str) -> Target:
        """Bytes as ids; any prompt is accepted."""
        del arm, pins
        return Target(base_url, MODEL, "bytes", 256, MAX_TOKENS)

    def facts(self, arm: Arm, pins: Pins, base_url: str, log: Path | None) -> dict[str, Fact]:
        """The little there is: it has no engine."""
        del pins, base_url, log
        source = b"".join(Path(sys.modules[part.__module__].__file__ or "").read_bytes() for part in (make_parser, Timing))
        return {
            "server.version": Fact(value=hashlib.sha256(source).hexdigest(), source="sha256 of the server's source"),
            "server.effective_config": Fact(value=dict(arm.args), source="arguments"),
            "model.id": Fact(value=MODEL, source="constant of the server"),
            "server.dtype": Fact(reason="it computes nothing", source="design"),
            "server.kv_capacity_tokens": Fact(reason="it has no cache", source="design"),
        }

    def flush(self, base_url: str) -> bool | None:
        """True: it has no cache, so there is never anything in it."""
        del base_url
        return True


def _options() -> dict[str, flags.Option]:
    raw = [{"flags": a.option_strings, "nargs": a.nargs, "choices": None} for a in make_parser()._actions if a.dest != "help"]
    return flags.parse_dump(raw)


def _is_time(value: object) -> bool:
    # An hour in ms: longer is a typing error. NaN fails every comparison.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 3_600_000


def _bad_time(name: str, value: object) -> Problem:
    return Problem("flag_value", f"args.{name}={value!r}: must be milliseconds, from 0 to an hour", "write e.g. 20")
