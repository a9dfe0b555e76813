"""vLLM: a measured runtime that we start in its own environment (seen with 0.32.0 on CPU)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from harness.errors import Problem, UsageError
from harness.runtimes import flags
from harness.runtimes.asking import ask, served_models
from harness.runtimes.contract import Command, MetricRule, Target, histogram
from harness.runtimes.environments import Environment, find_environment, require_environment
from harness.runtimes.fixed import base_environment, env_problem
from harness.runtimes.models import missing_model, model_config, model_dir
from harness.runtimes.placement import role_problems, vllm_role_args
from harness.runtimes.ports import HOST, check_port
from harness.runtimes.served import served_length
from harness.runtimes.tokenize import count_tokens, template_tokens
from harness.runtimes.verify import require_unaltered, sound_environment
from harness.runtimes.vllm_facts import served_facts
from harness.runtimes.vllm_flags import DUMP_PARSER, reserved
from harness.runtimes.vllm_log import as_int, cache_config
from harness.system import Arm, EvidenceClass, Fact, Pins, embedding_size

ALLOWED_ENV = frozenset(
    {
        "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_NUM_OF_RESERVED_CPU", "VLLM_CPU_OMP_THREADS_BIND",
        "VLLM_CPU_SGL_KERNEL", "VLLM_ATTENTION_BACKEND", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL",
        "CUDA_VISIBLE_DEVICES",
    }
)  # fmt: skip
"""Variables a manifest may set: tuning only, nothing that names a file, a host or code."""

FINISHED = "vllm:request_success_total"

CPU_KV_GIB = "1"
"""Unset, the CPU build asks for 92% of the host's memory and refuses to start beside anything else."""


class VllmRuntime:
    """The adapter. Stateless; every question is answered from the arm, the pins and the running server."""

    name = "vllm"
    evidence_class: EvidenceClass = "measured"
    managed = True
    metrics_path: str | None = "/metrics"
    metrics: ClassVar[Sequence[MetricRule]] = (
        MetricRule("requests_running", "vllm:num_requests_running"),
        MetricRule("requests_waiting", "vllm:num_requests_waiting"),
        *(MetricRule("requests_finished_total", FINISHED, {"finished_reason": r}) for r in ("stop", "length", "repetition")),
        MetricRule("prompt_tokens_total", "vllm:prompt_tokens_total"),
        MetricRule("generation_tokens_total", "vllm:generation_tokens_total"),
        MetricRule("cached_tokens_total", "vllm:prefix_cache_hits_total"),
        MetricRule("prefix_queries_total", "vllm:prefix_cache_queries_total"),
        MetricRule("preemptions_total", "vllm:num_preemptions_total"),
        MetricRule("kv_usage_ratio", "vllm:kv_cache_usage_perc", how="mean"),
        *histogram("queue_time_s", "vllm:request_queue_time_seconds"),
        *histogram("prefill_time_s", "vllm:request_prefill_time_seconds"),
        *histogram("decode_time_s", "vllm:request_decode_time_seconds"),
        *histogram("server_ttft_s", "vllm:time_to_first_token_seconds"),
        *histogram("server_tpot_s", "vllm:request_time_per_output_token_seconds"),
        *histogram("server_gap_s", "vllm:inter_token_latency_seconds"),
        *histogram("server_e2e_s", "vllm:e2e_request_latency_seconds"),
        *histogram("iteration_tokens", "vllm:iteration_tokens_total"),
        MetricRule("iteration_tokens_bucket", "vllm:iteration_tokens_total_bucket", by="le"),
    )
    """A client that hangs up was seen in neither finished nor aborted (0.32.0), so the latter, always 0, is not read. It counts
    first lookups in the prefix cache, not those after a preemption, and no recomputed rows."""

    def check(self, arm: Arm, pins: Pins) -> list[Problem]:
        """Everything wrong with the arm that needs no start; asks the installed parser once (about 15 s, then cached)."""
        problems = [p for p in (missing_model(pins.model.id), _expert_problem(pins)) if p is not None]
        problems += [env_problem(name, ALLOWED_ENV) for name in sorted(arm.env.keys() - ALLOWED_ENV)]
        problems += role_problems(arm, pins)
        env = sound_environment(self.name, arm.version)
        if isinstance(env, Problem):
            return [*problems, env]
        options = options_of(env)
        return problems + flags.check_args(arm.args, options, reserved(options))

    def command(self, arm: Arm, pins: Pins, port: int, workdir: Path) -> Command:
        """Build the start of ``vllm serve`` on 127.0.0.1:port.

        Raises UsageError with all problems of ``check``, HostError ``port_in_use`` or ``runtime_changed``.
        """
        problems = self.check(arm, pins)
        if problems:
            raise UsageError(*problems)
        check_port(port)
        env = require_environment(self.name, arm.version)
        require_unaltered(env)
        model = model_dir(pins.model.id)
        argv = [str(env.root / "bin" / "vllm"), "serve", str(model), *_pinned(pins)]
        argv += ["--host", HOST, "--port", str(port), *flags.to_argv(arm.args, options_of(env))]
        return Command(tuple(argv), server_env(env, arm), workdir)

    def ready(self, base_url: str) -> bool:
        """Healthy, and the model list answers."""
        health = ask(base_url, "/health")
        return health is not None and health.status == 200 and bool(served_models(base_url))

    def target(self, arm: Arm, pins: Pins, base_url: str) -> Target:
        """Address, tokenizer file and limits, as the running server states them. HostError ``server_silent``."""
        del arm
        length = served_length(base_url, pins.model.id)
        folder = model_dir(pins.model.id)
        plain = count_tokens(base_url, prompt="x", add_special_tokens=False)
        return Target(
            base_url=base_url,
            model=pins.model.id,
            tokenizer=str(folder / "tokenizer.json"),
            vocab_size=embedding_size(model_config(folder)) or 0,
            max_model_len=length,
            token_ids=True,
            cacheable_block=_block(base_url),
            chat_overhead=template_tokens(base_url),
            adds_bos=count_tokens(base_url, prompt="x", add_special_tokens=True) > plain,
        )

    def facts(self, arm: Arm, pins: Pins, base_url: str, log: Path | None) -> dict[str, Fact]:
        """What was installed, what the engine resolved, what it serves (see ``vllm_facts``)."""
        return served_facts(find_environment(self.name, arm.version), pins, base_url, log)

    def flush(self, base_url: str) -> bool | None:
        """None: its route for that belongs to the development mode (0.32.0), so an empty cache takes a new process."""
        del base_url
        return None


def options_of(env: Environment) -> dict[str, flags.Option]:
    """Options of the installed ``vllm serve``, cached beside the environment under the digest of its lock."""
    cache = env.root.parent / f"{env.root.name}.flags.json"
    return flags.installed_options(env.python, DUMP_PARSER, cache, _base_env(env))


def server_env(env: Environment, arm: Arm) -> dict[str, str]:
    """The server's whole environment: our fixed part, then the manifest's allowed variables."""
    out = _base_env(env)
    if env.name == "vllm-cpu" and "kv-cache-memory-bytes" not in arm.args:
        out["VLLM_CPU_KVCACHE_SPACE"] = CPU_KV_GIB
    return out | {k: v for k, v in arm.env.items() if k in ALLOWED_ENV}


def _base_env(env: Environment) -> dict[str, str]:
    """What every server of ours gets, and vLLM's own way to say nothing to anybody.

    OpenMP threads: vLLM's own ``auto`` binding obeys the affinity mask that the server is started with, so a placement needs no variable.
    """
    return base_environment(env) | {"VLLM_NO_USAGE_STATS": "1"}


def _pinned(pins: Pins) -> list[str]:
    """Arguments that the pins decide."""
    split = pins.parallelism
    argv = ["--served-model-name", pins.model.id, "--dtype", pins.model.dtype]
    argv += ["--quantization", pins.model.quantization] if pins.model.quantization != "none" else []
    argv += ["--tensor-parallel-size", str(split.tensor), "--pipeline-parallel-size", str(split.pipeline)]
    argv += ["--data-parallel-size", str(split.data)] if split.data > 1 else []
    return argv + (["--enable-expert-parallel"] if split.expert > 1 else []) + vllm_role_args(pins)


def _expert_problem(pins: Pins) -> Problem | None:
    split = pins.parallelism
    if split.expert in (1, split.tensor * split.data):
        return None
    return Problem(
        "expert_degree",
        f"pins.parallelism.expert={split.expert}: vLLM spreads experts over all tensor x data ranks, here {split.tensor * split.data}",
        f"pin expert: 1 or expert: {split.tensor * split.data}",
    )


def _block(base_url: str) -> int | None:
    """Tokens of the smallest prefix that can be a cache hit; None when prefix caching is off or unknown."""
    page = ask(base_url, "/metrics")
    labels = cache_config(page.body.decode("utf-8", errors="replace")) if page else {}
    return as_int(labels.get("block_size")) if labels.get("enable_prefix_caching") == "True" else None
