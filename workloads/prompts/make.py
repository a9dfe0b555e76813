"""From a plan and its rows to prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from harness.errors import UsageError
from workloads.plan import WorkloadPlan
from workloads.prompts.atoms import MOST_PROBLEMS, shared_texts
from workloads.prompts.dataset import DatasetPrompts, dataset_rows
from workloads.prompts.ids import shared_ids, unshared_ids
from workloads.prompts.layouts import BlockLayout, HistoryLayout, Layout
from workloads.prompts.text import TextPrompts, TextWriter, impossible
from workloads.schedule import Blocks, Int64, Prompts, Turns
from workloads.tokens import TokenSource


class NotedPrompts(Prompts, Protocol):
    """Prompts that say what a user must know of them."""

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence each; none when there is nothing to say."""
        ...


def make_prompts(
    plan: WorkloadPlan,
    tokens: TokenSource,
    content: Int64,
    *,
    bos: bool,
    blocks: Blocks | None = None,
    turns: Turns | None = None,
    source_row: Int64 | None = None,
    answers: Int64 | None = None,
    texts: Sequence[str] | None = None,
) -> NotedPrompts:
    """Return the prompts of all requests: exactly ``content`` (n,) tokens each, made when asked for.

    ``content`` counts the special tokens that a completions server adds to a text (``bos``), not a chat template; earlier turns are in it.
    ``blocks`` and ``turns``, by request, say what is shared when ``plan.prompts.sharing`` is as_trace; blocks win, being what the trace
    says was shared. ``answers`` (n,): planned tokens of the answers within a history, needed with turns. ``texts`` and ``source_row`` are
    needed by prompts of a data set, with ``content`` from ``dataset_lengths``. What a user must know of them is in ``notes``.

    Raises UsageError with up to 20 problems when a text of that length does not exist, or does not encode part by part.
    """
    if plan.prompts.source == "dataset":
        return _dataset(plan, tokens, content, texts, source_row, bos=bos)
    added = tokens.added_tokens if bos else 0
    if plan.prompts.source == "text":
        _check_room(content, 1 + added)
    layout = _layout(plan, content - added, blocks, turns, answers)
    if plan.prompts.source == "random-ids":
        return unshared_ids(tokens.safe_ids, content, plan.seed) if layout is None else shared_ids(tokens.safe_ids, layout)
    if layout is not None:
        return shared_texts(tokens, layout, len(content), bos=bos)
    writer = TextWriter(tokens, seed=plan.seed, requests=len(content), bos=bos)
    return TextPrompts(writer, content, writer.notes(content))


def _dataset(
    plan: WorkloadPlan, tokens: TokenSource, content: Int64, texts: Sequence[str] | None, source_row: Int64 | None, *, bos: bool
) -> DatasetPrompts:
    if texts is None or source_row is None:
        raise ValueError("prompts of a data set need its texts and source_row")
    return DatasetPrompts(tokens, texts, dataset_rows(plan, source_row, len(texts)), content, bos)


def _layout(plan: WorkloadPlan, lengths: Int64, blocks: Blocks | None, turns: Turns | None, answers: Int64 | None) -> Layout | None:
    """What prompts share; None when nothing."""
    if plan.prompts.sharing == "none":
        return None
    if blocks is not None:
        return BlockLayout(lengths, blocks, plan.seed, plan.trace.sha256 if plan.trace else "")
    if turns is None or (plan.sessions is not None and plan.sessions.history == "none"):
        return None
    if answers is None:
        raise ValueError("a history needs the planned lengths of the answers in it")
    return HistoryLayout(lengths, answers, turns.extends, plan.seed)


def _check_room(content: Int64, least: int) -> None:
    short = np.flatnonzero(content < least)[:MOST_PROBLEMS].tolist()
    if short:
        why = f"the shortest text has {least} under this tokenizer"
        raise UsageError(*(problem for i in short for problem in impossible(i, int(content[i]), why).problems))
