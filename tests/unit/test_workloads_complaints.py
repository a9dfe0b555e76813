"""What users reported of other tools' trace readers, one test a thread: ours does not do it, seen from where a user stands.

Complaints about what is then sent and when are in ``test_workloads_complaints_load``.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli.app import main
from tests.complaints import CHATS, MS, SHARED, TABLE, S, build, complaints, facts, here, inspect, mooncake, prompt, refused, warned, write
from tests.tracefiles import codes, fault, jsonl, read
from workloads import read_trace, reusable_tokens
from workloads.plan import DropFailed, ScaleLengths, WindowTransform
from workloads.traces.own import write_trace
from workloads.transforms import apply

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def burst(*stamps: int, failed: frozenset[int] = frozenset()) -> str:
    """A BurstGPT file with one request at each second given; those at a second in ``failed`` got no answer."""
    return BURST + "".join(f"{t},ChatGPT,9,{0 if t in failed else 5},{9 if t in failed else 14},API log\n" for t in stamps)


def test_burstgpt_11_the_head_is_said_to_be_a_ramp_and_where_to_start(tmp_path: Path) -> None:
    """HPMLL/BurstGPT#11: a slice from row 0 is a ramp-up, and nobody says so."""
    ramp, steady = tuple(range(0, 2000, 100)), tuple(range(2000, 8000, 10))
    said = warned(inspect(write(tmp_path, "b.csv", burst(*ramp, *steady))))
    assert "hold 20 requests" in said["head_is_a_ramp"]
    start = float(said["head_is_a_ramp"].split("start the window at ")[1].split(" s")[0])
    whole = read_trace("burstgpt", tmp_path / "b.csv")
    rates = {at: len(apply([WindowTransform(start_s=at, stop_s=at + 500)], whole, 1).trace) / 500 for at in (0.0, start)}
    assert rates == {0.0: 0.01, start: 0.1}
    assert "head_is_a_ramp" not in warned(inspect(write(tmp_path, "steady.csv", burst(*steady))))


def test_burstgpt_11_rows_without_an_answer_are_kept_told_and_dropped_only_on_purpose(tmp_path: Path) -> None:
    """HPMLL/BurstGPT#11: the variant with failures has rows of zero tokens."""
    page = inspect(path := write(tmp_path, "b.csv", burst(0, 1, 2, 3, failed=frozenset({1, 3}))))
    assert (page["rows"], page["failed_rows"], page["skipped"]) == (4, 2, {})
    assert "failed_rows=2 of 4" in warned(page)["failures"]
    assert "drop-failed" in warned(page)["failures"]
    done = apply([DropFailed()], read_trace("burstgpt", path), 1)
    assert (done.log[0]["rows_before"], done.log[0]["rows_after"]) == (4, 2)
    assert done.trace.source_row.tolist() == [0, 2]
    assert "workload.no_output" in refused(path, "burstgpt", prompts={}, output={"control": "forced"}, horizon_s=4)


@here
@pytest.mark.traces
def test_burstgpt_11_the_public_head_is_called_no_sample_of_the_load() -> None:
    """HPMLL/BurstGPT#11: 0.034 req/s at the head, 3.17 req/s later; the kept rows are the head."""
    page = inspect(SHARED / "burstgpt" / "burstgpt3_head105.converted.jsonl")
    assert any("0.034 req/s, 3.17 req/s later" in note and "choose a window by time" in note for note in page["notes"])
    assert "too few requests to load anything" in warned(page)["idle"]


@here
@pytest.mark.traces
def test_azure_53_the_page_says_that_a_replay_understates_cache_hits() -> None:
    """Azure/AzurePublicDataset#53: no prefix data, so a replay has none of the hits that the service had."""
    page = inspect(SHARED / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv")
    said = "none of the cache hits that the service had -> read capacity with prefix caching as a lower bound"
    assert said in warned(page)["no_sharing"]
    assert any("cannot show the cache hits" in note for note in page["notes"])
    assert "no_sharing" not in warned(inspect(SHARED / "mooncake" / "synthetic_trace.jsonl.gz"))


def test_azure_53_sharing_as_a_trace_that_has_none_is_refused(tmp_path: Path) -> None:
    """Azure/AzurePublicDataset#53: a replay that means to share, of a file that says nothing of sharing, would show no hits."""
    path = write(tmp_path, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n")
    said = refused(path, "azure-2023")["workload.no_sharing"]
    assert "format azure-2023 names no shared prefixes" in said
    assert "a lower bound" in said
    assert len(build(path, "azure-2023", prompts={"sharing": "none"})) == 1
    talk = write(tmp_path, "c.csv", "at,in,out,chat,think\n0,10,5,a,\n1,20,5,a,1\n")
    assert len(build(talk, "csv", CHATS)) == 1
    assert "no history is carried" in refused(talk, "csv", CHATS, sessions={"history": "none"})["workload.no_sharing"]


def chats(*rows: tuple[int, list[int]], output: int = 1) -> bytes:
    """A Bailian file: chats of one turn, one a second, from (input tokens, ids)."""
    chat = {"parent_chat_id": -1, "type": "text", "turn": 1, "output_length": output}
    return jsonl(
        chat | {"chat_id": k, "timestamp": 0.1 * k, "input_length": tokens, "hash_ids": ids} for k, (tokens, ids) in enumerate(rows)
    )


def test_bailian_1_ids_compare_within_one_trace_only(tmp_path: Path) -> None:
    """alibaba-edu/qwen-bailian-usagetraces-anon#1: the salt is per trace; equal ids of two traces are not one prefix."""
    one = build(write(tmp_path, "one.jsonl", chats((32, [5, 6]), (32, [5, 7]))), "qwen-bailian")
    two = build(write(tmp_path, "two.jsonl", chats((32, [5, 6]), (32, [5, 7]), output=2)), "qwen-bailian")
    assert prompt(one, 0)[:16] == prompt(one, 1)[:16]
    assert prompt(two, 0)[:16] == prompt(two, 1)[:16]
    assert prompt(one, 0)[:16] != prompt(two, 0)[:16]


def test_bailian_1_four_token_blocks_are_refused_until_they_are_said() -> None:
    """alibaba-edu/qwen-bailian-usagetraces-anon#1: the paper says blocks of 4 tokens, the files have 16."""
    raw = chats((32, [1, 2, 3, 4, 5, 6, 7, 8]))
    assert codes("qwen-bailian", raw) == ["trace.block_count"]
    assert "this row fits a block_size of 4 to 4" in str(fault("qwen-bailian", raw))
    blocks = read("qwen-bailian", raw, block_size=4).blocks
    assert blocks is not None
    assert (blocks.size, len(blocks.ids.values)) == (4, 8)


@here
@pytest.mark.traces
def test_sglang_12601_rows_of_mooncake_become_requests_of_their_own_lengths() -> None:
    """sgl-project/sglang#12601: dict has no attribute prompt; totals of tokens wrong."""
    known = facts("mooncake_synthetic")
    path = SHARED / "mooncake" / "synthetic_trace.jsonl.gz"
    schedule = build(path, "mooncake", horizon_s=120)
    assert len(schedule) > 100
    assert [len(prompt(schedule, i)) for i in range(100)] == schedule.input_tokens[:100].tolist()
    page = inspect(path)
    for side in ("input_tokens", "output_tokens"):
        assert page[side]["sum"] == known[side]["sum"]


@pytest.mark.parametrize(("size", "ids"), [(512, [1, 2]), (256, [1, 2, 3]), (16, list(range(38)))])
def test_sglang_12601_the_block_size_is_an_option_and_decides_what_is_shared(size: int, ids: list[int], tmp_path: Path) -> None:
    """sgl-project/sglang#12601: the block size is hard-coded."""
    path = write(tmp_path, "m.jsonl", mooncake((0, 600, ids), (1, 600, [*ids[:-1], 99])))
    schedule = build(path, "mooncake", {"block-size": size})
    assert reusable_tokens(schedule).tolist()[1] // size == len(ids) - 1


def test_vllm_13063_every_model_and_failure_is_kept_at_its_own_time(tmp_path: Path) -> None:
    """vllm-project/vllm#13063: only GPT-4 rows with output are kept, and their times ignored."""
    text = BURST + "5,ChatGPT,9,5,14,API log\n45,GPT-4,9,5,14,API log\n118,GPT-4,9,0,9,Conversation log\n"
    trace = read_trace("burstgpt", write(tmp_path, "b.csv", text))
    assert trace.arrival_ns.tolist() == [0, 40 * S, 113 * S]
    assert trace.output_tokens.tolist() == [5, 5, 0]
    chosen = read_trace("burstgpt", tmp_path / "b.csv", {"models": ["GPT-4"]})
    assert (len(chosen), chosen.skipped) == (2, {"model not chosen": 1})


def test_vllm_13063_asking_for_more_than_there_is_is_refused_with_both_numbers(tmp_path: Path) -> None:
    """vllm-project/vllm#13063: fails when more requests are wanted than the file has rows."""
    path = write(tmp_path, "b.csv", burst(0, 1, 2))
    assert "load would stop before the run does" in refused(path, "burstgpt", prompts={}, horizon_s=60)["workload.horizon_not_covered"]
    said = refused(path, "burstgpt", prompts={}, arrivals={"process": "constant", "rate": 5}, horizon_s=2)["workload.rows_run_out"]
    assert "rows=3: constant arrivals over 2 s need 10 rows" in said
    assert "rows are never reused" in said


def test_vllm_39795_each_format_has_its_own_unit_and_block_size() -> None:
    """vllm-project/vllm#39795: one flag for all formats; its defaults (16 tokens, seconds) are wrong for Mooncake."""
    answer = CliRunner().invoke(main, ["traces", "list", "--json"])
    infos = {info["format"]: info for info in json.loads(answer.stdout)}
    assert all(info["time_unit"] and info["clock"] for info in infos.values())
    assert "milliseconds" in infos["mooncake"]["time_unit"]
    assert infos["qwen-bailian"]["time_unit"].startswith("seconds")
    assert [infos[fmt]["prefix"]["block_size"] for fmt in ("mooncake", "qwen-bailian", "weka-agentic")] == [512, 16, 64]
    one, two = read("mooncake", mooncake((0, 600, [1, 2]), (100, 600, [1, 2]))), read("qwen-bailian", chats((16, [1]), (16, [1])))
    assert one.arrival_ns.tolist() == two.arrival_ns.tolist() == [0, 100 * MS]


@pytest.mark.parametrize("missing", ["unit", "clock", "block-size", "rounding"])
def test_vllm_39795_a_table_of_no_known_format_has_no_defaults(missing: str) -> None:
    """vllm-project/vllm#39795: what is not said must not be guessed."""
    options = TABLE | {"columns": {**TABLE["columns"], "prefix-ids": "ids"}, "block-size": 16, "rounding": "ceil"}
    raw = b"at,in,out,ids\n0,20,1,1 2\n"
    assert len(read("csv", raw, **options)) == 1
    assert missing.split("-")[0] in str(fault("csv", raw, **{key: value for key, value in options.items() if key != missing}))


def test_guidellm_948_two_ids_for_twenty_tokens_are_malformed_and_the_right_sizes_are_named() -> None:
    """vllm-project/guidellm#948: the example of the documentation has two ids for 20 tokens at block size 512."""
    raw = mooncake((0, 600, [1, 2]), (1, 20, [46, 47]))
    (problem,) = fault("mooncake", raw).problems
    assert (problem.code, problem.where) == ("trace.block_count", "t.jsonl:2")
    assert "2 for 20 tokens, where blocks of 512 tokens need 1" in problem.what
    assert "a block_size of 10 to 19" in problem.remedy


def session(*requests: dict[str, Any], **more: Any) -> bytes:
    """A Weka session."""
    facts_ = {"id": "a", "block_size": 64, "hash_id_scope": "local"}
    common: dict[str, Any] = {"type": "n", "model": "m", "out": 5, "stop": ""}
    return json.dumps(facts_ | {"requests": [common | request for request in requests]} | more).encode()


def test_guidellm_992_columns_beyond_the_required_ones_are_fine_and_named() -> None:
    """vllm-project/guidellm#992: a file is refused unless its columns equal the required set."""
    assert len(read("weka-agentic", session({"t": 0, "in": 64, "hash_ids": [1], "cache_hint": 1}, vendor="x"))) == 1
    more = json.loads(mooncake((0, 600, [1, 2]))) | {"tier": "gold"}
    assert read("mooncake", jsonl([more])).notes[-1] == "keys not read: 'tier'"
    assert (
        "columns not used: Region" in read("burstgpt", burst(0).replace("\n", ",Region\n", 1).replace("log\n", "log,eu\n").encode()).notes
    )
    assert read("csv", b"at,region,in,out\n0,eu,1,1\n", **TABLE).notes == ("columns not read: region",)


@here
@pytest.mark.traces
def test_guidellm_992_real_weka_sessions_are_read() -> None:
    """vllm-project/guidellm#992: every real file of this kind has extra columns."""
    path = SHARED / "weka-agentic" / "trace_0624.json"
    raw = json.loads(path.read_text())
    assert {"tool_tokens", "totals"} <= raw.keys()
    assert {"input_types", "stop"} <= raw["requests"][0].keys()
    assert len(read_trace("weka-agentic", path)) == len(raw["requests"])


def test_aiperf_581_more_ids_than_the_input_has_blocks_are_refused() -> None:
    """ai-dynamo/aiperf#581: the example of the documentation has more ids than input_length allows."""
    raw = mooncake((0, 655, [46, 47]), (1, 655, [46, 47, 48, 49]))
    (problem,) = fault("mooncake", raw).problems
    assert (problem.code, problem.where) == ("trace.block_count", "t.jsonl:2")


def test_aiperf_581_a_redirect_saved_as_a_trace_is_called_one(tmp_path: Path) -> None:
    """ai-dynamo/aiperf#581: the download command lacked -L."""
    page = write(tmp_path, "m.jsonl", "<html><body>Moved: you are being redirected.</body></html>\n")
    result = CliRunner().invoke(main, ["traces", "inspect", str(page), "--format", "mooncake"])
    assert result.exit_code == 2
    assert "a redirect was saved instead of followed" in " ".join(result.output.split())
    assert "curl needs -L" in " ".join(result.output.split())


def test_aiperf_786_a_missing_column_is_said_once_and_skips_no_row(tmp_path: Path) -> None:
    """ai-dynamo/aiperf#786: a CSV with missing columns degrades to "all rows skipped"."""
    text = burst(*range(50)).replace("Request tokens", "Prompt tokens", 1)
    found = refused(write(tmp_path, "b.csv", text), "burstgpt")
    (said,) = found.values()
    assert "Request tokens" in said
    assert "skipped" not in said


def test_aiperf_988_a_file_without_times_is_not_taken_to_have_them(tmp_path: Path) -> None:
    """ai-dynamo/aiperf#988: any BurstGPT file is assumed to have timing."""
    bare = "".join(",".join(line.split(",")[1:]) + "\n" for line in burst(0, 1).splitlines())
    assert "Timestamp" in str(fault("burstgpt", bare.encode()))
    path = write(tmp_path, "l.csv", "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n9,5,14,1.8\n9,5,14,1.8\n")
    page = inspect(path)
    assert (page["clock"], page.get("arrivals")) == ("none", None)
    assert "rows have no arrival times" in warned(page)["no_arrivals"]
    assert "workload.no_clock" in refused(path, "lengths", prompts={})


def test_aiperf_1209_the_partial_last_block_counts_where_the_format_counts_it(tmp_path: Path) -> None:
    """ai-dynamo/aiperf#1209: the hash of the partial last block is dropped; ceil and floor are mixed up."""
    assert codes("mooncake", mooncake((0, 520, [1]))) == ["trace.block_count"]
    assert codes("weka-agentic", session({"t": 0, "in": 72, "hash_ids": [1, 2]})) == ["trace.block_count"]
    ceil = build(write(tmp_path, "m.jsonl", mooncake((0, 520, [1, 2]), (1, 520, [1, 2]))), "mooncake")
    assert reusable_tokens(ceil).tolist() == [0, 520]
    raw = session({"t": 0, "in": 72, "hash_ids": [1]}, {"t": 0, "in": 72, "hash_ids": [1]})
    floor = build(write(tmp_path, "w.json", raw), "weka-agentic", arrivals={"process": "constant", "rate": 1})
    assert prompt(floor, 0)[:64] == prompt(floor, 1)[:64]
    assert prompt(floor, 0)[64:] != prompt(floor, 1)[64:]


def test_dynamo_12046_ids_that_agree_in_32_bits_stay_two_prefixes(tmp_path: Path) -> None:
    """ai-dynamo/dynamo#12046: ids cut to 32 bits merge distinct prefixes into false cache hits."""
    ids = [7, 7 + (1 << 32), 7 + (1 << 53), (1 << 64) - 1]
    path = write(tmp_path, "m.jsonl", mooncake(*((k, 512, [one]) for k, one in enumerate(ids))))
    write_trace(read_trace("mooncake", path), tmp_path / "m.trigpoint.parquet")
    for file, fmt in ((path, "mooncake"), (tmp_path / "m.trigpoint.parquet", "trigpoint")):
        assert inspect(file)["prefix"]["unique_blocks"] == 4
        schedule = build(file, fmt)
        assert len({tuple(prompt(schedule, i)[:16]) for i in range(4)}) == 4
    assert codes("mooncake", mooncake((0, 512, [1 << 64]))) == ["trace.hash_id"]


def test_inference_sim_829_prefix_groups_survive_conversion_and_scaling(tmp_path: Path) -> None:
    """inference-sim/inference-sim#829: the exchange format drops prefix groups, so a replay has no cache hits."""
    path = write(tmp_path, "m.jsonl", mooncake((0, 1100, [1, 2, 3]), (1, 1300, [1, 2, 9]), (2, 600, [1, 8])))
    direct = reusable_tokens(build(path, "mooncake")).tolist()
    assert direct == [0, 1024, 512]
    own = tmp_path / "m.trigpoint.parquet"
    write_trace(read_trace("mooncake", path), own)
    assert reusable_tokens(build(own, "trigpoint")).tolist() == direct
    scaled = build(own, "trigpoint", chain=[ScaleLengths(input_factor=0.25).model_dump()])
    assert reusable_tokens(scaled).tolist() == [0, 256, 128]


@pytest.mark.parametrize("clock", ["absolute", "relative"])
def test_inference_sim_1606_epoch_and_relative_times_never_meet(clock: str) -> None:
    """inference-sim/inference-sim#1606: mixed clocks end in 0 completions, or in a TTFT 18 times off."""
    mixed = b"at,in,out\n1700000000,1,1\n1,1,1\n"
    assert codes("csv", mixed, **TABLE | {"clock": clock}) == ["trace.mixed_clocks"]
    wrong = b"at,in,out\n1700000000,1,1\n" if clock == "relative" else b"at,in,out\n1,1,1\n"
    assert codes("csv", wrong, **TABLE | {"clock": clock}) == ["trace.clock"]


def test_inference_sim_1606_an_epoch_stamp_in_a_relative_format_is_refused() -> None:
    """inference-sim/inference-sim#1606: the same with formats whose clock is fixed."""
    assert codes("mooncake", mooncake((0, 1, [1]), (1_700_000_000_000, 1, [1]))) == ["trace.timestamp"]
    epoch = json.loads(chats((16, [1]))) | {"timestamp": 1_700_000_000}
    assert codes("qwen-bailian", jsonl([epoch])) == ["trace.timestamp"]


def without(raw: bytes, key: str) -> bytes:
    """JSON lines with the key gone from the last row."""
    *rows, last = [json.loads(line) for line in raw.splitlines()]
    return jsonl([*rows, {k: v for k, v in last.items() if k != key}])


MISSING = {
    "mooncake": (without(mooncake((0, 1, [1]), (1, 1, [1])), "timestamp"), {}),
    "qwen-bailian": (without(chats((16, [1]), (16, [1])), "timestamp"), {}),
    "csv": (b"at,in,out\n0,1,1\n,1,1\n", TABLE),
    "jsonl": (without(jsonl([{"at": 0, "in": 1, "out": 1}] * 2), "at"), TABLE),
    "azure-2023": (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,1,1\n,1,1\n", {}),
    "burstgpt": (f"{BURST}0,ChatGPT,1,1,2,API log\n,ChatGPT,1,1,2,API log\n".encode(), {}),
}


@pytest.mark.parametrize("fmt", sorted(MISSING))
def test_smg_636_a_missing_time_is_named_with_its_line_and_never_zero(fmt: str) -> None:
    """smg-project/smg#636: a missing timestamp defaults to 0, and all requests fire at once."""
    raw, options = MISSING[fmt]
    (problem,) = fault(fmt, raw, **options).problems
    assert problem.where == f"t.jsonl:{len(raw.splitlines())}"
    assert problem.code in {"trace.missing", "trace.timestamp"}


def threads_tested() -> set[str]:
    """Threads that tests of this module and of its sibling name first in their docstrings."""
    paths = sorted(Path(__file__).parent.glob("test_workloads_complaints*.py"))
    nodes = [node for path in paths for node in ast.parse(path.read_text()).body]
    tests = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {(ast.get_docstring(test) or "").partition(":")[0] for test in tests}


@here
@pytest.mark.traces
def test_every_complaint_of_the_list_has_a_test() -> None:
    """A complaint that is added to the list and to no test fails here."""
    assert set(complaints()) - threads_tested() == set()


@here
@pytest.mark.traces
def test_the_list_is_read_whole() -> None:
    """Every line of the list names a thread; two of one line are two."""
    lines = (SHARED / "README.md").read_text().partition("## Problems users had")[2].splitlines()
    found = complaints()
    assert len(found) == len(set(found)) >= sum(line.startswith("- ") for line in lines) > 20
    assert {"ai-dynamo/aiperf#786", "ai-dynamo/aiperf#988"} <= set(found)
