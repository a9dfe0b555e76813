"""Small trace files for reader tests: written where a reader can find them, read, and held against what every trace must be."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from workloads.schedule import Trace
from workloads.traces import read_trace
from workloads.traces.problems import TOKEN_LIMIT


def jsonl(rows: Iterable[object]) -> bytes:
    """Rows as JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def read(fmt: str, raw: bytes, name: str = "t.jsonl", beside: dict[str, bytes] | None = None, **options: Any) -> Trace:
    """Read bytes as a file of this name, with other files beside it."""
    with tempfile.TemporaryDirectory() as folder:
        for other, content in (beside or {}).items():
            (Path(folder) / other).write_bytes(content)
        path = Path(folder) / name
        path.write_bytes(raw)
        return read_trace(fmt, path, options)


def fault(fmt: str, raw: bytes, **options: Any) -> UsageError:
    """The refusal of a file."""
    with pytest.raises(UsageError) as caught:
        read(fmt, raw, **options)
    return caught.value


def codes(fmt: str, raw: bytes, **options: Any) -> list[str]:
    """Codes of everything wrong with a file."""
    return [problem.code for problem in fault(fmt, raw, **options).problems]


def check_outcome(fmt: str, raw: bytes, **options: Any) -> Trace | None:
    """The reader ends with a sound trace or with located, printable problems; anything else is a bug."""
    found = _outcome(fmt, raw, **options)
    if isinstance(found, UsageError):
        assert all(p.code.startswith("trace.") and p.where and p.remedy and p.what.isprintable() for p in found.problems)
        return None
    check_sound(found)
    return found


def _outcome(fmt: str, raw: bytes, **options: Any) -> Trace | UsageError:
    try:
        return read(fmt, raw, **options)
    except UsageError as error:
        return error


def check_sound(trace: Trace) -> None:
    """What the contract of a trace says of every column."""
    assert len(trace) > 0
    assert trace.arrival_ns.min() >= 0
    for column in (trace.input_tokens, trace.output_tokens):
        assert 0 <= column.min() <= column.max() <= TOKEN_LIMIT
        assert not column.flags.writeable
    if trace.blocks is not None:
        size, count = trace.blocks.size, np.diff(trace.blocks.ids.offsets)
        due = -(-trace.input_tokens // size) if trace.blocks.rounding == "ceil" else trace.input_tokens // size
        assert count.tolist() == due.tolist()
        assert trace.blocks.ids.values.dtype == np.uint64
    if trace.turns is not None:
        check_turns(trace)


def check_turns(trace: Trace) -> None:
    """Rows wait for other rows of the file, never in a circle, and only those that wait have a pause."""
    turns = trace.turns
    assert turns is not None
    assert turns.think_ns.min() >= -1
    waiting = {row: set(turns.after.row(row).tolist()) for row in range(len(trace))}
    assert all(0 <= other < len(trace) for others in waiting.values() for other in others)
    assert all(turns.think_ns[row] == -1 for row, others in waiting.items() if not others)
    done: set[int] = set()
    while waiting:
        free = {row for row, others in waiting.items() if others <= done}
        assert free, "rows wait for each other in a circle"
        done |= free
        waiting = {row: others for row, others in waiting.items() if row not in free}
