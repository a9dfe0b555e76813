"""What users reported of other tools' clients, hangs and memory: where each thread is answered, and the tests that need no process.

Those that need a server are in ``tests/e2e/test_replay_complaints.py``. What is a matter of speed has a row in ``benchmarks.bounds``, which
holds it to a bound on a quiet host (for prompts of prefix blocks, ``benchmarks.prompts``): a test that timed it here would fail for its
neighbours' sake.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from harness.record.schema import EndKind
from harness.replay.agenda import Agenda
from harness.replay.rows import exchange_row
from harness.wire import PROTOCOLS
from tests.unit.test_replay_connection import CHUNKED, DONE, TOKEN, chunk, sent

ROOT = Path(__file__).parents[2]
MS, S = 10**6, 10**9

CLIENT_IS_THE_BOTTLENECK = {
    "vllm-project/vllm#39963": "test_vllm_39963_events_of_megabytes_are_read_as_they_come_and_reading_never_pauses",
    "llm-d/llm-d-benchmark#261": "test_llm_d_261_no_coroutine_stands_between_a_read_and_its_stamp",
    "kubernetes-sigs/inference-perf#188": "test_llm_d_261_no_coroutine_stands_between_a_read_and_its_stamp",
    "vllm-project/guidellm#470": "row_b",
    "vllm-project/guidellm#487": "test_guidellm_487_one_worker_holds_more_streams_than_a_hundred",
    "vllm-project/guidellm#488": "test_guidellm_487_one_worker_holds_more_streams_than_a_hundred",
    "vllm-project/guidellm#1041": "test_guidellm_1041_a_burst_leaves_before_its_first_answer_is_read",
    "ai-dynamo/aiperf#1424": "test_guidellm_1041_a_burst_leaves_before_its_first_answer_is_read",
    "vllm-project/vllm#21104": "test_vllm_21104_what_late_wake_ups_cost_is_never_added_up",
    "vllm-project/vllm#21108": "test_vllm_21104_what_late_wake_ups_cost_is_never_added_up",
    "vllm-project/vllm#45502": "row_a",
    "AISBench/benchmark#64": "row_f",
    "triton-inference-server/perf_analyzer#312": "row_a",
    "kubernetes-sigs/inference-perf#282": "test_inference_perf_282_connections_are_kept_and_not_made_for_each_request",
    "mlcommons/endpoints#76": "row_b",
    "pegainfer-project/pegainfer#548": "test_pegainfer_548_eight_users_come_to_their_end",
    "pegainfer-project/pegainfer#548, rejected": "test_pegainfer_548_a_refused_request_is_no_success_of_one_token",
    "pegainfer-project/pegainfer#548, 39 ms for 23": "row_a",
    "IBM/ado#1116": "row_b",
}
HANGS_AND_TIMEOUTS = {
    "kubernetes-sigs/inference-perf#435": "test_inference_perf_435_the_last_requests_end_with_the_run_whatever_the_server_does",
    "kubernetes-sigs/inference-perf#245": "test_inference_perf_245_nothing_is_sent_once_the_run_is_over",
    "vllm-project/vllm#51030": "test_vllm_51030_what_has_ended_is_on_disk_while_one_stream_is_stuck",
    "vllm-project/vllm#28038": "test_inference_perf_435_the_last_requests_end_with_the_run_whatever_the_server_does",
    "triton-inference-server/perf_analyzer#320": "test_perf_analyzer_320_a_server_that_breaks_under_many_streams_ends_each_of_them",
    "ray-project/llmperf#34": "test_pegainfer_548_eight_users_come_to_their_end",
    "ray-project/llmperf#43": "test_llmperf_43_one_user_that_waits_holds_up_no_other",
    "ray-project/llmperf#56": "test_llmperf_43_one_user_that_waits_holds_up_no_other",
    "ray-project/llmperf#59": "test_llmperf_43_one_user_that_waits_holds_up_no_other",
    "vllm-project/guidellm#431": "test_inference_perf_435_the_last_requests_end_with_the_run_whatever_the_server_does",
    "vllm-project/vllm-omni#7246": "test_vllm_omni_7246_every_request_is_accounted_for_when_it_is_over",
}
MEMORY = {
    "llm-d/llm-d-benchmark#1339": "test_llm_d_1339_nothing_is_held_of_a_request_that_has_ended",
    "triton-inference-server/perf_analyzer#84": "row_e",
    "ai-dynamo/aiperf#1407": "_blocks",
    "vllm-bench's README": "row_c",
}
ANSWERS = CLIENT_IS_THE_BOTTLENECK | HANGS_AND_TIMEOUTS | MEMORY


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_complaint_has_a_test_or_a_row_of_the_benchmarks_that_exists() -> None:
    known = functions("tests/unit/test_complaints_answered.py") | functions("tests/e2e/test_replay_complaints.py")
    known |= {name for name in functions("benchmarks/bounds.py") if name.startswith("row_")} | functions("benchmarks/prompts.py")
    assert {thread: place for thread, place in ANSWERS.items() if place not in known} == {}
    tests = {name for name in known if name.startswith("test_")}
    assert tests - set(ANSWERS.values()) == {"test_every_complaint_has_a_test_or_a_row_of_the_benchmarks_that_exists"}


def test_vllm_39963_events_of_megabytes_are_read_as_they_come_and_reading_never_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm-project/vllm#39963: at contexts of 50k tokens 486 tok/s became 44, because a buffer of 64 KiB filled and reading paused."""
    desk, wire, connection, exchange = sent()
    monkeypatch.setattr(type(wire), "pause_reading", lambda _: pytest.fail("reading paused"), raising=False)
    event = b'data: {"choices":[{"text":"a","token_ids":[7],"prompt_token_ids":[%b]}]}\n\n' % b",".join([b"12345"] * 200_000)
    body = CHUNKED + chunk(event) * 3 + chunk(DONE) + b"0\r\n\r\n"
    for at in range(0, len(body), 256 * 1024):  # what one read of a socket brings
        connection.data_received(body[at : at + 256 * 1024])
    assert desk.ends == [(EndKind.COMPLETE, "")]
    row = exchange_row(exchange.raw(0), PROTOCOLS["completions"])
    assert (row["client_tokens"], len(event) > 2**20, len(set(row["event_ns"]))) == (3, True, 3)


@pytest.mark.parametrize("late_ns", [0, 400_000, 30 * MS])
def test_vllm_21104_what_late_wake_ups_cost_is_never_added_up(late_ns: int) -> None:
    """vllm-project/vllm#21104: 200 requests a second were asked for and 183.5 came: each sleep began when the last send was over."""
    arrivals = [k * 5 * MS for k in range(2000)]
    agenda, now, sends = Agenda(arrivals, 11 * S), 0, []
    while len(sends) < len(arrivals):
        now = max(now, agenda.next_ns() + late_ns)  # every wake-up comes late ...
        for arrival, _ in agenda.due(now):
            sends.append((arrival, now))
            now += MS // 10  # ... and every send takes time
    assert [arrival for arrival, _ in sends] == arrivals
    assert max(now - arrival for arrival, now in sends) <= late_ns + 8 * MS // 10 + 5 * MS  # of one wake-up, and not of 2,000
    assert sends[-1][1] - arrivals[-1] <= late_ns + 8 * MS // 10


REFUSALS = {
    "status": b"HTTP/1.1 429 No\r\ncontent-type: application/json\r\ncontent-length: 28\r\n\r\n" + b'{"error":{"message":"full"}}',
    "event": CHUNKED + chunk(b'data: {"error":{"message":"temperature","code":400}}\n\n') + chunk(DONE) + b"0\r\n\r\n",
    "abort": CHUNKED + chunk(b'data: {"choices":[{"text":"","finish_reason":"abort"}]}\n\n') + chunk(DONE) + b"0\r\n\r\n",
    "nothing": CHUNKED + chunk(DONE) + b"0\r\n\r\n",
}


@pytest.mark.parametrize("how", REFUSALS)
def test_pegainfer_548_a_refused_request_is_no_success_of_one_token(how: str) -> None:
    """pegainfer-project/pegainfer#548: the engine declined, and the client counted a success of one token."""
    _, _, connection, exchange = sent()
    connection.data_received(REFUSALS[how])
    row: dict[str, Any] = exchange_row(exchange.raw(0), PROTOCOLS["completions"])
    assert row["end_kind"] == {"status": "http_error", "nothing": "complete"}.get(how, "error_event")
    assert row["client_tokens"] in (None, 0)
    assert [tokens for tokens in row["event_tokens"] if tokens] == []
    assert TOKEN not in exchange.chunks
