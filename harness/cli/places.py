"""Where things are on this machine: results, traces, cache. The user's, never a manifest's."""

from __future__ import annotations

from pathlib import Path

import click

from harness.record.reader import latest_sealed

results_option = click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Folder that holds campaigns.",
)
traces_option = click.option(
    "--traces",
    "traces",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="TRIGPOINT_TRACES",
    help="Folder to look for traces in, besides those beside the manifest; repeatable.",
)


def search_path(manifest: Path | None, traces: tuple[Path, ...]) -> tuple[Path, ...]:
    """Folders searched for traces, in order: beside the manifest first, then the user's."""
    beside = (manifest.parent / "traces", manifest.parent) if manifest else ()
    return tuple(p for p in (*beside, *traces) if p.is_dir())


def is_attempt(path: Path) -> bool:
    """Tell whether ``path`` is one attempt."""
    return (path / "spec.json").is_file()


def attempts_below(path: Path) -> list[Path]:
    """Latest sealed attempts of a campaign, a cell or a replicate folder, or the attempt itself."""
    if is_attempt(path):
        return [path]
    if (path / "campaign.json").is_file():
        return [p for _, p in sorted(latest_sealed(path).items())]
    campaign = next((p for p in path.resolve().parents if (p / "campaign.json").is_file()), None)
    if campaign is None:
        return []
    inside = path.resolve()
    return [p for _, p in sorted(latest_sealed(campaign).items()) if p.resolve().is_relative_to(inside)]
