"""From a plan to the immutable schedule: rows, arrivals, output control, prompts, digest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.errors import Problem, UsageError
from workloads import arrivals, seeds, transforms
from workloads.check import check_lengths, check_plan
from workloads.plan import LengthDistribution, TraceArrivals, WorkloadPlan
from workloads.prompts import make_prompts
from workloads.schedule import Int64, Labels, Schedule, Trace
from workloads.tokens import TokenSource
from workloads.traces import load_trace

COVER_SLACK_NS = 1_000_000
"""How much shorter than the horizon a trace may be, 1 ms: what rounding of factors and windows written in decimals can lose."""

NO_ROW = -1
"""``source_row`` of a request that comes from no trace."""


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    arrival_ns: Int64
    input_tokens: Int64
    output_tokens: Int64
    source_row: Int64
    client: Labels | None
    log: tuple[dict[str, object], ...]


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

    Raises UsageError with all problems of the first stage that has any: the plan, the trace, its chain, the rows (nothing to send, lengths
    that do not fit the model or the output control), the prompts.
    """
    rows = _rows(plan, load_trace(plan.trace, search_path) if plan.trace else None, chat_overhead)
    overhead = chat_overhead if plan.api == "chat" else 0
    added = tokens.added_tokens if plan.api == "completions" and plan.prompts.source == "text" and server_adds_bos else 0
    check_lengths(plan, rows.input_tokens, rows.output_tokens, rows.source_row, max_model_len, overhead + added)
    max_tokens, stop_after = _output_columns(plan, rows.output_tokens)
    prompts = make_prompts(plan, tokens, rows.input_tokens - overhead, bos=bool(added))
    columns = (rows.arrival_ns, rows.input_tokens, rows.output_tokens, max_tokens, stop_after, rows.source_row)
    for column in columns:
        column.flags.writeable = False
    return Schedule(
        *columns,
        prompts=prompts,
        recipe=_recipe(plan, overhead),
        transforms=rows.log,
        ignore_eos=plan.output.control in {"forced", "client_stop"},
        client=rows.client,
    )


def check_rows(plan: WorkloadPlan, trace: Trace | None) -> None:
    """Raise what ``build_schedule`` would, as far as it can be known before a server says its tokenizer and its longest request.

    ``trace``: the loaded ``plan.trace``. A server takes minutes to start; a window outside the trace should not cost them.
    """
    rows = _rows(plan, trace, 0)
    check_lengths(plan, rows.input_tokens, rows.output_tokens, rows.source_row, np.iinfo(np.int64).max, 0)


def _rows(plan: WorkloadPlan, trace: Trace | None, chat_overhead: int) -> _Rows:
    check_plan(plan, chat_overhead)
    horizon_ns = transforms.to_ns(plan.horizon_s)
    rows = _drawn_rows(plan, horizon_ns) if trace is None else _trace_rows(plan, trace, horizon_ns)
    if not len(rows.arrival_ns):
        raise _empty(plan, rows)
    return rows


def _trace_rows(plan: WorkloadPlan, trace: Trace, horizon_ns: int) -> _Rows:
    done = transforms.apply(plan.chain, trace, plan.seed)
    if isinstance(plan.arrivals, TraceArrivals):
        _check_cover(plan, done, horizon_ns)
        kept = int(np.searchsorted(done.trace.arrival_ns, horizon_ns))
        arrival = done.trace.arrival_ns[:kept].copy()
        entry: dict[str, object] = {"name": "horizon", "horizon_s": plan.horizon_s}
    else:
        arrival = arrivals.draw(plan.arrivals, horizon_ns, plan.seed)
        kept = len(arrival)
        entry = {"name": "lengths_in_order"}
    if kept > len(done.trace):
        # Starting over would repeat prompts' lengths in the same order and turn one workload into two that only look alike.
        want = f"{plan.arrivals.process} arrivals over {plan.horizon_s:g} s need {kept} rows of lengths"
        what = f"rows={len(done.trace)}: {want} from {trace.name} after its chain"
        raise UsageError.single("workload.rows_run_out", what, "widen the window, lower the rate or shorten the run; rows are never reused")
    part = transforms.select(done.trace, slice(0, kept))
    log = (*done.log, entry | {"rows_before": len(done.trace), "rows_after": kept})
    return _Rows(arrival, part.input_tokens, part.output_tokens, part.source_row, part.client, log)


def _check_cover(plan: WorkloadPlan, done: transforms.Transformed, horizon_ns: int) -> None:
    """Refuse a trace shorter than the run: load would stop unannounced and every rate would be of another workload."""
    if done.extent_ns + COVER_SLACK_NS >= horizon_ns:
        return
    covered = done.extent_ns / transforms.NS_PER_S
    what = f"horizon_s={plan.horizon_s:.9g}: the trace after its chain covers {covered:.9g} s, so load would stop before the run does"
    raise UsageError.single("workload.horizon_not_covered", what, "widen the window, compress less, or shorten warm-up, measured or drain")


def _drawn_rows(plan: WorkloadPlan, horizon_ns: int) -> _Rows:
    if isinstance(plan.arrivals, TraceArrivals) or plan.lengths is None:
        raise AssertionError("check_plan lets no such plan through")
    arrival = arrivals.draw(plan.arrivals, horizon_ns, plan.seed)
    count = len(arrival)
    tokens_in = _lengths(plan.lengths.input, count, plan.seed, "input")
    tokens_out = _lengths(plan.lengths.output, count, plan.seed, "output")
    return _Rows(arrival, tokens_in, tokens_out, np.full(count, NO_ROW, dtype=np.int64), None, ())


def _lengths(distribution: LengthDistribution, count: int, seed: int, side: str) -> Int64:
    if distribution.kind == "constant":
        return np.full(count, distribution.value, dtype=np.int64)
    rng = seeds.generator(seed, "lengths", side)
    return rng.integers(distribution.low or 1, distribution.high or 1, size=count, dtype=np.int64, endpoint=True)


def _output_columns(plan: WorkloadPlan, realized: Int64) -> tuple[Int64, Int64]:
    """(max_tokens, stop_after) by control (DESIGN 4). Only ``forced`` tells the server anything of ``realized``."""
    none = np.full(len(realized), -1, dtype=np.int64)
    declared = np.full(len(realized), plan.output.max_tokens or -1, dtype=np.int64)
    match plan.output.control:
        case "natural":
            return none, none.copy()
        case "capped":
            return declared, none
        case "forced":
            return realized.copy(), none
        case "client_stop":
            return declared, np.minimum(realized, declared)


def _recipe(plan: WorkloadPlan, overhead: int) -> bytes:
    """Return what was chosen, as canonical JSON. The seed is left out on purpose: what is sent is the workload, however it was drawn."""
    chosen = plan.model_dump(mode="json", exclude={"trace", "lengths", "seed"})
    return json.dumps({"format": 3, "chat_overhead": overhead, **chosen}, sort_keys=True, separators=(",", ":")).encode()


def _empty(plan: WorkloadPlan, rows: _Rows) -> UsageError:
    steps = ", ".join(f"{entry['name']} {entry['rows_before']}->{entry['rows_after']}" for entry in rows.log) or plan.arrivals.process
    what = f"requests=0: nothing arrives within {plan.horizon_s:g} s ({steps})"
    return UsageError(Problem("workload.empty", what, "choose a window with arrivals, a higher rate or a longer run"))
