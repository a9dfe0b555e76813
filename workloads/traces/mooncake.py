"""Reader ``mooncake`` (Kimi, FAST'25): one request a line, arrivals in whole ms, one id per started block of 512 tokens.

The block size is nowhere in the file. It is the format's default here, and every row's id count is held against its length, so that a file
made with another size or rule is refused by its first row instead of replaying the wrong sharing. Sessions are not in the format: several
turns show through equal leading ids only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from workloads.schedule import Trace
from workloads.traces.collect import BlockColumn, Columns, arrival_notes, first_block_notes, int64
from workloads.traces.contract import FormatInfo, Options, PrefixRule
from workloads.traces.fields import elapsed, tokens
from workloads.traces.jsonl import JsonLines, first_object
from workloads.traces.problems import ProblemList

FORMAT = "mooncake"
_KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})
_UNITS = {"ms": 1_000_000, "s": 1_000_000_000}


class MooncakeOptions(Options):
    """For files of this shape that other tools made: their block size, its rounding, and the unit of ``timestamp``."""

    block_size: int = Field(512, ge=1, le=1 << 20)
    rounding: Literal["ceil", "floor"] = "ceil"
    time_unit: Literal["ms", "s"] = "ms"


class _Mooncake:
    """``mooncake``: conversation, tool and agent, synthetic; and every file of the same four keys."""

    info = FormatInfo(
        format=FORMAT,
        summary="Mooncake traces (Kimi): arrivals, token counts and prefix block ids",
        clock="relative",
        time_unit="whole milliseconds from the trace's start",
        lengths="input and output tokens as the service counted them",
        prefix=PrefixRule(512, "ceil", "trace"),
        tested="full file",
    )
    options = MooncakeOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the keys tell
        """Whether the first row has the four keys, a plain list of ids, and no chat ids (which make it a Bailian row)."""
        row = first_object(head)
        return row.keys() >= _KEYS and isinstance(row["hash_ids"], list) and "chat_id" not in row

    def read(self, path: Path, options: MooncakeOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing is drawn
        """Read the whole file. Raises UsageError with every problem and its line."""
        problems = ProblemList(path.name)
        rows, columns = JsonLines(path, problems), Columns()
        blocks = BlockColumn(options.block_size, options.rounding)
        unit, whole = _UNITS[options.time_unit], options.time_unit == "ms"
        for line, row in rows:
            tokens_in = tokens(row, "input_length", problems, line)
            arrival = elapsed(row, "timestamp", unit, problems, line, "whole" if whole else "number")
            columns.add(arrival, tokens_in, tokens(row, "output_length", problems, line))
            blocks.add(row.get("hash_ids"), tokens_in, problems, line)
        problems.raise_if_any()
        return _trace(path.name, columns, blocks, unit if whole else 1, rows.unread(_KEYS))


def _trace(name: str, columns: Columns, blocks: BlockColumn, grid_ns: int, unread: tuple[str, ...]) -> Trace:
    prefix = blocks.blocks()
    notes = (*arrival_notes(int64(columns.arrival), grid_ns), *first_block_notes(prefix), *unread)
    return columns.trace(FORMAT, name, grid_ns=grid_ns, blocks=prefix, notes=notes)


READERS = (_Mooncake(),)
