"""What a reader came for, in a sentence: who ranks where, or what stands against a ranking; and who was left out of it, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from analysis.model import Ranking, Reason, Refusal
from analysis.report.table import Table
from analysis.report.words import clean

NAMED = 6
"""Arms named in a sentence; more make a list of it, and the standings stand below."""
_ARM = re.compile(r"arm ([^:\s]+):")


def ranking_words(ranking: Ranking) -> str:
    """The standings in a sentence: a tie of all says that nothing was told apart."""
    ranks: dict[int, list[str]] = {}
    for s in ranking.standings:
        ranks.setdefault(s.rank, []).append(clean(s.arm))
    if len(ranks) == 1 and len(ranking.standings) > 1:
        alike = bool(ranking.effects) and all(e.verdict == "equivalent" for e in ranking.effects)
        why = "all are equivalent within the margin" if alike else "no pair of them is resolved as better or worse"
        first = f"A tie of {len(ranking.standings)} arms, {_list(next(iter(ranks.values())))}: {why}."
    else:
        first = "; ".join(f"{rank}. {_list(arms)}{' (tie)' if len(arms) > 1 else ''}" for rank, arms in ranks.items()) + "."
    left = [clean(arm) for arm, _ in ranking.unranked]
    return f"{first} Not ranked, for the reasons below: {_list(left)}." if left else first


def refusal_words(refusal: Refusal) -> str:
    """What stands against a ranking, by code, and the arms it is about; each reason stands below in full."""
    codes = list(dict.fromkeys(clean(r.code) for r in refusal.reasons))
    arms = list(dict.fromkeys(clean(m[1]) for r in refusal.reasons if (m := _ARM.match(r.text))))
    about = f", about {_list(arms)}" if arms else ""
    return f"Refused for {', '.join(codes)}{about}. The numbers below are shown, and none of them claims a winner." if codes else ""


def unranked_tables(ranking: Ranking) -> tuple[Table, ...]:
    """Arms without a rank, a row a reason; runs that answer to the same gate share it. Each run's own text stands under the gates."""
    rows = [row for arm, reasons in ranking.unranked for row in _rows(clean(arm), reasons)]
    return (Table("Unranked arms", ("Arm", "Code", "Reason", "Remedy"), tuple(rows)),) if rows else ()


def _rows(arm: str, reasons: Sequence[Reason]) -> Iterable[tuple[str, ...]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for r in reasons:
        groups.setdefault((clean(r.code), clean(r.remedy)), []).append(clean(r.text))
    for (code, remedy), texts in groups.items():
        yield arm, code, texts[0] + (f", and {len(texts) - 1} more" if len(texts) > 1 else ""), remedy


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= NAMED else f"{', '.join(names[: NAMED - 1])} and {len(names) - NAMED + 1} more"
