"""From the model a manifest pins to a directory on this machine.

A manifest never holds a path. ``tiny`` is made on the spot; any other id is looked up below the folders the *user* allows:
``TRIGPOINT_MODELS`` (a path list) and ``models = [...]`` in ``config.toml`` of the user's configuration folder.
"""

from __future__ import annotations

import json
import os
import tomllib
from functools import lru_cache
from pathlib import Path

from harness.errors import HostError, Problem, UsageError
from harness.runtimes.digests import directory_digest
from harness.runtimes.places import cache_dir, config_dir
from harness.runtimes.tinymodel import make_tiny_model

TINY = "tiny"
TINY_SEED = 0


def model_roots() -> tuple[Path, ...]:
    """Folders the user allows models from, in order of search. Raises UsageError ``bad_user_config`` on unreadable TOML."""
    roots = [Path(p).expanduser() for p in os.environ.get("TRIGPOINT_MODELS", "").split(os.pathsep) if p]
    config = config_dir() / "config.toml"
    if config.exists():
        try:
            listed = tomllib.loads(config.read_text(encoding="utf-8")).get("models", [])
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as bad:
            raise UsageError.single("bad_user_config", f"{config} is not TOML: {bad}", 'write e.g. models = ["/data/models"]') from bad
        roots += [Path(p).expanduser() for p in listed if isinstance(p, str)]
    return tuple(roots)


def find_model(model_id: str) -> Path | None:
    """Return the directory of ``model_id``, or None; the tiny model counts as found without being made.

    An id may be a name below a root (``org/name``), or the name of the root itself. It can never climb out of a root.
    """
    if model_id == TINY:
        return cache_dir() / "models" / f"tiny-{TINY_SEED}"
    for root in model_roots():
        for candidate in (root / model_id, root if root.name == model_id else root / model_id):
            inside = candidate.resolve().is_relative_to(root.resolve())
            if inside and (candidate / "config.json").is_file():
                return candidate.resolve()
    return None


def missing_model(model_id: str) -> Problem | None:
    """Return the problem of a model that is not here, or None."""
    if find_model(model_id) is not None:
        return None
    places = ", ".join(str(r) for r in model_roots()) or "none allowed"
    return Problem(
        "model_missing",
        f"pins.model.id={model_id}: no directory with a config.json of that name below the allowed model folders ({places})",
        "put the folder that holds it into TRIGPOINT_MODELS or into `models = [...]` of your config.toml, or pin `tiny`",
    )


def model_dir(model_id: str) -> Path:
    """Return the directory of ``model_id``, making the tiny model when asked for; HostError ``model_missing``."""
    problem = missing_model(model_id)
    if problem is not None:
        raise HostError(problem)
    folder = find_model(model_id)
    assert folder is not None  # noqa: S101 - missing_model just said so
    if model_id == TINY:
        make_tiny_model(folder, TINY_SEED)
    return folder


def model_config(folder: Path) -> dict[str, object]:
    """Return the parsed config.json; HostError ``model_unreadable``."""
    try:
        loaded = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as bad:
        raise HostError.single("model_unreadable", f"{folder / 'config.json'}: {bad}", "restore the model directory") from bad
    return loaded if isinstance(loaded, dict) else {}


def model_digest(folder: Path) -> str:
    """Digest of all files of the model. Cached for the process by name, size and time of every file: weights can be many gigabytes."""
    stamp = tuple((str(p), s.st_size, s.st_mtime_ns) for p in sorted(folder.rglob("*")) if p.is_file() for s in (p.stat(),))
    return _cached_digest(folder, stamp)


@lru_cache(maxsize=8)
def _cached_digest(folder: Path, _stamp: tuple[tuple[str, int, int], ...]) -> str:
    return directory_digest(folder)
