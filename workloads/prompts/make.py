"""From a plan and its rows to prompts."""

from __future__ import annotations

from collections.abc import Sequence

from harness.errors import Problem, UsageError
from workloads.plan import WorkloadPlan
from workloads.prompts.text import RandomIds, TextPrompts, TextWriter
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
    """Return the prompts of all requests; see the module."""
    if plan.prompts.source == "random-ids":
        return RandomIds(tokens.safe_ids, content, plan.seed)
    writer = TextWriter(tokens, bos=bos)
    texts_made: list[str] = []
    problems: list[Problem] = []
    for request_id, count in enumerate(content.tolist()):
        try:
            texts_made.append(writer.write(count, plan.seed, request_id))
        except UsageError as error:
            problems.extend(error.problems)
            if len(problems) == 20:  # a screenful; a tokenizer that fails this often fails for one reason
                break
    if problems:
        raise UsageError(*problems)
    return TextPrompts(tokens, tuple(texts_made), bos)
