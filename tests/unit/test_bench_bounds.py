"""The loads of the bounds are what their titles say, and a row prints what it knows and no more."""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import pytest

from benchmarks import bounds
from benchmarks.bounds import LONG_COUNT, LONG_PROMPT, Measured, main, many_streams, print_row, steady, with_long_prompts
from benchmarks.stalls import MET, STALLED, Verdict
from harness.runtimes.truth_plan import read_ask


def test_a_steady_load_is_offered_at_its_rate() -> None:
    load = steady(30, 2.0, workers=2)
    assert (len(load.arrivals), load.workers) == (60, 2)
    assert (np.diff(load.arrivals) >= 0).all()
    assert load.arrivals[-1] < 2_000_000_000 < load.end_ns
    assert {read_ask(body).tokens for body in load.bodies} == {100}


def test_streams_are_all_begun_before_the_first_ends() -> None:
    load = many_streams(50)
    life_ns = load.server["ttft"] * 10**6 + (int(load.tokens[0]) - 1) * load.server["gap"] * 10**6
    assert load.arrivals[-1] < load.arrivals[0] + life_ns
    assert load.arrivals[-1] + life_ns < load.end_ns


def test_long_prompts_lie_among_short_ones_under_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "LONG_PROMPT", 20_000)
    load, short = with_long_prompts(5.0)
    asked = [read_ask(body) for body in load.bodies]
    assert [ask.name for ask in asked] == [f"c{i}" for i in range(len(asked))]
    assert sum(ask.prompt == 20_000 for ask in asked) == LONG_COUNT == len(asked) - len(short)
    assert {asked[i].prompt for i in short.tolist()} == {128}
    assert LONG_PROMPT == 128 * 1024


def test_a_row_prints_dashes_for_what_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = [Verdict("slip p99", 1.5, 1, "ms", STALLED, "5 of 5"), Verdict("delivered", 100, 100, "%", MET)]
    print_row(Measured("a", "a title", {"delivered": 0.5, "slip_p99_ms": 1.5, "events_per_s": None}, verdicts))
    printed = capsys.readouterr().out
    assert "50%" in printed
    assert "1.500" in printed
    assert " - " in printed
    assert "HOST STALLED  slip p99: 1.5 ms (bound 1) 5 of 5" in printed


def test_an_unknown_row_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["a", "z"])
    assert "no such row: z" in capsys.readouterr().err


def answer(row: Measured, _options: argparse.Namespace) -> list[Measured]:
    return [row]


def test_only_a_bound_missed_through_no_stall_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for verdict, code in ((MET, 0), (STALLED, 0), ("not met", 1), ("not measured", 1)):
        row = Measured("a", "t", {}, [Verdict("x", 1, 1, "ms", verdict)])
        monkeypatch.setitem(bounds.ROWS, "a", partial(answer, row))
        assert main(["a", "--json"]) == code
    assert '"verdict": "not met"' in capsys.readouterr().out
