"""Profiles of the row-by-row formats."""

from __future__ import annotations

import re
from collections import Counter
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from workloads.profiles.layout import csv_profile, json_profile, lines, objects, spread
from workloads.traces.find import read_bytes
from workloads.traces.ragpulse import COMPONENT_FILES, ORDER, beside

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d(?:\.\d+)?)")


def plain_csv(path: Path) -> dict[str, Any]:
    """Any CSV file with a header."""
    return csv_profile(read_bytes(path))


def plain_text(path: Path) -> dict[str, Any]:
    """A text that prompts may be cut from."""
    raw = read_bytes(path)
    return {"bytes": len(raw), "lines": raw.count(b"\n"), "words": len(raw.split()), "ascii": raw.isascii()}


def azure(path: Path) -> dict[str, Any]:
    """An Azure file: spelling of its first and last stamp, digits of the fractions, and where its seconds of the day begin."""
    raw = read_bytes(path)
    rows = [line for line in lines(raw)[1:] if line]
    stamps = [row.split(b",", 1)[0] for row in rows]
    digits = Counter(str(len(stamp.partition(b".")[2].rstrip(b"Z").split(b"+")[0])) for stamp in stamps)
    found = csv_profile(raw) | {"fraction_digits": dict(sorted(digits.items()))}
    first, last = (_STAMP.match(stamp) for stamp in (stamps[0], stamps[-1]))
    if first is None or last is None:
        return found
    zone = "" if re.search(rb"(Z|[+-]\d\d:\d\d)$", stamps[0]) else " (no timezone in file)"
    return found | {
        "first_timestamp": stamps[0].decode(),
        "last_timestamp": stamps[-1].decode(),
        "seconds_are_relative_to": f"{first[1].decode()} 00:00:00{zone}",
        "origin_s": int(first[2]) * 3600 + int(first[3]) * 60 + float(first[4]),
    }


def mooncake(path: Path) -> dict[str, Any]:
    """A Mooncake file: the grid of its stamps, and how its ids fit its lengths (blocks of 512, the last one partial).

    Published stamps are whole ms; of a file with fractions nothing is said in ms.
    """
    raw = read_bytes(path)
    rows = objects(raw)
    ids, lengths = [row["hash_ids"] for row in rows], [row["input_length"] for row in rows]
    return json_profile(raw, rows, "timestamp") | {
        **_grid_ms([row["timestamp"] for row in rows]),
        "share_rows_starting_with_block_0": sum(bool(row) and row[0] == 0 for row in ids) / len(rows),
        "prefix": {"rows_len_ne_ceil": sum(len(row) != -(-length // 512) for row, length in zip(ids, lengths, strict=True))},
    }


def _grid_ms(times: list[int | float]) -> dict[str, Any]:
    if not all(isinstance(time, int) for time in times):
        return {}
    stamps = np.sort(np.array(times, dtype=np.int64))
    gaps = np.diff(stamps)
    return {
        "timestamp_unit": "ms",
        "distinct_gap_ms_top": [[gap, count] for gap, count in Counter(gaps[gaps > 0].tolist()).most_common(6)],
        "share_ts_multiple_of_1000": float((stamps % 1000 == 0).mean()),
        "share_ts_multiple_of_3000": float((stamps % 3000 == 0).mean()),
        "gcd_ms": gcd(*stamps.tolist()),
    }


def ragpulse(path: Path) -> dict[str, Any]:
    """A RAGPulse file: where its second pass begins, and its components where their files lie beside it."""
    raw = read_bytes(path)
    rows = objects(raw)
    stamps = [float(row["timestamp"]) for row in rows]
    restarts = [i for i in range(1, len(stamps)) if stamps[i] < stamps[i - 1]]
    found = json_profile(raw, rows, "timestamp") | {"timestamp_unit": "s, as JSON strings", "restart_rows_0based": restarts}
    if restarts:
        found |= {"first_segment_last_t": stamps[restarts[0] - 1], "second_segment_first_t": stamps[restarts[0]]}
    return found | _components(path, rows)


def _components(path: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    length: dict[int, int] = {}
    for name, key in sorted(COMPONENT_FILES.values()):
        file = beside(path, name)
        if file is None:
            return {}
        parts = objects(read_bytes(file))
        own = {int(part[key]): int(part["token_length"]) for part in parts}
        facts[name] = {"rows": len(parts), "keys": list(parts[0]), "min_id": min(own), "max_id": max(own)}
        length |= own
    used = [[i for kind in ORDER for i in row["hash_ids"].get(kind, ())] for row in rows]
    sums = [sum(length.get(i, 0) for i in ids) for ids in used]
    rest = [row["input_length"] - total for row, total in zip(rows, sums, strict=True)]
    return {
        "components": facts,
        "component_ids_without_length": sum(i not in length for ids in used for i in ids),
        "rows_component_sum_ne_input_length": sum(r != 0 for r in rest),
        "input_minus_component_sum": spread(rest),
    }


def burstgpt(path: Path) -> dict[str, Any]:
    """BurstGPT's CSV, or its rows as JSON lines."""
    raw = read_bytes(path)
    return json_profile(raw, objects(raw), None) if raw.lstrip().startswith(b"{") else csv_profile(raw)


def tracelab(path: Path) -> dict[str, Any]:
    """TraceLab's rounds, or the CSV of its replayer."""
    raw = read_bytes(path)
    if not raw.lstrip().startswith(b"{"):
        return csv_profile(raw)
    rows = objects(raw)
    return json_profile(raw, rows, None) | {
        "providers": sorted({str(row.get("provider")) for row in rows}),
        "null_output": sum(row.get("output_tokens") is None for row in rows),
    }


def plain_json_lines(path: Path) -> dict[str, Any]:
    """Any JSON-lines file."""
    raw = read_bytes(path)
    return json_profile(raw, objects(raw), None)


def opaque(path: Path) -> dict[str, Any]:
    """A file whose layout says nothing a person would ask for."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "compressed": file.read(2) == b"\x1f\x8b"}
