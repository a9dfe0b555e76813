"""From a plan and its rows to prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.errors import UsageError
from workloads.plan import WorkloadPlan
from workloads.prompts.ids import shared_ids, unshared_ids
from workloads.prompts.layouts import BlockLayout, HistoryLayout, Layout
from workloads.prompts.text import TextPrompts, TextWriter, impossible
from workloads.schedule import Blocks, Int64, Prompts, Turns
from workloads.tokens import TokenSource


def make_prompts(
    plan: WorkloadPlan,
    tokens: TokenSource,
    content: Int64,
    *,
    bos: bool,
    blocks: Blocks | None = None,
    turns: Turns | None = None,
    source_row: Int64 | None = None,
    realized: Int64 | None = None,
    texts: Sequence[str] | None = None,
) -> Prompts:
    """Return the prompts of all requests."""
    layout = _layout(plan, content, blocks, turns, realized)
    if plan.prompts.source == "random-ids":
        return unshared_ids(tokens.safe_ids, content, plan.seed) if layout is None else shared_ids(tokens.safe_ids, layout)
    writer = TextWriter(tokens, seed=plan.seed, requests=len(content), bos=bos)
    short = np.flatnonzero(content < writer.least).tolist()
    if short:
        raise UsageError(*(p for i in short[:20] for p in impossible(i, int(content[i]), f"the shortest text has {writer.least}").problems))
    return TextPrompts(writer, content, writer.notes(content))


def _layout(plan: WorkloadPlan, lengths: Int64, blocks: Blocks | None, turns: Turns | None, realized: Int64 | None) -> Layout | None:
    """What prompts share; None when nothing. Blocks win over history: they are what the trace says was shared."""
    if plan.prompts.sharing == "none":
        return None
    if blocks is not None:
        return BlockLayout(lengths, blocks, plan.seed)
    if turns is None or (plan.sessions is not None and plan.sessions.history == "none"):
        return None
    if realized is None:
        raise ValueError("a history needs the realized lengths of the answers in it")
    return HistoryLayout(lengths, realized, turns.extends, plan.seed)
