"""What a ServeGen archive holds, as published: nothing is drawn here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from workloads.traces.archive import read_members
from workloads.traces.servegen_files import DATASET_NAME, PATTERNS, WINDOW_S, Client, lengths_of, literal, read_clients, total_of

COLUMNS = "(no header) window_start_s, rate_rps, iat_cv, pattern, arg1(shape), arg2(scale)"


def profile(path: Path) -> dict[str, object]:
    """Facts of an archive of arrival tables, or of histograms. Raises UsageError as the readers of both do."""
    datasets = read_members(path, DATASET_NAME)
    if datasets:
        return {"files": {member: _distributions(member, raw) for member, raw in datasets.items()}}
    return _arrivals(read_clients(path)[1])


def _arrivals(clients: Mapping[int, Client]) -> dict[str, object]:
    span = max(int(client.start_s[-1]) for client in clients.values()) + WINDOW_S
    requests = {PurePosixPath(client.member).name: float(client.rate.sum()) * WINDOW_S for client in clients.values()}
    total = math.fsum(requests.values())
    codes = np.concatenate([client.pattern for client in clients.values()])
    top = sorted(requests, key=lambda name: (-requests[name], name))[:5]
    return {
        "clients": len(clients),
        "rows_per_client": sorted({len(client.rate) for client in clients.values()}),
        "window_s": WINDOW_S,
        "span_s": span,
        "patterns": {name: int((codes == code).sum()) for name, code in PATTERNS.items()},
        "implied_requests": round(total, 1),
        "implied_mean_rate_rps": round(total / span, 4),
        "top5_clients": [[name, round(requests[name] / total, 4)] for name in top] if total else [],
        "max_window_cv": round(max(float(client.cv.max()) for client in clients.values()), 4),
        "columns": COLUMNS,
    }


def _distributions(member: str, raw: bytes) -> dict[str, object]:
    """Windows, fields, empty and unsound distributions, and the largest value of each field."""
    windows = lengths_of(member, raw).windows
    fields: Counter[str] = Counter()
    largest: dict[str, float] = {}
    empty = unsound = 0
    for start, held in windows.items():
        for side, text in held.items():
            bins = literal(text, f"{member}: window {start}: {side}")
            fields[side] += 1
            empty += not bins
            unsound += bool(bins) and not abs(total_of(bins) - 1) <= 1e-3
            if bins:
                largest[side] = max(largest.get(side, 0), *bins)
    return {
        "windows": len(windows),
        "fields": dict(fields),
        "empty_pdfs": empty,
        "pdfs_not_summing_to_1": unsound,
        "max_bin": largest,
    }
