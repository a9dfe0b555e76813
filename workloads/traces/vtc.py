"""Reader ``vtc-arena``: 27 clients of a public arena, one row a request, seconds rescaled by the authors.

The rows are a random part of a log, stretched linearly to 600 s, so rates in requests per second say nothing of the service; order,
relative bursts and who asks how much remain. A client is an Arena model name that the authors mapped to an adapter number.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from workloads.schedule import Trace, frozen
from workloads.traces import csvcols
from workloads.traces.contract import FormatInfo, NoOptions
from workloads.traces.find import read_bytes
from workloads.traces.problems import ProblemList

FORMAT = "vtc-arena"
COLUMNS = ("req_id", "client", "req_time_s", "prompt_len", "output_len")
RATE_NOTE = "the authors stretched a random part of the log to 600 s: absolute rates mean nothing, so set the rate with time_compress"
LENGTH_NOTE = "long requests were removed by the authors (input at most 1,021 tokens, output at most 977)"


def parse(raw: bytes, name: str) -> Trace:
    """Read a file's bytes. Raises UsageError with every problem and its line; ``req_id`` must name each request once."""
    problems = ProblemList(name)
    table = csvcols.read_table(raw, COLUMNS, (), problems)
    times = csvcols.seconds(table, "req_time_s", problems)
    tokens_in, tokens_out = (csvcols.counts(table, f"{side}_len", problems) for side in ("prompt", "output"))
    client, request = (csvcols.labels(table, column, problems) for column in ("client", "req_id"))
    for column, values in (("client", client), ("req_id", request)):
        for row in np.flatnonzero(values.codes < 0).tolist():
            problems.add("trace.blank", f"{column}='': every request of this format has one", "restore the field", table.line(row))
    first = np.unique(request.codes, return_index=True)[1]
    for row in np.setdiff1d(np.arange(len(times)), first).tolist():
        if request.codes[row] >= 0:
            what = f"req_id={csvcols.show(request.at(row))}: stands there a second time"
            problems.add("trace.duplicate", what, "leave each request once", table.line(row))
    problems.raise_if_any()
    start = int(times.min())
    rows = frozen(np.arange(len(times), dtype=np.int64))
    notes = (RATE_NOTE, LENGTH_NOTE) + ((f"columns not used: {', '.join(table.extra)}",) if table.extra else ())
    return Trace(
        FORMAT,
        name,
        frozen(times - start),
        frozen(tokens_in),
        frozen(tokens_out),
        rows,
        clock="relative",
        grid_ns=csvcols.grid(times),
        client=client,
        notes=notes,
    )


class _VtcArena:
    """``vtc-arena`` (OSDI'24), as converted from the artifact's pickle; a pickle itself is never loaded."""

    info = FormatInfo(
        format=FORMAT,
        summary="VTC fairness trace: arrivals and token counts of 27 clients of the LMSYS Chatbot Arena",
        clock="relative",
        time_unit="seconds, stretched linearly to 600 s by the authors",
        lengths="input and output in Llama tokens",
        prefix=None,
        tested="full file",
    )
    options = NoOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the header tells
        """Whether the header has the columns."""
        return set(COLUMNS) <= set(csvcols.header_of(head))

    def read(self, path: Path, options: NoOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing to choose or to draw
        """Read the whole file."""
        return parse(read_bytes(path), path.name)


READERS = (_VtcArena(),)
