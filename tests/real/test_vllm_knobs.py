"""Knobs of a real vLLM on this machine's CPU, each seen twice in a sealed record: in the server's metrics and in the client's clocks.

Two server starts serve all of it. Long prompts come one a second, every second one begins like those before it; then many short requests
of two priorities come at one instant. One arm has a small token budget, a prefix cache, room for everything and few sequences at once; the
other takes prompts whole, caches nothing, and has a cache for two long requests or a part of the short ones. Each question looks at the
requests that its knob can touch. Ratios are asserted, far below those of an idle host, and never times: a host may be busy.

Seen with 0.32.0: a request that carries a priority to a server of policy ``fcfs`` is served in order of arrival, with status 200 and
without a word, although the server's own description of the field promises an error; so a manifest must say which policy each arm has
(``priority_unread``). A number that is smaller goes first. The server's histogram of tokens by iteration counts a prompt whole when its
last part is done, so that no metric shows how large a step was: the budget shows in the engine's stated configuration and in the gaps of
those that are decoding.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from analysis.clocks import Clocks, derive_clocks
from analysis.model import RunAnalysis, Verdict
from harness.cli.sides import analyze_campaign
from harness.manifest import expand, load_manifest
from harness.record.reader import RunRecord, latest_sealed, read_run
from harness.runtimes.environments import find_environment
from harness.runtimes.ports import free_port
from harness.runtimes.vllm import VllmRuntime, options_of
from harness.system import Arm, Disaggregation, ModelPin, ParallelismPin, Pins

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
HEAD = """
trigpoint: 1
question: What does each knob show in the server's metrics and to the client?
pins:
  model: {id: tiny, dtype: bfloat16}
  hardware: {gpu: none, count: 0}
"""
TEXT = """
arms:
  tight: {runtime: vllm, version: 0.32.0, args: {max-num-seqs: 8, scheduling-policy: priority, PARTS, COMMON}}
  loose: {runtime: vllm, version: 0.32.0, args: {max-num-seqs: 64, scheduling-policy: fcfs, WHOLE, num-gpu-blocks-override: 80, COMMON}}
workload:
  trace: {format: mooncake, name: knobs.jsonl, sha256: SHA}
  prompts: {source: random-ids, sharing: as-trace}
  output-length: forced
  tenants: {urgent: {share: 0.2, priority: 0}, patient: {share: 0.8, priority: 10}}
window: {warm-up: 2s, measured: 18s, drain: 14s}
load: {time-compression: [1.0]}
replicates: {count: 1, vary: none, seed: 20261130}
"""
for name, words in {
    "COMMON": "max-model-len: 4608, enforce-eager: true",
    "PARTS": "max-num-batched-tokens: 256, enable-prefix-caching: true",
    "WHOLE": "max-num-batched-tokens: 8192, enable-chunked-prefill: false, enable-prefix-caching: false",
}.items():
    TEXT = TEXT.replace(name, words)
BLOCK = 512
"""Tokens of a block id of the trace."""
SHARED = 7 * BLOCK
"""Tokens that every second long prompt begins with."""
LONG, SHORT = 16, 48
"""Requests of 8 blocks, of which two fit into the small cache; requests of 100 tokens that grow to 300: there is room for half of them."""


@dataclass(frozen=True)
class Seen:
    """One sealed run: what the server counted, what the client saw."""

    record: RunRecord
    analysis: RunAnalysis

    def series(self, metric: str) -> npt.NDArray[np.float64]:
        """Samples of one of the server's metrics over the run."""
        rows = self.record.server_metrics.to_pylist()
        found = [row["value"] for row in rows if row["metric"] == metric and row["labels"] is None]
        assert found, f"the server's page shows no {metric}"
        return np.array(found)

    def grown(self, counter: str) -> float:
        return float(self.series(counter)[-1] - self.series(counter)[0])

    def clocks(self) -> Clocks:
        return derive_clocks(self.record)

    def ttft(self, kept: dict[int, bool]) -> npt.NDArray[np.float64]:
        """Time to the first token of kept requests, ns; endless without one.

        Not the cohort only: this asks which of two kinds came first, not how long either took.
        """
        clocks = self.clocks()
        mine = np.array([kept[i] for i in clocks.request_id.tolist()])
        assert mine.sum() >= 5
        waited = np.where(clocks.first_ns >= 0, clocks.first_ns - clocks.arrival_ns, np.inf)
        return np.asarray(waited[mine], dtype=np.float64)

    def longest_gap(self, q: float, kept: dict[int, bool]) -> float:
        """Quantile over kept requests of their longest gap between events, ns."""
        clocks = self.clocks()
        longest = np.zeros(len(clocks), dtype=np.int64)
        np.maximum.at(longest, clocks.event_gap_request, clocks.event_gap_ns)
        mine = np.array([kept[i] for i in clocks.request_id.tolist()]) & (longest > 0)
        assert mine.sum() >= 5
        return float(np.quantile(longest[mine], q))

    def engine_says(self, arg: str) -> object:
        return self.record.facts.before["server.effective_config"].value["args"][arg]

    def holds(self, *codes: str) -> None:
        checks = {check.code: check for check in self.analysis.checks}
        for code in codes:
            assert checks[code].verdict is Verdict.PASS, f"{code}: {checks[code].reason}"


def measured(folder: Path, name: str, text: str) -> dict[str, Seen]:
    """Run a campaign and return its runs by arm."""
    (folder / f"{name}.yaml").write_text(HEAD + text, encoding="utf-8")
    command = ("run", folder / f"{name}.yaml", "--results", folder / "results", "--traces", folder)
    subprocess.run([sys.executable, "-m", "harness.cli", *map(str, command)], timeout=600, cwd=ROOT, check=True)
    analyses = {cell.cell: cell.runs[0] for cell in analyze_campaign(folder / "results" / name).cells}
    records = {cell: read_run(path) for (cell, _), path in latest_sealed(folder / "results" / name).items()}
    return {cell.partition("@")[0]: Seen(record, analyses[cell]) for cell, record in records.items()}


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Both arms under the trace. What is asked about the burst needs no rate: it finds any host with more than it can serve at once."""
    folder = tmp_path_factory.mktemp("knobs")
    own = [list(range(10 + 8 * i, 18 + 8 * i)) for i in range(LONG)]
    ids = [[*range(7), row[7]] if i % 2 else row for i, row in enumerate(own)]
    rows = [{"timestamp": 1000 * i, "input_length": 8 * BLOCK, "output_length": 200, "hash_ids": row} for i, row in enumerate(ids)]
    rows += [{"timestamp": 17_000, "input_length": 100, "output_length": 200, "hash_ids": [1000 + i]} for i in range(SHORT)]
    rows.append(rows[-1] | {"timestamp": 34_000})  # never sent: a trace reaches to its last row, and the drain must lie in it
    raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "knobs.jsonl").write_bytes(raw)
    return measured(folder, "knobs", TEXT.replace("SHA", hashlib.sha256(raw).hexdigest()))


def kept(seen: Seen, fits: Callable[[dict[str, Any]], bool]) -> dict[int, bool]:
    """Which requests of the schedule fit."""
    return {row["request_id"]: fits(row) for row in seen.record.schedule.to_pylist()}


def short(seen: Seen, client: str | None = None) -> dict[int, bool]:
    return kept(seen, lambda row: row["input_tokens"] < BLOCK and client in (None, row["client"]))


def long(seen: Seen, *, shared: bool | None = None) -> dict[int, bool]:
    return kept(seen, lambda row: row["input_tokens"] > BLOCK and shared in (None, row["reusable_tokens"] >= SHARED))


def before(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    """Share of pairs in which the first came first, a tie as half: a half when nothing tells them apart, whatever the host's speed."""
    return float(np.mean((one[:, None] < other) + 0.5 * (one[:, None] == other)))


def test_the_most_sequences_cap_what_runs_and_the_rest_waits(arms: dict[str, Seen]) -> None:
    tight, loose = arms["tight"], arms["loose"]
    assert tight.series("requests_running").max() == 8
    assert tight.series("requests_waiting").max() > 8
    assert 8 < loose.series("requests_running").max() <= 64
    assert tight.engine_says("max_num_seqs") == 8
    for seen in (tight, loose):
        seen.holds("partition_closes", "requests_wellformed", "tokens_agree", "server_survived", "pins_match", "flags_known")


def test_a_cache_too_small_for_its_sequences_preempts_and_says_so(arms: dict[str, Seen]) -> None:
    roomy, small = arms["tight"], arms["loose"]
    assert small.grown("preemptions_total") > 0
    assert small.series("kv_usage_ratio").max() > 0.9
    assert roomy.grown("preemptions_total") == 0
    assert roomy.series("kv_usage_ratio").max() < 0.9
    capacity = {name: seen.record.facts.before["server.kv_capacity_tokens"].value for name, seen in arms.items()}
    assert capacity["loose"] <= 80 * 128 < capacity["tight"]
    # Whoever was preempted waits in mid-answer until somebody else has finished.
    assert small.longest_gap(0.9, short(small)) > roomy.longest_gap(0.9, short(roomy))


def test_a_priority_decides_who_waits_only_under_its_policy(arms: dict[str, Seen]) -> None:
    """Under ``fcfs`` the same priorities are accepted and ignored: no request is refused, and both clients wait alike."""
    reading, ignoring = arms["tight"], arms["loose"]
    assert before(*(reading.ttft(short(reading, client)) for client in ("urgent", "patient"))) > 0.75
    assert before(*(ignoring.ttft(short(ignoring, client)) for client in ("urgent", "patient"))) < 0.7
    assert reading.engine_says("scheduling_policy") == "priority"
    for seen in arms.values():
        assert set(seen.record.schedule["priority"].to_pylist()) == {0, 10}
        seen.holds("requests_wellformed")


def test_a_prefix_cache_serves_what_was_sent_before_and_its_requests_start_sooner(arms: dict[str, Seen]) -> None:
    on, off = arms["tight"], arms["loose"]
    known = sum(long(on, shared=True).values())
    assert on.grown("cached_tokens_total") >= SHARED * known / 2
    assert on.grown("prefix_queries_total") == on.grown("prompt_tokens_total")
    assert off.grown("cached_tokens_total") == 0
    sooner, plain = (np.median(seen.ttft(long(seen, shared=True))) / np.median(seen.ttft(long(seen, shared=False))) for seen in (on, off))
    assert sooner < 0.7
    assert sooner < plain
    on.holds("prefix_realised", "tokens_agree", "counts_agree")


def test_a_token_budget_bounds_the_gap_that_a_long_prompt_makes_for_others(arms: dict[str, Seen]) -> None:
    """Both servers compute every second prompt from its beginning, 4096 tokens; only one does it in one step."""
    parts, whole = arms["tight"], arms["loose"]
    assert (parts.engine_says("max_num_batched_tokens"), whole.engine_says("max_num_batched_tokens")) == (256, 8192)
    assert whole.engine_says("enable_chunked_prefill") is False
    # Several-fold on an idle host; one that takes the engine off its core now and then adds the same to both.
    assert parts.longest_gap(0.5, long(parts)) * 1.3 < whole.longest_gap(0.5, long(whole))
    assert whole.series("prefill_time_s_count")[-1] > 0


@pytest.mark.parametrize("path", sorted((ROOT / "manifests" / "knobs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_manifest_of_a_knob_is_taken_by_the_installed_parser(path: Path) -> None:
    for run in expand(load_manifest(path)).runs:
        assert VllmRuntime().check(run.arm, run.pins) == []


def test_placement_is_passed_on_in_words_that_the_installed_parser_knows(tmp_path: Path) -> None:
    """Not started here: there is one socket and nobody to hand a cache to."""
    split = ParallelismPin(tensor=2, pipeline=2, data=2, expert=4, disaggregation=Disaggregation(prefill=1, decode=0, connector="Nixl"))
    pins, arm = Pins(model=ModelPin(id="tiny", dtype="bfloat16"), parallelism=split), Arm(name="a", runtime="vllm", version="0.32.0")
    argv = VllmRuntime().command(arm, pins, free_port(), tmp_path).argv
    given = {word.removeprefix("--"): after for word, after in pairwise((*argv, "")) if word.startswith("--")}
    env = find_environment("vllm", "0.32.0")
    assert env is not None
    assert given.keys() <= options_of(env).keys()
    sizes = {axis: given[f"{axis}-parallel-size"] for axis in ("tensor", "pipeline", "data")}
    assert sizes == {"tensor": "2", "pipeline": "2", "data": "2"}
    assert "enable-expert-parallel" in given
    assert json.loads(given["kv-transfer-config"]) == {"kv_connector": "Nixl", "kv_role": "kv_producer"}
