"""The comparison-coordinate rule: four answers, everything listed, nothing short-circuited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from analysis.compare import HOST_FACTS, NEVER_FACTORS, Side, compare, narrow
from analysis.coordinates import ALL_COORDINATES, merge_runs, result_coordinates
from harness.record.coordinates import CAUSES, CONSEQUENCES, RUN_COORDINATES, Coordinate, Known, NotApplicable, RunCoordinates, Unknown
from harness.record.spec import LoadPoint, Rank, Slo
from tests.builders import make_coordinates

RANK = Rank(metric="goodput", margin=0.02)


def side(name: str = "a", declared: frozenset[str] = frozenset(), rank: Rank = RANK, **changes: Coordinate) -> Side:
    own = result_coordinates(rank, rank.metric, Slo(ttft_ns=1), LoadPoint(kind="rate", value=1.0))
    return Side(name, make_coordinates(**changes) | own, declared)


def test_identical_sides_are_comparable_with_every_coordinate_equal() -> None:
    found = compare(side("a"), side("b"))
    assert found.comparable
    assert found.differences == ()
    assert found.equal == len(ALL_COORDINATES)


def test_dtype_window_and_percentile_rule_are_all_named() -> None:
    other = side(
        "b",
        rank=Rank(metric="goodput", margin=0.02, percentile_rule="linear"),
        model_dtype=Known(value="float8"),
        workload_window=Known(value=[0, 1]),
    )
    found = compare(side("a"), other)
    assert not found.comparable
    assert {d.coordinate for d in found.differences} == {"model.dtype", "workload.window", "result.percentile_rule"}
    assert all(d.answer == "different" and d.remedy for d in found.differences)


def test_a_laxer_limit_is_no_treatment() -> None:
    own = result_coordinates(RANK, "goodput", Slo(ttft_ns=10), LoadPoint(kind="rate", value=1.0))
    found = compare(side("a"), Side("b", make_coordinates() | own), factors=frozenset({"result.slo"}))
    assert [(d.coordinate, d.answer) for d in found.differences] == [("result.slo", "different")]
    assert "can't be a factor" in found.differences[0].remedy


def test_declared_arm_field_is_compared_within_a_campaign_and_not_across() -> None:
    declared = frozenset({"runtime.args"})
    a, b = side("a", declared), side("b", declared, runtime_args=Known(value={"max-num-seqs": 64}))
    assert compare(a, b, same_campaign=True).comparable
    across = compare(a, b)
    assert not across.comparable
    assert [d.coordinate for d in across.differences] == ["runtime.args"]
    assert compare(a, b, factors=declared).comparable


def test_consequence_needs_a_declared_difference() -> None:
    changed = {"runtime_kv_capacity_tokens": Known(value=1)}
    alone = compare(side("a"), side("b", **changed), same_campaign=True)
    assert [d.answer for d in alone.differences] == ["different"]
    declared = frozenset({"runtime.args"})
    both = compare(side("a", declared), side("b", declared, runtime_args=Known(value=2), **changed), same_campaign=True)
    assert both.comparable
    assert {d.answer for d in both.differences} == {"differs_by_declaration", "differs_by_consequence"}


FIXED = ("model.", "tokenizer.", "workload.", "hardware.", "parallelism.", "window.", "evidence.", "protocol.", "client.")


@given(st.sampled_from(sorted(RUN_COORDINATES)), st.frozensets(st.sampled_from(sorted(RUN_COORDINATES))))
def test_only_three_facts_of_an_engine_can_follow_from_a_treatment(name: str, treatment: frozenset[str]) -> None:
    changed = {n.replace(".", "_"): Known(value="other") for n in treatment | {name}}
    found = compare(side("a", treatment), side("b", treatment, **changed), same_campaign=True)
    answers = {d.coordinate: d.answer for d in found.differences}
    follows = answers[name] == "differs_by_consequence"
    assert not (follows and name.startswith(FIXED))
    assert follows == (name not in treatment and name in CAUSES and any(t.startswith(CAUSES[name]) for t in treatment - NEVER_FACTORS))
    assert found.comparable == all(a.startswith("differs_by") for a in answers.values())


def test_two_engines_may_differ_in_what_is_declared_of_them_and_in_what_follows() -> None:
    engine = frozenset({"runtime.name", "runtime.version", "runtime.args", "runtime.env"})
    told = {n.replace(".", "_"): Known(value="other") for n in engine | CONSEQUENCES}
    assert compare(side("vllm", engine), side("sglang", engine, **told), same_campaign=True).comparable
    for name in sorted(set(RUN_COORDINATES) - engine - CONSEQUENCES):
        found = compare(
            side("vllm", engine), side("sglang", engine, **told | {name.replace(".", "_"): Known(value="x")}), same_campaign=True
        )
        assert [d.coordinate for d in found.differences if d.answer == "different"] == [name]


def test_what_is_sent_and_what_is_set_bring_no_other_packages() -> None:
    for treatment in ("workload.transforms", "runtime.args", "runtime.env", "model.dtype"):
        declared = frozenset({treatment})
        changed = {treatment.replace(".", "_"): Known(value="x"), "runtime_packages": Known(value="y")}
        found = compare(side("a", declared), side("b", declared, **changed), same_campaign=True)
        assert [d.coordinate for d in found.differences if d.answer == "different"] == ["runtime.packages"]


def test_evidence_class_and_protocol_cannot_be_factors() -> None:
    other = side("b", evidence_class=Known(value="synthetic"), protocol_measurement=Known(value=2))
    found = compare(side("a"), other, factors=NEVER_FACTORS)
    assert {d.coordinate for d in found.differences} == {"evidence.class", "protocol.measurement"} < NEVER_FACTORS
    assert not found.comparable


def test_unknown_equals_nothing_but_host_facts_compare_by_the_same_boot() -> None:
    unknown = Unknown(reason="no sensor")
    here = compare(side("a", hardware_memory=unknown), side("b", hardware_memory=unknown))
    assert here.comparable
    elsewhere = compare(side("a", hardware_memory=unknown), side("b", hardware_memory=unknown, hardware_host=Known(value="other")))
    assert {d.coordinate: d.answer for d in elsewhere.differences} == {"hardware.memory": "unknown", "hardware.host": "different"}
    dtype = compare(side("a", model_dtype=unknown), side("b", model_dtype=unknown))
    assert [d.answer for d in dtype.differences] == ["unknown"]
    assert "model.dtype" not in HOST_FACTS


def test_not_applicable_equals_itself_and_nothing_else() -> None:
    none = NotApplicable(reason="no accelerator")
    assert compare(side("a", hardware_driver=none), side("b", hardware_driver=NotApplicable(reason="another word"))).comparable
    assert not compare(side("a", hardware_driver=none), side("b")).comparable


def test_a_coordinate_nobody_recorded_is_unknown() -> None:
    bare = Side("a", {}, frozenset())
    found = compare(bare, bare)
    assert not found.comparable
    # hardware.host itself is unknown here, so no host fact may lean on it.
    assert {d.coordinate for d in found.differences} == set(ALL_COORDINATES)


@given(st.sets(st.sampled_from(sorted(RUN_COORDINATES)), max_size=8))
def test_exactly_the_changed_coordinates_are_listed(changed: set[str]) -> None:
    changes = {name.replace(".", "_"): Known(value="another") for name in changed}
    found = compare(side("a"), side("b", **changes))
    assert {d.coordinate for d in found.differences} == changed
    assert found.comparable is (not changed)


def test_merging_replicates_collects_planned_variation_and_refuses_the_rest() -> None:
    first = RunCoordinates(coordinates=make_coordinates(workload_window=Known(value=[0, 1]), model_dtype=Known(value="float32")))
    second = RunCoordinates(
        coordinates=make_coordinates(
            workload_window=Known(value=[1, 2]), model_dtype=Known(value="float16"), runtime_kv_capacity_tokens=Known(value=7)
        )
    )
    merged = merge_runs([(0, first), (1, second)])
    assert merged["workload.window"] == Known(value={"0": [0, 1], "1": [1, 2]}, source="declared")
    assert isinstance(merged["model.dtype"], Unknown)
    assert "float16" in merged["model.dtype"].reason
    assert isinstance(merged["runtime.kv_capacity_tokens"], Known)
    assert merged["model.id"] == Known(value="value of model.id")


def test_what_one_replicate_saw_and_another_took_on_trust_is_attested() -> None:
    sources = ("observed", "attested", "observed")
    runs = [RunCoordinates(coordinates=make_coordinates() | {"model.dtype": Known(value="bfloat16", source=s)}) for s in sources]
    assert merge_runs(list(enumerate(runs)))["model.dtype"] == Known(value="bfloat16", source="attested")


def test_two_mappings_are_printed_by_what_differs_in_them() -> None:
    assert narrow({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "d": 4}, "e": 5}) == (
        {"b": {"d": 3}, "e": None},
        {"b": {"d": 4}, "e": 5},
    )
    assert narrow(1, {"a": 1}) == (1, {"a": 1})
