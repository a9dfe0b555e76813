"""Transforms: order kept, rows accounted for, parameters that cannot be meant refused, and the laws they should obey."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from workloads.plan import (
    ClipLengths,
    Dedupe,
    DropFailed,
    Jitter,
    Loop,
    Retime,
    ScaleLengths,
    Sort,
    Tenants,
    Thin,
    TimeCompress,
    WindowTransform,
)
from workloads.schedule import Blocks, Int64, Labels, Ragged, Trace, Turns, frozen
from workloads.transforms import NS_PER_S, apply, rows, select, to_ns

R = TypeVar("R")


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


def attempt(make: Callable[[], R]) -> tuple[R | None, set[str]]:
    """What ``make`` gives, or the codes it was refused with."""
    try:
        return make(), set()
    except UsageError as error:
        return None, {problem.code for problem in error.problems}


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


def with_turns(trace: Trace, session: list[int], after: list[list[int]], think: Any = 0, history: str = "included") -> Trace:
    """Turns numbered within their session in file order; each extends the first row that it waits for."""
    turn = [session[:k].count(s) for k, s in enumerate(session)]
    pause = np.where([bool(a) for a in after], think, -1)
    extends = [a[0] if a else -1 for a in after]
    turns = Turns(column(session), column(turn), Ragged.of(after, np.int64), column(pause), column(extends), history)  # type: ignore[arg-type]
    return replace(trace, turns=turns)


def with_blocks(trace: Trace, ids: list[list[int]], size: int = 8, rounding: str = "ceil") -> Trace:
    return replace(trace, blocks=Blocks(Ragged.of(ids, np.uint64), size, rounding))  # type: ignore[arg-type]


@st.composite
def rich_traces(draw: st.DrawFn, clock: str = "relative") -> Trace:
    """Traces with every column there is; sessions fork, and rows of one instant occur."""
    count = draw(st.integers(1, 25))
    numbers = st.lists(st.integers(0, 400), min_size=count, max_size=count)
    session = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
    tokens_in, tokens_out = draw(numbers), draw(numbers)
    arrival = sorted(draw(st.lists(st.integers(0, 120 * NS_PER_S), min_size=count, max_size=count)))
    before = [[j for j in range(k) if session[j] == session[k]] for k in range(count)]
    after = [draw(st.lists(st.sampled_from(b), max_size=2, unique=True)) if b else [] for b in before]
    trace = make_trace([a - arrival[0] for a in arrival], tokens_in, tokens_out, tuple(draw(st.sampled_from("abc")) for _ in range(count)))
    trace = with_turns(trace, session, after, draw(st.integers(0, 10**9)), draw(st.sampled_from(["included", "excluded"])))
    trace = with_blocks(trace, [[draw(st.integers(0, 2**64 - 1)) for _ in range(-(-n // 8) and min(3, -(-n // 8)))] for n in tokens_in])
    kinds = Labels.of([draw(st.sampled_from(["text", "image", None])) for _ in range(count)])
    failed = frozen(np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=np.bool_))
    return replace(trace, kind=kinds, failed=failed, clock=clock)  # type: ignore[arg-type]


STEPS = st.one_of(
    st.builds(TimeCompress, factor=st.floats(0.5, 5)),
    st.builds(Thin, keep=st.floats(0.3, 1)),
    st.builds(
        ScaleLengths, input_factor=st.sampled_from([0.125, 0.5, 1.0, 2.0]), output_factor=st.floats(0.5, 2), input_maximum=st.just(300)
    ),
    st.builds(ClipLengths, input_maximum=st.integers(1, 400), on_excess=st.sampled_from(["clip", "drop"])),
    st.builds(Sort),
    st.builds(Dedupe),
    st.builds(DropFailed),
    st.builds(Loop, times=st.integers(2, 3)),
    st.just(WindowTransform(start_s=0, stop_s=1)),
)


def check_columns(trace: Trace) -> None:
    """Every column has a value a row, and every reference points to a row."""
    count = len(trace)
    assert {len(c) for c in (trace.arrival_ns, trace.input_tokens, trace.output_tokens, trace.source_row)} == {count}
    assert trace.client is not None
    assert trace.kind is not None
    assert trace.blocks is not None
    assert trace.turns is not None
    assert trace.failed is not None
    assert {len(trace.client.codes), len(trace.kind.codes), len(trace.blocks.ids), len(trace.turns.after), len(trace.failed)} == {count}
    turns, after = trace.turns, trace.turns.after.values
    assert not len(after) or 0 <= after.min() <= after.max() < count
    assert (turns.extends >= -1).all()
    assert (turns.extends < count).all()
    owner = np.repeat(np.arange(count), np.diff(turns.after.offsets))
    assert (turns.session[owner] == turns.session[after.astype(np.int64)]).all()
    assert ((turns.think_ns >= 0) <= (np.diff(turns.after.offsets) > 0)).all()
    room = -(-trace.input_tokens // trace.blocks.size)
    assert (np.diff(trace.blocks.ids.offsets) <= room).all()


@settings(deadline=None, max_examples=50)
@given(rich_traces(), st.lists(STEPS, max_size=5), st.integers(0, 2**63))
def test_any_chain_keeps_columns_aligned_references_valid_and_itself_logged(trace: Trace, chain: list[Any], seed: int) -> None:
    done, refused = attempt(lambda: apply(chain, trace, seed))
    assert refused <= {"workload.window", "workload.blocks"}
    if done is None:
        return
    check_columns(done.trace)
    assert (np.diff(done.trace.arrival_ns) >= 0).all()
    assert [entry["name"] for entry in done.log] == [step.transform for step in chain]
    for entry in done.log:
        assert set(entry["effect"]["before"]) == set(entry["effect"]["after"])  # type: ignore[index]
    for one, other in pairwise(done.log):
        assert one["effect"]["after"] == other["effect"]["before"]  # type: ignore[index]
    again = apply(chain, trace, seed)
    assert again.trace.source_row.tolist() == done.trace.source_row.tolist()
    assert again.log == done.log


@settings(deadline=None, max_examples=50)
@given(rich_traces(), st.integers(0, 2**63), st.lists(st.sampled_from([Sort(), TimeCompress(factor=2), Jitter(grid_s=1e-9)]), max_size=3))
def test_one_more_step_changes_no_other_steps_draw(trace: Trace, seed: int, more: list[Any]) -> None:
    plain = apply([Thin(keep=0.5)], trace, seed).trace
    longer = apply([*more, Thin(keep=0.5), *more], trace, seed).trace
    assert sorted(plain.source_row.tolist()) == sorted(longer.source_row.tolist())


def test_thinning_keeps_or_drops_whole_sessions() -> None:
    sessions = [k % 50 for k in range(200)]
    trace = with_turns(make_trace(np.arange(200)), sessions, [[k - 50] if k >= 50 else [] for k in range(200)])
    kept = apply([Thin(keep=0.5)], trace, 4).trace
    assert kept.turns is not None
    assert 0 < len(kept) < 200
    assert (np.unique(kept.turns.session, return_counts=True)[1] == 4).all()


def test_a_turn_whose_predecessor_left_the_window_arrives_by_the_clock() -> None:
    trace = with_turns(make_trace([0, NS_PER_S, 2 * NS_PER_S]), [0, 0, 0], [[], [0], [1]], 5)
    done = apply([WindowTransform(start_s=1, stop_s=3)], trace, 1)
    assert done.trace.turns is not None
    assert [done.trace.turns.after.row(k).tolist() for k in range(2)] == [[], [0]]
    assert done.trace.turns.think_ns.tolist() == [-1, 5]
    assert done.trace.turns.extends.tolist() == [-1, 0]
    assert done.log[0]["effect"]["turns_without_predecessor"] == 1  # type: ignore[index]


def test_compression_leaves_think_times_alone() -> None:
    trace = with_turns(make_trace([0, 9 * NS_PER_S]), [0, 0], [[], [0]], 7)
    done = apply([TimeCompress(factor=3)], trace, 1).trace
    assert done.turns is not None
    assert (done.arrival_ns.tolist(), done.turns.think_ns.tolist()) == ([0, 3 * NS_PER_S], [-1, 7])


UNSORTED = make_trace([5 * NS_PER_S, 8 * NS_PER_S, 0, 3 * NS_PER_S])
"""Two passes in one file, as RAGPulse is."""


@pytest.mark.parametrize(
    "step",
    [
        WindowTransform(start_s=0, stop_s=5),
        TimeCompress(factor=2),
        Jitter(grid_s=1e-9),
        Retime(process="poisson"),
        Loop(times=2),
    ],
)
def test_what_is_about_time_needs_rows_in_order(step: Any) -> None:
    assert "put the transform sort first" in fault(step, trace=UNSORTED)
    assert len(apply([Sort(), step], UNSORTED, 1).trace) > 0


def test_sorting_merges_two_passes_and_starts_at_zero() -> None:
    done = apply([Sort()], make_trace([7, 9, 2, 7]), 1)
    assert done.trace.arrival_ns.tolist() == [0, 5, 5, 7]
    assert done.trace.source_row.tolist() == [2, 0, 3, 1]
    assert done.extent_ns == NS_PER_S - 2
    assert done.log[0]["effect"]["inversions"] == 1  # type: ignore[index]


@pytest.mark.parametrize("clock", ["session", "none"])
def test_what_is_about_time_means_nothing_without_a_clock(clock: str) -> None:
    trace = replace(make_trace([0, 3, 0, 5]), clock=clock)
    for step in (WindowTransform(start_s=0, stop_s=1), TimeCompress(factor=2), Sort(), Jitter(grid_s=1), Retime(process="poisson")):
        assert "workload.no_clock" in fault(step, trace=trace)
    twice = apply([Loop(times=2)], trace, 1)
    assert twice.trace.arrival_ns.tolist() == [0, 3, 0, 5] * 2
    assert twice.log[0]["effect"]["after"]["mean_rate_rps"] is None  # type: ignore[index]


def test_equal_rows_leave_one_and_what_waited_for_the_other_waits_for_it() -> None:
    trace = make_trace([0, 0, 1, 1], [5, 5, 6, 6], [2, 2, 3, 3], ("a", "a", "a", "b"))
    after, extends = Ragged.of([[], [], [1], [1]], np.int64), column([-1, -1, 1, 1])
    turns = Turns(column([0] * 4), column([0, 0, 1, 1]), after, column([-1, -1, 4, 4]), extends, "included")
    done = apply([Dedupe()], replace(trace, turns=turns), 1).trace
    assert done.source_row.tolist() == [0, 2, 3]
    assert done.turns is not None
    assert [done.turns.after.row(k).tolist() for k in range(3)] == [[], [0], [0]]
    assert done.turns.extends.tolist() == [-1, 0, 0]


def test_turns_that_waited_for_equal_rows_may_be_equal_themselves() -> None:
    after = Ragged.of([[], [], [0], [1], [2], [3], [4, 5]], np.int64)
    turns = Turns(column([0] * 7), column([0, 0, 1, 1, 2, 2, 3]), after, column([-1, -1, 1, 1, 1, 1, 1]), column([-1] * 7), "included")
    done = apply([Dedupe()], replace(make_trace([0, 0, 1, 1, 2, 2, 3]), turns=turns), 1).trace
    assert done.source_row.tolist() == [0, 2, 4, 6]
    assert done.turns is not None
    assert [done.turns.after.row(k).tolist() for k in range(4)] == [[], [0], [1], [2]]


@pytest.mark.parametrize("change", ["client", "kind", "failed", "blocks", "turns"])
def test_rows_that_differ_in_any_column_are_no_duplicates(change: str) -> None:
    trace = with_turns(with_blocks(make_trace([0, 0], [8, 8]), [[1], [1]]), [0, 0], [[], []])
    trace = replace(trace, turns=replace(trace.turns, turn=column([0, 0])))  # type: ignore[type-var]
    assert apply([Dedupe()], trace, 1).trace.source_row.tolist() == [0]
    changed = {
        "client": {"client": Labels.of(["a", "b"])},
        "kind": {"kind": Labels.of(["a", None])},
        "failed": {"failed": frozen(np.array([True, False]))},
        "blocks": {"blocks": Blocks(Ragged.of([[1], [2**63 + 1]], np.uint64), 8, "ceil")},
        "turns": {"turns": replace(trace.turns, session=column([0, 1]))},  # type: ignore[type-var]
    }[change]
    assert len(apply([Dedupe()], replace(trace, **changed), 1).trace) == 2  # type: ignore[arg-type]


def test_failed_rows_and_rows_without_output_are_left_out() -> None:
    trace = replace(make_trace([0, 1, 2], None, [3, 0, 4]), failed=frozen(np.array([True, False, False])))
    assert apply([DropFailed()], trace, 1).trace.source_row.tolist() == [2]


def test_a_later_pass_has_sessions_and_prefix_ids_of_its_own() -> None:
    top = 2**64 - 1
    trace = with_blocks(with_turns(make_trace([0, NS_PER_S], [8, 16], client=("a", "b")), [4, 4], [[], [0]], 6), [[top], [top, 0]])
    done = apply([Loop(times=3)], trace, 1)
    assert done.extent_ns == 6 * NS_PER_S
    assert done.trace.arrival_ns.tolist() == [k * NS_PER_S for k in range(6)]
    assert done.trace.source_row.tolist() == [0, 1] * 3
    assert done.trace.blocks is not None
    assert done.trace.turns is not None
    assert done.trace.client is not None
    assert [done.trace.blocks.ids.row(k).tolist() for k in range(2)] == [[top], [top, 0]]
    sets = [set(np.concatenate([done.trace.blocks.ids.row(k) for k in rows]).tolist()) for rows in ((0, 1), (2, 3), (4, 5))]
    assert len(set().union(*sets)) == sum(len(ids) for ids in sets)
    assert done.trace.blocks.ids.row(2)[0] == done.trace.blocks.ids.row(3)[0]
    assert [done.trace.turns.after.row(k).tolist() for k in range(6)] == [[], [0], [], [2], [], [4]]
    assert len(set(done.trace.turns.session.tolist())) == 3
    assert done.trace.client.values() == ["a", "b"] * 3


def test_repeating_beyond_reason_is_refused() -> None:
    assert "workload.loop" in fault(Loop(times=10**8), trace=make_trace([0]))


def test_scaling_shrinks_blocks_alike_so_that_sharing_stays() -> None:
    trace = with_blocks(make_trace([0, 1], [1024, 1100]), [[1, 2], [1, 2, 3]], 512)
    done = apply([ScaleLengths(input_factor=1 / 8)], trace, 1)
    assert done.trace.blocks is not None
    assert done.trace.blocks.size == 64
    assert [done.trace.blocks.ids.row(k).tolist() for k in range(2)] == [[1, 2], [1, 2, 3]]
    text = fault(ScaleLengths(input_factor=0.3), trace=trace)
    assert "512 x 0.3 = 153.6 is no whole block" in text
    assert "154/512" in text


@pytest.mark.parametrize(("rounding", "left"), [("ceil", [1, 2]), ("floor", [1])])
def test_a_prompt_cut_below_its_ids_drops_the_surplus(rounding: str, left: list[int]) -> None:
    trace = with_blocks(make_trace([0], [32]), [[1, 2, 3, 4]], 8, rounding)
    done = apply([ClipLengths(input_maximum=12)], trace, 1)
    assert done.trace.blocks is not None
    assert done.trace.blocks.ids.row(0).tolist() == left
    assert done.log[0]["effect"]["prefix_ids_dropped"] == 4 - len(left)  # type: ignore[index]
    longer = apply([ScaleLengths(input_minimum=50)], trace, 1).trace.blocks
    assert longer is not None
    assert longer.ids.row(0).tolist() == [1, 2, 3, 4]


def test_clipping_shortens_or_leaves_out() -> None:
    trace = make_trace([0, 1, 2], [5, 9, 1], [8, 1, 1])
    clipped = apply([ClipLengths(input_maximum=6, output_maximum=7)], trace, 1)
    assert clipped.trace.input_tokens.tolist() == [5, 6, 1]
    assert clipped.trace.output_tokens.tolist() == [7, 1, 1]
    assert apply([ClipLengths(input_maximum=6, output_maximum=7, on_excess="drop")], trace, 1).trace.source_row.tolist() == [2]
    assert (clipped.log[0]["effect"]["input_over"], clipped.log[0]["effect"]["output_over"]) == (1, 1)  # type: ignore[index]
    assert "neither" in fault(ClipLengths(), trace=trace)


@given(TRACES, st.integers(0, 2**63))
def test_retiming_keeps_rows_in_order_and_their_lengths(trace: Trace, seed: int) -> None:
    if trace.arrival_ns[-1] == 0:
        assert "span no time" in fault(Retime(process="poisson"), trace=trace)
        return
    done = apply([Retime(process="gamma", cv=2)], trace, seed)
    assert done.trace.source_row.tolist() == trace.source_row.tolist()
    assert int(done.trace.input_tokens.sum()) == int(trace.input_tokens.sum())
    assert done.trace.arrival_ns[-1] <= done.extent_ns


@pytest.mark.parametrize(("process", "cv"), [("poisson", 1.0), ("gamma", 3.0), ("weibull", 0.5)])
def test_retiming_draws_at_the_mean_rate_and_never_ends_exactly(process: Any, cv: float) -> None:
    trace = make_trace(np.arange(20_000) ** 2)
    ends = []
    for seed in range(5):
        arrival = apply([Retime(process=process, cv=cv)], trace, seed).trace.arrival_ns
        gaps = np.diff(arrival)
        assert gaps.mean() == pytest.approx(20_000, rel=5 * cv / math.sqrt(20_000))  # span 19,999^2 over 19,999 gaps
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.15)
        ends.append(int(arrival[-1]))
    assert len(set(ends)) == 5


def test_retiming_moves_sessions_and_keeps_their_turns_apart() -> None:
    sessions = [k // 2 for k in range(40)]
    times = [s * 100 + 40 * (k % 2) for k, s in enumerate(sessions)]
    trace = with_turns(make_trace(times), sessions, [[k - 1] if k % 2 else [] for k in range(40)])
    done = apply([Retime(process="poisson")], trace, 3).trace
    assert done.turns is not None
    first, second = (done.arrival_ns[done.turns.turn == t][np.argsort(done.turns.session[done.turns.turn == t])] for t in (0, 1))
    assert (second - first).tolist() == [40] * 20


def test_jitter_stays_within_the_grid_and_keeps_what_is_a_session_apart() -> None:
    grid = 3 * NS_PER_S
    trace = make_trace(np.repeat(np.arange(200), 20) * grid)
    done = apply([Jitter(grid_s=3)], trace, 1)
    moved = done.trace.arrival_ns - trace.arrival_ns[done.trace.source_row]
    assert 0 <= moved.min() <= moved.max() < grid
    assert (done.trace.arrival_ns // grid * grid == trace.arrival_ns).all()
    effect: Any = done.log[0]["effect"]
    assert effect["before"]["cv_interarrival"] > 4  # sqrt(19): twenty at once, then nothing
    assert effect["after"]["cv_interarrival"] == pytest.approx(1, abs=0.1)
    pairs = with_turns(make_trace([0, grid, grid, 2 * grid]), [0, 0, 1, 1], [[], [0], [], [2]])
    apart = apply([Jitter(grid_s=3)], pairs, 2).trace
    assert apart.turns is not None
    assert all(np.diff(apart.arrival_ns[apart.turns.session == s]).tolist() == [grid] for s in (0, 1))


def test_a_grid_that_stamps_do_not_lie_on_is_refused() -> None:
    trace = make_trace(np.cumsum(np.arange(1, 200)) * 10**6)
    assert "lie on no such grid" in fault(Jitter(grid_s=0.1), trace=trace)
    assert len(apply([Jitter(grid_s=0.1)], replace(trace, grid_ns=10**8), 1).trace) == 199


def test_clients_merge_with_the_heaviest_apart_and_split_without_dividing_sessions() -> None:
    who = ("a",) * 5 + ("b",) * 3 + ("c",) * 2
    trace = make_trace(range(10), client=who)
    merged = apply([Tenants(count=2, rule="merge")], trace, 1)
    assert merged.trace.client is not None
    assert merged.trace.client.values() == ["merged-0"] * 5 + ["merged-1"] * 3 + ["merged-0"] * 2
    assert (merged.log[0]["effect"]["clients_before"], merged.log[0]["effect"]["clients_after"]) == (3, 2)  # type: ignore[index]
    many = make_trace(range(400), client=("a",) * 300 + ("b",) * 100)
    many = with_turns(many, [k // 4 for k in range(400)], [[k - 1] if k % 4 else [] for k in range(400)])
    split = apply([Tenants(count=5, rule="split")], many, 1).trace
    assert split.client is not None
    names = np.array(split.client.values())
    assert set(names) == {"a.0", "a.1", "a.2", "b.0", "b.1"}
    assert all(len(set(names[k : k + 4])) == 1 for k in range(0, 400, 4))
    assert split.client.names == tuple(sorted(split.client.names))


@pytest.mark.parametrize(("count", "rule"), [(4, "merge"), (2, "split")])
def test_clients_merge_into_fewer_and_split_into_more(count: int, rule: Any) -> None:
    assert f"count={count}" in fault(Tenants(count=count, rule=rule), trace=make_trace([0, 1, 2], client=("a", "b", "c")))
    assert "names no clients" in fault(Tenants(count=1, rule="merge"), trace=make_trace([0]))


def test_rows_without_a_client_stay_without_one() -> None:
    trace = replace(make_trace([0, 1, 2]), client=Labels.of(["a", None, "b"]))
    for step in (Tenants(count=1, rule="merge"), Tenants(count=4, rule="split")):
        client = apply([step], trace, 1).trace.client
        assert client is not None
        assert client.at(1) is None
        assert client.at(0) is not None


def test_the_log_describes_what_a_step_did() -> None:
    trace = make_trace(np.arange(100) * NS_PER_S, np.arange(100), np.full(100, 7))
    (entry,) = apply([TimeCompress(factor=10)], trace, 1).log
    effect: Any = entry["effect"]
    assert effect["before"]["mean_rate_rps"] == pytest.approx(1)
    assert effect["after"]["mean_rate_rps"] == pytest.approx(10)
    assert effect["before"]["input_tokens"] == {"mean": 49.5, "p99": 98}
    assert effect["after"]["output_tokens"] == {"mean": 7.0, "p99": 7}
    assert effect["after"]["index_of_dispersion_60s"] is None  # ten seconds lie in one bin


def test_a_loop_that_would_make_more_prefix_ids_than_memory_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = replace(make_trace([0], [64]), blocks=Blocks(Ragged.of([range(64)], np.uint64), 1, "ceil"))
    monkeypatch.setattr(rows, "MAX_IDS", 128)
    assert len(apply([Loop(times=2)], trace, 1).trace) == 2
    assert "64 prefix ids" in fault(Loop(times=3), trace=trace)


@pytest.mark.parametrize("factor", [math.inf, 1e30])
def test_a_factor_that_makes_no_length_or_no_block_is_refused(factor: float) -> None:
    trace = replace(make_trace([0, 0], [0, 64]), blocks=Blocks(Ragged.of([[], range(4)], np.uint64), 16, "ceil"))
    step = ScaleLengths(input_factor=factor, input_maximum=10)
    assert f"input_factor={factor}" in fault(step, trace=trace)
    assert attempt(lambda: apply([step], replace(trace, blocks=None), 1))[1] == (
        {"workload.scale_lengths"} if factor == math.inf else set()
    )
