"""A system under test in words: what is pinned, how an arm configures it, one fact about it. Floor 0: runtimes read it, records keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

EvidenceClass = Literal["measured", "synthetic", "source_reported", "imported"]


TEXT_PARTS = ("text_config", "language_config", "llm_config")
"""Where models that also see or hear keep what concerns their tokens, by the names that both engines look for."""


def embedding_size(config: Mapping[str, object]) -> int | None:
    """Token ids that the model of a ``config.json`` has a row for; None where it does not say. One id beyond it fails the request, or ends
    the server."""
    parts = (config, *(part for name in TEXT_PARTS if isinstance(part := config.get(name), Mapping)))
    sizes = (part.get("vocab_size") for part in parts)
    return next((size for size in sizes if isinstance(size, int) and not isinstance(size, bool) and size > 0), None)


class Frozen(BaseModel):
    """Base of every spec model: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelPin(Frozen):
    """The model every arm must serve."""

    id: str = Field(description="Name of the model, as the server is asked to serve it")
    revision: str | None = Field(None, description="Revision or content digest")
    dtype: str = Field(description="Element type, e.g. bfloat16")
    quantization: str = Field("none", description="Quantization scheme")


class HardwarePin(Frozen):
    """The hardware the server must run on; null means not pinned and is recorded as observed."""

    gpu: str | None = Field(None, description="Accelerator model, or `none`")
    count: int | None = Field(None, description="Number of accelerators", ge=0)
    driver: str | None = Field(None, description="Driver version prefix")
    cpu: str | None = Field(None, description="CPU model substring")
    cores: int | None = Field(None, description="Cores of the host", ge=1)


class Disaggregation(Frozen):
    """How many servers have which role, where prefill and decode are served apart."""

    prefill: int = Field(ge=0, description="Servers that prefill")
    decode: int = Field(ge=0, description="Servers that decode")
    connector: str | None = Field(None, description="What carries the cache between them, as the runtime calls it")


class ParallelismPin(Frozen):
    """How the model is split, and how many servers stand behind one address."""

    tensor: int = Field(1, ge=1, description="Tensor-parallel degree")
    pipeline: int = Field(1, ge=1, description="Pipeline-parallel degree")
    data: int = Field(1, ge=1, description="Data-parallel degree")
    expert: int = Field(1, ge=1, description="Expert-parallel degree")
    replicas: int | None = Field(None, ge=1, description="Servers with the whole model behind one address; null: not pinned")
    disaggregation: Disaggregation | None = Field(None, description="Servers by role; null: each both prefills and decodes")


class Pins(Frozen):
    """Everything that must hold for every run of an arm."""

    model: ModelPin
    hardware: HardwarePin = HardwarePin()
    parallelism: ParallelismPin = ParallelismPin()


class Arm(Frozen):
    """One system configuration under test, as resolved."""

    name: str
    runtime: str = Field(description="vllm, sglang, reference or endpoint")
    version: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    base_url: str | None = Field(None, description="Only for endpoint: where it is served")
    declared: tuple[str, ...] = Field((), description="Coordinate names this arm declares as treatment, e.g. runtime.args, model.dtype")
    attested: dict[str, Any] = Field(default_factory=dict, description="Coordinates the user vouches for (endpoint only)")
    metrics: str | None = Field(None, description="Only for endpoint: runtime whose counters its metrics page carries; null: not read")
    members: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="Only for endpoint: addresses behind it by role: replicas, prefill, decode"
    )


class Fact(Frozen):
    """One fact. ``value`` null: ``reason`` says why it cannot be known."""

    value: Any = None
    reason: str | None = None
    source: str = Field("", description="where it was read: /proc/cpuinfo, GET /v1/models, server log, ...")
