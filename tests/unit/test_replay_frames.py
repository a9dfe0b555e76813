from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.record.schema import EndKind
from harness.replay.frames import FrameReader, RawExchange, SampleFrame, encode_exchange, encode_samples
from tests.unit.test_wire_sse import cut

NS = st.integers(-(2**62), 2**62)


@st.composite
def exchanges(draw: st.DrawFn) -> RawExchange:
    pieces = draw(st.lists(st.tuples(NS, st.binary(max_size=20)), max_size=5))
    maybe = st.none() | NS
    return RawExchange(
        request_id=draw(st.integers(0, 2**40)),
        arrival_ns=draw(maybe),
        send_ns=draw(maybe),
        headers_ns=draw(maybe),
        end_ns=draw(maybe),
        kind=draw(st.sampled_from(EndKind)),
        status=draw(st.none() | st.integers(0, 999)),
        stream=draw(st.booleans()),
        reused=draw(st.none() | st.booleans()),
        error=draw(st.text(max_size=10)),
        stamps=tuple(ns for ns, _ in pieces),
        sizes=tuple(len(data) for _, data in pieces),
        body=b"".join(data for _, data in pieces),
    )


SAMPLES = st.lists(st.tuples(NS, st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)), max_size=4)
FRAMES = exchanges() | SAMPLES.map(lambda v: SampleFrame(tuple(v)))


def encode(frame: RawExchange | SampleFrame) -> bytes:
    if isinstance(frame, RawExchange):
        return encode_exchange(frame)
    return encode_samples(list(frame.values))


@given(st.lists(FRAMES, max_size=6), st.lists(st.integers(0, 10_000), max_size=8))
def test_frames_come_back_whatever_the_reads_were(frames: list[RawExchange | SampleFrame], places: list[int]) -> None:
    reader = FrameReader()
    body = b"".join(map(encode, frames))
    got = [frame for piece in cut(body, places) for frame in reader.feed(piece)]
    assert got == [plain(frame) for frame in frames]
    assert reader.pending == 0


def plain(frame: RawExchange | SampleFrame) -> RawExchange | SampleFrame:
    """What a lone surrogate becomes on the way: text goes as UTF-8."""
    if isinstance(frame, RawExchange):
        return frame._replace(error=frame.error.encode("utf-8", "replace").decode())
    return frame


@given(st.lists(exchanges(), min_size=1, max_size=3), st.integers(1, 10_000))
def test_a_writer_killed_at_any_byte_costs_only_its_last_frame(frames: list[RawExchange], lost: int) -> None:
    encoded = [encode_exchange(f) for f in frames]
    reader = FrameReader()
    body = b"".join(encoded[:-1]) + encoded[-1][: -min(lost, len(encoded[-1]))]
    assert len(reader.feed(body)) == len(frames) - 1
    assert reader.pending == max(0, len(encoded[-1]) - lost)


def test_pieces_are_the_reads() -> None:
    raw = RawExchange(1, 0, 1, 2, 3, EndKind.COMPLETE, 200, True, False, "", (5, 6), (2, 1), b"abc")
    assert list(raw.pieces()) == [(5, b"ab"), (6, b"c")]
