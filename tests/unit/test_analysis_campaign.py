"""The whole way from records to a verdict, where rooms of analysis meet."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.campaign import analyze
from analysis.loops import loop_words
from analysis.model import CampaignAnalysis, Ranking, Refusal, Verdict
from harness.record.coordinates import Known
from harness.record.reader import RunRecord
from harness.record.spec import Arm, Slo, Waiver
from tests.builders import S, make_coordinates, make_never_due, make_request, make_spec, make_workload
from tests.gates.cases import NO_EVENTS, healthy, rows

ARM = Arm(name="a", runtime="reference", version="1", args={"max-num-seqs": 8}, declared=("runtime.args",))


def replicate(arm: str, index: int, *, tokens: int = 5, extra: tuple[dict[str, Any], ...] = (), plan: Any = None, **spec: Any) -> RunRecord:
    made = [make_request(r["request_id"], r["arrival_ns"], tokens=tokens, ttft_ns=50_000_000 + 1000 * index) for r in rows()]
    coordinates = make_coordinates(client_host=Known(value="m:b"), runtime_args=Known(value=arm))
    own = make_spec(cell=f"{arm}@x1", arm=ARM.model_copy(update={"name": arm}), replicate=index, server_start=index, **spec)
    return healthy([*made, *extra], spec=own, coordinates=coordinates, plan=plan)


def campaign(*, tokens: int = 5, control: Any = "natural", **more: Any) -> CampaignAnalysis:
    """Two arms, five replicates each; arm b answers with ``tokens``."""
    more.setdefault("workload", make_workload(output_length=control))
    records = [replicate(arm, i, tokens=tokens if arm == "b" else 5, **more) for arm in "ab" for i in range(5)]
    return analyze(records, incomplete=())


def test_two_arms_that_answer_alike_are_ranked() -> None:
    found = campaign()
    assert isinstance(found.verdict, Ranking), found.verdict
    (pair,) = found.comparisons
    assert (pair.comparable, [(c.code, c.verdict) for c in pair.checks]) == (True, [("output_length_agree", Verdict.PASS)])


def test_arms_that_answer_at_another_length_are_not_comparable() -> None:
    found = campaign(tokens=6)
    assert not found.comparisons[0].comparable
    assert isinstance(found.verdict, Refusal)
    reasons = {r.code: r.text for r in found.verdict.reasons}
    assert "mean output tokens 5 and 6 over 700 requests that both served" in reasons["output_length_agree"]
    assert "a@x1 against b@x1" in reasons["output_length_agree"]


def test_a_waiver_of_the_length_is_printed_and_lets_through() -> None:
    waiver = Waiver(gate="output_length_agree", reason="Length is the treatment here.")
    found = campaign(tokens=6, waivers=(waiver,))
    assert isinstance(found.verdict, Ranking)
    assert found.comparisons[0].checks[0].waived == waiver.reason


def test_a_ranking_names_the_slos_of_its_classes() -> None:
    found = campaign(slo_classes={"chat": Slo(ttft_ns=S)})
    assert 'class "chat": TTFT <= 1000 ms at time_compression=1' in found.verdict.title


@pytest.mark.parametrize(("loop", "users", "name"), [("closed", 2, "closed (2 users)"), ("partly_open", None, "partly_open")])
def test_a_loop_that_is_not_open_is_named_with_every_number_and_verdict(loop: str, users: int | None, name: str) -> None:
    found = campaign(workload=make_workload(loop=loop, users=users))
    assert f"({name} loop" in found.verdict.title
    for cell in found.cells:
        assert cell.loop == name
        assert all(f"{name} loop" in f.population for f in cell.figures.values())


def test_a_closed_loop_is_never_called_a_capacity_and_the_open_loop_needs_no_word() -> None:
    assert "never a capacity" in loop_words("closed (8 users)")
    assert loop_words("open") == ""
    assert "loop" not in campaign().verdict.title


def test_turns_that_never_came_due_are_summed_over_replicates_and_cost_no_verdict() -> None:
    failed = make_request(140, 12_500_000_000) | NO_EVENTS | {"end_kind": "reset"}  # in the drain: of no cohort
    plan = {141: {"arrival_ns": 13 * S, "after": [140]}}
    records = [replicate(arm, i, extra=(failed, make_never_due(141)), plan=plan) for arm in "ab" for i in range(5)]
    found = analyze(records, incomplete=())
    assert [cell.outcomes.not_due for cell in found.cells] == [{"never_due": 5}] * 2
    assert isinstance(found.verdict, Ranking), found.verdict
    run = found.cells[0].runs[0]
    assert run.sent is not None
    assert [(a.kind, a.scheduled, a.due) for a in run.sent.arrivals] == [("clock", 141, 141), ("waiting", 1, 0)]
