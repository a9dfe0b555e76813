"""The prefix store under a whole public trace, requests one after another: they take what a plain LRU over the trace's ids gives."""

from __future__ import annotations

from itertools import islice, takewhile
from pathlib import Path

import pytest

from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.engine import Engine
from harness.reference.prefix import PrefixStore
from harness.reference.registry import make_policy
from harness.reference.tokens import Truth
from workloads.schedule import Trace
from workloads.traces import read_trace

TRACE = Path(__file__).parents[3] / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl.gz"
pytestmark = [pytest.mark.traces, pytest.mark.skipif(not TRACE.is_file(), reason="the public traces are not beside the project")]

BLOCK = 512


@pytest.fixture(scope="module")
def conversations() -> list[tuple[int, list[int]]]:
    """Prompt tokens and ids of the whole blocks; an id of this trace stands for a block and all before it."""
    trace: Trace = read_trace("mooncake", TRACE)
    assert trace.blocks is not None
    ids = trace.blocks.ids
    return [(tokens, ids.row(i)[: tokens // BLOCK].tolist()) for i, tokens in enumerate(trace.input_tokens.tolist())]


def plain(prompts: list[tuple[int, list[int]]], most: int) -> int:
    """Tokens taken from an LRU of ``most`` ids, walked block by block."""
    held: dict[int, None] = {}
    taken = 0
    for tokens, ids in prompts:
        taken += BLOCK * sum(1 for _ in takewhile(held.__contains__, ids[: (tokens - 1) // BLOCK]))
        for known in reversed(ids[:most]):
            held.pop(known, None)
            held[known] = None
        for oldest in list(islice(held, max(0, len(held) - most))):
            del held[oldest]
    return taken


def test_every_conversation_takes_what_a_plain_lru_would_give(conversations: list[tuple[int, list[int]]]) -> None:
    most = 2_000  # a hundredth of the distinct blocks: nearly every prompt drives others out
    budgets = Budgets(tokens=131_072, sequences=1, kv_capacity=131_072)
    engine = Engine(make_policy("vllm-shaped-fcfs"), budgets, CostModel(1, 1, 1, 0), prefix=PrefixStore(BLOCK, most * BLOCK))
    taken = now = 0
    for number, (tokens, ids) in enumerate(conversations):
        engine.submit(str(number), tokens, 1, Truth(number, None), chain=tuple(block.to_bytes(8, "little") for block in ids))
        begun = engine.begin(now)
        assert begun is not None
        now += begun[1]
        (published,) = engine.tokens_of(engine.complete(now))
        assert begun[0].ledger.tokens + published.cached_tokens == tokens
        taken += published.cached_tokens
    assert taken == plain(conversations, most)
