"""Columns of a trace in the making."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from workloads.schedule import Int64


class Growing:
    """An int64 column that rows are added to. Room that is never filled is never touched, so it costs no memory."""

    __slots__ = ("_room", "_rows")

    def __init__(self, capacity: int = 0) -> None:
        self._room = np.empty(max(capacity, 1), dtype=np.int64)
        self._rows = 0

    def extend(self, values: Int64) -> None:
        """Add rows at the end."""
        end = self._rows + len(values)
        if end > len(self._room):
            wider = np.empty(2 * end, dtype=np.int64)
            wider[: self._rows] = self._room[: self._rows]
            self._room = wider
        self._room[self._rows : end] = values
        self._rows = end

    def values(self) -> Int64:
        """Rows so far (n,): a view, not a copy."""
        return self._room[: self._rows]


def int64_view(column: pa.ChunkedArray) -> Int64:
    """Values (n,) of an Arrow column of 64-bit type without nulls, as they lie in memory; a copy only when it has several chunks.

    Not ``to_numpy``: for instants that imports pandas where there is one, which costs more than reading the trace.
    """
    parts = [np.frombuffer(c.buffers()[1], dtype=np.int64, count=len(c), offset=8 * c.offset) for c in column.chunks if len(c)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])
