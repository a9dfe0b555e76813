"""The seed's worked numbers, from records to figures. ``test_policies_worked`` holds the schedulers to them; here events are measured.

0x07: tail probe, burst under two overload contracts, saturation. 0x09A: service gaps of 16 and 2, aging at tick 8 (their fairness rules are
held in ``test_analysis_fairness``; here the same fixtures come out of a record).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from analysis.backlog import overload
from analysis.clocks import derive_clocks
from analysis.fairness import ServiceLog, aged_priority, aging_crossover, backlog, largest_gap, service
from analysis.model import Outcome
from analysis.run import RunMeasures, measure_run
from harness.record.reader import RunRecord
from harness.record.schema import TRUTH, EventKind
from harness.record.spec import Slo, Window
from harness.reference.contract import Budgets
from harness.simulate import Door, Simulated, simulate
from tests.builders import MS, make_record, make_request, make_spec, make_workload
from tests.unit.test_policies_worked import BURST, core
from tests.unit.test_simulate_virtual import offered

pa = pytest.importorskip("pyarrow")
SLO = Slo(ttft_ns=30 * MS, tbt_ns=20 * MS)


def record_of(run: Simulated, measured_ns: int, slo: Slo = SLO) -> RunRecord:
    """The record of a simulated run: what a client that saw its events would have kept."""
    rows = [_row(run, i, kind) for i, kind in enumerate(run.kinds())]
    truth = pa.Table.from_pylist([{"request_id": r["request_id"], "output_tokens": 2, "stop_after": None} for r in rows], TRUTH)
    window = Window(warm_up_ns=0, measured_ns=measured_ns, drain_ns=0)
    spec = make_spec(window=window, slo=slo, workload=make_workload(output_length="natural"))
    return make_record(rows, spec=spec, truth=truth)


def _row(run: Simulated, request: int, kind: str) -> dict[str, Any]:
    stamps, arrival = run.token_ns[run.token_request == request].tolist(), int(run.arrival_ns[request])
    done = kind == "complete"
    return make_request(
        request,
        arrival,
        send_ns=arrival,
        end_ns=stamps[-1] if done else arrival if kind == "http_error" else None,
        end_kind=kind,
        http_status=429 if kind == "http_error" else 200,
        usage_completion_tokens=len(stamps) if done else None,
        client_tokens=len(stamps),
        event_ns=stamps,
        event_tokens=[1] * len(stamps),
        event_bytes=[200] * len(stamps),
        event_kind=[int(EventKind.TOKEN)] * len(stamps),
    )


def counts(found: RunMeasures) -> dict[str, int]:
    return {outcome.value: n for outcome, n in found.outcomes.counts.items() if n}


def value(found: RunMeasures, metric: str) -> float:
    figure = found.figures[metric]
    assert figure.value is not None, (metric, figure.status, figure.reason)
    return figure.value


def probe(latencies_ms: Sequence[int]) -> RunRecord:
    rows = [make_request(i, i * 100 * MS, ttft_ns=ms * MS) for i, ms in enumerate(latencies_ms)]
    return make_record(
        rows, spec=make_spec(window=Window(warm_up_ns=0, measured_ns=10_000 * MS, drain_ns=2_000 * MS), slo=Slo(ttft_ns=20 * MS))
    )


def test_the_tail_probe_passes_by_its_mean_and_fails_by_its_p99() -> None:
    record = probe([10] * 98 + [500] * 2)
    found = measure_run(record)
    ttft = found.samples["ttft"].values
    assert float(ttft.mean()) == pytest.approx(0.0198)
    assert float(ttft.mean()) < 0.020 < value(found, "ttft_p99")
    assert (value(found, "ttft_p95"), value(found, "ttft_p99")) == (0.010, 0.500)
    assert value(found, "attainment") == 0.98


def test_twelve_observations_have_no_p95_and_no_p99() -> None:
    figures = measure_run(probe([10] * 12)).figures
    assert {m: figures[m].status for m in ("ttft_p50", "ttft_p95", "ttft_p99")} == {
        "ttft_p50": "ok",
        "ttft_p95": "withheld",
        "ttft_p99": "withheld",
    }
    assert "insufficient_sample" in figures["ttft_p99"].reason


def test_the_burst_of_six_under_two_overload_contracts() -> None:
    """Accept-all answers all and misses two; four live rejects two: the same goodput, another throughput and another failure."""
    made, load = core("least-slack", Budgets(2, 2, 100), **BURST), offered(*[(0, 1, 2)] * 6)
    everyone, bounded = (
        measure_run(record_of(simulate(made, load, until_ns=100 * MS, door=door), 100 * MS)) for door in (Door(), Door(live=4))
    )
    assert counts(everyone) == {"valid": 4, "miss": 2}
    assert counts(bounded) == {"valid": 4, "rejected": 2}
    assert value(everyone, "goodput") == value(bounded, "goodput") == pytest.approx(40.0)
    assert value(everyone, "attainment") == value(bounded, "attainment") == pytest.approx(4 / 6)
    assert (value(everyone, "request_throughput"), value(bounded, "request_throughput")) == (pytest.approx(60.0), pytest.approx(40.0))
    assert (value(everyone, "token_throughput"), value(bounded, "token_throughput")) == (pytest.approx(120.0), pytest.approx(80.0))
    assert value(everyone, "token_goodput") == value(bounded, "token_goodput") == pytest.approx(80.0)
    assert value(everyone, "attainment_completed") == pytest.approx(4 / 6)
    assert value(bounded, "attainment_completed") == 1.0  # a diagnostic: two of six were turned away
    assert bounded.figures["attainment_completed"].diagnostic
    assert bounded.figures["ttft_p50_offered"].value != bounded.figures["ttft_p50"].value


def saturation(door: Door) -> RunRecord:
    """240 two-row requests in 1.3 s of two rows a tick; two arrive at each of the first 120 ticks (their instants are reconstructed)."""
    load = offered(*[(10 * (i // 2), 1, 2) for i in range(240)])
    return record_of(simulate(core("least-slack", Budgets(2, 2, 100), **BURST), load, until_ns=1300 * MS, door=door), 1300 * MS)


def test_saturation_serves_all_that_it_admits_and_half_of_what_is_offered() -> None:
    found = measure_run(saturation(Door(live=4)))
    demand, capacity = found.sent.tokens.output_planned.value, 130 * 2
    assert (demand, capacity, (demand or 0) - capacity) == (480, 260, 220)
    assert counts(found) == {"valid": 122, "rejected": 118}
    assert value(found, "attainment_completed") == 1.0
    assert round(100 * value(found, "attainment"), 3) == 50.833
    assert found.figures["attainment"].denominator == "offered requests, N_off = 240"
    assert found.figures["attainment_completed"].denominator == "completed requests = 122"


def test_saturation_with_everybody_admitted_is_overload_and_withholds_latency() -> None:
    record = saturation(Door())
    found = measure_run(record)
    load = overload(record, derive_clocks(record))
    assert load.flag
    # What came less what was done inside the half-open window; two requests end at its very end and are no longer in it.
    assert load.slope * 1.3 == pytest.approx(240 - value(found, "request_throughput") * 1.3)
    assert found.outcomes.counts[Outcome.OPEN] == round(load.slope * 1.3) - 2
    assert found.figures["ttft_p50"].status == "withheld"
    assert "overloaded" in found.figures["ttft_p50"].reason
    assert found.outcomes.closes()


def served(order: Sequence[int], clients: int = 2) -> ServiceLog:
    """One event of two weighted units a tick, published at its end."""
    at = np.arange(1, len(order) + 1, dtype=np.int64)
    return ServiceLog(np.array(order, dtype=np.int64), at, np.full(len(order), 2.0), clients)


@pytest.mark.parametrize(("order", "gap"), [([0] * 8 + [1] * 4, 16), ([0, 1] * 4 + [0] * 4, 2)])
def test_first_come_opens_a_gap_of_16_where_least_service_keeps_2(order: list[int], gap: int) -> None:
    log, client = served(order), np.array(order)
    # Every event is a request of its own; it was unfinished from tick 0 until it was served.
    stretches = backlog(client, np.zeros(12, dtype=np.int64), log.at, 2)
    assert largest_gap(log, stretches).value == gap
    assert service(log, 0, 12).tolist() == [16, 8]


def test_aging_wins_at_tick_8() -> None:
    assert aging_crossover(low=4, high=0, quantum=2) == 8
    assert [int(aged_priority(4, tick, 2)) for tick in (7, 8)] == [1, 0]
