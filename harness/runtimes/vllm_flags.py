"""Which of vLLM's own arguments a manifest may set. The installed parser says what exists; this says what is somebody else's to set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.runtimes.flags import reaching_outside

DUMP_PARSER = """
import json
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = ServeSubcommand().subparser_init(FlexibleArgumentParser().add_subparsers())
print(json.dumps([
    {"flags": a.option_strings, "nargs": a.nargs, "choices": [str(c) for c in a.choices] if a.choices else None}
    for a in parser._actions if a.option_strings
]))
"""
"""Asks the installed version itself; what it prints is kept beside the environment."""

_OURS = "leave it out: the harness binds one server to the loopback, chooses the port and reads its metrics"
_USERS = "leave it out: what can execute code, read or write files, or leak is never a manifest's"
_WEIGHTS = "leave it out: what is served are the pinned model's own files, or their digests would be another model's"

RESERVED: Mapping[str, str] = {
    **dict.fromkeys(
        ("host", "port", "uds", "headless", "grpc", "root-path", "config", "help", "master-addr", "nnodes", "node-rank",
         "disable-log-stats", "data-parallel-rank", "data-parallel-start-rank", "data-parallel-size-local",
         "data-parallel-external-lb", "data-parallel-hybrid-lb", "data-parallel-multi-port-external-lb"),
        _OURS,
    ),
    **dict.fromkeys(("model", "served-model-name"), "set pins.model.id"),
    **dict.fromkeys(("tokenizer", "tokenizer-revision", "hf-config-path", "revision", "code-revision"), "set pins.model.revision"),
    **dict.fromkeys(("dtype", "hf-overrides"), "set pins.model.dtype"),
    **dict.fromkeys(("quantization", "quantization-config"), "set pins.model.quantization"),
    "tensor-parallel-size": "set pins.parallelism.tensor",
    "pipeline-parallel-size": "set pins.parallelism.pipeline",
    "data-parallel-size": "set pins.parallelism.data",
    "enable-expert-parallel": "set pins.parallelism.expert",
    **dict.fromkeys(
        ("trust-remote-code", "api-key", "hf-token", "middleware", "worker-cls", "worker-extension-cls", "logits-processors",
         "scheduler-cls", "model-class-overrides", "distributed-executor-backend", "chat-template", "generation-config", "tool-server",
         "lora-modules", "default-mm-loras", "logging-config", "profiler-config", "kv-events-config", "ec-transfer-config",
         "enable-log-requests", "enable-log-outputs", "enable-log-deltas", "trust-request-chat-template", "trust-request-mm-kwargs"),
        _USERS,
    ),
    **dict.fromkeys(("load-format", "model-loader-extra-config", "weight-transfer-config"), _WEIGHTS),
}  # fmt: skip
"""Arguments a manifest cannot set: name -> what to do instead."""


def reserved(options: Iterable[str]) -> dict[str, str]:
    """Return name -> who sets it instead, for every option of the installed parser that is not a manifest's."""
    return dict.fromkeys(reaching_outside(options), _USERS) | dict(RESERVED)
