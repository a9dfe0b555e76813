"""Effects in words: under `compare` and in a ranking's table, with nothing left out and no name that can do harm."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from analysis.effect_model import ExactTest, NoiseFloor
from analysis.model import Effect
from analysis.pair import Declared
from analysis.report.pairwise import effects_table
from analysis.report.versus import effect_lines
from tests.report_demo import ARMS, campaign, ranking

EXACT = ExactTest("sign flip", 0.0625, 0.0625, 0.05, speaks=False)
EFFECT = Effect("a", "b", "ratio", 1.1, 1.05, 1.15, 0.95, 0.02, "worse", 5, "t over 5 pairs", 5, 0.01, 0.004, 0.012, EXACT)
DECLARED = Declared("ttft_p95", 0.02, "declared", 0.95, "", "declared")


MUTE = "exact sign flip cannot speak: its least p here is 0.0625, above 0.05"


def lines(effect: Effect = EFFECT, declared: Declared = DECLARED, unit: str = "s") -> str:
    return "\n".join(effect_lines(effect, declared, unit))


def test_an_effect_is_told_whole() -> None:
    assert lines().splitlines() == [
        "ttft_p95 (declared): second / first = 1.100 [1.050, 1.150], t over 5 pairs, 95 %; margin 2 % (declared)",
        "verdict: the second is worse",
        f"no difference: p = 0.004 (t, as the interval), 0.012 after Holm; {MUTE}",
        "noise floor: unknown (no A/A run given)",
    ]


def test_a_difference_has_its_unit_and_a_noise_floor_its_source_and_spread() -> None:
    found = replace(EFFECT, scale="difference", estimate=0.5, low=0.2, high=0.8, margin=0.1, noise=NoiseFloor("arms x and y of z", EFFECT))
    told = lines(found, replace(DECLARED, metric="goodput"), "req/s")
    assert "second - first = 0.5000 [0.2000, 0.8000] req/s" in told
    assert "margin ± 0.1 req/s, 2 % of both sides' mean" in told
    assert "noise floor: second / first = 1.100 [1.050, 1.150], t over 5 pairs, spread of one unit 0.01 (log): arms x and y of z" in told
    share = lines(found, replace(DECLARED, metric="attainment"), "ratio")
    assert "[0.2000, 0.8000], t over" in share
    assert "margin ± 0.1 (declared)" in share


def test_what_is_not_claimed_says_so_and_why() -> None:
    found = replace(EFFECT, verdict="unclaimed", margin=math.inf, declaration="post_hoc", reason="post_hoc: nobody declared it")
    told = lines(found, replace(DECLARED, margin=None, margin_source="none", declaration="post_hoc"))
    assert "ttft_p95 (post_hoc)" in told
    assert "margin none" in told
    assert "verdict: none; shown, and nothing is claimed" in told
    assert told.endswith("note: post_hoc: nobody declared it")


@pytest.mark.parametrize(
    ("exact", "words"),
    [
        (None, "exact test not enumerated: too many units"),
        (replace(EXACT, least=0.03, p=0.04, speaks=True), "exact sign flip p = 0.04 (least 0.03)"),
    ],
)
def test_an_exact_test_speaks_or_says_why_not(exact: ExactTest | None, words: str) -> None:
    assert words in lines(replace(EFFECT, exact=exact))


def test_a_ranking_has_both_ps_in_columns_and_the_rest_in_the_note() -> None:
    whole = ranking(campaign().cells)
    table = effects_table(replace(whole, effects=(replace(EFFECT, a=ARMS[0], b=ARMS[1]),)))
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert (row["p"], row["p, Holm"], row["Verdict"]) == ("0.004", "0.012", "worse")
    for words in ("simultaneous 95 % intervals, t over 5 pairs", "Exact sign flip cannot speak", "Noise floor: unknown"):
        assert words in table.note
    heard = effects_table(replace(whole, effects=(replace(EFFECT, exact=replace(EXACT, speaks=True)),)))
    assert "Exact p: b against a 0.0625." in heard.note


def test_names_from_files_stay_one_line_of_text() -> None:
    bad = "x\n\x1b[31m|\u202ey"
    noisy = replace(EFFECT, a=bad, b=bad, method=bad, reason=bad, noise_reason=bad, noise=NoiseFloor(bad, EFFECT))
    table = effects_table(replace(ranking(campaign().cells), effects=(noisy, replace(noisy, noise=None))))
    told = [*effect_lines(noisy, replace(DECLARED, metric=bad), bad), table.note, *table.rows[0]]
    assert all(c.isprintable() for text in told for c in text)
