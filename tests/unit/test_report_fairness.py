"""The fairness section: five declarations on every page, nothing cut, names that stay text, and silence where nobody is compared."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from analysis.campaign import analyze
from analysis.model import CampaignAnalysis
from analysis.report import render_html, render_markdown, render_terminal, to_json
from analysis.report.fairness import SIDE_BY_SIDE, fairness_glance, fairness_tables
from analysis.report.table import Table
from analysis.report.words import Unit
from harness.record.fairness import Fairness, Premises, VtcGuarantee
from tests.builders import MS, S, make_record, make_request, make_spec, make_workload

HOSTILE = ("<script>alert(1)</script>", "a|b\n# c", "\x1b[31mred", "_hidden", "[x](http://e)")
UNIT = Unit("ms", 1000.0)


def campaign(names: tuple[str, ...] = ("a", "b"), **spec: Any) -> CampaignAnalysis:
    rows = [make_request(i, 3 * S + i * 10 * MS, ttft_ns=(50 + i % len(names) * 300) * MS) for i in range(60)]
    plan = {i: {"client": names[i % len(names)], "priority": i % len(names)} for i in range(60)}
    return analyze([make_record(rows, spec=make_spec(**spec), plan=plan)], incomplete=())


def terminal(c: CampaignAnalysis) -> str:
    out = io.StringIO()
    render_terminal(c, Console(file=out, width=120, force_terminal=False))
    return out.getvalue()


def table(c: CampaignAnalysis, title: str) -> Table:
    return next(t for t in fairness_tables(c, UNIT) if t.title == title)


FIVE = ("identity", "eligibility interval", "service cost", "publication event", "guarantee")
GUARANTEE = VtcGuarantee(longest_input=16, batch_tokens=64, premises=Premises(work_conserving=True))
DECLARED = Fairness(window_ns=S, horizon_ns=10 * S, eligible="waiting", publication="requests", aging_quantum_ns=S, guarantee=GUARANTEE)


@pytest.mark.parametrize("declared", [None, DECLARED])
def test_all_five_declarations_stand_whole_on_every_page(declared: Fairness | None) -> None:
    c = campaign(fairness=declared)
    rows = dict(row[:2] for row in table(c, "What is called fair here").rows)
    assert [name for name in rows if name in FIVE] == list(FIVE)
    html, md, text = render_html(c), render_markdown(c).replace("\\", ""), " ".join(terminal(c).split())
    for how in rows.values():
        assert how in text, how  # a terminal cuts long cells, and a declaration must not be cut
        assert how.replace("&", "&amp;") in html.replace("&#39;", "'")
        assert how in md
    assert ("Nothing was declared" in md) == (declared is None)


def test_premises_and_the_bound_that_they_leave_are_told() -> None:
    c = campaign(fairness=DECLARED)
    rows = dict(row[:2] for row in table(c, "What is called fair here").rows)
    assert rows["premise work conserving"] == "declared to hold"
    assert rows["premise no preemption"] == "unknown"
    side = table(c, SIDE_BY_SIDE)
    assert side.rows[0][side.header.index("VTC bound")] == "no bound"
    assert "both_backlogged unknown" in side.note
    assert table(c, "Widest gaps").rows[0][2] == "none"


def test_a_guarantee_of_one_arm_is_told_as_that_arms() -> None:
    claims, not_ = (campaign(fairness=f).cells[0] for f in (DECLARED, DECLARED.model_copy(update={"guarantee": None})))
    c = replace(campaign(), cells=(replace(not_, cell="plain@x1"), replace(claims, cell="vtc@x1")))
    rows = table(c, "What is called fair here").rows
    assert [(row[0], row[2]) for row in rows[4:7]] == [
        ("guarantee", "plain@x1"), ("guarantee", "vtc@x1"), ("premise both backlogged", "vtc@x1"),
    ]  # fmt: skip
    assert {row[2] for row in rows if row[0] in FIVE[:4]} == {"every cell"}


def test_who_got_what_and_inversions() -> None:
    c = campaign()
    shares = table(c, "Service by client")
    assert [row[:2] for row in shares.rows] == [("a@x1", "a"), ("a@x1", "b")]
    assert shares.note.startswith("Weight of each: 1.")
    assert shares.rows[0][shares.header.index("Got")] == str(30 * 26)
    side = table(c, SIDE_BY_SIDE)
    assert side.rows[0][side.header.index("Inversions")].endswith(" %")
    assert "aged" not in side.header  # no quantum, no column
    assert "no aging quantum is declared" in side.note


def test_unlike_weights_have_a_column_of_their_own() -> None:
    c = campaign(workload=make_workload(tenants={"a": {"weight": 2.0}, "b": {"weight": 1.0}}))
    assert "Weight" in table(c, "Service by client").header


def test_names_from_files_stay_text() -> None:
    c = campaign(HOSTILE)
    html, md, text = render_html(c), render_markdown(c), terminal(c)
    assert "<script>alert(1)</script>" not in html
    assert "&lt;script&gt;" in html
    assert "<script>" not in md
    assert "[x](http" not in md
    assert "\n# c" not in md
    assert "\x1b[31m" not in text + html + md


def test_where_nobody_is_compared_there_is_no_section() -> None:
    for c in (analyze([make_record()], incomplete=()), campaign(("only",))):
        assert fairness_tables(c, UNIT) == fairness_glance(c, UNIT) == ()
        assert "What is called fair" not in render_html(c) + render_markdown(c) + terminal(c)
    declared = analyze([make_record(spec=make_spec(fairness=DECLARED))], incomplete=())
    assert "nobody to compare" in table(declared, SIDE_BY_SIDE).note


def test_the_plot_names_its_lines_and_is_the_same_bytes_again() -> None:
    c = campaign()
    page = render_html(c)
    assert page == render_html(c)
    assert "Completed work of each client since the start of the measured window" in page
    assert page.count("<h3>Accumulated service</h3>") == 1
    assert page.index('id="fairness"') < page.index("<h3>Accumulated service</h3>") < page.index('id="every"')


def test_json_has_all_of_it() -> None:
    found = to_json(campaign(fairness=DECLARED))["cells"][0]["fairness"]
    assert found["bound"]["verdict"] == "UNKNOWN"
    assert {s["name"] for s in found["shares"]} == {"a", "b"}


def test_by_priority_a_terminal_shows_outcomes_since_nothing_above_it_does() -> None:
    c = campaign(fairness=DECLARED.model_copy(update={"identity": "priority", "guarantee": None}))
    shares = next(t for t in fairness_glance(c, UNIT) if t.title.startswith("Service by"))
    assert shares.title == "Service by priority"
    assert "Valid" in shares.header
    assert "Valid" not in next(t for t in fairness_glance(campaign(), UNIT) if t.title.startswith("Service by")).header
