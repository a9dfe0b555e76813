from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.groups import MOST, group_cell
from analysis.model import Group, Outcome
from analysis.outcomes import sum_outcomes
from analysis.proof import add_reuse, add_tallies, add_tokens
from analysis.run import measure_run
from harness.record.reader import RunRecord
from harness.record.spec import Slo
from tests.builders import MS, S, make_never_due, make_record, make_request, make_spec
from tests.mixtures import mixtures, record_of


def split(by: Any, *records: RunRecord) -> dict[str | None, Group]:
    return {g.name: g for g in group_cell([(r, measure_run(r)) for r in records], by)}


def two_clients(n: int = 120, **b: Any) -> RunRecord:
    """n requests a client in the window; ``b`` changes those of client b."""
    rows = [make_request(i, 3 * S + i * MS) for i in range(n)] + [make_request(n + i, 4 * S + i * MS, **b) for i in range(n)]
    plan = {i: {"client": "a" if i < n else "b", "request_class": "chat" if i % 2 else None} for i in range(2 * n)}
    return make_record(rows, plan=plan)


def test_each_client_has_its_own_outcomes_attainment_and_percentiles() -> None:
    found = split("client", two_clients(ttft_ns=600 * MS))
    assert list(found) == ["a", "b"]
    a, b = found["a"], found["b"]
    assert (a.outcomes.counts[Outcome.VALID], b.outcomes.counts[Outcome.MISS]) == (120, 120)
    assert (a.figures["attainment"].value, b.figures["attainment"].value) == (1.0, 0.0)
    assert (a.figures["goodput"].value, a.figures["goodput"].n) == (12.0, 120)
    assert (a.figures["ttft_p99"].value, b.figures["ttft_p50"].value) == (0.05, 0.6)
    assert a.slo == "TTFT <= 500 ms and TBT (every) <= 100 ms"


def test_a_percentile_below_its_floor_is_withheld_for_a_client_too() -> None:
    found = split("client", two_clients(99))["a"].figures
    assert (found["ttft_p99"].status, found["ttft_p99"].value) == ("withheld", None)
    assert found["ttft_p50"].status == "ok"
    pooled = split("client", two_clients(99), two_clients(99))["a"].figures  # two replicates have the requests together
    assert (pooled["ttft_p99"].value, pooled["ttft_p99"].n) == (0.05, 198)
    assert pooled["goodput"].value == pytest.approx(9.9)


def test_a_class_is_shown_with_the_slo_it_was_held_to() -> None:
    record = two_clients()
    strict = make_record(
        record.requests.to_pylist(), plan={i: {"request_class": "chat" if i % 2 else None} for i in range(240)},
        spec=make_spec(slo_classes={"chat": Slo(ttft_ns=MS)}),
    )  # fmt: skip
    found = split("request_class", strict)
    assert (found["chat"].slo, found["chat"].figures["attainment"].value) == ("TTFT <= 1 ms", 0.0)
    assert (found[None].slo, found[None].figures["attainment"].value) == ("TTFT <= 500 ms and TBT (every) <= 100 ms", 1.0)


def test_a_class_without_a_letter_is_not_taken_for_none() -> None:
    plan = {0: {"request_class": ""}, 1: {"request_class": None}}
    rows = [make_request(i, 3 * S) for i in range(2)]
    found = split("request_class", make_record(rows, plan=plan, spec=make_spec(slo_classes={"": Slo(ttft_ns=MS)})))
    assert {name: (g.slo, g.outcomes.counts[Outcome.VALID]) for name, g in found.items()} == {
        "": ("TTFT <= 1 ms", 0),
        None: ("TTFT <= 500 ms and TBT (every) <= 100 ms", 1),
    }


def test_a_cell_without_names_has_no_groups() -> None:
    record = make_record()
    assert split("client", record) == {}
    assert split("request_class", record) == {}


def test_what_nobody_knows_of_one_client_does_not_darken_the_other() -> None:
    found = split("client", two_clients(end_kind="drain_end", ttft_ns=50 * MS))
    assert found["a"].figures["goodput"].status == "ok"
    assert (found["b"].figures["goodput"].status, found["b"].figures["goodput"].value) == ("unknown", None)
    assert "could still have become valid" in found["b"].figures["attainment"].reason


def test_a_client_with_nothing_offered_has_an_undefined_attainment_and_not_zero() -> None:
    rows = [make_request(0, 3 * S), make_request(1, 13 * S), make_never_due(2)]
    plan = {0: {"client": "a"}, 1: {"client": "b"}, 2: {"client": "b", "after": [0]}}
    found = split("client", make_record(rows, plan=plan))
    assert (found["b"].figures["attainment"].status, found["b"].outcomes.offered) == ("undefined", 0)
    assert found["b"].outcomes.not_due == {"never_due": 1}
    assert found["b"].tokens.input_planned.value == 32
    assert found["b"].tokens.input_sent.value == 16


def test_a_long_list_of_clients_is_folded_behind_the_largest_in_all_replicates_alike() -> None:
    def replicate(shift: int) -> RunRecord:
        clients = [f"c{(i + shift) % (MOST + 7):03}" for i in range(3 * (MOST + 7))] + ["c000"] * 9 + [None]
        rows = [make_request(i, 3 * S + i * MS) for i in range(len(clients))]
        return make_record(rows, plan={i: {"client": c} for i, c in enumerate(clients)})

    groups = group_cell([(r, measure_run(r)) for r in (replicate(0), replicate(5))], "client")
    assert len(groups) == MOST + 2
    assert (groups[0].name, groups[0].outcomes.offered) == ("c000", 24)
    assert [(g.name, g.members, g.outcomes.offered) for g in groups[-2:]] == [(None, 1, 2), ("others", 7, 42)]


def test_one_name_beyond_the_list_keeps_its_own_and_its_slo() -> None:
    rows = [make_request(i, 3 * S + i * MS) for i in range(MOST + 1)]
    plan = {i: {"request_class": f"c{i:03}"} for i in range(MOST + 1)}
    last = f"c{MOST:03}"
    groups = group_cell(
        [(r, measure_run(r)) for r in [make_record(rows, plan=plan, spec=make_spec(slo_classes={last: Slo(ttft_ns=MS)}))]], "request_class"
    )
    assert (len(groups), groups[-1].name, groups[-1].slo) == (MOST + 1, last, "TTFT <= 1 ms")


def test_a_withheld_percentile_still_says_by_which_rule_it_would_be_read() -> None:
    rows = [make_request(i, 2 * S + i * 50 * MS, end_ns=2 * S + i * 90 * MS + S) for i in range(200)]  # ends fall behind arrivals steadily
    found = split("client", make_record(rows, plan={i: {"client": "a"} for i in range(200)}))["a"].figures["ttft_p50"]
    assert (found.status, found.percentile_rule) == ("withheld", "nearest_rank")
    assert found.reason.startswith("overloaded")


@settings(deadline=None, max_examples=40)
@given(st.lists(mixtures, min_size=1, max_size=2), st.sampled_from(["client", "request_class"]))
def test_the_groups_add_up_to_the_cell(parts: list[list[dict[str, Any]]], by: Any) -> None:
    runs = [(r, measure_run(r)) for r in map(record_of, parts)]
    groups = group_cell(runs, by)
    if not groups:
        assert not any(one[by] for part in parts for one in part)
        return
    whole = sum_outcomes([m.outcomes for _, m in runs])
    assert sum_outcomes([g.outcomes for g in groups]) == whole
    assert all(g.outcomes.closes() for g in groups)
    told = add_tokens(m.sent.tokens for _, m in runs)
    assert add_tokens(g.tokens for g in groups).input_planned == told.input_planned
    possible = [g.reuse.possible["1"] for g in groups]
    assert add_tallies(possible) == add_reuse(m.sent.reuse for _, m in runs).possible["1"]
