"""The loads of the bounds are what their titles say, and a row prints what it knows and no more."""

from __future__ import annotations

import argparse
from array import array
from functools import partial

import numpy as np
import pytest

from benchmarks import bounds
from benchmarks.bounds import LONG_COUNT, LONG_PROMPT, Measured, main, many_streams, placed, print_row, steady, with_long_prompts
from benchmarks.stalls import MET, STALLED, Verdict
from harness.calibrate.joined import Exchange, Lags
from harness.calibrate.rig import Load, Trial
from harness.calibrate.watch import Track, Watch
from harness.clock import MonotonicClock
from harness.replay.contract import ReplaySummary
from harness.runtimes.truth_plan import read_ask

MS = 1_000_000


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


@pytest.mark.parametrize(
    ("told", "cores", "client", "server"),
    [
        ([], [0, 1, 2], (0, 1), (2,)),
        ([], [0], (), ()),
        (["--client-cores", "", "--server-cores", "1"], [0, 1], (), (1,)),
    ],
)
def test_the_server_has_a_core_of_its_own_unless_told(
    told: list[str], cores: list[int], client: tuple[int, ...], server: tuple[int, ...]
) -> None:
    place = placed(bounds.parser().parse_args(told), cores)
    assert (place.client, place.server, place.spooler) == (client, server, ())


def trial(spooler: Track) -> Trial:
    """Two tokens of one request until 1 s; the worker used 10 ms till then."""
    watch = Watch(MonotonicClock(), {})
    readings = array("q", [0, 1000 * MS])
    watch.tracks = {"client": Track(readings, array("q", [0, 10 * MS]), readings, readings, array("q", [5_000_000] * 2))}
    watch.tracks |= {"spooler": spooler, "server": Track()}
    stamps = np.array([500 * MS, 1000 * MS])
    nothing = np.zeros(0, dtype=np.int64)
    exchanges: list[Exchange | None] = [Exchange(0, stamps, stamps, True)]
    load, lags = Load(nothing, [], nothing, 0), Lags(nothing, nothing)
    lateness: dict[str, int | None] = {"p99_ns": None, "max_ns": None}
    return Trial(load, 0, exchanges, lags, nothing, nothing, lateness, watch, ReplaySummary(1, 1, None, 0.0, 0.0))


def test_what_the_spooler_decodes_after_the_last_token_is_counted() -> None:
    readings = [0, 1000 * MS, 2000 * MS], [0, 2 * MS, 8 * MS], [0, 0, 0], [0], [1_000_000]
    late = Track(*(array("q", values) for values in readings))
    found = bounds._timed("b", "t", trial(late), (None, None, None)).figures
    assert (found["cpu_client_us"], found["cpu_spooler_us"], found["cpu_ours_us"]) == (5000, 4000, 9000)
    assert (found["rss_client_mb"], found["rss_spooler_mb"]) == (5, 1)


def test_a_process_that_could_not_be_read_has_no_figures() -> None:
    found = bounds._timed("b", "t", trial(Track()), (None, None, None)).figures
    assert [found[name] for name in ("cpu_spooler_us", "cpu_ours_us", "rss_spooler_mb", "truth_late_p99_ms")] == [None] * 4
    unseen = trial(Track())
    unseen.watch.tracks["client"] = Track()
    assert bounds._timed("b", "t", unseen, (None, None, None)).figures["client_waited_share"] is None
