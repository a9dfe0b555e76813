"""The words analysis speaks: verdicts, figures, outcomes, comparisons, rankings, refusals. Data only, no rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from analysis.effect_model import Effect as Effect

if TYPE_CHECKING:  # they are made of these words
    from analysis.bins import TimeBins
    from analysis.capacity_campaign import ArmCapacity
    from analysis.dialect_model import Said
    from analysis.effect_model import Front
    from analysis.fairness_model import CellFairness, Neighbour
    from analysis.memory import MemoryUse
    from analysis.server_side import ServerSide


class Verdict(StrEnum):
    """The three answers of a check. Missing data is UNKNOWN."""

    PASS = "PASS"  # noqa: S105
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"


class Claim(StrEnum):
    """What a gate protects (DESIGN 8)."""

    INTEGRITY = "integrity"
    LATENCY = "latency"
    GOODPUT = "goodput"
    CAPACITY = "capacity"
    FAIRNESS = "fairness"
    COMPARISON = "comparison"


class Outcome(StrEnum):
    """The closed partition of offered requests (F35 refined, DESIGN 6)."""

    VALID = "valid"
    MISS = "miss"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELLED = "cancelled"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One gate's answer. ``measured`` holds the numbers the verdict was taken from, each beside its limit."""

    code: str
    verdict: Verdict
    reason: str
    protects: tuple[Claim, ...]
    remedy: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    scope: str = ""
    """run path, cell or campaign the answer is about"""
    waived: str | None = None
    """the written reason, when the manifest waives this gate"""

    @property
    def lets_through(self) -> bool:
        """Only PASS, or a written waiver, lets a claim through."""
        return self.verdict is Verdict.PASS or self.waived is not None


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval; an infinite end means no finite bound exists at this n. ``unit`` of inference is named."""

    low: float
    high: float
    level: float
    method: str
    n: int
    unit_of_inference: Literal["replicate", "request", "hierarchical"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A reported number, or the reason there is none. Status ``withheld``: exists, n too small; ``undefined``: does not exist;
    ``unknown``: cannot be known from this record.
    """

    metric: str
    unit: str
    value: float | None
    status: Literal["ok", "withheld", "undefined", "unknown"]
    n: int
    population: str
    denominator: str = ""
    reason: str = ""
    percentile_rule: str = "not_applicable"
    interval: Interval | None = None
    diagnostic: bool = False
    """completion-conditioned or made for comparison with other tools; never ranked"""
    estimand: str = ""
    """E1: of this trace on this system; E2: of this kind of load; filled in where a cell is analyzed"""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Counts over the offered cohort; ``offered`` is counted apart and must equal the sum.

    ``not_due``: requests of the whole run that never arrived, by how they ended; they are in no cohort.
    """

    offered: int
    counts: Mapping[Outcome, int]
    not_due: Mapping[str, int] = field(default_factory=dict)

    def closes(self) -> bool:
        """N_off equals the sum of the classes."""
        return self.offered == sum(self.counts.values())

    def folded(self) -> Mapping[str, int]:
        """The seed's four-class form (F35): failed folds into open, planned cancellations leave the cohort."""
        c = self.counts
        return {
            "valid": c[Outcome.VALID],
            "miss": c[Outcome.MISS],
            "rej": c[Outcome.REJECTED],
            "open": c[Outcome.OPEN] + c[Outcome.FAILED],
        }


@dataclass(frozen=True, slots=True)
class Tally:
    """A count that may be unknown: then ``value`` is None and ``reason`` says why. ``n``: how many requests it covers.

    With a value, ``reason`` says what the count lacks, if anything.
    """

    value: int | None
    n: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens planned, sent and counted over the whole run, by three witnesses: the plan, the client, the server's usage.

    ``planned`` covers every scheduled request, ``sent`` those handed to the socket, ``counted`` those whose usage the server stated.
    ``output_planned`` is what the trace or the control promised, ``output_received`` what the client counted in the stream.
    """

    input_planned: Tally
    input_sent: Tally
    input_counted: Tally
    output_planned: Tally
    output_received: Tally
    output_counted: Tally


@dataclass(frozen=True, slots=True)
class Reuse:
    """Input tokens that could have come from a prefix cache, and those that did.

    ``possible`` by block size (text): the best a cache of that block size and without limit could do over the requests sent. ``realised``:
    what the server says; ``source`` names its words for it. ``cache``: whether the server has its prefix cache on, off, or did not tell
    (unknown).
    """

    possible: Mapping[str, Tally]
    realised: Tally
    source: str
    cache: str = "unknown"


@dataclass(frozen=True, slots=True)
class Stream:
    """Instants of one kind over the run: how many, per second of it, and how bursty (1 for Poisson). None: too few to say.

    ``cv_gaps``: coefficient of variation of gaps; ``dispersion``: Var N(w)/E N(w) by width.
    """

    count: int
    rate: float
    cv_gaps: float | None
    dispersion: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests of one kind over the whole run: those that arrive by the clock, or those that wait for others.

    ``planned``: the arrivals of the schedule by the clock; of those that wait, when they came due, for the schedule cannot know. ``sent``:
    the sends of the same requests. ``not_due``: those that never arrived, by how they ended.
    """

    kind: Literal["clock", "waiting"]
    scheduled: int
    due: int
    sent: int
    not_due: Mapping[str, int]
    planned_stream: Stream
    sent_stream: Stream


@dataclass(frozen=True, slots=True)
class Sent:
    """Proof of what reached the server. ``server``: growth of its own token counters."""

    arrivals: tuple[Arrivals, ...]
    tokens: Tokens
    server: Mapping[str, Tally]
    reuse: Reuse
    transforms: tuple[Mapping[str, Any], ...] = ()
    """the transform chain as logged when the schedule was built"""


@dataclass(frozen=True, slots=True)
class Group:
    """One client, or one request class, over the replicates of a cell. ``name`` None: requests that bear none.

    ``members``: how many names are folded into this one; more than 1 only for the smallest ones of a long list. ``slo``: what it was held
    to, in words. Figures describe; they carry no interval over replicates and are never ranked.
    """

    by: Literal["client", "request_class"]
    name: str | None
    members: int
    slo: str
    outcomes: Outcomes
    figures: Mapping[str, Figure]
    tokens: Tokens
    reuse: Reuse


@dataclass(frozen=True, slots=True)
class RunAnalysis:
    """Everything said about one replicate. ``series`` holds downsampled arrays for plots (name -> (x, y))."""

    path: str
    cell: str
    arm: str
    replicate: int
    server_start: int
    seal_root: str | None
    outcomes: Outcomes
    figures: Mapping[str, Figure]
    checks: tuple[CheckResult, ...]
    series: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    sent: Sent | None = None
    dialects: tuple[Said, ...] = ()
    """the same run in other tools' words"""
    bins: TimeBins | None = None
    memory: MemoryUse | None = None
    server: ServerSide | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of an SLO as a plot draws it: ``clock`` it holds for, s, and which requests or rule it belongs to, in words."""

    clock: Literal["ttft", "tbt", "e2e"]
    seconds: float
    words: str


@dataclass(frozen=True, slots=True)
class CellAnalysis:
    """One arm at one load over its replicates. Figures carry replicate intervals; ``design_effect`` from attainment, None if unknown."""

    cell: str
    arm: str
    load: str
    estimand: str
    evidence_class: str
    runs: tuple[RunAnalysis, ...]
    outcomes: Outcomes
    figures: Mapping[str, Figure]
    checks: tuple[CheckResult, ...]
    coordinates: Mapping[str, Any]
    """run coordinates merged over replicates plus result coordinates; values are record Coordinates"""
    declared: tuple[str, ...]
    design_effect: float | None
    loop: str = "open"
    groups: tuple[Group, ...] = ()
    fairness: CellFairness | None = None
    without: tuple[str, ...] = ()
    """clients that this cell was not sent: a control of a neighbour experiment, never ranked"""
    limits: tuple[Limit, ...] = ()
    server: ServerSide | None = None
    """over the replicates; figures that describe, and are never ranked"""


Answer = Literal["equal", "differs_by_declaration", "differs_by_consequence", "different", "unknown"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One coordinate of a pair that is not plainly equal."""

    coordinate: str
    a: Any
    b: Any
    answer: Answer
    remedy: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A pair held side by side; ``comparable`` only when nothing is different or unknown."""

    a: str
    b: str
    comparable: bool
    differences: tuple[Difference, ...]
    equal: int
    """how many coordinates are equal"""
    checks: tuple[CheckResult, ...] = ()
    """gates of scope pair: what must hold between the two beside their coordinates"""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason of a refusal."""

    code: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Standing:
    """An arm's place; equal ``rank`` means a tie that is printed as a tie."""

    rank: int
    arm: str
    cell: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Advice:
    """How many replicates a next study needs for ``aim``: advice, never a verdict. None: not known, and ``reason`` says why.

    ``replicates`` and ``server_starts`` are those of the whole study, an arm; ``pilot``: how many replicates it was planned from.
    ``subject``: the pair or cell it is about.
    """

    aim: str
    replicates: int | None
    server_starts: int | None
    pilot: int
    reason: str
    subject: str = ""

    @property
    def more(self) -> int | None:
        """Replicates beyond the pilot's number, at least 0; None when not known."""
        return None if self.replicates is None else max(0, self.replicates - self.pilot)


@dataclass(frozen=True, slots=True)
class Ranking:
    """An emitted ranking. ``title`` names metric, SLO and load."""

    title: str
    metric: str
    standings: tuple[Standing, ...]
    effects: tuple[Effect, ...]
    unranked: tuple[tuple[str, tuple[Reason, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """No ranking, with every reason."""

    title: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class CampaignAnalysis:
    """What a report prints; it decides nothing more."""

    campaign: str
    question: str
    digest: str
    cells: tuple[CellAnalysis, ...]
    comparisons: tuple[Comparison, ...]
    verdict: Ranking | Refusal
    waivers: tuple[tuple[str, str], ...]
    incomplete: tuple[str, ...]
    """planned runs that are missing or cut"""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    capacities: tuple[ArmCapacity, ...] = ()
    """what the searches of a capacity campaign found, by arm; ``cells`` are then the load points of their grids"""
    neighbours: tuple[Neighbour, ...] = ()
    front: Front | None = None
    advice: tuple[Advice, ...] = ()
    """for unresolved pairs and wide intervals: how many replicates next"""
