from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.clocks import derive_clocks
from analysis.model import Reuse, Tally
from analysis.reuse import read_cache, reusable, reuse_of
from harness.record.facts import Fact
from harness.record.reader import RunRecord
from tests.builders import S, make_facts, make_record, make_request, make_sample, make_spec

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8)


def run(cached: list[int | None], *, counter: int | None = None, plan: dict[int, dict[str, Any]] | None = None, **facts: Any) -> RunRecord:
    rows = [make_request(i, 3 * S + i, usage_cached_tokens=c) for i, c in enumerate(cached)]
    metrics = (
        [] if counter is None else [make_sample(t, "server", "cached_tokens_total", v) for t, v in ((-1, 100), (20 * S, 100 + counter))]
    )
    before = {name.replace("_", ".", 1): Fact(value=value, source="test") for name, value in facts.items()}
    shared = {i: {"reusable_tokens": 9} for i in range(len(cached))}
    return make_record(rows, plan=shared if plan is None else plan, server_metrics=metrics, facts=make_facts(before=before))


def reuse(record: RunRecord, rows: list[bool] | None = None) -> Reuse:
    return reuse_of(read_cache(record, derive_clocks(record)), None if rows is None else np.array(rows, dtype=bool))


def test_whole_blocks_and_never_all_of_a_prompt() -> None:
    shared, length = np.array([0, 3, 4, 7, 8, 8, 16, -1]), np.array([8, 8, 8, 8, 8, 9, 16, 8])
    assert reusable(shared, length, 4).tolist() == [0, 0, 4, 4, 4, 8, 12, 0]
    assert reusable(shared, length, 1).tolist() == [0, 3, 4, 7, 7, 8, 15, 0]
    assert reusable(np.array([0]), np.array([0]), 1).tolist() == [0]


def beginnings(prompts: list[list[int]]) -> list[int]:
    """Tokens that each prompt shares with the best of those before it."""
    found = []
    for i, prompt in enumerate(prompts):
        lengths = [
            next((k for k, (a, b) in enumerate(zip(prompt, o, strict=False)) if a != b), min(len(prompt), len(o))) for o in prompts[:i]
        ]
        found.append(max(lengths, default=0))
    return found


@given(PROMPTS, st.integers(1, 4), st.randoms(use_true_random=False), st.integers(0, 8))
def test_what_prompts_share_adds_up_alike_in_any_order_and_to_no_more_for_some_of_them(
    prompts: Any, block: int, random: Any, kept: int
) -> None:
    """What the gate prefix_realised rests on: no order of service, and no request left out, can realise more than the plan's sum."""

    def blocks(of: list[list[int]]) -> int:
        return sum(n // block * block for n in beginnings(of))

    order = random.sample(range(len(prompts)), len(prompts))
    assert blocks([prompts[i] for i in order]) == blocks(prompts)
    of_plan = beginnings(prompts)
    assert blocks([prompts[i] for i in order[:kept]]) <= sum(of_plan[i] // block * block for i in order[:kept])


def test_possible_is_stated_for_one_sixteen_and_the_engines_own_block() -> None:
    assert {b: t.value for b, t in reuse(run([0, 0])).possible.items()} == {"1": 18, "16": 0}
    assert {b: t.value for b, t in reuse(run([0, 0], server_block_size=4)).possible.items()} == {"1": 18, "4": 16, "16": 0}


def test_possible_is_unknown_when_the_plan_did_not_say() -> None:
    (one, *_) = reuse(run([0, 0], plan={})).possible.values()
    assert (one.value, one.n) == (None, 2)
    assert "does not say" in one.reason


@pytest.mark.parametrize(
    ("cached", "counter", "total", "source"),
    [
        ([8, 0], None, 8, "usage"),
        ([8, 0], 77, 8, "usage"),  # usage of every served request needs no counter
        ([8, None], 8, 8, "usage, held against the server's counter"),
        ([8, None], 9, 9, "server counter"),
        ([None, None], 0, 0, "server counter"),
        ([None, None], None, None, ""),
        ([8, None], None, None, ""),
    ],
)
def test_realised_is_what_the_server_says_and_never_a_guess(cached: Any, counter: Any, total: Any, source: str) -> None:
    found = reuse(run(cached, counter=counter))
    assert (found.realised.value, found.source) == (total, source)
    assert (found.realised.value is None) == ("never sampled" in found.realised.reason)


def test_a_client_has_its_share_only_where_usage_says_so() -> None:
    assert reuse(run([8, 4]), [False, True]).realised.value == 4
    assert reuse(run([8, None], counter=8), [False, True]).realised.value == 0
    nobody = reuse(run([8, None], counter=9), [False, True])
    assert (nobody.realised.value, nobody.realised.reason) == (None, "the server's counter does not say whose they are")
    assert reuse(run([8, None]), [False, True]).realised.value is None
    assert reuse(run([8, 4]), [False, False]).possible["1"] == Tally(0, 0)  # of no request the sum is known


def cut_short(cached: int | None) -> RunRecord:
    """Two requests, one served with 8 cached tokens, one cancelled of which usage may say something."""
    plan = {0: {"reusable_tokens": 9}, 1: {"reusable_tokens": 9, "cancel_after_ns": 1}}
    rows = [make_request(0, 3 * S, usage_cached_tokens=8), make_request(1, 4 * S, end_kind="cancelled", usage_cached_tokens=cached)]
    return make_record(rows, plan=plan)


def test_a_request_of_which_nobody_stated_anything_is_no_zero() -> None:
    found = reuse(cut_short(None), [False, True]).realised
    assert (found.value, found.n, found.reason) == (None, 0, "usage states it for none of 1 requests")
    assert reuse(cut_short(4), [False, True]).realised == Tally(4, 1)


def test_a_total_by_usage_says_of_how_many_it_is() -> None:
    assert reuse(cut_short(None)).realised == Tally(8, 1, "usage states it for 1 of 2 requests")
    assert reuse(cut_short(4)).realised == Tally(12, 2)


def test_a_counter_that_fell_gives_no_total() -> None:
    found = reuse(run([None, None], counter=-7)).realised
    assert found.value is None
    assert "cached_tokens_total fell by 7: the server restarted" in found.reason


def test_what_a_chat_template_shares_is_said_not_to_be_counted() -> None:
    spec = make_spec()
    spec = spec.model_copy(update={"workload": spec.workload.model_copy(update={"api": "chat", "chat_overhead": 5})})
    chat = make_record([make_request(0, 3 * S)], plan={0: {"reusable_tokens": 9}}, spec=spec)
    assert "chat template" in reuse(chat).possible["1"].reason
    assert reuse(run([0])).possible["1"].reason == ""


def test_a_server_that_states_nonsense_for_its_block_is_not_believed() -> None:
    for value in (0, -4, "16", True, None):
        assert set(reuse(run([0], server_block_size=value)).possible) <= {"1", "16"}


def test_whether_the_server_caches_is_what_it_says() -> None:
    assert [reuse(run([0], server_prefix_caching=on)).cache for on in (True, False, None, "yes")] == ["on", "off", "unknown", "unknown"]
    assert reuse(run([0])).cache == "unknown"
