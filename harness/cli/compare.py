"""compare: may two results be held against each other, and what is the difference worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from analysis.compare import Side, check_factors, narrow
from analysis.compare import compare as compare_sides
from analysis.model import Comparison, Reason, Verdict
from analysis.pair import Contender, Versus, hold
from analysis.report.versus import caveat_lines, effect_lines
from harness.cli.output import OK, REFUSED, answers, console, emit_json, json_option, printable
from harness.cli.sides import noise_beside, resolve_side
from harness.record.canonical import plain

PAPERS_HELP = "Papers registry, for sides named paper:ID."
factor_option = click.option(
    "--factor", "factors", multiple=True, metavar="NAME", help="Coordinate that may differ because it is the treatment; repeatable."
)
margin_option = click.option(
    "--margin", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="Relative margin (absolute for attainment), such as 0.02."
)
noise_option = click.option(
    "--noise",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A/A campaign (identical arms) that gives the noise floor; default: identical arms of the first side's campaign.",
)


@click.command()
@click.argument("a")
@click.argument("b")
@factor_option
@click.option("--metric", help="Metric the sides are compared by; default: the one they declare.")
@margin_option
@noise_option
@click.option("--papers", type=click.Path(exists=True, dir_okay=False, path_type=Path), help=PAPERS_HELP)
@json_option
@answers
def compare(
    a: str,
    b: str,
    factors: tuple[str, ...],
    metric: str | None,
    margin: float | None,
    noise: Path | None,
    papers: Path | None,
    as_json: bool,
) -> int:
    """Tell whether two results may be compared, what stands between them, and what the difference is worth.

    A side is a cell's folder (CAMPAIGN/CELL), one attempt, or paper:ID. The effect is of the second against the first. A metric or margin
    that the sides did not declare before they ran is post_hoc: shown, and nothing claimed. Exits 1 when they are not comparable.

    Example: trigpoint compare results/quickstart/seqs-2@x1.5 results/quickstart/seqs-16@x1.5
    """
    allowed = check_factors(factors)
    first, second = resolve_side(a, metric, papers), resolve_side(b, metric, papers)
    if isinstance(first, Contender) and isinstance(second, Contender):
        found = hold(first, second, factors=allowed, margin=margin, noise=noise_beside(a, first, metric, noise))
        comparison, document = found.comparison, versus_dict(found)
        lines = versus_lines(found)
    else:
        comparison = compare_sides(_bare(first), _bare(second), factors=allowed)
        document, lines = comparison_dict(comparison), ["no effect: a source that reports no replicates has no interval"]
    if as_json:
        emit_json(document)
    else:
        print_comparison(comparison)
        for line in lines if comparison.comparable else []:
            console().print(printable(line))
    return OK if comparison.comparable else REFUSED


def _bare(side: Contender | Side) -> Side:
    return side.side if isinstance(side, Contender) else side


def versus_dict(found: Versus) -> dict[str, Any]:
    """Return the JSON answer about a pair with replicates."""
    declared = found.declared
    return comparison_dict(found.comparison) | {
        "metric": declared.metric,
        "unit": found.unit,
        "declaration": declared.declaration,
        "margin": {"value": declared.margin, "source": declared.margin_source},
        "effect": plain(found.effect, digits=None),
        "reasons": [reason_dict(r) for r in found.reasons],
        "waivers": [{"side": side, "gate": gate, "reason": reason} for side, gate, reason in found.waived],
        "attested": [{"side": side, "coordinate": name} for side, name in found.attested],
    }


def comparison_dict(found: Comparison) -> dict[str, Any]:
    """Return the JSON answer about coordinates and the gates of a pair."""
    rows = [{"coordinate": d.coordinate, "a": d.a, "b": d.b, "answer": d.answer, "remedy": d.remedy} for d in found.differences]
    barred = [r for r in rows if r["answer"] in ("different", "unknown")]
    allowed = [r for r in rows if r["answer"] not in ("different", "unknown")]
    answer = {"a": found.a, "b": found.b, "comparable": found.comparable, "differences": barred, "allowed": allowed, "equal": found.equal}
    return answer | {"checks": plain(found.checks, digits=None)}


def reason_dict(reason: Reason) -> dict[str, str]:
    """One reason as the JSON answers give it."""
    return {"code": reason.code, "text": reason.text, "remedy": reason.remedy}


def versus_lines(found: Versus) -> list[str]:
    """Say what an effect is worth, or why there is none, with every reason against a claim and all that was waived or attested."""
    lines = effect_lines(found.effect, found.declared, found.unit) if found.effect else [f"{found.declared.metric}: no effect"]
    return [*lines, *reason_lines(found.reasons), *caveat_lines(found)]


def reason_lines(reasons: Sequence[Reason]) -> list[str]:
    """Print reasons as a refusal prints them: those with one way out together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for reason in reasons:
        groups.setdefault((reason.code, reason.remedy), []).append(reason.text)
    return [
        line
        for (code, remedy), texts in groups.items()
        for line in (f"  {code}", *(f"      {text}" for text in texts), *([f"      -> {remedy}"] if remedy else []))
    ]


def print_comparison(found: Comparison) -> None:
    """Print a comparison for people."""
    out = console()
    out.print(
        printable(f"{found.a} against {found.b}: {'comparable' if found.comparable else 'NOT comparable'}; {found.equal} coordinates equal")
    )
    for d in found.differences:
        a, b = narrow(d.a, d.b)
        out.print(printable(f"  {d.answer:24s} {d.coordinate}: {a!r} | {b!r}"))
        if d.answer in ("different", "unknown"):
            out.print(printable(f"      -> {d.remedy}"))
    for check in found.checks:
        waived = f", waived: {check.waived}" if check.waived is not None else ""
        out.print(printable(f"  {check.verdict.value + waived:24s} {check.code}: {check.reason}"))
        if check.verdict is not Verdict.PASS:
            out.print(printable(f"      -> {check.remedy}"))


COMMANDS = (compare,)
