"""What ServeGen publishes: per client a table of arrival processes by window, and apart from it histograms of lengths."""

from __future__ import annotations

import ast
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from harness.errors import Problem, UsageError
from workloads.schedule import Int64
from workloads.traces.archive import read_members
from workloads.traces.csvcols import show
from workloads.traces.problems import CAP, TOKEN_LIMIT, ProblemList

Floats = npt.NDArray[np.float64]

WINDOW_S = 600
"""Length of a window of the arrival tables."""

LENGTHS_WINDOW_S = 21_600
"""Length of a window of the histograms: coarser, 36 arrival windows."""

SILENT, GAMMA, WEIBULL = 0, 1, 2
PATTERNS = {"": SILENT, "Gamma": GAMMA, "Weibull": WEIBULL}
SMALLEST_SHAPE = {"Gamma": 1e-3, "Weibull": 0.05}
LARGEST_SHAPE = 1e6
"""Shapes believed. Published are gamma 0.01 to 400 and Weibull 0.16 to 2.3; far below, gaps underflow to 0 and one swallows a day."""

MAX_LITERAL = 8 << 20
"""Longest histogram read, 8 MiB: some 300,000 bins, more than there are lengths that a request can have."""

TRACE_NAME = re.compile(r"(?:.*/)?chunk-(\d{1,6})-trace\.csv")
DATASET_NAME = re.compile(r"(?:.*/)?chunk-(\d{1,6})-dataset\.json")
_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"
_ROW = re.compile(rf"(\d{{1,9}}),({_NUMBER}),({_NUMBER}),(|Gamma|Weibull),({_NUMBER}),({_NUMBER})")
_PAIR = rf"{_NUMBER}\s*:\s*{_NUMBER}\s*"
_LITERAL = re.compile(rf"\s*\{{\s*(?:{_PAIR}(?:,\s*{_PAIR})*)?\}}\s*")
_REPIN = "take the published archive again and pin its sha256"


@dataclass(frozen=True, slots=True)
class Client:
    """Arrival process of one client by window (w,): ``start_s``, ``rate`` req/s, ``cv``, ``pattern`` code, ``shape``.

    The published scale is checked and not kept: shape x scale x rate is 1 only in the median, and the rate is what a load must have.
    """

    number: int
    member: str
    start_s: Int64
    rate: Floats
    cv: Floats
    pattern: Int64
    shape: Floats


@dataclass(frozen=True, slots=True)
class Histogram:
    """Lengths (k,) ascending and their cumulative probability (k,), the last exactly 1."""

    values: Int64
    cumulative: Floats

    def draw(self, uniform: Floats) -> Int64:
        """Lengths at the quantiles ``uniform`` in [0, 1)."""
        drawn: Int64 = self.values[np.searchsorted(self.cumulative, uniform, side="right")]
        return drawn


@dataclass(frozen=True, slots=True)
class Lengths:
    """Histograms of one client by window start and field, parsed when first asked for."""

    name: str
    windows: dict[int, dict[str, str]]
    _parsed: dict[tuple[int, str], Histogram | None] = field(default_factory=dict)

    def at(self, start_s: int, side: str) -> Histogram | None:
        """Histogram that holds at ``start_s``; None where the client has none. Raises UsageError ``trace.histogram``."""
        window = start_s // LENGTHS_WINDOW_S * LENGTHS_WINDOW_S
        if (window, side) not in self._parsed:
            text = self.windows.get(window, {}).get(side, "{}")
            self._parsed[window, side] = _histogram(text, f"{self.name}: window {window}: {side}")
        return self._parsed[window, side]


def read_clients(path: Path) -> tuple[str, dict[int, Client]]:
    """Folder and clients by number of an archive of ``chunk-N-trace.csv``. Raises UsageError with everything wrong in it."""
    members = read_members(path, TRACE_NAME)
    family = _one_family(path, members, "chunk-N-trace.csv")
    faults: list[Problem] = []
    clients: dict[int, Client] = {}
    for member, raw in members.items():
        number = _number(TRACE_NAME, member)
        if number in clients:
            faults.append(Problem("trace.duplicate", f"member={show(member)}: client {number} is there twice", _REPIN, path.name))
        clients[number] = _client(number, member, raw, faults)
    if faults:
        rest = Problem("trace.more_problems", f"problems_not_listed={len(faults) - CAP}", "mend the ones above first", path.name)
        raise UsageError(*faults[:CAP], *([rest] if len(faults) > CAP else []))
    return family, dict(sorted(clients.items()))


def read_lengths(path: Path, family: str) -> dict[int, Lengths]:
    """Histograms by client of the members in folder ``family`` of an archive of ``chunk-N-dataset.json``. Raises UsageError."""
    members = {name: raw for name, raw in read_members(path, DATASET_NAME).items() if str(PurePosixPath(name).parent) == family}
    found: dict[int, Lengths] = {}
    for name, raw in members.items():
        number = _number(DATASET_NAME, name)
        if number in found:
            raise UsageError(Problem("trace.duplicate", f"member={show(name)}: client {number} is there twice", _REPIN, path.name))
        found[number] = lengths_of(name, raw)
    return found


def lengths_of(member: str, raw: bytes) -> Lengths:
    """Windows of one ``chunk-N-dataset.json``; histograms stay text. Raises UsageError ``trace.json``."""
    try:
        data = json.loads(raw)
        windows = {int(start): dict(fields) for start, fields in data.items()}
        if not all(isinstance(text, str) for fields in windows.values() for text in fields.values()):
            raise TypeError("a distribution is not a string")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        what = f"not an object of windows, each an object of strings ({str(error)[:80]})"
        raise UsageError(Problem("trace.json", what, _REPIN, member)) from error
    return Lengths(member, windows)


def _one_family(path: Path, members: dict[str, bytes], wanted: str) -> str:
    families = sorted({str(PurePosixPath(name).parent) for name in members})
    if len(families) == 1:
        return families[0]
    what = f"folders={', '.join(families) or 'none'}: members called {wanted} of exactly one model are wanted"
    raise UsageError(Problem("trace.archive", what, "give an archive of one model's arrival tables", path.name))


def _number(pattern: re.Pattern[str], member: str) -> int:
    match = pattern.fullmatch(member)
    return int(match[1]) if match else -1


def _client(number: int, member: str, raw: bytes, faults: list[Problem]) -> Client:
    """Parse one table; faults are recorded under ``member:line``, at most a screenful of each member."""
    found = ProblemList(member)
    rows: list[tuple[int, float, float, int, float]] = []
    for line, text in enumerate(raw.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n"), 1):
        row = _row(text.removesuffix("\r"), line, found)
        if row and rows and row[0] != rows[-1][0] + WINDOW_S:
            found.add("trace.window", f"window={row[0]}: follows {rows[-1][0]}, windows are {WINDOW_S} s", _REPIN, line)
        rows += [row] if row else []
    if not rows and not len(found):
        found.add("trace.no_rows", "rows=0: the table holds no window", _REPIN)
    try:
        found.raise_if_any()
    except UsageError as error:
        faults += error.problems
    table = np.array(rows, np.float64).reshape(-1, 5)
    start, pattern = table[:, 0].astype(np.int64), table[:, 3].astype(np.int64)
    return Client(number, member, start, table[:, 1], table[:, 2], pattern, table[:, 4])


def _row(text: str, line: int, problems: ProblemList) -> tuple[int, float, float, int, float] | None:
    match = _ROW.fullmatch(text)
    if match is None:
        what = f"row={show(text)}: not `window, rate, cv, Gamma or Weibull or nothing, shape, scale`"
        problems.add("trace.torn_row", what, _REPIN, line)
        return None
    start, rate, cv, shape, scale = int(match[1]), *(float(match[i]) for i in (2, 3, 5, 6))
    wrong = _wrong(match[4], start, rate, cv, shape, scale)
    if wrong:
        problems.add("trace.process", f"row={show(text)}: {wrong}", _REPIN, line)
    return start, rate, cv, PATTERNS[match[4]], shape


def _wrong(pattern: str, start: int, rate: float, cv: float, shape: float, scale: float) -> str:
    """What is wrong with a row's numbers, or nothing."""
    if start % WINDOW_S:
        return f"windows start on multiples of {WINDOW_S} s"
    if not pattern:  # an idle window is all zeros; a rate without a process could not be drawn
        return "a window without a pattern has rate, cv, shape and scale 0" if rate or cv or shape or scale else ""
    if not (0 < rate < 1e7 and 0 < cv < math.inf and 0 < scale < math.inf and SMALLEST_SHAPE[pattern] <= shape <= LARGEST_SHAPE):
        return f"rate, cv and scale are above 0 and finite, shape is in [{SMALLEST_SHAPE[pattern]:g}, {LARGEST_SHAPE:g}]"
    if pattern == "Gamma" and not math.isclose(cv, shape**-0.5, rel_tol=1e-3):
        return f"a gamma gap of shape {shape:.6g} has cv {shape**-0.5:.6g}: the columns are not where they belong"
    return ""


def literal(text: str, where: str) -> dict[float, float]:
    """Parse a Python dict literal of value: probability, after its form was checked, so that nothing else is ever evaluated.

    Raises UsageError ``trace.histogram``.
    """
    if len(text) > MAX_LITERAL or not _LITERAL.fullmatch(text):
        what = f"distribution={show(text)} ({len(text)} characters): not a dict of length: probability"
        raise UsageError(Problem("trace.histogram", what, _REPIN, where))
    try:
        bins: dict[float, float] = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        what = f"distribution={show(text)}: not a dict of numbers ({str(error)[:60]})"
        raise UsageError(Problem("trace.histogram", what, _REPIN, where)) from error
    return bins


def _histogram(text: str, where: str) -> Histogram | None:
    bins = literal(text, where)
    if not bins:
        return None
    whole = all(isinstance(length, int) and length <= TOKEN_LIMIT for length in bins)
    total = total_of(bins)
    if not whole or not abs(total - 1) <= 1e-3:  # written so that NaN and infinity are refused too
        what = f"bins={len(bins)}, sum={total:.6g}: lengths are whole numbers up to {TOKEN_LIMIT}, probabilities add to 1"
        raise UsageError(Problem("trace.histogram", what, _REPIN, where))
    lengths = sorted(int(length) for length in bins if bins[length] > 0)
    cumulative = np.cumsum([bins[length] / total for length in lengths])
    cumulative[-1] = 1.0  # rounding may leave the last step a hair below, and a quantile above it would have no length
    return Histogram(np.array(lengths, np.int64), cumulative)


def total_of(bins: dict[float, float]) -> float:
    """Sum of the probabilities of a histogram, infinite where no float holds it."""
    try:
        return math.fsum(bins.values())
    except OverflowError:  # whole numbers beyond any float
        return math.inf
