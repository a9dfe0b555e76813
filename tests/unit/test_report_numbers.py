"""The table at a glance and the tables of every figure: order, marks, absences, and nothing lost."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.model import CampaignAnalysis, Figure, Interval, Ranking
from analysis.report.numbers import GLANCE_CELLS, glance, numbers
from analysis.report.table import Table
from analysis.report.words import Unit
from tests.report_demo import campaign, cell

MS = Unit("ms", 1000.0)


def with_figures(*figures: Figure, cells: int = 1, refused: bool = True) -> CampaignAnalysis:
    """A campaign whose cells have just these figures."""
    own = {f.metric: f for f in figures}
    made = tuple(dataclasses.replace(cell(f"arm-{i}", 0.0, fail=False), figures=own) for i in range(cells))
    return campaign(refused=refused, cells=made)


def figure(metric: str, value: float | None = 1.0, *, unit: str = "s", reason: str = "", interval: Interval | None = None) -> Figure:
    status = "ok" if value is not None else "withheld"
    return Figure(metric, unit, value, status, 40, "completed requests", reason=reason, interval=interval)  # type: ignore[arg-type] # a Literal


def test_the_declared_metric_comes_first_and_once() -> None:
    c = campaign()
    assert isinstance(c.verdict, Ranking)
    verdict = dataclasses.replace(c.verdict, metric="ttft_p99")
    (table,) = glance(dataclasses.replace(c, verdict=verdict), MS)
    metrics = [row[0] for row in table.rows]
    assert metrics[:3] == ["ttft_p99", "goodput", "attainment"]
    assert len(set(metrics)) == len(metrics)


def test_a_glance_has_value_interval_and_n_for_every_cell() -> None:
    (table,) = glance(campaign(), MS)
    assert table.header == ("Metric", "Unit", "budget-512@x1", "n", "budget-8192@x1", "n")
    assert ("goodput", "req/s", "9.20 [9.00, 9.40]", "610", "10.10 [9.90, 10.30]", "610") in table.rows
    assert table.note == "Intervals: 95 %, t over replicates, n=5 (replicate)."


def test_the_share_of_shared_stamps_stands_beside_tbt() -> None:
    c = with_figures(figure("e2e_p99"), figure("shared_stamp_share", unit="ratio"), figure("tbt_p99"), figure("slip_p99"))
    assert [row[0] for row in glance(c, MS)[0].rows] == ["tbt_p99", "shared_stamp_share", "e2e_p99", "slip_p99"]


def test_a_glance_withholds_with_the_reason_told_once() -> None:
    c = with_figures(figure("ttft_p99", None, reason="too few"), figure("e2e_p99", None, reason="too few"), cells=2)
    (table,) = glance(c, MS)
    assert [row[2:4] for row in table.rows] == [("withheld", "40")] * 2
    assert table.note == "ttft_p99, e2e_p99 withheld: too few."


def test_intervals_on_different_grounds_are_marked() -> None:
    t = Interval(0.5, 2.0, 0.95, "t over replicates", 5, "replicate")
    shared = dataclasses.replace(t, unit_of_inference="hierarchical")
    (table,) = glance(with_figures(figure("ttft_p50", interval=t), figure("ttft_p99", interval=shared)), MS)
    assert [row[2] for row in table.rows] == ["1000 [500, 2000] a", "1000 [500, 2000] b"]
    assert "b = 95 %, t over replicates, n=5 (hierarchical)" in table.note


@pytest.mark.parametrize("cells", [1, GLANCE_CELLS, GLANCE_CELLS + 1, 3 * GLANCE_CELLS])
def test_many_cells_stand_in_tables_that_a_page_can_hold(cells: int) -> None:
    tables = glance(with_figures(figure("goodput", unit="req/s"), cells=cells), MS)
    names = [name for t in tables for name in t.header[2::2]]
    assert names == [f"arm-{i}@x1" for i in range(cells)]
    assert all(len(t.header) <= 2 + 2 * GLANCE_CELLS for t in tables)


def test_no_figure_no_glance() -> None:
    assert glance(with_figures(figure("tpot_p50")), MS) == ()
    assert glance(campaign(refused=True, cells=()), MS) == ()


def test_every_figure_of_every_cell_has_one_row() -> None:
    c = campaign()
    rows = sorted((row[0], row[1]) for table in numbers(c, MS) for row in table.rows)
    assert rows == sorted((f.metric, x.cell) for x in c.cells for f in x.figures.values())
    assert all(table.folded for table in numbers(c, MS))


def test_diagnostics_come_last_and_say_so() -> None:
    titles = [t.title for t in numbers(campaign(), MS)]
    assert ["never ranked" in t for t in titles] == sorted("never ranked" in t for t in titles)
    assert any("never ranked" in t for t in titles)


cells = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "x"]), st.just("k")), min_size=1, max_size=4)


@given(cells, st.integers(0, 2))
def test_a_shared_column_moves_into_the_note_and_nothing_else_does(rows: list[tuple[str, str, str]], column: int) -> None:
    table = Table("t", ("A", "B", "C"), tuple(rows), frozenset({0, 2}), "note")
    moved = table.without_shared(column, "Per")
    shared = {row[column] for row in rows}
    if len(shared) > 1 or (len(rows) == 1 and shared != {""}):
        assert moved == table
    else:
        text = shared.pop()
        assert moved.note == (f"Per {text}. note" if text else "note")
        assert [row[:column] + row[column + 1 :] for row in rows] == list(moved.rows)
        assert {moved.header[i] for i in moved.numeric} == {table.header[i] for i in table.numeric if i != column}
