"""Before any load the server counts some of the texts that will be sent; afterwards its usage counts all of them (`tokens_agree`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness.errors import HostError, Problem
from harness.manifest import PlannedRun
from harness.runtimes.asking import Reply, ask
from harness.runtimes.contract import Target
from workloads import Schedule

LOOKED_AT = 5
"""Texts that the server counts, from the shortest to the longest. A wrong tokenizer, template or BOS rule is wrong on every one of them."""

Ask = Callable[..., Reply | None]


def check_tokens(schedule: Schedule, run: PlannedRun, target: Target, headers: Mapping[str, str], asking: Ask = ask) -> dict[str, Any]:
    """Hold planned prompt lengths against the server's ``/tokenize``; return what was looked at, for the record.

    Token ids are counted by their number and not looked at. A server without the route is left to its usage. Raises HostError
    ``tokens_differ`` (exit 3) with every text that the server counts otherwise: no load is sent.
    """
    texts = {i: text for i in _spread(schedule) if (text := schedule.prompts.text(i)) is not None}
    if not texts:
        return {"asked": 0, "reason": "prompts are token ids"}
    counts = {i: _count(asking, target, headers, _asked(run, target, text)) for i, text in texts.items()}
    wrong = [(i, count) for i, count in counts.items() if count is not None and count != int(schedule.input_tokens[i])]
    if wrong:
        raise HostError(*(_differs(schedule, run, i, count) for i, count in wrong))
    agreed = len(counts) - list(counts.values()).count(None)
    if agreed == 0:
        return {"asked": 0, "reason": "the server has no /tokenize that counts"}
    return {"asked": len(counts), "agreed": agreed}


def _spread(schedule: Schedule) -> list[int]:
    order = np.argsort(schedule.input_tokens, kind="stable")
    return sorted({int(order[at]) for at in np.linspace(0, len(order) - 1, min(LOOKED_AT, len(order))).round().astype(int)})


def _asked(run: PlannedRun, target: Target, text: str) -> dict[str, Any]:
    if run.workload.api == "chat":
        return {"model": target.model, "messages": [{"role": "user", "content": text}], "add_generation_prompt": True}
    return {"model": target.model, "prompt": text, "add_special_tokens": True}


def _count(asking: Ask, target: Target, headers: Mapping[str, str], post: dict[str, Any]) -> int | None:
    reply = asking(target.base_url, "/tokenize", timeout_s=10.0, headers=headers, post=post)
    page = reply.json() if reply is not None and reply.status == 200 else None
    count = page.get("count") if isinstance(page, dict) else None
    return count if isinstance(count, int) else None


def _differs(schedule: Schedule, run: PlannedRun, request_id: int, count: int) -> Problem:
    planned = int(schedule.input_tokens[request_id])
    return Problem(
        "tokens_differ",
        f"request {request_id}: {planned} prompt tokens are planned, the server counts {count}: lengths would not be those of the workload",
        "name the tokenizer of the served model, and start the server with the template and BOS rule that it states",
        where=run.cell,
    )
