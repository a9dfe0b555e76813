"""A workload without some of its clients: everybody else sends what they sent beside them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from tests.unit.test_workloads_sessions import chat, make_plan, waits
from tests.unit.test_workloads_transforms import make_trace
from workloads import build_schedule, content_digest, load_tokenizer
from workloads.assemble import assemble
from workloads.plan import CancelPlan, LengthDistribution, Lengths, OutputPlan, PoissonArrivals, TenantPlan, WorkloadPlan
from workloads.schedule import Labels, Schedule
from workloads.tenants import Senders
from workloads.without import Crowd, without_clients

TENANTS = (
    TenantPlan(name="noisy", share=0.7, priority=1, request_class="bulk"),
    TenantPlan(name="quiet", share=0.2, priority=0, request_class="chat"),
    TenantPlan(name="third", share=0.1, priority=0),
)


def plan(seed: int = 1, without: tuple[str, ...] = (), **changes: Any) -> WorkloadPlan:
    base: dict[str, Any] = {
        "trace": None,
        "lengths": Lengths(
            input=LengthDistribution(kind="uniform", low=1, high=40), output=LengthDistribution(kind="uniform", low=1, high=9)
        ),
        "tenants": TENANTS,
        "cancellations": CancelPlan(share=0.3, after_s=1.0),
        "arrivals": PoissonArrivals(rate=20.0),
        "output": OutputPlan(control="forced"),
        "horizon_s": 5.0,
        "seed": seed,
        "without_clients": without,
    }
    return WorkloadPlan(**(base | changes))


TOKENS = load_tokenizer("bytes")


def built(*args: Any, **changes: Any) -> Schedule:
    return build_schedule(plan(*args, **changes), tokens=TOKENS, search_path=[], max_model_len=256)


def rows(schedule: Schedule) -> list[tuple[Any, ...]]:
    """What is sent of each request, but for the bytes of its prompt."""
    assert schedule.client is not None
    assert schedule.request_class is not None
    assert schedule.priority is not None
    assert schedule.cancel_after_ns is not None
    columns = (
        schedule.arrival_ns,
        schedule.input_tokens,
        schedule.output_tokens,
        schedule.max_tokens,
        schedule.priority,
        schedule.cancel_after_ns,
    )
    return list(zip(schedule.client.values(), schedule.request_class.values(), *(c.tolist() for c in columns), strict=True))


@settings(max_examples=20)
@given(st.integers(0, 1000), st.sets(st.sampled_from(["noisy", "quiet", "third"]), min_size=1, max_size=2))
def test_those_who_stay_send_what_they_sent_beside_the_others(seed: int, gone: set[str]) -> None:
    assert rows(built(seed, tuple(sorted(gone)))) == [row for row in rows(built(seed)) if row[0] not in gone]


def test_a_workload_that_leaves_nobody_out_has_the_digest_it_always_had() -> None:
    """Sealed digests of campaigns from before: the field that came later is no part of what they hashed."""
    assert '"without_clients"' not in built().recipe.decode()
    assert '"without_clients":["noisy"]' in built(1, ("noisy",)).recipe.decode()
    assert content_digest(built()) != content_digest(built(1, ("noisy",)))


@pytest.mark.parametrize(
    ("gone", "changes", "code"),
    [
        (("loud",), {}, "workload.client_unknown"),
        (("noisy", "quiet", "third"), {}, "workload.nobody_left"),
        (("noisy",), {"tenants": ()}, "workload.no_clients"),
    ],
)
def test_what_cannot_be_left_out(gone: tuple[str, ...], changes: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        built(1, gone, **changes)
    assert [p.code for p in caught.value.problems] == [code]


def test_prompts_are_as_long_as_the_rows_say() -> None:
    schedule = built(1, ("noisy",))
    assert [len(schedule.prompts.ids(i)) for i in range(len(schedule))] == schedule.input_tokens.tolist()


def crowd(clients: tuple[str, ...]) -> tuple[WorkloadPlan, Crowd]:
    """Five turns of two conversations, waiting for each other, by the clients that send them."""
    trace = chat()
    own = make_plan(loop="partly_open", without_clients=["noisy"])
    rows = assemble(own, trace)
    return own, Crowd(rows, Senders(Labels.of(clients), None, None), None)


def test_a_conversation_goes_with_its_client_and_the_log_says_so() -> None:
    own, before = crowd(("noisy", "quiet", "quiet", "noisy", "noisy"))
    after = without_clients(own, before)
    assert len(after.rows.trace) == 2
    assert after.senders.client is not None
    assert set(after.senders.client.values()) == {"quiet"}
    entry = next(e for e in after.rows.log() if e["name"] == "without_clients")
    assert (entry["clients"], entry["rows_before"], entry["rows_after"]) == (["noisy"], 5, 2)
    assert waits(after.rows.trace) == [[], [0]]


def test_a_turn_whose_predecessor_is_left_out_arrives_by_the_clock_and_is_counted() -> None:
    own, before = crowd(("quiet", "quiet", "quiet", "noisy", "quiet"))
    after = without_clients(own, before)
    entry = next(e for e in after.rows.log() if e["name"] == "without_clients")
    assert entry["effect"]["turns_without_predecessor"] == 1  # type: ignore[index]
    assert waits(after.rows.trace) == [[], [], [1], []]


def test_a_user_of_a_closed_loop_is_left_out_whole_or_not_at_all() -> None:
    own = make_plan(loop="closed", users=2, without_clients=["noisy"])
    rows = assemble(own, make_trace(range(6)))
    users = rows.trace.turns.session.tolist() if rows.trace.turns else []
    whole = Crowd(rows, Senders(Labels.of([("noisy", "quiet")[u % 2] for u in users]), None, None), None)
    assert len(without_clients(own, whole).rows.trace) == users.count(1)
    mixed = Crowd(assemble(own, make_trace(range(6))), Senders(Labels.of(["noisy"] + ["quiet"] * 5), None, None), None)
    with pytest.raises(UsageError, match=r"workload\.closed_without"):
        without_clients(own, mixed)
