"""Profile of agent sessions, alone or as an archive of many files."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from workloads.profiles.layout import spread
from workloads.traces.weka import documents


def weka(path: Path) -> dict[str, Any]:
    """Agent sessions: kinds of entries, stop reasons, pauses, and how ids fit lengths (blocks of 64, full ones only)."""
    sessions = [orjson.loads(raw) for _, raw in documents(path, {})]
    entries = [(s, e) for s in sessions for e in s["requests"]]
    requests = [(s, r) for s in sessions for r in _flat(s["requests"])]
    inner = [r for _, r in requests]
    found: dict[str, Any] = {
        "traces": len(sessions),
        "requests_incl_subagents": len(requests),
        "entry_types": dict(Counter(e["type"] for _, e in entries)),
        "stop_reasons": dict(Counter(str(r.get("stop") or "") for r in inner)),
        "rows_hash_len_ne_ceil64": sum(len(r["hash_ids"]) != -(-r["in"] // s["block_size"]) for s, r in requests),
        "rows_hash_len_eq_floor64": sum(len(r["hash_ids"]) == r["in"] // s["block_size"] for s, r in requests),
        "traces_with_nonmonotonic_t": sum(any(b < a for a, b in _steps(s)) for s in sessions),
        "think_time_s": spread(r.get("think_time", 0) for r in inner),  # a request without one followed at once
        "requests_per_trace": spread(len(list(_flat(s["requests"]))) for s in sessions),
        "session_span_s": spread(_span(s) for s in sessions),
        "gap_between_requests_s": spread(b - a for s in sessions for a, b in _steps(s)),
        "per_trace": [_one(s) for s in sessions],
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
