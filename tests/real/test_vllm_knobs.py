"""Knobs of a real vLLM on this machine's CPU, each seen twice in a sealed record: in the server's metrics and in the client's clocks.

Four server starts, two of each workload. Ratios are asserted, far below those of an idle host, and never times: a host may be busy.

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
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

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
# On cores of its own: threads of the engine that wait for one another stand still for seconds when one of them has lost its core.
client: {cpus: [0], server-cpus: [1]}
"""
CROWD = """
arms:
  few: {runtime: vllm, version: 0.32.0, args: {max-num-seqs: 4, scheduling-policy: priority, COMMON}}
  small-cache: {runtime: vllm, version: 0.32.0, args: {max-num-seqs: 32, scheduling-policy: fcfs, num-gpu-blocks-override: 10, COMMON}}
workload:
  lengths: {input: {kind: constant, value: 100}, output: {kind: constant, value: 100}}
  arrivals: {process: constant}
  prompts: {source: random-ids}
  output-length: forced
  loop: closed
  users: 24
  sessions: {think-time: 0s}
  tenants: {urgent: {share: 0.2, priority: 0}, patient: {share: 0.8, priority: 10}}
window: {warm-up: 2s, measured: 10s, drain: 4s}
load: {rate: [100/s]}
replicates: {count: 1, vary: none, seed: 20261130}
""".replace("COMMON", "max-model-len: 1024, enforce-eager: true, enable-prefix-caching: false")
PROMPTS = """
arms:
  parts: {runtime: vllm, version: 0.32.0, args: {max-num-batched-tokens: 256, enable-prefix-caching: true, COMMON}}
  whole: {runtime: vllm, version: 0.32.0, args: {enable-chunked-prefill: false, enable-prefix-caching: false, BUDGET, COMMON}}
workload:
  trace: {format: mooncake, name: prompts.jsonl, sha256: SHA}
  prompts: {source: random-ids, sharing: as-trace}
  output-length: forced
window: {warm-up: 2s, measured: 16s, drain: 4s}
load: {time-compression: [1.0]}
replicates: {count: 1, vary: none, seed: 20261130}
""".replace("COMMON", "max-num-seqs: 8, max-model-len: 8192, enforce-eager: true").replace("BUDGET", "max-num-batched-tokens: 8192")
BLOCK = 512
"""Tokens of a block id of the trace."""
ANSWER = 400
"""Tokens: 1.4 s where one takes 3.4 ms, the fastest that was seen here, so that the next prompt comes while they are decoded."""
SHARED = 7 * BLOCK
"""Tokens that every second prompt begins with."""


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

    def ttft_p50(self, kept: dict[int, bool], *, offered: bool = False) -> float:
        """Median time to the first token over kept requests that have one, ns; ``offered``: over all of them, without one endless.

        Not the cohort only: this asks which of two kinds came first, not how long either took.
        """
        clocks = self.clocks()
        came = clocks.first_ns >= 0
        mine = np.array([kept[i] for i in clocks.request_id.tolist()]) & (came | offered)
        assert mine.sum() >= 5
        return float(np.median(np.where(came, clocks.first_ns - clocks.arrival_ns, np.inf)[mine]))

    def longest_gap(self, q: float) -> float:
        """Quantile over requests of their longest gap between events, ns."""
        clocks = self.clocks()
        longest = np.zeros(len(clocks), dtype=np.int64)
        np.maximum.at(longest, clocks.event_gap_request, clocks.event_gap_ns)
        return float(np.quantile(longest[longest > 0], q))

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
def crowd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Short requests of two priorities, always more than four at a time can serve or a cache of ten blocks can hold.

    A closed loop, because an open one overloads a busy host until nothing is served and a fast one not at all; no rate is asked about.
    """
    return measured(tmp_path_factory.mktemp("crowd"), "crowd", CROWD)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Long prompts, every second of which begins like those before it, while others are decoded."""
    folder = tmp_path_factory.mktemp("prompts")
    own = [list(range(10 + 8 * i, 18 + 8 * i)) for i in range(22)]
    ids = [[*range(7), row[7]] if i % 2 else row for i, row in enumerate(own)]
    rows = ({"timestamp": 1000 * i, "input_length": 8 * BLOCK, "output_length": ANSWER, "hash_ids": row} for i, row in enumerate(ids))
    raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / "prompts.jsonl").write_bytes(raw)
    return measured(folder, "prompts", PROMPTS.replace("SHA", hashlib.sha256(raw).hexdigest()))


def of_client(seen: Seen, name: str) -> dict[int, bool]:
    schedule = seen.record.schedule
    return {i: client == name for i, client in zip(schedule["request_id"].to_pylist(), schedule["client"].to_pylist(), strict=True)}


def sharing(seen: Seen, shared: bool) -> dict[int, bool]:
    schedule = seen.record.schedule
    reusable = schedule["reusable_tokens"].to_pylist()
    return {i: (tokens >= SHARED) is shared for i, tokens in zip(schedule["request_id"].to_pylist(), reusable, strict=True)}


def test_the_most_sequences_cap_what_runs_and_the_rest_waits(crowd: dict[str, Seen]) -> None:
    few, many = crowd["few"], crowd["small-cache"]
    assert few.series("requests_running").max() == 4
    assert few.series("requests_waiting").max() > 4
    assert 4 < many.series("requests_running").max() <= 32
    assert few.engine_says("max_num_seqs") == 4
    for seen in (few, many):
        seen.holds("partition_closes", "requests_wellformed", "tokens_agree", "server_survived", "pins_match", "flags_known")


def test_a_cache_too_small_for_its_sequences_preempts_and_says_so(crowd: dict[str, Seen]) -> None:
    small, roomy = crowd["small-cache"], crowd["few"]
    assert small.grown("preemptions_total") > 0
    assert small.series("kv_usage_ratio").max() > 0.9
    assert roomy.grown("preemptions_total") == 0
    assert roomy.series("kv_usage_ratio").max() < 0.1
    capacity = {name: seen.record.facts.before["server.kv_capacity_tokens"].value for name, seen in crowd.items()}
    assert capacity["small-cache"] <= 10 * 128 < capacity["few"]
    # Whoever was preempted waits in mid-answer until somebody else has finished.
    assert small.longest_gap(0.9) > roomy.longest_gap(0.9)


def test_a_priority_decides_who_waits_only_under_its_policy(crowd: dict[str, Seen]) -> None:
    """Under ``fcfs`` the same priorities are accepted and ignored: no request is refused, and both clients wait alike."""
    few, ignoring = crowd["few"], crowd["small-cache"]
    assert few.ttft_p50(of_client(few, "urgent"), offered=True) < 0.5 * few.ttft_p50(of_client(few, "patient"), offered=True)
    assert ignoring.ttft_p50(of_client(ignoring, "urgent")) > 0.5 * ignoring.ttft_p50(of_client(ignoring, "patient"))
    assert few.engine_says("scheduling_policy") == "priority"
    for seen in crowd.values():
        assert set(seen.record.schedule["priority"].to_pylist()) == {0, 10}
        seen.holds("requests_wellformed")


def test_a_prefix_cache_serves_what_was_sent_before_and_its_requests_start_sooner(prompts: dict[str, Seen]) -> None:
    on, off = prompts["parts"], prompts["whole"]
    known = sum(sharing(on, shared=True).values())
    assert on.grown("cached_tokens_total") >= SHARED * known / 2
    assert on.grown("prefix_queries_total") == on.grown("prompt_tokens_total")
    assert off.grown("cached_tokens_total") == 0
    sooner, plain = (seen.ttft_p50(sharing(seen, shared=True)) / seen.ttft_p50(sharing(seen, shared=False)) for seen in (on, off))
    assert sooner < 0.7
    assert sooner < plain
    on.holds("prefix_realised", "tokens_agree", "counts_agree")


def test_a_token_budget_bounds_the_gap_that_a_long_prompt_makes_for_others(prompts: dict[str, Seen]) -> None:
    """Both servers compute every second prompt from its beginning, 4096 tokens; only one does it in one step."""
    parts, whole = prompts["parts"], prompts["whole"]
    assert (parts.engine_says("max_num_batched_tokens"), whole.engine_says("max_num_batched_tokens")) == (256, 8192)
    assert whole.engine_says("enable_chunked_prefill") is False
    # Nine-fold on an idle host; one that takes the engine off its core now and then adds the same to both.
    assert parts.longest_gap(0.5) * 1.3 < whole.longest_gap(0.5)
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
