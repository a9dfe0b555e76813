"""A pair of cells held against each other whole: what is declared, what stands against it, the effect and its noise floor."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from analysis.effects import HIGHER_IS_BETTER
from analysis.model import Verdict
from analysis.noise import attach, floors_of, identical
from analysis.pair import Contender, Versus, contender, hold
from analysis.regression import Decision, gate
from analysis.report.versus import caveat_lines
from harness.cli.compare import versus_dict
from harness.errors import UsageError
from harness.record.coordinates import Known
from harness.record.reader import RunRecord, SealState
from harness.record.spec import Arm, LoadPoint, Probe, Rank, Waiver
from tests.builders import make_coordinates, make_request, make_spec
from tests.capacity_worlds import make_search
from tests.gates.cases import healthy, rows

MS = 1_000_000
RANK = Rank(metric="ttft_p50", margin=0.05)
JITTER = (-200, 100, -100, 200, 0)
"""How far a replicate's TTFT lies from its arm's, us."""


def replicate(arm: str, index: int, ttft_ms: float, *, campaign: str = "c", where: dict[str, Any] | None = None, **spec: Any) -> RunRecord:
    ttft = round(ttft_ms * MS) + JITTER[index] * 1000 * (1 if arm == "a" else -1)
    made = [make_request(r["request_id"], r["arrival_ns"], ttft_ns=ttft) for r in rows()]
    frame = {"client_host": Known(value="m:b"), "runtime_args": Known(value=arm.rstrip("2")), "workload_digests": Known(value=f"d{index}")}
    own_arm = Arm(name=arm, runtime="reference", version="1", declared=("runtime.args",))
    base = {"cell": f"{arm}@x1", "arm": own_arm, "replicate": index, "server_start": index, "campaign_digest": campaign * 64, "rank": RANK}
    record = healthy(made, spec=make_spec(**(base | spec)), coordinates=make_coordinates(**(frame | (where or {}))))
    return replace(record, seal=SealState(intact=True, root=f"{campaign}{arm}{index}"))


CELLS: dict[str, Contender] = {}
"""Cells already analyzed: many tests share them, and nothing changes one."""


def cell(arm: str, ttft_ms: float, *, metric: str | None = None, count: int = 5, **more: Any) -> Contender:
    key = repr((arm, ttft_ms, metric, count, sorted(more.items(), key=lambda item: item[0])))
    if key not in CELLS:
        records = [replicate(arm, i, ttft_ms, **more) for i in range(count)]
        CELLS[key] = contender(records, metric, f"{arm} of {more.get('campaign', 'c')}")
    return CELLS[key]


def test_two_arms_of_a_campaign_have_an_effect_that_is_declared() -> None:
    found = hold(cell("a", 50), cell("b", 60))
    assert found.comparison.comparable
    assert [(c.code, c.verdict) for c in found.comparison.checks] == [("output_length_agree", Verdict.PASS)]
    assert found.reasons == ()
    assert found.effect is not None
    assert (found.effect.verdict, found.effect.declaration, found.effect.pairs) == ("worse", "declared", 5)
    assert found.effect.low < 60 / 50 < found.effect.high
    assert (found.declared.margin, found.declared.margin_source) == (0.05, "declared")
    assert found.effect.noise is None
    assert found.effect.noise_reason == "no A/A run given"
    assert found.effect.exact is not None
    assert not found.effect.exact.speaks


def test_across_campaigns_the_treatment_must_be_named_and_pairs_are_still_made_by_schedule() -> None:
    a, b = cell("a", 50), cell("b", 60, campaign="d")
    refused = hold(a, b)
    assert not refused.comparison.comparable
    assert refused.effect is None
    assert [r.code for r in refused.reasons] == ["coordinate_different"]
    allowed = hold(a, b, factors=frozenset({"runtime.args"}))
    assert allowed.effect is not None
    assert (allowed.effect.verdict, allowed.effect.pairs) == ("worse", 5)


def test_other_schedules_are_not_paired_and_the_answer_says_so() -> None:
    other = contender(
        [replicate("b", i, 60, campaign="d", where={"workload_digests": Known(value=f"e{i}")}) for i in range(5)], None, "b of d"
    )
    found = hold(cell("a", 50), other, factors=frozenset({"runtime.args", "workload.digests"}))
    assert found.effect is not None
    assert (found.effect.pairs, found.effect.verdict) == (0, "worse")
    assert found.effect.method.startswith("Welch's t, unpaired")
    assert "schedules are common" in found.effect.reason


def test_a_metric_nobody_declared_is_shown_and_nothing_is_claimed() -> None:
    found = hold(cell("a", 50, metric="e2e_p50"), cell("b", 60, metric="e2e_p50"), margin=0.01)
    assert found.effect is not None
    assert (found.effect.verdict, found.effect.declaration) == ("unclaimed", "post_hoc")
    assert "declared by 0 of the 2 sides" in found.effect.reason
    silent = hold(cell("a", 50, rank=None, metric="ttft_p50"), cell("b", 60, rank=None, metric="ttft_p50"))
    assert silent.effect is not None
    assert (silent.effect.verdict, silent.declared.margin_source) == ("unclaimed", "none")


def test_a_margin_or_a_load_chosen_afterwards_is_post_hoc_as_well() -> None:
    other = hold(cell("a", 50), cell("b", 60), margin=0.3)
    assert other.effect is not None
    assert (other.effect.verdict, other.declared.margin_source) == ("unclaimed", "given now")
    same = hold(cell("a", 50), cell("b", 60), margin=0.05)
    assert same.effect is not None
    assert same.effect.verdict == "worse"
    elsewhere = RANK.model_copy(update={"at": 2.0})
    found = hold(cell("a", 50, rank=elsewhere), cell("b", 60, rank=elsewhere))
    assert found.effect is not None
    assert "declared at load 2" in found.effect.reason


def test_margins_that_disagree_must_be_settled_by_the_caller() -> None:
    wide = RANK.model_copy(update={"margin": 0.5})
    sides = cell("a", 50), cell("b", 60, campaign="d", rank=wide)
    with pytest.raises(UsageError, match=r"margins_differ") as caught:
        hold(*sides, factors=frozenset({"runtime.args"}))
    assert "--margin 0.05 or --margin 0.5" in str(caught.value)
    found = hold(*sides, factors=frozenset({"runtime.args"}), margin=0.5)
    assert found.effect is not None
    assert found.effect.verdict == "equivalent"


def test_a_run_is_no_evidence_about_itself() -> None:
    a = cell("a", 50)
    found = hold(a, a)
    assert found.comparison.comparable
    assert found.effect is None
    assert [r.code for r in found.reasons] == ["same_runs"]


def test_gates_that_stand_against_a_side_take_the_claim_and_leave_the_number() -> None:
    found = hold(cell("a", 50, count=3), cell("b", 60, count=3))
    assert found.effect is not None
    assert found.effect.verdict == "unclaimed"
    assert {r.code for r in found.reasons} == {"replicates"}
    assert "gates: replicates" in found.effect.reason
    assert gate(found).decision is Decision.REFUSED


def test_a_single_replicate_has_no_effect() -> None:
    found = hold(cell("a", 50, count=1), cell("b", 60, count=1))
    assert found.effect is None
    assert "replicates_missing" in {r.code for r in found.reasons}


def test_a_replicate_that_cannot_be_read_stands_against_every_claim() -> None:
    found = hold(cell("a", 50), replace(cell("b", 60), broken=("spec.json: cut short",)))
    assert found.effect is not None
    assert found.effect.verdict == "unclaimed"
    assert [(r.code, r.text) for r in found.reasons] == [("run_incomplete", "b of c: spec.json: cut short")]


def test_a_declared_metric_that_a_cell_alone_does_not_have_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="metric=capacity"):
        cell("a", 50, rank=Rank(metric="capacity", margin=0.05))


def test_a_metric_that_is_not_measured_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="metric=speed") as caught:
        cell("a", 50, metric="speed")
    assert "goodput" in str(caught.value)


# the noise floor


def twins(ttft_ms: float = 50, **more: Any) -> list[Contender]:
    return [cell("a", 50, campaign="n", **more), cell("a2", ttft_ms, campaign="n", **more)]


def test_the_noise_floor_is_what_identical_arms_differ_by() -> None:
    found = hold(cell("a", 50), cell("b", 60), noise=twins())
    assert found.effect is not None
    assert found.effect.noise is not None
    floor = found.effect.noise.effect
    assert (floor.verdict, found.effect.noise.source) == ("equivalent", "a2 of n and a of n")
    assert floor.low < 1 < floor.high
    assert found.effect.verdict == "worse"


def test_identical_arms_that_differ_leave_no_claim() -> None:
    found = hold(cell("a", 50), cell("b", 60), noise=twins(58))
    assert found.effect is not None
    assert found.effect.verdict == "unclaimed"
    assert [r.code for r in found.reasons] == ["noise_floor"]
    assert gate(found).decision is Decision.INCONCLUSIVE


def test_an_a_a_run_of_another_host_or_load_is_no_floor_and_says_why() -> None:
    elsewhere = [
        contender([replicate(arm, i, 50, campaign="n", where={"hardware_host": Known(value="other")}) for i in range(5)], None, arm)
        for arm in ("a", "a2")
    ]
    found = hold(cell("a", 50), cell("b", 60), noise=elsewhere)
    assert found.effect is not None
    assert found.effect.noise is None
    assert found.effect.noise_reason == "the A/A run stands elsewhere in: hardware.host"
    faster = hold(cell("a", 50), cell("b", 60), noise=twins(load=LoadPoint(kind="time_compression", value=2.0)))
    assert faster.effect is not None
    assert "result.load" in faster.effect.noise_reason


def test_an_a_a_run_of_which_a_replicate_cannot_be_read_is_no_floor() -> None:
    one, two = twins()
    found = hold(cell("a", 50), cell("b", 60), noise=[one, replace(two, broken=("spec.json: cut short",))]).effect
    assert found is not None
    assert found.noise is None
    assert "cannot be read" in found.noise_reason


def test_arms_that_are_not_identical_are_no_floor() -> None:
    found = hold(cell("a", 50), cell("b", 60), noise=[cell("a", 50, campaign="n"), cell("b", 50, campaign="n")])
    assert found.effect is not None
    assert found.effect.noise is None
    assert "no two arms of it are identical" in found.effect.noise_reason


def test_the_pair_itself_is_not_its_own_floor() -> None:
    found = hold(cell("a", 50), cell("a2", 50), noise=[cell("a", 50), cell("a2", 50)])
    assert identical(found.comparison)
    assert found.effect is not None
    assert found.effect.noise is None


def test_in_a_ranking_every_effect_but_the_twins_own_gets_their_floor() -> None:
    pairs = [hold(cell("a", 50), cell("a2", 50)), hold(cell("a", 50), cell("b", 60))]
    effects = [p.effect for p in pairs if p.effect is not None]
    floors = floors_of(effects, frozenset({frozenset({"a of c", "a2 of c"})}), "this campaign")
    own, other = attach(effects, floors)
    assert own.noise is None
    assert own.noise_reason
    assert other.noise == floors[0]


# the gate in CI


def answer(a: float, b: float, **more: Any) -> Versus:
    return hold(cell("a", a), cell("b", b), **more)


@pytest.mark.parametrize(
    ("candidate", "decision"), [(50, Decision.PASS), (40, Decision.PASS), (60, Decision.FAIL), (52.5, Decision.INCONCLUSIVE)]
)
def test_the_gate_passes_fails_or_cannot_tell(candidate: float, decision: Decision) -> None:
    found = gate(answer(50, candidate))
    assert found.decision is decision
    assert "ratio [" in found.reason


def test_the_gate_refuses_what_is_not_comparable_and_what_nobody_fixed_before() -> None:
    across = hold(cell("a", 50), cell("b", 60, campaign="d"))
    refused = gate(across)
    assert refused.decision is Decision.REFUSED
    assert [r.code for r in refused.reasons] == ["coordinate_different"]
    sides = cell("a", 50, metric="e2e_p50"), cell("b", 60, metric="e2e_p50")
    assert [r.code for r in gate(hold(*sides)).reasons] == ["post_hoc"]
    fixed = hold(*sides, margin=0.01, ahead=True)
    assert fixed.declared.declaration == "by_caller"
    assert gate(fixed).decision is Decision.FAIL


def test_metrics_of_which_more_is_better_are_turned_round() -> None:
    assert "token_throughput" in HIGHER_IS_BETTER
    sides = cell("a", 50, metric="token_throughput"), cell("b", 60, metric="token_throughput")
    found = gate(hold(*sides, margin=0.05, ahead=True))
    assert found.decision is Decision.PASS


@pytest.mark.parametrize("metric", ["token_goodput", "headroom_p50", "fluidity", "offered_rate", "tokens_per_event_mean"])
def test_a_figure_that_no_manifest_could_declare_is_no_metric_of_a_claim(metric: str) -> None:
    """Read as a latency, a fall of token goodput would pass a gate."""
    assert metric in cell("a", 50).cell.figures
    with pytest.raises(UsageError, match="nothing says which way is better") as caught:
        cell("a", 50, metric=metric)
    assert metric not in str(caught.value).partition("--metric: ")[2].split(", ")
    assert cell("a", 50, metric="e2e_p95_offered").cell.figures["e2e_p95_offered"].unit == "s"


def test_what_was_waived_on_either_side_is_printed_beside_the_claim_it_lets_through() -> None:
    waivers = (Waiver(gate="replicates", reason="three are what the budget allows"),)
    found = hold(cell("a", 50, count=3, waivers=waivers), cell("b", 60, count=3, waivers=waivers))
    assert gate(found).decision is Decision.FAIL
    lines = caveat_lines(found)
    assert lines == [f"waived replicates of {side} of c: three are what the budget allows" for side in "ab"]
    one = hold(cell("a", 50, count=3, waivers=waivers), cell("b", 60, count=3))
    assert gate(one).decision is Decision.REFUSED
    assert [side for side, *_ in one.waived] == ["a of c"]
    assert hold(cell("a", 50), cell("b", 60)).waived == ()
    assert versus_dict(found)["waivers"][0] == {"side": "a of c", "gate": "replicates", "reason": waivers[0].reason}


def test_what_somebody_vouched_for_is_printed_beside_a_claim() -> None:
    vouched = Known(value="model", source="attested")
    sides = [contender([replicate(arm, i, 50, where={"model_id": vouched}) for i in range(5)], None, arm) for arm in "ab"]
    found = hold(*sides)
    assert caveat_lines(found) == [f"attested, not observed, of {arm}: model.id" for arm in "ab"]
    assert versus_dict(found)["attested"][0] == {"side": "a", "coordinate": "model.id"}


def test_an_infinite_tail_is_called_that_and_not_a_missing_replicate() -> None:
    lost = [replicate("b", i, 60) for i in range(5)]
    whole = contender(lost, None, "b of c")
    runs = tuple(replace(r, figures={**r.figures, "ttft_p50": replace(r.figures["ttft_p50"], value=math.inf)}) for r in whole.cell.runs)
    found = hold(cell("a", 50), replace(whole, cell=replace(whole.cell, runs=runs)))
    assert found.effect is None
    assert "replicates=0 with a finite ttft_p50 above 0 on one side" in found.reasons[-1].text


def test_what_a_search_discarded_is_no_side_of_a_comparison() -> None:
    with pytest.raises(UsageError, match="data_discarded"):
        cell("a", 50, count=1, probe=Probe(phase="locate", search=make_search()))


def test_identical_arms_that_differ_are_not_hidden_behind_a_wider_floor() -> None:
    noisy = contender([replicate("a22", i, ms, campaign="n") for i, ms in enumerate((50, 90, 30, 80, 40))], None, "a22 of n")
    found = hold(cell("a", 50), cell("b", 60), noise=[*twins(58), noisy])
    assert found.effect is not None
    assert found.effect.noise is not None
    assert found.effect.noise.source == "a2 of n and a of n"
    assert [r.code for r in found.reasons] == ["noise_floor"]
    assert gate(found).decision is Decision.INCONCLUSIVE
    calm = hold(cell("a", 50), cell("b", 60), noise=[*twins(), noisy]).effect
    assert calm is not None
    assert calm.noise is not None
    assert "a22 of n" in calm.noise.source
