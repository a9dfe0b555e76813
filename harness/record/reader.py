"""Reading a sealed attempt. Analysis gets everything from here and writes nothing back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from harness.errors import HostError, Problem, TrigpointError
from harness.record.coordinates import RUN_COORDINATES, RunCoordinates
from harness.record.durable import read_lines
from harness.record.events import LISTS, check_lists, cut_lists, read_rows, stream_lists
from harness.record.facts import Facts
from harness.record.schema import FORMAT_MAJOR, FORMAT_MINOR, REQUESTS, SAMPLES, SCHEDULE, TRUTH
from harness.record.seal import SEAL, SealState, check_seal
from harness.record.spec import RunSpec
from harness.record.tables import read_table

__all__ = ["CampaignRuns", "RunRecord", "SealState", "check_format", "find_attempts", "latest_sealed", "read_campaign_runs", "read_run"]

_REQUESTS = "requests.parquet"
_RESTORE = "restore the file from a copy; if there is none, delete the attempt and re-run it"
_TABLES = {"schedule": SCHEDULE, "truth": TRUTH, "server_metrics": SAMPLES, "host": SAMPLES}
Model = TypeVar("Model", bound=BaseModel)
Key = tuple[str, int]
"""(cell, replicate)"""


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """One attempt in memory. Tables follow ``harness.record.schema``.

    ``requests`` of a record read from disk lacks the event lists, which may be larger than memory: ``event_lists`` gives them in pieces,
    ``whole_requests`` all at once.
    """

    path: Path
    spec: RunSpec
    coordinates: RunCoordinates
    facts: Facts
    schedule: pa.Table
    truth: pa.Table
    requests: pa.Table
    server_metrics: pa.Table
    host: pa.Table
    observations: tuple[dict[str, Any], ...]
    seal: SealState

    def event_lists(self, columns: Sequence[str] = LISTS) -> Iterator[pa.Table]:
        """Yield list columns of consecutive rows of ``requests``, row after row; HostError when a page of the file cannot be read."""
        if LISTS[0] in self.requests.column_names:
            return cut_lists(self.requests, columns)
        return stream_lists(self.path / _REQUESTS, columns)

    def whole_requests(self) -> pa.Table:
        """requests.parquet with its lists (columns REQUESTS), wherever they lie."""
        if LISTS[0] in self.requests.column_names:
            return self.requests
        return read_table(self.path / _REQUESTS, REQUESTS)


@dataclass(frozen=True, slots=True, eq=False)
class CampaignRuns:
    """Every replicate of a campaign folder: its latest sealed attempt read, or the reason why not.

    ``cut``: attempts without a seal. ``unreadable``: sealed attempts that could not be read, with every problem.
    """

    runs: tuple[RunRecord, ...]
    cut: tuple[Path, ...]
    unreadable: tuple[tuple[Path, tuple[Problem, ...]], ...]


def read_run(path: Path) -> RunRecord:
    """Read one attempt, sealed or not, and hold it against its seal.

    Raises HostError with every problem at once. Codes: ``record_newer`` (written by a later format), ``record_older`` (a format this
    version no longer reads), ``record_missing``, ``record_damaged``.
    """
    if not path.is_dir():
        raise HostError(Problem("record_missing", "exists=no: there is no attempt here", "give the folder of an attempt", str(path)))
    check_format(path)
    problems: list[Problem] = []
    spec = _try(problems, lambda: read_spec(path))
    coordinates = _try(problems, lambda: read_coordinates(path))
    facts = _try(problems, lambda: _model(path / "facts.json", Facts))
    tables = {name: _try(problems, partial(read_table, path / f"{name}.parquet", schema)) for name, schema in _TABLES.items()}
    tables["requests"] = _try(problems, lambda: read_rows(path / _REQUESTS))
    observations = _try(problems, lambda: tuple(read_lines(path / "observations.jsonl")[0]))
    if spec is None or coordinates is None or facts is None or observations is None or problems:
        raise HostError(*problems)
    seal = check_seal(path)
    unread = [] if seal.intact else check_lists(path / _REQUESTS)  # an intact seal says that they are as written
    if unread:
        raise HostError(*unread)
    return RunRecord(path=path, spec=spec, coordinates=coordinates, facts=facts, observations=observations, seal=seal, **tables)


def read_spec(path: Path) -> RunSpec:
    """Read the description of one attempt and nothing else; HostError as ``read_run``."""
    return _model(path / "spec.json", RunSpec)


def read_coordinates(path: Path) -> RunCoordinates:
    """Read the run coordinates of one attempt and nothing else; HostError as ``read_run``."""
    return _model(path / "coordinates.json", RunCoordinates, _add_unknown)


def find_attempts(campaign: Path) -> list[Path]:
    """Folders of all attempts, sealed or cut, ordered by cell, replicate and number."""
    # A cell's name begins with a letter or digit, so "[!.]" passes over the campaign's own hidden folders.
    found = [p for p in campaign.glob("[!.]*/*/*") if p.is_dir() and p.name.isdecimal() and p.parent.name.isdecimal()]
    return sorted(found, key=lambda p: (*_key(p), int(p.name)))


def latest_sealed(campaign: Path) -> dict[Key, Path]:
    """The latest sealed attempt of every replicate.

    A later one that is damaged is not passed over for an earlier one: that would choose among results.
    """
    return {_key(path): path for path in find_attempts(campaign) if (path / SEAL).exists()}


def read_campaign_runs(campaign: Path) -> CampaignRuns:
    """Read the latest sealed attempt of every replicate; what cannot be read is reported and does not stop the others."""
    runs: list[RunRecord] = []
    unreadable: list[tuple[Path, tuple[Problem, ...]]] = []
    for path in latest_sealed(campaign).values():
        try:
            runs.append(read_run(path))
        except TrigpointError as error:
            unreadable.append((path, error.problems))
    cut = tuple(p for p in find_attempts(campaign) if not (p / SEAL).exists())
    return CampaignRuns(runs=tuple(runs), cut=cut, unreadable=tuple(unreadable))


def _key(attempt: Path) -> Key:
    return attempt.parent.parent.name, int(attempt.parent.name)


Read = TypeVar("Read")


def _try(problems: list[Problem], read: Callable[[], Read]) -> Read | None:
    try:
        return read()
    except TrigpointError as error:
        problems.extend(error.problems)
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise HostError(Problem("record_missing", "exists=no: the attempt lacks this file", _RESTORE, str(path))) from None
    except (OSError, ValueError) as error:
        raise HostError(Problem("record_damaged", f"{type(error).__name__}: not whole JSON", _RESTORE, str(path))) from error
    if not isinstance(value, dict):
        raise HostError(Problem("record_damaged", f"type={type(value).__name__}: a JSON object belongs here", _RESTORE, str(path)))
    return value


def check_format(path: Path) -> None:
    """Look at an attempt's format version alone, before anything that a later version may have shaped differently.

    Raises HostError ``record_newer``, ``record_older``, ``record_missing`` or ``record_damaged``.
    """
    file = path / "spec.json"
    major = _json(file).get("format_major")
    if not isinstance(major, int) or isinstance(major, bool):
        raise HostError(Problem("record_damaged", f"format_major={major!r}: a whole number belongs here", _RESTORE, str(file)))
    if major > FORMAT_MAJOR:
        what = f"format_major={major}: written by a newer trigpoint; this one reads up to {FORMAT_MAJOR}"
        raise HostError(Problem("record_newer", what, "upgrade trigpoint to read this record", str(file)))
    if major < FORMAT_MAJOR:
        what = f"format_major={major}: an older format, which this version no longer reads (it reads {FORMAT_MAJOR})"
        raise HostError(Problem("record_older", what, "read it with the trigpoint version named in its spec.json", str(file)))


def _model(path: Path, kind: type[Model], prepare: Callable[[dict[str, Any]], dict[str, Any]] = lambda v: v) -> Model:
    value = prepare(_json(path))
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise HostError(*_validation(path, error)) from error


def _validation(path: Path, error: ValidationError) -> Iterable[Problem]:
    newer = _newer_minor(path)
    for item in error.errors(include_url=False, include_input=False):
        place = ".".join(str(part) for part in item["loc"]) or "(whole file)"
        if item["type"] == "extra_forbidden" and newer:
            what = f"{place}: a field added by format {FORMAT_MAJOR}.{newer}; this trigpoint reads {FORMAT_MAJOR}.{FORMAT_MINOR}"
            yield Problem("record_newer", what, "upgrade trigpoint to read this record", str(path))
        else:
            yield Problem("record_damaged", f"{place}: {item['msg']}", _RESTORE, str(path))


def _newer_minor(path: Path) -> int | None:
    minor = _json(path.parent / "spec.json").get("format_minor")
    return minor if isinstance(minor, int) and minor > FORMAT_MINOR else None


def _add_unknown(value: dict[str, Any]) -> dict[str, Any]:
    """Coordinates registered after the record was written are unknown, which equals nothing: absence never passes for equality."""
    stated = value.get("coordinates")
    if not isinstance(stated, Mapping):
        return value
    unknown = {"state": "unknown", "reason": "not recorded by the format this run was written in"}
    added = dict.fromkeys(RUN_COORDINATES.keys() - stated.keys(), unknown)
    return value | {"coordinates": {**added, **stated}}
