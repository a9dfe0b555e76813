"""Format trigpoint: what is written is read back, the same bytes for the same trace, and no other end than a trace or a UsageError."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.schedule import Blocks, Labels, Ragged, Trace, Turns
from workloads.traces import get_reader, guess_format, read_trace
from workloads.traces.own import SUFFIX, write_trace
from workloads.traces.problems import TOKEN_LIMIT

SHA = "ab" * 32
TOKENS = st.integers(0, TOKEN_LIMIT)
NAME = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp())
    yield made
    shutil.rmtree(made)


def column(draw: st.DrawFn, rows: int, values: st.SearchStrategy[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(draw(st.lists(values, min_size=rows, max_size=rows)), dtype=np.int64)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    rows = draw(st.integers(1, 6))

    def lists(values: st.SearchStrategy[int]) -> list[list[int]]:
        return draw(st.lists(st.lists(values, max_size=4), min_size=rows, max_size=rows))

    def labels() -> Labels | None:
        return draw(st.none() | st.lists(st.none() | NAME, min_size=rows, max_size=rows).map(Labels.of))

    blocks = Blocks(
        Ragged.of(lists(st.integers(0, 2**64 - 1)), np.uint64), draw(st.integers(1, 4096)), draw(st.sampled_from(["ceil", "floor"]))
    )
    turns = Turns(
        column(draw, rows, st.integers(0, 2**40)),
        column(draw, rows, st.integers(0, 2**40)),
        Ragged.of(lists(st.integers(0, rows - 1)), np.int64),
        column(draw, rows, st.integers(-1, 2**60)),
        column(draw, rows, st.integers(-1, rows - 1)),
        draw(st.sampled_from(["included", "excluded"])),
    )
    return Trace(
        draw(NAME),
        draw(NAME),
        column(draw, rows, st.integers(0, 2**60)),
        column(draw, rows, TOKENS),
        column(draw, rows, TOKENS),
        column(draw, rows, st.integers(0, 2**60)),
        clock=draw(st.sampled_from(["absolute", "relative", "session", "none"])),
        grid_ns=draw(st.integers(1, 2**40)),
        sha256=draw(st.sampled_from(["", SHA])),
        licence=draw(NAME),
        attribution=draw(NAME),
        client=labels(),
        kind=labels(),
        failed=draw(st.none() | st.lists(st.booleans(), min_size=rows, max_size=rows).map(np.array)),
        blocks=draw(st.none() | st.just(blocks)),
        turns=draw(st.none() | st.just(turns)),
        skipped=draw(st.dictionaries(NAME, st.integers(0, 2**40), max_size=2)),
        notes=draw(st.lists(NAME, max_size=2).map(tuple)),
    )


def flat(trace: Trace) -> dict[str, Any]:
    """Every column and fact of a trace as plain values; labels by name."""
    found: dict[str, Any] = {name: getattr(trace, name).tolist() for name in ("arrival_ns", "input_tokens", "output_tokens", "source_row")}
    found |= {name: getattr(trace, name) for name in ("clock", "grid_ns", "licence", "attribution", "skipped")}
    found |= {"client": trace.client and trace.client.values(), "kind": trace.kind and trace.kind.values()}
    found["failed"] = None if trace.failed is None else trace.failed.tolist()
    if trace.blocks is not None:
        ids = trace.blocks.ids
        found["blocks"] = (ids.offsets.tolist(), ids.values.tolist(), str(ids.values.dtype), trace.blocks.size, trace.blocks.rounding)
    if trace.turns is not None:
        t = trace.turns
        found["turns"] = [c.tolist() for c in (t.session, t.turn, t.after.offsets, t.after.values, t.think_ns, t.extends)] + [t.history]
    return found


def small(**changes: Any) -> Trace:
    rows = np.arange(3, dtype=np.int64)
    base = Trace("azure-2023", "conv.csv", rows * 10, rows + 1, rows + 2, rows, licence="CC-BY-4.0", attribution="Microsoft", sha256=SHA)
    return replace(base, **changes)


def rewritten(path: Path, header: dict[str, Any] | None = None, **columns: Any) -> Path:
    """The file with columns and header entries changed."""
    table = pq.read_table(path)
    for name, values in columns.items():
        where = table.schema.get_field_index(name)
        table = table.append_column(name, values) if where < 0 else table.set_column(where, name, values)
    told = json.loads(table.schema.metadata[b"trigpoint"]) | (header or {})
    pq.write_table(table.replace_schema_metadata({b"trigpoint": json.dumps(told).encode()}), path)
    return path


@given(trace=traces())
@settings(max_examples=40)
def test_every_column_and_fact_comes_back(trace: Trace, folder: Path) -> None:
    path = folder / f"t{SUFFIX}"
    write_trace(trace, path)
    again = get_reader("trigpoint").read(path, None, 0)
    assert flat(again) == flat(trace)
    assert again.notes[:-1] == trace.notes
    assert all(part in again.notes[-1] for part in (trace.format, trace.name, trace.sha256))
    assert (again.format, again.name) == ("trigpoint", path.name)


@given(trace=traces())
@settings(max_examples=20)
def test_the_same_trace_gives_the_same_bytes(trace: Trace, folder: Path) -> None:
    first, second = folder / f"a{SUFFIX}", folder / f"b{SUFFIX}"
    write_trace(trace, first)
    write_trace(replace(trace), second)
    assert first.read_bytes() == second.read_bytes()


def test_codes_of_names_do_not_matter_to_the_bytes(tmp_path: Path) -> None:
    codes = np.array([1, 0, -1], dtype=np.int32)
    write_trace(small(client=Labels(("b", "a", "unused"), codes)), tmp_path / "x")
    write_trace(small(client=Labels.of(["a", "b", None])), tmp_path / "y")
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_licence_and_credit_survive_conversion(tmp_path: Path) -> None:
    path = tmp_path / f"t{SUFFIX}"
    write_trace(small(), path)
    trace = read_trace("trigpoint", path)
    assert (trace.licence, trace.attribution) == ("CC-BY-4.0", "Microsoft")
    assert trace.sha256 not in {"", SHA}
    assert trace.notes[-1] == f"converted from azure-2023 conv.csv, sha256 {SHA}"
    assert guess_format(path) == "trigpoint"


def test_columns_are_read_only(tmp_path: Path) -> None:
    write_trace(small(), tmp_path / "t")
    with pytest.raises(ValueError, match="read-only"):
        read_trace("trigpoint", tmp_path / "t").arrival_ns[0] = 1


def test_later_minor_versions_are_read_without_what_is_new(tmp_path: Path) -> None:
    write_trace(small(), tmp_path / "t")
    rewritten(tmp_path / "t", {"version": [1, 7], "later": {"x": 1}}, novelty=pa.array(["a", "b", "c"]))
    assert flat(read_trace("trigpoint", tmp_path / "t")) == flat(small())


def test_a_newer_major_version_is_refused_before_anything_else(tmp_path: Path) -> None:
    write_trace(small(), tmp_path / "t")
    rewritten(tmp_path / "t", {"version": [2, 0], "clock": "of another kind"})
    with pytest.raises(UsageError, match=r"version=2: this program reads trace files up to version 1 \[trace\.version\]"):
        read_trace("trigpoint", tmp_path / "t")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"input_tokens": pa.array([1, 2, -1])}, "input_tokens: a value outside"),
        ({"output_tokens": pa.array([1, 2, TOKEN_LIMIT + 1])}, "output_tokens: a value outside"),
        ({"arrival_ns": pa.array([1, None, 3], pa.int64())}, "arrival_ns: 1 rows have none"),
        ({"think_ns": pa.array([-2, 0, 0])}, "think_ns: a value outside"),
        *(({name: pa.array([0, 0, 2**63 - 1])}, f"{name}: a value outside") for name in ("arrival_ns", "think_ns", "session", "turn")),
        ({"header": {"block_size": 10**30}}, r"trace\.header"),
        ({"header": {"block_size": None}}, "block_ids: there, while the header"),
        ({"header": {"rounding": None}}, "block_ids: there, while the header"),
        ({"header": {"history": None}}, "after: there, while the header"),
        ({"after": pa.array([[], [0], [3]])}, "1 references to rows"),
        ({"extends": pa.array([-1, 0, 99])}, "1 references to rows"),
        ({"after": pa.array([[], [0], None])}, "after: a row without a list"),
        ({"block_ids": pa.array([[], [None], [1]], pa.list_(pa.uint64()))}, "block_ids: a row without a list, or a list with a gap"),
        ({"failed": pa.array([True, None, False])}, "failed: 1 rows have none"),
        ({"arrival_ns": pa.array(["a", "b", "c"])}, r"trace\.parquet"),
        ({"header": {"clock": "sundial"}}, r"trace\.header"),
        ({"header": {"version": "one"}}, r"trace\.header"),
    ],
)
def test_what_write_trace_never_writes_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    none = np.zeros(3, dtype=np.int64)
    turns = Turns(none, np.arange(3), Ragged.of([[], [0], [1]], np.int64), none, none - 1, "included")
    blocks = Blocks(Ragged.of([[], [1], [1]], np.uint64), 16, "ceil")
    write_trace(small(turns=turns, blocks=blocks, failed=np.zeros(3, np.bool_)), tmp_path / "t")
    rewritten(tmp_path / "t", **changes)
    with pytest.raises(UsageError, match=said):
        read_trace("trigpoint", tmp_path / "t")


def test_missing_columns_and_headers_are_named(tmp_path: Path) -> None:
    write_trace(small(), tmp_path / "t")
    table = pq.read_table(tmp_path / "t")
    pq.write_table(table.drop_columns(["input_tokens", "source_row"]), tmp_path / "u")
    with pytest.raises(UsageError) as caught:
        read_trace("trigpoint", tmp_path / "u")
    assert [p.what for p in caught.value.problems] == ["column=input_tokens: not in the file", "column=source_row: not in the file"]
    pq.write_table(table.replace_schema_metadata({}), tmp_path / "v")
    with pytest.raises(UsageError, match="no trigpoint header"):
        read_trace("trigpoint", tmp_path / "v")
    (tmp_path / "w").write_bytes(b"PAR1 no more")
    with pytest.raises(UsageError, match=r"trace\.parquet"):
        read_trace("trigpoint", tmp_path / "w")
    with pytest.raises(UsageError, match=r"trace\.unreadable"):
        read_trace("trigpoint", tmp_path / "absent")


@given(data=st.data())
@settings(max_examples=50)
def test_a_damaged_file_gives_a_sound_trace_or_a_usage_error(data: st.DataObject, folder: Path) -> None:
    path = folder / "damaged"
    write_trace(small(client=Labels.of(["a", "b", None])), path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=3))
    path.write_bytes(raw)
    try:
        trace = read_trace("trigpoint", path)
    except UsageError:
        return
    assert trace.arrival_ns.min() >= 0
    assert len(trace) == len(trace.input_tokens) == len(trace.source_row)


def test_only_our_ending_is_ours(tmp_path: Path) -> None:
    reader = get_reader("trigpoint")
    assert reader.sniff("x.trigpoint.parquet", b"PAR1...")
    assert not reader.sniff("x.parquet", b"PAR1...")
    assert not reader.sniff("x.trigpoint.parquet", b"a,b,c\n")
