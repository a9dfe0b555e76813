"""Tables by a column map: exact values, every bad value with its line, and the troubles users had with other tools' readers."""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.profiles import profile
from workloads.schedule import Trace
from workloads.traces import formats, get_reader, read_trace, table_files
from workloads.traces.columns import Cells, counts, times
from workloads.traces.problems import TOKEN_LIMIT, ProblemList

COLUMNS = {"arrival": "at", "input-tokens": "in", "output-tokens": "out"}
SECONDS = {"columns": COLUMNS, "clock": "relative", "unit": "s"}
SESSIONS = SECONDS | {"columns": COLUMNS | {"session": "chat", "turn": "n"}, "history": "included"}
PREFIXES = SECONDS | {"columns": COLUMNS | {"prefix-ids": "ids"}, "block-size": 16, "rounding": "ceil"}


def csv(tmp_path: Path, text: str | bytes, options: dict[str, Any] = SECONDS) -> Trace:
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace("csv", path, options)


def jsonl(tmp_path: Path, rows: list[Any], options: dict[str, Any] = SECONDS) -> Trace:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return read_trace("jsonl", path, options)


def parquet(tmp_path: Path, columns: dict[str, Any], options: dict[str, Any] = SECONDS) -> Trace:
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    return read_trace("parquet", tmp_path / "t.parquet", options)


def faults(tmp_path: Path, text: str | bytes, options: dict[str, Any] = SECONDS) -> list[tuple[str, str]]:
    with pytest.raises(UsageError) as caught:
        csv(tmp_path, text, options)
    assert all(problem.remedy and problem.what.isprintable() for problem in caught.value.problems)
    return [(problem.code, problem.where) for problem in caught.value.problems]


def row(**changes: Any) -> dict[str, Any]:
    return {"at": 0, "in": 1, "out": 1} | changes


def test_columns_stand_in_any_order_beside_others(tmp_path: Path) -> None:
    trace = csv(tmp_path, 'out,text,at,in\n5,"a, b",0.5,7\n6,"two\nlines",1.25,8\n')
    assert trace.arrival_ns.tolist() == [0, 750_000_000]
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([7, 8], [5, 6])
    assert (trace.clock, trace.grid_ns) == ("relative", 10_000_000)
    assert trace.notes == (
        "columns not read: text",
        "the first request comes 0.5 s after the file's zero; arrivals here count from that request",
    )


@pytest.mark.parametrize(
    ("unit", "first", "second", "gap"),
    [
        ("s", "0", "5.8926549999999995", 5_892_655_000),
        ("s", "0.000000001", "1e1", 9_999_999_999),
        ("ms", "27000", "27000.5", 500_000),
        ("us", "1", "2.0015", 1_002),  # half to even
        ("us", "1", "2.0025", 1_002),
        ("ns", "1", "9007199254740993", 9_007_199_254_740_992),
    ],
)
def test_units_are_exact_to_the_nanosecond(unit: str, first: str, second: str, gap: int, tmp_path: Path) -> None:
    options = SECONDS | {"unit": unit}
    assert csv(tmp_path, f"at,in,out\n{first},1,1\n{second},1,1\n", options).arrival_ns.tolist() == [0, gap]
    rows = [f'{{"at": {at}, "in": 1, "out": 1}}' for at in (first, second)]
    assert jsonl(tmp_path, rows, options).arrival_ns.tolist() == [0, gap]


def test_epoch_seconds_keep_every_digit(tmp_path: Path) -> None:
    options = SECONDS | {"clock": "absolute"}
    trace = csv(tmp_path, "at,in,out\n1700000000.123456789,1,1\n1700000000.123456790,1,1\n", options)
    assert (trace.arrival_ns.tolist(), trace.clock) == ([0, 1], "absolute")


@pytest.mark.parametrize("zone", ["Z", "+00:00", "", "-0130"])
def test_stamps_are_read_with_all_their_digits(zone: str, tmp_path: Path) -> None:
    options = SECONDS | {"clock": "absolute", "unit": "iso"}
    text = f"at,in,out\n2024-02-28T23:59:59.9999999{zone},1,1\n2024-02-29 00:00:00{zone},1,1\n"
    assert csv(tmp_path, text, options).arrival_ns.tolist() == [0, 100]


def test_stamps_with_and_without_a_zone_are_two_clocks(tmp_path: Path) -> None:
    options = SECONDS | {"clock": "absolute", "unit": "iso"}
    text = "at,in,out\n2024-02-28T23:59:59Z,1,1\n2024-02-29 00:00:00,1,1\n"
    assert faults(tmp_path, text, options) == [("trace.mixed_clocks", "t.csv")]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (",1,1", "trace.missing"),
        ("  ,1,1", "trace.missing"),
        ("nan,1,1", "trace.timestamp"),
        ("inf,1,1", "trace.timestamp"),
        ("-1,1,1", "trace.timestamp"),
        ("yesterday,1,1", "trace.timestamp"),
        ("1e30,1,1", "trace.timestamp"),
        ("9300000000,1,1", "trace.timestamp"),
        ("0x10,1,1", "trace.timestamp"),
        ("1_0,1,1", "trace.timestamp"),
        ("1,,1", "trace.missing"),
        ("1,nan,1", "trace.count"),
        ("1,1.5,1", "trace.count"),
        ("1,0x1f,1", "trace.count"),
        ("1,-1,1", "trace.negative_count"),
        ("1,1,16777217", "trace.huge_count"),
        ("1,1,99999999999999999999999", "trace.huge_count"),
        ("1,1,1e400", "trace.huge_count"),
        ("1,1,1e-400", "trace.count"),
        ("1,1,\N{ARABIC-INDIC DIGIT TWO}", "trace.count"),
        ("1,1", "trace.torn_row"),
        ("1,1,1,1", "trace.torn_row"),
    ],
)
def test_bad_values_are_named_with_their_line(line: str, code: str, tmp_path: Path) -> None:
    assert faults(tmp_path, f"at,in,out\n0,1,1\n{line}\n") == [(code, "t.csv:3")]


def test_whole_numbers_may_be_written_with_a_point(tmp_path: Path) -> None:
    assert csv(tmp_path, "at,in,out\n0,12.0,1.2e1\n").output_tokens.tolist() == [12]


def test_every_problem_is_listed_at_once_with_the_line_where_the_row_starts(tmp_path: Path) -> None:
    text = 'at,in,out,text\n,x,-1,"two\nlines"\n\n1,1,1.5,b\n'
    found = faults(tmp_path, text)
    assert sorted(found) == sorted(
        [("trace.missing", "t.csv:2"), ("trace.count", "t.csv:2"), ("trace.negative_count", "t.csv:2"), ("trace.count", "t.csv:5")]
    )


def test_prompts_may_be_long_and_lines_are_still_counted(tmp_path: Path) -> None:
    text = f'at,in,out,text\n0,1,1,"{"x" * 200_000}"\nx,1,1,y\n'
    assert faults(tmp_path, text) == [("trace.timestamp", "t.csv:3")]


def test_gzip_is_read_and_a_torn_one_is_unreadable_not_shorter(tmp_path: Path) -> None:
    rows = {"csv": "at,in,out\n" + "0,1,1\n" * 999, "jsonl": '{"at": 0, "in": 1, "out": 1}\n' * 999}
    for name, text in rows.items():
        path = tmp_path / f"t.{name}.gz"
        path.write_bytes(gzip.compress(text.encode()))
        assert len(read_trace(name, path, SECONDS)) == 999
        path.write_bytes(gzip.compress(text.encode())[:-9])
        with pytest.raises(UsageError, match=r"trace\.unreadable"):
            read_trace(name, path, SECONDS)


def test_bytes_that_are_no_utf8_and_empty_files_are_said(tmp_path: Path) -> None:
    assert faults(tmp_path, b"at,in,out\n0,1,1\n0,\xff,1\n") == [("trace.encoding", "t.csv:3")]
    assert faults(tmp_path, "") == [("trace.empty", "t.csv")]
    assert faults(tmp_path, "at,in,out\n") == [("trace.no_rows", "t.csv")]


def test_missing_columns_are_named_with_their_neighbours_and_never_skip_rows(tmp_path: Path) -> None:  # aiperf#786, guidellm#992
    with pytest.raises(UsageError) as caught:
        csv(tmp_path, "At,in_,tokens\n0,1,1\n")
    assert [p.code for p in caught.value.problems] == ["trace.column"] * 3
    text = str(caught.value)
    assert "column='at': mapped, but not in the file, which has 'At', 'in_', 'tokens'" in text
    assert "map one of these instead: 'At'" in text
    assert "map one of these instead: 'in_'" in text
    with pytest.raises(UsageError, match="column='in': mapped, but not in the file"):
        jsonl(tmp_path, [{"at": 0, "input": 1, "out": 1}])
    with pytest.raises(UsageError, match="column='in': mapped, but not in the file"):
        parquet(tmp_path, {"at": [0], "input": [1], "out": [1]})


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    assert faults(tmp_path, "at,in,out,in\n0,1,1,2\n") == [("trace.doubled_column", "t.csv:1")]


def test_a_missing_timestamp_never_becomes_zero(tmp_path: Path) -> None:  # smg#636
    for missing in ({"in": 1, "out": 1}, row(at=None), row(at="")):
        with pytest.raises(UsageError, match=r"t\.jsonl:2: at=.*\[trace\.missing\]"):
            jsonl(tmp_path, [row(), missing])
    with pytest.raises(UsageError, match=r"t\.parquet:2: at=None.*\[trace\.missing\]"):
        parquet(tmp_path, {"at": [0, None], "in": [1, 1], "out": [1, 1]})


@pytest.mark.parametrize("clock", ["relative", "absolute"])
def test_two_clocks_in_one_file_are_refused(clock: str, tmp_path: Path) -> None:  # inference-sim#1606
    options = SECONDS | {"clock": clock}
    text = "at,in,out\n1700000000,1,1\n0.5,1,1\n1700000001,1,1\n"
    with pytest.raises(UsageError) as caught:
        csv(tmp_path, text, options)
    (problem,) = caught.value.problems
    assert problem.code == "trace.mixed_clocks"
    assert "2 of 3 rows have wall times, the others times from 0 (first seen in line 2 and line 3)" in problem.what


@pytest.mark.parametrize(
    ("clock", "unit", "at", "said"),
    [
        ("relative", "s", "1700000000", "declare clock absolute"),
        ("absolute", "s", "12.5", "declare clock relative"),
        ("absolute", "ms", "1700000000", "or check the option unit"),  # seconds said to be milliseconds: January 1970
        ("absolute", "s", "1700000000000", "check the option unit"),  # milliseconds said to be seconds: the year 55,840
    ],
)
def test_another_clock_or_unit_than_declared_is_refused(clock: str, unit: str, at: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        csv(tmp_path, f"at,in,out\n{at},1,1\n", SECONDS | {"clock": clock, "unit": unit})


def test_rows_out_of_order_are_kept_and_noted(tmp_path: Path) -> None:
    trace = csv(tmp_path, "at,in,out\n2,1,1\n1,1,1\n3,1,1\n")
    assert trace.arrival_ns.tolist() == [10**9, 0, 2 * 10**9]
    assert "1 rows arrive before the row above them" in trace.notes[-1]


def test_a_table_without_times_has_no_clock(tmp_path: Path) -> None:
    options = {"columns": {"input-tokens": "in", "output-tokens": "out"}, "clock": "none"}
    trace = csv(tmp_path, "in,out\n1,2\n3,4\n", options)
    assert (trace.clock, trace.arrival_ns.tolist()) == ("none", [0, 0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clock": "none"}, ["columns.arrival means nothing with clock none", "unit means nothing with clock none"]),
        ({"unit": None}, ["unit is wanted with clock relative"]),
        ({"unit": "iso"}, ["unit iso is of clock absolute"]),
        ({"columns": {"input-tokens": "in", "output-tokens": "in"}}, ["columns.arrival is wanted", "column 'in' is mapped twice"]),
        ({"columns": COLUMNS | {"prefix-ids": "ids"}}, ["block-size is wanted with columns.prefix-ids", "rounding is wanted"]),
        ({"block-size": 16, "rounding": "ceil"}, ["block-size means nothing without columns.prefix-ids"]),
        ({"columns": COLUMNS | {"session": "chat"}}, ["history is wanted with columns.session"]),
        ({"columns": COLUMNS | {"turn": "n", "think": "p"}}, ["columns.turn means nothing", "columns.think means nothing"]),
        ({"unit": "minutes", "clock": "wall", "colour": 1, "columns": {}}, ["unit=", "clock=", "colour=", "columns.input-tokens"]),
        ({"columns": COLUMNS | {"prefix-ids": "i"}, "block-size": "16", "rounding": "ceil"}, ["block-size='16'"]),
    ],
)
def test_options_that_contradict_each_other_are_listed_at_once(changes: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        csv(tmp_path, "at,in,out\n0,1,1\n", SECONDS | changes)
    assert all(part in str(caught.value) for part in said)
    assert {problem.code for problem in caught.value.problems} == {"trace.options"}


def test_names_and_failures_have_their_columns(tmp_path: Path) -> None:
    options = SECONDS | {"columns": COLUMNS | {"client": "who", "kind": "what", "failed": "bad"}}
    trace = csv(tmp_path, "at,in,out,who,what,bad\n0,1,1,b,chat,true\n1,1,0,,api,0\n2,1,1,a,chat,False\n", options)
    assert trace.client is not None
    assert trace.kind is not None
    assert trace.failed is not None
    assert (trace.client.names, trace.client.values()) == (("a", "b"), ["b", None, "a"])
    assert trace.kind.values() == ["chat", "api", "chat"]
    assert trace.failed.tolist() == [True, False, False]
    same = jsonl(tmp_path, [row(who="b", what=7, bad=True), row(at=1, what=7, bad=0)], options)
    assert same.client is not None
    assert same.client.values() == ["b", None]
    with pytest.raises(UsageError, match=r"t\.csv:2: bad='maybe'.*\[trace\.flag\]"):
        csv(tmp_path, "at,in,out,who,what,bad\n0,1,1,b,chat,maybe\n", options)


def test_sessions_wait_for_the_turn_before_and_know_what_they_extend(tmp_path: Path) -> None:
    text = "at,in,out,chat,n\n0,10,5,a,1\n1,7,1,b,0\n2,15,5,a,2\n3,4,1,,0\n4,9,1,a,10\n5,4,1,,\n"
    trace = csv(tmp_path, text, SESSIONS)
    turns = trace.turns
    assert turns is not None
    assert turns.turn.tolist() == [0, 0, 1, 0, 2, 0]
    assert [turns.after.row(i).tolist() for i in range(6)] == [[], [], [0], [], [2], []]
    assert turns.extends.tolist() == [-1, -1, 0, -1, -1, -1]  # nine tokens cannot hold the twenty before them
    assert turns.think_ns.tolist() == [-1] * 6
    assert len(set(turns.session.tolist())) == 4
    assert any("2 of 2 later turns have no known think time" in note for note in trace.notes)
    assert any("1 of 2 later turns have fewer input tokens" in note for note in trace.notes)


def test_history_left_out_extends_all_the_same(tmp_path: Path) -> None:  # dynamo#14184: the file must say which of the two it means
    text = "at,in,out,chat,n\n0,10,5,a,1\n2,3,5,a,2\n"
    turns = csv(tmp_path, text, SESSIONS | {"history": "excluded"}).turns
    assert turns is not None
    assert (turns.history, turns.extends.tolist()) == ("excluded", [-1, 0])


def test_pauses_are_read_in_the_unit_of_the_arrivals_and_may_be_unknown(tmp_path: Path) -> None:
    options = SESSIONS | {"columns": COLUMNS | {"session": "chat", "think": "p"}}
    turns = csv(tmp_path, "at,in,out,chat,p\n0,1,1,a,3\n1,9,1,a,0.5\n2,90,1,a,\n", options).turns
    assert turns is not None
    assert turns.think_ns.tolist() == [-1, 500_000_000, -1]
    with pytest.raises(UsageError, match=r"t\.csv:3: p='-1'"):
        csv(tmp_path, "at,in,out,chat,p\n0,1,1,a,3\n1,9,1,a,-1\n", options)


def test_turns_that_repeat_or_go_back_are_refused(tmp_path: Path) -> None:
    assert faults(tmp_path, "at,in,out,chat,n\n0,1,1,a,1\n1,9,1,a,1\n", SESSIONS) == [("trace.turn", "t.csv:3")]
    assert faults(tmp_path, "at,in,out,chat,n\n0,1,1,a,1\n1,9,1,a,\n", SESSIONS) == [("trace.missing", "t.csv:3")]
    assert faults(tmp_path, "at,in,out,chat,n\n1,1,1,a,1\n0,9,1,a,2\n", SESSIONS) == [("trace.turn_order", "t.csv:3")]


@pytest.mark.parametrize(
    "cell", ["[1, 18446744073709551615]", "1 18446744073709551615", "1|18446744073709551615", "1;18446744073709551615"]
)
def test_prefix_ids_keep_all_64_bits(cell: str, tmp_path: Path) -> None:  # dynamo#12046
    trace = csv(tmp_path, f'at,in,out,ids\n0,20,1,"{cell}"\n', PREFIXES)
    assert trace.blocks is not None
    assert trace.blocks.ids.row(0).tolist() == [1, 2**64 - 1]
    assert (trace.blocks.size, trace.blocks.rounding) == (16, "ceil")


def test_prefix_ids_come_as_lists_too(tmp_path: Path) -> None:
    ids = [1, 2**64 - 1]
    for trace in (
        jsonl(tmp_path, [row(**{"in": 20, "ids": ids}), row(**{"in": 0, "ids": []})], PREFIXES),
        parquet(tmp_path, {"at": [0, 0], "in": [20, 0], "out": [1, 1], "ids": pa.array([ids, []], pa.list_(pa.uint64()))}, PREFIXES),
    ):
        assert trace.blocks is not None
        assert [trace.blocks.ids.row(i).tolist() for i in range(2)] == [ids, []]


@pytest.mark.parametrize(
    ("value", "tokens", "code"),
    [
        ([2**64], 16, "trace.prefix_id"),
        ([-1], 16, "trace.prefix_id"),
        (["a"], 16, "trace.prefix_ids"),
        ([1.5], 16, "trace.prefix_ids"),
        ([[1]], 16, "trace.value"),
        (7, 16, "trace.value"),
        (None, 16, "trace.prefix_ids"),
        ([1, 2], 16, "trace.block_count"),  # guidellm#948
        ([1], 17, "trace.block_count"),  # aiperf#1209: the last partial block left out
        ([1, 2, 3], 20, "trace.block_count"),  # aiperf#581
    ],
)
def test_prefix_ids_that_cannot_be_meant_are_refused(value: Any, tokens: int, code: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        jsonl(tmp_path, [row(**{"in": tokens, "ids": value})], PREFIXES)
    assert caught.value.problems[0].code == code
    assert caught.value.problems[0].where == "t.jsonl:1"


def test_floor_rounding_has_ids_for_full_blocks_only(tmp_path: Path) -> None:
    assert jsonl(tmp_path, [row(**{"in": 17, "ids": [1]})], PREFIXES | {"rounding": "floor"}).blocks is not None


@pytest.mark.parametrize(
    ("lines", "code", "place"),
    [
        (['{"at": 0, "in": 1, "out": 1}', "[1]"], "trace.row_type", "t.jsonl:2"),
        (['{"at": 0, "in": 1, "out": 1}', "", "{"], "trace.torn_row", "t.jsonl:3"),
        (['{"at": 0, "in": 1, "out": 1, "in": 2}'], "trace.repeated_key", "t.jsonl:1"),
        (['{"at": 0, "in": true, "out": 1}'], "trace.count", "t.jsonl:1"),
        (['{"at": 0, "in": [1], "out": 1}'], "trace.value", "t.jsonl:1"),
        (['{"at": 0, "in": {}, "out": 1}'], "trace.value", "t.jsonl:1"),
        ([""], "trace.no_rows", "t.jsonl"),
    ],
)
def test_json_lines_are_strict(lines: list[str], code: str, place: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        jsonl(tmp_path, lines)
    first = caught.value.problems[0]
    assert (first.code, first.where) == (code, place)


def test_parquet_types_mean_what_they_hold(tmp_path: Path) -> None:
    stamps = pa.array([1_700_000_000_000_000_000, 1_700_000_000_000_000_001], pa.timestamp("ns", "UTC"))
    trace = parquet(
        tmp_path, {"at": stamps, "in": pa.array([1, 2], pa.uint8()), "out": [1.0, 2.0]}, SECONDS | {"clock": "absolute", "unit": "iso"}
    )
    assert (trace.arrival_ns.tolist(), trace.output_tokens.tolist()) == ([0, 1], [1, 2])
    trace = parquet(tmp_path, {"at": [0.0, 5.8926549999999995], "in": pa.array(["1", "2"]).dictionary_encode(), "out": [1, 2]})
    assert trace.arrival_ns.tolist() == [0, 5_892_655_000]
    trace = parquet(tmp_path, {"at": pa.array([Decimal("0.1"), Decimal("0.3")]), "in": [1, 2], "out": [1, 2]})
    assert trace.arrival_ns.tolist() == [0, 200_000_000]


@pytest.mark.parametrize(
    ("column", "code"),
    [
        (pa.array([0.0, float("nan")]), "trace.timestamp"),
        (pa.array([0.0, float("inf")]), "trace.timestamp"),
        (pa.array([0, -1]), "trace.timestamp"),
        (pa.array([0, 2**64 - 1], pa.uint64()), "trace.timestamp"),
        (pa.array([{"a": 1}, {"a": 2}]), "trace.column_type"),
        (pa.array([[1], [2]]), "trace.column_type"),
        (pa.array([True, False]), "trace.timestamp"),
        (pa.array([b"1", b"2"]), "trace.column_type"),
    ],
)
def test_parquet_values_are_checked(column: pa.Array, code: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        parquet(tmp_path, {"at": column, "in": [1, 2], "out": [1, 2]})
    assert caught.value.problems[0].code == code


def test_what_is_no_parquet_or_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1PAR1")
    with pytest.raises(UsageError, match=r"trace\.parquet"):
        read_trace("parquet", tmp_path / "t.parquet", SECONDS)
    for name in ("csv", "jsonl", "parquet"):
        with pytest.raises(UsageError, match=r"trace\.unreadable"):
            read_trace(name, tmp_path / "absent", SECONDS)


def test_generic_readers_claim_no_file_and_the_preset_only_its_own() -> None:
    header = b"arrived_at,num_prefill_tokens,num_decode_tokens"
    for head in (header + b"\n0.0,1,1", b"at,in,out\n", b'{"at": 0}\n', b"PAR1"):
        claims = [name for name in formats() if name in {"csv", "jsonl", "parquet", "vidur"} and get_reader(name).sniff("t", head)]
        assert claims == (["vidur"] if head.startswith(header) else [])
    assert not get_reader("vidur").sniff("t", header + b",x\n0.0,1,1,1")


def test_blocks_of_a_large_file_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "_BLOCK_BYTES", 1_000)
    rows = 1_000
    text = "at,in,out\n" + "".join(f"{i}.5,{i % 7},{i % 5}\n" for i in range(rows))
    trace = csv(tmp_path, text)
    assert trace.arrival_ns.tolist() == [i * 10**9 for i in range(rows)]
    assert trace.input_tokens.tolist() == [i % 7 for i in range(rows)]
    assert faults(tmp_path, text + "x,1,1\n") == [("trace.timestamp", f"t.csv:{rows + 2}")]
    same = jsonl(tmp_path, [f'{{"at":{i}.5,"in":{i % 7},"out":{i % 5}}}' for i in range(rows)])
    assert same.arrival_ns.tolist() == trace.arrival_ns.tolist()


NUMBERS = st.decimals(0, 10**9, allow_nan=False, places=None) | st.decimals(0, 100, places=12) | st.integers(0, 10**9).map(Decimal)


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.sampled_from([("s", 9), ("ms", 6), ("us", 3), ("ns", 0)]))
def test_times_are_the_nearest_nanosecond_whichever_half_reads_them(values: list[Decimal], unit: tuple[str, int]) -> None:
    wanted = [int((value * 10 ** unit[1]).to_integral_value(ROUND_HALF_EVEN)) for value in values]
    texts = [str(value) for value in values]
    problems = ProblemList("t")
    together = times(Cells("at", pa.array(texts), lambda index: index), unit[0], problems)
    slow = times(Cells("at", pa.array([*texts, " 0 "]), lambda index: index), unit[0], problems)
    assert together.tolist() == slow.tolist()[:-1] == wanted
    problems.raise_if_any()


WILD = st.text(st.sampled_from("0123456789.+-eExXaAnN _\x00"), max_size=6) | st.sampled_from(["", "1e3", "16777216", "16777217", "0x10"])


@given(st.lists(WILD, min_size=1, max_size=4))
def test_counts_are_the_same_alone_and_together(texts: list[str]) -> None:
    """A value is judged alike beside good ones and beside bad ones."""
    alone = []
    for text in texts:
        problems = ProblemList("t")
        value = int(counts(Cells("in", pa.array([text]), lambda index: index), problems)[0])
        alone.append(None if len(problems) else value)
    problems = ProblemList("t")
    together = counts(Cells("in", pa.array([*texts, "x"]), lambda index: index), problems).tolist()[:-1]
    assert [value for value in alone if value is not None] == [v for v, a in zip(together, alone, strict=True) if a is not None]
    assert len(problems) == alone.count(None) + 1
    assert all(0 <= value <= TOKEN_LIMIT for value in together)


@given(st.binary(max_size=200))
def test_any_bytes_after_the_header_end_in_a_trace_or_a_usage_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    for name, head in (("csv", b"at,in,out\n0,1,1\n"), ("jsonl", b'{"at": 0, "in": 1, "out": 1}\n'), ("parquet", b"PAR1")):
        path = folder / f"any.{name}"
        path.write_bytes(head + raw)
        try:
            trace = read_trace(name, path, SECONDS)
        except UsageError:
            continue
        assert trace.arrival_ns.min() == 0
        assert np.array_equal(trace.source_row, np.arange(len(trace)))


def test_a_pause_of_decades_is_refused_at_its_line(tmp_path: Path) -> None:
    options = SESSIONS | {"columns": COLUMNS | {"session": "chat", "think": "k"}}
    assert faults(tmp_path, "at,in,out,chat,k\n0,1,1,a,\n5,1,1,a,9000000000\n", options) == [("trace.timestamp", "t.csv:3")]


def test_blocks_larger_than_any_prompt_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        csv(tmp_path, "at,in,out,ids\n0,1,1,1\n", PREFIXES | {"block-size": 10**30})
    assert [problem.code for problem in caught.value.problems] == ["trace.options"]


def test_only_the_last_line_of_json_lines_is_called_cut_off(tmp_path: Path) -> None:
    whole = json.dumps(row())
    for lines, code in (([whole, whole[:-2], whole], "trace.json"), ([whole, whole[:-2]], "trace.torn_row")):
        with pytest.raises(UsageError) as caught:
            jsonl(tmp_path, lines)
        assert [(problem.code, problem.where) for problem in caught.value.problems] == [(code, "t.jsonl:2")]


@pytest.mark.parametrize(
    ("text", "columns", "repeated"),
    [
        ('at,in,out,text\n1,2,3,"x\ny"\n2,2,3,"x\ny"\n', ["at", "in", "out", "text"], 0),
        ('at,in,out,text\n1,2,3,"x\ny"\n1,2,3,"x\ny"\n', ["at", "in", "out", "text"], 1),
        ("at;in;out\n1;2;3\n1;2;3\n", ["at", "in", "out"], 1),
    ],
)
def test_the_profile_of_a_csv_knows_its_cells(text: str, columns: list[str], repeated: int, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    shown = profile(tmp_path / "t.csv", "csv")
    assert (shown["columns"], shown["exact_duplicate_rows"]) == (columns, repeated)
