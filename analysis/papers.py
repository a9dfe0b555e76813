"""Source-reported results read from the papers registry, framed in the same coordinates as a measured run (F65, F66).

A paper gives few of the coordinates; what the registry does not hold is unknown, and unknown equals nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from analysis.compare import Side
from analysis.coordinates import ALL_COORDINATES
from harness.errors import UsageError
from harness.record.coordinates import Coordinate, Known, NotApplicable, Unknown

SCHEMA = "papers-registry/1"

# registry block and key -> coordinate. Only fields that mean the same thing are mapped; the rest of a block is printed, not compared.
FIELDS: dict[tuple[str, str], str] = {
    ("Theta", "model"): "model.id",
    ("Theta", "dtype"): "model.dtype",
    ("H_par", "gpu"): "hardware.gpu",
    ("H_par", "gpu_count"): "hardware.gpu_count",
    ("H_par", "tp"): "parallelism.tensor",
    ("H_par", "pp"): "parallelism.pipeline",
    ("W", "dataset"): "workload.trace",
    ("W", "arrival"): "workload.arrivals",
    ("M", "name"): "result.metric",
    ("M", "unit"): "result.unit",
    ("M", "denominator"): "result.denominator",
    ("M", "latency_stat"): "result.percentile_rule",
}


@dataclass(frozen=True, slots=True)
class PaperResult:
    """One result of one paper: where it stands and the registry's own fields."""

    id: str
    paper: str
    title: str
    subject: str
    source: str
    fields: Mapping[str, Any]

    @property
    def side(self) -> Side:
        """The result as one side of a comparison."""
        return Side(f"paper:{self.id}", _coordinates(self), frozenset())


def read_papers(path: Path) -> dict[str, PaperResult]:
    """Read the registry; result id -> result. Raises UsageError when it is not a registry of schema papers-registry/1."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError.single("papers_unreadable", f"papers={path}: {error}", "name a readable papers registry (YAML)") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise UsageError.single("papers_schema", f"schema={found!r} in {path}: expected {SCHEMA}", "use a registry this version reads")
    return {r["id"]: _result(p, r) for p in document.get("papers", []) for r in p.get("results") or []}


def find_paper(papers: Mapping[str, PaperResult], result_id: str) -> PaperResult:
    """Return one result; UsageError lists the ids when it is not there."""
    if result_id not in papers:
        raise UsageError.single(
            "paper_unknown", f"paper result {result_id!r} is not in the registry", "choose one of: " + ", ".join(sorted(papers))
        )
    return papers[result_id]


def _result(paper: Mapping[str, Any], result: Mapping[str, Any]) -> PaperResult:
    return PaperResult(
        id=str(result["id"]),
        paper=str(paper.get("id", "")),
        title=str(paper.get("title", "")),
        subject=str(result.get("subject", "")),
        source=f"{result.get('V', '')}, {result.get('C_s', '')}",
        fields=dict(result),
    )


def _coordinates(paper: PaperResult) -> dict[str, Coordinate]:
    unknown: dict[str, Coordinate] = {n: Unknown(reason="not given by the source as read") for n in ALL_COORDINATES}
    for (block, key), name in FIELDS.items():
        value = (paper.fields.get(block) or {}).get(key)
        if value is not None:
            unknown[name] = Known(value=value, source="declared")
    return unknown | _own(paper)


def _own(paper: PaperResult) -> dict[str, Coordinate]:
    """Coordinates a registry entry always settles: who measured, against what, under which limit and load."""
    own: dict[str, Coordinate] = {
        "evidence.class": Known(value=(paper.fields.get("E") or {}).get("class", "source_reported"), source="declared"),
        "runtime.name": Known(value=paper.subject, source="declared"),
    }
    for block, name in (("L", "result.slo"), ("Q", "result.load"), ("B", "result.baseline")):
        value = paper.fields.get(block)
        if value:
            own[name] = Known(value=value, source="declared")
    if "fair" not in str(paper.fields.get("M")).lower() and "service" not in str(paper.fields.get("M")).lower():
        own["result.fairness"] = NotApplicable(reason="not a figure of fairness")
    if paper.fields.get("B") is None:
        own["result.baseline"] = Unknown(reason="the source names no baseline")
    return own
