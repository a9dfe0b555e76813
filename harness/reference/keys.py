"""Tie-break evidence: the declared order fields of selected members, computed from declared columns and derived phases alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from harness.reference.table import GENERATION, HANDLE, ORDER, PRIORITY, Bools, Int64, Phase, Table, is_identity, occurs

_COLUMN_FIELDS: Final = {"priority_rank": PRIORITY, "arrival_order": ORDER, "request_id": HANDLE, "request_generation": GENERATION}


_QUEUE_ORDER: Final = ("queue_position",)
_LET_IN, _DECODE = np.int64(2), int(Phase.DECODE)


def order_keys(tie_break: tuple[str, ...], members: Table, kept: int, at: Int64, own: Mapping[str, Int64]) -> Int64:
    """Evaluate the declared tie-break (fields, k) for the members at positions ``at``; the first ``kept`` members ran already.

    ``phase_rank``: 0 decode, 1 prompt or rebuild rows of a member that ran already, 2 of one that this plan lets in. ``queue_rank``: 0 ran
    already, 1 let in. ``queue_position``: place in queue order, running first. ``request_id`` is the request's number. ``own``: fields of
    the policy, one value for each member. Raises KeyError for a field that neither side knows.
    """
    if tie_break == _QUEUE_ORDER:
        return at.reshape(1, -1)
    keys = np.empty((len(tie_break), len(at)), np.int64)
    for row, name in enumerate(tie_break):
        keys[row] = own[name].take(at) if name in own else _contract_field(name, members, kept, at)
    keys.flags.writeable = False
    return keys


def _contract_field(name: str, members: Table, kept: int, at: Int64) -> Int64:
    if name == "queue_position":
        return at
    if name in _COLUMN_FIELDS:
        column: Int64 = members.cells[_COLUMN_FIELDS[name]].take(at)
        return column
    let_in = at >= kept
    if name == "queue_rank":
        return let_in.astype(np.int64)
    if name == "phase_rank":
        return np.where(let_in, _LET_IN, members.phase.take(at) != _DECODE)
    raise KeyError(name)


def first_descent(keys: Int64) -> int:
    """Index of the first column that sorts before its left neighbour; -1 when the columns ascend (equal keys do not descend)."""
    if keys.shape[1] < 2 or (len(keys) == 1 and is_identity(keys)):
        return -1
    tied: Bools | None = None
    for row in keys:
        stays = row[1:] <= row[:-1]
        if tied is not None:
            stays &= tied
        if not occurs(stays):
            return -1
        falls = stays & (row[1:] < row[:-1])
        if occurs(falls):
            return int(falls.argmax()) + 1
        tied = stays
    return -1
