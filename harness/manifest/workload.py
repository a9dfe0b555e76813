"""The workload section: trace, lengths, transform chain, arrivals, prompts, output-length control, sessions (DESIGN 4)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema

from harness.manifest.explain import nearest
from harness.manifest.fields import Duration, Factor, Fraction, PositiveDuration, Section, Sha256, Shorthand, Slug, TraceTime, refuse
from workloads import formats

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
"""A token count; ten million is above every context window on offer."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
ClientName = Annotated[str, Field(min_length=1, max_length=200)]
"""A client as its trace calls it: any text, since it becomes no folder."""
Weight = Annotated[float, Field(gt=0, le=1e6)]


def _known_format(value: str) -> str:
    if value not in formats():
        near = nearest(value, list(formats()))
        remedy = f"did you mean {near}?" if near else f"use one of: {', '.join(formats())}"
        raise refuse("unknown_format", f"={value}: no reader of that name", remedy)
    return value


# No enumeration: an installed package may bring a reader of its own.
Format = Annotated[str, AfterValidator(_known_format), WithJsonSchema({"type": "string", "examples": ["azure-2023", "mooncake"]})]
"""Name of a trace reader."""


class TraceFile(Section):
    """A file of a known format by name and content, found through the search path of the machine."""

    format: Format = Field(description="Reader of the file; `trigpoint traces list` names them")
    name: Name = Field(description="File name without folder, with or without its ending")
    sha256: Sha256 = Field(description="sha256 of the file's bytes")
    options: dict[str, Any] = Field({}, max_length=64, description="Options of the reader")


class Trace(TraceFile):
    """The trace that is replayed."""

    window: tuple[TraceTime, TraceTime] | None = Field(None, description="[from, to) in trace time; replicates take their slices from it")


class ConstantLength(Section):
    """Every request has the same length."""

    kind: Literal["constant"] = Field(description="The same for every request")
    value: Tokens = Field(description="Tokens")


class UniformLength(Section):
    """Lengths are drawn evenly from a range."""

    kind: Literal["uniform"] = Field(description="Integers drawn evenly")
    low: Tokens = Field(description="Least tokens")
    high: Tokens = Field(description="Most tokens, included")


Length = Annotated[ConstantLength | UniformLength, Field(discriminator="kind")]


class Lengths(Section):
    """Lengths of a workload without a trace."""

    input: Length = Field(description="Prompt tokens")
    output: Length = Field(description="Output tokens")


class WindowStep(Section):
    """Keep a part of what earlier steps left."""

    transform: Literal["window"] = Field(description="Keep a part")
    from_: TraceTime = Field(alias="from", description="First instant kept")
    to: TraceTime = Field(description="First instant dropped")


class TimeCompressStep(Section):
    """Divide all arrival times."""

    transform: Literal["time-compress"] = Field(description="Divide arrival times; keeps the burst shape")
    factor: Factor = Field(description="Above 1 is faster")


class ThinStep(Section):
    """Keep each request with a probability."""

    transform: Literal["thin"] = Field(description="Keep a random part; changes the burst shape")
    keep: Fraction = Field(description="Share that is kept")


class ScaleLengthsStep(Section):
    """Multiply token counts."""

    transform: Literal["scale-lengths"] = Field(description="Multiply token counts, then hold them to limits")
    input_factor: Factor = Field(1.0, description="Prompt tokens are multiplied by it")
    output_factor: Factor = Field(1.0, description="Output tokens are multiplied by it")
    input_minimum: Tokens = Field(1, description="Least prompt tokens afterwards")
    output_minimum: Tokens = Field(1, description="Least output tokens afterwards")
    input_maximum: Tokens | None = Field(None, description="Most prompt tokens afterwards")
    output_maximum: Tokens | None = Field(None, description="Most output tokens afterwards")


class ClipLengthsStep(Section):
    """Hold token counts to limits."""

    transform: Literal["clip-lengths"] = Field(description="Hold token counts to limits")
    input_maximum: Tokens | None = Field(None, description="Most prompt tokens")
    output_maximum: Tokens | None = Field(None, description="Most output tokens")
    on_excess: Literal["clip", "drop"] = Field("clip", description="Shorten what is too long, or leave the request out")


class SortStep(Section):
    """Put rows in order of arrival."""

    transform: Literal["sort"] = Field(description="Order rows by arrival")


class DedupeStep(Section):
    """Leave out exact repetitions of a row."""

    transform: Literal["dedupe"] = Field(description="Leave out exact repetitions of a row")


class DropFailedStep(Section):
    """Leave out what the traced service failed."""

    transform: Literal["drop-failed"] = Field(description="Leave out requests that failed, or have no output")


class JitterStep(Section):
    """Spread arrivals inside the trace's own time grid."""

    transform: Literal["jitter"] = Field(description="Spread arrivals inside the trace's time grid")
    grid: PositiveDuration = Field(description="Width of the grid")


class RetimeStep(Section):
    """Draw new arrival times at the trace's own mean rate."""

    transform: Literal["retime"] = Field(description="New arrival times at the trace's mean rate")
    process: Literal["poisson", "gamma", "weibull"] = Field(description="Process they are drawn from")
    cv: Factor = Field(1.0, description="Coefficient of variation of the gaps")


class LoopStep(Section):
    """Repeat the trace from its start."""

    transform: Literal["loop"] = Field(description="Repeat the trace from its start")
    times: int = Field(ge=2, le=10_000, description="How often it is played")


class TenantsStep(Section):
    """Merge or split the clients of a trace."""

    transform: Literal["tenants"] = Field(description="Merge or split clients")
    count: int = Field(ge=1, le=1_000_000, description="Clients afterwards")
    rule: Literal["merge", "split"] = Field(description="Merge into fewer, or split into more")


Step = Annotated[
    WindowStep
    | TimeCompressStep
    | ThinStep
    | ScaleLengthsStep
    | ClipLengthsStep
    | SortStep
    | DedupeStep
    | DropFailedStep
    | JitterStep
    | RetimeStep
    | LoopStep
    | TenantsStep,
    Field(discriminator="transform"),
]


class Ramp(Section):
    """How the rate of arrivals changes over a run, in a line."""

    from_: Annotated[float, Field(ge=0, le=2)] = Field(alias="from", description="Rate when the run starts, as a multiple of its mean")
    to: Annotated[float, Field(ge=0, le=2)] = Field(description="Rate when the drain ends; from and to add up to 2")


class Arrivals(Section):
    """When requests arrive, or sessions start."""

    process: Literal["trace", "constant", "poisson", "gamma", "weibull"] = Field(
        description="The trace's own times, or a process at the load's rate"
    )
    cv: Factor | None = Field(None, description="Only for gamma and weibull: coefficient of variation of the gaps")
    ramp: Ramp | None = Field(None, description="A rate that rises or falls over the run; the load sets its mean")


class Prompts(Section):
    """Where prompt tokens come from."""

    source: Literal["random-ids", "text", "dataset"] = Field("random-ids", description="Source of prompt tokens")
    sharing: Literal["as-trace", "none"] = Field(
        "none", description="as-trace: prompts begin alike where prefix ids or history say so; none: no two share more than chance"
    )
    dataset: TraceFile | None = Field(None, description="Only for dataset: the file its texts come from")


class OutputLength(Section):
    """How the length of an answer is decided; a coordinate, because a length told to the server leaks the answer."""

    control: Literal["natural", "capped", "forced", "client_stop"] = Field(
        description="natural: the model ends; capped: a maximum; forced: told the length (oracle-visible); client_stop: the client ends"
    )
    max_tokens: Tokens | None = Field(None, description="Declared maximum, for capped and client_stop")


class Sessions(Section):
    """Turns of one conversation."""

    think_time: Duration | None = Field(None, description="Pause before every later turn; default: the trace's own")
    think_unknown: Duration | None = Field(None, description="Pause where the trace has none")
    think_limit: Duration | None = Field(None, description="Longest pause that is kept; recorded ones can last hours")
    history: Literal["carry", "none"] = Field("carry", description="Whether earlier turns are sent again")
    max_turns: int | None = Field(None, ge=1, le=10_000, description="Most turns of a session")


class Tenant(Section):
    """One client of the service."""

    weight: Weight = Field(1.0, description="Weight of its share in the fairness measures")
    share: Fraction | None = Field(None, description="Share of the requests; default: as the trace says")
    priority: int | None = Field(None, ge=-1_000_000, le=1_000_000, description="Priority sent with its requests")
    slo_class: Slug | None = Field(None, description="Class of slo.per-class its requests are judged by")


class Cancellations(Section):
    """Requests that the plan cancels."""

    share: Fraction = Field(description="Share of the requests, drawn at random")
    after: Duration = Field(description="Time from arrival to the cancellation")


class Workload(Section):
    """Everything that decides what is sent and when."""

    trace: Trace | None = Field(None, description="The trace that is replayed; leave out for a synthetic workload")
    lengths: Lengths | None = Field(None, description="Lengths when there is no trace")
    transforms: tuple[Step, ...] = Field((), max_length=32, description="Chain of changes to the trace, in order, after its window")
    arrivals: Arrivals = Field(Arrivals(process="trace"), description="When requests arrive")
    prompts: Prompts = Field(Prompts(), description="Where prompt tokens come from")
    api: Literal["completions", "chat", "generate"] = Field(
        "completions", description="Interface the requests use; generate is SGLang's own"
    )
    output_length: Annotated[
        OutputLength, Shorthand("control", {"type": "string", "enum": ["natural", "capped", "forced", "client_stop"]})
    ] = Field(description="How the length of an answer is decided: a control, or {control, max-tokens}")
    cache: Literal["cold", "warm", "as_trace"] = Field(
        "cold",
        description="State of the server's prefix cache when a replicate's load starts. cold: empty (flushed, or a new process where the "
        "runtime cannot flush). warm: emptied, then every prompt of the replicate was sent once for one token. as_trace: what earlier "
        "replicates on the same server start left",
    )
    loop: Literal["open", "partly_open", "closed"] = Field("open", description="open: arrivals never wait; closed: users wait for answers")
    users: int | None = Field(None, ge=1, le=1_000_000, description="Only for closed: how many users")
    sessions: Sessions | None = Field(None, description="Conversations of several turns")
    tenants: dict[ClientName, Tenant] = Field({}, max_length=10_000, description="Clients by name")
    cancellations: Cancellations | None = Field(None, description="Requests that the plan cancels")
