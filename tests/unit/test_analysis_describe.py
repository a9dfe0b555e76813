from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.describe import describe, dispersion
from harness.errors import UsageError

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def test_a_regular_trace() -> None:
    found = describe(np.arange(0, 121), np.full(121, 7), np.arange(121))
    assert (found.rows, found.span_s, found.mean_rate, found.cv_gaps, found.max_gap_s) == (121, 120.0, 1.0, 0.0, 1.0)
    assert found.dispersion == {"1s": 0.0, "10s": 0.0, "60s": 0.0}
    assert found.input_tokens is not None
    assert found.output_tokens is not None
    assert (found.input_tokens.minimum, found.input_tokens.maximum, found.input_tokens.total) == (7, 7, 847)
    assert found.output_tokens.quantiles == {"p50": 60.0, "p90": 108.0, "p99": 119.0}


def test_rows_come_in_any_order() -> None:
    assert describe([2.0, 0.0, 1.0], [1, 1, 1], [1, 1, 1]).max_gap_s == 1.0


def test_bursts_raise_the_index_of_dispersion() -> None:
    bursts = np.repeat(np.arange(0, 100, 10), 20).astype(float)
    assert (dispersion(np.append(bursts, 100.0), 1.0) or 0) > 5
    assert dispersion(np.append(bursts, 100.0), 10.0) == 0.0


def test_the_cut_last_bin_is_left_out_unless_asked_for() -> None:
    arrivals = np.array([0.0, 0.5, 1.0, 1.5, 2.0])
    assert dispersion(arrivals, 1.0) == 0.0
    assert dispersion(arrivals, 1.0, bins="all") == pytest.approx(np.var([2, 2, 1]) / np.mean([2, 2, 1]))


def test_what_a_short_trace_cannot_say_is_none() -> None:
    empty, one, twins = describe([], [], []), describe([3.0], [1], [1]), describe([1.0, 1.0], [1, 1], [1, 1])
    assert (empty.span_s, empty.mean_rate, empty.input_tokens) == (None, None, None)
    assert (one.span_s, one.mean_rate, one.cv_gaps, one.max_gap_s) == (0.0, None, None, None)
    assert (twins.mean_rate, twins.cv_gaps, twins.zero_gap_share) == (None, None, 1.0)
    assert twins.dispersion == {"1s": None, "10s": None, "60s": None}


def test_columns_of_different_length_and_bad_times_are_refused_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        describe([0.0, math.nan], [1], [1, 1, 1])
    assert [p.code for p in caught.value.problems] == ["trace_columns", "trace_columns", "trace_times"]


@given(st.lists(st.floats(0, 1e4), max_size=60))
def test_a_description_is_plain_json(times: list[float]) -> None:
    found = describe(times, [1] * len(times), [2] * len(times)).as_dict()
    assert json.loads(json.dumps(found, allow_nan=False))["rows"] == len(times)


@pytest.mark.traces
@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the project")
@pytest.mark.parametrize(
    ("fact", "file"), [("vidur_splitwise_conv", "vidur_splitwise_conv.csv"), ("vidur_splitwise_code", "vidur_splitwise_code.csv")]
)
def test_published_facts_follow_under_their_conventions(fact: str, file: str) -> None:
    facts: dict[str, Any] = json.loads((TRACES / "facts.json").read_text())["facts"][fact]
    with (TRACES / "azure-llm-2023" / file).open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    columns = [[float(r[name]) for r in rows] for name in ("arrived_at", "num_prefill_tokens", "num_decode_tokens")]
    found = describe(*columns, percentile_rule="linear", bins="all")
    arrivals = facts["arrivals"]
    assert found.rows == facts["rows"]
    assert found.span_s == pytest.approx(arrivals["span_s"], abs=1e-6)
    assert found.mean_rate == pytest.approx(arrivals["mean_rate_rps"], abs=1e-6)
    assert found.cv_gaps == pytest.approx(arrivals["cv_interarrival"], abs=1e-4)
    assert found.max_gap_s == pytest.approx(arrivals["max_gap_s"], abs=1e-6)
    assert found.dispersion["1s"] == pytest.approx(arrivals["index_of_dispersion_1s"], abs=1e-3)
    assert found.dispersion["10s"] == pytest.approx(arrivals["index_of_dispersion_10s"], abs=1e-3)
    for side, lengths in (("input_tokens", found.input_tokens), ("output_tokens", found.output_tokens)):
        assert lengths is not None
        assert (lengths.minimum, lengths.maximum, lengths.total) == (facts[side]["min"], facts[side]["max"], facts[side]["sum"])
        assert lengths.mean == pytest.approx(facts[side]["mean"], abs=1e-4)
        assert lengths.quantiles == pytest.approx({k: facts[side][k] for k in ("p50", "p90", "p99")})
