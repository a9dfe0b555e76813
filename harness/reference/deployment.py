"""What a policy may ask of the system it runs on beside one pool with one tier of KV: a second pool, or a second tier by layers.

Declared with the workload, so that the validator holds every plan against it. Owners of transfers are simulated in
``harness.reference.foreign``; what they publish stands in ``SchedulerState.ready`` and in ``Foreign``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from harness.reference.table import Int64


class Pools(NamedTuple):
    """Prefill and decode workers with budgets of their own: rows and requests of one step, KV rows. The workload's budgets hold for both
    together.

    Prompt and rebuild rows run in the first pool, decode rows in the second; a request that has all its rows moves from the one to the
    other, and is not ready on the way.
    """

    prefill_tokens: int
    prefill_sequences: int
    prefill_kv: int
    decode_sequences: int
    decode_kv: int


class Layered(NamedTuple):
    """KV resident by layer (F64): the device holds ``kv_capacity`` rows of ``layers`` layers in any mixture of layers and requests, a
    host tier takes what is not on it, ``host_rows`` rows at most.
    """

    layers: int
    host_rows: int


class Remote(NamedTuple):
    """The store of prompt beginnings lies on another host: rows that a waiting request can take from it have to be fetched first.
    ``looked_at``: requests from the head of the queue for which this is done.
    """

    looked_at: int


Deployment = Pools | Layered | Remote

FACT_HANDLE, FACT_EPOCH, FACT_LAYERS, FACT_DUE_NS = range(4)
FACT_COLUMNS: Final = 4
NOT_MOVING: Final = int(np.iinfo(np.int64).max)
"""Due instant of a transfer that has not begun."""


class Foreign(NamedTuple):
    """Facts that owners of transfers published about members of the running queue, oldest first; who is not named holds all its layers
    where it runs, and nothing of it moves. Under ``Remote`` they are about waiting members.

    ``cells`` (4, k): handle, epoch of the suspension it is bound to, layers on the device (rows fetched, under ``Remote``), instant of the
    receipt (NOT_MOVING: nothing is under way).
    """

    cells: Int64

    def of(self, handles: Int64, layers: int) -> Int64:
        """Layers on the device of each of ``handles`` (n,): ``layers`` where nothing is said."""
        found = np.full(len(handles), layers, np.int64)
        if self.cells.shape[1]:
            same = handles[:, None] == self.cells[FACT_HANDLE]
            named = same.any(axis=1)
            found[named] = self.cells[FACT_LAYERS].take(same[named].argmax(axis=1))
        return found


NO_FACTS: Final = Foreign(np.zeros((FACT_COLUMNS, 0), np.int64))
NO_LAYERS: Final = np.zeros((2, 0), np.int64)
"""A plan that asks the tier owner for nothing: no column of handle and layers to hold on the device."""

HOPELESS: Final = 1
"""Reason of a decline: the first token cannot come in time even if the request ran alone from now on, by the policy's declared model."""
REASONS: Final = {HOPELESS: "deadline_hopeless"}
"""Why a policy may decline a request, by code."""
NO_REASONS: Final = np.zeros(0, np.int64)
NO_DECLINED: Final = np.zeros((2, 0), np.int64)
for _constant in (NO_FACTS.cells, NO_LAYERS, NO_REASONS, NO_DECLINED):
    _constant.flags.writeable = False
