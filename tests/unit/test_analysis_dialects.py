"""Other tools' rules on our records: the fixture of three requests that has many answers, each under its own rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.dialects import AIPERF, CLIENTS, DISTSERVE, GUIDELLM, MOONCAKE, ORCA, PAGED, SARATHI, SGLANG, hear
from analysis.model import Figure
from analysis.run import RunMeasures, measure_run
from analysis.tails import interpolated, value_at
from harness.record.reader import RunRecord
from harness.record.schema import EventKind
from harness.record.spec import Slo, Window
from tests.builders import MS, S, make_record, make_request, make_spec, make_workload

WINDOW = Window(warm_up_ns=0, measured_ns=10 * S, drain_ns=5 * S)


def request(i: int, ttft: float, gaps: list[float], **changes: Any) -> dict[str, Any]:
    """A request that arrives and is sent at second i, ends with its last token."""
    at = i * S
    stamps = [at + round(ttft * S)]
    for gap in gaps:
        stamps.append(stamps[-1] + round(gap * S))
    n = len(stamps)
    lists = {"event_ns": stamps, "event_tokens": [1] * n, "event_bytes": [1] * n, "event_kind": [int(EventKind.TOKEN)] * n}
    counts = {"client_tokens": n, "usage_completion_tokens": n}
    return make_request(i, at) | lists | counts | {"send_ns": at, "end_ns": stamps[-1]} | changes


def failed(i: int) -> dict[str, Any]:
    nothing: dict[str, Any] = {"event_ns": [], "event_tokens": [], "event_bytes": [], "event_kind": [], "client_tokens": None}
    return make_request(i, i * S) | nothing | {"end_kind": "reset", "usage_completion_tokens": None}


def fixture(**slo: Any) -> RunRecord:
    """Window 10 s, TTFT 1 s and TPOT 0.15 s: A, ten gaps of 0.1; B, one token; C, failed; D, three gaps of 0.1 and one of 0.9."""
    rows = [request(0, 0.9, [0.1] * 10), request(1, 0.5, []), failed(2), request(3, 0.4, [0.1, 0.1, 0.1, 0.9])]
    limits = {"ttft_ns": S, "tbt_ns": 150 * MS, "tbt_rule": "mean"} | slo
    spec = make_spec(slo=Slo(**limits), window=WINDOW, workload=make_workload(output_length="natural"))
    return make_record(rows, spec=spec)


def said(measures: RunMeasures, tool: str, metric: str) -> Figure:
    return next(s.figure for s in measures.dialects if s.tool == tool and s.figure.metric == metric)


@pytest.mark.parametrize(
    ("tool", "metric", "value"),
    [
        (CLIENTS, "tpot_mean", 0.200),
        (DISTSERVE, "tpot_mean", 0.4 / 3),
        (GUIDELLM, "tpot_mean", 4.0 / 17),
        (CLIENTS, "itl_mean", 2.2 / 14),
        (GUIDELLM, "itl_mean", 2.2 / 14),
        (SARATHI, "tbt_mean", 2.2 / 17),
        (PAGED, "normalised_latency_mean", (1.9 / 11 + 0.5 + 1.6 / 5) / 3),
        (ORCA, "normalised_latency_p50", 0.320),
        (CLIENTS, "goodput", 0.2),
        (AIPERF, "goodput", 0.1),
        (SGLANG, "slo_attainment", 0.50),
        (DISTSERVE, "attainment", 2 / 3),
    ],
)
def test_every_row_of_the_fixture_under_its_rule(tool: str, metric: str, value: float) -> None:
    found = said(measure_run(fixture()), tool, metric)
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.diagnostic


def test_the_seeds_own_rule_agrees_with_the_one_that_keeps_failures_in_the_denominator() -> None:
    figures = measure_run(fixture()).figures
    assert (figures["attainment"].value, figures["goodput"].value) == (0.5, 0.2)
    assert figures["attainment_completed"].value == pytest.approx(2 / 3)


def test_the_p99_gap_has_three_values_and_none_is_printed() -> None:
    measures = measure_run(fixture())
    gaps = hear(fixture(), measures.clocks, 4).gaps
    assert interpolated(gaps, 0.99) == pytest.approx(0.796)
    assert value_at(gaps, 0.99) == pytest.approx(0.900)
    assert interpolated(gaps.with_zeros(3, 3), 0.99) == pytest.approx(0.772)
    for tool, metric in ((CLIENTS, "itl_p99"), (SARATHI, "tbt_p99")):
        assert (said(measures, tool, metric).status, said(measures, tool, metric).value) == ("withheld", None)
    assert measures.figures["tbt_p99"].value is None


def test_mooncakes_tbt_is_the_mean_of_the_longest_tenth_rounded_up() -> None:
    measures = measure_run(fixture())
    assert hear(fixture(), measures.clocks, 4).tenth.tolist() == pytest.approx([0.1, math.nan, 0.9], nan_ok=True)
    assert said(measures, MOONCAKE, "tbt_mean").value == pytest.approx(0.5)
    assert said(measures, MOONCAKE, "effective_request_capacity").value == 0.5
    own = measure_run(fixture(tbt_rule="top10", tbt_ns=100 * MS))
    assert own.figures["attainment"].value == 0.5
    assert measure_run(fixture(tbt_rule="top10", tbt_ns=100 * MS - 1)).figures["attainment"].value == 0.25


def test_a_rule_without_limits_has_no_goodput_to_tell() -> None:
    measures = measure_run(fixture(ttft_ns=None, tbt_ns=None))
    assert (said(measures, CLIENTS, "goodput").status, said(measures, SGLANG, "slo_attainment").status) == ("undefined", "undefined")


def test_a_run_that_answered_nothing_is_said_to_have_nothing() -> None:
    record = make_record([failed(1)], spec=make_spec(window=WINDOW))
    values = {s.figure.metric: s.figure.value for s in measure_run(record).dialects if s.figure.unit == "s"}
    assert set(values.values()) == {None}


lengths = st.lists(st.lists(st.integers(0, 300), max_size=12), min_size=1, max_size=12)


@settings(max_examples=40)
@given(lengths)
def test_the_rules_equal_plain_loops_over_tokens(requests: list[list[int]]) -> None:
    rows = [request(i % 9, 0.1, [g / 1000 for g in gaps], request_id=i) for i, gaps in enumerate(requests)]
    slo = Slo(ttft_ns=S, tbt_ns=150 * MS, tbt_rule="mean")
    measures = measure_run(make_record(rows, spec=make_spec(slo=slo, window=WINDOW, workload=make_workload(output_length="natural"))))
    means = [sum(g) / len(g) / 1000 for g in requests if g]
    pooled = [g / 1000 for gaps in requests for g in gaps]
    tokens = sum(len(g) + 1 for g in requests)
    expected = {
        (CLIENTS, "tpot_mean"): np.mean(means) if means else None,
        (DISTSERVE, "tpot_mean"): sum(means) / len(requests),
        (CLIENTS, "itl_mean"): np.mean(pooled) if pooled else None,
        (SARATHI, "tbt_mean"): sum(pooled) / tokens,
        (GUIDELLM, "tpot_mean"): (0.1 * len(requests) + sum(pooled)) / tokens,
        (CLIENTS, "goodput"): sum(not g or sum(g) / len(g) <= 150 for g in requests) / 10,
        (AIPERF, "goodput"): sum(bool(g) and sum(g) / len(g) <= 150 for g in requests) / 10,
        (MOONCAKE, "tbt_mean"): np.mean([np.mean(sorted(g)[-math.ceil(len(g) / 10) :]) / 1000 for g in requests if g]) if means else None,
    }
    for (tool, metric), value in expected.items():
        found = said(measures, tool, metric)
        if found.status != "withheld":  # while the backlog grows
            assert found.value == (None if value is None else pytest.approx(float(value), abs=1e-9)), (tool, metric)
