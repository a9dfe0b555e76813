"""Which of SGLang's own arguments a manifest may set. The installed parser says what exists; this says what is somebody else's to set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.runtimes.flags import reaching_outside

DUMP_PARSER = """
import argparse, json
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(json.dumps([
    {"flags": a.option_strings, "nargs": a.nargs, "choices": sorted(str(c) for c in a.choices) if a.choices else None}
    for a in parser._actions if a.option_strings
]))
"""
"""Asks the installed version itself; what it prints is kept beside the environment."""

_OURS = "leave it out: the harness binds the server to the loopback, chooses the port and reads its metrics"
_USERS = "leave it out: what can execute code, read or write files, or leak is never a manifest's"
_WEIGHTS = "leave it out: what is served are the pinned model's own files, or their digests would be another model's"
_KEPT = "leave it out: a cache that outlives the server is never cold, and no flush empties it"
_CPU = "leave it out: the CPU build has no other device, attention or graphs"

RESERVED: Mapping[str, str] = {
    **dict.fromkeys(
        ("host", "port", "grpc-port", "grpc-mode", "smg-grpc-mode", "nccl-port", "enable-metrics", "enable-cache-report", "help", "config",
         "fastapi-root-path",
         "gated-launch-port", "skip-server-warmup", "use-ray", "dist-init-addr", "nccl-init-addr", "nnodes", "node-rank", "enable-http2",
         "extra-metric-labels", "disaggregation-bootstrap-port", "encoder-bootstrap-port", "engine-info-bootstrap-port",
         "enable-http-worker-reuseport"),
        _OURS,
    ),
    **dict.fromkeys(("model", "model-path", "served-model-name"), "set pins.model.id"),
    **dict.fromkeys(("revision", "tokenizer-path"), "set pins.model.revision"),
    **dict.fromkeys(("dtype", "json-model-override-args"), "set pins.model.dtype"),
    **dict.fromkeys(("quantization", "modelopt-quant", "quantize-and-serve"), "set pins.model.quantization"),
    **dict.fromkeys(("tp-size", "tensor-parallel-size"), "set pins.parallelism.tensor"),
    **dict.fromkeys(("pp-size", "pipeline-parallel-size"), "set pins.parallelism.pipeline"),
    **dict.fromkeys(("dp-size", "data-parallel-size"), "set pins.parallelism.data"),
    **dict.fromkeys(("disaggregation-mode", "disaggregation-transfer-backend"), "set pins.parallelism.disaggregation"),
    **dict.fromkeys(("ep", "ep-size", "expert-parallel-size"), "set pins.parallelism.expert"),
    **dict.fromkeys(
        ("trust-remote-code", "trust-request-chat-template", "forward-hooks", "custom-weight-loader", "sidecar", "sidecar-args", "warmups",
         "tool-server", "enable-custom-logit-processor", "chat-template", "completion-template", "api-key", "admin-api-key", "log-requests",
         "log-requests-target", "model-loader-extra-config", "enable-trace", "export-metrics-to-file", "msprobe-dump-config",
         "kv-events-config", "lora-paths", "hicache-storage-backend-extra-config", "modelexpress-config", "speculative-token-map",
         "init-expert-location", "remote-instance-weight-loader-seed-instance-ip", "delete-ckpt-after-loading", "model-checksum",
         "rl-quant-profile", "speculative-draft-model", "speculative-adaptive-config", "dllm-algorithm-config", "deepep-config",
         "forward-pass-metrics-ipc-name", "watermark-config"),
        _USERS,
    ),
    **dict.fromkeys(
        ("load-format", "speculative-draft-load-format", "remote-instance-weight-loader-backend", "weight-cache-mode",
         "remote-instance-weight-loader-start-seed-via-transfer-engine", "checkpoint-engine-wait-weights-before-ready"),
        _WEIGHTS,
    ),
    **dict.fromkeys(
        ("hicache-storage-backend", "enable-unified-cache-external-linker", "unified-cache-external-linker-backend",
         "unified-cache-external-linker-config", "enable-lmcache", "enable-flexkv", "radix-cache-backend"),
        _KEPT,
    ),
}  # fmt: skip
"""Arguments a manifest cannot set: name -> what to do instead."""

CPU_ONLY = ("device", "attention-backend", "decode-attention-backend", "prefill-attention-backend", "cuda-graph-backend-decode",
            "cuda-graph-backend-prefill", "cuda-graph-config", "disable-cuda-graph")  # fmt: skip


def reserved(options: Iterable[str], cpu: bool) -> dict[str, str]:
    """Return name -> who sets it instead, for every option of the installed parser that is not a manifest's."""
    return dict.fromkeys(reaching_outside(options), _USERS) | (dict.fromkeys(CPU_ONLY, _CPU) if cpu else {}) | dict(RESERVED)
