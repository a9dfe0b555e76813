"""The fairness section: the five declarations, what they rest on, and how they are frozen into the record (DESIGN 7, F52-F63)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from harness.manifest.document import Path
from harness.manifest.explain import nearest
from harness.manifest.fields import PositiveDuration, Section, Slug
from harness.manifest.findings import Finding, Findings
from harness.record.fairness import Eligible, Fairness, Identity, Premises, Publication, VtcGuarantee, default_fairness

Answer = Literal["yes", "no", "unknown"]
Cost = Annotated[float, Field(ge=0, le=1e6)]

MOST_WINDOWS = 200
"""Gap windows that fit a measured window side by side: more say nothing that a plot of service does not, and cost clients times windows."""


class GuaranteePremises(Section):
    """The five premises of VTC's Theorem 4.4. One that is not yes leaves no bound."""

    both_backlogged: Answer = Field("unknown", description="Clients that are compared wait throughout; needs eligible: waiting")
    lift_and_charges_kept: Answer = Field("unknown", description="The counter lift and the charges of Algorithm 2 are the scheduler's")
    work_conserving: Answer = Field("unknown", description="No request that fits is left waiting")
    no_preemption: Answer = Field("unknown", description="What runs is never taken out of the batch")
    finite_bounds: Answer = Field("unknown", description="longest-input and batch-tokens hold for every request and batch")


class Guarantee(Section):
    """A bound that is claimed, and by what right. It is printed only where every premise holds and the record contradicts none."""

    theorem: Literal["vtc"] = Field(description="VTC, Theorem 4.4: 2 max(w_p L_input, w_q M) between clients that both wait")
    arms: tuple[Slug, ...] = Field((), max_length=64, description="Arms it is claimed for; default: all")
    longest_input: int = Field(ge=1, le=100_000_000, description="L_input: tokens of the longest prompt")
    batch_tokens: int = Field(ge=1, le=1_000_000_000_000, description="M: most tokens a running batch holds")
    premises: GuaranteePremises = Field(GuaranteePremises(), description="The five premises, each yes, no or unknown")


class FairnessSection(Section):
    """How it is measured who got how much; without it the defaults hold, and the report says that they were."""

    identity: Identity = Field("client", description="Whose service is compared: client, request_class, or priority sent with the request")
    input_weight: Cost = Field(1.0, description="w_p, cost of a prompt token")
    output_weight: Cost = Field(2.0, description="w_q, cost of an output token")
    publication: Publication = Field(
        "tokens", description="tokens: work counts as it is streamed, unless the request fails; requests: at the end of complete answers"
    )
    eligible: Eligible = Field(
        "unfinished",
        description="While a request makes its owner eligible: until it ends, or while it waits for its first token (VTC)",
    )
    gap_window: PositiveDuration | None = Field(
        None, description="Width of the windows of the windowed gap; default: 60s, or a tenth of window.measured where that is less"
    )
    horizon: PositiveDuration | None = Field(
        None, description="Time eligible without any service that is called starvation; default: window.measured"
    )
    aging_quantum: PositiveDuration | None = Field(
        None, description="Wait that lowers a priority number by one, to count inversions under aging"
    )
    guarantee: Guarantee | None = Field(None, description="A bound that is claimed; default: none")


def to_fairness(section: FairnessSection | None, measured_ns: int, arm: str) -> Fairness | None:
    """Return what holds for the runs of one arm; null when nothing was declared."""
    if section is None:
        return None
    default = default_fairness(measured_ns)
    own = section.guarantee
    claimed = own is not None and (not own.arms or arm in own.arms)
    return Fairness(
        identity=section.identity,
        input_weight=section.input_weight,
        output_weight=section.output_weight,
        publication=section.publication,
        eligible=section.eligible,
        window_ns=section.gap_window or default.window_ns,
        horizon_ns=section.horizon or default.horizon_ns,
        aging_quantum_ns=section.aging_quantum,
        guarantee=_guarantee(own) if own is not None and claimed else None,
    )


def _guarantee(own: Guarantee) -> VtcGuarantee:
    answers = {"yes": True, "no": False, "unknown": None}
    premises = {name: answers[answer] for name, answer in own.premises.model_dump().items()}
    return VtcGuarantee(longest_input=own.longest_input, batch_tokens=own.batch_tokens, premises=Premises(**premises))


def check_fairness(section: FairnessSection | None, measured_ns: int) -> Findings:
    """Widths that fit the measured window, and a cost that is not nothing."""
    if section is None:
        return
    path: Path = ("fairness",)
    if section.input_weight == 0 and section.output_weight == 0:
        yield Finding("bad_fairness", path, ": both weights are 0, so no work would cost anything", "give w_q, e.g. output-weight: 2")
    for key, value in (("gap-window", section.gap_window), ("horizon", section.horizon)):
        if value is not None and value > measured_ns:
            what = ": longer than window.measured, so no run could hold one"
            yield Finding("bad_fairness", (*path, key), what, "shorten it, or lengthen the window")
    if section.gap_window is not None and section.gap_window * MOST_WINDOWS < measured_ns:
        what = f": more than {MOST_WINDOWS} of them would fit window.measured"
        yield Finding("bad_fairness", (*path, "gap-window"), what, "widen it; accumulated service is drawn in full anyway")


def check_guarantee(section: FairnessSection | None, arms: Mapping[str, object]) -> Findings:
    """A guarantee is claimed for arms that exist, and in the sense of its theorem."""
    if section is None or section.guarantee is None:
        return
    path: Path = ("fairness", "guarantee")
    for name in section.guarantee.arms:
        if name not in arms:
            near = nearest(name, sorted(arms))
            yield Finding(
                "unknown_arm", (*path, "arms"), f"={name}: no arm of this name", f"did you mean {near}?" if near else "name an arm"
            )
    if section.identity != "client":
        what = f": the theorem is about clients, and fairness.identity={section.identity}"
        yield Finding("bad_fairness", path, what, "compare clients, or claim nothing")
    if section.guarantee.premises.both_backlogged == "yes" and section.eligible != "waiting":
        what = ": yes, but eligible: unfinished also counts clients of which nothing waits"
        yield Finding("bad_fairness", (*path, "premises", "both-backlogged"), what, "set fairness.eligible: waiting, or write unknown")
