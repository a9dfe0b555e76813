"""What the command line says of searches for capacity: the most they may ask for, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.campaign.capacity import SearchState, search_states
from harness.manifest import PlannedRun, Searches, expand, parse_manifest
from harness.record.journal import read_campaign


def search_plan(searches: Searches) -> dict[str, Any]:
    """The most that the searches can ask for, with the procedure; JSON."""
    search, example = searches.search, searches.examples()[0]
    longest = searches.run(searches.arms[0], "grid", search.limit, 0, server_start=0, index=0)
    return {
        "arms": list(searches.arms),
        "unit": "req/s" if search.unit == "rate" else "x",
        "start": search.start,
        "limit": search.limit,
        "attainment": search.attainment,
        "locating": {"most_runs": search.most_locating, "discarded": True, "resolution": search.resolution},
        "grid": {
            "loads": search.grid,
            "step": search.step,
            "most_loads": search.grid + search.widen,
            "replicates": search.replicates,
            "most_replicates": search.most_replicates,
            "method": search.method,
            "confidence": search.confidence,
        },
        "draws": {"grid": search.most_replicates, "locating": search.most_locating, "window_s": longest.window_s},
        "servers": search.servers,
        "most_runs": searches.most_runs,
        "most_starts": searches.most_starts,
        "most_load_s": searches.most_runs * _load_s(example),
    }


def _load_s(run: PlannedRun) -> float:
    return run.window.end_ns / 1e9


def search_lines(searches: Searches) -> Iterator[str]:
    """The same for people."""
    plan = search_plan(searches)
    search, grid = searches.search, plan["grid"]
    unit = " req/s" if search.unit == "rate" else "x"
    yield f"search for capacity at {100 * search.attainment:g}% on {len(searches.arms)} arm(s): {', '.join(searches.arms)}"
    yield (
        f"  locate: from {search.start:g}{unit}, doubled up to {search.limit:g}{unit} and bisected to {100 * search.resolution:g}%; "
        f"at most {search.most_locating} runs an arm, all of them discarded"
    )
    yield (
        f"  grid: {search.grid} loads {100 * search.step:g}% apart, up to {grid['most_loads']} where replicates do not cross, x "
        f"{_replicates(grid)} replicates; at most {grid['most_loads'] * search.most_replicates} runs an arm"
    )
    yield f"  answer: one capacity a replicate ({search.method}), {100 * search.confidence:g}% interval over replicates"
    window = plan["draws"]["window_s"]
    part = "" if window is None else f"; draw 0 plays trace [{window[0]:g}, {window[1]:g}) s at the highest load"
    yield f"  draws: {search.most_replicates} for the grid, {search.most_locating} for locating, none used by both{part}"
    yield (
        f"at most {plan['most_runs']} runs, {plan['most_load_s']:g} s of load and {plan['most_starts']} server starts "
        f"(one for each {'run' if search.servers == 'run' else 'replicate, shared by its loads'})"
    )


def _replicates(grid: dict[str, Any]) -> str:
    first, most = grid["replicates"], grid["most_replicates"]
    return str(first) if first == most else f"{first} to {most}"


def campaign_states(folder: Path) -> list[SearchState]:
    """Where each search of a campaign folder stands; empty for a campaign of fixed loads."""
    header = read_campaign(folder)
    if not _searched(header.resolved):
        return []
    campaign = expand(parse_manifest(header.manifest, f"{header.name}.yaml"))
    return [] if campaign.searches is None else search_states(campaign.searches, folder)


def _searched(resolved: dict[str, Any]) -> bool:
    load = resolved.get("load")
    return isinstance(load, dict) and load.get("capacity") is not None


def state_lines(states: list[SearchState]) -> Iterator[str]:
    """Where searches stand, a line each."""
    for s in states:
        yield f"search of {s.arm}: {s.state} after {s.runs} runs, {s.discarded} of them discarded; {s.reason}"
