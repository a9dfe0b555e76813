"""From plan to schedule: columns by control, what is refused and how it is counted, and a digest that is the same everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from tests.unit.test_traces_servegen import gamma_row, tar
from tests.unit.test_workloads_tokens import bpe
from workloads import ByteTokenizer, HFTokenizer, Schedule, TokenSource, WorkloadPlan, build_schedule, content_digest
from workloads.traces import read_trace
from workloads.traces.azure import HEADER

TRACES = Path(__file__).parents[2] / "manifests" / "traces"
QUICKSTART = {"format": "azure-2023", "name": "quickstart", "sha256": hashlib.sha256((TRACES / "quickstart.csv").read_bytes()).hexdigest()}


def make_plan(**changes: Any) -> WorkloadPlan:
    base: dict[str, Any] = {
        "trace": QUICKSTART,
        "chain": [{"transform": "window", "start_s": 24, "stop_s": 48}],
        "arrivals": {"process": "trace"},
        "output": {"control": "client_stop", "max_tokens": 32},
        "horizon_s": 12,
        "seed": 5,
    }
    return WorkloadPlan.model_validate(base | changes)


def synthetic(**changes: Any) -> WorkloadPlan:
    base: dict[str, Any] = {
        "trace": None,
        "chain": [],
        "lengths": {"input": {"kind": "constant", "value": 20}, "output": {"kind": "uniform", "low": 2, "high": 6}},
        "arrivals": {"process": "poisson", "rate": 10},
    }
    return make_plan(**(base | changes))


def build(plan: WorkloadPlan, tokens: TokenSource | None = None, search_path: Sequence[Path] = (TRACES,), **changes: Any) -> Schedule:
    return build_schedule(plan, tokens=tokens or ByteTokenizer(), search_path=search_path, **({"max_model_len": 512} | changes))


def problems(plan: WorkloadPlan, **changes: Any) -> dict[str, str]:
    with pytest.raises(UsageError) as caught:
        build(plan, **changes)
    return {problem.code: f"{problem.what} -> {problem.remedy}" for problem in caught.value.problems}


def small_trace(path: Path, *rows: tuple[int, int]) -> dict[str, Any]:
    """One row a second with these (input, output) lengths."""
    lines = [HEADER.decode(), *(f"2026-01-01 00:00:{k:02d}.0000000,{i},{o}" for k, (i, o) in enumerate(rows))]
    raw = "\n".join(lines).encode()
    (path / "small.csv").write_bytes(raw)
    return {"format": "azure-2023", "name": "small", "sha256": hashlib.sha256(raw).hexdigest()}


def on_small(path: Path, *rows: tuple[int, int], **changes: Any) -> WorkloadPlan:
    return make_plan(**({"trace": small_trace(path, *rows), "chain": [], "horizon_s": len(rows)} | changes))


def test_client_stop_declares_the_maximum_and_hides_the_realized_length() -> None:
    schedule = build(make_plan())
    assert set(schedule.max_tokens.tolist()) == {32}
    assert schedule.stop_after.tolist() == schedule.output_tokens.tolist()
    assert schedule.ignore_eos


@pytest.mark.parametrize(("control", "ignore_eos"), [("natural", False), ("capped", False), ("forced", True)])
def test_the_other_controls(control: str, ignore_eos: bool) -> None:
    schedule = build(make_plan(output={"control": control, "max_tokens": 9 if control == "capped" else None}))
    told = {"natural": np.full(len(schedule), -1), "capped": np.full(len(schedule), 9), "forced": schedule.output_tokens}[control]
    assert schedule.max_tokens.tolist() == told.tolist()
    assert set(schedule.stop_after.tolist()) == {-1}
    assert schedule.ignore_eos is ignore_eos


def test_rows_beyond_the_horizon_are_dropped_and_counted() -> None:
    schedule = build(make_plan())
    window, horizon, total = schedule.transforms
    assert (total["name"], total["rows_before"], total["rows_after"]) == ("trace_to_sent", window["rows_before"], len(schedule))
    assert window["rows_after"] == horizon["rows_before"] > horizon["rows_after"] == len(schedule)
    assert (horizon["name"], horizon["horizon_s"]) == ("horizon", 12.0)
    assert 0 <= schedule.arrival_ns[0] <= schedule.arrival_ns[-1] < 12 * 10**9
    assert (np.diff(schedule.source_row) == 1).all()


def test_prompts_have_the_traces_lengths() -> None:
    schedule = build(make_plan())
    assert [len(schedule.prompts.ids(i)) for i in range(len(schedule))] == schedule.input_tokens.tolist()
    assert schedule.prompts.text(0) is None


def test_a_schedule_is_read_only_and_travels_between_processes() -> None:
    schedule = build(make_plan())
    with pytest.raises(ValueError, match="read-only"):
        schedule.arrival_ns[0] = 1
    copy = pickle.loads(pickle.dumps(schedule))  # noqa: S301 - our own bytes
    assert copy.prompts.ids(3).tolist() == schedule.prompts.ids(3).tolist()


def test_a_trace_shorter_than_the_run_is_refused() -> None:
    chain = [{"transform": "window", "start_s": 0, "stop_s": 24}, {"transform": "time_compress", "factor": 3}]
    assert "covers 8 s" in problems(make_plan(chain=chain))["workload.horizon_not_covered"]
    assert len(build(make_plan(chain=chain, horizon_s=8))) > 200


@pytest.mark.parametrize("factor", [0.7, 1.1, 3.0, 7.3])
def test_a_window_that_just_covers_the_run_is_enough_at_any_factor(factor: float) -> None:
    chain = [{"transform": "window", "start_s": 1.0, "stop_s": 1.0 + 12 * factor}, {"transform": "time_compress", "factor": factor}]
    assert len(build(make_plan(chain=chain))) > 0


def test_synthetic_arrivals_take_lengths_from_the_trace_in_order() -> None:
    schedule = build(make_plan(arrivals={"process": "poisson", "rate": 10}))
    plain = build(make_plan(arrivals={"process": "constant", "rate": 10}))
    assert [entry["name"] for entry in schedule.transforms] == ["window", "lengths_in_order", "trace_to_sent"]
    count = min(len(schedule), len(plain))
    assert schedule.input_tokens[:count].tolist() == plain.input_tokens[:count].tolist()
    assert schedule.source_row.tolist() == list(range(int(schedule.source_row[0]), int(schedule.source_row[0]) + len(schedule)))


def test_lengths_that_run_out_are_refused_not_reused() -> None:
    text = problems(make_plan(arrivals={"process": "constant", "rate": 100}))["workload.rows_run_out"]
    assert "need 1200 rows" in text
    assert "never reused" in text


def test_drawn_lengths_follow_their_distribution_and_their_own_seed() -> None:
    schedule = build(synthetic())
    assert set(schedule.input_tokens.tolist()) == {20}
    assert set(schedule.output_tokens.tolist()) == {2, 3, 4, 5, 6}
    assert set(schedule.source_row.tolist()) == {-1}
    assert schedule.transforms == ()
    again = build(synthetic(arrivals={"process": "constant", "rate": 10}))
    count = min(len(schedule), len(again))
    assert again.output_tokens[:count].tolist() == schedule.output_tokens[:count].tolist()


def test_a_format_that_draws_its_rows_draws_them_with_the_plans_seed(tmp_path: Path) -> None:
    path = tar(tmp_path / "x_traces.tar.gz", {"data/m/chunk-0-trace.csv": f"{gamma_row(0, 9, 0.5)}\n{gamma_row(600, 9, 0.5)}\n"})
    trace = {"format": "servegen", "name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    plan = make_plan(trace=trace | {"options": {"fixed_lengths": [5, 2], "datasets_sha256": "none"}}, chain=[])
    one, two = (build(plan.model_copy(update={"seed": seed}), search_path=[tmp_path]) for seed in (1, 2))
    assert one.arrival_ns.tolist() != two.arrival_ns.tolist()
    drawn = read_trace("servegen", path, {"fixed_lengths": [5, 2]}, seed=1).arrival_ns
    assert one.arrival_ns.tolist() == drawn[drawn < 12 * 10**9].tolist()


def test_what_lies_beside_a_trace_is_pinned_or_refused(tmp_path: Path) -> None:
    """Two people who run one manifest send the same bytes: a file that the trace is read together with must be part of it."""
    path = tar(tmp_path / "x_traces.tar.gz", {"data/m/chunk-0-trace.csv": f"{gamma_row(0, 9, 0.5)}\n"})
    trace = {"format": "servegen", "name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    unpinned = make_plan(trace=trace | {"options": {"fixed_lengths": [5, 2]}}, chain=[], horizon_s=2)
    found = problems(unpinned, search_path=[tmp_path])
    assert set(found) == {"trace.unpinned"}
    assert "datasets-sha256: none" in found["trace.unpinned"]
    pinned = make_plan(trace=trace | {"options": {"fixed_lengths": [5, 2], "datasets_sha256": "none"}}, chain=[], horizon_s=2)
    assert len(build(pinned, search_path=[tmp_path])) > 0
    with pytest.raises(UsageError, match=r"trace\.digest_mismatch"):
        read_trace("servegen", path, {"fixed_lengths": [5, 2], "datasets_sha256": "0" * 64})


@pytest.mark.parametrize(
    ("output", "longest"),
    [
        ({"control": "natural"}, 401),
        ({"control": "capped", "max_tokens": 50}, 450),
        ({"control": "forced"}, 430),
        ({"control": "client_stop", "max_tokens": 40}, 440),
    ],
)
def test_a_prompt_longer_than_the_model_is_refused_with_the_worst_row(tmp_path: Path, output: dict[str, Any], longest: int) -> None:
    plan = on_small(tmp_path, (10, 5), (400, 30), (390, 5), output=output)
    assert len(build(plan, search_path=[tmp_path], max_model_len=longest)) == 3
    text = problems(plan, search_path=[tmp_path], max_model_len=longest - 1)["workload.too_long"]
    assert "rows=1 of 3" in text
    assert f"max_model_len={longest - 1}; worst is data row 1 of the trace with 400 input and 30 output tokens" in text
    assert "input_maximum" in text


def test_client_stop_refuses_realized_lengths_beyond_the_maximum(tmp_path: Path) -> None:
    plan = on_small(tmp_path, (10, 5), (10, 9), (10, 8), output={"control": "client_stop", "max_tokens": 7})
    text = problems(plan, search_path=[tmp_path])["workload.beyond_maximum"]
    assert "rows=2 of 3" in text
    assert "data row 1" in text


def test_rows_that_cannot_be_sent_are_all_named(tmp_path: Path) -> None:
    found = problems(on_small(tmp_path, (0, 5), (3, 0), (600, 4)), search_path=[tmp_path])
    assert set(found) == {"workload.no_prompt", "workload.no_output", "workload.too_long"}
    assert "drop_failed" in found["workload.no_output"]
    dropped = on_small(tmp_path, (3, 5), (3, 0), chain=[{"transform": "drop_failed"}])
    assert build(dropped, search_path=[tmp_path]).source_row.tolist() == [0]
    natural = on_small(tmp_path, (3, 0), output={"control": "natural"})
    assert build(natural, search_path=[tmp_path]).output_tokens.tolist() == [0]
    mended = on_small(tmp_path, (0, 0), chain=[{"transform": "scale_lengths"}])
    assert build(mended, search_path=[tmp_path]).input_tokens.tolist() == [1]


def test_nothing_to_send_is_refused_with_the_steps(tmp_path: Path) -> None:
    chain = [{"transform": "thin", "keep": 1e-12}]
    assert (
        "thin 3->0, horizon 0->0"
        in problems(on_small(tmp_path, (1, 1), (1, 1), (1, 1), chain=chain), search_path=[tmp_path])["workload.empty"]
    )
    assert "requests=0" in problems(synthetic(arrivals={"process": "constant", "rate": 0.01}))["workload.empty"]


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"lengths": {"input": {"kind": "constant", "value": 1}, "output": {"kind": "constant", "value": 1}}}, {"workload.two_lengths"}),
        ({"trace": None}, {"workload.no_lengths", "workload.no_trace", "workload.chain_without_trace"}),
        ({"output": {"control": "capped"}}, {"workload.max_tokens"}),
        ({"output": {"control": "client_stop"}}, {"workload.max_tokens"}),
        ({"output": {"control": "natural", "max_tokens": 5}}, {"workload.max_tokens"}),
        ({"output": {"control": "forced", "max_tokens": 5}}, {"workload.max_tokens"}),
        ({"api": "chat"}, {"workload.chat_ids"}),
        ({"prompts": {"source": "dataset", "sharing": "as_trace", "dataset": QUICKSTART}}, {"workload.dataset_sharing"}),
        ({"api": "chat", "output": {"control": "capped"}}, {"workload.chat_ids", "workload.max_tokens"}),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused_with_everything(changes: dict[str, Any], codes: set[str]) -> None:
    assert set(problems(make_plan(**changes))) == codes


@pytest.mark.parametrize(
    "lengths",
    [
        {"kind": "constant"},
        {"kind": "constant", "value": 1, "low": 1},
        {"kind": "uniform", "low": 3, "high": 2},
        {"kind": "uniform", "value": 3, "low": 1, "high": 2},
        {"kind": "uniform", "high": 2},
    ],
)
def test_lengths_that_name_no_distribution_are_refused(lengths: dict[str, Any]) -> None:
    assert (
        "lengths.input" in problems(synthetic(lengths={"input": lengths, "output": {"kind": "constant", "value": 1}}))["workload.lengths"]
    )


def test_a_negative_template_is_refused() -> None:
    assert "workload.chat_overhead" in problems(make_plan(), chat_overhead=-1)


@pytest.mark.parametrize("api", ["completions", "generate"])
def test_text_prompts_are_exact_with_the_servers_bos(tmp_path: Path, api: str) -> None:
    tokens = HFTokenizer(bpe(tmp_path / "tokenizer.json", bos=True))
    plan = make_plan(prompts={"source": "text"}, api=api, horizon_s=2)
    for adds, extra in ((True, 1), (False, 0)):
        schedule = build(plan, tokens, server_adds_bos=adds)
        for i in range(len(schedule)):
            assert len(schedule.prompts.ids(i)) == schedule.input_tokens[i]
            assert len(tokens.encode(schedule.prompts.text(i))) == schedule.input_tokens[i] - extra


def test_chat_content_and_template_make_up_the_input() -> None:
    schedule = build(make_plan(prompts={"source": "text"}, api="chat", horizon_s=2), chat_overhead=11)
    for i in range(len(schedule)):
        assert len(schedule.prompts.text(i)) == len(schedule.prompts.ids(i)) == schedule.input_tokens[i] - 11


def test_a_prompt_shorter_than_the_template_is_refused() -> None:
    text = problems(synthetic(prompts={"source": "text"}, api="chat"), chat_overhead=20)["workload.no_prompt"]
    assert "beside the 20 that the server adds" in text


def test_the_overhead_of_chat_does_not_touch_completions() -> None:
    assert content_digest(build(make_plan(), chat_overhead=11)) == content_digest(build(make_plan()))


def test_everything_that_is_sent_is_in_the_digest() -> None:
    text = {"prompts": {"source": "text"}, "horizon_s": 2}
    plans = [
        make_plan(),
        make_plan(seed=6),
        make_plan(horizon_s=11),
        make_plan(chain=[{"transform": "window", "start_s": 25, "stop_s": 48}]),
        make_plan(chain=[{"transform": "window", "start_s": 24, "stop_s": 49}]),
        make_plan(output={"control": "client_stop", "max_tokens": 33}),
        make_plan(output={"control": "capped", "max_tokens": 32}),
        make_plan(output={"control": "natural"}),
        make_plan(output={"control": "forced"}),
        make_plan(arrivals={"process": "constant", "rate": 10}),
        make_plan(horizon_s=2),
        make_plan(**text),
        make_plan(**text, api="chat"),
    ]
    digests = [content_digest(build(plan)) for plan in plans]
    digests.append(content_digest(build(make_plan(**text, api="chat"), chat_overhead=3)))
    assert len(set(digests)) == len(digests)
    assert content_digest(build(make_plan())) == digests[0]


def test_the_digest_does_not_depend_on_the_tokenizer_that_did_not_matter(tmp_path: Path) -> None:
    one, two = (HFTokenizer(bpe(tmp_path / f"{n}.json")) for n in "ab")
    assert content_digest(build(make_plan(horizon_s=2), one)) == content_digest(build(make_plan(horizon_s=2), two))
    assert content_digest(build(make_plan(horizon_s=2), one)) != content_digest(build(make_plan(horizon_s=2)))


SCRIPT = """
import sys
from pathlib import Path
from workloads import WorkloadPlan, build_schedule, content_digest, load_tokenizer
for raw in sys.argv[2:]:
    plan = WorkloadPlan.model_validate_json(raw)
    schedule = build_schedule(plan, tokens=load_tokenizer("bytes"), search_path=[Path(sys.argv[1])], max_model_len=512)
    print(content_digest(schedule))
"""


def test_another_process_with_another_hash_seed_gives_the_same_digests() -> None:
    chain = [
        {"transform": "window", "start_s": 0, "stop_s": 36},
        {"transform": "thin", "keep": 0.5},
        {"transform": "jitter", "grid_s": 1e-7},
        {"transform": "time_compress", "factor": 1.5},
    ]
    tenants = [{"name": "a", "share": 0.5, "priority": 1}, {"name": "b", "share": 0.5, "request_class": "slow"}]
    extras = {"tenants": tenants, "cancellations": {"share": 0.3, "after_s": 2}}
    plans = [
        make_plan(chain=chain, **extras),
        make_plan(loop="closed", users=3),
        synthetic(arrivals={"process": "gamma", "rate": 9, "cv": 2}, prompts={"source": "text"}),
    ]
    command = [sys.executable, "-c", SCRIPT, str(TRACES), *(plan.model_dump_json() for plan in plans)]
    done = subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": "4242"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [content_digest(build(plan)) for plan in plans]


def test_the_digest_of_a_known_plan_never_changes() -> None:
    """A change here makes new runs incomparable with old records: raise the digest's format number and say so in the changelog."""
    assert content_digest(build(make_plan(horizon_s=2))) == "0a4cf32d8e78da461673ca7fbc3e1ab6ecfca63265b6cbd46e7501708746a100"
    assert (
        content_digest(build(synthetic(horizon_s=2, arrivals={"process": "constant", "rate": 5}, prompts={"source": "text"})))
        == "6aedb8a6b9a9f2b13c4a182ec97ec8e59a9c94801aed8a1a1d59e4b671c604aa"
    )


def questions(path: Path, count: int) -> dict[str, Any]:
    """A data set of short conversations, each question of another length."""
    pairs = [[{"from": "human", "value": "q" * (k + 1)}, {"from": "gpt", "value": "yes"}] for k in range(count)]
    raw = json.dumps([{"id": str(k), "conversations": turns} for k, turns in enumerate(pairs)]).encode()
    (path / "chats.json").write_bytes(raw)
    return {"format": "sharegpt", "name": "chats.json", "sha256": hashlib.sha256(raw).hexdigest(), "options": {"tokenizer": "bytes"}}


def test_texts_of_a_data_set_are_sent_at_their_own_lengths(tmp_path: Path) -> None:
    prompts = {"source": "dataset", "dataset": questions(tmp_path, 40)}
    plan = make_plan(prompts=prompts, horizon_s=1)
    schedule = build(plan, search_path=[tmp_path, TRACES])
    assert 1 < len(schedule) <= 40
    for i, tokens in enumerate(schedule.input_tokens.tolist()):
        assert schedule.prompts.text(i) == "q" * tokens
    assert len(set(schedule.input_tokens.tolist())) == len(schedule)  # no text twice
    assert [entry["name"] for entry in schedule.transforms][-2:] == ["dataset_lengths", "trace_to_sent"]
    chat = build(plan.model_copy(update={"api": "chat"}), search_path=[tmp_path, TRACES], chat_overhead=5)
    assert (chat.input_tokens - schedule.input_tokens).tolist() == [5] * len(chat)
    assert "prompt.dataset_rows" in problems(make_plan(prompts=prompts), search_path=[tmp_path, TRACES])
