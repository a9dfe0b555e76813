"""What must hold before anything is sent: the plan makes sense in itself, and every row fits the model and the output control."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.errors import Problem, UsageError
from workloads.plan import ConstantArrivals, LengthDistribution, OutputPlan, SessionPlan, TraceArrivals, WorkloadPlan
from workloads.schedule import Int64, Trace
from workloads.tenants import check_tenants
from workloads.transforms.contract import has_arrivals

PAUSES = ("think_s", "think_unknown_s", "think_limit_s")
"""Fields of a session plan that say how long users pause."""


def check_plan(plan: WorkloadPlan, chat_overhead: int) -> None:
    """Raise one UsageError with everything in the plan that contradicts itself."""
    problems = [*_check_source(plan), *_check_output(plan.output), *_check_loop(plan), *_check_prompts(plan), *check_tenants(plan.tenants)]
    if chat_overhead < 0:
        problems.append(
            Problem("workload.chat_overhead", f"chat_overhead={chat_overhead}: at least 0", "measure it with one short message")
        )
    if problems:
        raise UsageError(*problems)


def _check_source(plan: WorkloadPlan) -> list[Problem]:
    """Where rows come from: exactly one of trace and lengths, and arrivals that can be had from it."""
    problems: list[Problem] = []
    if plan.trace is not None and plan.lengths is not None:
        what = "lengths: given beside a trace, which has lengths of its own"
        problems.append(Problem("workload.two_lengths", what, "drop one of the two"))
    if plan.trace is None:
        if plan.lengths is None:
            problems.append(Problem("workload.no_lengths", "lengths: neither a trace nor lengths are given", "give one of the two"))
        if isinstance(plan.arrivals, TraceArrivals):
            what = "arrivals.process=trace: there is no trace to take arrivals from"
            problems.append(Problem("workload.no_trace", what, "name a trace, or use constant, poisson, gamma or weibull arrivals"))
        if plan.chain:
            what = f"chain: {len(plan.chain)} transforms and no trace to apply them to"
            problems.append(Problem("workload.chain_without_trace", what, "name a trace, or drop the transforms"))
    if plan.lengths is not None:
        problems += _check_distribution("input", plan.lengths.input) + _check_distribution("output", plan.lengths.output)
    return problems


def _check_distribution(side: str, lengths: LengthDistribution) -> list[Problem]:
    if lengths.kind == "constant":
        if lengths.value is not None and lengths.low is None and lengths.high is None:
            return []
        what, remedy = "kind=constant needs `value` and nothing else", "give value: N"
    else:
        if lengths.low is not None and lengths.high is not None and lengths.low <= lengths.high and lengths.value is None:
            return []
        what, remedy = f"kind=uniform needs low <= high and no `value` (low={lengths.low}, high={lengths.high})", "give low: A and high: B"
    return [Problem("workload.lengths", f"lengths.{side}: {what}", remedy)]


def _check_output(output: OutputPlan) -> list[Problem]:
    """A declared maximum belongs to capped and client_stop, and to no other control."""
    declares = output.control in {"capped", "client_stop"}
    if declares and output.max_tokens is None:
        what = f"output.max_tokens: missing; control {output.control} declares a maximum to the server"
        return [Problem("workload.max_tokens", what, "give the maximum, or use another control")]
    if not declares and output.max_tokens is not None:
        what = f"output.max_tokens={output.max_tokens}: control {output.control} declares no maximum of its own"
        return [Problem("workload.max_tokens", what, "drop it, or use capped or client_stop")]
    return []


def _check_prompts(plan: WorkloadPlan) -> list[Problem]:
    problems: list[Problem] = []
    if plan.prompts.source == "dataset" and plan.prompts.sharing == "as_trace":
        what = "prompts.sharing=as_trace: texts of a data set are sent as they are, and begin alike only where they do by themselves"
        problems.append(Problem("workload.dataset_sharing", what, "set sharing none, or use prompts of random-ids or text"))
    if plan.api == "chat" and plan.prompts.source == "random-ids":
        what = "prompts.source=random-ids: a chat message is text, so token ids cannot be sent through api=chat"
        problems.append(Problem("workload.chat_ids", what, "use prompts of text, or api completions"))
    if (plan.prompts.source == "dataset") != (plan.prompts.dataset is not None):
        what = f"prompts.source={plan.prompts.source}: a data set belongs to the source dataset, and only to it"
        problems.append(Problem("workload.dataset", what, "name the data set with source dataset, or drop it"))
    return problems


def _check_loop(plan: WorkloadPlan) -> list[Problem]:
    """Users, sessions and pauses belong to the loops that know them."""
    problems: list[Problem] = []
    if (plan.loop == "closed") != (plan.users is not None):
        what = f"loop={plan.loop}: users belong to the closed loop, and only to it"
        problems.append(Problem("workload.users", what, "give users with loop closed, or drop them"))
    if plan.loop == "closed" and not isinstance(plan.arrivals, TraceArrivals | ConstantArrivals):
        what = f"arrivals.process={plan.arrivals.process}: users of a closed loop send when they have an answer, by no process"
        remedy = "use trace to play every row, or constant, whose rate x horizon says how many requests are made ready"
        problems.append(Problem("workload.closed_arrivals", what, remedy))
    if plan.loop == "closed" and plan.ramp is not None:
        what = "ramp: users of a closed loop send when they have an answer, at no rate that could change"
        problems.append(Problem("workload.closed_ramp", what, "drop the ramp, or use loop open"))
    if plan.loop == "partly_open" and plan.trace is None:
        what = "loop=partly_open: drawn lengths have no sessions, whose later turns could wait"
        problems.append(Problem("workload.no_sessions", what, "use loop open, or a trace with sessions"))
    return [*problems, *_check_pauses(plan, plan.sessions or SessionPlan())]


def _check_pauses(plan: WorkloadPlan, sessions: SessionPlan) -> list[Problem]:
    """A pause that the loop does not wait for would stand in the record and change nothing."""
    used = {"open": (), "partly_open": PAUSES, "closed": ("think_s",)}[plan.loop]
    why = {"open": "sends every turn at its recorded time, so no pause is replayed", "closed": "replays no pause of the trace"}
    return [
        Problem(
            "workload.pause_unused",
            f"sessions.{name}={getattr(sessions, name):g}: loop={plan.loop} {why.get(plan.loop)}",
            "use loop partly_open, or drop it",
        )
        for name in PAUSES
        if getattr(sessions, name) is not None and name not in used
    ]


def check_sessions(plan: WorkloadPlan, rows: Trace) -> None:
    """Raise when the plan speaks of sessions or of sharing and the trace has none, or of texts that could not hold a history."""
    problems: list[Problem] = []
    carries = plan.sessions is None or plan.sessions.history == "carry"
    if rows.turns is not None and carries and plan.prompts.source == "dataset" and (rows.turns.extends >= 0).any():
        what = "prompts.source=dataset: sends each row's own text, which holds no earlier turns, while sessions carry their history"
        problems.append(Problem("workload.dataset_history", what, "set sessions.history none, or use prompts of text"))
    if rows.turns is None and plan.loop != "closed":
        problems += _missing_sessions(plan, rows)
    if plan.prompts.sharing == "as_trace" and rows.blocks is None and not (rows.turns is not None and carries):
        what = (
            f"prompts.sharing=as_trace: format {rows.format} names no shared prefixes and no history is carried, so nothing would be shared"
        )
        problems.append(Problem("workload.no_sharing", what, "set sharing none, and read capacity with prefix caching as a lower bound"))
    if problems:
        raise UsageError(*problems)


def _missing_sessions(plan: WorkloadPlan, rows: Trace) -> list[Problem]:
    problems = []
    if plan.loop == "partly_open":
        what = f"loop=partly_open: format {rows.format} has no sessions, so nothing would wait"
        problems.append(Problem("workload.no_sessions", what, "use loop open"))
    if plan.sessions is not None:
        what = f"sessions: format {rows.format} has none, so these settings would change nothing"
        problems.append(Problem("workload.no_sessions", what, "drop sessions, or use a trace that has them"))
    return problems


def check_clock(plan: WorkloadPlan, rows: Trace) -> None:
    """Raise when the loop needs times that the trace's clock does not give. Closed loops need none."""
    problems = []
    if isinstance(plan.arrivals, TraceArrivals) and not has_arrivals(rows):
        what = f"arrivals.process=trace: format {rows.format} has clock={rows.clock}, so it does not say when requests or sessions came"
        problems.append(Problem("workload.no_clock", what, "use constant, poisson, gamma or weibull arrivals, which start them at a rate"))
    if plan.loop == "open" and rows.clock == "none" and rows.turns is not None and rows.turns.turn.any():
        what = f"loop=open: format {rows.format} gives turns no times, so they cannot be sent by the clock"
        problems.append(Problem("workload.no_turn_times", what, "use loop partly_open with sessions.think_s, or max_turns 1"))
    if problems:
        raise UsageError(*problems)


def check_lengths(plan: WorkloadPlan, rows: Trace, max_model_len: int, overhead: int) -> None:
    """Raise one UsageError with every way in which rows do not fit; history that is carried counts.

    ``overhead``: tokens that the server adds to each text prompt. There is at least one row; messages count rows and name the worst.
    """
    tokens_in, realized, source_row = rows.input_tokens, rows.output_tokens, rows.source_row
    control, maximum = plan.output.control, plan.output.max_tokens or 0
    # What a server reserves or may produce; for natural, one token is the least output there is.
    output = {"natural": np.ones_like(realized), "forced": realized}.get(control, np.full_like(realized, maximum))
    total = tokens_in + output
    problems: list[Problem] = []

    def _refuse(bad: npt.NDArray[np.bool_], size: Int64, code: str, rule: str, remedy: str) -> None:
        if bad.any():
            worst = int(np.argmax(np.where(bad, size, np.iinfo(np.int64).min)))
            what = f"rows={int(bad.sum())} of {len(bad)}: {rule}; worst is {_row(source_row, worst)}"
            what += f" with {tokens_in[worst]} input and {realized[worst]} output tokens"
            problems.append(Problem(code, what, remedy))

    clip = "hold lengths with clip_lengths (input_maximum, output_maximum), scale them down, or serve with a larger maximum length"
    if rows.turns is not None and (rows.turns.extends >= 0).any():
        clip = f"limit sessions.max_turns, carry no history, {clip}"
    _refuse(total > max_model_len, total, "workload.too_long", f"prompt and {control} output exceed max_model_len={max_model_len}", clip)
    short = "raise input_minimum of scale_lengths"
    rule = f"the prompt has no token left beside the {overhead} that the server adds"
    _refuse(tokens_in <= overhead, -tokens_in, "workload.no_prompt", rule, short)
    if control in {"forced", "client_stop"}:
        rule = f"control {control} cannot produce an output of 0 tokens (a failed request in the trace)"
        _refuse(realized < 1, -realized, "workload.no_output", rule, "leave such rows out with drop_failed")
    if control == "client_stop":
        rule = f"realized output is longer than the declared max_tokens={maximum}, so the server would cut it"
        _refuse(
            realized > maximum, realized, "workload.beyond_maximum", rule, "raise max_tokens, or clip with output_maximum of clip_lengths"
        )
    if problems:
        raise UsageError(*problems)


def _row(source_row: Int64, index: int) -> str:
    return f"data row {source_row[index]} of the trace" if source_row[index] >= 0 else f"request {index}"
