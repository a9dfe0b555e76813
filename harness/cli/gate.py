"""gate: one answer for a pipeline about a baseline and a candidate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from analysis.compare import check_factors
from analysis.pair import Contender, Versus, hold
from analysis.regression import Decision, Regression, rates_at
from analysis.regression import gate as decide
from analysis.report.versus import caveat_lines, effect_lines
from analysis.report.words import percent
from harness.cli.compare import (
    factor_option,
    margin_option,
    noise_option,
    print_comparison,
    reason_dict,
    reason_lines,
    versus_dict,
)
from harness.cli.output import INCONCLUSIVE, OK, REFUSED, answers, console, emit_json, json_option, printable
from harness.cli.sides import noise_beside, resolve_side
from harness.errors import UsageError
from harness.record.canonical import plain

EXIT = {Decision.PASS: OK, Decision.FAIL: REFUSED, Decision.REFUSED: REFUSED, Decision.INCONCLUSIVE: INCONCLUSIVE}


@click.command()
@click.argument("baseline")
@click.argument("candidate")
@click.option("--metric", help="Metric the gate looks at; default: the one both sides declare.")
@margin_option
@factor_option
@noise_option
@json_option
@answers
def gate(
    baseline: str,
    candidate: str,
    metric: str | None,
    margin: float | None,
    factors: tuple[str, ...],
    noise: Path | None,
    as_json: bool,
) -> int:
    """Answer PASS, FAIL or INCONCLUSIVE: is the candidate worse than the baseline by more than the margin?

    Each side is a cell's folder (CAMPAIGN/CELL). FAIL: the interval lies wholly beyond the margin on the bad side. PASS: it excludes a
    regression of the margin. Metric and margin written into the pipeline count as fixed before the run. Exits 0 on PASS, 1 on FAIL and when
    the two may not be held against each other (REFUSED), 4 when the measurement cannot tell.

    Example: trigpoint gate results/ci/main@x1 results/ci/branch@x1 --metric ttft_p95 --margin 0.05 --factor runtime.version
    """
    allowed = check_factors(factors)
    first, second = _measured(baseline, metric), _measured(candidate, metric)
    beside = noise_beside(baseline, first, metric, noise)
    found = hold(first, second, factors=allowed, margin=margin, noise=beside, ahead=metric is not None and margin is not None)
    answer = decide(found)
    if as_json:
        emit_json(gate_dict(found, answer))
    else:
        _print(found, answer)
    return EXIT[answer.decision]


def _measured(name: str, metric: str | None) -> Contender:
    side = resolve_side(name, metric, None)
    if not isinstance(side, Contender):
        raise UsageError.single(
            "side_unmeasured", f"{name}: a gate holds measurements against each other", "name a cell's folder: CAMPAIGN/CELL"
        )
    return side


def gate_dict(found: Versus, answer: Regression) -> dict[str, Any]:
    """Return the JSON answer: decision, reason, published error rates, and all that `compare` says."""
    rates = rates_at(found.effect)
    own = {"decision": answer.decision.value, "reason": answer.reason, "reasons": [reason_dict(r) for r in answer.reasons]}
    return versus_dict(found) | own | {"error_rates": {"applies": rates is not None, "published": plain(rates)}}


def _print(found: Versus, answer: Regression) -> None:
    out = console()
    out.print(printable(f"{answer.decision.value}: {answer.reason}"))
    print_comparison(found.comparison)
    lines = effect_lines(found.effect, found.declared, found.unit) if found.effect else []
    told = reason_lines(answer.reasons if not found.comparison.differences else _beyond(answer, found))
    for line in (*lines, *told, *_rates(found), *caveat_lines(found)):
        out.print(printable(line))


def _beyond(answer: Regression, found: Versus) -> tuple[Any, ...]:
    """Reasons that the comparison above has not told already."""
    told = {d.coordinate for d in found.comparison.differences}
    return tuple(r for r in answer.reasons if r.text.partition(":")[0] not in told)


def _rates(found: Versus) -> list[str]:
    rates = rates_at(found.effect)
    if found.effect is None:
        return []
    if rates is None:
        return ["error rates of this gate: not simulated for pairs so few, so noisy, or at this level; the interval's level is what holds"]
    false, seen = percent(rates.false_alarm), percent(rates.detection)
    return [f"error rates of this gate (simulated): false FAIL at most {false}; found at least {seen} of: {rates.fault}"]


COMMANDS = (gate,)
