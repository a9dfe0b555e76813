"""The one-control sensitivity surface (F68-F72): change one declared control of a shared base, and see which ledgers move.

Each output is a function of the controls it names and is handed nothing else, so what must not move cannot. The numbers are consequences of
the declared shape, exact, and no latencies; no output says which value of a control is best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, Final

from analysis.arguments import at_least, at_most, need
from analysis.chunking import chunk_count, equal_history_rows, history_bytes, total_causal_pairs
from analysis.fairness import aging_crossover
from harness.errors import Problem, UsageError

Value = int | bool | Fraction | None
Control = int | bool | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Base:
    """The shape that controls are varied from; the defaults are the seed's base fixture (section 0x0E).

    Rows are logical, bytes those of one row of all layers. ``offered_events``: events by client. ``realized_outputs``: hidden lengths of an
    offline workload (none: unknown), which no online output may read. UsageError, with all reasons, for an impossible shape.
    """

    prompt_rows: int = 16
    chunk_rows: int = 4
    ready_decodes: int = 4
    token_budget: int = 8
    sequence_budget: int = 8
    row_bytes: int = 131_072
    ceiling_rows: int = 28
    live_rows: int = 8
    forecast_rows: int = 5
    low_priority: int = 4
    high_priority: int = 0
    aging_quantum: int = 2
    offered_events: tuple[int, ...] = (8, 4)
    prefix_hit: int = 0
    foreign_ready: bool = True
    realized_outputs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        positive = ("prompt_rows", "chunk_rows", "row_bytes", "forecast_rows", "aging_quantum")
        counted = ("ready_decodes", "token_budget", "sequence_budget", "ceiling_rows", "live_rows", "prefix_hit")
        need(
            at_least(1, **{name: getattr(self, name) for name in positive}),
            at_least(0, **{name: getattr(self, name) for name in counted}),
            at_least(0, **_items("offered_events", self.offered_events)),
            at_least(1, **_items("realized_outputs", self.realized_outputs)),
            at_most(self.ceiling_rows, "the ceiling: more would be reserved than exists", live_rows=self.live_rows),
            at_most(self.prompt_rows, "the prompt: no hit is longer than what it is a prefix of", prefix_hit=self.prefix_hit),
        )


CONTROLS: Final = tuple(f.name for f in fields(Base))
HIDDEN: Final = frozenset({"realized_outputs"})
"""Controls that exist only offline: nothing online may move with them."""


@dataclass(frozen=True, slots=True)
class Output:
    """One ledger entry: unit, formula, the controls it may move with, and the function of just those."""

    name: str
    unit: str
    formula: str
    reads: tuple[str, ...]
    derive: Callable[..., Value]
    offline: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """One output in one case, beside its value at the base. ``may_move``: whether the output reads the control at all."""

    output: str
    base: Value
    value: Value
    may_move: bool

    @property
    def moved(self) -> bool:
        """Whether the value differs from the base's."""
        return self.value != self.base


@dataclass(frozen=True, slots=True)
class Case:
    """One control at one value, everything else as in the base; one reading for each of ``OUTPUTS``, in their order."""

    control: str
    value: Control
    readings: tuple[Reading, ...]

    @property
    def moved(self) -> tuple[str, ...]:
        """Names of the outputs that moved."""
        return tuple(r.output for r in self.readings if r.moved)

    @property
    def must_not_move(self) -> tuple[str, ...]:
        """Names of the outputs that do not read this control."""
        return tuple(r.output for r in self.readings if not r.may_move)


@dataclass(frozen=True, slots=True)
class Surface:
    """All cases around one base. ``at_base``: output -> value."""

    base: Base
    at_base: Mapping[str, Value]
    cases: tuple[Case, ...]


def piggyback_rows(ready_decodes: int, token_budget: int, sequence_budget: int, chunk_rows: int, prompt_rows: int) -> int:
    """D_piggy = min(D, [B_tok - min(C, S)]+, [B_seq - 1]+): decodes beside one prefill chunk in one iteration (F70)."""
    return min(ready_decodes, max(token_budget - min(chunk_rows, prompt_rows), 0), max(sequence_budget - 1, 0))


def admission_intents(ceiling_rows: int, live_rows: int, forecast_rows: int) -> int:
    """A_intent = floor((H - R_live) / r): requests of equal forecast that may be asked for, which is no physical admission (F71)."""
    return (ceiling_rows - live_rows) // forecast_rows


def _largest_share(offered_events: tuple[int, ...]) -> Fraction | None:
    total = sum(offered_events)
    return Fraction(max(offered_events), total) if total else None


def _exposed(prompt_rows: int, chunk_rows: int) -> int:
    return equal_history_rows(chunk_rows, chunk_count(prompt_rows, chunk_rows))


OUTPUTS: Final = (
    Output("chunks", "calls", "F68", ("prompt_rows", "chunk_rows"), chunk_count),
    Output("causal_pairs", "pairs", "F69", ("prompt_rows",), total_causal_pairs),
    Output("history_rows", "rows", "F69", ("prompt_rows", "chunk_rows"), _exposed),
    Output(
        "history_bytes",
        "logical bytes",
        "F49",
        ("prompt_rows", "chunk_rows", "row_bytes"),
        lambda prompt_rows, chunk_rows, row_bytes: history_bytes(_exposed(prompt_rows, chunk_rows), row_bytes),
    ),
    Output(
        "piggyback_rows",
        "decode rows",
        "F70",
        ("ready_decodes", "token_budget", "sequence_budget", "chunk_rows", "prompt_rows"),
        piggyback_rows,
    ),
    Output("admission_intents", "requests", "F71", ("ceiling_rows", "live_rows", "forecast_rows"), admission_intents),
    Output("uncached_rows", "rows", "F72", ("prompt_rows", "prefix_hit"), lambda prompt_rows, prefix_hit: prompt_rows - prefix_hit),
    Output(
        "aging_crossover",
        "ticks",
        "F61",
        ("low_priority", "high_priority", "aging_quantum"),
        aging_crossover,
    ),
    Output("offered_total", "events", "section 0x0E", ("offered_events",), sum),
    Output("largest_offered_share", "of events", "section 0x0E", ("offered_events",), _largest_share),
    Output("eligible", "yes or no", "section 0x0E", ("foreign_ready",), lambda foreign_ready: foreign_ready),
    Output(
        "realized_output_total",
        "tokens",
        "section 0x0E",
        ("realized_outputs",),
        lambda realized_outputs: sum(realized_outputs) if realized_outputs else None,
        offline=True,
    ),
)
"""Every output of the surface. A None is unknown (no hidden lengths given) or undefined (a share of no events), never 0."""

CASES: Final[tuple[tuple[str, Control], ...]] = (
    ("chunk_rows", 2),
    ("chunk_rows", 8),
    ("prompt_rows", 32),
    ("ready_decodes", 2),
    ("forecast_rows", 10),
    ("aging_quantum", 1),
    ("offered_events", (16, 4)),
    ("prefix_hit", 8),
    ("foreign_ready", False),
    ("realized_outputs", (3, 9, 30)),
)
"""Ten cases over nine axes, as many as the seed has; its table is lost, and the values are chosen here so that each moves something."""


def ledger_of(base: Base) -> dict[str, Value]:
    """Return output name -> value for one shape."""
    return {output.name: output.derive(*(getattr(base, name) for name in output.reads)) for output in OUTPUTS}


def cases_for(base: Base) -> tuple[tuple[tuple[str, Control], ...], tuple[Problem, ...]]:
    """Return those of ``CASES`` that this base permits, and why each other one is left out."""
    problems = [_no_case(base, control, value) for control, value in CASES]
    kept = tuple(case for case, found in zip(CASES, problems, strict=True) if not found)
    return kept, tuple(problem for found in problems for problem in found)


def surface(base: Base, cases: Sequence[tuple[str, Control]] = CASES) -> Surface:
    """Vary one control at a time: each case (control, value) changes the base in that one place.

    UsageError for a name that is no control, a value of another type or that makes the shape impossible, or the base's own value.
    """
    need([problem for control, value in cases for problem in _no_case(base, control, value)])
    at_base = ledger_of(base)
    return Surface(base, at_base, tuple(_case(base, at_base, control, value) for control, value in cases))


def _case(base: Base, at_base: Mapping[str, Value], control: str, value: Control) -> Case:
    varied = ledger_of(_varied(base, control, value))
    readings = (Reading(o.name, at_base[o.name], varied[o.name], control in o.reads) for o in OUTPUTS)
    return Case(control, value, tuple(readings))


def _no_case(base: Base, control: str, value: Control) -> list[Problem]:
    if control not in CONTROLS:
        what = f"control={control}: is none of the base, so no ledger reads it"
        return [Problem("control_unknown", what, f"give one of {', '.join(CONTROLS)}")]
    own = getattr(base, control)
    if type(value) is not type(own):
        what = f"{control}={value}: is of type {type(value).__name__}, and the base has {own}, so it would be read as something else"
        return [Problem("control_mistyped", what, f"give {control} as {type(own).__name__}")]
    if value == own:
        what = f"{control}={value}: is the base's own value, and a case that changes nothing shows nothing"
        return [Problem("case_is_base", what, "give another value, or leave the case out")]
    try:
        _varied(base, control, value)
    except UsageError as error:
        return list(error.problems)
    return []


def _varied(base: Base, control: str, value: Control) -> Base:
    change: dict[str, Any] = {control: value}
    return replace(base, **change)


def _items(name: str, values: tuple[int, ...]) -> dict[str, Any]:
    return {f"{name}[{i}]": value for i, value in enumerate(values)}
