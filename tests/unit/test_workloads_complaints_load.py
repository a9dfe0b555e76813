"""What users reported of other tools' trace replays, one test a thread: what is sent and when, seen from where a user stands.

Complaints about reading files are in ``test_workloads_complaints``.
"""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from harness.campaign.bodies import encode_bodies
from harness.cli.app import main
from harness.manifest import expand, parse_manifest
from harness.replay.agenda import Agenda
from harness.replay.shares import deal
from tests.complaints import CHATS, MS, SHARED, TABLE, S, build, facts, here, inspect, mooncake, prompt, refused, warned, write
from tests.tracefiles import jsonl, read
from tests.unit.test_campaign_bodies import TARGET
from tests.unit.test_campaign_bodies import run as quickstart
from tests.unit.test_manifest_load import changed, fault
from workloads import read_trace, reusable_tokens
from workloads.plan import WindowTransform
from workloads.transforms import apply

ROOT = Path(__file__).parents[2]
PARTLY: dict[str, Any] = {"loop": "partly_open", "horizon_s": 1900, "prompts": {}}


def test_bailian_4_a_prompt_is_one_fixed_list_of_tokens_for_each_id_joined(tmp_path: Path) -> None:
    """alibaba-edu/qwen-bailian-usagetraces-anon#4: users cannot tell how to turn hash_ids into prompts."""
    chat = {"parent_chat_id": -1, "type": "text", "turn": 1, "output_length": 1}
    rows = [([5, 6], 32), ([6, 5], 32), ([5], 16), ([5, 6, 9], 40)]
    raw = jsonl(chat | {"chat_id": k, "timestamp": 0.1 * k, "input_length": n, "hash_ids": ids} for k, (ids, n) in enumerate(rows))
    schedule = build(write(tmp_path, "b.jsonl", raw), "qwen-bailian")
    five, six = prompt(schedule, 0)[:16], prompt(schedule, 0)[16:]
    assert five != six
    assert prompt(schedule, 1) == six + five
    assert prompt(schedule, 2) == five
    assert prompt(schedule, 3)[:32] == five + six
    assert prompt(build(tmp_path / "b.jsonl", "qwen-bailian"), 1) == six + five


def keys_of(value: Any) -> set[str]:
    """Names of everything in a document that has a value."""
    if isinstance(value, dict):
        return {key for key, entry in value.items() if entry is not None}.union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_vllm_55937_a_rate_beside_a_traces_own_times_is_refused() -> None:
    """vllm-project/vllm#55937: a rate and a burstiness that were never used are reported."""
    rate = (("{time-compression: [1.0, 2.0]}", "{rate: [2/s]}"), ("at: 2.0", "at: 2/s"))
    assert "the trace's own arrival times have no rate to set" in fault(*rate).what
    assert "cv belongs to gamma and weibull" in fault(("  output-length", "  arrivals: {process: trace, cv: 2}\n  output-length")).what


def test_vllm_55937_what_is_recorded_of_a_trace_names_no_rate(tmp_path: Path) -> None:
    """vllm-project/vllm#55937: neither plan nor record nor report of a self-timed trace has a request rate that was asked for."""
    run = expand(parse_manifest(changed(), "m.yaml")).runs[0]
    spec = json.loads((ROOT / "results" / "example" / "seqs-8@x1.5" / "0" / "1" / "spec.json").read_text())
    assert run.workload.arrivals.model_dump() == spec["workload"]["arrivals"] == {"process": "trace"}
    assert run.load.kind == spec["load"]["kind"] == "time_compression"
    for part in (run.workload.model_dump(), {"workload": spec["workload"], "load": spec["load"]}):
        assert not keys_of(part) & {"rate", "request_rate", "cv", "burstiness"}
    report = CliRunner().invoke(main, ["report", str(ROOT / "results" / "example"), "--out", str(tmp_path)])
    pages = report.output + "".join(path.read_text() for path in tmp_path.rglob("*") if path.suffix in {".html", ".md", ".json"})
    assert "trace" in pages
    assert not [word for word in ("request_rate", "request rate:", "burstiness") if word in pages.lower()]


def conversation(*turns: str) -> dict[str, Any]:
    """A ShareGPT conversation of alternating turns."""
    return {"id": "c", "conversations": [{"from": ("human", "gpt")[k % 2], "value": text} for k, text in enumerate(turns)]}


def test_vllm_54783_every_turn_is_sent_whole_after_its_history(tmp_path: Path) -> None:
    """vllm-project/vllm#54783: only the first turn is read, long ones are pruned, and nothing is reused."""
    talk = conversation("a" * 1500, "b" * 900, "c" * 40, "d" * 8, "e" * 3000, "f")
    path = write(tmp_path, "s.json", json.dumps([talk]))
    trace = read_trace("sharegpt", path, {"tokenizer": "bytes"})
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([1500, 40, 3000], [900, 8, 1])
    assert trace.skipped == {}
    starts = {"arrivals": {"process": "constant", "rate": 1}, "sessions": {"think_s": 0}, "loop": "partly_open"}
    schedule = build(path, "sharegpt", {"tokenizer": "bytes"}, **starts)
    assert schedule.input_tokens.tolist() == [1500, 1500 + 900 + 40, 1500 + 900 + 40 + 8 + 3000]
    assert reusable_tokens(schedule).tolist() == [0, 1500, 2440]


@here
@pytest.mark.traces
def test_guidellm_620_wall_times_and_times_from_zero_mean_the_same_load() -> None:
    """vllm-project/guidellm#620: whether stamps are absolute or relative is unclear."""
    folder = SHARED / "azure-llm-2023"
    wall, zero = folder / "AzureLLMInferenceTrace_conv.csv", folder / "vidur_splitwise_conv.csv"
    assert (inspect(wall)["clock"], inspect(zero)["clock"]) == ("absolute", "relative")
    one, two = read_trace("azure-2023", wall), read_trace("vidur", zero)
    assert int(np.abs(one.arrival_ns - two.arrival_ns).max()) <= 1000
    assert build(wall, "azure-2023", prompts={}, horizon_s=60).arrival_ns[-1] < 60 * S


def test_guidellm_620_time_is_scaled_by_a_factor_of_its_own_name_and_a_window_bounds_the_rows() -> None:
    """vllm-project/guidellm#620: rate is a time scale, and max_requests does not limit what is loaded."""
    fast = next(run for run in expand(parse_manifest(changed(), "m.yaml")).runs if run.load.value == 2)
    window, *_, scale = fast.workload.chain
    assert scale.model_dump() == {"transform": "time_compress", "factor": 2.0}
    trace = read("csv", b"at,in,out\n" + b"".join(b"%d,1,1\n" % t for t in range(1600)), **TABLE)
    done = apply([window, scale], trace, 1)
    assert isinstance(window, WindowTransform)
    assert len(done.trace) == window.stop_s - window.start_s == 160
    assert done.trace.arrival_ns[:3].tolist() == [0, S // 2, S]
    assert (done.log[0]["rows_before"], done.log[0]["rows_after"]) == (1600, 160)


@here
@pytest.mark.traces
def test_aiperf_273_a_mooncake_file_is_replayed_whole_in_order_on_its_own_times() -> None:
    """ai-dynamo/aiperf#273: without a flag, ten requests sampled at random are run."""
    path = SHARED / "mooncake" / "conversation_trace.jsonl.gz"
    known = facts("mooncake_conversation")
    schedule = build(path, "mooncake", horizon_s=known["arrivals"]["span_s"] + 0.001)
    assert len(schedule) == known["rows"] == 12031
    assert schedule.source_row.tolist() == list(range(12031))
    with gzip.open(path) as lines:
        rows = [json.loads(line) for line in lines]
    assert schedule.arrival_ns.tolist() == [row["timestamp"] * MS for row in rows]
    assert schedule.input_tokens.tolist() == [row["input_length"] for row in rows]


def test_aiperf_273_a_manifest_that_says_nothing_of_arrivals_replays_the_traces_own() -> None:
    """ai-dynamo/aiperf#273: the schedule of the trace must be asked for."""
    assert "arrivals" not in changed()
    assert {run.workload.arrivals.process for run in expand(parse_manifest(changed(), "m.yaml")).runs} == {"trace"}


def test_aiperf_1219_a_block_partial_in_one_row_and_full_in_another_is_one_block(tmp_path: Path) -> None:
    """ai-dynamo/aiperf#1219: hash_id requested at N tokens but was already materialized at M tokens."""
    for order in ((0, 1), (1, 0)):
        rows = [(700, [9, 4]), (1536, [9, 4, 7])]
        raw = mooncake(*((k, *rows[row]) for k, row in enumerate(order)))
        schedule = build(write(tmp_path, f"m{order[0]}.jsonl", raw), "mooncake")
        assert [len(prompt(schedule, i)) for i in (0, 1)] == [rows[row][0] for row in order]
        assert reusable_tokens(schedule).tolist() == [0, 700]


LONG = b"at,in,out,chat,think\n0,10,5,a,\n1900,20,5,a,1800\n1960,30,5,a,30\n"
"""A user who went away for half an hour in the middle of a conversation."""


def test_aiperf_1262_a_pause_of_half_an_hour_is_told_capped_and_counted(tmp_path: Path) -> None:
    """ai-dynamo/aiperf#1262: recorded pauses of tens of minutes are replayed."""
    path = write(tmp_path, "c.csv", LONG)
    options = [f"--option={key}={json.dumps(value)}" for key, value in CHATS.items()]
    assert "sessions: {think-limit: 60s}" in warned(inspect(path, "--format=csv", *options))["long_pauses"]
    schedule = build(path, "csv", CHATS, sessions={"think_limit_s": 60}, **PARTLY)
    assert schedule.turns is not None
    assert schedule.turns.think_ns.tolist() == [-1, 60 * S, 30 * S]
    assert schedule.arrival_ns.tolist() == [0, 60 * S, 90 * S]
    told: Any = next(step for step in schedule.transforms if step["name"] == "think")
    assert (told["effect"]["pauses_capped"], told["effect"]["capped_by_s"]) == (1, 1740.0)


def test_aiperf_1262_a_cap_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    """ai-dynamo/aiperf#1262: under a fixed schedule the delay cap has no effect, and nobody says so."""
    path = write(tmp_path, "c.csv", LONG)
    said = refused(path, "csv", CHATS, sessions={"think_limit_s": 60}, loop="open", horizon_s=1900)["workload.pause_unused"]
    assert "sends every turn at its recorded time" in said


def test_dynamo_14184_a_history_that_is_counted_already_is_not_added_again(tmp_path: Path) -> None:
    """ai-dynamo/dynamo#14184: cumulative lengths fed to a tool that accumulates: two thirds more prompt tokens."""
    path = write(tmp_path, "c.csv", LONG)
    sent = {
        history: build(path, "csv", CHATS | {"history": history}, **PARTLY).input_tokens.tolist() for history in ("included", "excluded")
    }
    assert sent["included"] == [10, 20, 30]
    assert sent["excluded"] == [10, 10 + 5 + 20, 10 + 5 + 20 + 5 + 30]
    silent = {key: value for key, value in CHATS.items() if key != "history"}
    assert "history is wanted with columns.session" in refused(path, "csv", silent, **PARTLY)["trace.options"]


def agents(*requests: dict[str, Any]) -> str:
    """A Weka session of requests without a full block."""
    common: dict[str, Any] = {"type": "n", "model": "m", "in": 20, "out": 5, "stop": "", "hash_ids": []}
    return json.dumps({"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [common | request for request in requests]})


def test_inference_sim_1478_a_pause_starts_with_the_end_and_service_is_counted_once(tmp_path: Path) -> None:
    """inference-sim/inference-sim#1478: think time derived from start to start counts the service time twice."""
    path = write(tmp_path, "w.json", agents({"t": 0, "api_time": 5.0}, {"t": 8, "api_time": 5.0, "think_time": 3.0}))
    schedule = build(path, "weka-agentic", **PARTLY, arrivals={"process": "constant", "rate": 1 / 1900})
    turns = schedule.turns
    assert turns is not None
    assert turns.think_ns.tolist() == [-1, 3 * S]
    first = int(schedule.arrival_ns[0])
    agenda = Agenda(schedule.arrival_ns.tolist(), 1900 * S, turns.after, turns.think_ns.tolist())
    assert agenda.due(first) == [(first, 0)]
    agenda.ended(0, first + 7 * S)  # slower than the traced service: the pause is the user's and does not shrink
    assert agenda.due(1900 * S) == [(first + 10 * S, 1)]


def test_inference_sim_1478_an_unknown_end_makes_an_unknown_pause_and_no_gap_of_starts(tmp_path: Path) -> None:
    """inference-sim/inference-sim#1478: where the file does not say when the answer ended, the pause is unknown."""
    path = write(tmp_path, "w.json", agents({"t": 0}, {"t": 8, "api_time": 5.0, "think_time": 3.0}))
    start = {"arrivals": {"process": "constant", "rate": 1 / 1900}}
    assert "turns=1 of 1" in refused(path, "weka-agentic", **PARTLY, **start)["workload.think_unknown"]


def test_inference_perf_198_workers_at_once_read_one_trace_and_send_the_same_bytes(tmp_path: Path) -> None:
    """kubernetes-sigs/inference-perf#198: the trace reader is not safe with several load workers.

    Processes of their own are in ``tests/e2e/test_same_bytes``.
    """
    path = write(tmp_path, "m.jsonl", mooncake(*((k, 600 + k, [k % 3, 100 + k % 7]) for k in range(60))))

    def sent(_: int) -> str:
        return encode_bodies(build(path, "mooncake"), quickstart(), TARGET).digest

    with ThreadPoolExecutor(4) as workers:
        assert len(set(workers.map(sent, range(8)))) == 1


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_inference_perf_198_each_request_has_one_worker(workers: int) -> None:
    """kubernetes-sigs/inference-perf#198: rows must be neither lost nor sent twice."""
    dealt = deal(60, None, workers)
    assert len(dealt) == workers
    assert sorted(np.concatenate(dealt).tolist()) == list(range(60))


def test_perf_analyzer_88_what_came_due_in_a_stall_leaves_at_once_and_the_rest_on_time() -> None:
    """triton-inference-server/perf_analyzer#88: once behind the schedule it cannot catch up."""
    planned = [k * 10 * MS for k in range(12)]
    agenda = Agenda(planned, S)
    assert agenda.due(0) == [(0, 0)]
    late = agenda.due(57 * MS)
    assert late == [(planned[k], k) for k in range(1, 6)]
    assert [(57 * MS - arrival) // MS for arrival, _ in late] == [47, 37, 27, 17, 7]  # slip is against the plan, and recorded
    assert agenda.next_ns() == 60 * MS
    assert [agenda.due(at) for at in planned[6:]] == [[(at, k)] for k, at in enumerate(planned) if k >= 6]


def test_perf_analyzer_88_a_plan_out_of_order_could_never_be_kept_and_is_refused(tmp_path: Path) -> None:
    """triton-inference-server/perf_analyzer#88: a stamp behind its predecessor would put every later one behind."""
    path = write(tmp_path, "c.csv", b"at,in,out\n0,1,1\n5,1,1\n1,1,1\n")
    assert "put the transform sort first" in refused(path, "csv", TABLE, prompts={}, horizon_s=5)["workload.unsorted"]
    sorted_ = build(path, "csv", TABLE, prompts={}, horizon_s=5, chain=[{"transform": "sort"}])
    assert sorted_.arrival_ns.tolist() == [0, S]
    with pytest.raises(ValueError, match="ascend"):
        Agenda([5, 1], 10)


def test_smg_636_a_format_without_times_fires_nothing_at_zero(tmp_path: Path) -> None:
    """smg-project/smg#636: all requests fire at once where the file has no times."""
    path = write(tmp_path, "l.csv", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n" + "9,5,14,1.8\n" * 10)
    assert "workload.no_clock" in refused(path, "lengths", prompts={})
    drawn = build(path, "lengths", prompts={}, arrivals={"process": "constant", "rate": 10})
    assert np.diff(drawn.arrival_ns).tolist() == [100 * MS] * 9
