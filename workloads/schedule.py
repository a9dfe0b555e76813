"""The absolute send plan: immutable, pure, with a content digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Rows of a public trace, columnar and read-only.

    ``arrival_ns`` is relative to the trace's first row (n,), sorted and >= 0; ``input_tokens``/``output_tokens`` (n,) >= 0;
    ``source_row`` (n,) is the zero-based data row in the file; ``client`` optional per-row tenant.
    """

    format: str
    name: str
    sha256: str
    licence: str
    attribution: str
    arrival_ns: Int64
    input_tokens: Int64
    output_tokens: Int64
    source_row: Int64
    client: tuple[str, ...] | None = None
    skipped: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrival_ns)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """What will be sent and when, by request id 0..n-1 in arrival order.

    ``arrival_ns`` (n,) is relative to the run's epoch. ``max_tokens`` (n,) is what the server is told (-1: nothing). ``output_tokens`` (n,)
    is the realized length and goes to ``truth.parquet`` only; ``stop_after`` (n,) is -1 unless the control is client_stop.
    ``prompt_ids(i)`` returns the token ids of request i (exactly ``input_tokens[i]`` of them) deterministically.
    ``digest`` covers every column, every prompt and the transform chain.
    """

    arrival_ns: Int64
    input_tokens: Int64
    output_tokens: Int64
    max_tokens: Int64
    stop_after: Int64
    source_row: Int64
    prompt_ids: Callable[[int], npt.NDArray[np.int32]]
    prompt_text: Callable[[int], str] | None
    digest: str
    transforms: tuple[dict[str, object], ...]
    ignore_eos: bool
    client: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.arrival_ns)


def array_digest(*arrays: npt.NDArray[np.generic]) -> str:
    """sha256 over dtype, shape and little-endian bytes of each array."""
    digest = hashlib.sha256()
    for array in arrays:
        little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
        digest.update(f"{little.dtype.str}{little.shape}".encode())
        digest.update(little.tobytes())
    return digest.hexdigest()
