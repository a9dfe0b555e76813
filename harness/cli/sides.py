"""From what a user names (an attempt, a cell, a campaign, a paper's result) to what analysis compares."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from analysis.compare import Side
from analysis.coordinates import merge_runs
from analysis.notebook import read_campaign as analyze_campaign
from analysis.pair import Contender, contender
from analysis.papers import find_paper, read_papers
from harness.cli.places import attempts_below
from harness.errors import HostError, Problem, TrigpointError, UsageError
from harness.record.canonical import canonical_json
from harness.record.coordinates import Known
from harness.record.reader import RunRecord, read_run

__all__ = ["PAPER", "analyze_campaign", "load_records", "noise_beside", "resolve_side"]

PAPER = "paper:"


def load_records(path: Path) -> tuple[list[RunRecord], list[Problem]]:
    """Read every latest sealed attempt below ``path``; an unreadable one is named, the others are kept."""
    records: list[RunRecord] = []
    broken: list[Problem] = []
    for attempt in attempts_below(path):
        try:
            records.append(read_run(attempt))
        except TrigpointError as error:
            broken += error.problems
    return records, broken


def resolve_side(name: str, metric: str | None, papers: Path | None) -> Contender | Side:
    """Return what a name stands for: a cell with its replicates, or a paper's result, which has coordinates only."""
    if name.startswith(PAPER):
        if papers is None:
            raise UsageError.single("papers_missing", f"{name} names a paper's result, but no registry was given", "add --papers FILE")
        return find_paper(read_papers(papers), name.removeprefix(PAPER)).side
    records, broken = load_records(Path(name))
    cells = sorted({r.spec.cell for r in records})
    if broken and not records:
        raise HostError(*broken)
    if len(cells) != 1:
        what = f"{name} holds {len(cells)} cells ({', '.join(cells) or 'none'}); a side of a comparison is one cell"
        raise UsageError.single("side_ambiguous" if cells else "side_empty", what, "name one cell's folder: CAMPAIGN/CELL")
    return contender(records, metric, name, broken=[f"{p.where}: {p.what}" for p in broken])


def noise_beside(name: str, side: Contender, metric: str | None, campaign: Path | None) -> list[Contender]:
    """Return the identical arms, at the load of ``side``, of an A/A campaign; None: of the campaign that ``name`` lies in, if any."""
    here = Path(name).resolve()
    folder = campaign or next((p for p in (here, *here.parents) if (p / "campaign.json").is_file()), None)
    if folder is None:
        return []
    cells: dict[str, list[RunRecord]] = defaultdict(list)
    found, broken = load_records(folder)
    for record in found:
        if record.spec.load == side.spec.load and not (record.spec.probe and record.spec.probe.discarded):
            cells[record.spec.cell].append(record)
    if campaign is not None and not cells:
        what = f"noise={campaign}: holds no sealed run at load {side.spec.load.label()}"
        raise UsageError.single("noise_empty", what, "name the folder of an A/A campaign that was run at this load")
    twins: dict[bytes, list[str]] = defaultdict(list)
    for cell, records in sorted(cells.items()):
        frame = merge_runs([(r.spec.replicate, r.coordinates) for r in records])
        twins[canonical_json({n: c.model_dump(exclude={"source", "reason"}) for n, c in frame.items()})].append(cell)
    alike = sorted(cell for same in twins.values() if len(same) > 1 for cell in same)
    own = side.side.coordinates["result.metric"]
    by = metric or (str(own.value) if isinstance(own, Known) else None)
    unread = {cell: [f"{p.where}: {p.what}" for p in broken if cell in Path(p.where).parts] for cell in alike}
    return [contender(cells[cell], by, f"{cell} of {cells[cell][0].spec.campaign}", broken=unread[cell]) for cell in alike]
