"""Distribution plots through real records: limits drawn, what is withheld not drawn, the offered view where something did not complete."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.campaign import analyze
from analysis.model import CampaignAnalysis, Limit
from analysis.report.distribution_plots import distribution_plots
from analysis.report.html import render_html
from analysis.report.markdown import render_markdown
from analysis.report.svg import Plot
from analysis.report.words import Unit
from analysis.slos import drawn_limits
from harness.record.spec import Slo
from tests.builders import MS, S, make_record, make_request, make_spec

MILLI = Unit("ms", 1000.0)


def campaign(rows: list[dict[str, Any]] | None = None, **spec: Any) -> CampaignAnalysis:
    made = rows if rows is not None else [make_request(i, i * 100 * MS, ttft_ns=(20 + i % 60) * MS) for i in range(140)]
    return analyze([make_record(made, spec=make_spec(replicate=r, server_start=r, **spec)) for r in range(2)], incomplete=())


def plots(c: CampaignAnalysis) -> dict[str, Plot]:
    return {plot.title: plot for plot in distribution_plots(c, MILLI)}


def test_limits_of_the_slo_stand_in_the_plots_of_their_clocks() -> None:
    found = plots(campaign(slo=Slo(ttft_ns=500 * MS, tbt_ns=100 * MS, e2e_ns=2 * S)))
    assert list(found) == [
        "Time to first token",
        "Time to first token in columns",
        "Time between tokens",
        "End to end",
        "Client slip",
        "Requests in flight",
    ]
    assert "limit 500 ms" in found["Time to first token"].svg
    assert "limit 100 ms (every gap)" in found["Time between tokens"].svg
    assert "limit 2000 ms" in found["End to end"].svg
    assert "limit" not in found["Client slip"].svg
    assert "Dashed" in found["Time to first token"].caption


def test_a_rule_on_means_limits_no_gap_and_end_to_end_is_drawn_only_where_it_is_limited() -> None:
    found = plots(campaign(slo=Slo(tbt_ns=100 * MS, tbt_rule="mean")))
    assert "limit" not in found["Time between tokens"].svg
    assert "End to end" not in found


def test_limits_of_classes_bear_their_names() -> None:
    found = drawn_limits(Slo(ttft_ns=S), {"chat": Slo(ttft_ns=S // 2, tbt_ns=50 * MS, tbt_rule="p99")})
    assert found == (
        Limit("ttft", 1.0, ""),
        Limit("ttft", 0.5, "class chat"),
        Limit("tbt", 0.05, "class chat, p99 of a request's gaps"),
    )


def test_what_did_not_complete_brings_the_offered_view_with_its_plateau() -> None:
    rows = [make_request(i, i * 100 * MS, **({"end_kind": "reset"} if i % 4 == 0 else {})) for i in range(140)]
    c = campaign(rows)
    title = "Time to first token, all offered requests"
    assert "stays below 1" in plots(c)[title].caption
    assert title not in plots(campaign())
    for run in c.cells[0].runs:
        assert run.series["ttft_offered_cdf"][1][-1] == 0.75
        assert run.series["ttft_cdf"][1][-1] == pytest.approx(1 - 1 / 75)


def test_overload_draws_no_latency_and_says_whose_is_withheld() -> None:
    growing = [make_request(i, i * 100 * MS, ttft_ns=i * 100 * MS + 50 * MS) for i in range(140)]
    assert list(plots(campaign(growing))) == ["Client slip", "Requests in flight"]
    healthy = [make_record(spec=make_spec(cell="b@x1"))]
    mixed = analyze([make_record(growing), *healthy], incomplete=())
    assert "Withheld or not known, so not drawn: 1 of 1 replicates of a@x1." in plots(mixed)["Time to first token"].caption


def test_columns_hold_every_replicate_of_the_cell() -> None:
    c = campaign()
    counts = [sum(run.series["ttft_histogram"][1]) for run in c.cells[0].runs]
    assert counts == [99, 99]  # a hundred offered each, the largest withheld
    assert "the largest value of each replicate is withheld" in plots(c)["Time to first token in columns"].caption


def test_the_same_analysis_gives_the_same_bytes() -> None:
    assert plots(campaign()) == plots(campaign())


def test_both_populations_stand_in_the_table_of_every_figure() -> None:
    rows = [make_request(i, i * 100 * MS, **({"end_kind": "reset"} if i % 4 == 0 else {})) for i in range(140)]
    text = render_markdown(campaign(rows))
    for metric in ("ttft", "e2e"):
        for level in ("p50", "p95", "p99"):
            assert f"| {metric}\\_{level}\\_offered |" in text
    assert "+inf for every request that did not complete" in text.replace("\\", "")
    assert "∞" in text


def test_the_section_of_distributions_opens_with_whatever_is_drawn_first() -> None:
    growing = [make_request(i, i * 100 * MS, ttft_ns=i * 100 * MS + 50 * MS) for i in range(140)]
    for c, first in ((campaign(), "Time to first token"), (campaign(growing), "Client slip")):
        page = render_html(c)
        assert page.count('<h2 id="figures">') == 1
        assert page.split('<h2 id="figures">')[1].split("<h3>")[1].startswith(first)
