"""With and without a neighbour: which cells stand beside each other, what is said of them, and that a control is never ranked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.campaign import analyze
from analysis.compare import Side, compare
from analysis.fairness_model import Neighbour
from analysis.intervals import t_interval
from analysis.model import CampaignAnalysis, CellAnalysis, Ranking, Refusal
from analysis.report import render_html, render_markdown
from harness.record.coordinates import Known
from harness.record.reader import RunRecord
from harness.record.spec import Arm, LoadPoint, Rank, Replication
from tests.builders import MS, S, make_coordinates, make_record, make_request, make_spec, make_workload

DECLARED = ("workload.digests", "workload.transforms")


def arm(name: str, without: tuple[str, ...], seats: int) -> Arm:
    own = DECLARED if without else ("runtime.args",) if seats > 8 else ()
    return Arm(name=name, runtime="reference", version="1", args={"max-num-seqs": seats}, declared=own)


def record(name: str, replicate: int, *, late: int = 0, without: tuple[str, ...] = (), seats: int = 8, **spec: Any) -> RunRecord:
    """Sixty requests a client; the first ``late`` of the quiet one miss their TTFT. Two replicates differ by one late request."""
    clients = [c for c in ("noisy", "quiet") if c not in without]
    rows, plan = [], {}
    for client in clients:
        for k in range(60):
            slow = client == "quiet" and k < late + replicate * (late > 0)
            rows.append(make_request(len(rows), 3 * S + k * 100 * MS, ttft_ns=(600 if slow else 50) * MS))
            plan[len(rows) - 1] = {"client": client}
    base: dict[str, Any] = {"rank": Rank(metric="attainment", margin=0.02), "replication": Replication(count=2, server_starts=2)}
    made = make_spec(
        cell=f"{name}@x1", arm=arm(name, without, seats), replicate=replicate, server_start=replicate,
        workload=make_workload(without_clients=without, tenants={c: {"weight": 1.0} for c in ("noisy", "quiet")}), **(base | spec),
    )  # fmt: skip
    chain = [{"name": "without_clients", "clients": list(without)}] if without else []
    coordinates = make_coordinates(
        workload_transforms=Known(value=chain), workload_digests=Known(value=f"{without}"), runtime_args=Known(value={"seats": seats})
    )
    return make_record(rows, spec=made, plan=plan, coordinates=coordinates)


def campaign(**changes: Any) -> CampaignAnalysis:
    arms: dict[str, dict[str, Any]] = {
        "crowded": {"late": 30},
        "alone": {"without": ("noisy",)},
        "wide": {"seats": 16, "late": 3},
        "wide-alone": {"seats": 16, "without": ("noisy",)},
    }
    return analyze([record(n, r, **(parts | changes)) for n, parts in arms.items() for r in range(2)], incomplete=())


def told(found: CampaignAnalysis) -> dict[tuple[str, str], Neighbour]:
    return {(n.crowded, n.alone): n for n in found.neighbours}


def test_a_cell_stands_beside_the_same_arm_without_the_neighbour_and_beside_no_other() -> None:
    found = told(campaign())
    assert set(found) == {("crowded@x1", "alone@x1"), ("wide@x1", "wide-alone@x1")}
    one = found["crowded@x1", "alone@x1"]
    assert (one.client, one.without, one.offered, one.pairs) == ("quiet", ("noisy",), (120, 120), 2)
    assert [f.value for f in one.attainment] == [pytest.approx(59 / 120), 1.0]
    assert one.difference == pytest.approx(61 / 120)  # 30 and 31 of 60 lost
    assert one.low is not None
    assert one.high is not None
    assert one.low < one.difference < one.high


def side(cell: CellAnalysis) -> Side:
    return Side(cell.cell, cell.coordinates, frozenset(cell.declared))


def test_a_control_is_a_declared_difference_and_no_contender() -> None:
    found = campaign()
    verdict = found.verdict
    listed = verdict.reasons if isinstance(verdict, Refusal) else [r for _, reasons in verdict.unranked for r in reasons]
    named = {c.a for c in found.comparisons} | {c.b for c in found.comparisons}
    assert named == {"crowded@x1", "wide@x1"}
    if isinstance(verdict, Ranking):
        assert {s.arm for s in verdict.standings} <= {"crowded", "wide"}
        assert {arm for arm, reasons in verdict.unranked if reasons[0].code == "control_arm"} == {"alone", "wide-alone"}
    else:
        assert "alone@x1" not in " ".join(r.text for r in listed)
    with_, without = ({c.cell: c for c in found.cells}[n] for n in ("crowded@x1", "alone@x1"))
    answers = {d.coordinate: d.answer for d in compare(side(with_), side(without), same_campaign=True).differences}
    assert answers == dict.fromkeys(DECLARED, "differs_by_declaration")


def test_another_load_is_no_neighbour_and_one_replicate_has_no_interval() -> None:
    other = LoadPoint(kind="time_compression", value=2.0)
    apart = analyze([record("crowded", 0), record("alone", 0, without=("noisy",), load=other)], incomplete=())
    assert apart.neighbours == ()
    single = analyze([record("crowded", 0, late=30), record("alone", 0, without=("noisy",))], incomplete=()).neighbours[0]
    assert (single.difference, single.low, single.pairs) == (0.5, None, 1)
    assert "an interval needs two" in single.reason


@pytest.mark.parametrize(("a_start", "known"), [(1, True), (2, True), (4, False)])
def test_pairs_that_share_a_server_start_count_as_one(a_start: int, known: bool) -> None:
    def shared(name: str, replicate: int, **parts: Any) -> RunRecord:
        made = record(name, replicate, **parts)
        return replace(made, spec=made.spec.model_copy(update={"server_start": replicate // a_start}))

    runs = [shared(name, r, **parts) for name, parts in (("crowded", {"late": 30}), ("alone", {"without": ("noisy",)})) for r in range(4)]
    found = analyze(runs, incomplete=()).neighbours[0]
    assert (found.pairs, found.difference) == (4, pytest.approx(63 / 120))
    assert (found.low is not None) == known
    if found.low is not None and found.high is not None:
        lost = np.array([30, 31, 32, 33]) / 60
        own = t_interval(lost.reshape(-1, a_start).mean(axis=1).tolist())
        assert own is not None
        assert (found.low, found.high) == (pytest.approx(own.low), pytest.approx(own.high))
    else:
        assert "two on own server starts" in found.reason


def test_an_attainment_that_is_not_known_is_no_pair() -> None:
    def cut(replicate: int, **parts: Any) -> RunRecord:
        made = record("crowded", replicate, **parts)
        rows = made.requests.to_pylist()
        rows[0] |= {"end_kind": "drain_end", "end_ns": 3 * S + 60 * MS}  # could still have been valid
        return make_record(rows, spec=made.spec, coordinates=made.coordinates.coordinates, schedule=made.schedule)

    runs = [cut(r) for r in range(2)] + [record("alone", r, without=("noisy",)) for r in range(2)]
    found = analyze(runs, incomplete=()).neighbours[0]
    assert (found.difference, found.pairs) == (None, 0)


def test_the_report_says_that_it_is_a_diagnostic() -> None:
    found = campaign()
    for page in (render_markdown(found), render_html(found)):
        assert "Neighbours: with and without" in page
        assert "never ranked" in page
