"""Transform of who sends: fewer clients or more, without dividing a session."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.errors import UsageError
from workloads.plan import Tenants
from workloads.schedule import Int32, Int64, Labels, Trace, frozen
from workloads.transforms.contract import State, sessions_of


def tenants(step: Tenants, state: State, rng: np.random.Generator) -> State:
    """Merge or split clients; rows without a client stay without one.

    merge: clients by falling number of rows are dealt to ``merged-0``, ``merged-1``, ... in turn, so that the heaviest stay apart.
    split: client C becomes ``C.0``, ``C.1``, ... and each session (each row where there are none) goes to one of them at random; each
    client gets count // clients parts, the heaviest one more.
    """
    labels, present = _present(state.trace)
    said: dict[str, object] = {"clients_before": len(present)}
    if step.rule == "merge":
        changed = _merged(labels, _by_rows(labels, present), step.count)
    else:
        draws = rng.random(len(labels.codes))[sessions_of(state.trace)]
        changed = _split(labels, _by_rows(labels, present), step.count, draws)
    said["clients_after"] = len(np.unique(changed.codes[changed.codes >= 0]))
    return State(replace(state.trace, client=changed), state.extent_ns, said)


def _present(trace: Trace) -> tuple[Labels, Int64]:
    if trace.client is None:
        what = f"transform=tenants: format {trace.format} names no clients"
        raise UsageError.single("workload.no_clients", what, "declare tenants with shares instead; rows are then dealt to them")
    return trace.client, np.unique(trace.client.codes[trace.client.codes >= 0]).astype(np.int64)


def _by_rows(labels: Labels, present: Int64) -> Int64:
    """Clients by falling number of rows, equal ones by name."""
    counts = np.bincount(labels.codes[labels.codes >= 0], minlength=len(labels.names))
    return np.array(sorted(present.tolist(), key=lambda code: (-int(counts[code]), labels.names[code])), dtype=np.int64)


def _merged(labels: Labels, ranked: Int64, count: int) -> Labels:
    if count > len(ranked):
        what = f"count={count}: the trace has {len(ranked)} client(s) at this step, which merge into fewer, not more"
        raise UsageError.single("workload.tenants", what, "lower count, or use rule split")
    digits = len(str(count - 1))  # names of one width sort by number
    group = np.full(len(labels.names) + 1, -1, dtype=np.int32)  # the last entry serves code -1
    group[ranked] = np.arange(len(ranked)) % count
    return Labels(tuple(f"merged-{k:0{digits}d}" for k in range(count)), frozen(group[labels.codes]))


def _split(labels: Labels, ranked: Int64, count: int, draws: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Labels:
    if count < len(ranked):
        what = f"count={count}: the trace has {len(ranked)} client(s) at this step, which split into more, not fewer"
        raise UsageError.single("workload.tenants", what, "raise count, or use rule merge")
    each, more = divmod(count, len(ranked)) if len(ranked) else (0, 0)
    parts = np.zeros(len(labels.names) + 1, dtype=np.int64)
    parts[ranked] = each
    parts[ranked[:more]] += 1
    first = np.concatenate((np.zeros(1, np.int64), np.cumsum(parts)[:-1]))
    names = [f"{name}.{k}" for name, of in zip(labels.names, parts.tolist(), strict=False) for k in range(of)]
    codes = np.where(labels.codes < 0, -1, first[labels.codes] + (draws * parts[labels.codes]).astype(np.int64))
    return _sorted_names(names, codes.astype(np.int32))


def _sorted_names(names: list[str], codes: Int32) -> Labels:
    """Labels with their names in order, as ``Labels.of`` makes them."""
    order = sorted(range(len(names)), key=names.__getitem__)
    place = np.full(len(names) + 1, -1, dtype=np.int32)
    place[order] = np.arange(len(names))
    return Labels(tuple(names[k] for k in order), frozen(place[codes]))
