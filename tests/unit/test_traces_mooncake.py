"""Reader mooncake: whole milliseconds, blocks of 512 with a partial last one, ids of 64 bits, and refusals that tell what fits instead."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracefiles import check_sound, codes, fault, jsonl, read
from workloads.profiles import profile
from workloads.traces import get_reader

FORMAT = "mooncake"
ROW = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]}


def row(**changes: object) -> dict[str, object]:
    return {**ROW, **changes}


def test_rows_are_objects_and_token_totals_are_theirs_sglang_12601() -> None:
    trace = read(FORMAT, jsonl([row(), row(timestamp=3, input_length=13, hash_ids=[7])]))
    assert trace.input_tokens.tolist() == [1000, 13]
    assert trace.output_tokens.tolist() == [5, 5]
    assert trace.arrival_ns.tolist() == [0, 3_000_000]
    assert (trace.clock, trace.grid_ns) == ("relative", 1_000_000)


def test_the_block_size_is_an_option_with_the_formats_default_sglang_12601() -> None:
    assert (get_reader(FORMAT).info.prefix.block_size, get_reader(FORMAT).info.prefix.rounding) == (512, "ceil")  # type: ignore[union-attr]
    trace = read(FORMAT, jsonl([row(input_length=40, hash_ids=[1, 2, 3])]), block_size=16)
    assert (trace.blocks.size, trace.blocks.ids.row(0).tolist()) == (16, [1, 2, 3])  # type: ignore[union-attr]


def test_defaults_fit_the_published_unit_and_another_unit_must_be_said_vllm_39795() -> None:
    assert read(FORMAT, jsonl([row(), row(timestamp=2500)])).arrival_ns.tolist() == [0, 2_500_000_000]
    seconds = jsonl([row(), row(timestamp=2.5)])
    assert codes(FORMAT, seconds) == ["trace.timestamp"]
    trace = read(FORMAT, seconds, time_unit="s")
    assert (trace.arrival_ns.tolist(), trace.grid_ns) == ([0, 2_500_000_000], 1)


def test_blocks_of_16_read_as_512_are_refused_with_the_size_that_fits_vllm_39795() -> None:
    error = fault(FORMAT, jsonl([row(input_length=40, hash_ids=[1, 2, 3])]))
    assert error.problems[0].code == "trace.block_count"
    assert "block_size of 14 to 19" in error.problems[0].remedy


@pytest.mark.parametrize("ids", [[1, 2], [], [1, 2, 3]])
def test_ids_that_do_not_fit_the_length_are_refused_guidellm_948_aiperf_581(ids: list[int]) -> None:
    error = fault(FORMAT, jsonl([row(), row(input_length=20, hash_ids=ids)]))
    assert [(p.code, p.where) for p in error.problems] == [("trace.block_count", "t.jsonl:2")]
    assert f"{len(ids)} for 20 tokens" in error.problems[0].what


def test_a_page_saved_instead_of_the_file_is_named_aiperf_581() -> None:
    assert codes(FORMAT, b"<!DOCTYPE html>\n<html>\n") == ["trace.web_page"]
    assert codes(FORMAT, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n") == ["trace.lfs_pointer"]


def test_the_partial_last_block_keeps_its_id_aiperf_1209() -> None:
    trace = read(FORMAT, jsonl([row(input_length=513, hash_ids=[1, 2]), row(input_length=512, hash_ids=[1])]))
    assert trace.blocks.rounding == "ceil"  # type: ignore[union-attr]
    assert trace.blocks.ids.row(0).tolist() == [1, 2]  # type: ignore[union-attr]
    assert codes(FORMAT, jsonl([row(input_length=513, hash_ids=[1])])) == ["trace.block_count"]
    assert read(FORMAT, jsonl([row(input_length=513, hash_ids=[1])]), rounding="floor").blocks.rounding == "floor"  # type: ignore[union-attr]


def test_a_block_partial_in_one_row_and_full_in_another_is_one_block_aiperf_1219() -> None:
    trace = read(FORMAT, jsonl([row(input_length=10, hash_ids=[1]), row(input_length=600, hash_ids=[1, 2])]))
    assert trace.blocks.ids.values.tolist() == [1, 1, 2]  # type: ignore[union-attr]


def test_ids_of_64_bits_stay_apart_dynamo_12046() -> None:
    ids = [1, (1 << 32) + 1, (1 << 64) - 1, (1 << 63)]
    trace = read(FORMAT, jsonl([row(input_length=2048, hash_ids=ids)]))
    assert trace.blocks.ids.values.tolist() == ids  # type: ignore[union-attr]
    assert trace.blocks.ids.values.dtype == np.uint64  # type: ignore[union-attr]


@pytest.mark.parametrize("bad", [1 << 64, -1, 1.0, True, None, "1", [1]])
def test_ids_beyond_64_bits_and_what_is_no_id_are_refused_never_wrapped(bad: object) -> None:
    assert codes(FORMAT, jsonl([row(hash_ids=[1, bad])])) == ["trace.hash_id"]


def test_a_missing_time_never_becomes_zero_smg_636() -> None:
    bare = {key: value for key, value in ROW.items() if key != "timestamp"}
    assert codes(FORMAT, jsonl([ROW, bare])) == ["trace.missing"]
    assert codes(FORMAT, jsonl([row(timestamp=None)])) == ["trace.missing"]


def test_epoch_and_relative_stamps_do_not_mix_inference_sim_1606() -> None:
    assert codes(FORMAT, jsonl([row(), row(timestamp=1_750_000_000_000)])) == ["trace.timestamp"]


def test_extra_keys_are_read_past_and_named_guidellm_992() -> None:
    trace = read(FORMAT, jsonl([row(session_id="a", priority=1)]))
    assert "keys not read: 'priority', 'session_id'" in trace.notes


def test_missing_ids_are_refused_rather_than_replayed_as_no_sharing_inference_sim_829() -> None:
    assert codes(FORMAT, jsonl([{key: value for key, value in ROW.items() if key != "hash_ids"}])) == ["trace.hash_ids"]


def test_equal_rows_are_two_requests() -> None:
    assert len(read(FORMAT, jsonl([row(), row()]))) == 2


def test_rows_keep_the_files_order_and_count_from_the_earliest() -> None:
    trace = read(FORMAT, jsonl([row(timestamp=900), row(timestamp=500)]))
    assert trace.arrival_ns.tolist() == [400_000_000, 0]
    assert any("0.5 s after the file's zero" in note for note in trace.notes)


def test_a_grid_of_three_seconds_is_told() -> None:
    stamps = [3000 * i + (-1, 0, 1)[i % 3] for i in range(1, 40) for _ in range(5)]
    notes = read(FORMAT, jsonl([row(timestamp=t) for t in stamps])).notes
    assert any("grid of about 3 s" in note and "up to 5 requests" in note for note in notes)


def test_irregular_arrivals_are_called_no_grid() -> None:
    stamps = np.cumsum(np.random.default_rng(1).exponential(250, 400)).astype(int)
    assert not any("grid" in note for note in read(FORMAT, jsonl([row(timestamp=int(t)) for t in stamps])).notes)


def test_a_block_that_starts_every_row_is_told() -> None:
    assert any("every row starts with block 7" in note for note in read(FORMAT, jsonl([row(), row()])).notes)
    other = row(hash_ids=[1, 8])
    assert not any("starts with block" in note for note in read(FORMAT, jsonl([row(), other])).notes)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"input_length": -1}, "trace.negative_count"),
        ({"input_length": "1000"}, "trace.count"),
        ({"input_length": 1000.5}, "trace.count"),
        ({"input_length": True}, "trace.count"),
        ({"output_length": 1 << 25}, "trace.huge_count"),
        ({"output_length": 10**30}, "trace.huge_count"),
        ({"timestamp": -5}, "trace.timestamp"),
        ({"timestamp": "5"}, "trace.timestamp"),
        ({"hash_ids": {"a": 1}}, "trace.hash_ids"),
    ],
)
def test_bad_values_are_named(changes: dict[str, object], code: str) -> None:
    error = fault(FORMAT, jsonl([row(), row(**changes)]))
    assert (error.problems[0].code, error.problems[0].where) == (code, "t.jsonl:2")


ROWS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 600)), min_size=1, max_size=12)


@given(ROWS, st.sampled_from(["ceil", "floor"]), st.data())
def test_what_is_written_is_read(rows: list[tuple[int, int, int, int]], rounding: str, data: st.DataObject) -> None:
    size = rows[0][3]
    count = [-(-n // size) if rounding == "ceil" else n // size for _, n, _, _ in rows]
    ids = [data.draw(st.lists(st.integers(0, (1 << 64) - 1), min_size=k, max_size=k)) if k < 9 else list(range(k)) for k in count]
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    raw = jsonl(dict(zip(keys, (*r[:3], i), strict=True)) for r, i in zip(rows, ids, strict=True))
    trace = read(FORMAT, raw, block_size=size, rounding=rounding)
    check_sound(trace)
    first = min(r[0] for r in rows)
    assert trace.arrival_ns.tolist() == [(r[0] - first) * 1_000_000 for r in rows]
    assert [trace.blocks.ids.row(i).tolist() for i in range(len(rows))] == ids  # type: ignore[union-attr]


@given(st.integers(1, 5000), st.integers(1, 700), st.integers(1, 700), st.sampled_from(["ceil", "floor"]))
def test_the_sizes_a_refusal_offers_fit(tokens: int, size: int, wrong: int, rounding: str) -> None:
    def blocks(of: int) -> int:
        return -(-tokens // of) if rounding == "ceil" else tokens // of

    raw = jsonl([row(input_length=tokens, hash_ids=list(range(blocks(size))))])
    if blocks(wrong) == blocks(size):
        assert len(read(FORMAT, raw, block_size=wrong, rounding=rounding)) == 1
        return
    remedy = fault(FORMAT, raw, block_size=wrong, rounding=rounding).problems[0].remedy
    offer = re.search(r"block_size of (\d+) (?:to (\d+)|or more)", remedy)
    assert offer is not None
    low, high = int(offer[1]), int(offer[2] or size + 1)
    assert low <= size <= high
    assert [blocks(fits) == blocks(size) for fits in (low, high)] == [True, True]
    assert low == 1 or blocks(low - 1) != blocks(size)
    assert offer[2] is None or blocks(high + 1) != blocks(size)


def test_the_profile_says_nothing_in_ms_of_stamps_that_are_no_whole_ms(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    for stamps, unit in (((0, 3000), "ms"), ((0.5, 3), None)):
        path.write_bytes(jsonl({"timestamp": at, "input_length": 5, "output_length": 5, "hash_ids": [1]} for at in stamps))
        shown = profile(path, "mooncake")
        assert (shown.get("timestamp_unit"), "gcd_ms" in shown) == (unit, unit is not None)
