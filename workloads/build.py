"""From a plan to the immutable schedule: rows, who waits for whom, output control, senders, prompts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.errors import Problem, UsageError
from workloads import seeds
from workloads.assemble import Rows, assemble
from workloads.check import check_lengths, check_plan
from workloads.plan import WorkloadPlan
from workloads.prompts import dataset_lengths, dataset_texts, make_prompts
from workloads.schedule import Int64, Schedule, Trace, frozen
from workloads.sessions import planned_answers
from workloads.tenants import Senders, assign
from workloads.tokens import TokenSource
from workloads.traces import load_trace
from workloads.transforms import to_ns
from workloads.without import Crowd, without_clients


@dataclass(frozen=True, slots=True, eq=False)
class _Resolved:
    """All of a schedule that needs no server: what can be checked before one is started."""

    rows: Rows
    senders: Senders
    cancel_after_ns: Int64 | None


def build_schedule(
    plan: WorkloadPlan,
    *,
    tokens: TokenSource,
    search_path: Sequence[Path],
    max_model_len: int,
    chat_overhead: int = 0,
    server_adds_bos: bool = True,
) -> Schedule:
    """Resolve ``plan`` into what will be sent and when, with one digest over all of it.

    ``tokens``: the served model's tokenizer; ``max_model_len``: most tokens a request may hold, prompt and output. Text prompts:
    ``server_adds_bos`` says whether a completions server adds the tokenizer's own special tokens (counted in ``input_tokens``);
    ``chat_overhead`` is how many tokens the chat template adds, so content + overhead = input_tokens, and ``prompt_ids`` of chat gives the
    content's ids. Everything else is as in ``Schedule``; ``source_row`` is -1 without a trace.

    Raises UsageError with all problems of the first stage that has any: the plan, the trace, its chain, sessions and tenants, the rows
    (nothing to send, lengths that do not fit the model or the output control), the prompts.
    """
    trace = load_trace(plan.trace, search_path, plan.seed) if plan.trace else None
    found = _resolve(plan, trace, chat_overhead)
    overhead = chat_overhead if plan.api == "chat" else 0
    added = tokens.added_tokens if plan.api != "chat" and plan.prompts.source != "random-ids" and server_adds_bos else 0
    rows, texts = found.rows.trace, None
    if plan.prompts.dataset is not None:
        texts = dataset_texts(plan.prompts.dataset, search_path)
        counted = dataset_lengths(plan, tokens, texts, rows.source_row, bos=bool(added))
        rows = found.rows.measured(frozen(counted + overhead))
    check_lengths(plan, rows, max_model_len, overhead + added)
    max_tokens, stop_after = _output_columns(plan, rows.output_tokens)
    prompts = make_prompts(
        plan,
        tokens,
        rows.input_tokens - overhead if overhead else rows.input_tokens,
        bos=bool(added),
        blocks=rows.blocks,
        turns=rows.turns,
        source_row=rows.source_row,
        answers=planned_answers(plan, rows.output_tokens, trace.turns if trace else None),
        texts=texts,
    )
    return Schedule(
        rows.arrival_ns,
        rows.input_tokens,
        rows.output_tokens,
        max_tokens,
        stop_after,
        rows.source_row,
        prompts=prompts,
        recipe=_recipe(plan, overhead),
        transforms=found.rows.log(),
        ignore_eos=plan.output.control in {"forced", "client_stop"},
        client=found.senders.client,
        request_class=found.senders.request_class,
        turns=rows.turns,
        priority=found.senders.priority,
        cancel_after_ns=found.cancel_after_ns,
    )


def check_rows(plan: WorkloadPlan, trace: Trace | None) -> None:
    """Raise what ``build_schedule`` would, as far as it can be known before a server says its tokenizer and its longest request.

    ``trace``: the loaded ``plan.trace``. A server takes minutes to start; a window outside the trace should not cost them.
    """
    rows = _resolve(plan, trace, 0).rows.trace
    if plan.prompts.dataset is not None:  # lengths of its texts wait for the tokenizer
        rows = replace(rows, input_tokens=np.ones_like(rows.input_tokens))
    check_lengths(plan, rows, np.iinfo(np.int64).max, 0)


def _resolve(plan: WorkloadPlan, trace: Trace | None, chat_overhead: int) -> _Resolved:
    check_plan(plan, chat_overhead)
    rows = assemble(plan, trace)
    if not len(rows.trace):
        raise _empty(plan, rows)
    senders, cancelled = assign(plan, rows.trace), _cancellations(plan, len(rows.trace))
    if plan.without_clients:
        left = without_clients(plan, Crowd(rows, senders, cancelled))
        return _Resolved(left.rows, left.senders, left.cancel_after_ns)
    return _Resolved(rows, senders, cancelled)


def _cancellations(plan: WorkloadPlan, count: int) -> Int64 | None:
    """When the client gives up each request, from its arrival; drawn from the seed's dimension ``cancel``."""
    if plan.cancellations is None:
        return None
    given_up = seeds.generator(plan.seed, "cancel").random(count) < plan.cancellations.share
    return frozen(np.where(given_up, to_ns(plan.cancellations.after_s), -1))


def _output_columns(plan: WorkloadPlan, realized: Int64) -> tuple[Int64, Int64]:
    """(max_tokens, stop_after) by control (DESIGN 4). Only ``forced`` tells the server anything of ``realized``.

    Columns are read-only, so one that equals another is the same array: no request is realized beyond what client_stop declares.
    """
    declared = frozen(np.full(len(realized), plan.output.max_tokens or -1, dtype=np.int64))
    none = declared if plan.output.max_tokens is None else frozen(np.full(len(realized), -1, dtype=np.int64))
    match plan.output.control:
        case "natural":
            return none, none
        case "capped":
            return declared, none
        case "forced":
            return realized, none
        case "client_stop":
            return declared, realized


def _recipe(plan: WorkloadPlan, overhead: int) -> bytes:
    """Return what was chosen, as canonical JSON. The seed is left out on purpose: what is sent is the workload, however it was drawn."""
    unsaid = {name for name in ("without_clients", "ramp") if not getattr(plan, name)}
    chosen = plan.model_dump(mode="json", exclude={"trace", "lengths", "seed"} | unsaid)
    return json.dumps({"format": 2, "chat_overhead": overhead, **chosen}, sort_keys=True, separators=(",", ":")).encode()


def _empty(plan: WorkloadPlan, rows: Rows) -> UsageError:
    counted = (entry for entry in rows.log() if entry["name"] != "trace_to_sent")
    steps = ", ".join(f"{entry['name']} {entry['rows_before']}->{entry['rows_after']}" for entry in counted) or plan.arrivals.process
    what = f"requests=0: nothing arrives within {plan.horizon_s:g} s ({steps})"
    return UsageError(Problem("workload.empty", what, "choose a window with arrivals, a higher rate or a longer run"))
