"""How a campaign measures fairness: the five declarations (DESIGN 7, seed 0x09A) and the numbers they rest on, frozen before the run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.system import Frozen

Identity = Literal["client", "request_class", "priority"]
"""Whose service is compared: a column of the schedule."""
Publication = Literal["tokens", "requests"]
"""When work counts. tokens: a prompt with the first token, an output token at its stamp, unless the request fails in the end. requests: all
of a request's work when it is answered completely, else never."""
Eligible = Literal["unfinished", "waiting"]
"""While a request makes its owner eligible. unfinished: from arrival to end. waiting: from arrival to first token, VTC's narrower sense as
far as it can be seen from outside a server."""

LONGEST_WINDOW_NS = 60 * 10**9
"""Width of the gap windows where nothing is declared, unless a tenth of the measured window is less: VTC's artifact uses 60 s in runs of
ten minutes."""


class Premises(Frozen):
    """What Theorem 4.4 of VTC rests on, as declared; null: not known, which is no yes."""

    both_backlogged: bool | None = Field(None, description="Two clients that are compared wait throughout")
    lift_and_charges_kept: bool | None = Field(None, description="The counter lift and the charges of Algorithm 2 are the scheduler's")
    work_conserving: bool | None = Field(None, description="No request that fits is left waiting")
    no_preemption: bool | None = Field(None, description="What runs is never taken out of the batch")
    finite_bounds: bool | None = Field(None, description="longest_input and batch_tokens hold for every request and batch")


class VtcGuarantee(Frozen):
    """VTC's bound 2 max(w_p L_input, w_q M), claimed for an arm (F57, F60)."""

    longest_input: int = Field(ge=1, description="L_input: tokens of the longest prompt")
    batch_tokens: int = Field(ge=1, description="M: most tokens a running batch holds")
    premises: Premises = Premises()


class Fairness(Frozen):
    """Identity, eligibility, cost, publication and guarantee, with the widths and quanta of what is measured."""

    identity: Identity = "client"
    input_weight: float = Field(1.0, ge=0, description="w_p, cost of a prompt token")
    output_weight: float = Field(2.0, ge=0, description="w_q, cost of an output token")
    publication: Publication = "tokens"
    eligible: Eligible = "unfinished"
    window_ns: int = Field(gt=0, description="Width of the windows of the windowed gap")
    horizon_ns: int = Field(gt=0, description="Time without service, while eligible throughout, that is called starvation")
    aging_quantum_ns: int | None = Field(None, gt=0, description="Wait that lowers a priority number by one, for inversions under aging")
    guarantee: VtcGuarantee | None = Field(None, description="Bound claimed for this arm; null: none")


def default_fairness(measured_ns: int) -> Fairness:
    """Return what holds where a manifest says nothing: VTC's weights and windows, starvation over the whole measured window."""
    return Fairness(window_ns=min(LONGEST_WINDOW_NS, max(1, measured_ns // 10)), horizon_ns=measured_ns)
