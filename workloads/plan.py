"""The pure description of a workload: what a manifest resolves to, and all that ``workloads.build`` needs beside files and a tokenizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Plan(BaseModel):
    """Base: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TraceSource(Plan):
    """A trace by name and content, found through a search path so that a manifest means the same on every machine."""

    format: str = Field(description="reader name, e.g. azure-2023")
    name: str = Field(description="file name, with or without its ending")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha256 of the file's bytes")


class WindowTransform(Plan):
    """Keep arrivals in [start_s, stop_s) of trace time and shift them to 0."""

    transform: Literal["window"] = "window"
    start_s: float = Field(ge=0)
    stop_s: float = Field(gt=0)


class TimeCompress(Plan):
    """Divide all arrival times by ``factor`` (> 1 is faster); keeps burst shape."""

    transform: Literal["time_compress"] = "time_compress"
    factor: float = Field(gt=0)


class Thin(Plan):
    """Keep each request independently with probability ``keep``; changes burst shape."""

    transform: Literal["thin"] = "thin"
    keep: float = Field(gt=0, le=1)


class ScaleLengths(Plan):
    """Multiply lengths, round half to even, clip to [minimum, maximum]."""

    transform: Literal["scale_lengths"] = "scale_lengths"
    input_factor: float = Field(1.0, gt=0)
    output_factor: float = Field(1.0, gt=0)
    input_minimum: int = Field(1, ge=1)
    output_minimum: int = Field(1, ge=1)
    input_maximum: int | None = Field(None, ge=1)
    output_maximum: int | None = Field(None, ge=1)


Transform = Annotated[WindowTransform | TimeCompress | Thin | ScaleLengths, Field(discriminator="transform")]


class TraceArrivals(Plan):
    """Arrival times as the trace (after its chain) has them."""

    process: Literal["trace"] = "trace"


class ConstantArrivals(Plan):
    """Equal gaps of 1/rate, first arrival at half a gap."""

    process: Literal["constant"] = "constant"
    rate: float = Field(gt=0, description="requests per second")


class PoissonArrivals(Plan):
    """Independent exponential gaps; never rescaled to an exact count or length."""

    process: Literal["poisson"] = "poisson"
    rate: float = Field(gt=0)


class GammaArrivals(Plan):
    """Independent gamma gaps with mean 1/rate and coefficient of variation ``cv``."""

    process: Literal["gamma"] = "gamma"
    rate: float = Field(gt=0)
    cv: float = Field(gt=0)


Arrivals = Annotated[TraceArrivals | ConstantArrivals | PoissonArrivals | GammaArrivals, Field(discriminator="process")]


class LengthDistribution(Plan):
    """Token counts when no trace gives them. constant: ``value``; uniform: integers in [low, high]."""

    kind: Literal["constant", "uniform"]
    value: int | None = Field(None, ge=1)
    low: int | None = Field(None, ge=1)
    high: int | None = Field(None, ge=1)


class Lengths(Plan):
    """Input and output lengths of a synthetic workload."""

    input: LengthDistribution
    output: LengthDistribution


class PromptPlan(Plan):
    """Where prompt tokens come from. random-ids: uniform over ids the tokenizer can produce; text: words of our own, token-exact."""

    source: Literal["random-ids", "text"] = "random-ids"


class OutputPlan(Plan):
    """The four output-length controls (DESIGN 4). ``max_tokens`` is what is declared to the server for capped and client_stop."""

    control: Literal["natural", "capped", "forced", "client_stop"]
    max_tokens: int | None = Field(None, ge=1)


class WorkloadPlan(Plan):
    """Everything that decides what is sent and when. ``horizon_s``: schedule length, warm-up + measured + drain."""

    trace: TraceSource | None
    lengths: Lengths | None = None
    chain: tuple[Transform, ...] = ()
    arrivals: Arrivals
    prompts: PromptPlan = PromptPlan()
    output: OutputPlan
    api: Literal["completions", "chat"] = "completions"
    horizon_s: float = Field(gt=0)
    seed: int = Field(ge=0, description="root seed of this replicate; dimensions are derived from it")
