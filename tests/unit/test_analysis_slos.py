from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from analysis.clocks import derive_clocks
from analysis.coordinates import result_coordinates
from analysis.model import Outcome
from analysis.outcomes import classify, meets_own_slo, meets_slo
from analysis.rates import could_still_be_valid
from analysis.run import measure_run
from analysis.slos import describe_slo, judged_by, tightest
from harness.record.coordinates import Known
from harness.record.spec import LoadPoint, Slo
from tests.builders import MS, S, make_record, make_request, make_spec
from tests.mixtures import CLASSES, mixtures, record_of

STRICT = Slo(ttft_ns=10 * MS)
BY_CLASS = {0: {"request_class": "chat"}, 1: {"request_class": "batch"}, 2: {"request_class": None}}


def record(**spec: Any) -> Any:
    return make_record([make_request(i, 3 * S + i) for i in range(3)], plan=BY_CLASS, spec=make_spec(**spec))


def test_each_class_is_held_to_its_own_slo_and_the_rest_to_the_default() -> None:
    judged = record(slo_classes={"chat": STRICT})
    assert list(classify(judged, derive_clocks(judged))) == [Outcome.MISS, Outcome.VALID, Outcome.VALID]
    other = record(slo=STRICT, slo_classes={"chat": Slo(ttft_ns=S)})
    assert list(classify(other, derive_clocks(other))) == [Outcome.VALID, Outcome.MISS, Outcome.MISS]


def test_a_class_that_no_request_bears_changes_nothing() -> None:
    judged = record(slo_classes={"nobody": STRICT})
    assert list(classify(judged, derive_clocks(judged))) == [Outcome.VALID] * 3


def test_a_class_may_be_judged_on_completion_alone() -> None:
    judged = record(slo=STRICT, slo_classes={"chat": Slo(), "batch": Slo()})
    assert list(classify(judged, derive_clocks(judged))) == [Outcome.VALID, Outcome.VALID, Outcome.MISS]


def test_whether_an_open_request_could_have_been_valid_is_asked_of_its_own_slo() -> None:
    rows = [make_request(i, 11 * S, end_kind="drain_end", end_ns=14 * S, ttft_ns=2900 * MS, tokens=1) for i in range(2)]
    open_ = make_record(rows, plan=BY_CLASS, spec=make_spec(slo=Slo(ttft_ns=S), slo_classes={"batch": Slo(ttft_ns=5 * S)}))
    clocks = derive_clocks(open_)
    assert could_still_be_valid(open_, clocks, classify(open_, clocks)).tolist() == [False, True]
    assert "1 open requests could still" in measure_run(open_).figures["goodput"].reason


def test_goodput_is_unknown_when_one_class_has_a_rule_that_cannot_be_judged() -> None:
    rows = [make_request(i, 3 * S, client_tokens=None, event_tokens=[-1] * 5 + [0, 0]) for i in range(2)]
    by_class = {"batch": Slo(tbt_ns=S, tbt_rule="p99")}
    judged = make_record(rows, plan=BY_CLASS, spec=make_spec(slo_classes=by_class))
    assert measure_run(judged).figures["goodput"].reason == "slo.tbt.rule=p99 needs token counts that the stream did not give"
    unasked = make_record(rows[:1], plan=BY_CLASS, spec=make_spec(slo_classes=by_class))
    assert measure_run(unasked).figures["goodput"].status == "ok"


def test_the_tightest_limit_is_sought_over_every_slo() -> None:
    spec = make_spec(slo=Slo(ttft_ns=500), slo_classes={"a": Slo(e2e_ns=300, tbt_ns=7), "b": Slo(ttft_ns=400)})
    assert tightest(spec, "ttft_ns", "e2e_ns") == 300
    assert tightest(spec, "ttft_ns") == 400
    assert tightest(spec, "tbt_ns") == 7
    assert tightest(make_spec(slo=Slo()), "tbt_ns") is None


def test_the_predicate_names_its_classes_in_order_and_quotes_them() -> None:
    text = describe_slo(Slo(ttft_ns=MS), {"b": Slo(), 'a": TTFT <= 9 ms; class "c': Slo(e2e_ns=MS)})
    assert text == r'TTFT <= 1 ms; class "a\": TTFT <= 9 ms; class \"c": E2E <= 1 ms; class "b": completion only'


@pytest.mark.parametrize("classes", [{}, {"a": Slo(ttft_ns=2)}, {"a": Slo(ttft_ns=3)}])
def test_results_under_other_classes_have_another_coordinate(classes: dict[str, Slo]) -> None:
    def slo(of: dict[str, Slo]) -> object:
        found = result_coordinates(None, "goodput", Slo(ttft_ns=1), LoadPoint(kind="rate", value=1.0), of)["result.slo"]
        assert isinstance(found, Known)
        return found.value

    assert (slo(classes) == slo({"a": Slo(ttft_ns=2)})) == (classes == {"a": Slo(ttft_ns=2)})


@settings(deadline=None, max_examples=60)
@given(mixtures)
def test_every_request_is_judged_by_exactly_one_slo(mixture: list[dict[str, Any]]) -> None:
    found = record_of(mixture)
    clocks = derive_clocks(found)
    parts = judged_by(found, clocks.request_id)
    assert sum(mask.astype(int) for _, mask in parts).tolist() == [1] * len(clocks)  # type: ignore[union-attr]
    own = meets_own_slo(found, clocks)
    for row, request in enumerate(clocks.request_id.tolist()):
        slo = CLASSES.get(mixture[request]["request_class"], found.spec.slo)
        assert own[row] == meets_slo(slo, clocks)[row]
