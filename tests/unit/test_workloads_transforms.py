"""Transforms: order kept, rows accounted for, parameters that cannot be meant refused, and the laws they should obey."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.plan import ScaleLengths, Thin, TimeCompress, WindowTransform
from workloads.schedule import Int64, Labels, Trace, frozen
from workloads.transforms import NS_PER_S, apply, select, to_ns


def column(values: Any) -> Int64:
    return frozen(np.array(values, dtype=np.int64))


def make_trace(arrival: Any, tokens_in: Any = None, tokens_out: Any = None, client: tuple[str, ...] | None = None) -> Trace:
    times = column(arrival)
    ones = column(np.ones(len(times)))
    return Trace(
        format="azure-2023",
        name="t.csv",
        sha256="0" * 64,
        licence="unknown",
        attribution="unknown",
        arrival_ns=times,
        input_tokens=ones if tokens_in is None else column(tokens_in),
        output_tokens=ones if tokens_out is None else column(tokens_out),
        source_row=column(range(len(times))),
        client=client and Labels.of(client),
    )


TRACES = st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**5), st.integers(0, 10**5)), min_size=1, max_size=50).map(
    lambda rows: make_trace(sorted(r[0] - min(q[0] for q in rows) for r in rows), [r[1] for r in rows], [r[2] for r in rows])
)
FACTORS = st.floats(0.01, 100, allow_nan=False)
SECONDS = st.integers(0, 10_001)


def fault(*chain: Any, trace: Trace) -> str:
    with pytest.raises(UsageError) as caught:
        apply(chain, trace, 1)
    return str(caught.value)


def test_a_window_is_half_open_and_starts_at_zero() -> None:
    trace = make_trace([0, 1 * NS_PER_S, 2 * NS_PER_S, 3 * NS_PER_S], client=("a", "b", "c", "d"))
    done = apply([WindowTransform(start_s=1, stop_s=3)], trace, 1)
    assert done.trace.arrival_ns.tolist() == [0, NS_PER_S]
    assert done.trace.source_row.tolist() == [1, 2]
    assert done.trace.client is not None
    assert done.trace.client.values() == ["b", "c"]
    assert done.extent_ns == 2 * NS_PER_S
    (entry,) = done.log
    assert isinstance(entry.pop("effect"), dict)
    assert entry == {"name": "window", "start_s": 1.0, "stop_s": 3.0, "rows_before": 4, "rows_after": 2}


def test_a_window_may_end_at_the_whole_second_after_the_last_arrival() -> None:
    trace = make_trace([0, 1_700_000_000])
    assert len(apply([WindowTransform(start_s=0, stop_s=2)], trace, 1).trace) == 2
    text = fault(WindowTransform(start_s=0, stop_s=2.001), trace=trace)
    assert "outside the trace, which covers [0 s, 2 s)" in text
    assert "2 rows of t.csv" in text


def test_an_upside_down_window_is_refused() -> None:
    assert "holds no time" in fault(WindowTransform(start_s=1, stop_s=1), trace=make_trace([0, 5 * NS_PER_S]))


def test_a_window_after_compression_is_in_compressed_time() -> None:
    trace = make_trace([0, 10 * NS_PER_S - 1])
    assert "covers [0 s, 5 s)" in fault(TimeCompress(factor=2), WindowTransform(start_s=0, stop_s=6), trace=trace)


def test_lengths_round_half_to_even_and_clip() -> None:
    step = ScaleLengths(input_factor=0.5, output_factor=2, input_minimum=2, output_maximum=9)
    done = apply([step], make_trace([0, 0, 0], [5, 7, 1], [1, 4, 5]), 1).trace
    assert done.input_tokens.tolist() == [2, 4, 2]
    assert done.output_tokens.tolist() == [2, 8, 9]


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (ScaleLengths(input_minimum=5, input_maximum=4), "input_minimum=5"),
        (ScaleLengths(output_factor=1e9), "output_factor=1000000000.0"),
        (ScaleLengths(input_factor=math.inf), "input_factor=inf"),
        (TimeCompress(factor=1e-300), "factor=1e-300"),
        (TimeCompress(factor=math.inf), "factor=inf"),
        (WindowTransform(start_s=0, stop_s=math.inf), "seconds=inf"),
        (WindowTransform(start_s=0, stop_s=1e12), "seconds=1000000000000.0"),
    ],
)
def test_parameters_that_cannot_be_meant_are_refused(step: Any, code: str) -> None:
    assert code in fault(step, trace=make_trace([0, NS_PER_S]))


def test_not_a_number_is_not_a_time() -> None:
    with pytest.raises(UsageError, match="seconds=nan"):
        to_ns(math.nan)


def test_the_input_is_left_alone_and_the_output_is_read_only() -> None:
    trace = make_trace([0, 4, 8], [1, 2, 3])
    done = apply([TimeCompress(factor=2), Thin(keep=1), ScaleLengths(input_factor=3)], trace, 1).trace
    assert trace.arrival_ns.tolist() == [0, 4, 8]
    for column in (done.arrival_ns, done.input_tokens, done.output_tokens, done.source_row):
        assert not column.flags.writeable


@given(TRACES, FACTORS)
def test_compression_keeps_order_and_scales_every_arrival(trace: Trace, factor: float) -> None:
    done = apply([TimeCompress(factor=factor)], trace, 1).trace
    assert (np.diff(done.arrival_ns) >= 0).all()
    assert (np.abs(done.arrival_ns - trace.arrival_ns / factor) <= 0.5).all()
    assert done.input_tokens.tolist() == trace.input_tokens.tolist()


@given(TRACES, FACTORS, FACTORS)
def test_two_compressions_are_one_by_the_product(trace: Trace, one: float, two: float) -> None:
    twice = apply([TimeCompress(factor=one), TimeCompress(factor=two)], trace, 1).trace.arrival_ns
    once = apply([TimeCompress(factor=one * two)], trace, 1).trace.arrival_ns
    # Half a ns of the first rounding, divided by ``two``, then half a ns of each result; 1e-15 for the product's own rounding.
    assert (np.abs(twice - once) <= 1 + 0.5 / two + 1e-15 * once).all()


@given(TRACES, SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_window_in_a_window_is_one_window(trace: Trace, start: int, length: int, inner: int, inner_length: int) -> None:
    stop, inner_stop = start + length, inner + inner_length
    covered = apply([], trace, 1).extent_ns // NS_PER_S
    if not (0 < length <= covered - start and 0 < inner_length <= length - inner):
        return
    nested = apply([WindowTransform(start_s=start, stop_s=stop), WindowTransform(start_s=inner, stop_s=inner_stop)], trace, 1)
    direct = apply([WindowTransform(start_s=start + inner, stop_s=start + inner_stop)], trace, 1)
    assert nested.trace.arrival_ns.tolist() == direct.trace.arrival_ns.tolist()
    assert nested.trace.source_row.tolist() == direct.trace.source_row.tolist()
    assert nested.extent_ns == direct.extent_ns


@given(TRACES, st.integers(1, 10_000))
def test_neighbouring_windows_split_the_rows(trace: Trace, cut: int) -> None:
    covered = apply([], trace, 1).extent_ns // NS_PER_S
    if cut >= covered:
        return
    left = apply([WindowTransform(start_s=0, stop_s=cut)], trace, 1).trace
    right = apply([WindowTransform(start_s=cut, stop_s=covered)], trace, 1).trace
    assert [*left.source_row.tolist(), *right.source_row.tolist()] == list(range(len(trace)))


@given(TRACES, st.floats(0.01, 1), st.floats(0.01, 1), st.integers(0, 2**63))
def test_thinning_is_nested_in_its_probability(trace: Trace, one: float, two: float, seed: int) -> None:
    few, many = (set(apply([Thin(keep=keep)], trace, seed).trace.source_row.tolist()) for keep in sorted((one, two)))
    assert few <= many <= set(range(len(trace)))


@given(TRACES, st.integers(0, 2**63))
def test_keeping_everything_changes_nothing(trace: Trace, seed: int) -> None:
    steps = [Thin(keep=1), TimeCompress(factor=1), ScaleLengths(input_minimum=1, output_minimum=1)]
    done = apply(steps, trace, seed).trace
    assert done.arrival_ns.tolist() == trace.arrival_ns.tolist()
    assert done.source_row.tolist() == trace.source_row.tolist()
    assert done.input_tokens.tolist() == np.maximum(trace.input_tokens, 1).tolist()


def test_two_thinnings_are_independent() -> None:
    trace = make_trace(np.arange(20_000))
    once = len(apply([Thin(keep=0.5)], trace, 3).trace)
    twice = len(apply([Thin(keep=0.5), Thin(keep=0.5)], trace, 3).trace)
    # Five standard deviations of a binomial; one shared draw would keep all 10,000 of the first.
    assert abs(once - 10_000) < 5 * math.sqrt(5_000)
    assert abs(twice - 5_000) < 5 * math.sqrt(3_750)


def test_thinning_follows_the_seed() -> None:
    trace = make_trace(np.arange(200))
    kept = [apply([Thin(keep=0.5)], trace, seed).trace.source_row.tolist() for seed in (1, 1, 2)]
    assert kept[0] == kept[1] != kept[2]


@given(TRACES, FACTORS, FACTORS, st.integers(1, 1000), st.integers(1, 1000))
def test_scaled_lengths_are_bounded(trace: Trace, one: float, two: float, low: int, more: int) -> None:
    step = ScaleLengths(input_factor=one, output_factor=two, input_minimum=low, input_maximum=low + more, output_maximum=more)
    done = apply([step], trace, 1).trace
    assert done.input_tokens.min() >= low
    assert done.input_tokens.max() <= low + more
    assert 1 <= done.output_tokens.min() <= done.output_tokens.max() <= more
    assert len(done) == len(trace)


@given(TRACES, st.lists(st.one_of(st.builds(TimeCompress, factor=FACTORS), st.builds(Thin, keep=st.floats(0.1, 1))), max_size=5))
def test_the_log_accounts_for_every_row(trace: Trace, chain: list[Any]) -> None:
    done = apply(chain, trace, 1)
    counts = [(entry["rows_before"], entry["rows_after"]) for entry in done.log]
    assert [entry["name"] for entry in done.log] == [step.transform for step in chain]
    assert [before for before, _ in counts] == [len(trace), *[after for _, after in counts]][: len(counts)]
    assert (counts[-1][1] if counts else len(trace)) == len(done.trace)
    assert (np.diff(done.trace.source_row) > 0).all()


def test_selecting_by_mask_keeps_columns_aligned() -> None:
    part = select(make_trace([0, 1, 2], [7, 8, 9], [4, 5, 6], ("x", "y", "z")), np.array([True, False, True]))
    assert (part.arrival_ns.tolist(), part.input_tokens.tolist(), part.output_tokens.tolist(), part.client and part.client.values()) == (
        [0, 2],
        [7, 9],
        [4, 6],
        ["x", "z"],
    )
