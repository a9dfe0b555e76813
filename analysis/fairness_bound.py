"""VTC's bound held against one replicate: premises as declared, and taken back where the record speaks against them (F57, F60)."""

from __future__ import annotations

import pyarrow.compute as pc

from analysis.fairness import Gap, VtcPremises, check_bound, counter_charge, service_bound
from analysis.fairness_log import Parties
from analysis.fairness_model import BoundCheck
from analysis.fairness_words import span_words
from analysis.model import Verdict
from analysis.samples import AbsentError, counter_delta
from harness.record.fairness import Fairness
from harness.record.reader import RunRecord

VTC_POLICY = "vtc-shaped"
"""The one policy of the reference engine that charges as Algorithm 2 does."""


def bound_of(record: RunRecord, declared: Fairness, who: Parties, gap: Gap | None, unknown: str, unpaired: int) -> BoundCheck:
    """Hold the widest gap against VTC's bound, premises as declared and as far as the record can contradict them.

    ``gap``: of service per weight, as gaps are compared; the theorem's is of service, so a weight that all bear is taken out again.
    ``unpaired``: clients in no pair that was looked at. With some a gap within the bound is no PASS, since theirs may be wider.
    """
    own = declared.guarantee
    if own is None:
        return BoundCheck(Verdict.UNKNOWN, "no guarantee is declared")
    premises, why = _premises(record, declared, who)
    bound = service_bound(counter_charge(declared.input_weight, declared.output_weight, own.longest_input, own.batch_tokens), premises)
    if unknown:
        return BoundCheck(Verdict.UNKNOWN, unknown, bound.charge, bound.value)
    gap = gap and gap._replace(value=gap.value * float(who.weight[0]))
    verdict, text = check_bound(gap, bound)
    if gap is not None and bound.value is not None:
        span = span_words(gap.t1, gap.t2, record.spec.window.start_ns)
        text = f"gap {gap.value:g} of {who.names[gap.f]} and {who.names[gap.g]} from {span}, bound {bound.value:g}"
    if verdict is Verdict.PASS and unpaired:
        verdict, why = Verdict.UNKNOWN, [f"{unpaired} clients that asked for less were not paired", *why]
    return BoundCheck(verdict, "; ".join([text, *why]), bound.charge, bound.value, gap.value if gap else None)


def _premises(record: RunRecord, declared: Fairness, who: Parties) -> tuple[VtcPremises, list[str]]:
    """The declared premises, each taken back where the record speaks against it; and what the record says."""
    said: dict[str, bool | None] = declared.guarantee.premises.model_dump() if declared.guarantee else {}
    against = [(name, text) for name, text in _against(record, declared, who) if text]
    for name, _ in against:
        said[name] = None if name == "both_backlogged" else False
    return VtcPremises(**said), [text for _, text in against]


def _against(record: RunRecord, declared: Fairness, who: Parties) -> list[tuple[str, str]]:
    policy = record.spec.arm.args.get("policy") if record.spec.arm.runtime == "reference" else None
    longest = int(pc.max(record.schedule.column("input_tokens")).as_py() or 0)
    limit = declared.guarantee.longest_input if declared.guarantee else 0
    unlike = bool((who.weight != who.weight[:1]).any())
    return [
        ("both_backlogged", "" if declared.eligible == "waiting" else "eligibility is declared as unfinished, which is more than waiting"),
        ("lift_and_charges_kept", f"the reference engine ran policy {policy}" if policy not in (None, VTC_POLICY) else ""),
        ("lift_and_charges_kept", "clients have unlike weights, of which the theorem does not speak" if unlike else ""),
        ("no_preemption", _preempted(record)),
        ("finite_bounds", f"a prompt of {longest} tokens was sent" if longest > limit else ""),
    ]


def _preempted(record: RunRecord) -> str:
    try:
        count = counter_delta(record, "preemptions_total", 0)
    except AbsentError:
        return ""
    return f"the server counted {count:g} preemptions" if count > 0 else ""
