"""The reader against real sockets of this process: whose stamps they are, who is served, what is lost and when."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.alarm import Alarm
from harness.clock import NS_PER_S
from harness.replay.reader import AT_ONCE, READ_BYTES, READS, STEP_NS, WRITE_BYTES, Reader, WallClock, Wire, ask_for_stamps, supported
from harness.replay.rest import ENOUGH, Rest

LONG = Rest(NS_PER_S, NS_PER_S)
"""It knows no other, so that all may use it."""

pytestmark = pytest.mark.skipif(not supported(), reason="nothing here to stamp or poll with")


@dataclass
class Seen:
    """A receiver that keeps what it was told."""

    data: bytes = b""
    stamps: list[int] = field(default_factory=list)
    lost: list[Exception | None] = field(default_factory=list)
    then: Callable[[], None] = lambda: None

    def received(self, data: bytes, stamp_ns: int) -> None:
        self.data += data
        self.stamps.append(stamp_ns)
        self.then()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Stage:
    """A reader and its wires, each with the server's end of it."""

    def __init__(self, rest: Rest | None = LONG) -> None:
        self.loop = asyncio.new_event_loop()
        self.next_ns, self.sent = 2**63 - 1, 0
        self.reader = Reader(self.loop, lambda: self.next_ns, self._due, rest)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.ends: list[socket.socket] = []

    def _due(self) -> None:
        self.sent += 1
        self.next_ns = 2**63 - 1

    def wire(self, *, stamped: bool = True) -> tuple[Wire, Seen, socket.socket]:
        near = socket.socket()
        if stamped:
            assert ask_for_stamps(near)
        near.connect(self.listener.getsockname())
        near.setblocking(False)
        far = self.listener.accept()[0]
        self.ends += [near, far]
        seen = Seen()
        return self.reader.adopt(near, seen), seen, far

    def turn(self) -> None:
        """One pass of the loop, and what it set going."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def close(self) -> None:
        self.reader.close()
        self.turn()
        for each in [*self.ends, self.listener]:
            each.close()
        self.loop.close()


@pytest.fixture(scope="module", autouse=True)
def stamping() -> Iterator[None]:
    """The host's first stamped socket makes the kernel begin, which it does a little later: until then what is read is stamped as it is
    read. One that stays open keeps it going."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far = listener.accept()[0]
        ask_for_stamps(near)
        for _ in range(100_000):
            far.send(b"x")
            sent_ns = time.time_ns()
            ancillary = near.recvmsg(1, 100)[1]
            if ancillary and struct.unpack("@qq", ancillary[0][2]) <= divmod(sent_ns, NS_PER_S):
                break
        yield
        far.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with contextlib.closing(Stage()) as made:
        yield made


def test_a_stamp_is_of_the_arrival_and_not_of_the_read(stage: Stage) -> None:
    _, seen, far = stage.wire()
    before_ns = time.monotonic_ns()
    far.send(b"token")
    after_ns = time.monotonic_ns()
    for _ in range(1000):  # whatever the client does meanwhile
        time.monotonic_ns()
    stage.reader.catch_up()
    # The wall clock is mapped by readings that lie apart by well under what a step is.
    assert before_ns - STEP_NS <= seen.stamps[0] <= after_ns + STEP_NS
    assert (seen.data, stage.reader.reads, stage.reader.unstamped) == (b"token", 1, 0)


def test_what_is_read_together_shares_the_stamp_of_what_came_last(stage: Stage) -> None:
    _, seen, far = stage.wire()
    far.send(b"one")
    apart_ns = time.monotonic_ns() + 4 * STEP_NS  # more than the clocks' error
    while (between_ns := time.monotonic_ns()) < apart_ns:
        pass
    far.send(b"two")
    stage.reader.catch_up()
    assert seen.data == b"onetwo"
    assert len(seen.stamps) == 1
    assert seen.stamps[0] >= between_ns - STEP_NS


def test_without_a_stamp_the_instant_of_the_read_stands_in_and_is_counted(stage: Stage) -> None:
    _, seen, far = stage.wire(stamped=False)
    far.send(b"token")
    before_ns = time.monotonic_ns()
    stage.reader.catch_up()
    assert before_ns <= seen.stamps[0] <= time.monotonic_ns()
    assert (stage.reader.reads, stage.reader.unstamped) == (1, 1)


def test_what_is_due_is_done_between_two_reads(stage: Stage) -> None:
    wires = [stage.wire() for _ in range(3)]
    order: list[int] = []
    for _, seen, far in wires:
        seen.then = lambda: order.append(stage.sent)
        far.send(b"x")
    stage.next_ns = 0
    stage.reader.catch_up()
    assert order == [0, 1, 1]


def test_a_wire_that_another_one_closed_is_not_read(stage: Stage) -> None:
    (one, first, far), (two, second, other) = stage.wire(), stage.wire()
    first.then, second.then = two.abort, one.abort
    far.send(b"x")
    other.send(b"x")
    stage.reader.catch_up()
    assert sorted((first.data, second.data)) == [b"", b"x"]
    assert (first.lost, second.lost) == ([], [])
    stage.turn()
    assert sorted((first.lost, second.lost)) == [[], [None]]


def test_the_servers_end_is_told_behind_its_last_bytes(stage: Stage) -> None:
    wire, seen, far = stage.wire()
    far.send(b"last")
    far.close()
    stage.reader.catch_up()
    stage.reader.catch_up()
    assert (seen.data, seen.lost, wire.is_closing()) == (b"last", [None], True)
    wire.abort()
    stage.turn()
    assert seen.lost == [None]


def test_a_reset_is_told_with_its_error(stage: Stage) -> None:
    _, seen, far = stage.wire()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    stage.reader.catch_up()
    assert [type(error) for error in seen.lost] == [ConnectionResetError]


def test_a_reset_while_writing_is_told_by_reading(stage: Stage) -> None:
    wire, seen, far = stage.wire()
    wire.write(bytes(WRITE_BYTES))
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()
    stage.reader.catch_up()
    assert [type(error) for error in seen.lost] == [ConnectionResetError]
    assert wire.get_write_buffer_size() == 0


@pytest.mark.parametrize("writing", [True, False])
@pytest.mark.parametrize("reset", [True, False])
def test_a_lost_wire_is_freed_without_the_collector(stage: Stage, *, writing: bool, reset: bool) -> None:
    wire, seen, far = stage.wire()
    if writing:
        wire.write(bytes(WRITE_BYTES))
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", reset, 0))
    gc.disable()
    try:
        far.close()
        while not seen.lost:
            stage.reader.catch_up()
        left = weakref.ref(seen)
        seen.lost.clear()  # an error that is kept keeps all it passed through
        del wire, seen
        assert left() is None
    finally:
        gc.enable()


def test_a_large_request_leaves_in_pieces_and_whole(stage: Stage) -> None:
    wire, _, far = stage.wire()
    far.setblocking(False)
    payload = bytes(range(256)) * (5 * WRITE_BYTES // 256) + b"end"
    wire.write(payload[:WRITE_BYTES])
    wire.write(payload[WRITE_BYTES:])
    got, left = b"", [wire.get_write_buffer_size()]
    while len(got) < len(payload):
        stage.reader.catch_up()
        left.append(wire.get_write_buffer_size())
        with contextlib.suppress(BlockingIOError):
            got += far.recv(len(payload))
    assert got == payload
    # A second pass where more was left.
    assert max(before - after for before, after in pairwise(left)) <= 2 * WRITE_BYTES
    assert left[-1] == 0


def test_a_long_answer_is_read_to_its_end_and_others_have_their_turn(stage: Stage) -> None:
    (_, long_, far), (_, short, other) = stage.wire(), stage.wire()
    for end in (long_, short):
        assert not end.data
    far.setblocking(False)
    written = 0
    with contextlib.suppress(BlockingIOError):
        while written < 4 * READS * READ_BYTES:
            written += far.send(bytes(READ_BYTES))
    other.send(b"token")
    stage.reader.catch_up()
    assert short.data == b"token"
    assert len(long_.data) <= 2 * READS * READ_BYTES
    while len(long_.data) < written:
        stage.reader.catch_up()
    assert len(long_.data) == written


def test_more_wires_than_one_pass_serves_are_all_served(stage: Stage) -> None:
    made = [stage.wire() for _ in range(AT_ONCE + 5)]
    for _, _, far in made:
        far.send(b"x")
    stage.reader.catch_up()
    assert all(seen.data == b"x" for _, seen, _ in made)


def test_one_that_cannot_be_read_dry_costs_a_pass_a_turn(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at it used to bring about passes of its own, for as long as it went on."""
    passes = 0

    def never_dry(_reader: Reader) -> int:
        nonlocal passes
        passes += 1
        return AT_ONCE

    monkeypatch.setattr(Reader, "_read", never_dry)
    for _ in range(20):
        stage.reader._pass()  # as the ticks do, which come while it is read
    passes = 0
    for _ in range(5):
        stage.turn()
    assert passes <= 2 * 5


@pytest.mark.parametrize("rest", [None, LONG])
def test_the_loop_is_woken_by_what_comes(rest: Rest | None) -> None:
    with contextlib.closing(Stage(rest)) as stage:
        _, seen, far = stage.wire()
        for count in range(1, 4):
            far.send(b"x")
            for _ in range(10):
                # With a rest, what comes close behind waits for it: here it is read because the loop is asked to by hand.
                stage.reader.catch_up() if rest and count > 1 else stage.turn()
            assert len(seen.data) == count


def test_the_ticks_follow_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[int] = []
    monkeypatch.setattr(Alarm, "arm", lambda _alarm, _at_ns, every_ns=0: armed.append(every_ns))
    rest = Rest(NS_PER_S // 4, NS_PER_S)
    with contextlib.closing(Stage(rest)) as stage:
        _, _, far = stage.wire()
        for _ in range(3):
            far.send(b"x")
            stage.reader._pass()
        for _ in range(ENOUGH):
            rest.settle()
            rest.saw(100 * NS_PER_S)
        far.send(b"x")
        stage.reader._pass()
    assert armed == [NS_PER_S // 4, NS_PER_S // 2]


def test_the_kernels_gaps_are_what_the_rest_follows() -> None:
    rest = Rest(1, NS_PER_S)
    seen: list[int] = []
    with contextlib.closing(Stage(rest)) as stage:
        for stamped in (True, False):
            wire, told, far = stage.wire(stamped=stamped)
            wire._saw = seen.append
            for _ in range(2):
                far.send(b"x")
                stage.reader.catch_up()
            if stamped:
                assert seen[1] == told.stamps[1] - told.stamps[0]
    assert len(seen) == 2  # none of the reads that were stamped here: how late they were would be in their gaps


def test_nothing_is_read_behind_the_close(stage: Stage) -> None:
    _, seen, far = stage.wire()
    far.send(b"x")
    stage.reader.close()
    stage.reader.close()
    stage.turn()
    stage.reader.catch_up()
    assert not seen.data


# -- the wall clock


class Clocks:
    """Two clocks that a test sets; the monotonic one goes on by ``pace`` at each look."""

    def __init__(self, pace: int = 40) -> None:
        self.now_ns, self.ahead_ns, self.pace, self.hiccup_ns = 10**12, 10**18, pace, 0

    def monotonic(self) -> int:
        self.now_ns += self.pace
        return self.now_ns

    def wall(self) -> int:
        self.now_ns += self.pace + self.hiccup_ns
        self.hiccup_ns = 0
        return self.now_ns + self.ahead_ns


def ancillary(wall_ns: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, 35, struct.pack("@qq", *divmod(wall_ns, NS_PER_S)))]


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_stamp_is_mapped_onto_the_monotonic_clock_or_refused(ago_ns: int, floor_ago_ns: int) -> None:
    clocks = Clocks()
    clock = WallClock(clocks.monotonic, clocks.wall)
    clock.read()
    now_ns = clocks.now_ns
    floor_ns, true_ns = now_ns - floor_ago_ns, now_ns - ago_ns
    found = clock.stamp(ancillary(true_ns + clocks.ahead_ns), floor_ns, now_ns)
    if found == -1:
        assert true_ns < floor_ns - STEP_NS + clocks.pace
    else:
        assert floor_ns <= found <= now_ns
        assert abs(found - min(max(true_ns, floor_ns), now_ns)) <= clocks.pace
        assert true_ns > floor_ns - STEP_NS - clocks.pace


@pytest.mark.parametrize(("off_ns", "found"), [(STEP_NS - 100, True), (STEP_NS + 100, False)])
def test_what_misses_its_bounds_by_less_than_a_step_is_of_them(off_ns: int, *, found: bool) -> None:
    """Were it the instant of a late read, all that had come by then would be refused as older."""
    clocks = Clocks()
    clock = WallClock(clocks.monotonic, clocks.wall)
    floor_ns, now_ns = clocks.now_ns, clocks.now_ns + 10 * STEP_NS
    for late_ns, bound_ns in ((floor_ns - off_ns, floor_ns), (now_ns + off_ns, now_ns)):
        assert clock.stamp(ancillary(late_ns + clocks.ahead_ns), floor_ns, now_ns) == (bound_ns if found else -1)


@given(st.integers(STEP_NS * 2, 10**15), st.booleans())
def test_a_clock_that_was_set_stamps_nothing_until_the_next_look(step_ns: int, back: bool) -> None:
    clocks = Clocks()
    clock = WallClock(clocks.monotonic, clocks.wall)
    clocks.ahead_ns += -step_ns if back else step_ns
    clock.read()
    assert clock.stamp(ancillary(clocks.now_ns + clocks.ahead_ns), 0, clocks.now_ns) == -1
    clocks.now_ns += STEP_NS
    clock.read()
    assert abs(clock.stamp(ancillary(clocks.now_ns - 1000 + clocks.ahead_ns), 0, clocks.now_ns) - (clocks.now_ns - 1000)) <= clocks.pace


def test_what_came_before_the_clock_was_set_stays_unstamped_however_late_it_is_read() -> None:
    """More was ready than one look serves: the rest still has the old clock's stamps."""
    clocks = Clocks()
    clock = WallClock(clocks.monotonic, clocks.wall)
    floor_ns, came_ns, old_ahead_ns = clocks.now_ns, clocks.now_ns + NS_PER_S, clocks.ahead_ns
    clocks.now_ns += NS_PER_S + STEP_NS
    clocks.ahead_ns += NS_PER_S // 2
    for _ in range(3):
        clock.read()
        assert clock.stamp(ancillary(came_ns + old_ahead_ns), floor_ns, clocks.now_ns) == -1


@given(st.integers(STEP_NS, 10**9))
def test_a_look_that_was_interrupted_is_no_step(hiccup_ns: int) -> None:
    clocks = Clocks()
    clock = WallClock(clocks.monotonic, clocks.wall)
    offset_ns = clock.offset_ns
    clocks.hiccup_ns = hiccup_ns
    clock.read()
    assert clock.steady
    assert abs(clock.offset_ns - offset_ns) <= clocks.pace


@pytest.mark.parametrize("nothing", [[], [(1, 35, b"short")]])
def test_no_stamp_is_no_instant(nothing: list[tuple[int, int, bytes]]) -> None:
    assert WallClock().stamp(nothing, 0, 2**62) == -1
