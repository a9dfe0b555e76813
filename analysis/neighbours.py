"""The noisy-neighbour experiment: a client's figures with and without another, between arms that differ in nothing else (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from analysis.effects import paired_effect
from analysis.fairness_model import Neighbour
from analysis.fairness_run import RunFairness
from analysis.model import CellAnalysis, Figure, Group
from harness.record.canonical import canonical_json
from harness.record.spec import RunSpec

Measured = Sequence[tuple[RunSpec, RunFairness | None]]
"""The replicates of one cell."""


def neighbours(cells: Sequence[CellAnalysis], measured: Mapping[str, Measured]) -> tuple[Neighbour, ...]:
    """Every client of a cell without some clients beside the same client where those are there too.

    ``measured``: by cell. Two cells are with and without each other when load and arm are the same but for the name and what is left out,
    and the one leaves out more. The requests of the clients that both have are the same, so replicates pair by index; pairs that share a
    server start count as one.
    """
    pairs = ((a, b) for a, b in product(cells, cells) if set(a.without) < set(b.without) and _alike(a, b, measured))
    return tuple(one for crowded, alone in pairs for one in _pair(crowded, alone, measured))


def _alike(a: CellAnalysis, b: CellAnalysis, measured: Mapping[str, Measured]) -> bool:
    return a.load == b.load and _system(measured[a.cell][0][0]) == _system(measured[b.cell][0][0])


def _system(spec: RunSpec) -> bytes:
    return canonical_json({"arm": spec.arm.model_dump(exclude={"name", "declared"}), "pins": spec.pins.model_dump()})


def _pair(crowded: CellAnalysis, alone: CellAnalysis, measured: Mapping[str, Measured]) -> Iterable[Neighbour]:
    with_, without = ({g.name: g for g in cell.groups if g.by == "client" and g.name is not None} for cell in (crowded, alone))
    shares = [_attainment(measured[cell.cell]) for cell in (crowded, alone)]
    starts = [{spec.replicate: spec.server_start for spec, _ in measured[cell.cell]} for cell in (crowded, alone)]
    rank = measured[crowded.cell][0][0].rank
    for name in sorted(n for n in with_.keys() & without.keys() if n):
        values = shares[0].get(name, {}), shares[1].get(name, {})
        lost = [values[1][i] - values[0][i] for i in sorted(values[0].keys() & values[1].keys())]
        level = rank.confidence if rank else 0.95
        cells = crowded.cell, alone.cell
        found = paired_effect("attainment", cells, values, margin=None, confidence=level, family=1, starts=(starts[0], starts[1]))
        yield Neighbour(
            client=name,
            crowded=crowded.cell,
            alone=alone.cell,
            without=tuple(n for n in alone.without if n not in crowded.without),
            offered=(with_[name].outcomes.offered, without[name].outcomes.offered),
            attainment=_both("attainment", with_[name], without[name]),
            ttft_p50=_both("ttft_p50", with_[name], without[name]),
            ttft_p99=_both("ttft_p99", with_[name], without[name]),
            difference=found.estimate if found else sum(lost) / len(lost) if lost else None,
            low=found.low if found else None,
            high=found.high if found else None,
            level=level,
            pairs=len(lost),
            reason=""
            if found
            else f"pairs of replicates with a known attainment: {len(lost)}, and an interval needs two on own server starts",
        )


def _both(metric: str, a: Group, b: Group) -> tuple[Figure, Figure]:
    return a.figures[metric], b.figures[metric]


def _attainment(runs: Measured) -> dict[str, dict[int, float]]:
    """Attainment of each client by replicate; left out where it is not known or nothing was offered."""
    found: dict[str, dict[int, float]] = {}
    for spec, fair in runs:
        if fair is None or fair.declared.identity != "client" or fair.figures["attainment_least"].status == "unknown":
            continue
        for name, valid, offered in zip(fair.who.names, fair.valid.tolist(), fair.offered.tolist(), strict=True):
            if offered:
                found.setdefault(name, {})[spec.replicate] = valid / offered
    return found
