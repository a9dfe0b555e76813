"""Fairness from records: the seed's fixtures played as requests, each number by hand, and what must not change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import fairness_log
from analysis.fairness_cell import MOST, fairness_of_cell
from analysis.fairness_model import CellFairness
from analysis.fairness_run import PAIRED, RunFairness
from analysis.model import Outcome, Verdict
from analysis.run import measure_run
from harness.record.fairness import Fairness, Premises, VtcGuarantee, default_fairness
from harness.record.reader import RunRecord
from harness.record.spec import Slo, Window
from tests.builders import MS, S, make_record, make_request, make_sample, make_spec, make_workload
from tests.mixtures import mixtures, record_of

W = 10 * S
DEFAULT = default_fairness(W)
COUNTED = Fairness(input_weight=0.0, window_ns=W, horizon_ns=W)
"""Output tokens at two units each, in one window."""


def fair(record: RunRecord) -> RunFairness:
    found = measure_run(record).fairness
    assert found is not None
    return found


def cell(*records: RunRecord) -> CellFairness:
    found = fairness_of_cell([(r, measure_run(r)) for r in records])
    assert found is not None
    return found


def value(record: RunRecord, metric: str) -> float | None:
    return measure_run(record).figures[metric].value


def played(served: Sequence[tuple[str, int]], declared: Fairness = COUNTED, **spec: Any) -> RunRecord:
    """One-token requests that all arrive when the window opens; (client, s after it) at which each is answered. 12 s measured, w_p = 0."""
    rows = [make_request(i, 2 * S, tokens=1, ttft_ns=at * S, end_ns=(2 + at) * S) for i, (_, at) in enumerate(served)]
    window = Window(warm_up_ns=2 * S, measured_ns=14 * S, drain_ns=2 * S)
    made = make_spec(window=window, fairness=declared, slo=Slo(), **spec)
    truth = pa.Table.from_pylist([{"request_id": i, "output_tokens": 1, "stop_after": None} for i in range(len(served))])
    return make_record(rows, spec=made, truth=truth, plan={i: {"client": c} for i, (c, _) in enumerate(served)})


FIFO = [(c, k + 1) for k, c in enumerate("AAAAAAAABBBB")]
LEAST = [(c, k + 1) for k, c in enumerate("ABABABABAAAA")]


@pytest.mark.parametrize(("order", "gap"), [(FIFO, 16), (LEAST, 2)])
def test_the_seeds_gaps_of_16_and_2_from_requests(order: list[tuple[str, int]], gap: float) -> None:
    record = played(order)
    found = fair(record)
    assert found.figures["service_gap"].value == gap
    assert dict(zip(found.who.names, found.service.tolist(), strict=True)) == {"A": 16, "B": 8}  # the same in the end
    assert found.bound.verdict is Verdict.UNKNOWN  # nothing is claimed


def test_where_the_widest_gap_arose_is_told_in_words() -> None:
    assert cell(played(FIFO)).gap == "16 between A and B from 0 s to 8 s of replicate 0"
    rows = [make_request(i, S, ttft_ns=(2 + i) * S) for i in range(2)]  # both there before the window opens
    early = make_record(rows, plan={0: {"client": "a"}, 1: {"client": "b"}})
    assert cell(early).gap.startswith("26 between a and b from 0 s to 1")


# The bound: premises declared, and taken back where the record speaks against them

HOLD = Premises(both_backlogged=True, lift_and_charges_kept=True, work_conserving=True, no_preemption=True, finite_bounds=True)


def claimed(premises: Premises = HOLD, **changes: Any) -> Fairness:
    """U = max(0 x 16, 2 x 4) = 8."""
    own = VtcGuarantee(longest_input=16, batch_tokens=4, premises=premises)
    return COUNTED.model_copy(update={"eligible": "waiting", "guarantee": own, **changes})


def test_the_bound_of_16_is_held_against_the_gap_only_where_all_premises_hold() -> None:
    held = fair(played(FIFO, claimed())).bound
    assert (held.verdict, held.charge, held.value) == (Verdict.PASS, 8, 16)
    assert held.reason == "gap 16 of A and B from 0 s to 8 s, bound 16"
    broken = fair(played([*FIFO[:8], ("A", 9), *(("B", k) for k in range(10, 14))], claimed())).bound
    assert (broken.verdict, broken.reason.split(" from ")[0]) == (Verdict.FAIL, "gap 18 of A and B")


def test_a_weight_that_all_bear_moves_neither_the_gap_of_the_theorem_nor_its_answer() -> None:
    """Gaps are told per weight; a bound of 16 held against half of 18 would pass."""
    beyond = [*FIFO[:8], ("A", 9), *(("B", k) for k in range(10, 14))]
    alike = make_workload(tenants={"A": {"weight": 2.0}, "B": {"weight": 2.0}})
    found = fair(played(beyond, claimed(), workload=alike))
    assert found.figures["service_gap"].value == 9
    assert (found.bound.verdict, found.bound.gap) == (Verdict.FAIL, 18)


def test_a_gap_within_the_bound_is_no_pass_where_some_clients_were_not_paired() -> None:
    many = [(f"c{k:03d}", k % 8 + 1) for k in range(PAIRED + 2)]
    found = fair(played(many, claimed())).bound
    assert (found.verdict, found.value) == (Verdict.UNKNOWN, 16)
    assert "2 clients that asked for less were not paired" in found.reason
    assert fair(played(many[:PAIRED], claimed())).bound.verdict is Verdict.PASS


@pytest.mark.parametrize("name", list(Premises.model_fields))
@pytest.mark.parametrize("answer", [False, None])
def test_a_premise_that_is_not_declared_to_hold_leaves_no_bound(name: str, answer: bool | None) -> None:
    found = fair(played(FIFO, claimed(HOLD.model_copy(update={name: answer})))).bound
    assert (found.verdict, found.value, found.charge) == (Verdict.UNKNOWN, None, 8)
    assert f"{name} {'unknown' if answer is None else 'does not hold'}" in found.reason


def test_a_premise_that_the_record_contradicts_leaves_no_bound() -> None:
    longer = fair(played(FIFO, claimed(guarantee=VtcGuarantee(longest_input=15, batch_tokens=4, premises=HOLD)))).bound
    assert "finite_bounds does not hold" in longer.reason
    assert "a prompt of 16 tokens was sent" in longer.reason
    unfinished = fair(played(FIFO, claimed(eligible="unfinished"))).bound
    assert "both_backlogged unknown" in unfinished.reason
    other = make_spec().arm.model_copy(update={"args": {"policy": "orca-shaped"}})
    assert "the reference engine ran policy orca-shaped" in fair(played(FIFO, claimed(), arm=other)).bound.reason
    unlike = make_workload(tenants={"A": {"weight": 2.0}, "B": {"weight": 1.0}})
    assert "unlike weights" in fair(played(FIFO, claimed(), workload=unlike)).bound.reason


@pytest.mark.parametrize(("count", "verdict"), [(0.0, Verdict.PASS), (3.0, Verdict.UNKNOWN)])
def test_preemptions_that_the_server_counted_leave_no_bound(count: float, verdict: Verdict) -> None:
    record = played(FIFO, claimed())
    rows = [make_sample(-1, "server", "preemptions_total", 0), make_sample(20 * S, "server", "preemptions_total", count)]
    found = fair(replace(record, server_metrics=pa.Table.from_pylist(rows, record.server_metrics.schema))).bound
    assert found.verdict is verdict
    assert ("the server counted 3 preemptions" in found.reason) == bool(count)


def test_the_bound_of_a_cell_is_the_worst_of_its_replicates() -> None:
    good = played(FIFO, claimed())
    bad = played([*FIFO[:8], ("A", 9), *(("B", k) for k in range(10, 14))], claimed())
    unknown = played(FIFO, claimed(Premises()))
    assert cell(good, bad, unknown).bound.verdict is Verdict.FAIL
    assert cell(good, unknown).bound.verdict is Verdict.UNKNOWN
    assert cell(good, good).bound.verdict is Verdict.PASS


# What is counted, and when


def two(declared: Fairness = DEFAULT, slo: Slo | None = None, **b: Any) -> RunRecord:
    """Client a and client b, one request each at 3 s: 16 prompt tokens, 5 outputs from 3.05 s on, 20 ms apart; ``b`` changes b's."""
    rows = [make_request(0, 3 * S), make_request(1, 3 * S, **b)]
    spec = make_spec(fairness=declared, **({"slo": slo} if slo else {}))
    return make_record(rows, spec=spec, plan={0: {"client": "a"}, 1: {"client": "b"}})


def test_service_is_a_prompt_with_its_first_token_and_two_for_each_output() -> None:
    found = fair(two())
    assert found.service.tolist() == [16 + 2 * 5, 16 + 2 * 5]
    assert found.requested.tolist() == [26, 26]
    weighted = DEFAULT.model_copy(update={"input_weight": 0.5, "output_weight": 3.0})
    assert fair(two(weighted)).service.tolist() == [8 + 15, 8 + 15]


@pytest.mark.parametrize(
    ("end", "tokens", "requests"),
    [
        ({}, 26, 26),
        ({"end_kind": "drain_end"}, 26, 0),  # cut by the end of the run: what was streamed was completed
        ({"end_kind": "cancelled"}, 26, 0),
        ({"end_kind": "timeout"}, 0, 0),  # failed: nothing of it is completed work, whatever had been streamed
        ({"end_kind": "http_error", "http_status": 500}, 0, 0),
        ({"ttft_ns": 20 * S}, 0, 0),  # after the window
    ],
)
def test_planned_and_failed_work_counts_nothing(end: dict[str, Any], tokens: float, requests: float) -> None:
    assert fair(two(**end)).service.tolist() == [26, tokens]
    assert fair(two(DEFAULT.model_copy(update={"publication": "requests"}), **end)).service.tolist() == [26, requests]


def test_an_event_of_unknown_tokens_makes_service_unknown_and_not_zero() -> None:
    record = two(event_tokens=[1, -1, 1, 1, 1, 0, 0])
    figures = measure_run(record).figures
    for metric in ("jain_service", "service_gap", "windowed_gap_mean"):
        assert (figures[metric].status, figures[metric].value) == ("unknown", None)
        assert "unknown number of tokens" in figures[metric].reason
    assert figures["attainment_least"].value == 1.0  # which rests on other things
    found = cell(record)
    assert {(s.service, s.share, s.starved) for s in found.shares} == {(None, None, None)}
    assert found.notes == ("Service is not known: events carried an unknown number of tokens.",)


def test_stamps_of_more_events_than_are_taken_as_they_are_move_by_less_than_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = fair(played(FIFO))
    monkeypatch.setattr(fairness_log, "EXACT", 5)
    for few in (fairness_log.FEW, 0):  # both ways of adding up
        monkeypatch.setattr(fairness_log, "FEW", few)
        found = fair(played(FIFO))
        assert found.service.tolist() == exact.service.tolist()
        assert abs(found.figures["service_gap"].value - 16) <= 2  # one event on the edge
        assert np.abs(found.drought_ns - exact.drought_ns).max() <= 14 * S / fairness_log.CELLS + 1
        assert "Stamps are rounded up" in " ".join(cell(played(FIFO)).notes)


# The windowed gap as VTC's artifact takes it


def test_the_windowed_gap_by_hand() -> None:
    """One window of 10 s. a got 26 of 26; b, cut at its second token, 20 of 26, and c, declined, 0 of 26: 0 + min(6, 6) + min(26, 26).
    What was declined is still asked for."""
    b = {"event_ns": [4 * S, 5 * S], "event_tokens": [1, 1], "event_bytes": [9, 9], "event_kind": [1, 1], "client_tokens": 2}
    none = {"event_ns": [], "event_tokens": [], "event_bytes": [], "event_kind": [], "client_tokens": None, "usage_completion_tokens": None}
    rows = [
        make_request(0, 3 * S),
        make_request(1, 3 * S, end_kind="drain_end", **b),
        make_request(2, 3 * S, end_kind="http_error", http_status=429, **none),
    ]
    spec = make_spec(fairness=Fairness(window_ns=W, horizon_ns=W))
    record = make_record(rows, spec=spec, plan={i: {"client": "abc"[i]} for i in range(3)})
    assert fair(record).service.tolist() == [26, 20, 0]
    assert value(record, "windowed_gap_mean") == value(record, "windowed_gap_max") == pytest.approx((6 + 26) / 10)
    assert value(record, "windowed_gap_variance") == 0
    assert value(record, "service_spread") == 26


def test_windows_lie_half_over_each_other_and_all_inside_the_measured_window() -> None:
    """Windows of 4 s from 2 s on: (2, 6], (4, 8], (6, 10], (8, 12]. b asks and gets nothing at 7 s, so two windows of four have its gap."""
    rows = [make_request(0, 7 * S), make_request(1, 7 * S, ttft_ns=6 * S)]
    spec = make_spec(fairness=Fairness(window_ns=4 * S, horizon_ns=W))
    record = make_record(rows, spec=spec, plan={0: {"client": "a"}, 1: {"client": "b"}})
    figures = measure_run(record).figures
    assert figures["windowed_gap_mean"].value == pytest.approx(26 / 4 * 2 / 4)
    assert figures["windowed_gap_max"].value == pytest.approx(26 / 4)
    assert figures["windowed_gap_variance"].value == pytest.approx((26 / 4) ** 2 / 4)


def test_a_run_of_ten_minutes_has_the_artifacts_19_points() -> None:
    window = Window(warm_up_ns=0, measured_ns=600 * S, drain_ns=S)
    declared = default_fairness(window.measured_ns)
    assert (declared.window_ns, declared.horizon_ns) == (60 * S, 600 * S)
    # Each client of two is alone in getting 26 in its minute k: windows that hold it say 0.433, the others nothing.
    rows = [make_request(0, 45 * S), make_request(1, 45 * S, ttft_ns=599 * S)]
    record = make_record(rows, spec=make_spec(window=window), plan={0: {"client": "a"}, 1: {"client": "b"}})
    assert value(record, "windowed_gap_mean") == pytest.approx(2 * (26 / 60) / 19)  # (0, 60] and (30, 90]


NOTHING: dict[str, Any] = {
    "end_kind": "drain_end", "client_tokens": None, "usage_completion_tokens": None, "event_ns": [], "event_tokens": [], "event_bytes": [],
    "event_kind": [],
}  # fmt: skip
"""What an unanswered request brought."""

LOG = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 119), st.integers(1, 9), st.integers(0, 60), st.booleans()), min_size=1, max_size=20
)
"""(client, arrival s, output tokens, wait for the first token s, whether it is answered) of each request of a log of two minutes."""


@settings(max_examples=40)
@given(LOG)
def test_a_log_of_the_artifacts_form_gives_what_its_formula_gives(log: list[tuple[int, int, int, int, bool]]) -> None:
    """VTC's Table 2 was computed from logs that are not at hand, so its formula stands here a second time, in plain loops, over any log of
    the same form: client, arrival, lengths, stamps. Windows of 60 s every 30 s; every request stays in what was asked for."""
    rows, truth, plan = [], [], {}
    for i, (client, arrival, tokens, wait, answered) in enumerate(log):
        row = make_request(i, arrival * S + i, tokens=tokens, ttft_ns=wait * S, gap_ns=S)
        rows.append(row if answered else row | NOTHING)
        truth.append({"request_id": i, "output_tokens": tokens, "stop_after": None})
        plan[i] = {"client": f"c{client}"}
    window = Window(warm_up_ns=0, measured_ns=120 * S, drain_ns=200 * S)
    spec = make_spec(window=window, fairness=Fairness(window_ns=60 * S, horizon_ns=120 * S))
    figures = measure_run(make_record(rows, spec=spec, truth=pa.Table.from_pylist(truth), plan=plan)).figures
    gaps = []
    for start in (0, 30, 60):
        served, asked = dict.fromkeys(range(4), 0.0), dict.fromkeys(range(4), 0.0)
        for i, (client, arrival, tokens, wait, answered) in enumerate(log):
            first = arrival * S + i + wait * S
            stamps = [first + k * S for k in range(tokens)] if answered else []
            served[client] += 2 * sum(start * S <= at < (start + 60) * S for at in stamps)
            served[client] += 16 * (answered and start * S <= first < (start + 60) * S)
            asked[client] += (16 + 2 * tokens) * (start * S <= arrival * S + i < (start + 60) * S)
        most = max(served.values())
        gaps.append(sum(min(most - served[c], abs(asked[c] - served[c])) for c in served) / 60)
    if figures["windowed_gap_mean"].status == "ok":
        assert figures["windowed_gap_mean"].value == pytest.approx(np.mean(gaps))
        assert figures["windowed_gap_max"].value == pytest.approx(max(gaps))
        assert figures["windowed_gap_variance"].value == pytest.approx(np.var(gaps), abs=1e-9)
    else:
        assert "nobody to compare" in figures["windowed_gap_mean"].reason


# Indices, starvation, eligibility


def test_indices_by_hand() -> None:
    """a: 3 requests, all valid; b: 1 of 1 valid and 3 s later 1 missed. Service 78 against 52; attainment 1 and 1/2."""
    rows = [make_request(i, 3 * S + i) for i in range(4)] + [make_request(4, 6 * S, ttft_ns=600 * MS)]
    record = make_record(rows, plan={i: {"client": "a" if i < 3 else "b"} for i in range(5)})
    assert value(record, "jain_service") == pytest.approx((78 + 52) ** 2 / (2 * (78**2 + 52**2)))
    assert value(record, "jain_attainment") == pytest.approx(1.5**2 / (2 * 1.25))
    assert value(record, "attainment_least") == 0.5


def test_service_is_compared_per_weight() -> None:
    """a has twice b's weight and got twice its service: no gap between them but the first token's, and an index of 1."""
    rows = [make_request(i, 3 * S) for i in range(3)]
    spec = make_spec(workload=make_workload(tenants={"a": {"weight": 2.0}, "b": {"weight": 1.0}}))
    record = make_record(rows, spec=spec, plan={0: {"client": "a"}, 1: {"client": "a"}, 2: {"client": "b"}})
    assert fair(record).service.tolist() == [52, 26]
    assert value(record, "jain_service") == 1.0
    assert value(record, "service_gap") == 0.0
    assert "per weight" in " ".join(cell(record).notes)


def test_droughts_run_from_arrival_between_tokens_and_to_the_end() -> None:
    tokens = {"event_ns": [4 * S, 9 * S], "event_tokens": [1, 1], "event_bytes": [9, 9], "event_kind": [1, 1], "client_tokens": 2}
    record = two(end_kind="drain_end", end_ns=14 * S, **tokens)
    assert fair(record).drought_ns.tolist() == [50 * MS, 5 * S]
    early = two(end_kind="drain_end", end_ns=14 * S, **(tokens | {"event_ns": [4 * S, 5 * S]}))
    assert fair(early).drought_ns.tolist()[1] == 7 * S - 1  # stamps of the window end one ns before it
    short = fair(two(DEFAULT.model_copy(update={"horizon_ns": 5 * S}), end_kind="drain_end", end_ns=14 * S, **tokens))
    assert short.starved.tolist() == [False, True]


def test_waiting_ends_with_the_first_token_and_unfinished_with_the_end() -> None:
    assert fair(two()).contended == pytest.approx((0.13 + 1e-6) / 10)
    assert fair(two(DEFAULT.model_copy(update={"eligible": "waiting"}))).contended == pytest.approx(0.05 / 10)


def test_clients_that_never_meet_have_no_gap_and_do_not_contend() -> None:
    rows = [make_request(0, 3 * S), make_request(1, 6 * S)]
    figures = measure_run(make_record(rows, plan={0: {"client": "a"}, 1: {"client": "b"}})).figures
    assert figures["service_gap"].status == "undefined"
    assert "eligible at the same time" in figures["service_gap"].reason
    assert figures["contended_share"].value == 0


# Who is compared


def test_without_clients_nothing_is_measured_unless_it_was_declared() -> None:
    assert measure_run(make_record()).fairness is None
    assert "jain_service" not in measure_run(make_record()).figures
    declared = measure_run(make_record(spec=make_spec(fairness=DEFAULT)))
    for metric in ("jain_service", "jain_attainment", "service_gap", "windowed_gap_mean", "attainment_least", "contended_share"):
        assert declared.figures[metric].status == "undefined", metric
        assert "nobody to compare" in declared.figures[metric].reason
    assert cell(make_record(spec=make_spec(fairness=DEFAULT))).notes == ("140 scheduled requests bear no client and are no one's.",)


def test_one_client_is_compared_with_nobody() -> None:
    figures = measure_run(make_record(plan={i: {"client": "a"} for i in range(140)})).figures
    assert figures["jain_service"].reason == "1 client sent anything in the measured window: there is nobody to compare"


@pytest.mark.parametrize(("identity", "names"), [("client", ("a", "b")), ("request_class", ("x", "y")), ("priority", ("-1", "2", "10"))])
def test_the_identity_is_the_declared_column(identity: Any, names: tuple[str, ...]) -> None:
    plan = {i: {"client": "ab"[i % 2], "request_class": "xy"[i % 2], "priority": (2, 10, -1)[i % 3]} for i in range(6)}
    rows = [make_request(i, 3 * S + i) for i in range(6)]
    found = fair(make_record(rows, spec=make_spec(fairness=DEFAULT.model_copy(update={"identity": identity})), plan=plan))
    assert found.who.names == names
    assert found.offered.sum() == 6


def test_thousands_of_clients_are_folded_and_paired_by_what_they_asked_for() -> None:
    n = PAIRED + 20
    rows = [make_request(i, 3 * S + i, tokens=5 + (i < n)) for i in range(2 * n)]
    truth = pa.Table.from_pylist([{"request_id": i, "output_tokens": 5 + (i < n), "stop_after": None} for i in range(2 * n)])
    plan = {i: {"client": f"c{i % n:03}"} for i in range(2 * n)}
    record = make_record(rows, plan=plan, truth=truth)
    found = cell(record)
    assert len(found.shares) == MOST + 1
    assert (found.shares[-1].name, found.shares[-1].members) == ("others", n - MOST)
    assert sum(s.outcomes.offered for s in found.shares) == 2 * n
    assert sum(s.share or 0 for s in found.shares) == pytest.approx(1)
    assert f"between the {PAIRED} of {n}" in " ".join(found.notes)
    assert f"the {PAIRED} that asked for most" in measure_run(record).figures["service_gap"].population


def test_a_cell_adds_up_its_replicates_and_names_the_replicate_of_its_gap() -> None:
    second = played(FIFO)
    second = replace(second, spec=second.spec.model_copy(update={"replicate": 1}))
    found = cell(played(LEAST), second)
    assert found.gap.endswith("of replicate 1")
    shares = {s.name: s for s in found.shares}
    assert (shares["A"].service, shares["A"].share) == (16, pytest.approx(2 / 3))
    assert shares["B"].outcomes.offered == 8
    assert shares["B"].outcomes.counts[Outcome.VALID] == 8
    assert shares["A"].eligible_s == pytest.approx((12 + 8) / 2)  # to its last answer, after 12 s and after 8
    assert shares["B"].drought_s == pytest.approx(9)  # FIFO: nothing of B until its first answer after 9 s


def test_the_five_declarations_stand_first_and_defaults_say_that_they_are() -> None:
    found = cell(make_record(plan={i: {"client": "ab"[i % 2]} for i in range(140)}))
    assert found.by_default
    assert [what for what, _ in found.declarations[:5]] == [
        "identity", "eligibility interval", "service cost", "publication event", "guarantee",
    ]  # fmt: skip
    assert not cell(played(FIFO)).by_default


# What must not change a number


def renamed(record: RunRecord, names: dict[str, str]) -> RunRecord:
    column = [names.get(c) if c is not None else None for c in record.schedule["client"].to_pylist()]
    at = record.schedule.schema.get_field_index("client")
    return replace(record, schedule=record.schedule.set_column(at, record.schedule.schema.field(at), pa.array(column, pa.string())))


SCALARS = (
    "jain_service", "jain_attainment", "attainment_least", "service_gap", "windowed_gap_mean", "windowed_gap_max", "windowed_gap_variance",
    "service_spread", "contended_share",
)  # fmt: skip


def scalars(record: RunRecord) -> dict[str, Any]:
    found = measure_run(record)
    return {m: (found.figures[m].status, found.figures[m].value, found.figures[m].n) for m in SCALARS}


@settings(max_examples=40)
@given(mixtures, st.permutations(["x", "a", "zz"]), st.data())
def test_names_of_clients_and_the_order_of_rows_change_no_number(
    mixture: list[dict[str, Any]], names: list[str], data: st.DataObject
) -> None:
    record = record_of(mixture, fairness=DEFAULT)
    rows = (
        record.requests.take(data.draw(st.permutations(range(record.requests.num_rows)))) if record.requests.num_rows else record.requests
    )
    mixed = renamed(replace(record, requests=rows), dict(zip(["a", "b", "<c>"], names, strict=True)))
    one, two_ = scalars(record), scalars(mixed)
    assert {m: v[::2] for m, v in one.items()} == {m: v[::2] for m, v in two_.items()}
    assert [v[1] for v in one.values() if v[1] is not None] == pytest.approx([v[1] for v in two_.values() if v[1] is not None])


@settings(max_examples=60)
@given(
    mixtures,
    st.sampled_from(["tokens", "requests"]),
    st.sampled_from(["unfinished", "waiting"]),
    st.sampled_from(["client", "request_class"]),
)
def test_bounds_that_every_record_keeps(mixture: list[dict[str, Any]], publication: Any, eligible: Any, identity: Any) -> None:
    declared = DEFAULT.model_copy(update={"publication": publication, "eligible": eligible, "identity": identity})
    record = record_of(mixture, fairness=declared)
    found, figures = fair(record), measure_run(record).figures
    n = figures["jain_service"].n
    if figures["jain_service"].value is not None:
        assert 1 / n - 1e-9 <= figures["jain_service"].value <= 1 + 1e-9
    for metric in ("service_gap", "windowed_gap_mean", "windowed_gap_max", "windowed_gap_variance", "service_spread"):
        assert figures[metric].value is None or figures[metric].value >= 0
        assert (figures[metric].value is None) == (figures[metric].status != "ok")
    assert 0 <= found.contended <= 1
    assert (found.drought_ns <= W).all()
    assert (found.valid <= found.offered).all()
    if figures["service_gap"].value is not None:
        assert figures["service_gap"].value <= found.service.max() + 1e-9
    assert found.inversions.static is None  # no priorities in these


@pytest.mark.parametrize(("earlier", "starved"), [(1, True), (0, True), (-1, False)])
def test_who_waits_from_the_first_instant_of_the_window_waits_throughout_it(earlier: int, starved: bool) -> None:
    """Evenly spaced loads do send at that very instant; a nanosecond later it is no longer the whole window."""
    never = make_request(
        0, 2 * S - earlier, tokens=0, end_kind="drain_end", end_ns=18 * S, event_ns=[], event_tokens=[], event_bytes=[], event_kind=[]
    )
    others = [make_request(i, 2 * S + i * S // 2, tokens=1, ttft_ns=S // 4) for i in range(1, 20)]
    made = make_spec(window=Window(warm_up_ns=2 * S, measured_ns=14 * S, drain_ns=2 * S), slo=Slo())
    found = fair(make_record([never, *others], spec=made, plan={i: {"client": "a" if i else "b"} for i in range(20)}))
    assert dict(zip(found.who.names, found.starved.tolist(), strict=True)) == {"a": False, "b": starved}
