"""Reader weka-agentic: local ids made distinct, pauses from ends and not from starts, sub-agents that branch off and join."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracefiles import check_outcome, check_sound, codes, fault, read
from workloads.plan import Dedupe
from workloads.profiles import profile
from workloads.schedule import Trace, Turns
from workloads.traces import get_reader
from workloads.transforms import apply

FORMAT = "weka-agentic"
NS = 10**9


def request(t: float, tokens: int = 128, ids: list[int] | None = None, out: int = 5, **more: Any) -> dict[str, Any]:
    ids = list(range(1, tokens // 64 + 1)) if ids is None else ids
    return {"t": t, "type": "n", "model": "m", "in": tokens, "out": out, "hash_ids": ids, "stop": "", **more}


def agent(t: float, duration_ms: int, *requests: dict[str, Any]) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": "a", "duration_ms": duration_ms, "status": "completed", "requests": list(requests)}


def session(*requests: dict[str, Any], name: str = "trace_1", **more: Any) -> bytes:
    facts = {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 1, "system_tokens": 1, "totals": {}}
    return json.dumps({**facts, "requests": requests, **more}).encode()


def packed(*members: tuple[str, bytes], link: bool = False) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, raw in members:
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
        if link:
            info = tarfile.TarInfo("escape.json")
            info.type, info.linkname = tarfile.SYMTYPE, "../secret.json"
            archive.addfile(info)
    return gzip.compress(buffer.getvalue(), mtime=0)


def turns_of(trace: Trace) -> Turns:
    assert trace.turns is not None
    return trace.turns


def ids_of(trace: Trace, row: int) -> list[int]:
    assert trace.blocks is not None
    return [int(i) for i in trace.blocks.ids.row(row)]


def test_ids_count_full_blocks_only_aiperf_1209() -> None:
    rule = get_reader(FORMAT).info.prefix
    assert rule is not None
    assert (rule.block_size, rule.rounding, rule.scope) == (64, "floor", "session")
    assert ids_of(read(FORMAT, session(request(0, 191))), 0) == [0, 1]
    assert codes(FORMAT, session(request(0, 191, [1, 2, 3]))) == ["trace.block_count"]
    assert codes(FORMAT, session(request(0, 192, [1, 2]))) == ["trace.block_count"]


def test_extra_keys_do_not_refuse_a_real_session_guidellm_992() -> None:
    assert len(read(FORMAT, session(request(0, ttft=1.0, input_types=["text"], new_key=1), another={"x": [1]}))) == 1


def test_block_one_of_two_sessions_is_two_blocks() -> None:
    trace = read(FORMAT, packed(("a.json", session(request(0), request(9))), ("b.json", session(request(0), name="trace_2"))))
    assert turns_of(trace).session.tolist() == [0, 0, 1]
    assert ids_of(trace, 0) == ids_of(trace, 1)
    assert not set(ids_of(trace, 0)) & set(ids_of(trace, 2))


def test_ids_of_64_bits_stay_apart_dynamo_12046() -> None:
    big = [(1 << 64) - 1, (1 << 32) + 7]
    trace = read(FORMAT, session(request(0, 128, big), request(9, 128, [7, big[1]])))
    assert len({*ids_of(trace, 0), *ids_of(trace, 1)}) == 3
    assert ids_of(trace, 0)[1] == ids_of(trace, 1)[1]
    assert codes(FORMAT, session(request(0, 128, [1, 1 << 64]))) == ["trace.hash_id"]


def test_pauses_come_from_think_time_and_never_from_starts_inference_sim_1478() -> None:
    trace = read(FORMAT, session(request(0, api_time=4.3, think_time=0.0), request(17, api_time=13.85, think_time=12.0)))
    assert trace.clock == "session"
    assert trace.arrival_ns.tolist() == [0, 17 * NS]
    assert turns_of(trace).think_ns.tolist() == [-1, 12 * NS]
    assert turns_of(trace).after.row(1).tolist() == [0]


def test_an_absent_pause_or_end_leaves_the_pause_unknown() -> None:
    rows = request(0, api_time=1.0), request(5), request(9, think_time=8.0), request(20, think_time=3.0, api_time=1.0)
    trace = read(FORMAT, session(*rows))
    # Row 2 follows one without an end: its think time counts from row 0's and would hold row 1's service.
    assert turns_of(trace).think_ns.tolist() == [-1, -1, -1, -1]
    assert any(note.startswith("3 of 3 later turns have no known think time") for note in trace.notes)


def test_waiting_for_the_last_known_end_makes_every_pause_known() -> None:
    rows = request(0), request(2), request(5, api_time=1.0), request(9, think_time=3.0), request(20, think_time=14.0, api_time=1.0)
    turns = turns_of(read(FORMAT, session(*rows), waits_for="last_known_end"))
    assert [turns.after.row(i).tolist() for i in range(5)] == [[], [], [], [2], [2]]
    assert turns.think_ns.tolist() == [-1, -1, -1, 3 * NS, 14 * NS]
    assert turns.extends.tolist() == turns_of(read(FORMAT, session(*rows))).extends.tolist()
    same = session(*FAMILY)
    assert turns_of(read(FORMAT, same, waits_for="last_known_end")).think_ns.tolist() == turns_of(read(FORMAT, same)).think_ns.tolist()


def test_a_pause_of_hours_is_kept_and_told_aiperf_1262() -> None:
    trace = read(FORMAT, session(request(0, api_time=2.0), request(71_891, think_time=71_889.0)))
    assert turns_of(trace).think_ns[1] == 71_889 * NS
    assert any("the longest lasts 71889 s" in note for note in trace.notes)


FAMILY = (
    request(0, 640, api_time=19.0, think_time=0.0),
    agent(80.0, 60_000, request(0, 128, [50, 51], api_time=2.0), request(6, 192, [50, 51, 52], api_time=50.0, think_time=4.0)),
    agent(184.0, 164_000, request(0, 128, [50, 53], api_time=100.0)),
    request(228, 704, api_time=12.0, think_time=209.0),
    request(248, 768, api_time=1.0, think_time=8.0),
)


def test_sub_agents_branch_off_the_request_that_ended_when_they_began_and_join_the_next() -> None:
    trace = read(FORMAT, session(*FAMILY))
    turns = turns_of(trace)
    assert [turns.after.row(i).tolist() for i in range(6)] == [[], [0], [1], [0], [0, 2, 3], [4]]
    assert trace.arrival_ns.tolist() == [s * NS for s in (0, 20, 26, 20, 228, 248)]
    # 20 - 19, 4, 20 - 19; the join counts from the last end (120 s) and not from the parent's (19 s), whose pause was 209 s.
    assert turns.think_ns.tolist() == [-1, 1 * NS, 4 * NS, 1 * NS, 108 * NS, 8 * NS]
    assert trace.kind is not None
    assert trace.kind.values() == ["main", "subagent", "subagent", "subagent", "main", "main"]
    assert (turns.session.tolist(), turns.turn.tolist()) == ([0] * 6, list(range(6)))


def test_a_sub_agents_clock_starts_with_it_and_its_ids_are_its_sessions() -> None:
    trace = read(FORMAT, session(*FAMILY))
    assert ids_of(trace, 1)[0] == ids_of(trace, 3)[0]
    assert turns_of(trace).extends.tolist() == [-1, -1, 1, -1, 0, 4]


def test_a_sub_agent_still_running_does_not_hold_its_parent_up() -> None:
    rows = request(0, api_time=1.0), request(10, api_time=1.0, think_time=9.0), agent(60.0, 55_000, request(0, api_time=1.0)), request(70)
    turns = turns_of(read(FORMAT, session(*rows)))
    assert [turns.after.row(i).tolist() for i in range(4)] == [[], [0], [0], [1, 2]]


def test_a_sub_agent_with_an_impossible_duration_is_refused() -> None:
    assert codes(FORMAT, session(request(0), agent(5.0, 6_000, request(0)))) == ["trace.subagent"]


def test_a_compacted_history_extends_nothing_and_is_counted() -> None:
    trace = read(FORMAT, session(request(0, 640), request(9, 320), request(20, 640, list(range(90, 100))), request(30, 640)))
    assert turns_of(trace).extends.tolist() == [-1, -1, -1, -1]
    assert any(note.startswith("3 later turns do not hold all") for note in trace.notes)


def test_history_is_counted_already_dynamo_14184() -> None:
    trace = read(FORMAT, session(request(0, 640), request(9, 704)))
    assert turns_of(trace).history == "included"
    assert trace.input_tokens.tolist() == [640, 704]
    assert turns_of(trace).extends.tolist() == [-1, 0]


def test_requests_without_output_are_kept_and_told() -> None:
    trace = read(FORMAT, session(request(0), request(9, out=0)))
    assert trace.output_tokens.tolist() == [5, 0]
    assert trace.failed is None
    assert any(note.startswith("1 requests have no output token") for note in trace.notes)


def test_equal_sessions_are_counted_and_kept() -> None:
    one, two = session(request(0), request(9)), session(request(0), request(9), name="trace_2")
    trace = read(FORMAT, packed(("a.json", one), ("b.json", two), ("c.json", session(request(0), request(10), name="trace_3"))))
    assert len(trace) == 6
    assert any(note.startswith("1 sessions equal an earlier one") for note in trace.notes)


def test_every_session_starts_at_zero() -> None:
    trace = read(FORMAT, packed(("a.json", session(request(0))), ("b.json", session(request(7), request(9)))))
    assert trace.arrival_ns.tolist() == [0, 0, 2 * NS]


def test_members_that_are_no_sessions_are_counted_and_links_are_not_followed() -> None:
    trace = read(FORMAT, packed(("README.md", b"hello"), ("a.json", session(request(0))), link=True))
    assert trace.skipped == {"archive member that is no .json file": 2}


def test_problems_name_the_member_and_the_place() -> None:
    bad = session(request(0), agent(9.0, 1000, request(0, out=-1)))
    error = fault(FORMAT, packed(("traces/x.json", bad)))
    assert error.problems[0].what.startswith("traces/x.json: requests[1].requests[0]: out=-1")


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (session(), "trace.requests"),
        (session(request(0), block_size=16), "trace.block_rule"),
        (session(request(0), hash_id_scope="global"), "trace.block_rule"),
        (session({**request(0), "type": "x"}), "trace.type"),
        (session({k: v for k, v in request(0).items() if k != "t"}), "trace.missing"),
        (session(request(-1)), "trace.timestamp"),
        (session(request(0, think_time=-3.0)), "trace.timestamp"),
        (session(request(0, api_time="4")), "trace.timestamp"),
        (b"[]", "trace.row_type"),
        (b"null", "trace.row_type"),
        (session(request(0))[:-9], "trace.torn_row"),
        (session(request(0)).replace(b'"id"', b'"models"', 1), "trace.repeated_key"),
        (packed(("README.md", b"x")), "trace.no_rows"),
        (packed(("a.json", session(request(0))))[:-30], "trace.unreadable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_files_are_named(raw: bytes, code: str) -> None:
    assert code in codes(FORMAT, raw)


def nested(depth: int) -> dict[str, Any]:
    return request(0) if depth == 0 else agent(100.0 * depth, 1000, nested(depth - 1))


def test_agents_within_agents_are_read_to_a_depth() -> None:
    assert len(read(FORMAT, session(request(0), nested(8)))) == 2
    assert codes(FORMAT, session(request(0), nested(9))) == ["trace.requests"]


ENTRIES = st.lists(
    st.one_of(
        st.builds(
            request,
            t=st.integers(0, 50),
            tokens=st.integers(0, 300),
            api_time=st.one_of(st.none(), st.floats(0, 60)),
            think_time=st.one_of(st.none(), st.floats(0, 60)),
        ),
        st.builds(
            lambda t, d, inner: agent(t, d, *inner),
            st.floats(0, 60),
            st.integers(0, 60_000),
            st.lists(st.builds(request, t=st.integers(0, 9))),
        ),
    ),
    max_size=6,
)


@given(ENTRIES)
def test_any_mixture_of_entries_gives_a_sound_trace_or_a_refusal(entries: list[dict[str, Any]]) -> None:
    check_outcome(FORMAT, session(*entries))
    check_outcome(FORMAT, session(*entries), waits_for="last_known_end")


@given(st.lists(st.lists(st.lists(st.integers(0, (1 << 64) - 1), min_size=3, max_size=3), min_size=1, max_size=3), min_size=1, max_size=4))
def test_renumbered_ids_are_equal_within_and_only_within_a_session(sessions: list[list[list[int]]]) -> None:
    raw = packed(*((f"{i}.json", session(*(request(k, 192, ids) for k, ids in enumerate(rows)))) for i, rows in enumerate(sessions)))
    trace = read(FORMAT, raw)
    check_sound(trace)
    flat = [(i, one) for i, rows in enumerate(sessions) for ids in rows for one in ids]
    assert trace.blocks is not None
    new = trace.blocks.ids.values.tolist()
    assert len(set(zip(flat, new, strict=True))) == len(set(flat)) == len(set(new))
    assert np.max(new) == len(set(new)) - 1


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_session_alone_is_profiled_packed_or_not(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "session.json"
    path.write_bytes(pack(session(request(0), request(5))))
    assert profile(path, FORMAT)["requests_incl_subagents"] == 2


def test_agents_within_agents_that_start_after_decades_are_refused() -> None:
    inner = request(1.1e9)
    for _ in range(8):
        inner = agent(1.1e9, 0, inner)
    assert set(codes(FORMAT, session(inner))) == {"trace.timestamp"}


def test_equal_sessions_are_kept_apart_and_the_note_promises_no_step_that_drops_them() -> None:
    trace = read(FORMAT, packed(*((f"{name}.json", session(request(0), request(5), name=name)) for name in "ab")), "t.tar.gz")
    assert len(apply([Dedupe()], trace, 1).trace) == 4
    assert any(note.startswith("1 sessions equal an earlier one") and "kept" in note for note in trace.notes)
