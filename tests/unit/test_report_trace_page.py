"""The page of a trace: every figure its columns allow, the same bytes each time, and nothing from a file as markup."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from analysis.cautions import Caution
from analysis.describe import describe
from analysis.report import render_trace, rows_of
from analysis.report.trace_plots import survival, trace_plots
from tests.unit.test_analysis_describe import Columns, Ids, Names, Sessions, lists

S = 10**9
N = 60
FULL = Columns(
    np.arange(N) ** 2 * S // 10,
    np.arange(1, N + 1),
    np.arange(N),
    client=Names(("<b>evil</b>", "b"), np.array([0, 1] * (N // 2), dtype=np.int32)),
    blocks=Ids(lists([[0, i // 2, i] for i in range(N)])),
    turns=Sessions(np.arange(N) // 3, np.where(np.arange(N) % 3 > 0, 5 * S, -1)),
)


def page(trace: Columns) -> str:
    found = describe(trace) | {"notes": ["<script>alert(1)</script>"], "file": "<i>x</i>.csv"}
    return render_trace("<i>x</i>.csv", trace, found, [Caution("idle", "rate<1", "compress & run")])


def test_everything_is_escaped_and_nothing_is_fetched() -> None:
    html = page(FULL)
    for bad in ("<b>evil", "<script", "<i>x"):
        assert bad not in html
    assert "compress &amp; run" in html
    assert "http" not in html.replace("http://www.w3.org", "").replace("http-equiv", "")


def test_the_same_trace_gives_the_same_bytes() -> None:
    assert page(FULL) == page(FULL)


def test_each_figure_stands_where_its_columns_do() -> None:
    assert [p.title for p in trace_plots(FULL)] == ["Arrivals over time", "Gaps", "Lengths", "Clients", "Sessions", "Sharing"]
    bare = dataclasses.replace(FULL, client=None, blocks=None, turns=None, clock="none")
    assert [p.title for p in trace_plots(bare)] == ["Lengths"]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_trace_of_few_rows_has_a_page(count: int) -> None:
    assert "<h1>" in page(Columns(np.arange(count) * S, np.ones(count, dtype=np.int64), np.ones(count, dtype=np.int64)))


def test_rows_at_one_instant_have_a_page() -> None:
    assert "<h1>" in page(Columns(np.zeros(5, dtype=np.int64), np.ones(5, dtype=np.int64), np.ones(5, dtype=np.int64)))


def test_a_survival_curve_starts_at_all_and_ends_above_none() -> None:
    values, above = survival(np.arange(10_000))
    assert (values[0], above[0], values[-1]) == (0, 1.0, 9999)
    assert above[-1] == pytest.approx(1e-4)
    assert len(values) <= 400


def test_facts_are_one_dotted_key_a_row() -> None:
    assert rows_of({"a": {"b": None, "c": {"d": True}}, "e": {}, "notes": ["n"]}) == [("a.b", "undefined"), ("a.c.d", "yes"), ("e", "{}")]
