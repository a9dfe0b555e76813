"""Local files of a data set and their record batches, read by the package ``datasets`` with its network switched off.

Only the package's own loaders of JSON, CSV, Parquet and Arrow are used, on files found here: no hub is asked, no script of a data set runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.errors import HostError, Problem, UsageError
from workloads.traces.find import file_digest

LOADERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
BATCH = 1000
MAX_FILES = 10_000
"""Files looked at in a folder; a data set has hundreds at most, a home directory given by mistake has more."""

_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
_NOT_DATA = frozenset({"dataset_info.json", "dataset_dict.json", "state.json", "dataset_infos.json"})
"""What save_to_disk and the hub put beside the data."""


def find_data(trace: Path, name: str | None, split: str | None) -> list[Path]:
    """Return the data files: the trace file itself, or the file or files of a folder called ``name`` beside it.

    Of a folder: every file of a kind that can be read, whose path says ``split`` as a word; without ``split``, all of them, unless they
    belong to several splits. Raises UsageError ``trace.options`` and ``trace.data_files``.
    """
    place = trace if name is None else _beside(trace, name)
    if place.is_file():
        return _one_kind([place], place)
    files = _below(place)
    if split is not None:
        files = [file for file in files if _says(file.relative_to(place), split)]
    else:
        found = [word for word in _SPLITS if any(_says(file.relative_to(place), word) for file in files)]
        if len(found) > 1:
            what = f"split: not given, and {place.name} holds files of {', '.join(found)}"
            raise _fault(what, "name the split", "split")
    if not files:
        known = f"files of split {split!r}" if split else "files"
        raise _fault(f"path={place.name}: no {known} ending in {', '.join(LOADERS)}", "give the file, or the folder that holds it", "path")
    return _one_kind(files, place)


def tree_digest(files: list[Path]) -> str:
    """Sha256 over names (from the files' common folder) and contents, in order; of a single file its own sha256."""
    if len(files) == 1:
        return file_digest(files[0])
    base = os.path.commonpath([file.parent for file in files])
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(base).as_posix()}\0{file_digest(file)}\n".encode())
    return digest.hexdigest()


def batches(files: list[Path], columns: Iterable[str], texts: Iterable[str]) -> Iterator[pa.Table]:
    """Yield tables of at most ``BATCH`` rows with at least ``columns``, in the order of files; ``texts`` stay text in CSV, also 'NA' and 7.

    Raises HostError ``trace.datasets_missing`` without the package, UsageError ``trace.data_files`` for what the package cannot read, and
    ``trace.columns`` for columns that are not there.
    """
    datasets = _package()
    kind = LOADERS[files[0].suffix]
    wanted = list(columns)
    more = _csv_rules(wanted, set(texts)) if kind == "csv" else {}
    try:
        with _offline(datasets) as cache:
            local = datasets.DownloadConfig(local_files_only=True)
            names = {"train": [str(file) for file in files]}  # the loader's own word for a split; ours chose the files already
            rows = datasets.load_dataset(
                kind, data_files=names, split="train", streaming=True, cache_dir=cache, download_config=local, **more
            )
            for batch in rows.with_format("arrow").iter(batch_size=BATCH):
                _check_columns(batch, wanted, files[0])
                yield batch
    except UsageError:
        raise
    except Exception as error:  # the loaders raise whatever their parsers do, and all of it means the same here
        line = (str(error).splitlines() or [""])[0][:160]
        what = f"files={len(files)}: the datasets package cannot read them as {kind} ({type(error).__name__}: {line})"
        remedy = "restore the files, or give them the ending of what they are"
        raise UsageError(Problem("trace.data_files", what, remedy, files[0].name)) from error


def _csv_rules(columns: list[str], texts: set[str]) -> dict[str, Any]:
    """What keeps pandas from guessing: texts as they stand, and of numbers only a blank is missing."""
    blank = {name: [""] for name in columns if name not in texts}
    return {"keep_default_na": False, "na_values": blank, "converters": dict.fromkeys(texts, str)}


def _package() -> Any:
    try:
        import datasets  # an optional extra, and a second to import
    except ImportError as error:
        what = "format=hf-datasets: the package datasets is not installed"
        remedy = "pip install 'trigpoint[datasets]', or read the file with another format"
        raise HostError.single("trace.datasets_missing", what, remedy) from error
    return datasets


@contextmanager
def _offline(datasets: Any) -> Iterator[str]:
    """Network off, messages off, and a cache folder that goes away: reading must leave no trace and ask nobody."""
    config, logging = datasets.config, datasets.logging
    before = config.HF_HUB_OFFLINE, logging.get_verbosity()
    config.HF_HUB_OFFLINE = True
    logging.set_verbosity(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as cache:
            yield cache
    finally:
        config.HF_HUB_OFFLINE = before[0]
        logging.set_verbosity(before[1])


def _check_columns(batch: pa.Table, wanted: list[str], file: Path) -> None:
    missing = [name for name in wanted if name not in batch.column_names]
    if missing:
        what = f"columns={', '.join(map(repr, missing))}: not in the data"
        raise UsageError(Problem("trace.columns", what, f"choose among {', '.join(map(repr, batch.column_names))}", file.name))


def _beside(trace: Path, name: str) -> Path:
    place = (trace.parent / name).resolve()
    if Path(name).is_absolute() or not place.is_relative_to(trace.parent.resolve()):
        raise _fault(f"path={name!r}: leads out of the trace's folder", "put the data beside the trace file and give its bare name", "path")
    if not place.exists():
        raise _fault(f"path={name!r}: nothing of that name beside {trace.name}; nothing is downloaded", "put the data there", "path")
    return place


def _below(folder: Path) -> list[Path]:
    found = []
    for number, file in enumerate(folder.rglob("*")):
        if number >= MAX_FILES:
            raise _fault(f"path={folder.name}: more than {MAX_FILES} files in it", "give the folder of one data set", "path")
        if file.suffix in LOADERS and file.name not in _NOT_DATA and file.is_file() and not file.is_symlink():
            found.append(file)
    return sorted(found)


def _says(path: Path, split: str) -> bool:
    return re.search(rf"(?:^|[/._-]){re.escape(split)}(?:[/._-])", path.as_posix()) is not None


def _one_kind(files: list[Path], place: Path) -> list[Path]:
    kinds = sorted({file.suffix for file in files})
    loaders = {LOADERS.get(kind) for kind in kinds}
    if None in loaders or len(loaders) > 1:
        what = f"path={place.name}: files ending in {', '.join(kind or '(nothing)' for kind in kinds)}"
        raise _fault(what, f"give files of one kind, ending in {', '.join(LOADERS)}, decompressed", "path")
    return files


def _fault(what: str, remedy: str, option: str) -> UsageError:
    return UsageError(Problem("trace.data_files", what, remedy, f"workload.trace.options.{option}"))
