from __future__ import annotations

import pytest

from analysis.advice import advise
from analysis.model import CellAnalysis, Effect, Figure, Interval, Outcome, Outcomes, Ranking, Refusal, RunAnalysis
from analysis.report.next_study import advice_tables
from harness.record.spec import Rank
from tests.report_demo import campaign

NOBODY = Outcomes(0, dict.fromkeys(Outcome, 0))
NOISY_A, NOISY_B = [5.0, 5.4, 4.7, 5.1, 4.8], [5.3, 5.2, 5.0, 5.1, 5.1]


def cell(arm: str, values: list[float], metric: str = "goodput", width: float = 1.0) -> CellAnalysis:
    def figure(value: float, interval: Interval | None = None) -> Figure:
        return Figure(metric, "req/s", value, "ok", 5, "cohort", interval=interval)

    runs = tuple(RunAnalysis("", f"{arm}@x1", arm, i, i, None, NOBODY, {metric: figure(v)}, ()) for i, v in enumerate(values))
    mean = sum(values) / len(values)
    own = figure(mean, Interval(mean - width / 2, mean + width / 2, 0.95, "t", len(values), "replicate"))
    return CellAnalysis(f"{arm}@x1", arm, "x", "E2", "synthetic", runs, NOBODY, {metric: own}, (), {}, (), None)


def ranking(verdict: str, metric: str = "goodput", scale: str = "difference") -> Ranking:
    effect = Effect("a", "b", scale, 0.1, -0.3, 0.5, 0.95, 0.1, verdict, 5)  # type: ignore[arg-type]
    return Ranking("", metric, (), (effect,))


def test_an_unresolved_pair_is_told_how_many_replicates_would_resolve_it() -> None:
    (found,) = advise(Rank(metric="goodput", margin=0.02), [cell("a", NOISY_A), cell("b", NOISY_B)], ranking("unresolved"))
    assert found.subject == "b against a"
    assert found.aim == "show a difference at margin 0.1"
    assert found.replicates is not None
    assert found.replicates > 5
    assert (found.server_starts, found.more) == (found.replicates, found.replicates - 5)


def test_a_ratio_is_planned_on_the_log_scale() -> None:
    rank = Rank(metric="ttft_p99", margin=0.1)
    cells = [cell(arm, [10 * v for v in values], "ttft_p99") for arm, values in (("a", NOISY_A), ("b", NOISY_B))]
    small = [cell(arm, values, "ttft_p99") for arm, values in (("a", NOISY_A), ("b", NOISY_B))]
    (found,) = advise(rank, cells, ranking("unresolved", "ttft_p99", "ratio"))
    assert found.replicates is not None
    assert advise(rank, small, ranking("unresolved", "ttft_p99", "ratio"))[0].replicates == found.replicates


@pytest.mark.parametrize("verdict", ["better", "worse", "equivalent"])
def test_what_is_resolved_needs_no_advice(verdict: str) -> None:
    assert advise(Rank(metric="goodput", margin=0.02), [cell("a", NOISY_A), cell("b", NOISY_B)], ranking(verdict)) == ()


def test_without_a_ranking_wide_intervals_are_advised_on_and_narrow_ones_are_not() -> None:
    cells = [cell("a", NOISY_A, width=1.0), cell("b", NOISY_B, width=0.1)]
    (found,) = advise(Rank(metric="goodput", margin=0.02), cells, Refusal("", ()))
    assert (found.subject, found.aim) == ("a@x1", "know goodput within +-2%")
    assert found.replicates is not None


def test_a_pilot_of_two_is_unknown_with_a_reason_and_the_table_says_so() -> None:
    (found,) = advise(Rank(metric="attainment", margin=0.02), [cell("a", [0.9, 0.8], "attainment")], Refusal("", ()))
    assert found.aim == "know attainment within +-0.02"
    assert found.replicates is None
    (table,) = advice_tables(campaign(advice=(found,)))
    assert table.rows == (("a@x1", "know attainment within ± 0.02", "unknown", "unknown", "unknown", found.reason),)
    assert "at least 3" in found.reason


def test_nothing_declared_nothing_to_resolve() -> None:
    assert advise(None, [cell("a", NOISY_A)], Refusal("", ())) == ()
    assert advice_tables(campaign()) == ()
