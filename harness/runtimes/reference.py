"""The embedded reference server as a system under test: a process like any other, asked over HTTP like any other."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import orjson

import harness
from harness.errors import HostError, Problem, UsageError
from harness.runtimes import flags
from harness.runtimes.asking import ask, ask_json, served_models
from harness.runtimes.contract import Command, MetricRule, Target, histogram
from harness.runtimes.ports import HOST, check_port
from harness.system import Arm, EvidenceClass, Fact, Pins

SERVER = "harness.reference.server"
PARSER = "harness.reference.arguments"
_PARSER_TIMEOUT_S = 30.0  # it answers in a fifth of a second on an idle core

RESERVED = {
    "host": "the server listens on the loopback only",
    "port": "the port is chosen when the server is started",
    "model": "set pins.model.id",
    "dtype": "set pins.model.dtype",
}
"""Arguments a manifest cannot set: name -> what to do instead."""


class ReferenceRuntime:
    """The adapter. Stateless; evidence class ``synthetic`` whatever is measured on it."""

    name = "reference"
    evidence_class: EvidenceClass = "synthetic"
    managed = True
    metrics_path: str | None = "/metrics"
    metrics: ClassVar[Sequence[MetricRule]] = (
        *(
            MetricRule(name, f"trigpoint:{name}")
            for name in (
                "requests_running", "requests_waiting", "requests_finished_total", "requests_aborted_total", "prompt_tokens_total",
                "generation_tokens_total", "cached_tokens_total", "preemptions_total", "kv_usage_ratio",
                # Only an engine that declares blocks, promises or a second tier has all of the rest.
                "kv_idle_rows", "kv_promised_rows", "preemptions_recompute_total", "preemptions_preserve_total",
                "preemptions_abort_total", "preservation_failures_total", "preserved_rows_total", "promoted_rows_total",
                "resume_tickets_total", "stale_receipts_total", "reservations_total", "reserved_rows_total", "used_rows_total",
                "unused_rows_total", "under_rows_total", "breach_rows_total", "extensions_total", "extension_rows_total",
                "withdrawn_reservations_total",
            )
        ),
        MetricRule("recomputed_rows_total", "trigpoint:recomputed_tokens_total"),
        # Every prompt token is looked up where there is a prefix store at all.
        MetricRule("prefix_queries_total", "trigpoint:prompt_tokens_total"),
        *histogram("server_ttft_s", "trigpoint:time_to_first_token_seconds"),
        *histogram("server_gap_s", "trigpoint:inter_token_latency_seconds"),
        *histogram("server_e2e_s", "trigpoint:e2e_request_latency_seconds"),
        *histogram("iteration_tokens", "trigpoint:iteration_tokens"),
        MetricRule("iteration_tokens_bucket", "trigpoint:iteration_tokens_bucket", by="le"),
    )  # fmt: skip

    def check(self, arm: Arm, pins: Pins) -> list[Problem]:
        """Hold the arm against the server's own parser, run as a process of its own; every problem at once."""
        problems = [*_pin_problems(pins), *(_env_problem(name) for name in sorted(arm.env))]
        wrong = flags.check_args(arm.args, parser_options(), RESERVED)
        return problems + (wrong or _refused_values(arm, pins))

    def command(self, arm: Arm, pins: Pins, port: int, workdir: Path) -> Command:
        """Build the start on 127.0.0.1:port. Raises UsageError with all problems of ``check``, HostError ``port_in_use``."""
        problems = self.check(arm, pins)
        if problems:
            raise UsageError(*problems)
        check_port(port)
        argv = (sys.executable, "-m", SERVER, "--host", HOST, "--port", str(port), *arguments(arm, pins))
        return Command(argv, environment(), workdir)

    def ready(self, base_url: str) -> bool:
        """GET /health answers 200."""
        health = ask(base_url, "/health", timeout_s=1.0)
        return health is not None and health.status == 200

    def target(self, arm: Arm, pins: Pins, base_url: str) -> Target:
        """Limits as the running server states them. HostError ``server_silent``."""
        del arm
        info = ask_json(base_url, "/server_info")
        listed = {m["id"]: m for m in served_models(base_url)}
        length = listed.get(pins.model.id, {}).get("max_model_len")
        if not isinstance(info, dict) or not isinstance(length, int):
            raise HostError.single(
                "server_silent",
                f"model={pins.model.id}: the server at {base_url} does not describe it",
                "read the server's log; another program may answer on that port",
            )
        return Target(
            base_url,
            pins.model.id,
            "bytes",
            int(info["vocab_size"]),
            length,
            cacheable_block=info.get("block_size") if info.get("prefix_caching") else None,
            chat_overhead=int(info.get("chat_overhead_tokens", 0)),
            reads_limits=bool(info.get("reads_limits")),
        )

    def facts(self, arm: Arm, pins: Pins, base_url: str, log: Path | None) -> dict[str, Fact]:
        """What /server_info, /version and /v1/models say; a page that does not answer leaves its facts unknown."""
        del arm, pins, log
        info = ask_json(base_url, "/server_info")
        page: Mapping[str, Any] = info if isinstance(info, dict) else {}
        version = ask_json(base_url, "/version")
        served = served_models(base_url)
        facts = {name: _fact(page.get(key), SOURCE) for name, key in _FROM_INFO.items()}
        facts["server.version"] = _fact(version.get("version") if isinstance(version, dict) else None, "GET /version")
        facts["model.id"] = _fact(served[0]["id"] if served else None, "GET /v1/models")
        facts["server.max_model_len"] = _fact(served[0].get("max_model_len") if served else None, "GET /v1/models")
        return facts | unsplit()

    def flush(self, base_url: str) -> bool | None:
        """POST /flush_cache, which the server takes while it is idle."""
        reply = ask(base_url, "/flush_cache", post={})
        return reply is not None and reply.status == 200


_FROM_INFO = {
    "server.dtype": "dtype",
    "server.quantization": "quantization",
    "server.kv_capacity_tokens": "kv_capacity_tokens",
    "server.effective_config": "effective_config",
    "server.packages": "packages",
    "server.prefix_caching": "prefix_caching",
    "server.block_size": "block_size",
    "model.digest": "model_digest",
    "model.revision": "model_digest",
    "tokenizer.digest": "tokenizer_digest",
}


SOURCE = "GET /server_info"


def unsplit() -> dict[str, Fact]:
    """One process, nothing split: a property of the engine, not something a page could say otherwise."""
    return {f"server.{axis}_parallel": Fact(value=1, source="engine") for axis in ("tensor", "pipeline", "data", "expert")}


def reference_facts(info: Mapping[str, Any]) -> dict[str, Fact]:
    """What a reference server says of itself to somebody who attaches to it; {} when ``info`` is another engine's page."""
    if info.get("engine") != "reference":
        return {}
    facts = {name: _fact(info.get(key), SOURCE) for name, key in _FROM_INFO.items()}
    own = {"server.engine": "reference", "server.evidence_class": "synthetic"}
    return facts | unsplit() | {name: Fact(value=value, source=SOURCE) for name, value in own.items()}


@functools.cache  # the parser is that of this installation, and every arm of a campaign is held against it
def parser_options() -> dict[str, flags.Option]:
    """Options of the server's own parser, asked from the module that will be started. Raises HostError ``flags_unreadable``."""
    done = _run_parser([])
    if done.returncode != 0:
        tail = done.stderr.strip().splitlines()[-3:]
        raise HostError.single(
            "flags_unreadable", f"python -m {PARSER} failed: {' / '.join(tail)}", "repair the installation of this program"
        )
    return flags.parse_dump(orjson.loads(done.stdout))


def environment() -> dict[str, str]:
    """The server's whole environment: nothing of the caller's but what finds the same code."""
    root = str(Path(harness.__file__).parents[1])
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"}


def arguments(arm: Arm, pins: Pins) -> list[str]:
    """What the server under test is told, without the address it listens on. The arm must have passed ``check``."""
    options = parser_options()
    return ["--model", pins.model.id, "--dtype", pins.model.dtype, *flags.to_argv(arm.args, options)]


def _refused_values(arm: Arm, pins: Pins) -> list[Problem]:
    """Values that only the parser itself can judge (units, limits that depend on each other)."""
    done = _run_parser(arguments(arm, pins))
    if done.returncode == 0:
        return []
    # argparse prints a usage block first; the reason is in its last line, ours are whole texts.
    said = done.stderr.strip()
    reason = said.splitlines()[-1].partition("error: ")[2] if said.startswith("usage:") else said
    return [Problem("flag_value", f"args of arm {arm.name}: {reason}", "correct the value; the server would refuse to start")]


def _run_parser(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-m", PARSER, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(),
            timeout=_PARSER_TIMEOUT_S, check=False, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError.single(
            "flags_unreadable", f"the server's parser could not be asked: {error}", "repair the Python that runs this program"
        ) from error


def _pin_problems(pins: Pins) -> list[Problem]:
    split = pins.parallelism
    problems = []
    if pins.model.quantization != "none":
        problems.append(_pin("quantization", pins.model.quantization, "none"))
    axes = {"tensor": split.tensor, "pipeline": split.pipeline, "data": split.data, "expert": split.expert}
    return problems + [_pin(f"parallelism.{axis}", degree, 1) for axis, degree in axes.items() if degree != 1]


def _pin(name: str, value: object, only: object) -> Problem:
    return Problem("pin_unsupported", f"pins.{name}={value}: the reference engine knows only {only}", f"pin {only}")


def _env_problem(name: str) -> Problem:
    return Problem("env_not_allowed", f"env.{name}: the reference server reads no variables", "remove it; use args")


def _fact(value: Any, source: str) -> Fact:
    return Fact(value=value, source=source) if value is not None else Fact(reason="the page does not state it", source=source)
