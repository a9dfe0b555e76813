"""How the spooler waits for its pipe: seldom woken, never far behind, and awake at once when the worker is gone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.clock import NS_PER_MS, NS_PER_S, MonotonicClock, VirtualClock
from harness.replay.spooler import FILL, FLUSH_NS, LEAST_CAPACITY, POLL_MS, READ_BYTES, REST_NS, _reads, rest_ns


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)


@given(st.integers(1, READ_BYTES), st.integers(0, 10 * NS_PER_S), st.integers(LEAST_CAPACITY, READ_BYTES))
def test_the_pipe_fills_by_its_part_at_most_while_the_spooler_rests(came: int, within_ns: int, capacity: int) -> None:
    rest = rest_ns(came, within_ns, capacity)
    assert 0 <= rest <= REST_NS
    assert FILL * rest * came <= capacity * within_ns
    assert rest == REST_NS or FILL * (rest + 1) * came > capacity * within_ns


def test_a_row_is_on_disk_within_the_promised_second() -> None:
    assert REST_NS + FLUSH_NS + POLL_MS * NS_PER_MS < NS_PER_S


def test_everything_in_the_pipe_comes_and_then_its_end(pipe: tuple[int, int]) -> None:
    read, write = pipe
    reads = _reads(read, VirtualClock())
    os.write(write, b"ab")
    os.write(write, b"c")
    assert bytes(next(reads)[0]) == b"abc"
    os.write(write, b"d")
    os.close(write)
    assert [(bytes(data), behind) for data, behind in reads] == [(b"d", False)]


def test_a_pipe_more_than_half_full_is_work_to_catch_up_with(pipe: tuple[int, int]) -> None:
    read, write = pipe
    half = fcntl.fcntl(read, fcntl.F_GETPIPE_SZ) // 2
    reads = _reads(read, VirtualClock())
    os.write(write, bytes(half + 1))
    assert next(reads)[1]
    os.write(write, bytes(half))
    os.close(write)
    assert [behind for _, behind in reads] == [False]


def test_a_rest_ends_with_the_worker(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest of an hour: the test would not end if it were not cut short."""
    monkeypatch.setattr("harness.replay.spooler.rest_ns", lambda came, within_ns, capacity: 3600 * NS_PER_S)
    read, write = pipe
    reads = _reads(read, MonotonicClock())
    os.write(write, b"a")
    assert bytes(next(reads)[0]) == b"a"
    os.close(write)
    assert list(reads) == []
