"""Pairs by what was played, Welch where there are none, and groups of starts where servers were shared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from analysis.effects import Frame, Replicates, effect_between, pair_up, paired_effect
from analysis.model import Effect

FRAME = Frame("e2e_p50", 0.02)


def side(name: str, values: list[float], digests: str = "", starts: list[int] | None = None) -> Replicates:
    return Replicates(name, dict(enumerate(values)), dict(enumerate(starts or range(len(values)))), dict(enumerate(digests)))


def between(a: Replicates, b: Replicates, frame: Frame = FRAME, *, same_campaign: bool = False) -> Effect:
    found = effect_between(a, b, frame, same_campaign=same_campaign)
    assert found is not None
    return found


def test_replicates_are_paired_by_the_schedule_they_played_whatever_their_index() -> None:
    found = pair_up(side("a", [1, 2, 3], "xyz"), side("b", [3, 1, 2], "zxy"), same_campaign=False)
    assert found.pairs == ((0, 1), (1, 2), (2, 0))
    effect = between(side("a", [1, 2, 4], "xyz"), side("b", [8, 2, 4], "zxy"))
    assert (effect.estimate, effect.pairs, effect.spread) == (pytest.approx(2.0), 3, pytest.approx(0.0))


def test_one_schedule_played_again_and_again_is_paired_by_block_within_a_campaign_only() -> None:
    a, b = side("a", [1, 2, 3], "xxx"), side("b", [1, 2, 4], "xxx")
    assert pair_up(a, b, same_campaign=True).pairs == ((0, 0), (1, 1), (2, 2))
    across = pair_up(a, b, same_campaign=False)
    assert across.pairs == ()
    assert "again and again" in across.reason
    assert pair_up(a, side("b", [1, 2], "yy"), same_campaign=True).pairs == ()


@pytest.mark.parametrize(
    ("one", "two", "words"), [("xyz", "uvw", "0 schedules"), ("xyz", "xvw", "1 schedules"), ("xyz", "x", "isn't known")]
)
def test_without_two_common_schedules_the_interval_is_welchs_and_says_why(one: str, two: str, words: str) -> None:
    a, b = side("a", [1.0, 1.2, 0.9], one), side("b", [1.4, 1.9, 1.5], two)
    effect = between(a, b)
    assert (effect.pairs, effect.units) == (0, 6)
    assert effect.method == "Welch's t, unpaired, over 3 and 3 replicates"
    assert effect.reason.startswith("unpaired: ")
    assert words in effect.reason
    reference = stats.ttest_ind(np.log([1.4, 1.9, 1.5]), np.log([1.0, 1.2, 0.9]), equal_var=False)
    assert effect.p == pytest.approx(reference.pvalue)
    ends = reference.confidence_interval(0.95)
    assert (math.log(effect.low), math.log(effect.high)) == pytest.approx((ends.low, ends.high))


def test_replicates_of_both_sides_are_not_left_out_for_pairs() -> None:
    """Two common schedules of four would choose half of what was measured."""
    found = between(side("a", [1, 1.1, 5, 5], "wxyz"), side("b", [2, 2.1, 1, 1], "wxuv"))
    assert (found.pairs, found.units) == (0, 8)
    assert "2 schedules are common" in found.reason
    assert between(side("a", [1, 1.1], "wx"), side("b", [2, 2.1, 1, 1], "wxuv")).pairs == 2


def test_a_paired_p_is_that_of_the_paired_t_test() -> None:
    a, b = [1.0, 1.2, 0.9, 1.1], [1.1, 1.3, 0.9, 1.25]
    effect = between(side("a", a, "wxyz"), side("b", b, "wxyz"))
    assert effect.p == pytest.approx(stats.ttest_rel(np.log(b), np.log(a)).pvalue)
    assert effect.exact is not None
    assert effect.exact.name == "sign flip"


def test_pairs_that_share_a_server_on_either_side_are_one_unit() -> None:
    a = side("a", [1.0, 1.1, 1.0, 1.2, 1.1, 1.3], "uvwxyz", [0, 0, 1, 1, 2, 2])
    b = side("b", [1.1, 1.2, 1.3, 1.2, 1.4, 1.5], "uvwxyz", [0, 0, 1, 1, 2, 3])
    effect = between(a, b)
    assert (effect.pairs, effect.units) == (6, 3)
    assert "hierarchical" in effect.method
    logs = np.log(np.array(list(b.values.values())) / np.array(list(a.values.values()))).reshape(3, 2).mean(axis=1)
    assert effect.p == pytest.approx(stats.ttest_1samp(logs, 0).pvalue)
    chained = side("c", [1.0, 1.1, 1.2], "uvw", [0, 1, 1])
    assert (
        effect_between(side("a", [1, 2, 3], "uvw", [0, 0, 1]), chained, FRAME, same_campaign=True) is None
    )  # one group: nothing to infer from


def test_unpaired_starts_are_units_too() -> None:
    effect = between(side("a", [1, 1.1, 2, 2.1], "abcd", [0, 0, 1, 1]), side("b", [1, 1.1, 1.2], "efg"))
    assert effect.units == 5
    assert "server starts (hierarchical)" in effect.method


def test_without_a_margin_nothing_is_claimed_and_without_spread_the_interval_is_a_point() -> None:
    effect = between(side("a", [1, 2], "xy"), side("b", [2, 4], "xy"), Frame("e2e_p50", None))
    assert (effect.verdict, effect.margin) == ("unclaimed", math.inf)
    assert (effect.low, effect.high, effect.p) == (pytest.approx(2.0), pytest.approx(2.0), 0.0)
    assert between(side("a", [1, 2], "xy"), side("b", [1, 2], "xy")).p == 1.0


@pytest.mark.parametrize("bad", [[1.0], [0.0, 1.0], [math.inf, 1.0], [math.nan, 1.0]])
def test_no_effect_without_two_usable_values_a_side(bad: list[float]) -> None:
    for digests in ("xy", "uv"):
        assert effect_between(side("a", bad, digests), side("b", [1.0, 2.0], "xy"), FRAME, same_campaign=False) is None


VALUES = st.lists(st.floats(0.5, 50), min_size=2, max_size=6)


@given(VALUES, VALUES, st.sampled_from(["goodput", "e2e_p50", "token_throughput"]))
def test_swapping_unpaired_sides_mirrors_the_interval_and_keeps_p(x: list[float], y: list[float], metric: str) -> None:
    a, b = side("a", x, "abcdef"[: len(x)]), side("b", y, "uvwxyz"[: len(y)])
    one, two = (between(s, t, Frame(metric, 0.02)) for s, t in ((a, b), (b, a)))
    low, high = (two.low, two.high) if one.scale == "difference" else (math.log(two.low), math.log(two.high))
    mine = (one.low, one.high) if one.scale == "difference" else (math.log(one.low), math.log(one.high))
    assert mine == pytest.approx((-high, -low), abs=1e-6)
    assert one.p == pytest.approx(two.p)
    assert one.exact is not None
    assert two.exact is not None
    assert one.exact.p == pytest.approx(two.exact.p)


@given(st.permutations(range(6)))
def test_the_order_of_replicates_changes_nothing(order: list[int]) -> None:
    values = ([1.0, 1.1, 1.3, 0.9, 1.0, 1.2], [1.1, 1.3, 1.2, 1.1, 1.0, 1.4])
    starts = [0, 0, 1, 1, 2, 3]
    sides = [
        Replicates(n, {i: v[i] for i in order}, {i: starts[i] for i in order}, {i: f"d{i}" for i in order})
        for n, v in zip("ab", values, strict=True)
    ]
    plain = [
        Replicates(n, dict(enumerate(v)), dict(enumerate(starts)), {i: f"d{i}" for i in range(6)})
        for n, v in zip("ab", values, strict=True)
    ]
    assert between(*sides) == between(*plain)


def test_the_map_form_knows_starts_as_well() -> None:
    values = ({0: 1.0, 1: 1.1, 2: 1.2, 3: 1.0}, {0: 1.2, 1: 1.2, 2: 1.3, 3: 1.2})
    own = paired_effect("e2e_p50", ("a", "b"), values, margin=0.02, confidence=0.95, family=1)
    shared = ({0: 0, 1: 0, 2: 1, 3: 1}, {0: 0, 1: 0, 2: 1, 3: 1})
    grouped = paired_effect("e2e_p50", ("a", "b"), values, margin=0.02, confidence=0.95, family=1, starts=shared)
    assert own is not None
    assert grouped is not None
    assert (own.units, grouped.units) == (4, 2)


@given(VALUES, VALUES, st.sampled_from(["goodput", "service_gap", "e2e_p50", "token_throughput"]), st.floats(0.01, 0.5))
def test_which_side_is_named_first_decides_nothing(x: list[float], y: list[float], metric: str, margin: float) -> None:
    a, b = side("a", x, "abcdef"[: len(x)]), side("b", y, "uvwxyz"[: len(y)])
    one, two = (between(s, t, Frame(metric, margin)) for s, t in ((a, b), (b, a)))
    assert one.margin == two.margin
    turned = {"better": "worse", "worse": "better"}
    assert two.verdict == turned.get(one.verdict, one.verdict)


def test_a_ratio_beyond_the_edge_of_a_float_is_still_above_0() -> None:
    found = between(side("a", [1.0, 1.0], "xy"), side("b", [1.0, 300.0], "xy"), Frame("e2e_p50", 0.05, 0.999, 3))
    assert 0 < found.low < 1e-300 < 1e300 < found.high < math.inf
