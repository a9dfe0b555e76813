"""SGLang: a measured runtime that we start in its own environment (seen with 0.5.23 on CPU)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from harness.errors import HostError, Problem, UsageError
from harness.runtimes import flags
from harness.runtimes.asking import ask, ask_json, served_models
from harness.runtimes.contract import Command, MetricRule, Target, histogram
from harness.runtimes.environments import Environment, find_environment, require_environment
from harness.runtimes.fixed import base_environment, env_problem
from harness.runtimes.models import find_model, missing_model, model_config, model_dir
from harness.runtimes.placement import role_problems, sglang_role_args
from harness.runtimes.ports import HOST, check_port
from harness.runtimes.recipes import PLATFORM_NAME
from harness.runtimes.served import served_length
from harness.runtimes.sglang_facts import cacheable_block, served_facts
from harness.runtimes.sglang_flags import DUMP_PARSER, reserved
from harness.runtimes.tokenize import count_tokens, template_tokens
from harness.runtimes.verify import require_unaltered, sound_environment
from harness.system import Arm, EvidenceClass, Fact, Pins, embedding_size

ALLOWED_ENV = frozenset(
    {
        "OMP_NUM_THREADS", "SGLANG_CPU_OMP_THREADS_BIND", "SGLANG_INIT_NEW_TOKEN_RATIO", "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR",
        "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS", "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION", "SGLANG_RETRACT_DECODE_STEPS",
        "SGLANG_ENABLE_TORCH_INFERENCE_MODE", "CUDA_VISIBLE_DEVICES",
    }
)  # fmt: skip
"""Variables a manifest may set: tuning only, nothing that names a file, a host or code."""

REPORTING = ("--enable-metrics", "--enable-cache-report")
"""A metrics page, and cached tokens in the usage that ends a reply: it says neither unless told to."""

CPU_ARGS: Mapping[str, str] = {
    "device": "cpu",
    "attention-backend": "torch_native",
    "cuda-graph-backend-decode": "disabled",
    "cuda-graph-backend-prefill": "disabled",
}
"""What the CPU build runs with whatever the arm says: it has no other device, attention or graphs."""

CPU_KV_TOKENS = 65536
"""Rows of the KV pool on a CPU unless the arm says otherwise: left alone it takes most of the host's memory (14.6 of 23 GB were seen)."""

CPU_THREADS = "1"
"""OpenMP threads unless the arm says otherwise. With one a core they took the cores from the server's other processes while they waited for
each other: 359 ms a token instead of 35 were seen on two cores."""

HEALTH_S = 5.0
"""GET /health makes the server generate a token: about 1 s on an idle one."""

SETTLE_S = 5
"""A client that stopped reading is noticed within a few iterations; until then the server calls itself busy and keeps its cache."""

_RANK0 = {"tp_rank": "0", "pp_rank": "0"}
"""With a page of every scheduler each rank shows its own gauges of the same requests."""


class SglangRuntime:
    """The adapter. Stateless; every question is answered from the arm, the pins and the running server."""

    name = "sglang"
    evidence_class: EvidenceClass = "measured"
    managed = True
    metrics_path: str | None = "/metrics"
    metrics: ClassVar[Sequence[MetricRule]] = (
        MetricRule("requests_running", "sglang:num_running_reqs", _RANK0),
        MetricRule("requests_waiting", "sglang:num_queue_reqs", _RANK0),
        MetricRule("requests_retracted", "sglang:num_retracted_reqs", _RANK0),
        MetricRule("kv_usage_ratio", "sglang:token_usage", _RANK0, how="mean"),
        MetricRule("generation_rate", "sglang:gen_throughput", _RANK0),
        MetricRule("requests_finished_total", "sglang:num_requests_total"),
        MetricRule("requests_aborted_total", "sglang:num_aborted_requests_total"),
        MetricRule("prompt_tokens_total", "sglang:prompt_tokens_total"),
        MetricRule("generation_tokens_total", "sglang:generation_tokens_total"),
        MetricRule("cached_tokens_total", "sglang:cached_tokens_total"),
        MetricRule("prefix_queries_total", "sglang:prompt_tokens_total"),
        MetricRule("preemptions_total", "sglang:num_retracted_requests_total", _RANK0),
        MetricRule("retracted_input_tokens_total", "sglang:num_retracted_input_tokens_total", _RANK0),
        MetricRule("retracted_output_tokens_total", "sglang:num_retracted_output_tokens_total", _RANK0),
        *histogram("queue_time_s", "sglang:queue_time_seconds", _RANK0),
        *histogram("prefill_time_s", "sglang:per_stage_req_latency_seconds", _RANK0 | {"stage": "prefill_forward"}),
        *histogram("server_ttft_s", "sglang:time_to_first_token_seconds"),
        *histogram("server_tpot_s", "sglang:request_time_per_output_token_seconds"),
        *histogram("server_gap_s", "sglang:inter_token_latency_seconds"),
        *histogram("server_e2e_s", "sglang:e2e_request_latency_seconds"),
    )
    """It counts a request at its end, and one that was given up in ``num_requests_total`` too. No decode time and no tokens an iteration:
    unknown."""

    def check(self, arm: Arm, pins: Pins) -> list[Problem]:
        """Everything wrong with the arm that needs no start; asks the installed parser once (about 20 s, then cached)."""
        problems = [p for p in (missing_model(pins.model.id), _vocabulary_problem(pins)) if p is not None]
        problems += role_problems(arm, pins)
        problems += [env_problem(name, ALLOWED_ENV) for name in sorted(arm.env.keys() - ALLOWED_ENV)]
        env = sound_environment(self.name, arm.version)
        if isinstance(env, Problem):
            return [*problems, env]
        options = options_of(env)
        return problems + flags.check_args(arm.args, options, reserved(options, on_cpu(env)))

    def command(self, arm: Arm, pins: Pins, port: int, workdir: Path) -> Command:
        """Build the start of SGLang's server on 127.0.0.1:port.

        Raises UsageError with all problems of ``check``, HostError ``port_in_use`` or ``runtime_changed``.
        """
        problems = self.check(arm, pins)
        if problems:
            raise UsageError(*problems)
        check_port(port)
        env = require_environment(self.name, arm.version)
        require_unaltered(env)
        argv = [str(env.python), "-m", "sglang.launch_server", "--model-path", str(model_dir(pins.model.id)), *_pinned(pins)]
        argv += ["--host", HOST, "--port", str(port), *REPORTING, *_fixed(env, arm)]
        return Command((*argv, *flags.to_argv(arm.args, options_of(env))), server_env(env, arm), workdir)

    def ready(self, base_url: str) -> bool:
        """Healthy (503 until its first generation passed), and the model list answers."""
        health = ask(base_url, "/health", timeout_s=HEALTH_S)
        return health is not None and health.status == 200 and bool(served_models(base_url))

    def target(self, arm: Arm, pins: Pins, base_url: str) -> Target:
        """Address, tokenizer file and limits, as the running server states them. HostError ``server_silent``."""
        del arm
        length = served_length(base_url, pins.model.id)
        folder = model_dir(pins.model.id)
        block = cacheable_block(ask_json(base_url, "/server_info"))
        if block is not None:
            show_cache_counter(base_url, block)
        plain = count_tokens(base_url, prompt="x", add_special_tokens=False)
        return Target(
            base_url=base_url,
            model=pins.model.id,
            tokenizer=str(folder / "tokenizer.json"),
            vocab_size=vocabulary(folder),
            max_model_len=length,
            token_ids=True,
            cacheable_block=block,
            chat_overhead=template_tokens(base_url),
            adds_bos=count_tokens(base_url, prompt="x", add_special_tokens=True) > plain,
        )

    def facts(self, arm: Arm, pins: Pins, base_url: str, log: Path | None) -> dict[str, Fact]:
        """What was installed, what the engine resolved, what it serves (see ``sglang_facts``)."""
        return served_facts(find_environment(self.name, arm.version), arm, pins, base_url, log)

    def flush(self, base_url: str) -> bool | None:
        """Empty the radix cache; False when requests still run or wait, or nothing answers."""
        return flush_cache(base_url, SETTLE_S)


def on_cpu(env: Environment) -> bool:
    """Whether the environment holds the CPU build, which our own platform package serves."""
    return env.name == "sglang-cpu"


def options_of(env: Environment) -> dict[str, flags.Option]:
    """Options of the installed server, cached beside the environment under the digest of its lock."""
    cache = env.root.parent / f"{env.root.name}.flags.json"
    return flags.installed_options(env.python, DUMP_PARSER, cache, _base_env(env))


def server_env(env: Environment, arm: Arm) -> dict[str, str]:
    """The server's whole environment: our fixed part, then the manifest's allowed variables."""
    return _base_env(env) | {k: v for k, v in arm.env.items() if k in ALLOWED_ENV}


def vocabulary(folder: Path) -> int:
    """Ids the model's embedding has; HostError ``vocabulary_unknown``: one id beyond it ends the server, so none may be sent unchecked."""
    size = embedding_size(model_config(folder))
    if size is not None:
        return size
    raise HostError.single(
        "vocabulary_unknown",
        f"{folder / 'config.json'}: no vocab_size: an id beyond it ends the whole SGLang server, and no id could be checked",
        "restore the model's config.json",
    )


def flush_cache(base_url: str, wait_s: int) -> bool:
    """Ask for an empty cache, for which the server waits up to ``wait_s`` until nothing runs; whether it is empty now."""
    reply = ask(base_url, f"/flush_cache?timeout={wait_s}", timeout_s=10.0 + wait_s, post={})
    return reply is not None and reply.status == 200


def show_cache_counter(base_url: str, block: int) -> None:
    """Make one cache hit and empty the cache again: until its first hit the page has no line for cached tokens, and none is unknown.

    ``block``: tokens of the shortest hit; what is sent is several times as long, since words may share a token. Its ids are the server's.
    """
    reply = ask(base_url, "/tokenize", timeout_s=10.0, post={"prompt": "x " * (4 * block + 4), "add_special_tokens": False})
    page = reply.json() if reply is not None and reply.status == 200 else None
    ids = page.get("tokens") if isinstance(page, dict) else None
    for _ in range(2):
        sampling = {"max_new_tokens": 1, "temperature": 0}
        ask(base_url, "/generate", timeout_s=30.0, post={"input_ids": ids, "sampling_params": sampling})
    flush_cache(base_url, 10)


def _base_env(env: Environment) -> dict[str, str]:
    """Offline and quiet like every server of ours; on a CPU our platform and one thread."""
    out = base_environment(env)
    return out | {"SGLANG_PLATFORM": PLATFORM_NAME, "OMP_NUM_THREADS": CPU_THREADS} if on_cpu(env) else out


def _pinned(pins: Pins) -> list[str]:
    """Arguments that the pins decide."""
    split = pins.parallelism
    argv = ["--served-model-name", pins.model.id, "--dtype", pins.model.dtype]
    argv += ["--quantization", pins.model.quantization] if pins.model.quantization != "none" else []
    degrees = (("tp", split.tensor), ("pp", split.pipeline), ("dp", split.data), ("ep", split.expert))
    argv += [word for axis, degree in degrees if degree > 1 for word in (f"--{axis}-size", str(degree))]
    return argv + sglang_role_args(pins)


def _fixed(env: Environment, arm: Arm) -> list[str]:
    """Arguments of the CPU build; none for a GPU, where the engine's own choices are what is measured."""
    if not on_cpu(env):
        return []
    args = dict(CPU_ARGS)
    if "max-total-tokens" not in arm.args:
        args["max-total-tokens"] = str(CPU_KV_TOKENS)
    return [word for name, value in args.items() for word in (f"--{name}", value)]


def _vocabulary_problem(pins: Pins) -> Problem | None:
    """The problem of a model whose vocabulary is unknown, before its server is started. A model not made or not found yet has none."""
    folder = find_model(pins.model.id)
    if folder is None or not (folder / "config.json").is_file():
        return None
    try:
        vocabulary(folder)
    except HostError as bad:
        return bad.problems[0]
    return None
