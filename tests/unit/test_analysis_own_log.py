"""A log of one's own: measured by our rules, known to be imported, and in no ranking."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analysis.campaign import analyze, side_of
from analysis.compare import compare
from analysis.model import CampaignAnalysis, Outcome, Refusal, Verdict
from analysis.own_log import COLUMNS, REQUIRED, Origin, record_from_frame
from harness.errors import UsageError
from harness.record.coordinates import Unknown
from harness.record.reader import RunRecord
from harness.record.spec import Rank, Slo, Window
from tests.builders import S, make_coordinates, make_record

pd = pytest.importorskip("pandas")

WINDOW = Window(warm_up_ns=0, measured_ns=20 * S, drain_ns=5 * S)
SLO = Slo(ttft_ns=S)


def log(**columns: Any) -> Any:
    """Two hundred requests, ten a second, each half a second long; the last one never ends."""
    arrival = np.arange(200) / 10
    base = {"arrival_s": arrival, "end_kind": ["complete"] * 199 + ["drain_end"], "end_s": [*(arrival[:-1] + 0.5), math.nan]}
    return pd.DataFrame(base | columns)


def record(frame: Any, slo: Slo = SLO, **origin: Any) -> RunRecord:
    return record_from_frame(frame, origin=Origin("mine", **origin), window=WINDOW, slo=slo)


def measured(frame: Any, slo: Slo = SLO) -> CampaignAnalysis:
    return analyze([record(frame, slo)], incomplete=())


def test_first_tokens_give_ttft_and_leave_every_gap_unknown() -> None:
    figures = measured(log(first_token_s=np.arange(200) / 10 + 0.1)).cells[0].figures
    assert figures["ttft_p99"].value == pytest.approx(0.1)
    assert figures["e2e_p95"].value == pytest.approx(0.5)
    for metric in ("tbt_p50", "token_throughput", "shared_stamp_share"):
        assert (figures[metric].status, figures[metric].value) == ("unknown", None), metric
    for metric in ("tpot_p50", "event_gap_p50", "slip_p99", "ttft_send_p50"):
        assert figures[metric].value is None, metric


def test_token_stamps_give_gaps_counts_and_the_tbt_rule() -> None:
    stamps = [[i / 10 + t for t in (0.1, 0.2, 0.4)] for i in range(200)]
    found = measured(log(token_s=stamps, send_s=np.arange(200) / 10 + 0.01), Slo(tbt_ns=S // 10 + 1))
    assert found.cells[0].outcomes.counts[Outcome.MISS] == 199  # the gap of 0.2 s breaks the limit of 0.1 s
    figures = found.cells[0].figures
    assert figures["tpot_p50"].value == pytest.approx(0.15)
    assert figures["tbt_p95"].value == pytest.approx(0.2)
    assert figures["slip_p99"].value == pytest.approx(0.01)


def test_an_uncounted_event_leaves_counts_unknown() -> None:
    frame = log(token_s=[[i / 10 + 0.1, i / 10 + 0.2] for i in range(200)], event_tokens=[[1, None]] * 200)
    figures = measured(frame).cells[0].figures
    assert (figures["tbt_p50"].status, figures["event_gap_p50"].value) == ("unknown", pytest.approx(0.1))


def test_outcomes_follow_the_ends_of_the_log() -> None:
    ends = ["complete"] * 195 + ["http_error", "timeout", "cancelled", "reset", "drain_end"]
    status, first = [200.0] * 195 + [429.0] + [math.nan] * 4, [*(np.arange(195) / 10 + 0.1), *[math.nan] * 5]
    found = measured(log(end_kind=ends, http_status=status, first_token_s=first))
    counts = {o.value: n for o, n in found.cells[0].outcomes.counts.items() if n}
    assert counts == {"valid": 195, "rejected": 1, "failed": 2, "cancelled": 1, "open": 1}
    assert found.cells[0].outcomes.closes()


def test_it_says_everywhere_that_it_is_imported_and_ranks_beside_nothing() -> None:
    frame = log(first_token_s=np.arange(200) / 10 + 0.1)
    found = analyze([record(frame, cell=cell, replicate=r, server_start=r) for cell in "ab" for r in range(5)], incomplete=())
    assert isinstance(found.verdict, Refusal)
    assert [r.code for r in found.verdict.reasons] == ["rank_undeclared"]
    assert {c.evidence_class for c in found.cells} == {"imported"}
    (pair,) = found.comparisons
    unknown = {d.coordinate for d in pair.differences if d.answer == "unknown"}
    assert not pair.comparable
    assert {"model.id", "hardware.gpu", "workload.trace", "client.host"} <= unknown


def test_beside_a_measured_run_even_every_factor_does_not_make_it_comparable() -> None:
    mine, theirs = measured(log()).cells[0], make_record()
    own = side_of(mine, record(log()).spec, "goodput", "mine")
    other = side_of(analyze([theirs], incomplete=()).cells[0], theirs.spec, "goodput", "theirs")
    found = compare(own, other, factors=frozenset(make_coordinates()))
    assert not found.comparable
    assert {d.coordinate: d.answer for d in found.differences}["evidence.class"] == "different"


def test_no_gate_passes_on_what_a_log_cannot_say() -> None:
    cell = measured(log(first_token_s=np.arange(200) / 10 + 0.1)).cells[0]
    answers = {c.code: c.verdict for c in (*cell.checks, *cell.runs[0].checks)}
    asked = ("pins_match", "flags_known", "delivered_load", "server_survived", "seal_intact", "counts_agree", "tokens_agree", "cache_state")
    asked += ("client_slip", "receive_lag", "client_headroom", "environment_stable")
    assert {code: answers[code] for code in asked if answers[code] is not Verdict.UNKNOWN} == {}


def test_coordinates_are_unknown_but_for_the_class() -> None:
    stated = record(log()).coordinates.coordinates
    assert [n for n, c in stated.items() if not isinstance(c, Unknown)] == ["evidence.class"]


def test_a_declared_metric_cannot_be_smuggled_in() -> None:
    spec = record(log()).spec
    assert spec.rank is None
    with pytest.raises(TypeError):
        record_from_frame(log(), origin=Origin("x"), window=WINDOW, slo=SLO, rank=Rank(metric="goodput", margin=0.1))  # type: ignore[call-arg]


def test_prompts_of_unknown_length_are_unknown_and_not_empty() -> None:
    found = measured(log(client=["a", "b"] * 100, first_token_s=[*(np.arange(199) / 10 + 0.1), math.nan])).cells[0]
    sent = found.runs[0].sent
    assert sent is not None
    assert (sent.tokens.input_planned.value, [g.tokens.input_planned.value for g in found.groups]) == (None, [None, None])
    assert [g.outcomes.offered for g in found.groups] == [100, 100]


def refused(frame: Any) -> str:
    with pytest.raises(UsageError) as caught:
        record(frame)
    return str(caught.value)


def test_every_column_problem_is_told_at_once() -> None:
    text = refused(pd.DataFrame({"start": [1.0], "output_tokens": [5], "end_s": [2.0]}))
    for words in ("column=arrival_s is not in the frame", "column=end_kind is not", "column=start has no meaning", "output_tokens cannot"):
        assert words in text


@pytest.mark.parametrize(
    ("column", "row", "value", "words"),
    [
        ("arrival_s", 3, -1.0, "a finite number of seconds"),
        ("arrival_s", 3, math.nan, "arrival_s=None"),
        ("end_s", 4, math.inf, "a finite number"),
        ("end_s", 4, 0.1, "end_s lies before arrival_s"),
        ("end_s", 4, math.nan, "end_s is missing of a request that completed"),
        ("end_kind", 5, "fine", "end_kind='fine'"),
        ("end_kind", 5, "never_due", "end_kind='never_due'"),
    ],
)
def test_wrong_values_are_named_with_their_row(column: str, row: int, value: Any, words: str) -> None:
    frame = log()
    frame.loc[row, column] = value
    text = refused(frame)
    assert f"row {row}: " in text
    assert words in text


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"request_id": [0, *range(199)]}, "request_id=0: a request has one row"),
        ({"token_s": [[0.2, 0.1]] * 200}, "ascending order"),
        ({"token_s": [[100.0]] * 200, "event_tokens": [[1, 1]] * 200}, "not as many counts"),
        ({"event_tokens": [[1]] * 200}, "token_s is not in the frame"),
        ({"token_s": [[100.0]] * 200, "first_token_s": [100.0] * 200}, "stands beside token_s"),
        ({"client": [3] * 200}, "text"),
        ({"input_tokens": [1.5] * 200}, "whole number"),
        ({"ttft_s": [0.1] * 200}, "has lost the instants"),
        ({"token_s": [[k / 10 - 0.05 * (k > 9)] for k in range(200)]}, "the first of token_s lies before arrival_s"),
        ({"token_s": [[k / 10 + 0.1, k / 10 + 0.6] for k in range(200)]}, "end_s lies before the last of token_s"),
        ({"send_s": [0.0] * 200}, "send_s lies before arrival_s"),
        ({"send_s": [k / 10 + 0.2 for k in range(200)], "first_token_s": [k / 10 + 0.1 for k in range(200)]}, "lies before send_s"),
    ],
)
def test_what_cannot_be_meant_is_refused(columns: dict[str, Any], words: str) -> None:
    assert words in refused(log(**columns))


def test_an_empty_frame_is_refused() -> None:
    assert "rows=0" in refused(log().iloc[:0])


def test_every_column_is_explained_and_the_required_ones_say_so() -> None:
    assert {name for name, words in COLUMNS.items() if words.endswith("(required)")} == set(REQUIRED)


@given(st.lists(st.tuples(st.floats(0, 19.9), st.floats(0.001, 5)), min_size=1, max_size=30))
def test_latencies_come_back_as_they_went_in(requests: list[tuple[float, float]]) -> None:
    arrival, life = (np.array(column) for column in zip(*requests, strict=True))
    frame = pd.DataFrame({"arrival_s": arrival, "end_kind": "complete", "end_s": arrival + life, "first_token_s": arrival + life / 2})
    found = measured(frame).cells[0].runs[0]
    assert found.outcomes.offered == len(requests)
    e2e = found.figures["e2e_p50"]
    if e2e.status == "ok":
        assert e2e.value == pytest.approx(sorted(life)[-(-len(life) // 2) - 1], abs=2e-9)


CELL = st.one_of(st.none(), st.booleans(), st.integers(-5, 10**12), st.floats(), st.text(max_size=5), st.lists(st.floats(), max_size=3))


LOGS = st.fixed_dictionaries(dict.fromkeys(REQUIRED, CELL), optional={n: CELL for n in COLUMNS if n not in REQUIRED})


@given(st.lists(LOGS, max_size=4))
@example([dict.fromkeys(REQUIRED) | {"token_s": 1, "event_tokens": []}])
def test_whatever_stands_in_a_cell_is_read_or_refused_with_a_reason(rows: list[dict[str, Any]]) -> None:
    try:
        made = record(pd.DataFrame(rows))
    except UsageError as error:
        told = str(error)
    else:
        told = f"{made.requests.num_rows} rows"
    assert told == f"{len(rows)} rows" or "->" in told
