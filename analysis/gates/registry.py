"""The register of gates (DESIGN 8): what each code protects, where its number comes from, what to do when it fails; and how gates are run.

A gate is a pure function of a context. Every gate is evaluated, none stops another, and whatever goes wrong inside one is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from analysis.clocks import Clocks
from analysis.fairness_run import RunFairness
from analysis.model import CheckResult, Claim, Figure, Outcomes, Verdict
from analysis.planned import Strings
from analysis.samples import AbsentError
from harness.record.reader import RunRecord
from harness.record.spec import RunSpec

Scope = Literal["run", "cell", "pair"]

UNWAIVABLE = frozenset({"partition_closes", "requests_wellformed", "server_survived", "seal_intact", "pins_match"})
"""Without these a record does not say what happened, so no written reason can replace them (DESIGN 8)."""


@dataclass(frozen=True, slots=True, eq=False)
class RunContext:
    """One replicate as gates see it. ``outcome``: (n,) one ``Outcome`` a row of ``clocks``; ``outcomes``: its counts over the cohort."""

    record: RunRecord
    clocks: Clocks
    outcome: Strings
    outcomes: Outcomes
    figures: Mapping[str, Figure] = field(default_factory=dict)
    fairness: RunFairness | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CellContext:
    """All replicates of one cell; ``spec`` is any replicate's, used for what they share (replication, waivers, rank)."""

    runs: Sequence[RunContext]
    spec: RunSpec


@dataclass(frozen=True, slots=True, eq=False)
class PairContext:
    """Two cells about to be compared."""

    a: CellContext
    b: CellContext


@dataclass(frozen=True, slots=True)
class Finding:
    """What a gate, or a part of one, found. ``measured``: name -> {value, limit, unit}."""

    verdict: Verdict
    reason: str
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """What simulation with known truth showed of a statistical gate; the named test fails when it no longer holds.

    ``false_alarm``: at most this share of healthy runs fails. ``detection``: at least this share of runs with ``fault`` fails.
    """

    false_alarm: float
    detection: float
    fault: str
    simulation: str


@dataclass(frozen=True, slots=True)
class Gate:
    """One registered check. ``threshold`` derives the number in words; ``rates`` is given for statistical gates."""

    code: str
    protects: tuple[Claim, ...]
    scope: Scope
    threshold: str
    remedy: str
    waivable: bool
    check: Callable[[Any], Finding]
    rates: ErrorRates | None = None


GATES: dict[str, Gate] = {}
"""Every gate by code, in DESIGN's order; filled when ``analysis.gates`` is imported."""

Check = Callable[[Any], Finding]


def gate(
    code: str, *, protects: tuple[Claim, ...], threshold: str, remedy: str, scope: Scope = "run", rates: ErrorRates | None = None
) -> Callable[[Check], Check]:
    """Register the decorated function under ``code``. Raises ValueError when the code is taken."""

    def _register(check: Check) -> Check:
        if code in GATES:
            raise ValueError(f"gate={code}: registered twice")
        GATES[code] = Gate(code, protects, scope, threshold, remedy, code not in UNWAIVABLE, check, rates)
        return check

    return _register


def passed(reason: str, **measured: Any) -> Finding:
    """Build a PASS; ``measured``: name -> {value, limit, unit}."""
    return Finding(Verdict.PASS, reason, measured)


def failed(reason: str, **measured: Any) -> Finding:
    """Build a FAIL; ``measured`` as in ``passed``."""
    return Finding(Verdict.FAIL, reason, measured)


def unknown(reason: str, **measured: Any) -> Finding:
    """Build an UNKNOWN; ``measured`` as in ``passed``."""
    return Finding(Verdict.UNKNOWN, reason, measured)


def number(value: float | None, limit: float | str | None, unit: str) -> dict[str, Any]:
    """One measured value beside its limit."""
    return {"value": value, "limit": limit, "unit": unit}


def judge(holds: bool, reason: str, **measured: Any) -> Finding:
    """PASS when ``holds``, else FAIL, with the same words and numbers: the reader compares value and limit."""
    return Finding(Verdict.PASS if holds else Verdict.FAIL, reason, measured)


def combine(findings: Iterable[Finding]) -> Finding:
    """Join parts of one gate: any FAIL fails, else any UNKNOWN is unknown. The reason names every part that did not pass."""
    parts = list(findings)
    if not parts:
        return unknown("nothing to check")
    measured = {k: v for part in parts for k, v in part.measured.items()}
    for verdict in (Verdict.FAIL, Verdict.UNKNOWN):
        if any(p.verdict is verdict for p in parts):
            return Finding(verdict, "; ".join(p.reason for p in parts if p.verdict is not Verdict.PASS), measured)
    return Finding(Verdict.PASS, "; ".join(p.reason for p in parts), measured)


def attempt(check: Check, context: Any) -> Finding:
    """Run one check; absent data and any exception are UNKNOWN, never PASS."""
    try:
        return check(context)
    except AbsentError as absent:
        return unknown(str(absent))
    except Exception as error:
        return unknown(f"internal error in the gate: {type(error).__name__}: {error}")


def _result(one: Gate, finding: Finding, spec: RunSpec | None, scope: str) -> CheckResult:
    waived = next((w.reason for w in spec.waivers if w.gate == one.code), None) if spec and one.waivable else None
    return CheckResult(one.code, finding.verdict, finding.reason, one.protects, one.remedy, finding.measured, scope, waived)


def _of_scope(scope: Scope) -> list[Gate]:
    return [g for g in GATES.values() if g.scope == scope]


def run_checks(context: RunContext) -> tuple[CheckResult, ...]:
    """Answer every gate of run scope for one replicate, in registry order."""
    spec = context.record.spec
    where = f"{spec.cell}/{spec.replicate}/{spec.attempt}"
    return tuple(_result(g, attempt(g.check, context), spec, where) for g in _of_scope("run"))


def cell_checks(context: CellContext) -> tuple[CheckResult, ...]:
    """Answer every gate of cell scope for one cell, in registry order."""
    return tuple(_result(g, attempt(g.check, context), context.spec, context.spec.cell) for g in _of_scope("cell"))


def pair_checks(context: PairContext) -> tuple[CheckResult, ...]:
    """Answer every gate of pair scope for two cells, in registry order."""
    spec = context.a.spec
    where = f"{spec.cell} against {context.b.spec.cell}"
    return tuple(_result(g, attempt(g.check, context), spec, where) for g in _of_scope("pair"))


def standing_against(claims: Iterable[Claim], checks: Iterable[CheckResult], scope: Scope, where: str) -> tuple[CheckResult, ...]:
    """Return every answer that stands against ``claims``: neither PASS nor waived, of a gate that protects integrity or one of them.

    ``checks`` are the answers of one replicate (scope run) or of one cell. A registered gate of that scope without an answer stands against
    the claims as UNKNOWN at ``where``: a check that was not made never lets a claim through.
    """
    wanted = {Claim.INTEGRITY, *claims}
    given = list(checks)
    answered = {check.code for check in given}
    missing = [
        _result(one, unknown("no answer, and no answer is UNKNOWN"), None, where) for one in _of_scope(scope) if one.code not in answered
    ]
    return tuple(c for c in (*given, *missing) if not c.lets_through and wanted & set(c.protects))
