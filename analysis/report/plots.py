"""Figures of a campaign."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from analysis.model import CampaignAnalysis, CellAnalysis, Effect, Ranking
from analysis.report.bins import bin_plots
from analysis.report.capacity_plots import capacity_plots, scale_plots
from analysis.report.distribution_plots import distribution_plots
from analysis.report.estimand import captioned
from analysis.report.front import front_plots
from analysis.report.pairwise import MANY
from analysis.report.sent import OUTCOME_ORDER
from analysis.report.service_plot import service_plots
from analysis.report.svg import FAINT, PALETTE, Plot, draw
from analysis.report.words import Unit, clean, decimals_for, number, percent, shorten

OUTCOME_COLOURS = ("#009e73", "#e69f00", "#cc79a7", "#d55e00", "#999999", "#56b4e9")


def plots(c: CampaignAnalysis, unit: Unit) -> tuple[Plot, ...]:
    """Every figure whose data exists, in the order of the report; ``unit`` is the report's unit of latencies."""
    found = [_effects(c.verdict)] if isinstance(c.verdict, Ranking) and 0 < len(c.verdict.effects) <= MANY else []
    found += capacity_plots(c)
    front = front_plots(c, unit)
    claimed = c.front is not None and c.front.declaration == "declared"
    found += (
        [*front, _outcomes(c.cells)] if claimed else [_outcomes(c.cells), *front]
    )  # what was chosen afterwards stands after the numbers
    if not c.capacities:  # a panel for every load point of every arm would bury the answer; the records hold them
        found += [*bin_plots(c), *distribution_plots(c, unit)]
    return captioned(c, [*found, *scale_plots(c), *service_plots(c)])


def _outcomes(cells: Sequence[CellAnalysis]) -> Plot:
    def _paint(canvas: Canvas) -> None:
        panel = canvas.subplots()
        for row, cell in enumerate(cells):
            _outcome_bar(panel, row, cell)
        panel.set_yticks(range(len(cells)), [f"{shorten(clean(c.cell), 40)}\nN = {c.outcomes.offered}" for c in cells])
        panel.invert_yaxis()
        panel.set_xlim(0, 1)
        panel.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        panel.set_xlabel("share of offered requests")
        panel.grid(visible=False, axis="y")
        present = [i for i, o in enumerate(OUTCOME_ORDER) if any(c.outcomes.counts.get(o, 0) for c in cells)]
        for i in present:
            panel.barh(0, 0, color=OUTCOME_COLOURS[i], label=OUTCOME_ORDER[i].value)
        if present:
            canvas.legend(loc="outside upper left", ncols=len(present), frameon=False)

    caption = "All offered requests of the measured windows, all replicates together; each is in exactly one class."
    return Plot("Outcomes", draw(1.0 + 0.5 * len(cells), _paint), caption)


def _outcome_bar(panel: Axes, row: int, cell: CellAnalysis) -> None:
    left = 0.0
    for index, outcome in enumerate(OUTCOME_ORDER):
        count = cell.outcomes.counts.get(outcome, 0)
        if not count or not cell.outcomes.offered:
            continue
        share = count / cell.outcomes.offered
        panel.barh(row, share, left=left, height=0.6, color=OUTCOME_COLOURS[index])
        if share >= 0.11:  # narrower pieces cannot hold their number; the table has it
            panel.text(left + share / 2, row, f"{count} ({percent(share)})", ha="center", va="center", color="#000000", fontsize=8)
        left += share


def _effects(ranking: Ranking) -> Plot:
    """Pairs on one scale a panel: a ratio and a difference share no axis."""
    scales = list(dict.fromkeys(e.scale for e in ranking.effects))
    groups = [[e for e in ranking.effects if e.scale == scale] for scale in scales]

    def _paint(canvas: Canvas) -> None:
        ratios = [len(g) + 0.5 for g in groups]
        for panel, group in zip(canvas.subplots(len(groups), 1, squeeze=False, height_ratios=ratios).flat, groups, strict=True):
            unit = ranking.standings[0].figure.unit if ranking.standings and group[0].scale == "difference" else ""
            _effect_panel(panel, group, f"{group[0].scale} of {clean(ranking.metric)}{', ' if unit else ''}{clean(unit)}")

    caption = "Point and simultaneous interval; the band is the margin within which arms count as equivalent."
    return Plot("Pairwise effects", draw(0.9 + 0.45 * len(ranking.effects), _paint), caption)


def _effect_panel(panel: Axes, effects: Sequence[Effect], label: str) -> None:
    none = 1.0 if effects[0].scale == "ratio" else 0.0
    panel.axvline(none, color=FAINT, linewidth=0.8)
    for row, effect in enumerate(effects):
        panel.barh(row, 2 * effect.margin, left=none - effect.margin, height=0.8, color=FAINT, alpha=0.18)
    for row, effect in enumerate(effects):
        ends = [x for x in (effect.low, effect.high) if math.isfinite(x)]
        panel.plot([min([effect.estimate, *ends]), max([effect.estimate, *ends])], [row, row], color=PALETTE[0], linewidth=2)
        panel.plot([effect.estimate], [row], "o", color=PALETTE[0], markersize=6)
        text = f"{number(effect.estimate, decimals_for([effect.estimate, effect.low, effect.high]))} {effect.verdict}"
        panel.annotate(text, (effect.estimate, row), (0, 7), textcoords="offset points", ha="center", fontsize=8.5)
    panel.set_yticks(range(len(effects)), [f"{shorten(clean(e.b), 30)}\nagainst {shorten(clean(e.a), 30)}" for e in effects])
    panel.set_ylim(len(effects) - 0.4, -0.75)
    panel.set_xlabel(label)
    panel.use_sticky_edges = False
    panel.grid(visible=False, axis="y")
