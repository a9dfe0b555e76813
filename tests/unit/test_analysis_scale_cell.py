"""SLO scales of a cell: at scale 1 the curve is the attainment, and the figure is where it meets the declared target."""

from __future__ import annotations

import pytest

from analysis.campaign import analyze_cell
from analysis.run import measure_run
from analysis.scale_cell import DEFAULT_TARGET, SCALES, slo_scales, target_of
from harness.record.reader import RunRecord
from harness.record.spec import LoadPoint, Probe, Slo
from tests.builders import MS, make_request, make_spec
from tests.capacity_worlds import make_search
from tests.gates.cases import healthy


def record(replicate: int = 0, **spec: object) -> RunRecord:
    """A tenth of the requests needs 1.2 times the TTFT limit of 500 ms, the others a tenth of it."""
    rows = [make_request(i, i * 100 * MS, ttft_ns=600 * MS if i % 10 == 3 else 50 * MS) for i in range(140)]
    return healthy(rows, spec=make_spec(replicate=replicate, server_start=replicate, **spec))


def test_at_scale_one_it_is_the_attainment_and_wider_limits_let_all_in() -> None:
    cell = analyze_cell([record(0), record(1)], "goodput")
    for run in cell.runs:
        xs, ys = run.series["slo_scale"]
        shares = dict(zip(xs, ys, strict=True))
        assert shares[1.0] == run.figures["attainment"].value == pytest.approx(0.9)
        assert shares[2.0] == 1.0
        assert list(ys) == sorted(ys)
        assert set(xs) <= set(SCALES)
    figure = cell.figures["slo_scale"]
    assert (figure.status, figure.value) == ("ok", pytest.approx(0.2))  # the gap of 20 ms over its limit of 100 ms


def test_the_target_is_the_declared_one() -> None:
    probe = Probe(phase="grid", search=make_search(attainment=0.95))
    assert target_of(make_spec()) == 0.9
    assert target_of(make_spec(rank=None)) == DEFAULT_TARGET
    assert target_of(make_spec(rank=None, probe=probe, load=LoadPoint(kind="rate", value=2.0))) == 0.95
    strict = analyze_cell([record(r, rank=None, probe=probe) for r in range(2)], "attainment")
    assert strict.figures["slo_scale"].value == pytest.approx(1.2)


def test_without_limits_there_is_nothing_to_scale() -> None:
    free = record(slo=Slo())
    assert slo_scales([(free, measure_run(free))]) == ({}, ({},))
