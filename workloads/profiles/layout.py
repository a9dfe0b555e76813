"""Bytes and lines of a text file, whatever its format."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from fractions import Fraction
from itertools import islice
from math import ceil
from typing import Any

import numpy as np
import orjson

BOM = b"\xef\xbb\xbf"


def layout(raw: bytes) -> dict[str, Any]:
    """Byte-order mark, line ends, blank lines, last newline."""
    return {
        "bom": raw.startswith(BOM),
        "crlf": raw.count(b"\r\n"),
        "lf": raw.count(b"\n"),
        "ends_with_newline": raw.endswith(b"\n"),
        "blank_lines": sum(not line.strip() for line in lines(raw)),
    }


def lines(raw: bytes) -> list[bytes]:
    """Lines without their ends; a last newline ends the last line and begins none, but an empty last line is one."""
    return [line.removesuffix(b"\r") for line in raw.removesuffix(b"\n").split(b"\n")]


def duplicates(rows: Iterable[Hashable]) -> int:
    """How many rows repeat an earlier one exactly."""
    return sum(count - 1 for count in Counter(rows).values())


def csv_profile(raw: bytes) -> dict[str, Any]:
    """Layout, column names and repeated rows of a CSV file with a header, whose delimiter is what stands most often in the header."""
    rows = lines(raw)
    head = rows[0].decode("utf-8-sig", "replace")
    delimiter = max(",;\t|", key=head.count)
    header = next(csv.reader(io.StringIO(head), delimiter=delimiter), [])
    repeated = duplicates(_quoted_rows(raw, delimiter)) if b'"' in raw else duplicates(row for row in rows[1:] if row)
    return layout(raw) | {"columns": header, "exact_duplicate_rows": repeated}


def _quoted_rows(raw: bytes, delimiter: str) -> Iterator[tuple[str, ...]]:
    """Cells of each row after the header; a quoted cell may span lines."""
    text = io.StringIO(raw.decode("utf-8-sig", "replace"), newline="")
    return (tuple(cells) for cells in islice(csv.reader(text, delimiter=delimiter), 1, None) if cells)


def objects(raw: bytes) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file; what is no object is left to the reader to complain about."""
    found = (orjson.loads(line) for line in lines(raw) if line.strip())
    return [row for row in found if isinstance(row, dict)]


def json_profile(raw: bytes, rows: list[dict[str, Any]], stamp: str | None) -> dict[str, Any]:
    """Layout, keys, types of the stamp and repeated rows of a JSON-lines file."""
    keys = sorted({key for row in rows for key in row})
    found = layout(raw) | {"keys": keys, "exact_duplicate_rows": duplicates(line for line in lines(raw) if line.strip())}
    return found | ({"timestamp_types": sorted({type(row.get(stamp)).__name__ for row in rows})} if stamp else {})


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """Least, greatest, mean, sum and percentiles of a column: linear interpolation, and nearest rank beside it; None without values."""
    column = np.sort(np.fromiter(values, dtype=np.float64))
    if not len(column):
        return None
    points = {"p50": Fraction(1, 2), "p90": Fraction(9, 10), "p99": Fraction(99, 100)}
    found = {name: float(np.percentile(column, float(100 * p))) for name, p in points.items()}
    ranked = {f"{name}_nearest_rank": float(column[ceil(p * len(column)) - 1]) for name, p in points.items()}
    ends = {"min": float(column[0]), "max": float(column[-1]), "mean": float(column.mean()), "sum": float(column.sum())}
    return ends | found | ranked
