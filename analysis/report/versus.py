"""An effect in words: the same lines under `compare`, `gate` and wherever one pair is told."""

from __future__ import annotations

import math

from analysis.effect_model import ExactTest
from analysis.model import Effect
from analysis.pair import Declared, Versus
from analysis.report.words import clean, decimals_for, number, percent

SINCE = {"declared": "declared", "post_hoc": "post_hoc", "by_caller": "fixed by the gate's call"}


def effect_lines(effect: Effect, declared: Declared, unit: str) -> list[str]:
    """Everything that qualifies an effect, one line each: what, how sure, what is claimed of it, and beside what noise."""
    what = f"{clean(declared.metric)} ({SINCE[effect.declaration]}): {estimate(effect, unit)}"
    lines = [
        f"{what}, {clean(effect.method)}, {percent(effect.level)}; margin {margin(effect, declared, unit)}",
        f"verdict: {verdict(effect)}",
        f"no difference: {tests(effect)}",
        f"noise floor: {noise_floor(effect, unit)}",
    ]
    return [*lines, f"note: {clean(effect.reason)}"] if effect.reason else lines


def caveat_lines(found: Versus) -> list[str]:
    """What a reader must take on somebody's word: every waiver with the reason its manifest gives, and what was attested, by side."""
    waived = [f"waived {clean(gate)} of {clean(side)}: {clean(reason)}" for side, gate, reason in found.waived]
    vouched: dict[str, list[str]] = {}
    for side, name in found.attested:
        vouched.setdefault(side, []).append(clean(name))
    return [*waived, *(f"attested, not observed, of {clean(side)}: {', '.join(names)}" for side, names in vouched.items())]


def estimate(effect: Effect, unit: str) -> str:
    """The effect with its interval: what b divided by a is, or b minus a."""
    places = decimals_for([effect.estimate, effect.low, effect.high])
    tail = f" {clean(unit)}" if effect.scale == "difference" and unit not in ("", "ratio") else ""
    words = {"ratio": "second / first", "difference": "second - first"}[effect.scale]
    return f"{words} = {number(effect.estimate, places)} [{number(effect.low, places)}, {number(effect.high, places)}]{tail}"


def margin(effect: Effect, declared: Declared, unit: str) -> str:
    """The margin on the effect's scale, and where it comes from."""
    if declared.margin is None or not math.isfinite(effect.margin):
        return "none"
    if effect.scale == "ratio":
        return f"{percent(declared.margin)} ({declared.margin_source})"
    tail = f" {clean(unit)}, {percent(declared.margin)} of both sides' mean" if unit not in ("", "ratio") else ""
    return f"± {number(effect.margin)}{tail} ({declared.margin_source})"


def verdict(effect: Effect) -> str:
    """The claim, if there is one."""
    return {
        "better": "the second is better",
        "worse": "the second is worse",
        "equivalent": "equivalent within the margin",
        "unresolved": "unresolved: the interval reaches over the margin's edge",
        "unclaimed": "none; shown, and nothing is claimed",
    }[effect.verdict]


def tests(effect: Effect) -> str:
    """The p of the interval's own test, and what the exact one can say at this number of units."""
    own = f"p = {number(effect.p)} (t, as the interval)" if effect.p is not None else "p unknown"
    holm = f", {number(effect.p_holm)} after Holm" if effect.p_holm is not None else ""
    return f"{own}{holm}; {exact(effect.exact)}"


def exact(test: ExactTest | None) -> str:
    """The exact test in words: below its attainable significance it cannot speak."""
    if test is None:
        return "exact test not enumerated: too many units"
    if not test.speaks:
        return f"exact {test.name} cannot speak: its least p here is {number(test.least)}, above {number(test.alpha)}"
    return f"exact {test.name} p = {number(test.p)} (least {number(test.least)})"


def noise_floor(effect: Effect, unit: str) -> str:
    """What identical arms differed by, or that nobody knows."""
    if effect.noise is None:
        return f"unknown ({clean(effect.noise_reason)})"
    found = effect.noise.effect
    spread = "" if found.spread is None else f", spread of one unit {number(found.spread)}{' (log)' if found.scale == 'ratio' else ''}"
    return f"{estimate(found, unit)}, {clean(found.method)}{spread}: {clean(effect.noise.source)}"
