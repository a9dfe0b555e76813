"""The section on what the server did: absence is a word with a reason, many cells are folded, nothing said is no table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from analysis.campaign import analyze
from analysis.model import CampaignAnalysis, Figure
from analysis.report.server_side import server_tables
from analysis.server_side import ServerSide
from tests.gates.cases import healthy


@cache
def campaign() -> CampaignAnalysis:
    return analyze([healthy()], incomplete=())


def shown(*sides: ServerSide | None) -> dict[str, list[tuple[str, ...]]]:
    (cell,) = campaign().cells
    cells = tuple(replace(cell, cell=f"cell {i}", server=side) for i, side in enumerate(sides))
    return {table.title: [table.header, *table.rows, (table.note,)] for table in server_tables(replace(campaign(), cells=cells))}


def figure(metric: str, value: float | None, unit: str = "requests", reason: str = "") -> Figure:
    return Figure(metric, unit, value, "unknown" if value is None else "ok", 3, "p", reason=reason)


def side(*figures: Figure, **iterations: float) -> ServerSide:
    return ServerSide({f.metric: f for f in figures}, {name.replace("_", "."): n for name, n in iterations.items()})


def test_without_a_word_of_any_server_there_is_no_table() -> None:
    assert shown(None, None) == {}
    assert shown(side(figure("running", None, reason="r"))) == {}


def test_what_one_cell_lacks_is_unknown_with_its_reason() -> None:
    found = shown(side(figure("running", 2.0)), side(figure("running", None, reason="never shown")))
    header, row, (note,) = found["Queue, cache and work"]
    assert header == ("What", "Unit", "cell 0", "cell 1")
    assert row == ("Running, mean", "requests", "2.000", "unknown")
    assert "Unknown: Running, mean (never shown)." in note


def test_a_cell_of_another_kind_of_host_has_a_hole_and_no_zero() -> None:
    found = shown(side(figure("gpu_power", 700.0, "W")), side(figure("server_cpu", 1.5, "cores")))
    assert found["Host"][1:3] == [("Server CPU", "cores", "unknown", "1.500"), ("GPU power", "W", "700.0", "unknown")]


def test_values_are_in_units_a_reader_knows() -> None:
    found = shown(
        side(figure("queue_time", 0.0125, "s"), figure("server_memory_max", 3 * 2.0**30, "bytes"), figure("kv_usage", 0.5, "ratio"))
    )
    assert found["Server times"][1] == ("In queue", "ms", "12.50")
    assert found["Host"][1] == ("Server memory, highest sample", "GiB", "3.000")
    assert found["Queue, cache and work"][1] == ("KV cache in use, mean", "%", "50.00")


def test_shares_of_iterations_end_where_the_last_one_lies() -> None:
    found = shown(ServerSide({}, {"8.0": 3.0, "16.0": 0.0, "64.0": 1.0, "128.0": 0.0, "+Inf": 0.0}), ServerSide({}, {"8.0": 0.0}))
    assert found["Tokens of an iteration"][:-1] == [("Tokens, at most", "cell 0"), ("8", "75 %"), ("16", "0 %"), ("64", "25 %")]
    assert shown(ServerSide({}, {"8.0": 9999.0, "64.0": 1.0}))["Tokens of an iteration"][1:3] == [("8", "99.99 %"), ("64", "0.01 %")]
    assert shown(ServerSide({}, {"8.0": 1.0, "+Inf": 1.0}))["Tokens of an iteration"][2] == ("more", "50 %")


def test_many_cells_are_told_a_few_at_a_time_and_folded() -> None:
    (cell,) = campaign().cells
    cells = tuple(replace(cell, cell=f"cell {i}", server=side(figure("running", float(i)))) for i in range(6))
    tables = server_tables(replace(campaign(), cells=cells))
    assert [table.title for table in tables] == ["Queue, cache and work (1 of 2)", "Queue, cache and work (2 of 2)"]
    assert [len(table.header) for table in tables] == [6, 4]
    assert all(table.folded for table in tables)


def test_what_a_file_says_is_cleaned() -> None:
    (table,) = (shown(side(figure("running", 1.0), figure("waiting", None, reason="a\nb\x1b[31m")))).values()
    assert table[-1][0].endswith("Unknown: Waiting, mean (a b\ufffd[31m).")
