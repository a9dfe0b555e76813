"""``python -m benchmarks.simulate [--traces FOLDER] [--policy ID]``: the engine in virtual time, every plan and result validated.

Prints selected intervals a second (a chunk of 2,048 rows counts once) for the whole public Azure 2023 conversation trace, which is an hour
of a service, the cost of one request at three lengths of the same load, and beside them a loop that keeps one Python object a request,
validates nothing and knows one policy, over the same trace under the same budgets and cost model. CPU time of this process, so that a busy
host blurs it less, and wall time beside it.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.engine import Core, online_workload
from harness.reference.registry import POLICIES, make_policy
from harness.simulate import Offered, simulate
from workloads.plan import TraceSource
from workloads.traces import load_trace

S = 1_000_000_000
CONVERSATION = TraceSource(
    format="azure-2023", name="AzureLLMInferenceTrace_conv", sha256="2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8"
)
BUDGETS = Budgets(tokens=2048, sequences=256, kv_capacity=400_000)
COSTS = CostModel(base_ns=12_000_000, prefill_token_ns=25_000, decode_row_ns=150_000, context_token_ns=40)
"""Declared, no hardware's: about two dozen requests run at once under the trace's own arrivals."""


def offered_load(folder: Path, requests: int | None = None) -> Offered:
    trace = load_trace(CONVERSATION, (folder,))
    rows = slice(None, requests)
    length = np.maximum(trace.output_tokens[rows], 1)
    zeros = np.zeros(len(length), np.int64)
    prompt = np.maximum(trace.input_tokens[rows], 1)
    return Offered(trace.arrival_ns[rows], prompt, length, zeros + 2**62, zeros - 1, zeros - 1, zeros, zeros)


@dataclass
class Row:
    prompt: int
    length: int
    computed: int = 0
    emitted: int = 0


def plain_loop(offered: Offered) -> tuple[int, float]:
    """One object a request, no records, no checks: intervals and CPU seconds."""
    started = time.process_time()
    coming = deque(zip(offered.arrival_ns.tolist(), offered.prompt.tolist(), offered.maximum.tolist(), strict=True))
    running: list[Row] = []
    now = intervals = 0
    while coming or running:
        if not running:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now and len(running) < BUDGETS.sequences:
            _, prompt, length = coming.popleft()
            running.append(Row(prompt, length))
        left, decodes, context = BUDGETS.tokens, 0, 0
        for row in running:
            want = row.prompt - row.computed if row.computed < row.prompt else 1
            width = min(want, left)
            if width:
                decodes += row.computed >= row.prompt
                left -= width
                row.computed += width
                context += row.computed
                row.emitted += row.computed >= row.prompt
                intervals += 1
        running = [row for row in running if row.emitted < row.length]
        prefill = BUDGETS.tokens - left - decodes
        now += COSTS.base_ns + prefill * COSTS.prefill_token_ns + decodes * COSTS.decode_row_ns + context * COSTS.context_token_ns
    return intervals, time.process_time() - started


@dataclass(frozen=True)
class Timed:
    """One simulation: intervals and iterations, CPU and wall seconds, the span of virtual time in seconds."""

    requests: int
    intervals: int
    iterations: int
    cpu_s: float
    wall_s: float
    virtual_s: float

    @property
    def request_us(self) -> float:
        """CPU time of a request."""
        return self.cpu_s / self.requests * 1e6


def validated(offered: Offered, policy_id: str) -> Timed:
    """Time the real thing: every plan and every result goes through the validators."""
    policy = make_policy(policy_id)
    core = Core(online_workload(policy, BUDGETS), policy, COSTS)
    cpu, wall = time.process_time(), time.perf_counter()
    run = simulate(core, offered, until_ns=int(offered.arrival_ns[-1]) + 3600 * S)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert len(run.token_ns) == int(offered.maximum.sum()), "a token is missing"
    return Timed(len(offered), run.counts.intervals, run.counts.iterations, cpu, wall, float(run.token_ns[-1]) / S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=Path(__file__).parents[2] / "shared" / "traces")
    parser.add_argument("--policy", choices=sorted(POLICIES), default="vllm-shaped-fcfs")
    parser.add_argument("--requests", type=int, default=None, help="only the first so many")
    args = parser.parse_args()
    load = offered_load(args.traces, args.requests)
    half, quarter = (validated(offered_load(args.traces, len(load) // parts), args.policy) for parts in (2, 4))
    whole = validated(load, args.policy)
    tokens, minutes = int(load.maximum.sum()), whole.virtual_s / 60
    print(f"{args.policy}: {whole.requests} requests, {tokens} output tokens, {minutes:.0f} minutes of a service")
    print(f"  {whole.cpu_s:.1f} s CPU, {whole.wall_s:.1f} s wall: {whole.virtual_s / whole.wall_s:.0f} times as fast as real time")
    each = f"{whole.cpu_s / whole.iterations * 1e6:.0f} us an iteration of {whole.intervals / whole.iterations:.1f} intervals"
    print(f"  {whole.intervals / whole.cpu_s:,.0f} selected intervals a second of one core, {each}")
    costs = f"{quarter.request_us:.0f}, {half.request_us:.0f} and {whole.request_us:.0f} us"
    print(f"  a request costs {costs} in a quarter, half and all of them")
    plain, plain_s = plain_loop(load)
    ratio = whole.intervals / whole.cpu_s / (plain / plain_s)
    print(f"plain loop, one object a request, nothing checked: {plain / plain_s:,.0f} intervals a second; ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
