"""One digest over everything a schedule sends."""

from __future__ import annotations

import hashlib

import numpy as np

from workloads.schedule import Int64, Labels, Schedule, Turns, array_digest

_NONE: Int64 = np.empty(0, np.int64)
"""A column that the schedule does not have; no column of a schedule with requests is empty."""


def content_digest(schedule: Schedule) -> str:
    """Sha256 over the choices, every column and every prompt (ids, and text where text is sent); makes every prompt once.

    Independent of process, platform, start order and hash seed.
    """
    digest = hashlib.sha256(schedule.recipe)
    digest.update(array_digest(*_columns(schedule)).encode())
    for labels in (schedule.client, schedule.request_class):
        digest.update(b"-" if labels is None else _names(labels))
    for request_id in range(len(schedule)):
        ids = np.ascontiguousarray(schedule.prompts.ids(request_id), dtype="<i4")
        text = (schedule.prompts.text(request_id) or "").encode()
        digest.update(len(text).to_bytes(8, "little") + text)
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(ids.data)
    return digest.hexdigest()


def _columns(schedule: Schedule) -> list[Int64]:
    return [
        schedule.arrival_ns,
        schedule.input_tokens,
        schedule.output_tokens,
        schedule.max_tokens,
        schedule.stop_after,
        schedule.source_row,
        _NONE if schedule.priority is None else schedule.priority,
        _NONE if schedule.cancel_after_ns is None else schedule.cancel_after_ns,
        *_waits(schedule.turns),
    ]


def _waits(turns: Turns | None) -> list[Int64]:
    """Columns of the conversations; ``history`` says how a trace counted and is in the lengths by now."""
    if turns is None:
        return [_NONE] * 6
    after = turns.after.values.astype(np.int64)
    return [turns.session, turns.turn, turns.after.offsets, after, turns.think_ns, turns.extends]


def _names(labels: Labels) -> bytes:
    """Names row by row, so that neither the order of the table of names nor an unused name matters."""
    return b"".join(len(raw).to_bytes(4, "little") + raw for raw in ((name or "").encode() for name in labels.values()))
