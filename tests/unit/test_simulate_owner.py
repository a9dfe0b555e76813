"""Memory rules in virtual time: the same facts as behind the socket, in the record's words."""

from __future__ import annotations

import numpy as np
import pytest

from harness.reference.accounts import NAMES, PLAIN, account_values
from harness.reference.admission import make_admission
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.engine import Core, Engine, online_workload
from harness.reference.owner import MemoryRules
from harness.reference.registry import make_policy
from harness.reference.resume import Mode
from harness.reference.tokens import Truth
from harness.simulate import Offered, simulate
from harness.simulate.rows import request_table, sample_table
from harness.simulate.virtual import GAUGES, Simulated

COSTS = CostModel(10_000_000, 1_000, 10_000, 1)
BUDGETS = Budgets(64, 4, 48, 4, 4)
REQUESTS = ((0, 8, 24, 20), (0, 8, 24, 24), (15_000_000, 9, 12, 12), (40_000_000, 4, 9, 3))
"""Arrival, prompt, declared maximum, natural length: the first two alone outgrow 48 rows."""
RULES = {
    "preserve": MemoryRules(tier_rows=100, write_ns=400_000, read_ns=300_000),
    "point": MemoryRules(make_admission("point", {"default": 4, "after": 1})),
    "both": MemoryRules(make_admission("quantile", {"default": 4, "after": 1}), tier_rows=100, write_ns=400_000),
}


def simulated(rules: MemoryRules) -> tuple[Offered, Simulated]:
    arrival, prompt, maximum, natural = (np.array(column, np.int64) for column in zip(*REQUESTS, strict=True))
    zeros = np.zeros(len(REQUESTS), np.int64)
    offered = Offered(arrival, prompt, maximum, natural, zeros - 1, zeros - 1, zeros, zeros)
    policy = make_policy("vllm-shaped-fcfs")
    workload = online_workload(policy, BUDGETS, rules=rules)
    return offered, simulate(Core(workload, policy, COSTS), offered, until_ns=10**12, owner=rules.owner(workload))


def served(rules: MemoryRules) -> tuple[dict[str, list[int]], dict[str, float]]:
    """Stamps of every token, and what was counted, by an engine that is driven as the server drives it."""
    engine = Engine(make_policy("vllm-shaped-fcfs"), BUDGETS, COSTS, rules=rules)
    coming, stamps, now = list(enumerate(REQUESTS)), dict[str, list[int]](), 0
    for _ in range(10_000):
        while coming and coming[0][1][0] <= now:
            number, (arrival, prompt, maximum, natural) = coming.pop(0)
            engine.submit(f"r{number}", prompt, maximum, Truth(number, natural), arrival_ns=arrival)
        begun = engine.begin(now)
        if begun is None:
            waits = [engine.next_receipt_ns, *(request[0] for _, request in coming[:1])]
            if min(waits) == np.iinfo(np.int64).max:
                break
            now = min(waits)
            continue
        now += begun[1]
        for published in engine.tokens_of(engine.complete(now)):
            stamps.setdefault(published.request_id, []).append(now)
    assert engine.owner is not None
    return stamps, dict(zip(NAMES, account_values(engine.state, engine.owner), strict=True))


@pytest.mark.parametrize("name", RULES)
def test_the_engine_and_its_simulation_agree_on_every_stamp_and_every_count(name: str) -> None:
    stamps, counted = served(RULES[name])
    _, run = simulated(RULES[name])
    assert {f"r{n}": run.token_ns.compress(run.token_request == n).tolist() for n in range(len(REQUESTS))} == stamps
    assert dict(zip(run.sampled, run.samples[-1][1:], strict=True)) | counted == dict(zip(run.sampled, run.samples[-1][1:], strict=True))
    assert counted["preemptions_recompute_total"] + counted["preemptions_preserve_total"] >= 1


def test_samples_carry_what_was_counted_only_where_there_is_an_owner() -> None:
    _, run = simulated(RULES["point"])
    table = sample_table(run)
    last = {m: v for m, v, t in zip(*(table[c].to_pylist() for c in ("metric", "value", "t_ns")), strict=True) if t == run.samples[-1][0]}
    assert last["reserved_rows_total"] - last["unused_rows_total"] + last["under_rows_total"] == last["used_rows_total"] > 0
    assert last["recomputed_rows_total"] > 0
    assert set(GAUGES) <= set(last)
    _, plain = simulated(MemoryRules(tier_rows=100))
    assert set(NAMES) <= set(plain.sampled)
    policy = make_policy("vllm-shaped-fcfs")
    offered, _ = simulated(RULES["point"])
    without = simulate(Core(online_workload(policy, Budgets(64, 4, 48)), policy, COSTS), offered, until_ns=10**12)
    assert set(NAMES) & set(without.sampled) == set(PLAIN)
    assert "recomputed_rows_total" in without.sampled


def test_a_stream_that_is_ended_for_want_of_room_is_an_error_inside_it() -> None:
    offered, run = simulated(MemoryRules(tier_rows=1, fallback=Mode.ABORT))
    rows = request_table(offered, run).to_pylist()
    ended = [row for row in rows if row["end_kind"] == "error_event"]
    assert ended
    for row in ended:
        assert (row["http_status"], row["error_status"], row["finish_reason"]) == (200, 503, None)
        assert row["headers_ns"] == row["arrival_ns"]
        assert len(row["event_ns"]) >= 1
    assert {row["end_kind"] for row in rows} == {"error_event", "complete"}
