"""What an endless cache could reuse: exact against brute force, for prompts of every kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_workloads_prompts import LargeTokenizer, blocks, common, make, rows_of, turns
from workloads import reuse
from workloads.reuse import possible, reusable_tokens
from workloads.schedule import Schedule
from workloads.traces import read_trace


class Rows(list[list[int]]):
    """A schedule of these prompts, as far as reuse looks at one."""

    @property
    def prompts(self) -> SimpleNamespace:
        return SimpleNamespace(ids=lambda i: np.array(self[i], dtype=np.int32))


def reusable(rows: Sequence[Sequence[int]]) -> list[int]:
    return reusable_tokens(cast(Schedule, Rows([list(row) for row in rows]))).tolist()


def brute(rows: Sequence[Sequence[int]]) -> list[int]:
    return [max((common(row, earlier) for earlier in rows[:i]), default=0) for i, row in enumerate(rows)]


@pytest.mark.parametrize("stride", [1, 2, 3, 128])
@given(st.lists(st.lists(st.sampled_from([0, 1, 256, 70_000]), max_size=14), max_size=9))
def test_it_is_what_comparing_all_pairs_finds(stride: int, rows: list[list[int]]) -> None:
    """Small strides, so that a short prompt has many steps; ids that differ in different bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reuse, "STRIDE", stride)
        patch.setattr(reuse, "_STEP", 4 * stride)
        assert reusable(rows) == brute(rows)


@pytest.mark.parametrize("length", [127, 128, 129, 255, 256, 300])
def test_ends_of_steps_are_exact(length: int) -> None:
    row = list(range(1000, 1000 + length))
    assert reusable([row, row, row[:-1], [*row, 1], [*row[:-1], 5, 5]]) == [0, length, length - 1, length, length - 1]


def test_the_tree_is_exact_for_blocks_and_histories() -> None:
    shared = blocks([[1, 2, 3], [1, 2, 4], [5], [1, 2, 3], [5, 6]], 100)
    made = rows_of(make([300, 300, 80, 250, 200], sharing="as_trace", blocks=shared), 5)
    found = reusable(made)
    assert found == brute(made)
    assert [value // 10 for value in found] == [0, 20, 0, 25, 8]
    carried: dict[str, Any] = {"turns": turns([-1, 0, 1]), "answers": np.array([50, 50, 50])}
    made = rows_of(make([200, 400, 700], sharing="as_trace", **carried), 3)
    # The planned answer is part of the next prompt and of the one after it, so the third shares all of the second.
    assert reusable(made)[1:] == brute(made)[1:] == [200, 400]


def test_prompts_made_to_bust_a_cache_share_less_than_their_number() -> None:
    assert max(reusable(rows_of(make([300] * 400), 400))) <= 1
    prompts = make([60] * 200, source="text")
    assert max(reusable(rows_of(prompts, 200))) < 24  # two words and the blanks between


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=9), st.integers(1, 64))
def test_possible_is_whole_blocks_below_the_last_token(pairs: list[tuple[int, int]], block: int) -> None:
    lengths = np.array([max(pair) for pair in pairs])
    shared = np.array([min(pair) for pair in pairs])
    found = possible(shared, lengths, block)
    assert ((found % block == 0) & (found <= shared) & (found <= np.maximum(lengths - 1, 0))).all()
    assert (np.minimum(shared, np.maximum(lengths - 1, 0)) - found < block).all()


def test_a_prompt_seen_in_full_is_still_computed_at_its_end() -> None:
    assert possible(np.array([32, 33]), np.array([32, 40]), 16).tolist() == [16, 32]
    assert possible(np.array([32]), np.array([32]), 1).tolist() == [31]
    with pytest.raises(ValueError, match="block_size=0"):
        possible(np.array([1]), np.array([1]), 0)


TRACES = Path(__file__).parents[3] / "shared" / "traces"


@pytest.mark.traces
@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the project")
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_whole_mooncake_traces_share_what_was_counted_from_their_ids(name: str) -> None:
    """From the tokens, made block by block, to the share that another program counted from the hash ids alone."""
    facts = json.loads((TRACES / "facts.json").read_text())["facts"][f"mooncake_{name}"]
    trace = read_trace("mooncake", TRACES / facts["file"])
    made = make(trace.input_tokens.tolist(), LargeTokenizer(), sharing="as_trace", blocks=trace.blocks)
    assert made.notes == ()

    class Plan:
        prompts = made

        def __len__(self) -> int:
            return len(trace)

    total = int(trace.input_tokens.sum())
    beyond = int(reusable_tokens(cast(Schedule, Plan())).sum()) - facts["prefix"]["ideal_prefix_hit_tokens"] * total
    # The fact has six digits. Behind a block that differs, some earlier prompt of thousands often agrees in one token more by chance.
    assert -1e-6 * total < beyond < len(trace)
