"""The resolved, frozen description of one run: all that analysis needs, and nothing that depends on the machine that reads it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from harness.record.fairness import Fairness
from harness.record.schema import FORMAT_MAJOR, FORMAT_MINOR, MEASUREMENT_PROTOCOL
from harness.record.search import Search
from harness.system import Arm, EvidenceClass, Frozen, HardwarePin, ModelPin, ParallelismPin, Pins

__all__ = [
    "Arm",
    "CertificateRef",
    "Estimand",
    "EvidenceClass",
    "Fairness",
    "Frozen",
    "HardwarePin",
    "LoadPoint",
    "Metric",
    "ModelPin",
    "OutputControl",
    "ParallelismPin",
    "PercentileRule",
    "Pins",
    "Probe",
    "Rank",
    "Replication",
    "RunSpec",
    "Slo",
    "TbtRule",
    "TraceRef",
    "Waiver",
    "Window",
    "WorkloadSpec",
]

OutputControl = Literal["natural", "capped", "forced", "client_stop"]
Estimand = Literal["E1", "E2"]
TbtRule = Literal["every", "mean", "p99", "top10"]
PercentileRule = Literal["nearest_rank", "linear"]
Metric = Literal[
    "goodput",
    "attainment",
    "ttft_p50",
    "ttft_p95",
    "ttft_p99",
    "tbt_p50",
    "tbt_p95",
    "tbt_p99",
    "tpot_p50",
    "e2e_p50",
    "e2e_p95",
    "e2e_p99",
    "request_throughput",
    "token_throughput",
    "jain_service",
    "jain_attainment",
    "attainment_least",
    "service_gap",
    "windowed_gap_mean",
    "windowed_gap_max",
]


class LoadPoint(Frozen):
    """Where on the load axis a cell sits."""

    kind: Literal["time_compression", "rate"]
    value: float = Field(gt=0, description="Compression factor, or requests per second")

    def label(self) -> str:
        """Stable short name used in folder names and reports."""
        return f"{'x' if self.kind == 'time_compression' else 'rate-'}{self.value:g}"


class Slo(Frozen):
    """A joint predicate on one request (DESIGN 6). Null limit: not part of the predicate. Limits in ns."""

    ttft_ns: int | None = None
    tbt_ns: int | None = None
    tbt_rule: TbtRule = "every"
    e2e_ns: int | None = None


class Window(Frozen):
    """Half-open measured window [warm_up, warm_up + measured) on the run's clock, then the drain. Load continues through the drain."""

    warm_up_ns: int = Field(ge=0)
    measured_ns: int = Field(gt=0)
    drain_ns: int = Field(ge=0)

    @property
    def start_ns(self) -> int:
        """First instant of the measured window."""
        return self.warm_up_ns

    @property
    def stop_ns(self) -> int:
        """First instant after the measured window."""
        return self.warm_up_ns + self.measured_ns

    @property
    def end_ns(self) -> int:
        """When the drain ends and open requests are closed."""
        return self.stop_ns + self.drain_ns


class TraceRef(Frozen):
    """Which trace, with its licence; null trace when arrivals and lengths are synthetic."""

    format: str
    name: str
    sha256: str
    licence: str
    attribution: str


class WorkloadSpec(Frozen):
    """What was planned to be sent."""

    trace: TraceRef | None
    window_s: tuple[float, float] | None = Field(None, description="Part of the trace used by this replicate, s of trace time")
    transforms: tuple[dict[str, Any], ...] = Field((), description="Chain, in order: {name, parameters...}")
    arrivals: dict[str, Any] = Field(description="Arrival process: {process: trace|constant|poisson|gamma, ...}")
    loop: str = "open"
    users: int | None = Field(None, description="How many send in a closed loop")
    failed_pause_ns: int | None = Field(
        None, ge=0, description="Closed loop: least pause after a request without a complete answer; null: nothing follows such a request"
    )
    sessions: dict[str, Any] | None = Field(None, description="How conversations are replayed: think_s, think_limit_s, history, max_turns")
    tenants: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Clients by name: weight, share, priority, request_class")
    cancellations: dict[str, Any] | None = Field(None, description="Planned cancellations: share, after_s")
    prompts: dict[str, Any] = Field(description="Prompt source and parameters")
    api: Literal["completions", "chat", "generate"] = "completions"
    chat_overhead: int | None = Field(None, ge=0, description="Tokens that the server's template adds to each chat prompt; null: not known")
    without_clients: tuple[str, ...] = Field((), description="Clients whose requests this arm is not sent, for a run without a neighbour")
    output_length: OutputControl
    max_tokens: int | None = Field(None, description="Declared maximum, for capped and client_stop")
    cache: Literal["cold", "warm", "as_trace"] = "cold"
    prefix_sharing_planned: bool = False
    digest: str = Field(description="Content digest of the schedule, hex sha256")
    bodies_digest: str | None = Field(None, description="sha256 over every request body in order; differs where a served name does")
    tokenizer_digest: str
    seed: int = Field(description="Root seed of this replicate's dimensions")


class Replication(Frozen):
    """How the campaign repeats."""

    count: int = Field(ge=1)
    server_starts: int = Field(ge=1)
    order: Literal["interleaved", "sequential"] = "interleaved"
    vary: Literal["none", "window", "seed"] = "window"

    def start_of(self, replicate: int) -> int:
        """Server start of a replicate within its cell: consecutive groups whose sizes differ by at most one share one."""
        return replicate * self.server_starts // self.count


class Rank(Frozen):
    """The claim declared before the run."""

    metric: Metric | Literal["capacity"]
    against: Metric | None = Field(None, description="Second figure, for the Pareto front; null: none was declared")
    at: float | None = Field(None, description="Load value the ranking is made at; null: the only load point")
    margin: float = Field(gt=0, lt=1, description="Relative margin; absolute for attainment")
    attainment: float = Field(0.9, gt=0, lt=1, description="Attainment target printed beside the claim")
    percentile_rule: PercentileRule = "nearest_rank"
    confidence: float = Field(0.95, gt=0.5, lt=1)


class Probe(Frozen):
    """What a run of a capacity search is for. Runs that locate are discarded: they say where to look and enter no number."""

    phase: Literal["locate", "grid"]
    search: Search = Field(description="The procedure as declared; the same for every arm")

    @property
    def discarded(self) -> bool:
        """Whether the run's data are thrown away."""
        return self.phase == "locate"


class Waiver(Frozen):
    """A gate waived in writing; printed on every result."""

    gate: str
    reason: str = Field(min_length=10)


class CertificateRef(Frozen):
    """The calibration certificate the run cites, copied into the record so that analysis needs nothing else."""

    id: str
    protocol: int
    host: str = Field(description="Machine and boot identity it was made on")
    created: str
    rate_ceiling: float = Field(description="Requests per second up to which slip held, req/s")
    event_ceiling: float = Field(description="Events per second reached at that rate")
    slip_p99_ns: int
    ttft_error_p99_ns: int
    tbt_error_p99_ns: int
    stream_ceiling: int | None = Field(None, description="Streams open at once up to which slip held; null: not measured")
    live_event_ceiling: float | None = Field(
        None, description="Events per second decoded as they came, for turns and client_stop; 0: none held"
    )
    workers: int = Field(1, description="Worker processes that were measured")
    cpu_us_per_event: float | None = Field(None, description="CPU time of the workers over events at the rate ceiling")
    memory_per_stream_bytes: int | None = Field(None, description="Worker's memory for each open stream; null: too few were open to tell")


class RunSpec(Frozen):
    """spec.json."""

    format_major: int = FORMAT_MAJOR
    format_minor: int = FORMAT_MINOR
    campaign: str
    campaign_digest: str = Field(description="sha256 of the resolved manifest, canonical JSON")
    question: str
    cell: str
    arm: Arm
    load: LoadPoint
    replicate: int = Field(ge=0)
    server_start: int = Field(ge=0, description="Index of the server process within the arm; replicates that share it share its luck")
    attempt: int = Field(ge=1)
    estimand: Estimand
    evidence_class: EvidenceClass
    pins: Pins
    workload: WorkloadSpec
    slo: Slo
    slo_classes: dict[str, Slo] = Field(default_factory=dict, description="SLO by request class; a class not named here is held to slo")
    window: Window
    fairness: Fairness | None = Field(None, description="How fairness is measured, as declared; null: nothing was, defaults hold")
    replication: Replication
    rank: Rank | None = None
    probe: Probe | None = Field(None, description="Set when the run answers a probe of a capacity search; load is then the probe's")
    waivers: tuple[Waiver, ...] = ()
    host_profile: Literal["container-cpu", "gpu"] = "container-cpu"
    measurement_protocol: int = MEASUREMENT_PROTOCOL
    concurrency_cap: int | None = None
    request_timeout_ns: int | None = None
    workers: int = Field(1, ge=1, description="Processes that share the load")
    fleet: Literal["processes", "ray"] = Field("processes", description="Where they ran: on one host, or on the hosts of a Ray cluster")
    placement: dict[str, list[int]] = Field(default_factory=dict, description="cores by role: client, server")
    certificate: CertificateRef | None = None
    source_digest: str = Field(description="sha256 over this instrument's own source files; provenance only")
    version: str = Field(description="version of this instrument")
