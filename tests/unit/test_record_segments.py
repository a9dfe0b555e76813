import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.clock import NS_PER_S, VirtualClock
from harness.errors import HostError
from harness.record import segments
from harness.record.schema import REQUESTS, SAMPLES
from harness.record.segments import SegmentWriter, read_segments, segment_names
from tests.builders import make_request


def sample(i: int) -> dict[str, object]:
    return {"t_ns": i, "source": "host", "metric": "m", "labels": None, "value": i / 4}


def write(folder: Path, name: str, batches: list[list[dict[str, object]]], schema: pa.Schema = SAMPLES) -> Path:
    with SegmentWriter(folder, name, schema, clock=VirtualClock()) as writer:
        for rows in batches:
            writer.append(rows)
            writer.flush()
    return writer.path


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    rows = [make_request(i, i * 1000, tokens=i % 4) for i in range(7)]
    write(tmp_path, "requests-0", [rows[:3], [], rows[3:]], REQUESTS)
    table, torn = read_segments(tmp_path, "requests-0", REQUESTS)
    assert not torn
    assert table.to_pylist() == rows


def test_columns_left_out_are_null(tmp_path: Path) -> None:
    write(tmp_path, "host", [[{"t_ns": 1, "source": "host", "metric": "m", "value": 1.0}]])
    table, _ = read_segments(tmp_path, "host", SAMPLES)
    assert table["labels"].to_pylist() == [None]


def test_a_required_column_left_out_is_our_fault(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "host", SAMPLES, clock=VirtualClock())
    writer.append([{"t_ns": 1}])
    with pytest.raises(ValueError, match="source"):
        writer.flush()


def test_flush_happens_when_the_oldest_row_is_due(tmp_path: Path) -> None:
    clock = VirtualClock()
    writer = SegmentWriter(tmp_path, "host", SAMPLES, clock=clock, flush_ns=NS_PER_S)
    writer.append([sample(0)])
    clock.advance(NS_PER_S - 1)
    writer.append([sample(1)])
    assert read_segments(tmp_path, "host", SAMPLES)[0].num_rows == 0
    clock.advance(1)
    writer.tick()
    table, torn = read_segments(tmp_path, "host", SAMPLES)
    assert (table.num_rows, torn) == (2, True)  # readable while it is still open
    writer.close()
    writer.close()
    assert read_segments(tmp_path, "host", SAMPLES)[1] is False


def test_default_age_keeps_the_promise_of_one_second(tmp_path: Path) -> None:
    clock = VirtualClock()
    writer = SegmentWriter(tmp_path, "host", SAMPLES, clock=clock)
    writer.append([sample(0)])
    clock.advance(NS_PER_S // 2)
    writer.tick()
    assert read_segments(tmp_path, "host", SAMPLES)[0].num_rows == 1


def test_an_existing_segment_is_never_overwritten(tmp_path: Path) -> None:
    write(tmp_path, "host", [[sample(0)]])
    with pytest.raises(HostError, match="record_disk"):
        SegmentWriter(tmp_path, "host", SAMPLES, clock=VirtualClock())
    assert read_segments(tmp_path, "host", SAMPLES)[0].num_rows == 1


def test_writing_after_close_is_refused(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, "host", SAMPLES, clock=VirtualClock())
    writer.close()
    writer.append([sample(0)])
    with pytest.raises(ValueError, match="closed"):
        writer.flush()


def test_missing_or_foreign_segment_is_an_instruction(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="missing"):
        read_segments(tmp_path, "nothing", SAMPLES)
    write(tmp_path, "host", [[sample(0)]])
    with pytest.raises(HostError, match="another schema"):
        read_segments(tmp_path, "host", REQUESTS)


def test_names_do_not_mix_prefixes(tmp_path: Path) -> None:
    for name in ("host-1", "host-0", "hostile-0", "host", "requests-0"):
        write(tmp_path, name, [])
    assert segment_names(tmp_path, "host") == ["host", "host-0", "host-1"]


def test_a_full_disk_keeps_what_was_whole_and_the_rows_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SegmentWriter(tmp_path, "host", SAMPLES, clock=VirtualClock())
    writer.append([sample(0)])
    writer.flush()
    real, calls = os.write, []

    def half_then_full(fd: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return real(fd, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segments.os, "write", half_then_full)
    writer.append([sample(1)])
    with pytest.raises(HostError, match="errno=28"):
        writer.flush()
    monkeypatch.setattr(segments.os, "write", real)
    assert read_segments(tmp_path, "host", SAMPLES)[0]["t_ns"].to_pylist() == [0]
    writer.close()
    table, torn = read_segments(tmp_path, "host", SAMPLES)
    assert (table["t_ns"].to_pylist(), torn) == ([0, 1], False)


class Whole:
    """A closed segment of three batches (4, 1 and 4 rows); a class, so that a failing example does not print kilobytes."""

    def __init__(self, folder: Path) -> None:
        rows = [make_request(i, i * 1000, tokens=i % 3) for i in range(9)]
        self.path = write(folder, "requests-0", [rows[:4], rows[4:5], rows[5:]], REQUESTS)
        self.data = self.path.read_bytes()

    def read(self, data: bytes) -> tuple[pa.Table, bool]:
        self.path.write_bytes(data)
        return read_segments(self.path.parent, "requests-0", REQUESTS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_cut_at_any_byte_gives_a_prefix_of_the_batches(data: st.DataObject, whole: Whole) -> None:
    cut = data.draw(st.integers(0, len(whole.data)))
    table, torn = whole.read(whole.data[:cut])
    assert table.num_rows in (0, 4, 5, 9)
    assert table["request_id"].to_pylist() == list(range(table.num_rows))
    assert torn == (cut < len(whole.data))


def test_every_single_cut_near_the_message_frames(whole: Whole) -> None:
    size = len(whole.data)
    counts = [whole.read(whole.data[:cut])[0].num_rows for cut in [*range(12), *range(size - 20, size + 1)]]
    assert counts == sorted(counts)
    assert counts[-1] == 9


@given(junk=st.binary(max_size=64))
@settings(max_examples=60, deadline=None)
def test_junk_behind_the_last_batch_never_adds_or_loses_rows(junk: bytes, whole: Whole) -> None:
    table, torn = whole.read(whole.data[:-8] + junk)
    assert table.num_rows == 9
    assert torn == (junk != whole.data[-8:])
