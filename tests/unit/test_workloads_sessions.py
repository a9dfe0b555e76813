"""Sessions in a schedule: who waits for whom, what each prompt holds, and which loop can be played from which clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from tests.complaints import CHATS, build, write
from tests.unit.test_workloads_transforms import attempt, column, make_trace, rich_traces, with_turns
from workloads import WorkloadPlan, check_rows
from workloads.assemble import assemble
from workloads.check import check_lengths
from workloads.prompts.ids import IdPrompts
from workloads.schedule import Ragged, Trace, Turns
from workloads.sessions import accumulate, limit_turns

S = 10**9
SOURCE = {"format": "x", "name": "t", "sha256": "0" * 64}


def make_plan(**changes: Any) -> WorkloadPlan:
    base: dict[str, Any] = {"trace": SOURCE, "arrivals": {"process": "trace"}, "output": {"control": "natural"}, "horizon_s": 10, "seed": 3}
    return WorkloadPlan.model_validate(base | changes)


def play(trace: Trace, **changes: Any) -> Trace:
    return assemble(make_plan(**changes), trace).trace


def log_of(trace: Trace, **changes: Any) -> dict[Any, Any]:
    return {entry["name"]: entry for entry in assemble(make_plan(**changes), trace).log()}


def codes(rows: Trace, **changes: Any) -> dict[str, str]:
    with pytest.raises(UsageError) as caught:
        check_rows(make_plan(**changes), rows)
    return {problem.code: f"{problem.what} -> {problem.remedy}" for problem in caught.value.problems}


def chat(clock: Any = "relative", think: Any = (0, S, 2 * S, 0, 3 * S), history: str = "included") -> Trace:
    """Two conversations, of three turns from 0 s and two from 1 s; answers of 2 tokens took seconds when recorded."""
    trace = make_trace([0, S, 4 * S, 5 * S, 9 * S], [10, 20, 25, 24, 40], [2, 2, 2, 2, 2])
    trace = with_turns(trace, [7, 9, 7, 9, 7], [[], [], [0], [1], [2]], 0, history)
    assert trace.turns is not None
    pauses = np.where(np.diff(trace.turns.after.offsets) > 0, think, -1)
    if clock in {"session", "none"}:
        trace = replace(trace, arrival_ns=column([0, 0, 4 * S, 4 * S, 9 * S] if clock == "session" else [0] * 5))
    return replace(trace, clock=clock, turns=replace(trace.turns, think_ns=column(pauses)))  # type: ignore[type-var]


def waits(rows: Trace) -> list[list[int]]:
    assert rows.turns is not None
    return [rows.turns.after.row(k).tolist() for k in range(len(rows))]


def test_the_open_loop_sends_every_turn_by_the_clock() -> None:
    rows = play(chat())
    assert rows.arrival_ns.tolist() == [0, S, 4 * S, 5 * S, 9 * S]
    assert waits(rows) == [[]] * 5
    assert rows.turns is not None
    assert rows.turns.extends.tolist() == [-1, -1, 0, 1, 2]
    assert set(rows.turns.think_ns.tolist()) == {-1}


def test_partly_open_turns_wait_and_are_planned_as_if_answers_took_no_time() -> None:
    rows = play(chat(), loop="partly_open")
    assert rows.source_row.tolist() == [0, 1, 3, 2, 4]
    assert rows.arrival_ns.tolist() == [0, S, S, 2 * S, 5 * S]
    assert waits(rows) == [[], [], [1], [0], [3]]
    assert rows.turns is not None
    assert rows.turns.think_ns.tolist() == [-1, -1, 0, 2 * S, 3 * S]
    assert rows.turns.extends.tolist() == [-1, -1, 1, 0, 3]


def test_pauses_are_replaced_capped_and_counted() -> None:
    rows = play(chat(), loop="partly_open", sessions={"think_s": 0.5})
    assert rows.arrival_ns.tolist() == [0, S // 2, S, S, 3 * S // 2]
    entry = log_of(chat(), loop="partly_open", sessions={"think_limit_s": 1.5})["think"]
    assert (entry["think_limit_s"], entry["effect"]["pauses_capped"], entry["effect"]["capped_by_s"]) == (1.5, 2, 2.0)
    assert entry["effect"]["waiting_turns"] == 3


def test_pauses_nobody_knows_are_refused_until_replaced() -> None:
    unknown = chat(think=(0, 0, -1, 0, -1))
    text = codes(unknown, loop="partly_open")["workload.think_unknown"]
    assert "turns=2 of 3" in text
    assert "think_s" in text
    assert len(play(unknown, loop="partly_open", sessions={"think_s": 0})) == 5


def test_pauses_nobody_knows_can_be_filled_in_beside_those_that_are_known() -> None:
    unknown = chat(think=(0, 0, -1, 0, -1))
    rows = play(unknown, loop="partly_open", sessions={"think_unknown_s": 3, "think_limit_s": 2})
    assert rows.turns is not None
    assert sorted(rows.turns.think_ns.tolist()) == [-1, -1, 0, 2 * S, 2 * S]
    assert log_of(unknown, loop="partly_open", sessions={"think_unknown_s": 3})["think"]["effect"]["pauses_unknown"] == 2


@pytest.mark.parametrize(
    ("loop", "sessions"),
    [("open", {"think_limit_s": 60}), ("open", {"think_s": 0}), ("closed", {"think_limit_s": 1})],
)
def test_a_pause_that_nothing_would_wait_for_is_refused(loop: str, sessions: dict[str, Any]) -> None:
    assert "workload.pause_unused" in codes(chat(), loop=loop, sessions=sessions, users=2 if loop == "closed" else None)


def test_the_horizon_cuts_starts_and_leaves_out_what_lies_behind_it() -> None:
    rows = play(chat(), loop="partly_open", horizon_s=3)
    assert rows.source_row.tolist() == [0, 1, 3, 2]
    effect = log_of(chat(), loop="partly_open", horizon_s=3)["horizon"]["effect"]
    assert effect["turns_left_out"] == 1
    assert len(play(chat(), horizon_s=3)) == 2  # by the clock, three turns are later


def test_a_fork_waits_for_the_last_of_its_answers() -> None:
    trace = with_turns(make_trace([0, S, 2 * S, 3 * S]), [0] * 4, [[], [0], [0], [1, 2]])
    assert trace.turns is not None
    trace = replace(trace, turns=replace(trace.turns, think_ns=column([-1, S, 4 * S, S])))
    rows = play(trace, loop="partly_open", horizon_s=4)
    assert rows.arrival_ns.tolist() == [0, S]
    rows = play(trace, loop="partly_open", sessions={"think_limit_s": 1}, horizon_s=4)
    assert rows.arrival_ns.tolist() == [0, S, S, 2 * S]
    assert waits(rows) == [[], [0], [0], [1, 2]]


@pytest.mark.parametrize("clock", ["session", "none"])
@pytest.mark.parametrize("loop", ["open", "partly_open"])
def test_a_trace_without_arrivals_needs_a_process(clock: str, loop: str) -> None:
    assert "constant, poisson, gamma or weibull" in codes(chat(clock), loop=loop)["workload.no_clock"]


def test_a_process_starts_sessions_and_their_turns_keep_their_distance() -> None:
    process = {"process": "constant", "rate": 0.2}  # starts at 2.5 and 7.5 s
    rows = play(chat("session"), arrivals=process)
    assert rows.arrival_ns.tolist() == [5 * S // 2, 13 * S // 2, 15 * S // 2]  # the rest lies behind 10 s
    rows = play(chat("session"), arrivals=process, loop="partly_open")
    assert rows.arrival_ns.tolist() == [5 * S // 2, 9 * S // 2, 15 * S // 2, 15 * S // 2, 15 * S // 2]
    assert waits(rows) == [[], [0], [], [2], [1]]
    assert log_of(chat("session"), arrivals=process)["session_starts"]["effect"]["sessions"] == 2


def test_a_trace_with_arrivals_can_have_its_starts_drawn_too() -> None:
    rows = play(chat(), arrivals={"process": "constant", "rate": 0.1})  # one start, at 5 s
    assert rows.source_row.tolist() == [0, 2]
    assert rows.arrival_ns.tolist() == [5 * S, 9 * S]


def test_sessions_that_run_out_are_refused() -> None:
    text = codes(chat("session"), arrivals={"process": "constant", "rate": 1})["workload.rows_run_out"]
    assert "sessions=2" in text
    assert "need 10 sessions" in text


def test_turns_without_times_cannot_be_sent_by_the_clock() -> None:
    process = {"process": "constant", "rate": 0.2}
    assert "partly_open" in codes(chat("none"), arrivals=process)["workload.no_turn_times"]
    assert len(play(chat("none"), arrivals=process, sessions={"max_turns": 1})) == 2
    assert len(play(chat("none"), arrivals=process, loop="partly_open", sessions={"think_s": 0})) == 5


def test_a_history_that_is_counted_already_is_not_added_again() -> None:
    rows = play(chat())
    assert rows.input_tokens.tolist() == [10, 20, 25, 24, 40]
    assert log_of(chat())["history"]["effect"]["turns_shorter_than_history"] == 0


def test_a_history_that_is_not_counted_is_prompt_and_answer_and_the_new_part() -> None:
    rows = play(chat(history="excluded"))
    assert rows.input_tokens.tolist() == [10, 20, 10 + 2 + 25, 20 + 2 + 24, 37 + 2 + 40]
    capped = play(chat(history="excluded"), output={"control": "capped", "max_tokens": 1})
    assert capped.input_tokens.tolist() == [10, 20, 36, 45, 77]  # no answer is longer than the server was told
    assert log_of(chat(history="excluded"))["history"]["effect"]["history_tokens_added"] == 12 + 22 + 39


def test_a_history_that_outgrows_the_model_is_refused() -> None:
    rows = play(chat(history="excluded"))  # the longest prompt is 79 tokens
    check_lengths(make_plan(), rows, 80, 0)
    with pytest.raises(UsageError, match=r"rows=1 of 5.*79 input(.|\n)*limit sessions\.max_turns"):
        check_lengths(make_plan(), rows, 79, 0)


def test_a_history_cut_by_a_window_is_counted() -> None:
    chain = [{"transform": "window", "start_s": 3, "stop_s": 10}]
    log = log_of(chat(history="excluded"), chain=chain, horizon_s=7)
    assert log["window"]["effect"]["turns_without_predecessor"] == 2
    assert log["history"]["effect"]["later_turns_without_history"] == 2


def test_without_history_every_turn_is_a_prompt_of_its_own() -> None:
    for history in ("included", "excluded"):
        rows = play(chat(history=history), sessions={"history": "none"})
        assert rows.input_tokens.tolist() == [10, 20, 25, 24, 40]
        assert rows.turns is not None
        assert set(rows.turns.extends.tolist()) == {-1}


def test_a_conversation_that_shrank_starts_afresh() -> None:
    trace = replace(chat(), input_tokens=column([10, 20, 9, 24, 40]))
    rows = play(trace)
    assert rows.turns is not None
    assert rows.turns.extends.tolist() == [-1, -1, -1, 1, 2]
    assert rows.input_tokens.tolist() == [10, 20, 9, 24, 40]
    assert log_of(trace)["history"]["effect"]["turns_shorter_than_history"] == 1


def test_only_the_first_turns_can_be_asked_for() -> None:
    rows = play(chat(), sessions={"max_turns": 2})
    assert rows.source_row.tolist() == [0, 1, 2, 3]
    assert log_of(chat(), sessions={"max_turns": 2})["max_turns"]["rows_after"] == 4


def test_sessions_are_asked_for_only_where_there_are_any() -> None:
    plain = make_trace([0, S, 9 * S + 1])
    assert codes(plain, loop="partly_open").keys() == {"workload.no_sessions"}
    assert codes(plain, sessions={"max_turns": 1}).keys() == {"workload.no_sessions"}
    assert len(play(plain)) == 3


def test_users_take_sessions_in_turn_and_send_one_request_after_the_other() -> None:
    rows = play(chat("none"), loop="closed", users=2, sessions={"think_s": 2})
    assert rows.source_row.tolist() == [0, 1, 2, 3, 4]
    assert rows.arrival_ns.tolist() == [0, S, 2 * S, 3 * S, 4 * S]  # users start half a think time apart
    assert waits(rows) == [[], [], [0], [1], [2]]
    plain = make_trace(range(7))
    alone = play(plain, loop="closed", users=3)
    assert alone.turns is not None
    chains = [alone.source_row[alone.turns.session == user].tolist() for user in range(3)]
    assert chains == [[0, 3, 6], [1, 4], [2, 5]]
    assert sorted(set(alone.arrival_ns.tolist())) == [0, S // 3, 2 * S // 3]
    entry = log_of(plain, loop="closed", users=3)["closed"]
    assert (entry["effect"]["requests_per_user_least"], entry["effect"]["requests_per_user_most"]) == (2, 3)


def test_a_closed_loop_without_a_trace_makes_rate_times_horizon_requests_ready() -> None:
    lengths = {"input": {"kind": "constant", "value": 4}, "output": {"kind": "constant", "value": 2}}
    plan = make_plan(trace=None, lengths=lengths, loop="closed", users=4, arrivals={"process": "constant", "rate": 2})
    rows = assemble(plan, None).trace
    assert len(rows) == 20
    assert sum(not w for w in waits(rows)) == 4


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"loop": "closed"}, "workload.users"),
        ({"users": 3}, "workload.users"),
        ({"loop": "closed", "users": 9}, "workload.users"),
        ({"loop": "closed", "users": 1, "arrivals": {"process": "poisson", "rate": 1}}, "workload.closed_arrivals"),
        ({"loop": "closed", "users": 1, "arrivals": {"process": "constant", "rate": 3}}, "workload.rows_run_out"),
        ({"loop": "partly_open", "trace": None}, "workload.no_sessions"),
        ({"prompts": {"source": "dataset", "dataset": SOURCE}}, "workload.dataset_history"),
        ({"prompts": {"source": "dataset"}}, "workload.dataset"),
    ],
)
def test_a_loop_that_cannot_be_played_is_refused(changes: dict[str, Any], code: str) -> None:
    assert code in codes(chat(), **changes)


def test_a_file_out_of_order_is_sent_only_after_sorting() -> None:
    trace = make_trace([5 * S, 9 * S, 0])
    assert "put the transform sort first" in codes(trace)["workload.unsorted"]
    assert play(trace, chain=[{"transform": "sort"}]).source_row.tolist() == [2, 0, 1]


def test_sessions_out_of_order_are_refused_too() -> None:
    trace = chat()
    trace = replace(trace, arrival_ns=column([0, S, 4 * S, 5 * S, 3 * S]))
    for loop in ("open", "partly_open"):
        assert "workload.unsorted" in codes(trace, loop=loop, horizon_s=5)


def test_a_row_may_wait_for_one_that_stands_behind_it_in_the_file() -> None:
    trace = make_trace([0, 0, 0])
    turns = Turns(column([0] * 3), column([2, 1, 0]), Ragged.of([[1], [2], []], np.int64), column([0, 0, -1]), column([-1] * 3), "included")
    rows = play(replace(trace, turns=turns), loop="partly_open", horizon_s=1)
    assert rows.source_row.tolist() == [2, 1, 0]
    assert waits(rows) == [[], [0], [1]]


def test_only_arrivals_by_the_clock_are_described_where_turns_wait() -> None:
    entry = log_of(chat(), loop="partly_open")["trace_to_sent"]["effect"]
    assert (entry["before"]["arrivals"], entry["after"]["arrivals"]) == (5, 2)
    assert entry["after"]["mean_rate_rps"] == pytest.approx(1.0)
    alone = log_of(make_trace(range(40)), loop="closed", users=4)["trace_to_sent"]["effect"]["after"]
    assert (alone["arrivals"], alone["mean_rate_rps"]) == (4, pytest.approx(4.0))


def test_rows_that_wait_for_each_other_are_refused() -> None:
    base = column([0, 0, 0])
    with pytest.raises(UsageError, match=r"rows=2: turns wait for each other.*workload\.circle"):
        accumulate(base, Ragged.of([[], [2], [1]], np.int64), base)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50), st.lists(st.integers(0, 10**6), max_size=3)), min_size=1, max_size=40))
def test_accumulated_values_are_the_longest_way(rows: list[tuple[int, int, list[int]]]) -> None:
    after = [sorted({p % k for p in picks}) if k else [] for k, (_, _, picks) in enumerate(rows)]
    got = accumulate(column([r[0] for r in rows]), Ragged.of(after, np.int64), column([r[1] for r in rows])).tolist()
    want: list[int] = []
    for (base, step, _), waiting in zip(rows, after, strict=True):
        want.append(max(want[w] for w in waiting) + step if waiting else base)
    assert got == want


@settings(deadline=None, max_examples=60)
@given(rich_traces(), st.sampled_from(["open", "partly_open", "closed"]), st.integers(1, 130), st.booleans())
def test_any_loop_gives_rows_in_order_that_wait_for_earlier_ones(trace: Trace, loop: str, horizon: int, carry: bool) -> None:
    sessions = {"history": "carry" if carry else "none"}
    rows, refused = attempt(lambda: play(trace, loop=loop, users=1 if loop == "closed" else None, horizon_s=horizon, sessions=sessions))
    assert refused <= {"workload.horizon_not_covered"}
    if rows is None:
        return
    assert (np.diff(rows.arrival_ns) >= 0).all()
    assert not len(rows) or rows.arrival_ns[-1] < horizon * S
    assert rows.turns is not None
    owner = np.repeat(np.arange(len(rows)), np.diff(rows.turns.after.offsets))
    awaited = rows.turns.after.values.astype(np.int64)
    assert (awaited < owner).all()
    assert (rows.arrival_ns[owner] >= rows.arrival_ns[awaited] + rows.turns.think_ns[owner]).all()
    waiting = np.diff(rows.turns.after.offsets) > 0
    assert ((rows.turns.think_ns >= 0) == waiting).all()
    assert loop != "open" or not waiting.any()
    has = rows.turns.extends >= 0
    assert not (has & (rows.input_tokens < rows.input_tokens[rows.turns.extends])).any()
    assert carry or not has.any()


@pytest.mark.parametrize(
    ("history", "tokens", "parts"),
    [("excluded", 50, [0, 5, 100, 50]), ("included", 355, [0, 5, 300, 50])],  # what the trace's own prompts hold was not capped
)
def test_a_capped_answer_in_an_added_history_leaves_the_new_part_whole(history: str, tokens: int, parts: list[int], tmp_path: Path) -> None:
    path = write(tmp_path, "t.csv", f"at,in,out,chat,think\n0,5,300,a,\n1,{tokens},300,a,1\n")
    control = {"control": "capped", "max_tokens": 100}
    prompts = build(path, "csv", CHATS | {"history": history}, output=control, horizon_s=2).prompts
    assert isinstance(prompts, IdPrompts)
    assert prompts.layout.segments(1)[1].tolist() == parts
    assert not prompts.notes


def test_turns_are_limited_among_those_that_a_window_left() -> None:
    rows = play(chat(), chain=[{"transform": "window", "start_s": 2, "stop_s": 10}], sessions={"max_turns": 1}, horizon_s=8)
    assert rows.source_row.tolist() == [2, 3]


def test_siblings_of_a_tree_are_one_turn_when_turns_are_limited() -> None:
    trace = with_turns(make_trace([0, 1, 2, 3], [1] * 4, [1] * 4), [5, 5, 5, 5], [[], [0], [0], [1]], 0)
    assert trace.turns is not None
    trace = replace(trace, turns=replace(trace.turns, turn=column([3, 4, 4, 5])))
    assert trace.turns is not None
    assert limit_turns(trace, trace.turns, 2).source_row.tolist() == [0, 1, 2]


def test_pauses_that_add_up_to_decades_are_refused_and_can_be_capped() -> None:
    decades = chat(think=[2**60] * 5)
    assert "workload.time" in codes(decades, loop="partly_open")
    entry = log_of(decades, loop="partly_open", sessions={"think_limit_s": 1})["think"]
    assert entry["effect"]["capped_by_s"] == pytest.approx(3 * (2**60 / S - 1))
    beyond = chat(think=[2**62] * 5)
    assert log_of(beyond, loop="partly_open", sessions={"think_limit_s": 1})["think"]["effect"]["capped_by_s"] > 3 * 2**61 / S


def test_users_of_a_closed_loop_who_would_pause_for_decades_are_refused() -> None:
    assert "workload.time" in codes(chat(), loop="closed", users=1, sessions={"think_s": 1e9})
