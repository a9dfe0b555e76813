"""One digest over everything a schedule sends."""

from __future__ import annotations

import hashlib

import numpy as np

from workloads.schedule import Labels, Schedule, array_digest


def content_digest(schedule: Schedule) -> str:
    """Sha256 over the choices, every column and every prompt (ids, and text where text is sent); makes every prompt once.

    Independent of process, platform, start order and hash seed.
    """
    digest = hashlib.sha256(schedule.recipe)
    digest.update(array_digest(*_columns(schedule)).encode())
    for labels in (schedule.client, schedule.request_class):
        digest.update(b"-" if labels is None else _names(labels))
    for request_id in range(len(schedule)):
        ids = schedule.prompts.ids(request_id)
        text = (schedule.prompts.text(request_id) or "").encode()
        digest.update(len(text).to_bytes(8, "little") + text)
        digest.update(len(ids).to_bytes(8, "little") + ids.astype("<i4").tobytes())
    return digest.hexdigest()


def _columns(schedule: Schedule) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    none = np.empty(0, np.int64)
    turns = schedule.turns
    waits = [none] * 5 if turns is None else [turns.session, turns.turn, turns.after.offsets, turns.after.values, turns.think_ns]
    return [
        schedule.arrival_ns,
        schedule.input_tokens,
        schedule.output_tokens,
        schedule.max_tokens,
        schedule.stop_after,
        schedule.source_row,
        none if schedule.priority is None else schedule.priority,
        none if schedule.cancel_after_ns is None else schedule.cancel_after_ns,
        *(column.astype(np.int64) for column in waits),
    ]


def _names(labels: Labels) -> bytes:
    """Names row by row, so that neither the order of the table of names nor an unused name matters."""
    return b"".join(len(raw).to_bytes(4, "little") + raw for raw in ((name or "").encode() for name in labels.values()))
