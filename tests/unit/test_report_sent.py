from __future__ import annotations

import dataclasses
import io
import re
from typing import Any

from rich.console import Console

from analysis.model import CampaignAnalysis, CellAnalysis, Group, Reuse, Tally
from analysis.report import render_html, render_markdown, render_terminal, to_json
from analysis.report.sent import FOLDED, GLANCE_GROUPS, group_glance, group_tables, sent_tables
from analysis.report.table import Table
from analysis.report.words import Unit
from harness.record.canonical import canonical_json
from tests.report_demo import campaign, group, shared

MS = Unit("ms", 1000.0)


def titled(tables: tuple[Table, ...], start: str) -> Table:
    (found,) = [t for t in tables if t.title.startswith(start)]
    return found


def column(table: Table, name: str) -> list[str]:
    return [row[table.header.index(name)] for row in table.rows]


def with_cell(c: CampaignAnalysis, **changes: Any) -> CampaignAnalysis:
    return dataclasses.replace(c, cells=(dataclasses.replace(c.cells[0], **changes), *c.cells[1:]))


def test_each_run_shows_what_was_planned_came_due_and_was_sent() -> None:
    table = titled(sent_tables(campaign(), MS), "Arrivals")
    assert table.rows[0][:6] == ("budget-512@x1 / replicate 0", "by the clock", "130", "130", "130", "0")
    assert table.rows[1][:6] == ("budget-512@x1 / replicate 0", "after others", "30", "28", "27", "2")
    assert column(table, "Slip p50, p99, max (ms)")[:2] == ["0.1, 0.3, 2.1", ""]
    assert column(table, "CV of gaps")[:2] == ["1.4 → 1.38", "0.9 → n/a"]
    assert table.rows[-1][:2] == ("budget-8192@x1 / replicate 4", "by the clock")  # nobody waits there
    assert "Never due, in no cohort: 10, a request they wait for did not end as planned." in table.note


def test_tokens_stand_beside_each_other_by_witness_and_lacks_are_named() -> None:
    table = titled(sent_tables(campaign(), MS), "Tokens")
    assert table.rows[0] == ("budget-512@x1", "input", "12800 (800)", "12000 (800)", "9600 (795)", "12000 (800)")
    assert table.rows[1][4:] == ("unknown", "unknown")
    for why in ("input: stated by the server for 159 of 160 requests.", "output: no snapshot from after the last request ended."):
        assert why in table.note


def test_possible_and_realised_reuse_stand_side_by_side() -> None:
    table = titled(sent_tables(campaign(), MS), "Prefix reuse")
    assert table.header[2:5] == ("Possible, blocks of 1", "Possible, blocks of 16", "Realised")
    assert table.rows[0][2:] == ("7200 (800)", "6400 (800)", "3200 (800)", "26.7 %", "server counter", "on")


def test_a_share_of_which_some_requests_said_nothing_is_a_lower_bound() -> None:
    some = Reuse({"1": Tally(1440, 160), "16": Tally(1280, 160)}, Tally(640, 150, "usage states it for 150 of 160 requests"), "usage", "on")
    table = titled(sent_tables(dataclasses.replace(campaign(), cells=(reused(campaign().cells[0], some),)), MS), "Prefix reuse")
    assert column(table, "Of the input") == ["at least 26.7 %"]


def test_the_chain_shows_what_each_step_changed_and_runs_that_agree_share_a_row() -> None:
    table = titled(sent_tables(campaign(), MS), "Transform chain")
    assert table.rows == (("1", "time_compress", "factor 2.0", "160 → 160", "mean rate rps 4 → 8", "10 runs"),)


def chain_row(**entry: Any) -> tuple[str, ...]:
    whole = campaign()
    run = whole.cells[0].runs[0]
    assert run.sent is not None
    changed = dataclasses.replace(run, sent=dataclasses.replace(run.sent, transforms=(entry,)))
    return titled(sent_tables(with_cell(whole, runs=(changed,)), MS), "Transform chain").rows[0]


def test_a_step_of_an_older_record_says_that_nothing_was_logged() -> None:
    assert chain_row(name="sort", rows_before=3, rows_after=3)[1:5] == ("sort", "", "3 → 3", "not logged")


def test_a_step_without_effect_and_one_that_leaves_nothing_are_said() -> None:
    same = {"mean_rate_rps": 1.0, "input_tokens": {"mean": None}}
    assert chain_row(name="sort", effect={"before": same, "after": same})[3:5] == ("unknown → unknown", "nothing changed")
    gone = {"mean_rate_rps": None, "input_tokens": {"mean": 2}}
    found = chain_row(name="thin", effect={"before": same, "after": gone, "turns_without_predecessor": 4})[4]
    assert found == "mean rate rps 1 → undefined; input tokens mean undefined → 2; turns_without_predecessor 4"


def test_clients_and_classes_show_every_outcome_and_what_nobody_knows() -> None:
    tables = group_tables(shared(), MS)
    assert [t.title for t in tables] == [
        "Outcomes by request class",
        "Tokens and reuse by request class",
        "Outcomes by client",
        "Tokens and reuse by client",
    ]
    clients = titled(tables, "Outcomes by client")
    assert column(clients, "Client")[:4] == ["tenant-1", "tenant-2", "(none)", "(12 others)"]
    assert clients.rows[0][2:] == ("122", "113", "5", "2", "1", "0", "1", "0", "93 %", "9.2", "81.2", "withheld")
    assert clients.note.startswith("SLO: TTFT <= 500 ms.")
    assert "ttft_p99 withheld: insufficient_sample, fewer than 100 completed requests." in clients.note
    reuse = titled(tables, "Tokens and reuse by client")
    assert column(reuse, "Reuse realised")[0] == "unknown"
    assert "reuse realised: the server's counter does not say whose they are." in reuse.note


def test_a_report_without_names_or_proof_has_no_empty_sections() -> None:
    bare = campaign()
    cells = tuple(dataclasses.replace(c, runs=tuple(dataclasses.replace(r, sent=None) for r in c.runs)) for c in bare.cells)
    bare = dataclasses.replace(bare, cells=cells)
    assert sent_tables(bare, MS) == group_tables(bare, MS) == ()
    for text in (render_markdown(bare), render_html(bare)):
        assert "What was sent" not in text
        assert "Clients and classes" not in text


def crowd(n: int) -> tuple[Group, ...]:
    return tuple(group("client", f"c{i}") for i in range(n))


def test_a_long_list_of_clients_is_folded_in_the_report_and_cut_on_a_terminal() -> None:
    c = with_cell(campaign(), groups=crowd(FOLDED + 1))
    assert titled(group_tables(c, MS), "Outcomes by client").folded
    (table,) = group_glance(c, MS)
    assert len(table.rows) == GLANCE_GROUPS
    assert table.note.endswith(f"{FOLDED + 1 - GLANCE_GROUPS} more in the report.")
    assert "SLO" not in table.header


def printed(c: CampaignAnalysis) -> str:
    out = io.StringIO()
    render_terminal(c, Console(file=out, width=120, color_system=None))
    return out.getvalue()


def reused(cell: CellAnalysis, reuse: Reuse) -> CellAnalysis:
    runs = tuple(dataclasses.replace(r, sent=dataclasses.replace(r.sent, reuse=reuse)) for r in cell.runs if r.sent)
    return dataclasses.replace(cell, runs=runs)


def test_a_terminal_speaks_of_reuse_only_where_there_was_some_to_be_had() -> None:
    assert "Prefix reuse" in printed(campaign())
    start_token = Reuse({"1": Tally(160, 160), "16": Tally(0, 160)}, Tally(160, 160), "usage")
    plain = campaign()
    plain = dataclasses.replace(plain, cells=tuple(reused(c, start_token) for c in plain.cells))
    assert "Prefix reuse" not in printed(plain)


def test_the_loop_is_named_first_thing() -> None:
    assert "Loop: closed (8 users). Closed (8 users) loop: the server's own speed sets the load" in re.sub(r"\s+", " ", printed(shared()))
    assert "Loop: open." in render_markdown(campaign())


def test_cancellations_by_plan_and_turns_never_due_are_told_under_the_outcomes() -> None:
    text = re.sub(r"\s+", " ", printed(shared()))
    assert "never arrived (a request they wait for did not end as planned): budget-512@x1 10, budget-8192@x1 10." in text
    assert "budget-512@x1 valid 565, miss 25, rej 10, open 10 of 610" in text
    assert "four-class" not in printed(campaign())


def test_a_pair_shows_what_must_hold_beside_its_coordinates() -> None:
    text = render_markdown(campaign()).replace("\\", "")
    assert "output_length_agree | PASS | mean output tokens 100 and 104 over 600 requests that both served" in text


def test_everything_is_in_the_json_too() -> None:
    document = to_json(shared())
    canonical_json(document)
    cell = document["cells"][0]
    assert cell["groups"][3]["members"] == 12
    assert cell["runs"][0]["sent"]["reuse"]["possible"]["16"] == {"value": 1280, "n": 160, "reason": ""}
    assert cell["outcomes"]["not_due"] == {"never_due": 10}
