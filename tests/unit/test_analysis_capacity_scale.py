"""All limits times one scale: the share of valid requests, and the tightest scale that still passes, read off exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capacity_scale import ScaleCurve, scale_curve, scale_figure
from analysis.clocks import derive_clocks
from analysis.model import Outcome
from analysis.outcomes import classify
from analysis.run import measure_run
from harness.record.reader import RunRecord
from harness.record.schema import EventKind
from harness.record.spec import Slo
from tests.builders import MS, S, make_record, make_request, make_spec, make_workload

ENDS = ("complete", "complete", "complete", "reset", "http_error", "cancelled")


def row(ident: int, ttft: int, gaps: list[int], end_kind: str = "complete") -> dict[str, Any]:
    """Request at 3 s + id, clocks in ms."""
    arrival = 3 * S + ident
    stamps = [arrival + ttft * MS]
    for gap in gaps:
        stamps.append(stamps[-1] + gap * MS)
    n = len(stamps)
    lists = {"event_ns": stamps, "event_tokens": [1] * n, "event_bytes": [1] * n, "event_kind": [int(EventKind.TOKEN)] * n}
    return make_request(ident, arrival, tokens=n) | lists | {"send_ns": arrival, "end_ns": stamps[-1], "end_kind": end_kind}


def record_of(rows: list[dict[str, Any]], slo: Slo, **spec: Any) -> RunRecord:
    return make_record(rows, spec=make_spec(slo=slo, workload=make_workload(output_length="natural"), **spec))


def curve_of(record: RunRecord) -> ScaleCurve:
    clocks = derive_clocks(record)
    return scale_curve(record, clocks, classify(record, clocks))


def scaled(slo: Slo, factor: int) -> Slo:
    return slo.model_copy(update={k: v * factor for k, v in slo.model_dump().items() if k.endswith("_ns") and v is not None})


def test_by_hand() -> None:
    rows = [row(0, 250, [50, 50]), row(1, 100, [150, 50]), row(2, 900, []), row(3, 100, [10], "reset")]
    curve = curve_of(record_of(rows, Slo(ttft_ns=500 * MS, tbt_ns=100 * MS, tbt_rule="every")))
    assert curve.needed.tolist() == [0.5, 1.5, 1.8, math.inf]
    assert curve.points([0.4, 0.5, 1.0, 1.5, 2.0, 1e9]) == ((0.4, 0.0), (0.5, 0.25), (1.0, 0.25), (1.5, 0.5), (2.0, 0.75), (1e9, 0.75))
    assert (curve.tightest(0.5), curve.tightest(0.75), curve.tightest(0.9)) == (1.5, 1.8, math.inf)


@pytest.mark.parametrize(("rule", "least"), [("every", 9.0), ("mean", 1.08), ("p99", 1.0)])
def test_every_rule_has_its_own_statistic(rule: Literal["every", "mean", "p99"], least: float) -> None:
    curve = curve_of(record_of([row(0, 1, [100] * 99 + [900])], Slo(tbt_ns=100 * MS, tbt_rule=rule)))
    assert curve.needed.tolist() == [pytest.approx(least)]


def test_an_e2e_limit_is_scaled_with_the_others() -> None:
    assert curve_of(record_of([row(0, 100, [200])], Slo(ttft_ns=S, e2e_ns=200 * MS))).needed.tolist() == [1.5]


Rows = list[tuple[int, list[int], str]]
requests = st.lists(st.tuples(st.integers(1, 40), st.lists(st.integers(1, 30), max_size=6), st.sampled_from(ENDS)), min_size=1, max_size=8)
slos = st.builds(
    lambda ttft, tbt, rule, e2e: Slo(ttft_ns=ttft and ttft * MS, tbt_ns=tbt and tbt * MS, tbt_rule=rule, e2e_ns=e2e and e2e * MS),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 20),
    st.sampled_from(["every", "mean", "p99"]),
    st.none() | st.integers(1, 120),
)


@settings(max_examples=60, deadline=None)
@given(requests, slos, st.integers(1, 4))
def test_the_curve_is_the_attainment_of_a_run_judged_by_scaled_limits(rows: Rows, slo: Slo, factor: int) -> None:
    made = [row(i, ttft, gaps, end) for i, (ttft, gaps, end) in enumerate(rows)]
    curve = curve_of(record_of(made, slo))
    again = record_of(made, scaled(slo, factor))
    valid = int((classify(again, derive_clocks(again)) == Outcome.VALID).sum())
    assert curve.attainment(factor) == valid / len(rows)


@settings(max_examples=60, deadline=None)
@given(requests, slos, st.sampled_from([0.1, 0.5, 0.9, 0.99]))
def test_the_tightest_scale_passes_and_nothing_tighter_does(rows: Rows, slo: Slo, alpha: float) -> None:
    curve = curve_of(record_of([row(i, *parts) for i, parts in enumerate(rows)], slo))
    scale = curve.tightest(alpha)
    assert scale is not None
    if math.isinf(scale):
        assert (curve.attainment(1e9) or 0.0) < alpha
        return
    assert (curve.attainment(scale) or 0.0) >= alpha
    assert (curve.attainment(np.nextafter(scale, -1.0)) or 0.0) < alpha


def test_an_answer_without_a_token_is_valid_at_no_scale_and_one_token_is_judged_on_its_ttft() -> None:
    empty = row(0, 1, []) | {"event_ns": [], "event_tokens": [], "event_bytes": [], "event_kind": []}
    curve = curve_of(record_of([empty, row(1, 300, [])], Slo(ttft_ns=100 * MS, tbt_ns=100 * MS, tbt_rule="mean")))
    assert curve.needed.tolist() == [3.0, math.inf]


def test_classes_are_held_to_their_own_limits() -> None:
    record = record_of([row(0, 100, []), row(1, 100, [])], Slo(ttft_ns=200 * MS), slo_classes={"batch": Slo(ttft_ns=S)})
    classes = record.schedule.column_names.index("request_class")
    schedule = record.schedule.set_column(classes, record.schedule.schema.field("request_class"), [["batch", None]])
    assert curve_of(replace(record, schedule=schedule)).needed.tolist() == [0.1, 0.5]


def test_what_an_open_request_might_have_become_is_not_known() -> None:
    open_row = row(1, 1, [], "drain_end") | {"event_ns": [], "event_tokens": [], "event_bytes": [], "event_kind": [], "end_ns": 5 * S + 1}
    curve = curve_of(record_of([row(0, 400, []), open_row], Slo(ttft_ns=500 * MS)))
    assert curve.known_to == 4.0  # it had waited 2 s of 0.5 s
    assert curve.attainment(3.9) == 0.5
    assert curve.attainment(4.0) is None
    assert curve.tightest(0.5) == 0.8
    assert curve.tightest(0.9) is None


def test_a_rule_without_token_counts_says_nothing() -> None:
    unknown = row(0, 10, [10]) | {"event_tokens": [-1, -1], "client_tokens": None, "usage_completion_tokens": None}
    curve = curve_of(record_of([unknown], Slo(tbt_ns=100 * MS, tbt_rule="mean")))
    assert (curve.attainment(1.0), curve.tightest(0.5)) == (None, None)
    figure = scale_figure([curve], 0.9, [0])
    assert (figure.value, figure.status) == (None, "unknown")
    assert "token counts" in figure.reason


def test_replicates_give_the_scale_an_interval() -> None:
    slo = Slo(ttft_ns=100 * MS)
    curves = [curve_of(record_of([row(i, ttft, []) for i in range(10)], slo)) for ttft in (40, 50, 80)]
    figure = scale_figure(curves, 0.9, [0, 1, 2])
    assert figure.value == pytest.approx((0.4 * 0.5 * 0.8) ** (1 / 3))
    assert figure.interval is not None
    assert figure.interval.n == 3
    lost = curve_of(record_of([row(i, 10, [], "reset") for i in range(10)], slo))
    assert scale_figure([*curves, lost], 0.9, [0, 1, 2, 3]).value is None
    assert scale_figure([], 0.9, []).reason == "no replicate"


def test_scale_one_is_the_attainment_that_the_run_reports() -> None:
    record = make_record()
    measures = measure_run(record)
    assert curve_of(record).attainment(1.0) == measures.figures["attainment"].value
