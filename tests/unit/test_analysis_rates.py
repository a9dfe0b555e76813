"""Rates and their denominators; among them the fixture on which published tools give twelve different answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.clocks import derive_clocks
from analysis.latency import tpot_s
from analysis.model import Figure
from analysis.run import RunMeasures, measure_run
from analysis.tails import linear, nearest_rank
from harness.record.schema import EventKind
from harness.record.spec import Slo, Window
from tests.builders import MS, S, make_record, make_request, make_spec, make_workload


def figures(rows: list[dict[str, Any]], **spec: Any) -> dict[str, Figure]:
    return dict(measure_run(make_record(rows, spec=make_spec(**spec))).figures)


def stream(request_id: int, ttft_ns: int, gaps_ns: list[int], **changes: Any) -> dict[str, Any]:
    """Request at 3 s + id with one token an event and the given gaps."""
    arrival = 3 * S + request_id
    stamps = [arrival + ttft_ns]
    for gap in gaps_ns:
        stamps.append(stamps[-1] + gap)
    n = len(stamps)
    kinds = [int(EventKind.TOKEN)] * n
    lists = {"event_ns": stamps, "event_tokens": [1] * n, "event_bytes": [1] * n, "event_kind": kinds, "end_ns": stamps[-1]}
    return make_request(request_id, arrival, tokens=n) | lists | {"send_ns": arrival} | changes


@pytest.fixture(scope="module")
def many_answers() -> RunMeasures:
    """Window 10 s, TTFT 1 s, TPOT 0.15 s. A: ten gaps of 0.1; B: one token; C: failed; D: gaps 0.1, 0.1, 0.1, 0.9."""
    rows = [
        stream(0, 900 * MS, [100 * MS] * 10),
        stream(1, 500 * MS, []),
        stream(2, 1, [], end_kind="reset"),
        stream(3, 400 * MS, [100 * MS] * 3 + [900 * MS]),
    ]
    slo = Slo(ttft_ns=S, tbt_ns=150 * MS, tbt_rule="mean")
    return measure_run(make_record(rows, spec=make_spec(slo=slo, workload=make_workload(output_length="natural"))))


def test_our_answers_to_the_fixture(many_answers: RunMeasures) -> None:
    f = many_answers.figures
    assert f["attainment"].value == 0.5  # offered denominator, one-output request judged on completion and TTFT
    assert f["goodput"].value == 0.2
    assert f["attainment_completed"].value == pytest.approx(2 / 3)
    assert f["attainment_completed"].diagnostic
    assert not f["attainment"].diagnostic
    assert (f["tpot_p50"].n, f["tpot_p50"].value) == (2, pytest.approx(0.1))  # n = 1 has no TPOT
    for name in ("tbt_p99", "tbt_p95", "event_gap_p99", "ttft_p99", "tpot_p99"):
        assert (f[name].status, f[name].value) == ("withheld", None)


def test_answers_of_other_tools_follow_from_the_same_clocks(many_answers: RunMeasures) -> None:
    clocks = many_answers.clocks
    done = clocks.end_kind == "complete"
    gaps = clocks.gap_ns / S
    to_end, n = (clocks.last_ns - clocks.send_ns)[done] / S, clocks.tokens[done]
    tpot = tpot_s(clocks, done)
    with_zeros = np.sort(np.concatenate([gaps, np.zeros(done.sum())]))
    assert len(gaps) == 14
    assert tpot.mean() == pytest.approx(0.200, abs=5e-4)  # n = 1 left out
    assert tpot.sum() / 3 == pytest.approx(0.133, abs=5e-4)  # n = 1 counted as 0
    assert to_end.sum() / n.sum() == pytest.approx(0.235, abs=5e-4)  # TTFT inside, weighted by tokens
    assert gaps.mean() == pytest.approx(0.157, abs=5e-4)  # pooled gaps
    assert with_zeros.mean() == pytest.approx(0.129, abs=5e-4)  # a zero added for every first token
    assert (to_end / n).mean() == pytest.approx(0.331, abs=5e-4)  # normalized latency
    assert np.median(to_end / n) == pytest.approx(0.320, abs=5e-4)
    assert linear(np.sort(gaps), 0.99) == pytest.approx(0.796, abs=5e-4)
    assert nearest_rank(np.sort(gaps), 0.99) == pytest.approx(0.900)
    assert linear(with_zeros, 0.99) == pytest.approx(0.772, abs=5e-4)
    with_tpot_objective = many_answers.outcome[clocks.tokens > 1] == "valid"
    assert with_tpot_objective.sum() / 10 == 0.1  # a one-output request is never good where TPOT is an objective


def test_the_longest_tenth_of_gaps_is_per_request(many_answers: RunMeasures) -> None:
    clocks = many_answers.clocks
    longest = {r: max(clocks.gap_ns[clocks.gap_request == r] / S) for r in (0, 3)}
    assert longest == {0: pytest.approx(0.1), 3: pytest.approx(0.9)}


def test_throughput_counts_stamps_in_the_window_of_all_requests() -> None:
    before = stream(0, 0, [S], arrival_ns=S + 500 * MS, event_ns=[S + 900 * MS, 2 * S], end_ns=2 * S)
    after = stream(1, 0, [S], arrival_ns=11 * S, event_ns=[12 * S - 1, 12 * S], end_ns=12 * S)
    broken = stream(2, 0, [S, S], arrival_ns=5 * S, event_ns=[6 * S, 7 * S, 8 * S], end_kind="reset")
    later = stream(3, 0, [], arrival_ns=11 * S, event_ns=[13 * S], end_ns=13 * S)
    found = figures([before, after, broken, later], workload=make_workload(output_length="natural"))
    assert found["token_throughput"].value == (1 + 1 + 3) / 10
    assert found["request_throughput"].value == 1 / 10  # only the first ended inside; the broken one never completed
    assert found["offered_rate"].value == 3 / 10
    assert found["attainment"].denominator == "offered requests, N_off = 3"
    assert found["goodput"].denominator == "measured window W = 10 s"


def test_rejected_requests_stay_in_the_denominator() -> None:
    nothing = {"client_tokens": 0, "event_ns": [], "event_tokens": [], "event_bytes": [], "event_kind": []}
    rows = [make_request(i, 3 * S + i) for i in range(3)] + [make_request(3, 4 * S, end_kind="http_error", http_status=429, **nothing)]
    found = figures(rows)
    assert found["attainment"].value == 0.75
    assert found["attainment_completed"].value == 1.0


def test_nothing_offered_is_undefined_not_zero() -> None:
    found = figures([make_request(0, S)])
    for name in ("goodput", "attainment", "token_goodput", "attainment_completed"):
        assert (found[name].status, found[name].value) == ("undefined", None)


def test_nothing_completed_leaves_the_conditioned_rate_undefined_and_goodput_zero() -> None:
    found = figures([make_request(0, 3 * S, end_kind="reset")])
    assert found["attainment_completed"].status == "undefined"
    assert found["goodput"].value == 0.0


def test_a_lost_row_makes_goodput_unknown() -> None:
    full = make_record([make_request(0, 3 * S), make_request(1, 4 * S)])
    record = replace(full, requests=full.requests.slice(0, 1))
    found = measure_run(record).figures["goodput"]
    assert (found.status, found.value) == ("unknown", None)
    assert "does not close" in found.reason


OPEN = {"end_kind": "drain_end", "end_ns": 14 * S, "usage_completion_tokens": None}
SILENT = {"client_tokens": 0, "event_ns": [], "event_tokens": [], "event_bytes": [], "event_kind": []}


def begun(*ns: int) -> dict[str, Any]:
    """Open row of a forced length of 5 that has its tokens at ``ns`` so far."""
    n = len(ns)
    return {"client_tokens": n, "event_ns": list(ns), "event_tokens": [1] * n, "event_bytes": [1] * n, "event_kind": [1] * n}


@pytest.mark.parametrize(
    ("slo", "arrival_ns", "row", "undecided"),
    [
        (Slo(ttft_ns=500 * MS), 3 * S, SILENT, False),
        (Slo(ttft_ns=3 * S), 11 * S + 1, SILENT, True),
        (Slo(ttft_ns=3 * S), 11 * S, SILENT, False),  # a token after the drain's end comes later than the limit
        (Slo(e2e_ns=4 * S), 11 * S, begun(12 * S), True),
        (Slo(e2e_ns=3 * S), 11 * S, begun(12 * S), False),  # ending after the drain's end would be past the limit
        (Slo(tbt_ns=100 * MS), 11 * S, begun(13 * S, 13 * S + 950 * MS), False),  # a gap was late already
        (Slo(tbt_ns=100 * MS), 11 * S, begun(14 * S - 150 * MS, 14 * S - 100 * MS), False),  # the next gap is late
        (Slo(tbt_ns=100 * MS), 11 * S, begun(14 * S - 150 * MS, 14 * S - 60 * MS), True),
        (Slo(ttft_ns=S, tbt_ns=100 * MS), 11 * S, begun(14 * S - 10 * MS), False),  # the first token was late
        (Slo(tbt_ns=100 * MS, tbt_rule="mean"), 11 * S, begun(14 * S - 399 * MS), True),
        (Slo(tbt_ns=100 * MS, tbt_rule="mean"), 11 * S, begun(14 * S - 400 * MS), False),  # four gaps left, 400 ms used up
        (Slo(tbt_ns=100 * MS, tbt_rule="p99"), 11 * S, begun(12 * S, 13 * S), True),
        (Slo(tbt_ns=100 * MS), 11 * S, SILENT, True),
        (Slo(), 3 * S, SILENT, True),
    ],
)
def test_the_drain_decides_whether_goodput_is_known(slo: Slo, arrival_ns: int, row: dict[str, Any], undecided: bool) -> None:
    found = figures([make_request(0, arrival_ns, **OPEN, **row)], slo=slo)
    assert found["goodput"].status == ("unknown" if undecided else "ok")
    assert found["attainment"].status == found["goodput"].status
    assert ("lengthen window.drain" in found["goodput"].reason) is undecided


def test_silence_is_no_gap_where_the_answer_may_just_have_ended() -> None:
    row = make_request(0, 11 * S, **OPEN, **begun(12 * S, 12 * S + 50 * MS))
    assert figures([row], slo=Slo(tbt_ns=100 * MS))["goodput"].status == "ok"
    free = figures([row], slo=Slo(tbt_ns=100 * MS), workload=make_workload(output_length="natural"))
    assert free["goodput"].status == "unknown"


def test_an_open_request_outside_the_cohort_does_not_matter() -> None:
    rows = [make_request(0, 3 * S), make_request(1, 13 * S, **OPEN, **SILENT)]
    assert figures(rows)["goodput"].value == 0.1


def test_uncounted_tokens_leave_token_rates_unknown_and_goodput_known() -> None:
    uncounted = {"client_tokens": None, "event_tokens": [-1] * 5 + [0, 0]}
    found = figures([make_request(0, 3 * S, **uncounted)])
    assert found["token_throughput"].status == "unknown"
    assert found["token_goodput"].value == 0.5
    assert found["goodput"].value == 0.1
    assert found["tbt_p50"].status == "unknown"
    assert found["tokens_per_event_mean"].status == "unknown"
    assert found["events_per_read_mean"].value == 1.0


def test_a_rule_that_cannot_be_judged_leaves_goodput_unknown() -> None:
    uncounted = {"client_tokens": None, "event_tokens": [-1] * 5 + [0, 0]}
    found = figures([make_request(0, 3 * S, **uncounted)], slo=Slo(tbt_ns=S, tbt_rule="p99"))
    assert found["goodput"].status == "unknown"
    assert "token counts" in found["goodput"].reason


def test_a_longer_window_divides_by_more() -> None:
    rows = [make_request(0, 3 * S)]
    assert figures(rows, window=Window(warm_up_ns=0, measured_ns=4 * S, drain_ns=S))["goodput"].value == 0.25


def test_the_offered_count_comes_from_the_schedule() -> None:
    schedule = make_record([make_request(i, 3 * S + i) for i in range(4)]).schedule
    clocks = derive_clocks(make_record([make_request(0, 3 * S)], schedule=schedule))
    assert len(clocks) == 1
    measures = measure_run(make_record([make_request(0, 3 * S)], schedule=schedule))
    assert measures.outcomes.offered == 4
    assert measures.figures["ttft_p50_offered"].n == 4
