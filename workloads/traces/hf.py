"""Reader ``hf-datasets``: any Hugging Face data set kept as local files, with a map from its columns to ours.

Texts are counted with a tokenizer of the user's choice. A null or empty text is no row and is counted by reason; a null time is refused.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from harness.errors import UsageError
from workloads.schedule import Labels, Trace, frozen
from workloads.tokens import TokenSource
from workloads.traces.collect import int64
from workloads.traces.contract import FormatInfo, Options
from workloads.traces.csvcols import grid
from workloads.traces.hf_files import batches, find_data, tree_digest
from workloads.traces.jsonl import show
from workloads.traces.problems import TOKEN_LIMIT, ProblemList
from workloads.traces.sharegpt import token_source, tokenizer_note

FORMAT = "hf-datasets"
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
_LATEST_NS = 1 << 62
"""146 years from the clock's zero: room for wall time since 1970, and sums stay in int64."""


class ColumnMap(Options):
    """Which column is what: texts (``prompt``, ``completion``) or counts (``input-tokens``, ``output-tokens``), one of each pair."""

    prompt: str | None = Field(None, description="column of prompt texts")
    input_tokens: str | None = Field(None, description="column of prompt lengths")
    completion: str | None = Field(None, description="column of answer texts")
    output_tokens: str | None = Field(None, description="column of answer lengths")
    arrival: str | None = Field(None, description="column of arrival times: a timestamp, or a number of arrival-unit")
    client: str | None = Field(None, description="column of clients")

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.prompt is None) == (self.input_tokens is None):
            raise ValueError("exactly one of prompt and input-tokens is wanted")
        if (self.completion is None) == (self.output_tokens is None):
            raise ValueError("exactly one of completion and output-tokens is wanted")
        return self

    def roles(self) -> dict[str, str]:
        """Column by role, for the roles that have one."""
        return {role: name for role, name in self if name is not None}


class HfOptions(Options):
    """Where the data lie and what their columns mean."""

    columns: ColumnMap
    path: str | None = Field(None, description="data file, or folder of data files, beside the trace file; none: the trace file itself")
    data_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="digest of the data files, as the notes give it")
    split: str | None = Field(None, pattern=r"^[\w.-]+$", description="split, as the names of the data files have it")
    revision: str | None = Field(None, pattern=r"^[\w./-]+$", description="revision of the data set that the files were taken from")
    arrival_unit: Literal["s", "ms", "us", "ns"] | None = Field(None, description="unit of a numeric arrival column")
    tokenizer: str | None = Field(None, description="`bytes`, or a tokenizer.json or its folder, from the trace's folder")


class _Rows:
    """Iterate over the rows of the data that can be sent, as values by role; the others are counted in ``skipped``."""

    def __init__(self, path: Path, options: HfOptions, roles: dict[str, str]) -> None:
        self.skipped: Counter[str] = Counter()
        self.files = find_data(path, options.path, options.split)
        self.digest = tree_digest(self.files)
        if options.data_sha256 not in (None, self.digest):
            what = f"data-sha256={options.data_sha256}: the data files have {self.digest}"
            raise UsageError.single("trace.digest_mismatch", what, "fetch the data that is meant, or pin these", path.name)
        beside = options.path is not None and options.data_sha256 is None
        self.unpinned = {"data-sha256": self.digest} if beside else {}
        self._roles = roles
        self.problems = ProblemList(self.files[0].name)

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        row = 0
        texts = [name for role, name in self._roles.items() if role in ("prompt", "completion", "client")]
        for batch in batches(self.files, self._roles.values(), texts):
            values = {role: _values(batch.column(name), name) for role, name in self._roles.items()}
            for place in range(batch.num_rows):
                held = {role: column[place] for role, column in values.items()}
                reason = _unsendable(held)
                if reason:
                    self.skipped[reason] += 1
                else:
                    yield row, held
                row += 1


def read_texts(path: Path, options: HfOptions) -> list[str]:
    """Prompt texts by row of the trace. Raises UsageError as reading does, and ``trace.columns`` when the map names no prompt column."""
    if options.columns.prompt is None:
        what = "columns.prompt: not given, so the data have lengths and no texts"
        raise UsageError.single("trace.columns", what, "name the column of prompt texts", "workload.trace.options.columns.prompt")
    # The same columns as for the trace: they decide which rows are skipped.
    rows = _Rows(path, options, options.columns.roles())
    texts = [_text(held["prompt"], "prompt", row, rows.problems) for row, held in rows]
    rows.problems.raise_if_any()
    return texts


def _values(column: pa.ChunkedArray, name: str) -> list[Any]:
    try:
        if pa.types.is_timestamp(column.type):  # as whole ns, which Python's datetime cannot hold
            return [None if ns is None else _Instant(ns) for ns in column.cast(pa.timestamp("ns")).cast(pa.int64()).to_pylist()]
        values: list[Any] = column.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:  # dates outside what 64 bits or Python hold
        what = f"column={name!r}: a {column.type} in it cannot be read ({str(error)[:100]})"
        raise UsageError.single("trace.value", what, "mend the column, or map another") from error
    return values


class _Instant(int):
    """Nanoseconds since 1970, from a column of time stamps."""


def _unsendable(held: dict[str, Any]) -> str:
    """Why a row is no request, or nothing."""
    for role in ("prompt", "input_tokens", "completion", "output_tokens"):
        if role in held and held[role] is None:
            return f"{role.replace('_', '-')} is null"
        if role in held and held[role] == "":
            return f"{role.replace('_', '-')} is empty"
    return ""


def _text(value: Any, role: str, row: int, problems: ProblemList) -> str:
    if isinstance(value, str):
        return value
    what = f"row {row}: {role}={show(value)}: {type(value).__name__} where a text is wanted"
    problems.add("trace.text", what, "name a column of texts; conversations in lists are read by format sharegpt")
    return ""


def _count(value: Any, role: str, row: int, problems: ProblemList) -> int:
    # bool is an int to Python; a float column is what a table with gaps was saved as.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= TOKEN_LIMIT and value == int(value):
        return int(value)
    what = f"row {row}: {role.replace('_', '-')}={show(value)}: not a whole number of tokens from 0 to {TOKEN_LIMIT}"
    problems.add("trace.count", what, "name a column of token counts")
    return 0


class _Times:
    """Arrivals as ns: time stamps as they are, numbers by their unit."""

    def __init__(self, unit: str | None, problems: ProblemList) -> None:
        self._unit = unit
        self._problems = problems

    def read(self, value: Any, row: int) -> int:
        """Return ns since the column's zero; what is no time is recorded."""
        if isinstance(value, _Instant) and self._unit is None and 0 <= value < _LATEST_NS:
            return int(value)
        number = isinstance(value, int | float) and not isinstance(value, bool | _Instant)
        if number and self._unit is not None and 0 <= value < _LATEST_NS / UNITS[self._unit]:
            return value * UNITS[self._unit] if isinstance(value, int) else round(value * UNITS[self._unit])
        what = f"row {row}: arrival={show(value)}: {self._rule(value, number=number)}"
        self._problems.add("trace.timestamp", what, "mend the column or arrival-unit; a time that cannot be read cannot be replayed")
        return 0

    def _rule(self, value: Any, *, number: bool) -> str:
        if number and self._unit is None:
            return "a number needs arrival-unit (s, ms, us, ns): guessed, it is wrong by a factor of 1000"
        if isinstance(value, _Instant) and self._unit is not None:
            return "a time stamp has its unit: leave arrival-unit out"
        return "neither a time stamp nor a number of arrival-unit from 0 on"


class _HfDatasets:
    """``hf-datasets``: JSON, CSV, Parquet and Arrow files of a data set."""

    info = FormatInfo(
        format=FORMAT,
        summary="Hugging Face data sets kept as local files, with a map of their columns; nothing is downloaded",
        clock="none",
        time_unit="none, or that of the column mapped to arrival (then the clock is relative)",
        lengths="tokens of the mapped columns, or of their texts by the option tokenizer",
        prefix=None,
        tested="schema",
    )
    options = HfOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - nothing to see
        """Return False: any table may be a data set, and which column is what must be said."""
        return False

    def read(self, path: Path, options: HfOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing is drawn
        """Read the data by batches. Raises UsageError with every problem and its row, HostError without the package ``datasets``."""
        roles = options.columns.roles()
        texts = {"prompt", "completion"} & set(roles)
        source = token_source(options.tokenizer, path) if texts else None
        rows = _Rows(path, options, roles)
        times = _Times(options.arrival_unit, rows.problems)
        columns = {"input": array("q"), "output": array("q"), "arrival": array("q")}
        clients: list[str | None] = []
        for row, held in rows:
            columns["input"].append(_tokens(held, ("prompt", "input_tokens"), source, row, rows.problems))
            columns["output"].append(_tokens(held, ("completion", "output_tokens"), source, row, rows.problems))
            columns["arrival"].append(times.read(held["arrival"], row) if "arrival" in roles else 0)
            clients.append(_client(held.get("client")))
        if not columns["input"] and not len(rows.problems):
            rows.problems.add("trace.no_rows", f"rows=0: nothing to send (skipped: {dict(rows.skipped)})", "name other data or columns")
        rows.problems.raise_if_any()
        return _trace(path.name, columns, clients, roles, _notes(rows, options, source), rows)


def _tokens(held: dict[str, Any], roles: tuple[str, str], source: TokenSource | None, row: int, problems: ProblemList) -> int:
    if roles[0] in held and source is not None:
        return len(source.encode(_text(held[roles[0]], roles[0], row, problems)))
    return _count(held[roles[1]], roles[1], row, problems)


def _client(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _notes(rows: _Rows, options: HfOptions, source: TokenSource | None) -> tuple[str, ...]:
    where = f"{len(rows.files)} data file{'s' if len(rows.files) > 1 else ''} (data-sha256 {rows.digest})"
    revision = f"revision {options.revision}" if options.revision else "revision not stated"
    split = f", split {options.split}" if options.split else ""
    notes = [f"{where}, {revision}{split}"]
    if source is not None:
        notes.append(tokenizer_note(source))
    if rows.skipped:
        notes.append("rows are numbered over those that were not skipped")
    return tuple(notes)


def _trace(
    name: str, columns: dict[str, Any], clients: list[str | None], roles: dict[str, str], notes: tuple[str, ...], rows: _Rows
) -> Trace:
    times, timed = int64(columns["arrival"]), "arrival" in roles
    return Trace(
        FORMAT,
        name,
        frozen(times - times.min()),
        int64(columns["input"]),
        int64(columns["output"]),
        frozen(np.arange(len(times), dtype=np.int64)),
        clock="relative" if timed else "none",
        grid_ns=grid(times) if timed else 1,
        client=Labels.of(clients) if "client" in roles else None,
        skipped=dict(sorted(rows.skipped.items())),
        notes=notes,
        unpinned=rows.unpinned,
    )


READERS = (_HfDatasets(),)
