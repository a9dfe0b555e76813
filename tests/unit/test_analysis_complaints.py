"""What users reported of other tools' metrics, and traps found in their code, one test each: ours does not do it, seen in what is reported.

What concerns sending, sockets and traces is held elsewhere (``test_workloads_complaints``, ``test_workloads_complaints_load``).
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import analysis
from analysis.dialects import CLIENTS, GUIDELLM
from analysis.gates import RunContext, run_checks
from analysis.model import Figure, Outcome, Verdict
from analysis.run import RunMeasures, measure_run
from analysis.slos import describe_slo
from analysis.tails import linear, nearest_rank
from harness.record.reader import RunRecord
from harness.record.schema import EventKind
from harness.record.spec import Slo
from tests.builders import MS, S, make_record, make_request, make_spec, make_workload

NATURAL = make_workload(output_length="natural")
TOKEN, ROLE = int(EventKind.TOKEN), int(EventKind.ROLE)


def record_of(rows: Sequence[dict[str, Any]], **spec: Any) -> RunRecord:
    """A run whose answers may have any length."""
    return make_record(rows, spec=make_spec(**({"workload": NATURAL} | spec)))


def many(n: int = 100, **changes: Any) -> list[dict[str, Any]]:
    """Requests spread over the window, all alike."""
    return [make_request(i, 2 * S + i * 9_000 * MS // n, **changes) for i in range(n)]


def streamed(i: int, stamps: Sequence[int], carried: Sequence[int], **changes: Any) -> dict[str, Any]:
    """A request at 3 s with these token events, ns after its arrival, and the tokens each carried."""
    at, k, n = 3 * S + i, len(stamps), sum(carried)
    lists = {"event_ns": [at + t for t in stamps], "event_tokens": list(carried), "event_bytes": [9] * k, "event_kind": [TOKEN] * k}
    ends = {"end_ns": at + (stamps[-1] if k else 0), "client_tokens": n, "usage_completion_tokens": n}
    return make_request(i, at) | lists | ends | changes


def figures(rows: Sequence[dict[str, Any]], **spec: Any) -> dict[str, Figure]:
    return dict(measure_run(record_of(rows, **spec)).figures)


def said(measures: RunMeasures, tool: str, metric: str) -> float | None:
    return next(s.figure.value for s in measures.dialects if (s.tool, s.figure.metric) == (tool, metric))


def verdict(record: RunRecord, gate: str) -> Verdict:
    found = measure_run(record)
    context = RunContext(record, found.clocks, found.outcome, found.outcomes, found.figures)
    return next(c.verdict for c in run_checks(context) if c.code == gate)


def late(row: dict[str, Any], by: int) -> dict[str, Any]:
    """The same request, sent ``by`` ns after it was due, with all that follows."""
    stamps = {k: row[k] + by for k in ("send_ns", "headers_ns", "end_ns")}
    return row | stamps | {"event_ns": [t + by for t in row["event_ns"]]}


def test_vllm_54101_waiting_in_the_client_is_part_of_ttft_and_told_apart() -> None:
    """vllm-project/vllm#54101: latency leaves out the wait for the client's semaphore."""
    found = figures([late(row, 400 * MS) for row in many()])
    assert found["ttft_p50"].value == pytest.approx(0.45)
    assert found["ttft_send_p50"].value == pytest.approx(0.0499)
    assert found["slip_p50"].value == pytest.approx(0.4001)


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_vllm_6531_the_mean_of_a_requests_token_gaps_is_its_tpot(chunk: int) -> None:
    """vllm-project/vllm#6531: ITL smaller than TPOT, since one counts chunks and the other tokens."""
    rows = [streamed(i, [k * chunk * 20 * MS for k in range(1, 9)], [chunk] * 8) for i in range(2)]
    measures = measure_run(record_of(rows))
    gaps, tpot = measures.clocks.gap_ns, measures.figures["tpot_p50"].value
    assert gaps.mean() / S == tpot
    assert len(gaps) == 2 * (8 * chunk - 1)


def test_vllm_6064_and_4252_a_role_chunk_is_no_first_token() -> None:
    """vllm-project/vllm#6064, #4252: TTFT of a few ms, taken from a chunk that carries no token."""
    row = streamed(0, [1 * MS, 300 * MS, 320 * MS], [0, 1, 1])
    rows = [row | {"event_kind": [ROLE, TOKEN, TOKEN], "request_id": i, "arrival_ns": 3 * S} for i in range(2)]
    assert figures(rows)["ttft_p50"].value == pytest.approx(0.3)


def test_vllm_13412_ttft_does_not_fall_when_longer_answers_keep_the_client_busy() -> None:
    """vllm-project/vllm#13412: under a concurrency cap TTFT falls with longer outputs, for it starts at a later and later send."""

    def one_at_a_time(tokens: int) -> dict[str, Figure]:
        free, rows = 0, []
        for i in range(20):
            row = make_request(i, 2 * S + i * 50 * MS, tokens=tokens)
            row = late(row, max(0, free - row["send_ns"]))
            free = row["end_ns"]
            rows.append(row)
        # The queue in the client grows; under overload percentiles are withheld, so the raw values are looked at.
        return {"ttft": measure_run(record_of(rows)).samples["ttft"]}  # type: ignore[dict-item]

    short, long = (one_at_a_time(n)["ttft"].at(np.array([10]))[0] for n in (5, 50))  # type: ignore[attr-defined]
    assert long > 4 * short


def test_sglang_10746_tpot_of_an_answer_that_stops_early_is_over_the_tokens_that_came() -> None:
    """sgl-project/sglang#10746: TPOT divided by the length asked for."""
    rows = [streamed(i, [100 * MS, 120 * MS, 140 * MS], [1, 1, 1]) for i in range(2)]  # 5 were asked for
    assert figures(rows)["tpot_p50"].value == pytest.approx(0.02)


def test_sglang_36272_a_buffered_tool_call_shows_as_a_long_gap_and_as_shared_stamps() -> None:
    """sgl-project/sglang#36272: buffering hides gaps, and the numbers look smooth."""
    rows = [streamed(i, [100 * MS, 120 * MS, 900 * MS], [1, 1, 40]) for i in range(20)]
    found = figures(rows, slo=Slo(tbt_ns=100 * MS, tbt_rule="every"))
    assert found["shared_stamp_share"].value == pytest.approx(40 / 42)
    assert found["attainment"].value == 0.0
    assert found["event_gap_p50"].value == pytest.approx(0.02)


def test_sglang_4973_and_12976_tpot_is_always_reported() -> None:
    """sgl-project/sglang PR#4973, #12976: TPOT removed, then restored."""
    assert {"tpot_p50", "tpot_p95", "tpot_p99", "tbt_p50", "event_gap_p50"} <= figures(many()).keys()


def test_guidellm_1144_our_tpot_is_that_of_most_clients_and_the_other_one_is_named() -> None:
    """vllm-project/guidellm#1144: its TPOT, with TTFT inside, agrees with no other tool."""
    measures = measure_run(record_of(many()))
    assert said(measures, CLIENTS, "tpot_mean") == pytest.approx(measures.figures["tpot_p50"].value)
    assert said(measures, GUIDELLM, "tpot_mean") == pytest.approx((0.0499 + 4 * 0.02) / 5)


def test_guidellm_1145_a_stall_in_one_of_many_gaps_is_seen() -> None:
    """vllm-project/guidellm#1145: ITL is a mean per request, so a stall vanishes in it."""
    stamps = [100 * MS + k * 10 * MS + (k >= 30) * 800 * MS for k in range(60)]
    found = figures([streamed(i, stamps, [1] * 60) for i in range(100)])
    assert found["tpot_p99"].value == pytest.approx(0.0236, abs=1e-4)
    assert found["tbt_p99"].value == pytest.approx(0.81)


def test_guidellm_1048_and_1053_a_client_that_falls_behind_leaves_nothing_out() -> None:
    """vllm-project/guidellm#1048, #1053: coordinated omission."""
    rows = many()
    stalled = [late(row, 1000 * MS) if 40 <= i < 50 else row for i, row in enumerate(rows)]
    assert figures(stalled)["ttft_p95"].value == pytest.approx(1.05)
    assert verdict(record_of(stalled), "client_slip") is Verdict.FAIL


def test_guidellm_444_failed_requests_touch_no_percentile_over_completions_and_stay_in_the_denominator() -> None:
    """vllm-project/guidellm#444: failed requests pollute the statistics."""
    rows = many()
    broken = [row | {"end_kind": "reset", "event_ns": [row["arrival_ns"]] * 7} if i % 2 else row for i, row in enumerate(rows)]
    found = figures(broken)
    assert found["ttft_p50"].value == figures(rows)["ttft_p50"].value
    assert (found["ttft_p50"].n, found["attainment"].value, found["attainment"].n) == (50, 0.5, 100)


def test_guidellm_1078_what_arrives_in_the_warm_up_is_no_part_of_the_cohort_wherever_it_ends() -> None:
    """vllm-project/guidellm#1078: warm-up overlaps the measurement."""
    rows = [make_request(i, 2 * S - 1 - i, ttft_ns=5 * S) for i in range(50)]
    measures = measure_run(record_of([*rows, *(make_request(50 + i, 3 * S + i) for i in range(2))]))
    assert measures.outcomes.offered == measures.figures["ttft_p50"].n == 2
    assert measures.figures["ttft_p50"].value == pytest.approx(0.05)


def test_guidellm_92_tokens_of_cancelled_requests_count_in_throughput() -> None:
    """vllm-project/guidellm#92: cancelled requests lower the throughput that is reported."""
    rows = many()
    cut = [row | {"end_kind": "cancelled"} if i % 2 else row for i, row in enumerate(rows)]
    assert figures(cut)["token_throughput"].value == figures(rows)["token_throughput"].value == 50.0
    assert measure_run(record_of(cut)).outcomes.counts[Outcome.CANCELLED] == 50


def test_inference_perf_564_a_count_inflated_by_the_client_is_no_measurement() -> None:
    """kubernetes-sigs/inference-perf#564: a BOS per chunk inflates tokens and deflates ITL."""
    record = record_of(many(client_tokens=10))
    assert verdict(record, "tokens_agree") is Verdict.FAIL
    assert verdict(record_of(many()), "tokens_agree") is Verdict.PASS


def test_aiperf_688_and_825_failures_are_infinite_in_the_offered_view_and_nothing_is_nan() -> None:
    """ai-dynamo/aiperf#688, #825: errors left out of percentiles, or NaN from interpolating to infinity."""
    rows = [row | {"end_kind": "reset"} if i >= 98 else row for i, row in enumerate(many())]
    found = figures(rows)
    assert found["ttft_p99"].status == "withheld"
    assert found["ttft_p99_offered"].value == math.inf
    assert found["ttft_p95_offered"].value == pytest.approx(0.05)
    assert not any(f.value is not None and math.isnan(f.value) for f in found.values())
    assert linear(np.array([1.0, math.inf, math.inf]), 0.75) == math.inf


def test_aiperf_1424_no_figure_is_taken_from_the_response_head() -> None:
    """ai-dynamo/aiperf#1424: an effective prefill that is the client's time to first byte."""
    assert figures(many()) == figures(many(headers_ns=2 * S))


def test_llmperf_99_tpot_does_not_depend_on_how_many_tokens_a_step_yields() -> None:
    """ray-project/llmperf#99: ITL of speculative decoding counts steps as tokens."""
    plain = figures([streamed(i, [100 * MS + k * 5 * MS for k in range(13)], [1] * 13) for i in range(2)])
    drafted = figures([streamed(i, [100 * MS, 120 * MS, 140 * MS, 160 * MS], [1, 4, 4, 4]) for i in range(2)])
    assert plain["tpot_p50"].value == drafted["tpot_p50"].value == pytest.approx(0.005)
    assert (drafted["tbt_p50"].value, drafted["event_gap_p50"].value) == (0.0, pytest.approx(0.02))
    assert drafted["shared_stamp_share"].value == pytest.approx(12 / 13)


def test_evalscope_1694_an_answer_without_a_token_adds_no_ttft_of_zero() -> None:
    """modelscope/evalscope#1694: TTFT percentiles of 0."""
    silent = [streamed(i, [], []) for i in range(60)]
    found = figures([*silent, *(make_request(60 + i, 4 * S + i) for i in range(40))])
    assert (found["ttft_p50"].value, found["ttft_p50"].n) == (pytest.approx(0.05), 40)


def test_flexible_inference_bench_66_text_is_never_tokenised_again_for_a_count() -> None:
    """CentML/flexible-inference-bench#66: TPOT from re-tokenised text."""
    uncounted = {"client_tokens": None, "usage_completion_tokens": None, "event_tokens": [-1] * 5 + [0, 0]}
    found = figures(many(**uncounted))
    assert (found["tpot_p50"].n, found["tpot_p50"].value) == (0, None)
    assert (found["tbt_p50"].status, found["token_throughput"].status) == ("unknown", "unknown")


def test_genai_bench_100_token_throughput_is_stamped_tokens_over_the_window() -> None:
    """sgl-project/genai-bench#100: 4,008,080 tokens a second, and fewer requests sent than asked for."""
    rows = [streamed(i, [50 * MS, 50 * MS + 1], [1, 999]) for i in range(100)]
    assert figures(rows)["token_throughput"].value == 100 * 1000 / 10
    whole = record_of(many())
    unsent = record_of([row | {"end_kind": "never_sent", "send_ns": None} if i > 90 else row for i, row in enumerate(many())])
    assert verdict(unsent, "delivered_load") is Verdict.FAIL
    assert verdict(whole, "delivered_load") is Verdict.PASS


def test_mlcommons_inference_1593_every_limit_of_an_slo_is_written_out() -> None:
    """mlcommons/inference#1593: nobody knows which latency a target is about."""
    text = describe_slo(Slo(ttft_ns=S, tbt_ns=100 * MS, tbt_rule="top10", e2e_ns=9 * S))
    assert text == "TTFT <= 1000 ms and TBT (top10) <= 100 ms and E2E <= 9000 ms"


def test_trap_nearest_rank_is_no_nearest_index() -> None:
    """``np.percentile(method="nearest")`` takes the nearest index of (n - 1) q."""
    values = np.arange(1.0, 21.0)
    assert nearest_rank(values, 0.93) == 19.0  # ceil(18.6)
    assert np.percentile(values, 93, method="nearest") == 19.0
    assert nearest_rank(values, 0.51) == 11.0  # ceil(10.2)
    assert np.percentile(values, 51, method="nearest") == 11.0
    assert (nearest_rank(values, 0.05), float(np.percentile(values, 5, method="nearest"))) == (1.0, 2.0)


def test_trap_analysis_draws_no_number_that_another_process_would_draw_otherwise() -> None:
    """``hash()`` of a string as a seed, an unseeded generator."""
    for path in Path(str(analysis.__file__)).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                assert name != "hash", path
                assert name != "default_rng" or node.args or node.keywords, path


def test_trap_a_one_token_answer_has_no_tpot_and_is_judged_by_its_ttft() -> None:
    """A one-token reply is scored TPOT 0, so "good" however late."""
    slow = [streamed(i, [900 * MS], [1]) for i in range(50)]
    quick = [streamed(50 + i, [90 * MS], [1]) for i in range(50)]
    found = figures([*slow, *quick], slo=Slo(ttft_ns=500 * MS, tbt_ns=10 * MS, tbt_rule="mean"))
    assert (found["tpot_p50"].n, found["tpot_p50"].value) == (0, None)
    assert found["attainment"].value == 0.5


def test_trap_a_stream_of_no_tokens_is_no_success() -> None:
    """A 200 with an empty stream is scored as a success."""
    found = measure_run(record_of([streamed(i, [], []) for i in range(10)], slo=Slo(ttft_ns=S)))
    assert found.outcomes.counts[Outcome.VALID] == 0
    assert found.figures["attainment"].value == 0.0


def test_trap_missing_usage_is_never_the_length_that_was_asked_for() -> None:
    """Missing usage falls back to the requested output length."""
    uncounted = many(client_tokens=None, usage_completion_tokens=None)
    assert measure_run(record_of(uncounted)).clocks.tokens.tolist() == [-1] * 100
    assert measure_run(make_record(uncounted)).outcomes.counts[Outcome.FAILED] == 100  # a promised length that nobody counted
    assert verdict(record_of(uncounted), "tokens_agree") is Verdict.UNKNOWN


def test_trap_a_timeout_that_sheds_load_makes_no_system_look_fast() -> None:
    """vllm-project/vllm PR#28493: requests that time out leave the statistics, and the slow system looks fast."""
    slow = [row | ({"end_kind": "timeout"} if i % 2 else {}) for i, row in enumerate(many())]
    found, whole = figures(slow), figures(many())
    assert found["ttft_p50"].value == whole["ttft_p50"].value  # over completions, as it says
    assert (found["attainment"].value, found["goodput"].value) == (0.5, 5.0)
    assert found["ttft_p95_offered"].value == math.inf
    assert found["attainment"].denominator == "offered requests, N_off = 100"


def test_trap_a_constant_lateness_is_seen() -> None:
    """Lag measured from the least late request hides a lateness that all share."""
    record = record_of([late(row, 70 * MS) for row in many()])
    assert measure_run(record).figures["slip_p50"].value == pytest.approx(0.0701)
    assert verdict(record, "client_slip") is Verdict.FAIL
