"""The declared cost model: how long an iteration takes, as a pure function of its plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.reference.contract import END, PHASE, IterationPlan
from harness.reference.table import all_zero


@dataclass(frozen=True, slots=True)
class CostModel:
    """Integer ns, linear, so that the effect of one budget can be followed by hand. It stands for no hardware, also when ``source`` says
    which campaign's server it was fitted to, as its client saw it (``fitted:DIGEST:ERROR``, ``analysis.cost_fit``).

    ``base_ns`` for each iteration, ``prefill_token_ns`` for each prompt or rebuild row, ``decode_row_ns`` for each decode row,
    ``context_token_ns`` for each KV row an interval reads (the sum of interval ends: history is read once for each interval).
    ``transfer_base_ns`` and ``transfer_row_ns``: one movement of KV between pools or tiers and each row of it, with all its layers.
    """

    base_ns: int
    prefill_token_ns: int
    decode_row_ns: int
    context_token_ns: int
    transfer_base_ns: int = 0
    transfer_row_ns: int = 0
    source: str = "declared"

    def cost_ns(self, plan: IterationPlan) -> int:
        """Duration of the iteration; 0 for a plan without work."""
        work = plan.work.cells
        rows = len(plan.work.at)
        if not rows:
            return 0
        decodes = rows if all_zero(work[PHASE]) else rows - int(np.count_nonzero(work[PHASE]))  # Phase.DECODE is 0
        prefill = plan.ledger.tokens - decodes
        context = sum(work[END].tolist()) if self.context_token_ns else 0
        return self.base_ns + prefill * self.prefill_token_ns + decodes * self.decode_row_ns + context * self.context_token_ns
