"""The pure description of a workload: what a manifest resolves to, and all that ``workloads.build`` needs beside files and a tokenizer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Plan(BaseModel):
    """Base: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TraceSource(Plan):
    """A trace by name and content, found through a search path so that a manifest means the same on every machine."""

    format: str = Field(description="reader name, e.g. azure-2023")
    name: str = Field(description="file name, with or without its ending")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="sha256 of the file's bytes")
    options: dict[str, Any] = Field({}, description="options of the reader")

    def __hash__(self) -> int:  # options are a dict: equal sources still hash equal
        return hash((self.format, self.name, self.sha256))


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


class ClipLengths(Plan):
    """Hold lengths to maxima: shorten what is longer, or leave the request out."""

    transform: Literal["clip_lengths"] = "clip_lengths"
    input_maximum: int | None = Field(None, ge=1)
    output_maximum: int | None = Field(None, ge=1)
    on_excess: Literal["clip", "drop"] = "clip"


class Sort(Plan):
    """Order rows by arrival, stably; first arrival moves to 0."""

    transform: Literal["sort"] = "sort"


class Dedupe(Plan):
    """Leave out rows equal to an earlier one in every column."""

    transform: Literal["dedupe"] = "dedupe"


class DropFailed(Plan):
    """Leave out rows that the traced service failed, or that have no output."""

    transform: Literal["drop_failed"] = "drop_failed"


class Jitter(Plan):
    """Add to each arrival an independent uniform draw from [0, grid_s): undoes stamps that were rounded down to a grid."""

    transform: Literal["jitter"] = "jitter"
    grid_s: float = Field(gt=0)


class Retime(Plan):
    """New arrival times at the trace's own mean rate from a renewal process; rows keep their order. Never rescaled to end exactly."""

    transform: Literal["retime"] = "retime"
    process: Literal["poisson", "gamma", "weibull"]
    cv: float = Field(1.0, gt=0)


class Loop(Plan):
    """Play the trace ``times`` times, each pass shifted by its extent; sessions, prefix ids and prompts of a later pass are new ones."""

    transform: Literal["loop"] = "loop"
    times: int = Field(ge=2)


class Tenants(Plan):
    """Merge clients into ``count``, or split each into as many as give ``count``; sessions are never divided."""

    transform: Literal["tenants"] = "tenants"
    count: int = Field(ge=1)
    rule: Literal["merge", "split"]


Transform = Annotated[
    WindowTransform | TimeCompress | Thin | ScaleLengths | ClipLengths | Sort | Dedupe | DropFailed | Jitter | Retime | Loop | Tenants,
    Field(discriminator="transform"),
]


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


class WeibullArrivals(Plan):
    """Independent Weibull gaps with mean 1/rate and coefficient of variation ``cv``."""

    process: Literal["weibull"] = "weibull"
    rate: float = Field(gt=0)
    cv: float = Field(gt=0)


Arrivals = Annotated[TraceArrivals | ConstantArrivals | PoissonArrivals | GammaArrivals | WeibullArrivals, Field(discriminator="process")]
"""When requests arrive; with sessions, when sessions start."""


class Ramp(Plan):
    """Rate at the start and at the end of the run, as multiples of the mean; in a line between, so that they add up to 2."""

    start: float = Field(ge=0, le=2)
    stop: float = Field(ge=0, le=2)


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
    """Where prompt tokens come from.

    ``source`` random-ids: uniform over ids the tokenizer can produce; text: words of our own, token-exact; dataset: texts of a data set.
    ``sharing`` as_trace: prompts begin alike where the trace's prefix ids, or a session's history, say so; none: no two prompts share
    more than chance, whatever the trace says (cache-busting).
    """

    source: Literal["random-ids", "text", "dataset"] = "random-ids"
    sharing: Literal["as_trace", "none"] = "none"
    dataset: TraceSource | None = Field(None, description="only for dataset: a local file of texts, by name and content")


class SessionPlan(Plan):
    """How conversations are replayed.

    ``think_s`` replaces the trace's pauses, ``think_unknown_s`` stands where the trace has none, ``think_limit_s`` caps them, since
    recorded ones can be hours. ``history`` carry: a turn's prompt begins with the earlier turns, prompt and planned answer; none: every
    turn is a prompt of its own. ``max_turns``: most turns of a session, from the first one that the chain of transforms left.
    """

    think_s: float | None = Field(None, ge=0)
    think_unknown_s: float | None = Field(None, ge=0)
    think_limit_s: float | None = Field(None, ge=0)
    history: Literal["carry", "none"] = "carry"
    max_turns: int | None = Field(None, ge=1)


class TenantPlan(Plan):
    """One client: its share of requests when the trace has no clients of its own, and what its requests are sent and judged with."""

    name: str
    share: float | None = Field(None, gt=0, le=1)
    priority: int | None = None
    request_class: str | None = None


class CancelPlan(Plan):
    """A random ``share`` of the requests is given up, each ``after_s`` after its arrival."""

    share: float = Field(gt=0, le=1)
    after_s: float = Field(gt=0)


class OutputPlan(Plan):
    """The four output-length controls (DESIGN 4). ``max_tokens`` is what is declared to the server for capped and client_stop."""

    control: Literal["natural", "capped", "forced", "client_stop"]
    max_tokens: int | None = Field(None, ge=1)


class WorkloadPlan(Plan):
    """Everything that decides what is sent and when. ``horizon_s``: schedule length, warm-up + measured + drain.

    ``loop`` open: every request arrives by the clock, turns of a session too; partly_open: sessions start by the clock, a later turn
    arrives when the one before it has ended and its think time has passed; closed: ``users`` send one request after the other.
    """

    trace: TraceSource | None
    lengths: Lengths | None = None
    loop: Literal["open", "partly_open", "closed"] = "open"
    users: int | None = Field(None, ge=1)
    sessions: SessionPlan | None = None
    tenants: tuple[TenantPlan, ...] = ()
    cancellations: CancelPlan | None = None
    without_clients: tuple[str, ...] = Field((), description="clients whose requests are left out, once every row has its client")
    chain: tuple[Transform, ...] = ()
    arrivals: Arrivals
    ramp: Ramp | None = Field(None, description="how the rate changes over the horizon, whatever process or trace the arrivals are of")
    prompts: PromptPlan = PromptPlan()
    output: OutputPlan
    api: Literal["completions", "chat", "generate"] = "completions"
    horizon_s: float = Field(gt=0)
    seed: int = Field(ge=0, description="root seed of this replicate; dimensions are derived from it")
