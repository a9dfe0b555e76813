"""The digest: of all that is sent and planned, and of nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit.test_workloads_prompts import make, turns
from workloads import content_digest
from workloads.schedule import Int64, Labels, Ragged, Schedule, frozen


def column(*values: int) -> Int64:
    return frozen(np.array(values, dtype=np.int64))


def schedule(**changes: Any) -> Schedule:
    base = Schedule(
        arrival_ns=column(0, 5, 9),
        input_tokens=column(4, 5, 6),
        output_tokens=column(1, 2, 3),
        max_tokens=column(7, 7, 7),
        stop_after=column(-1, -1, -1),
        source_row=column(0, 1, 2),
        prompts=make([4, 5, 6]),
        transforms=(),
        ignore_eos=False,
        recipe=b"{}",
        client=Labels.of(["a", None, "b"]),
        request_class=None,
        turns=turns([-1, 0, -1]),
        priority=column(1, 2, 3),
        cancel_after_ns=column(-1, -1, 8),
    )
    return replace(base, **changes)


CHANGES: dict[str, dict[str, Any]] = {
    "arrival": {"arrival_ns": column(0, 5, 8)},
    "input": {"input_tokens": column(4, 5, 7)},
    "output": {"output_tokens": column(1, 2, 4)},
    "told": {"max_tokens": column(7, 7, 8)},
    "stop": {"stop_after": column(-1, -1, 3)},
    "row": {"source_row": column(0, 1, 3)},
    "prompts": {"prompts": make([4, 5, 6], seed=6)},
    "text": {"prompts": make([4, 5, 6], source="text")},
    "recipe": {"recipe": b"{ }"},
    "client": {"client": Labels.of(["a", None, "c"])},
    "no client": {"client": None},
    "class": {"request_class": Labels.of(["a", None, "b"]), "client": None},
    "class too": {"request_class": Labels.of(["a", None, "b"])},
    "priority": {"priority": column(1, 2, 4)},
    "no priority": {"priority": None},
    "cancelled": {"cancel_after_ns": column(-1, -1, -1)},
    "no turns": {"turns": None},
    "extends": {"turns": turns([-1, 0, 0])},
    "waits": {"turns": replace(turns([-1, 0, -1]), after=Ragged.of([[], [0], []], np.int64))},
    "waits for another": {"turns": replace(turns([-1, 0, -1]), after=Ragged.of([[], [], [0]], np.int64))},
}


def test_every_column_and_prompt_changes_it() -> None:
    digests = [content_digest(schedule(**change)) for change in ({}, *CHANGES.values())]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("order", [("a", "b", "unused"), ("unused", "b", "a")])
def test_neither_the_order_of_names_nor_an_unused_one_changes_it(order: tuple[str, ...]) -> None:
    codes = [order.index("a"), -1, order.index("b")]
    labels = Labels(order, frozen(np.array(codes, dtype=np.int32)))
    assert content_digest(schedule(client=labels)) == content_digest(schedule())


def test_ids_of_any_layout_in_memory_are_the_same_ids() -> None:
    class Strided:
        notes = ()

        def ids(self, request_id: int) -> Any:
            return np.repeat(make([4, 5, 6]).ids(request_id), 2)[::2]

        def text(self, request_id: int) -> None:
            """No text."""

    assert content_digest(schedule(prompts=Strided())) == content_digest(schedule())
