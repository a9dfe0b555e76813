"""analyze, rank, report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from analysis.model import Ranking, Refusal
from analysis.report import render_html, render_markdown, render_terminal, to_json
from analysis.report.pins import attested_of
from harness.cli.output import OK, REFUSED, answers, console, emit_json, json_option, printable
from harness.cli.sides import analyze_campaign
from harness.record.canonical import canonical_json, plain

campaign_argument = click.argument("campaign_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.command()
@campaign_argument
@json_option
@answers
def analyze(campaign_dir: Path, as_json: bool) -> int:
    """Recompute everything a campaign's records say: outcomes, figures, gates, comparisons, the ranking or its refusal.

    Example: trigpoint analyze results/quickstart --json
    """
    found = analyze_campaign(campaign_dir)
    if as_json:
        emit_json(to_json(found))
    else:
        render_terminal(found, console())
        console().print(printable(f"every figure, coordinate and seal: trigpoint report {campaign_dir}"))
    return OK


@click.command()
@campaign_argument
@json_option
@answers
def rank(campaign_dir: Path, as_json: bool) -> int:
    """Rank a campaign's arms by the metric its manifest declared, or refuse with every reason (exit 1).

    Example: trigpoint rank results/quickstart --json
    """
    found = analyze_campaign(campaign_dir)
    verdict = found.verdict
    if as_json:
        stands = {"waivers": [{"gate": g, "reason": r} for g, r in found.waivers]}
        vouched = attested_of(found)
        emit_json(verdict_dict(verdict) | stands | ({"attested": vouched} if vouched else {}))
    else:
        render_terminal(found, console(), verdict_only=True)
    return REFUSED if isinstance(verdict, Refusal) else OK


def verdict_dict(verdict: Ranking | Refusal) -> dict[str, Any]:
    """Return the JSON answer of rank: ``ranking`` or ``refused`` with reasons."""
    if isinstance(verdict, Refusal):
        return {"refused": True, "title": verdict.title, "reasons": [_reason(r) for r in verdict.reasons]}
    rows = [
        {"rank": s.rank, "arm": s.arm, "cell": s.cell, "value": s.figure.value, "unit": s.figure.unit, "n": s.figure.n}
        | ({"low": s.figure.interval.low, "high": s.figure.interval.high} if s.figure.interval else {})
        for s in verdict.standings
    ]
    effects = [plain(e, digits=None) for e in verdict.effects]
    unranked = [{"arm": arm, "reasons": [_reason(r) for r in reasons]} for arm, reasons in verdict.unranked]
    return {"refused": False, "title": verdict.title, "metric": verdict.metric, "ranking": rows, "effects": effects, "unranked": unranked}


def _reason(reason: Any) -> dict[str, str]:
    return {"code": reason.code, "text": reason.text, "remedy": reason.remedy}


@click.command()
@campaign_argument
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for the files; default: CAMPAIGN/report.")
@json_option
@answers
def report(campaign_dir: Path, out: Path | None, as_json: bool) -> int:
    """Write report.html, report.md and analysis.json, and print the report.

    Example: trigpoint report results/quickstart
    """
    found = analyze_campaign(campaign_dir)
    folder = out or campaign_dir / "report"
    folder.mkdir(parents=True, exist_ok=True)
    paths = {"html": folder / "report.html", "markdown": folder / "report.md", "json": folder / "analysis.json"}
    paths["html"].write_text(render_html(found), encoding="utf-8")
    paths["markdown"].write_text(render_markdown(found), encoding="utf-8")
    # Canonical, so that analyzing the same records again writes the same bytes.
    paths["json"].write_bytes(canonical_json(to_json(found)) + b"\n")
    if as_json:
        emit_json({name: str(path) for name, path in paths.items()} | {"refused": isinstance(found.verdict, Refusal)})
    else:
        render_terminal(found, console())
        console().print(printable(f"every figure, coordinate and seal: {paths['html']}"))
    return OK


COMMANDS = (analyze, rank, report)
