"""The sentence that a report begins with, and what a reader of many arms is spared."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from analysis.effect_model import EffectVerdict, Front, FrontPoint
from analysis.model import Figure, Interval, Ranking, Reason, Refusal, Standing
from analysis.report import render_html
from analysis.report.answer import ranking_words, refusal_words, unranked_tables
from analysis.report.distribution_plots import distribution_plots
from analysis.report.front import front_plots, front_tables
from analysis.report.numbers import glance
from analysis.report.pairwise import MANY, effects_tables
from analysis.report.words import Unit
from tests.report_demo import campaign

OWN = Interval(1.0, 3.0, 0.95, "t over replicates", 5, "replicate")
FIGURE = Figure("goodput", "req/s", 2.0, "ok", 100, "offered cohort", interval=OWN)
MS = Unit("ms", 1000.0)


def ranking(*ranks: int, verdict: EffectVerdict = "unresolved", unranked: tuple[tuple[str, tuple[Reason, ...]], ...] = ()) -> Ranking:
    arms = [f"arm-{i}" for i in range(len(ranks))]
    given = campaign().verdict
    assert isinstance(given, Ranking)
    (effect, *_) = given.effects
    effects = [dataclasses.replace(effect, a=a, b=b, verdict=verdict) for a, b in itertools.combinations(arms, 2)]
    standings = [Standing(rank, arm, f"{arm}@x1", FIGURE) for rank, arm in zip(ranks, arms, strict=True)]
    return Ranking("goodput", "goodput", tuple(standings), tuple(effects), unranked)


@pytest.mark.parametrize(
    ("ranks", "verdict", "words"),
    [
        ((1, 2), "worse", "1. arm-0; 2. arm-1."),
        ((1, 1, 3), "unresolved", "1. arm-0, arm-1 (tie); 3. arm-2."),
        ((1, 1), "unresolved", "A tie of 2 arms, arm-0, arm-1: no pair of them is resolved as better or worse."),
        ((1, 1), "equivalent", "A tie of 2 arms, arm-0, arm-1: all are equivalent within the margin."),
        (
            (1,) * 8,
            "unresolved",
            "A tie of 8 arms, arm-0, arm-1, arm-2, arm-3, arm-4 and 3 more: no pair of them is resolved as better or worse.",
        ),
    ],
)
def test_a_ranking_begins_with_who_stands_where(ranks: tuple[int, ...], verdict: EffectVerdict, words: str) -> None:
    assert ranking_words(ranking(*ranks, verdict=verdict)) == words


def test_a_refusal_begins_with_its_codes_and_the_arms_they_are_about() -> None:
    reasons = (Reason("backlog", "arm a: FAIL: x", "y"), Reason("backlog", "arm b: FAIL: x", "y"), Reason("replicates", "1 of 5", "y"))
    words = refusal_words(Refusal("No ranking", reasons))
    assert words == "Refused for backlog, replicates, about a, b. The numbers below are shown, and none of them claims a winner."
    assert refusal_words(Refusal("No ranking", (reasons[2],))).startswith("Refused for replicates. ")


def test_runs_of_an_unranked_arm_that_answer_to_one_gate_share_a_row() -> None:
    reasons = tuple(Reason("window_length", f"FAIL: run {i}", "lengthen") for i in range(3))
    found = ranking(1, 2, unranked=(("slow", (*reasons, Reason("backlog", "FAIL: grows", "less"))),))
    (table,) = unranked_tables(found)
    assert table.rows == (("slow", "window_length", "FAIL: run 0, and 2 more", "lengthen"), ("slow", "backlog", "FAIL: grows", "less"))
    assert ranking_words(found).endswith("Not ranked, for the reasons below: slow.")
    assert unranked_tables(ranking(1, 2)) == ()


def test_many_pairs_stand_in_a_square_whose_halves_agree() -> None:
    assert len(effects_tables(ranking(*[1] * 8))) == 1
    found = ranking(*range(1, 10), verdict="worse")  # b, the later arm, is worse than a
    assert len(found.effects) > MANY
    square, listed = effects_tables(found)
    assert listed.folded
    assert not square.folded
    signs = [row[2:] for row in square.rows]
    assert all(signs[i][j] == ("" if i == j else "+" if i < j else "-") for i in range(9) for j in range(9))


def test_a_front_of_many_points_is_numbered_and_folded_while_nothing_is_claimed() -> None:
    lone = dataclasses.replace(FIGURE, metric="ttft_p95", unit="s")
    points = [FrontPoint(f"c{i}@x1", f"c{i}", "x1", dataclasses.replace(FIGURE, value=1.0 + i), lone, "shown", (), ()) for i in range(9)]
    left = FrontPoint("d@x1", "d", "x1", FIGURE, None, "excluded", (), (Reason("figure_withheld", "long words", "wait"),))
    c = dataclasses.replace(campaign(), front=Front("goodput", "ttft_p95", "post_hoc", 0.95, 0.02, (*points, left)))
    (table,) = front_tables(c, MS)
    assert table.folded
    assert [row[0] for row in table.rows] == [str(i) for i in range(1, 11)]
    assert table.rows[-1][-1] == "figure_withheld"
    (plot,) = front_plots(c, MS)
    assert "c0@x1" not in plot.svg
    assert "Numbers are those of the table" in plot.caption


def test_a_pooled_value_outside_its_interval_is_explained() -> None:
    c = campaign()
    pooled = dataclasses.replace(OWN, method="t over replicates; the value is pooled")
    odd = Figure("ttft_p95", "s", 9.0, "ok", 100, "completed requests", interval=pooled)
    first = dataclasses.replace(c.cells[0], figures={"ttft_p95": odd})
    note = glance(dataclasses.replace(c, cells=(first,)), MS)[0].note
    assert "Outside its interval (ttft_p95)" in note
    inside = dataclasses.replace(first, figures={"ttft_p95": dataclasses.replace(odd, value=2.0)})
    assert "Outside" not in glance(dataclasses.replace(c, cells=(inside,)), MS)[0].note


def test_a_reason_that_goes_through_the_replicates_is_told_once() -> None:
    c = campaign()
    reason = "; ".join(f"replicate {i} withheld: overloaded" for i in range(5))
    odd = Figure("ttft_p95", "s", None, "withheld", 100, "completed requests", reason=reason)
    first = dataclasses.replace(c.cells[0], figures={"ttft_p95": odd})
    note = glance(dataclasses.replace(c, cells=(first,)), MS)[0].note
    assert note == "ttft_p95 withheld: replicate 0 withheld: overloaded; 4 more replicates withheld, see every figure."


def test_the_page_tells_the_answer_before_any_table() -> None:
    page = render_html(campaign())
    assert page.index('class="answer"') < page.index("<table")


def test_many_cells_stand_one_a_row_and_their_whole_tables_are_folded() -> None:
    c = campaign()
    few = glance(c, MS)
    assert not any(table.folded for table in few)
    cells = tuple(dataclasses.replace(c.cells[0], cell=f"c{i}@x1") for i in range(7))
    first, *rest = glance(dataclasses.replace(c, cells=cells), MS)
    assert [row[0] for row in first.rows] == [cell.cell for cell in cells]
    assert first.header[:3] == ("Cell", "goodput, req/s", "attainment, ratio")
    assert not first.folded
    assert all(table.folded for table in rest)


def test_a_client_that_is_never_late_is_not_drawn() -> None:
    c = campaign()
    runs = tuple(dataclasses.replace(run, series={"slip_cdf": ((0.0, 0.0), (0.5, 1.0))}) for run in c.cells[0].runs)
    quiet = dataclasses.replace(c, cells=(dataclasses.replace(c.cells[0], runs=runs),))
    assert not distribution_plots(quiet, MS)
    late = dataclasses.replace(runs[0], series={"slip_cdf": ((0.0, 0.001), (0.5, 1.0))})
    assert [p.title for p in distribution_plots(dataclasses.replace(c, cells=(dataclasses.replace(c.cells[0], runs=(late,)),)), MS)] == [
        "Client slip"
    ]
