from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.cell import CellMeasures, measure_cell
from analysis.intervals import design_effect, log_interval, share_interval, t_interval
from analysis.model import Outcome
from analysis.run import measure_run
from harness.record.reader import RunRecord
from tests.builders import MS, S, make_record, make_request, make_spec


def replicate(index: int, ttft_ms: list[int], *, server_start: int | None = None, **changes: Any) -> RunRecord:
    spec = make_spec(replicate=index, server_start=index if server_start is None else server_start)
    rows = [make_request(i, 3 * S + i, ttft_ns=t * MS, **changes) for i, t in enumerate(ttft_ms)]
    return make_record(rows, spec=spec)


def cell(*records: RunRecord) -> CellMeasures:
    return measure_cell([(r, measure_run(r)) for r in records])


def test_a_percentile_is_pooled_not_averaged() -> None:
    found = cell(replicate(0, [10, 10, 10, 10]), replicate(1, [20, 100]))
    figure = found.figures["ttft_p50"]
    assert figure.value == 0.010  # third of six; the mean of the replicates' medians would be 0.015
    assert figure.n == 6
    assert "pooled over 2 replicates" in figure.population
    assert figure.interval is not None
    expected = log_interval([0.010, 0.020])
    assert expected is not None
    assert (figure.interval.low, figure.interval.high) == (expected.low, expected.high)
    assert "the value is pooled" in figure.interval.method


def test_goodput_over_equal_cohorts_has_the_interval_of_attainment_in_its_own_unit() -> None:
    found = cell(replicate(0, [10] * 4), replicate(1, [10, 10, 900, 900]), replicate(2, [10, 10, 10, 900]))
    goodput, share = found.figures["goodput"], share_interval([4, 2, 3], [4, 4, 4], [0, 1, 2])
    assert goodput.value == pytest.approx(0.3)
    assert goodput.interval is not None
    assert share is not None
    assert (goodput.interval.low, goodput.interval.high) == pytest.approx((0.4 * share.low, 0.4 * share.high))
    assert found.figures["attainment"].interval == share


def test_goodput_over_cohorts_of_different_size_is_a_rate_with_a_t_interval() -> None:
    found = cell(replicate(0, [10] * 4), replicate(1, [10, 10, 900]), replicate(2, [10, 10, 10, 900]))
    goodput = found.figures["goodput"]
    assert goodput.interval == t_interval([0.4, 0.2, 0.3])
    assert goodput.n == 11
    assert "mean over 3 replicates" in goodput.population


def test_outcomes_add_up_and_the_design_effect_comes_from_attainment() -> None:
    found = cell(replicate(0, [10] * 4), replicate(1, [10, 10, 900, 900]))
    assert found.outcomes.offered == 8
    assert found.outcomes.counts[Outcome.VALID] == 6
    assert found.outcomes.closes()
    assert found.design_effect == design_effect([4, 2], [4, 4])


def test_one_replicate_prints_values_without_intervals() -> None:
    found = cell(replicate(0, [10] * 4))
    assert found.figures["goodput"].value == 0.4
    assert found.figures["goodput"].interval is None
    assert found.figures["ttft_p50"].interval is None
    assert found.design_effect is None


def test_shared_server_starts_are_labelled_hierarchical() -> None:
    records = [replicate(i, [10] * (2 + i), server_start=i // 2) for i in range(4)]
    for name in ("goodput", "ttft_p50", "attainment"):
        interval = cell(*records).figures[name].interval
        assert interval is not None
        assert (interval.unit_of_inference, interval.n) == ("hierarchical", 2)


def test_attainment_near_one_gets_an_interval_that_stays_below_one() -> None:
    found = cell(replicate(0, [10] * 40), replicate(1, [10] * 39 + [900]), replicate(2, [10] * 40))
    attainment = found.figures["attainment"]
    assert attainment.interval is not None
    assert "logit" in attainment.interval.method
    assert attainment.interval.low < (attainment.value or 0) < attainment.interval.high <= 1.0


def test_intervals_keep_to_values_the_figure_can_take() -> None:
    found = cell(replicate(0, [10] * 4), replicate(1, [900] * 4), replicate(2, [10] * 5), replicate(3, [900] * 4))
    attainment, goodput, plain = found.figures["attainment"].interval, found.figures["goodput"].interval, t_interval([0.4, 0.0, 0.5, 0.0])
    assert attainment is not None
    assert goodput is not None
    assert plain is not None
    assert 0.0 < attainment.low < 0.5 < attainment.high < 1.0
    assert plain.low < goodput.low == 0.0
    assert goodput.high == plain.high


def test_a_figure_that_one_replicate_lacks_is_lacking_in_the_cell_with_the_reason() -> None:
    found = cell(replicate(3, [10] * 4), replicate(7, [10]))
    figure = found.figures["ttft_p50"]
    assert (figure.status, figure.value, figure.interval) == ("withheld", None, None)
    assert figure.reason == "replicate 7 withheld: insufficient_sample: 1 requests a replicate, 2 needed"
    assert figure.population.endswith("pooled over 2 replicates")
    assert found.figures["goodput"].status == "ok"


def test_equal_reasons_are_told_once() -> None:
    figure = cell(replicate(0, [10]), replicate(1, [10])).figures["ttft_p50"]
    assert figure.reason == "insufficient_sample: 1 requests a replicate, 2 needed"
    figure = cell(replicate(0, [10] * 20), replicate(1, [10] * 30)).figures["ttft_p99"]
    assert figure.reason == "insufficient_sample: 20-30 requests a replicate, 100 needed"


def test_a_denominator_that_counts_is_summed() -> None:
    found = cell(replicate(0, [10] * 4), replicate(1, [10] * 6))
    assert found.figures["attainment"].denominator == "offered requests, N_off = 10 over 2 replicates"
    assert found.figures["goodput"].denominator.startswith("measured window W = ")


def test_unknown_outranks_withheld() -> None:
    uncounted = replicate(0, [10] * 4, client_tokens=None, event_tokens=[-1] * 5 + [0, 0])
    figure = cell(uncounted, replicate(1, [10])).figures["tbt_p50"]
    assert figure.status == "unknown"
    assert "replicate 0 unknown" in figure.reason
    assert "replicate 1 withheld" in figure.reason


def test_pooling_does_not_lift_the_floor_of_a_replicate() -> None:
    found = cell(*(replicate(i, [10] * 30) for i in range(5)))
    assert found.figures["ttft_p99"].status == "withheld"  # 150 pooled, but no replicate knows its own p99
    assert found.figures["ttft_p95"].status == "ok"


def test_the_largest_slip_is_the_largest_of_all() -> None:
    found = cell(replicate(0, [10] * 2), replicate(1, [10] * 2, send_ns=3 * S + 7 * MS))
    assert found.figures["slip_max"].value == pytest.approx(0.007)


def test_a_lost_row_leaves_the_design_effect_unknown() -> None:
    full = replicate(0, [10, 900])
    cut = make_record([make_request(0, 3 * S)], spec=make_spec(replicate=1, server_start=1), schedule=full.schedule)
    found = cell(full, cut)
    assert found.design_effect is None
    assert found.figures["attainment"].status == "unknown"


def test_a_cell_needs_a_replicate() -> None:
    with pytest.raises(ValueError, match="without a replicate"):
        measure_cell([])


def test_infinite_percentiles_have_no_interval() -> None:
    found = cell(replicate(0, [10] * 4, end_kind="reset"), replicate(1, [10] * 4, end_kind="reset"))
    figure = found.figures["ttft_p50_offered"]
    assert figure.value == np.inf
    assert figure.interval is None
