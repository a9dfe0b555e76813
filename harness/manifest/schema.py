"""The manifest as a whole: question, pins, arms, objectives, windows, load, replication and the claim (DESIGN 4)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.manifest.fairness import FairnessSection
from harness.manifest.fields import (
    Core,
    Duration,
    Factor,
    FormatNumber,
    Fraction,
    LoadValue,
    ModelId,
    PositiveDuration,
    Rate,
    Scalar,
    Section,
    Shorthand,
    Size,
    Slug,
)
from harness.manifest.units import DURATION_PATTERN
from harness.manifest.workload import ClientName, Workload
from harness.record.spec import Metric, PercentileRule

Short = Annotated[str, Field(min_length=1, max_length=200)]
Reason = Annotated[str, Field(min_length=10, max_length=1000)]
Degree = Annotated[int, Field(ge=1, le=4096)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]


class ModelPin(Section):
    """The model that every arm serves."""

    id: ModelId = Field(description="Name of the model, NAME or ORG/NAME; never a path")
    revision: Short | None = Field(None, description="Revision or content digest; quote it when it is all digits")
    dtype: Short = Field(description="Element type of weights and activations, e.g. bfloat16")
    quantization: Short = Field("none", description="Quantization scheme, or none")


class HardwarePin(Section):
    """The hardware that every run needs; what is left out is recorded as observed."""

    gpu: Short | None = Field(None, description="Accelerator model, or none for a CPU server")
    count: int | None = Field(None, ge=0, le=65536, description="Number of accelerators")
    driver: Short | None = Field(None, description="Driver version prefix, quoted")
    cpu: Short | None = Field(None, description="Part of the CPU model's name")
    cores: int | None = Field(None, ge=1, le=4096, description="Cores of the host")


class Disaggregation(Section):
    """Prefill and decode on servers of their own."""

    prefill: int = Field(ge=0, le=4096, description="Servers that prefill")
    decode: int = Field(ge=0, le=4096, description="Servers that decode")
    connector: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")] | None = Field(
        None, description="What carries the cache between them, as the runtime calls it: NixlConnector, mooncake, nixl"
    )


class ParallelismPin(Section):
    """How the model is split over accelerators and servers."""

    tensor: Degree = Field(1, description="Tensor-parallel degree")
    pipeline: Degree = Field(1, description="Pipeline-parallel degree")
    data: Degree = Field(1, description="Data-parallel degree")
    expert: Degree = Field(1, description="Expert-parallel degree")
    replicas: Degree | None = Field(None, description="Servers with the whole model behind one address; default: 1 of what we start")
    disaggregation: Disaggregation | None = Field(None, description="Servers by role, where prefill and decode are served apart")


class Pins(Section):
    """Everything that must hold for every run of every arm, unless an arm overrides it on purpose."""

    model: ModelPin = Field(description="The model that is served")
    hardware: HardwarePin = Field(HardwarePin(), description="The hardware it is served on")
    parallelism: ParallelismPin = Field(ParallelismPin(), description="How the model is split")


class ModelOverride(Section):
    """Model pins that one arm changes on purpose."""

    id: ModelId | None = Field(None, description="Another model")
    revision: Short | None = Field(None, description="Another revision")
    dtype: Short | None = Field(None, description="Another element type")
    quantization: Short | None = Field(None, description="Another quantization scheme")


class ParallelismOverride(Section):
    """Parallelism pins that one arm changes on purpose."""

    tensor: Degree | None = Field(None, description="Another tensor-parallel degree")
    pipeline: Degree | None = Field(None, description="Another pipeline-parallel degree")
    data: Degree | None = Field(None, description="Another data-parallel degree")
    expert: Degree | None = Field(None, description="Another expert-parallel degree")
    replicas: Degree | None = Field(None, description="Another number of servers behind one address")
    disaggregation: Disaggregation | None = Field(None, description="Another split into roles")


class PinsOverride(Section):
    """What an arm pins differently; each such pin is a declared difference of the arm."""

    model: ModelOverride = Field(ModelOverride(), description="Model pins that differ")
    hardware: HardwarePin = Field(HardwarePin(), description="Hardware pins that differ")
    parallelism: ParallelismOverride = Field(ParallelismOverride(), description="Parallelism pins that differ")


Url = Annotated[str, Field(max_length=500)]


class Members(Section):
    """The servers behind an endpoint's address; each is asked whether it serves, so that their number is seen and not only said."""

    replicas: tuple[Url, ...] = Field((), max_length=4096, description="Addresses of servers with the whole model")
    prefill: tuple[Url, ...] = Field((), max_length=4096, description="Addresses of servers that prefill")
    decode: tuple[Url, ...] = Field((), max_length=4096, description="Addresses of servers that decode")

    def given(self) -> dict[str, tuple[str, ...]]:
        """Addresses by role, without roles that nobody has."""
        return {role: urls for role in ("replicas", "prefill", "decode") if (urls := getattr(self, role))}


class Arm(Section):
    """One system configuration under test."""

    runtime: Literal["vllm", "sglang", "reference", "endpoint"] = Field(
        description="What serves: one of the runtimes this instrument drives"
    )
    version: Short | None = Field(None, description="Version of the runtime, quoted when it looks like a number")
    args: dict[str, Scalar] = Field({}, max_length=200, description="Arguments of the server without leading dashes; true sets a flag")
    env: dict[str, str] = Field({}, max_length=100, description="Environment of the server; only what the runtime allows, never a secret")
    url: str | None = Field(None, max_length=500, description="Only for endpoint: where it is served, http(s)://host[:port][/path]")
    pins: PinsOverride = Field(PinsOverride(), description="Pins that this arm changes on purpose")
    without_clients: tuple[ClientName, ...] = Field(
        (), max_length=1000, description="Clients whose requests this arm is not sent: a control, shown beside its like and never ranked"
    )
    metrics: Literal["vllm", "sglang", "reference"] | None = Field(
        None, description="Only for endpoint: whose counters its /metrics page carries; left out, the page is not read"
    )
    attest: dict[str, Scalar] = Field(
        {}, max_length=60, description="Only for endpoint: run coordinates you vouch for; printed on every result"
    )
    members: Members = Field(Members(), description="Only for endpoint: the servers behind its address")


class TbtLimit(Section):
    """The gap limit between tokens and how it is applied."""

    limit: PositiveDuration = Field(description="Longest allowed gap")
    rule: Literal["every", "mean", "p99", "top10"] = Field(
        "every", description="Which gaps must keep it: every one, their mean (TPOT), the 99th percentile, or the mean of the longest tenth"
    )


Tbt = Annotated[TbtLimit, Shorthand("limit", {"type": "string", "pattern": DURATION_PATTERN})]


class Limits(Section):
    """A joint predicate on one request; a limit left out is not part of it."""

    ttft: PositiveDuration | None = Field(None, description="Longest time from the intended arrival to the first token")
    tbt: Tbt | None = Field(None, description="Longest gap between tokens: a duration, or {limit, rule}")
    e2e: PositiveDuration | None = Field(None, description="Longest time from the intended arrival to the last token")


class Slo(Limits):
    """The service level objective a request is judged by."""

    per_class: dict[Slug, Limits] = Field({}, max_length=64, description="Other limits for the requests of one class")


class Window(Section):
    """How long a run lasts: load flows through all three parts, only arrivals in the middle one are the cohort."""

    warm_up: Duration = Field(description="Load before the measured window")
    measured: PositiveDuration = Field(description="The measured window; 10m or more for publication")
    drain: Duration = Field(description="Load after it, long enough for every request that could still become valid")


class CapacityStages(Section):
    """A second stage whose size the spread of the first decides (Stein), so that the interval comes to a width declared before the run."""

    half_width: Fraction = Field(description="Relative half-width of the interval that is aimed at")
    most: int = Field(ge=3, le=1000, description="Replicates at most, both stages together; more than replicates.count")


class CapacitySearch(Section):
    """Find the largest load at which the share of requests within the SLO is still enough."""

    start: LoadValue = Field(description="Where doubling starts: a rate such as 1/s, or a compression")
    limit: LoadValue = Field(description="Where the search gives up, in the same unit; no run is made at a higher load")
    attainment: Fraction = Field(description="Share of requests that must be within the SLO")
    resolution: Fraction = Field(0.05, description="Relative width of the bracket at which locating stops")
    grid: int = Field(5, ge=3, le=33, description="Load points around the bracket that are then measured afresh")
    step: Fraction = Field(0.05, description="Relative distance of neighbouring load points of the grid")
    widen: int = Field(6, ge=0, le=64, description="Load points that may be added where a replicate does not cross within the grid")
    halvings: int = Field(6, ge=0, le=20, description="How often the start may be halved when it fails already")
    spare: int = Field(
        2, ge=0, le=20, description="Locating runs that may be lost to a failed gate; a lost run of the grid ends the search"
    )
    method: Literal["isotonic", "logit"] = Field("isotonic", description="How a replicate's curve is crossed: falling fit, or a logit line")
    confidence: Annotated[Fraction, Field(gt=0.5)] = Field(
        0.95, description="Level of the interval, and of what is certified at a load point"
    )
    stages: CapacityStages | None = Field(None, description="A second stage of replicates; without it their number is fixed")
    servers: Literal["run", "replicate"] = Field(
        "run",
        description="A server process for each run, or one for all load points of a replicate (its cache is flushed between them)",
    )


class Load(Section):
    """The load axis; exactly one of the three."""

    time_compression: tuple[Factor, ...] | None = Field(
        None, min_length=1, max_length=64, description="Trace time divided by each factor; keeps the burst shape"
    )
    rate: tuple[Rate, ...] | None = Field(
        None, min_length=1, max_length=64, description="Requests per second of a synthetic arrival process"
    )
    capacity: CapacitySearch | None = Field(None, description="Search for capacity instead of fixed points")


class Replicates(Section):
    """How often every cell is run, and what changes between runs."""

    count: int = Field(ge=1, le=1000, description="Runs of each cell")
    server_starts: int | None = Field(None, ge=1, le=1000, description="Server processes they are spread over; default: one each")
    order: Literal["interleaved", "sequential"] = Field("interleaved", description="Blocks of all cells in drawn order, or cell after cell")
    vary: Literal["none", "window", "seed"] = Field(
        "window", description="none: the same load again (E1); window: another slice of the trace; seed: other random draws (E2)"
    )
    seed: Seed = Field(description="Root of every random draw in the campaign")


class Rank(Section):
    """The claim, declared before the run."""

    metric: Literal[Metric, "capacity"] = Field(description="The one figure arms are ranked by")
    at: LoadValue | None = Field(
        None, description="Load point the ranking is made at: a compression, or a rate such as 5/s; default: the only one"
    )
    against: Metric | None = Field(None, description="Second figure: arms and loads are set against both, and a front is claimed")
    margin: Fraction = Field(description="Differences within it count as equivalent; relative, absolute for attainment")
    attainment: Fraction = Field(0.9, description="Attainment target printed beside the claim; of a capacity, the one that is searched for")
    percentile_rule: PercentileRule = Field("nearest_rank", description="How percentiles are read off a sample")
    confidence: Annotated[Fraction, Field(gt=0.5)] = Field(0.95, description="Simultaneous confidence of the verdicts")


class Fleet(Section):
    """More than one load-generating process."""

    mode: Literal["processes", "ray"] = Field("processes", description="Workers on this host, or actors on a Ray cluster")
    workers: int = Field(1, ge=1, le=4096, description="How many share the schedule")
    memory: Size | None = Field(None, description="Only for ray: memory that is reserved for each worker on its node")


class Client(Section):
    """The load generator itself."""

    concurrency_cap: int | None = Field(None, ge=1, le=1_000_000, description="Most requests in flight; queueing behind it counts in TTFT")
    request_timeout: PositiveDuration | None = Field(None, description="Deadline of one request; a timeout is an outcome, never dropped")
    cpus: tuple[Core, ...] = Field((), max_length=256, description="Cores reserved for the load engine")
    server_cpus: tuple[Core, ...] = Field((), max_length=4096, description="Cores the server is held to")
    spool_cpus: tuple[Core, ...] = Field((), max_length=256, description="Cores of the process that writes the record")
    fleet: Fleet | None = Field(None, description="Spread the load over several workers")


class Waiver(Section):
    """A gate waived in writing; printed on every result."""

    gate: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")] = Field(description="Code of the gate")
    reason: Reason = Field(description="Why the claim stands without it, in a sentence")


class Manifest(Section):
    """One measurement, complete: what is asked, what is held fixed, what differs, what is sent, and what will be claimed."""

    trigpoint: FormatNumber = Field(description="Version of this manifest format")
    question: Annotated[str, Field(min_length=3, max_length=1000)] = Field(
        description="What the measurement should answer, in one sentence"
    )
    name: Slug | None = Field(None, description="Name of the campaign and of its results folder; default: the file's name")
    pins: Pins = Field(description="Coordinates that are held fixed")
    arms: dict[Slug, Arm] = Field(min_length=1, max_length=64, description="The treatment: configurations under test by name")
    workload: Workload = Field(description="What is sent")
    slo: Slo | None = Field(None, description="What a request must keep to count as valid")
    window: Window = Field(description="How long a run lasts")
    load: Load = Field(description="How hard the system is driven")
    fairness: FairnessSection | None = Field(None, description="How it is measured who got how much; default: labelled defaults")
    replicates: Replicates = Field(description="How often, and what changes between runs")
    rank: Rank | None = Field(None, description="The claim; without it results are shown and never ranked")
    client: Client = Field(Client(), description="The load generator itself")
    host_profile: Literal["container-cpu", "gpu"] = Field(
        "container-cpu", description="Which checks of the environment apply to this kind of host"
    )
    waivers: tuple[Waiver, ...] = Field((), max_length=64, description="Gates waived in writing")
    on_pin_mismatch: Literal["stop", "run-unranked"] = Field(
        "stop", description="When a pin does not match what is found: stop before load, or run and never rank"
    )
