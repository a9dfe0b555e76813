"""Every pin beside what was found: observed, or somebody's word; and the closed list of what may follow from a declared difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.model import CampaignAnalysis
from analysis.report.table import Table
from analysis.report.words import clean, coordinate
from harness.record.coordinates import CONSEQUENCES, RUN_COORDINATES, Known

_HEADER = ("Pin", "Where", "Pinned", "Found", "Result", "Said by", "Reason")
_NOTE = "Attested: nobody could see it from here, and whoever declared the arm vouches for it."

CONSEQUENCES_NOTE = "By consequence of what the arms declare may differ, and nothing else: " + "; ".join(
    f"{name} ({meaning})" for name, meaning in RUN_COORDINATES.items() if name in CONSEQUENCES
)


def pin_tables(c: CampaignAnalysis) -> tuple[Table, ...]:
    """One row a pin and answer; runs that answer alike share it. Empty without pins."""
    places: dict[tuple[str, ...], list[str]] = {}
    held: Mapping[str, list[Mapping[str, Any]]] = c.provenance.get("pin_results", {})
    for run, results in sorted(held.items()):
        for result in results:
            places.setdefault(_row(result), []).append(run)
    order = {name: i for i, name in enumerate(dict.fromkeys(row[0] for row in places))}
    rows = [(row[0], _where(runs, held), *row[1:]) for row, runs in sorted(places.items(), key=lambda item: order[item[0][0]])]
    note = _NOTE if any(row[5] == "attested" for row in rows) else ""
    return (Table("Pins against facts", _HEADER, tuple(rows), note=note),) if rows else ()


def attested_of(c: CampaignAnalysis) -> dict[str, dict[str, Any]]:
    """Attested coordinates and their values by arm, for arms that have any."""
    found: dict[str, dict[str, Any]] = {}
    for cell in c.cells:
        said = {n: k.value for n, k in cell.coordinates.items() if isinstance(k, Known) and k.source == "attested"}
        if said:
            found.setdefault(cell.arm, {}).update(said)
    return found


def attested_lines(c: CampaignAnalysis) -> tuple[str, ...]:
    """One line an arm: what its user vouches for and nobody could see."""
    said = {arm: ", ".join(f"{clean(n)} {coordinate(v)}" for n, v in values.items()) for arm, values in attested_of(c).items()}
    return tuple(f"{clean(arm)}: {words}" for arm, words in sorted(said.items()))


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    nobody = result["result"] == "unknown"
    by = "nobody" if nobody else str(result.get("source") or "observed")
    found = "" if nobody else coordinate(result["observed"])
    reason = "" if result["reason"] == "attested" else clean(result["reason"])
    return (clean(result["pin"]), coordinate(result["expected"]), found, clean(result["result"]), by, reason)


def _where(runs: list[str], held: Mapping[str, Any]) -> str:
    """All runs, whole cells by name, else single runs."""
    if len(runs) == len(held):
        return "all runs"
    cells: dict[str, list[str]] = {}
    for run in runs:
        cells.setdefault(run.rpartition("/")[0], []).append(run)
    count = {cell: sum(run.rpartition("/")[0] == cell for run in held) for cell in cells}
    names = [[cell] if len(found) == count[cell] else found for cell, found in cells.items()]
    return ", ".join(clean(name) for part in names for name in part)
