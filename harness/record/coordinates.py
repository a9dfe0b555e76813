"""Run coordinates: the frame a number belongs to (F66, DESIGN 9). Values only; the rules that compare them live in analysis."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

VIRTUAL_TIME = "virtual time"
"""Host and client of a simulated run: no machine took part, so it equals other simulated runs in it and no run that took time."""

Scalar = str | int | float | bool | None


class Known(BaseModel):
    """A coordinate with a value. ``source`` says who vouches for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    state: Literal["value"] = "value"
    value: Any
    source: Literal["declared", "observed", "attested", "derived"] = "observed"


class NotApplicable(BaseModel):
    """The coordinate has no meaning here; it equals itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    state: Literal["not_applicable"] = "not_applicable"
    reason: str


class Unknown(BaseModel):
    """The value could not be learned; it equals nothing, not even another unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    state: Literal["unknown"] = "unknown"
    reason: str


Coordinate = Annotated[Known | NotApplicable | Unknown, Field(discriminator="state")]

RUN_COORDINATES: dict[str, str] = {
    "model.id": "name of the model",
    "model.revision": "revision or digest the model is pinned to",
    "model.digest": "sha256 over the model's files as found on disk",
    "tokenizer.digest": "sha256 of the tokenizer that counted the tokens",
    "model.dtype": "element type of weights and activations",
    "model.quantization": "quantization scheme",
    "hardware.gpu": "accelerator model, or none",
    "hardware.gpu_count": "number of accelerators",
    "hardware.driver": "accelerator driver version",
    "hardware.gpu_settings": "power limit, ECC, MIG and application clocks of the accelerators",
    "hardware.cpu": "CPU model",
    "hardware.cores": "cores the server may use",
    "hardware.memory": "memory of the server's host, GiB",
    "hardware.host": "identity of the server's machine and boot",
    "parallelism.tensor": "tensor-parallel degree",
    "parallelism.pipeline": "pipeline-parallel degree",
    "parallelism.data": "data-parallel degree",
    "parallelism.expert": "expert-parallel degree",
    "parallelism.replicas": "servers with the whole model behind one address",
    "parallelism.disaggregation": "servers by role where prefill and decode are served apart, or none",
    "runtime.name": "system under test",
    "runtime.version": "its version",
    "runtime.args": "its arguments as resolved",
    "runtime.env": "the environment variables the manifest set",
    "runtime.launch": "how it was started: direct, or the user's launch prefix by program and digest",
    "runtime.packages": "digest of the package set it ran with",
    "runtime.effective_config": "what the engine says its configuration is",
    "runtime.kv_capacity_tokens": "KV cache capacity in tokens",
    "workload.trace": "trace name and sha256",
    "workload.window": "part of the trace, in trace time",
    "workload.transforms": "chain of transforms with parameters",
    "workload.arrivals": "arrival process",
    "workload.loop": "open, partly_open or closed(N)",
    "workload.prompts": "prompt source",
    "workload.api": "endpoint and message shape",
    "workload.output_length": "output-length control",
    "workload.cache": "cache policy between replicates",
    "workload.digests": "content digests of the schedules, by replicate index",
    "workload.estimand": "E1 (this trace on this system) or E2 (this kind of load)",
    "evidence.class": "measured, synthetic, source_reported or imported",
    "protocol.measurement": "measurement protocol number",
    "window.warm_up": "warm-up, s",
    "window.measured": "measured window, s",
    "window.drain": "drain, s",
    "client.host": "identity of the client's machine and boot",
    "client.concurrency": "cap on concurrent requests, or unlimited; time limit of a request and workers, if set",
    "client.placement": "cores reserved for client and server",
    "client.stamps": "who says when bytes came: the kernel, or the load engine as it reads them",
}
"""Every sealed run coordinate with a one-line meaning. Order is the order of printing."""

_ENGINE = ("runtime.", "model.", "parallelism.", "hardware.")
CAUSES: dict[str, tuple[str, ...]] = {
    "runtime.packages": ("runtime.name", "runtime.version", "hardware."),
    "runtime.effective_config": _ENGINE,
    "runtime.kv_capacity_tokens": _ENGINE,
}
"""Facts about an engine that follow from what is declared of it, and from which declared differences each can follow (beginnings of names).
Another engine, version or accelerator brings another set of packages; other arguments do not, and what is sent changes none of the three.
Everything else that two engines differ in is either declared of them (name, version, arguments, environment) or must be equal."""

CONSEQUENCES: frozenset[str] = frozenset(CAUSES)
"""The closed list of facts that may differ *by consequence* of a declared difference (DESIGN 9). Never dtype, model or workload."""


class RunCoordinates(BaseModel):
    """All coordinates of one run; a missing key is refused so that absence never passes for equality."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    coordinates: dict[str, Coordinate]

    def model_post_init(self, _context: object) -> None:
        """Check that exactly the registered coordinates are present."""
        missing = RUN_COORDINATES.keys() - self.coordinates.keys()
        extra = self.coordinates.keys() - RUN_COORDINATES.keys()
        if missing or extra:
            raise ValueError(f"missing={sorted(missing)} extra={sorted(extra)}: coordinates must be exactly the registered ones")
