"""Event lists stay on disk until asked for; what is wrong with them is still told when a record is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import HostError
from harness.record import durable, events
from harness.record.events import LISTS, ROWS, check_lists, cut_lists, read_rows, stream_lists
from harness.record.schema import REQUESTS
from harness.record.tables import table_of
from tests.builders import make_request

TABLE = table_of([make_request(i, i, tokens=1 + i % 5) for i in range(50)], REQUESTS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "requests.parquet"
    durable.write_table(path, TABLE)
    return path


def problems(path: Path) -> list[str]:
    with pytest.raises(HostError) as caught:
        read_rows(path)
    return [p.what for p in caught.value.problems]


@pytest.mark.parametrize("batch", [7, 1 << 12])
def test_pieces_under_each_other_are_the_lists(file: Path, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_BATCH", batch)
    assert pa.concat_tables(stream_lists(file, LISTS)).combine_chunks().equals(TABLE.select(list(LISTS)).combine_chunks())
    assert pa.concat_tables(cut_lists(TABLE, LISTS)).combine_chunks().equals(TABLE.select(list(LISTS)).combine_chunks())


def test_rows_come_without_lists(file: Path) -> None:
    assert read_rows(file).equals(TABLE.select(ROWS.names))
    assert check_lists(file) == []


def test_a_table_is_cut_into_groups_and_its_bytes_depend_on_its_rows_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "GROUP_ROWS", 20)
    durable.write_table(tmp_path / "a", TABLE)
    durable.write_table(tmp_path / "b", pa.concat_tables([TABLE.slice(0, 3), TABLE.slice(3)]))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert pq.ParquetFile(tmp_path / "a").num_row_groups == 3


def test_a_list_that_is_missing_null_or_of_another_type_is_told(tmp_path: Path) -> None:
    path = tmp_path / "requests.parquet"
    at = REQUESTS.get_field_index("event_ns")
    pq.write_table(TABLE.drop_columns(["event_kind"]), path)
    assert problems(path) == ["column event_kind: missing, and required"]
    pq.write_table(TABLE.set_column(at, "event_ns", pa.array([[0.5]] * 50)), path)
    assert "column event_ns: list<" in problems(path)[0]
    pq.write_table(TABLE.set_column(at, "event_ns", pa.array([None, *[[1]] * 49], pa.list_(pa.int64()))), path)
    assert problems(path) == ["column event_ns: 1 nulls where a value is required"]


def test_a_page_that_cannot_be_read_is_told_without_a_seal(file: Path) -> None:
    content = bytearray(file.read_bytes())
    where = pq.ParquetFile(file).metadata.row_group(0).column(REQUESTS.names.index("event_ns")).data_page_offset
    content[where : where + 60] = b"\xff" * 60
    file.chmod(0o644)
    file.write_bytes(bytes(content))
    read_rows(file)
    assert [p.code for p in check_lists(file)] == ["record_damaged"]
