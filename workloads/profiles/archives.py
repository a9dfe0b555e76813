"""Profiles of the formats that come as archives of many files."""

from __future__ import annotations

import ast
import itertools
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from workloads.profiles.layout import spread

WINDOW_S = 600
MEMBER_LIMIT = 64 * 2**20
"""Largest member read, 64 MiB: published ones have at most 4."""


def members(path: Path, ending: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of the regular files of a tar archive whose names end so, in the archive's order; nothing is written."""
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(ending) and member.size <= MEMBER_LIMIT:
                handle = archive.extractfile(member)
                if handle is not None:
                    yield member.name, handle.read()


def weka(path: Path) -> dict[str, Any]:
    """Agent sessions: kinds of entries, stop reasons, pauses, and how ids fit lengths (blocks of 64, full ones only)."""
    if path.suffix == ".json":
        sessions = [(path.name, orjson.loads(path.read_bytes()))]
    else:
        sessions = [(name, orjson.loads(raw)) for name, raw in members(path, ".json")]
    entries = [(s, e) for _, s in sessions for e in s["requests"]]
    requests = [(s, r) for _, s in sessions for r in _flat(s["requests"])]
    inner = [r for _, r in requests]
    found: dict[str, Any] = {
        "traces": len(sessions),
        "requests_incl_subagents": len(requests),
        "entry_types": dict(Counter(e["type"] for _, e in entries)),
        "stop_reasons": dict(Counter(str(r.get("stop") or "") for r in inner)),
        "rows_hash_len_ne_ceil64": sum(len(r["hash_ids"]) != -(-r["in"] // s["block_size"]) for s, r in requests),
        "rows_hash_len_eq_floor64": sum(len(r["hash_ids"]) == r["in"] // s["block_size"] for s, r in requests),
        "traces_with_nonmonotonic_t": sum(any(b < a for a, b in _steps(s)) for _, s in sessions),
        "think_time_s": spread(r.get("think_time", 0) for r in inner),  # a request without one followed at once
        "requests_per_trace": spread(len(list(_flat(s["requests"]))) for _, s in sessions),
        "session_span_s": spread(_span(s) for _, s in sessions),
        "gap_between_requests_s": spread(b - a for _, s in sessions for a, b in _steps(s)),
        "per_trace": [_one(s) for _, s in sessions],
    }
    agents = Counter(str(e.get("status")) for _, e in entries if e["type"] == "subagent")
    return found | ({"subagent_status": dict(agents)} if agents else {})


def _flat(entries: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        if entry["type"] == "subagent":
            yield from _flat(entry["requests"])
        else:
            yield entry


def _steps(session: dict[str, Any]) -> list[tuple[float, float]]:
    times = [entry["t"] for entry in session["requests"]]
    return list(itertools.pairwise(times))


def _span(session: dict[str, Any]) -> float:
    times = [entry["t"] for entry in session["requests"]]
    return float(max(times) - min(times)) if times else 0.0


def _one(session: dict[str, Any]) -> dict[str, Any]:
    inner = list(_flat(session["requests"]))
    return {
        "id": session["id"],
        "top_level_entries": len(session["requests"]),
        "requests_incl_subagents": len(inner),
        "subagents": sum(entry["type"] == "subagent" for entry in session["requests"]),
        "span_s": _span(session),
        "in_max": max(r["in"] for r in inner),
        "out_sum": sum(r["out"] for r in inner),
        "hash_scope": session["hash_id_scope"],
        "block_size": session["block_size"],
    }


def servegen(path: Path) -> dict[str, Any]:
    """Arrival processes by client and window, or the length distributions of some clients."""
    tables = dict(members(path, "-trace.csv"))
    if not tables:
        return {"files": {name: _lengths(raw) for name, raw in members(path, "-dataset.json")}}
    rows = {name: [line.split(",") for line in raw.decode().splitlines() if line] for name, raw in tables.items()}
    implied = {name: sum(float(r[1]) for r in table) * WINDOW_S for name, table in rows.items()}
    total = sum(implied.values())
    everything = [r for table in rows.values() for r in table]
    span = max(float(r[0]) for r in everything) + WINDOW_S
    top = sorted(implied.items(), key=lambda item: -item[1])[:5]
    return {
        "clients": len(rows),
        "rows_per_client": sorted({len(table) for table in rows.values()}),
        "window_s": WINDOW_S,
        "span_s": span,
        "patterns": dict(Counter(r[3] for r in everything)),
        "implied_requests": total,
        "implied_mean_rate_rps": total / span,
        "top5_clients": [[name.rpartition("/")[2], count / total] for name, count in top] if total else [],
        "max_window_cv": max(float(r[2]) for r in everything),
    }


def _lengths(raw: bytes) -> dict[str, Any]:
    windows = orjson.loads(raw)
    tables = [(field, ast.literal_eval(text)) for window in windows.values() for field, text in window.items()]
    fields = Counter(field for field, _ in tables)
    return {
        "windows": len(windows),
        "fields": dict(fields),
        "empty_pdfs": sum(not pdf for _, pdf in tables),
        "pdfs_not_summing_to_1": sum(bool(pdf) and abs(sum(pdf.values()) - 1) > 1e-6 for _, pdf in tables),
        "max_bin": {name: max((k for field, pdf in tables if field == name for k in pdf), default=None) for name in fields},
    }
