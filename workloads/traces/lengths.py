"""Reader ``lengths``: token counts of requests without any time.

Two shapes are published: one that borrows the header of Azure 2023 with the literal ``XXX`` for every time stamp, so that its header alone
would pass for a trace with arrivals; and one with prefill, decode and total tokens. Rows have no arrivals: they take them from a process.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from workloads.schedule import Trace, frozen
from workloads.traces import csvcols
from workloads.traces.contract import FormatInfo, NoOptions
from workloads.traces.find import read_bytes
from workloads.traces.problems import ProblemList

FORMAT = "lengths"
STAMPED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
COUNTED = ("num_prefill_tokens", "num_decode_tokens")
TOTAL = "num_total_tokens"
BLANK_STAMP = b"XXX"
TIMED = frozenset({"TIMESTAMP", "arrived_at"})
"""Columns of time that files with these token columns have elsewhere."""


def parse(raw: bytes, name: str) -> Trace:
    """Read a file's bytes. Raises UsageError with every problem and its line: also a real time stamp, which this format would lose."""
    problems = ProblemList(name)
    stamped = csvcols.header_of(raw[:4096])[0] == STAMPED[0]
    table = csvcols.read_table(raw, STAMPED if stamped else COUNTED, () if stamped else (TOTAL, "pd_ratio"), problems)
    tokens_in, tokens_out = (csvcols.counts(table, column, problems) for column in (STAMPED[1:] if stamped else COUNTED))
    if stamped:
        _check_stamps(table, problems)
    elif TOTAL in table.columns:
        total = csvcols.counts(table, TOTAL, problems)
        for row in np.flatnonzero(total != tokens_in + tokens_out).tolist() if not len(problems) else ():
            what = f"{TOTAL}={total[row]}: prefill and decode make {tokens_in[row] + tokens_out[row]}"
            problems.add("trace.total", what, "restore the row: one of its three counts is wrong", table.line(row))
    if TIMED & set(table.extra):
        what = f"column {', '.join(sorted(TIMED & set(table.extra)))}: the file has times, which this format would lose"
        problems.add("trace.timestamp", what, "name the format that reads them", 1)
    problems.raise_if_any()
    rows = np.arange(len(tokens_in), dtype=np.int64)
    notes = ("no row has a time: arrivals come from a process",) + ((f"columns not used: {', '.join(table.extra)}",) if table.extra else ())
    return Trace(
        FORMAT,
        name,
        frozen(np.zeros(len(rows), np.int64)),
        frozen(tokens_in),
        frozen(tokens_out),
        frozen(rows),
        clock="none",
        notes=notes,
    )


def _check_stamps(table: csvcols.Table, problems: ProblemList) -> None:
    values = table.columns[STAMPED[0]]
    for row in np.flatnonzero(pc.not_equal(values, BLANK_STAMP).to_numpy()).tolist():
        what = f"TIMESTAMP={csvcols.show(values[row].as_py())}: this format has {BLANK_STAMP.decode()} in place of every time"
        problems.add("trace.timestamp", what, "a file with real times is another format, e.g. azure-2023: name that", table.line(row))


class _Lengths:
    """``lengths``: what Nanoflow, Vidur and Etalon publish of ShareGPT, arXiv summarization and BWB."""

    info = FormatInfo(
        format=FORMAT,
        summary="Token lengths without times (Nanoflow's ShareGPT, Vidur's arXiv summarization, Etalon's BWB)",
        clock="none",
        time_unit="none: arrivals come from a process",
        lengths="input and output tokens as the publisher counted them",
        prefix=None,
        tested="full file",
    )
    options = NoOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the head tells
        """Whether the header has prefill and decode tokens, or Azure's columns over a first row without a time."""
        header = csvcols.header_of(head)
        if set(COUNTED) <= set(header):
            return not TIMED & set(header)
        return tuple(header) == STAMPED and head.split(b"\n", 2)[1:2] != [] and head.split(b"\n", 2)[1].startswith(BLANK_STAMP + b",")

    def read(self, path: Path, options: NoOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing to choose or to draw
        """Read the whole file."""
        return parse(read_bytes(path), path.name)


READERS = (_Lengths(),)
