"""Error rates of the trend and backlog gates against servers whose truth is known (seeded; the registry publishes the bounds).

Seen over several seeds, 600 runs each: steady_state false alarms 0.2-0.8% under gamma arrivals with a swinging rate, 0 in 400 windows of
each public trace; a server twice as slow at the end found in 97-100%, half as slow again in about 90%. A server twice as slow in
mid-window that recovers: 95-100% where it keeps up all the same and under windows of the public traces, 88-95% where the slowdown overloads
it for a while. Short answers at light load, two hundred in half a minute, whose prompts each hold decoding up for 3-7 iterations: false
alarms 0 in 3600 runs, all faults found. Near saturation with windows shorter than ten requests' lives (which window_length refuses) false
alarms reach 4%. backlog: false alarms 0.0-1.2%; found at 1.7 times what can be served in about 60%, at 2.1 times in 85-95%, at 2.8 times in
all.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from analysis.backlog import overload
from analysis.clocks import derive_clocks
from analysis.gates import GATES
from analysis.gates.registry import AbsentError
from analysis.gates.steady import RESOLUTION, Load, assess
from harness.record.spec import Window
from tests.builders import S, make_record, make_spec
from tests.gates.queue_model import Floats, Served, Server, bursty, lengths, serve

WARM = 0.15
"""Share of a run that is warm-up."""

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces" / "azure-llm-2023"


RECORD = make_record([])
CLOCKS = derive_clocks(RECORD)


def overloaded(load: Load, start: float, stop: float) -> bool:
    """The analysis' own rule on the arrays of one run."""
    window = Window(warm_up_ns=round(start * S), measured_ns=round((stop - start) * S), drain_ns=0)
    record = replace(RECORD, spec=make_spec(window=window))
    arrival, end = (np.rint(x * S).astype(np.int64) for x in (load.arrival_s, load.end_s))
    return overload(record, replace(CLOCKS, arrival_ns=arrival, end_ns=end, in_cohort=load.judged)).flag


def loads(served: Served) -> Iterator[tuple[Load, float, float]]:
    for a, first, last, size, tokens in zip(served.arrival, served.first, served.last, served.input, served.tokens, strict=True):
        start = WARM * float(a[-1])
        yield Load(a, first, last, last, size, tokens, a >= start), start, float(a[-1])


def alarms(served: Served) -> tuple[float, float, float]:
    """Shares of runs: alarms of trend or bend, backlog alarms, and trends that could not have seen a doubling."""
    trend, backlog, blind = [], [], []
    for load, start, stop in loads(served):
        growing = overloaded(load, start, stop)
        try:
            found, bends = assess(load, stop - start, growing=growing)
        except AbsentError:
            found, bends = [], []
        trend.append(any(t.drifts for t in found) or any(b.bends for b in bends))
        blind.append(min((t.half_width for t in found), default=np.inf) > RESOLUTION)
        backlog.append(growing)
    return float(np.mean(trend)), float(np.mean(backlog)), float(np.mean(blind))


Fault = Callable[[Floats], Callable[[Floats], Floats]]
"""From arrivals (runs, n) to the factor of the iteration time at a clock (runs,)."""


def synthetic(runs: int, n: int, rate: float, seed: int, *, cv: float = 2.0, fault: Fault | None = None) -> Served:
    rng = np.random.default_rng(seed)
    arrival = bursty(runs, n, rate, rng, cv=cv)
    slowdown = np.ones_like if fault is None else fault(arrival)
    return serve(arrival, lengths(runs, n, 400, rng), lengths(runs, n, 60, rng), rng, slowdown=slowdown)


def progress(arrival: Floats, clock: Floats) -> Floats:
    stop = arrival[:, -1]
    return np.clip((clock - WARM * stop) / ((1 - WARM) * stop), 0, 1)


def slowing(arrival: Floats) -> Callable[[Floats], Floats]:
    """Twice as slow at the end of the window."""
    return lambda clock: 1 + progress(arrival, clock)


def hump(arrival: Floats) -> Callable[[Floats], Floats]:
    """Twice as slow in mid-window, and as fast as ever at its end."""
    return lambda clock: 1 + np.sin(np.pi * progress(arrival, clock))


def crowded(arrival: Floats) -> Callable[[Floats], Floats]:
    """1.65 times as slow from mid-window on: what a busy hyperthread beside a core costs it, which no counter of a guest shows."""
    return lambda clock: np.where(progress(arrival, clock) > 0.5, 1.65, 1.0)


def short(runs: int, seed: int, per_prefill_s: float, *, fault: Fault | None = None) -> Served:
    """Some 200 requests of 2 to 24 tokens in half a minute, mostly alone: a tiny model, where admitting a prompt costs a fixed time."""
    rng = np.random.default_rng(seed)
    arrival = bursty(runs, 300, 6.7, rng, cv=1.0)
    inputs = lengths(runs, 300, 64, rng, least=4, most=128)
    tokens = lengths(runs, 300, 18, rng, least=2, most=24)
    server = Server(slots=16, base_s=0.0045, per_row_s=0.0004, per_token_s=0.00003, per_prefill_s=per_prefill_s)
    return serve(arrival, inputs, tokens, rng, server, np.ones_like if fault is None else fault(arrival))


@pytest.mark.parametrize(("n", "cv"), [(250, 1.0), (600, 2.0), (1500, 1.5)])
def test_steady_state_on_a_steady_server_under_unsteady_load(n: int, cv: float) -> None:
    rates = GATES["steady_state"].rates
    assert rates is not None
    trend, _, blind = alarms(synthetic(600, n, 10.0, seed=20261130 + n, cv=cv))
    assert trend <= rates.false_alarm
    assert blind <= 0.01


@pytest.mark.parametrize(("n", "cv"), [(250, 1.0), (600, 2.0), (1500, 1.5)])
def test_steady_state_finds_a_server_that_slows_down(n: int, cv: float) -> None:
    rates = GATES["steady_state"].rates
    assert rates is not None
    trend, _, _ = alarms(synthetic(200, n, 10.0, seed=7 + n, cv=cv, fault=slowing))
    assert trend >= rates.detection


@pytest.mark.parametrize(("rate", "least"), [(6.0, 0.90), (10.0, 0.85)])
@pytest.mark.parametrize(("n", "cv"), [(250, 1.0), (600, 2.0), (1500, 1.5)])
def test_steady_state_finds_a_server_that_slows_down_and_recovers(n: int, cv: float, rate: float, least: float) -> None:
    """At 10 requests a second the slowdown overloads the server for a while, so it comes late and the backlog speaks too."""
    trend, _, _ = alarms(synthetic(200, n, rate, seed=7 + n, cv=cv, fault=hump))
    assert trend >= least


@pytest.mark.parametrize("per_prefill_s", [0.0, 0.015, 0.03])
def test_steady_state_with_short_answers_at_light_load(per_prefill_s: float) -> None:
    """Prefills cost a fixed time here and the load model counts their tokens: it neither raises alarms nor hides a fault."""
    rates = GATES["steady_state"].rates
    assert rates is not None
    trend, _, blind = alarms(short(600, 1, per_prefill_s))
    assert trend <= rates.false_alarm
    assert blind <= 0.01
    for fault in (slowing, hump, crowded):
        found, _, _ = alarms(short(200, 2, per_prefill_s, fault=fault))
        assert found >= rates.detection, fault


def test_backlog_on_a_server_that_keeps_up() -> None:
    rates = GATES["backlog"].rates
    assert rates is not None
    _, backlog, _ = alarms(synthetic(600, 600, 10.0, seed=11))
    assert backlog <= rates.false_alarm


def test_backlog_finds_overload() -> None:
    rates = GATES["backlog"].rates
    assert rates is not None
    _, backlog, _ = alarms(synthetic(200, 600, 40.0, seed=12, cv=1.5))
    assert backlog >= rates.detection


def azure(name: str) -> tuple[Floats, Floats, Floats]:
    with (TRACES / f"AzureLLMInferenceTrace_{name}.csv").open(newline="") as file:
        lines = list(csv.reader(file))[1:]
    stamps = [datetime.fromisoformat(t[:26]) for t, _, _ in lines]
    seconds = np.array([(s - stamps[0]).total_seconds() for s in stamps])
    return seconds, np.array([float(c) for _, c, _ in lines]), np.array([float(g) for _, _, g in lines])


def windows(name: str, runs: int, n: int, rate: float, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Random windows of ``n`` requests, each compressed to mean ``rate``; lengths cut to a third, as for a small server."""
    seconds, context, generated = azure(name)
    pick = rng.integers(0, len(seconds) - n, runs)[:, None] + np.arange(n)
    arrival = seconds[pick] - seconds[pick[:, :1]]
    arrival = arrival / arrival[:, -1:] * (n / rate)
    return arrival, np.ceil(context[pick] / 3), np.maximum(np.ceil(generated[pick] / 3), 1)


@pytest.mark.traces
@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not beside the project")
@pytest.mark.parametrize(("name", "n", "rate"), [("conv", 600, 6.0), ("code", 1200, 2.0)])
def test_steady_state_under_windows_of_public_traces(name: str, n: int, rate: float) -> None:
    rates = GATES["steady_state"].rates
    assert rates is not None
    rng = np.random.default_rng(2023)
    arrival, inputs, tokens = windows(name, 400, n, rate, rng)
    trend, backlog, _ = alarms(serve(arrival, inputs, tokens, rng))
    assert trend <= rates.false_alarm
    assert backlog <= rates.false_alarm
    for fault in (slowing, hump):
        arrival, inputs, tokens = windows(name, 100, n, rate, rng)
        found, _, _ = alarms(serve(arrival, inputs, tokens, rng, slowdown=fault(arrival)))
        assert found >= rates.detection, fault
