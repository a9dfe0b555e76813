"""Writing one attempt: results/<campaign>/<cell>/<replicate>/<attempt>/ from an empty folder to a sealed record (DESIGN 5)."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from harness.errors import HostError, Problem, UsageError
from harness.record import durable
from harness.record.confidential import refuse_secrets
from harness.record.coordinates import RunCoordinates
from harness.record.facts import Facts
from harness.record.schema import REQUESTS, RUN_FILES, SAMPLES, SCHEDULE, TRUTH
from harness.record.seal import SEAL, seal
from harness.record.segments import disk_refused, read_segments, segment_names
from harness.record.spec import RunSpec
from harness.record.tables import checked, table_of

SEGMENTS = "segments"
_MERGED = ".segments-merged"
_SLUG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CELL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,199}")  # an arm's name, "@", a load label such as rate-1e+06
_OPTIONAL = frozenset({"server.log", "observations.jsonl"})  # an attached endpoint has no log we can see; nothing may have been observed

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compaction:
    """What the merge found: rows the workers recorded, rows filled in for the rest, segments whose writer was cut."""

    recorded: int
    filled: int
    torn: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a replicate, while it is being written. ``number`` counts from 1."""

    path: Path
    number: int

    @classmethod
    def create(cls, results: Path, campaign: str, cell: str, replicate: int) -> Attempt:
        """Make the next attempt's folder with ``segments/`` inside; no earlier attempt is touched.

        Raises UsageError when a name is no slug or a folder on the way is a symlink, HostError when the disk refuses.
        """
        _check_names(campaign, cell, replicate)
        parent = results / campaign / cell / str(replicate)
        _check_inside(results, parent)
        try:
            parent.mkdir(parents=True, exist_ok=True)
            number = _claim(parent)
            (parent / str(number) / SEGMENTS).mkdir()
            durable.sync_folder(parent)
        except OSError as error:
            raise disk_refused(parent, error) from error
        return cls(path=parent / str(number), number=number)

    @property
    def sealed(self) -> bool:
        """Whether it is finished; nothing in it is ever changed again."""
        return (self.path / SEAL).exists()

    @property
    def segments(self) -> Path:
        """Folder the workers write their segments to."""
        return self.path / SEGMENTS

    @property
    def server_log(self) -> Path:
        """Where the server's output goes."""
        return self.path / "server.log"

    def write_manifest(self, text: str) -> None:
        """Keep the manifest as typed."""
        durable.write_bytes(self._open("manifest.yaml"), text.encode())

    def write_spec(self, spec: RunSpec) -> None:
        """Keep the resolved spec; UsageError when it would store a secret."""
        refuse_secrets("spec", spec.model_dump())
        durable.write_json(self._open("spec.json"), spec)

    def write_coordinates(self, coordinates: RunCoordinates) -> None:
        """Keep the run coordinates."""
        refuse_secrets("coordinates", coordinates.model_dump())
        durable.write_json(self._open("coordinates.json"), coordinates)

    def write_facts(self, facts: Facts) -> None:
        """Keep the facts; may be called again as more becomes known. UsageError when they would store a secret."""
        refuse_secrets("facts", facts.model_dump())
        durable.write_json(self._open("facts.json"), facts)

    def write_schedule(self, table: pa.Table) -> None:
        """Keep the send plan (columns SCHEDULE)."""
        durable.write_table(self._open("schedule.parquet"), checked(table, SCHEDULE))

    def write_truth(self, table: pa.Table) -> None:
        """Keep the realized lengths, which the server never sees (columns TRUTH)."""
        durable.write_table(self._open("truth.parquet"), checked(table, TRUTH))

    def observe(self, kind: str, **fields: Any) -> None:
        """Append one line to observations.jsonl; it survives a kill -9, like the segments."""
        refuse_secrets("observation", fields)
        durable.append_line(self._open("observations.jsonl"), {**fields, "kind": kind}, sync=False)

    def compact(self, fill: Callable[[set[int]], list[Row]]) -> Compaction:
        """Merge the segments into requests, server_metrics and host, then remove them.

        ``fill`` gets the recorded request ids and returns a whole row for every other offered request. Rows are ordered by
        (arrival_ns, request_id). Raises HostError when an id occurs twice or the disk refuses; the segments then stay as they are, and
        compact may be called again.
        """
        if not self.segments.is_dir():
            raise ValueError(f"{self.path}: has no segments left to merge")
        requests, recorded, torn = self._requests(fill)
        server = segment_names(self.segments, "server")
        host = [n for n in segment_names(self.segments) if n not in {*server, *segment_names(self.segments, "requests")}]
        metrics, hosts = _samples(self.segments, server, torn), _samples(self.segments, host, torn)
        for name, table in (("server_metrics", metrics), ("host", hosts), ("requests", requests)):
            durable.write_table(self._open(f"{name}.parquet"), table)
        report = Compaction(recorded=recorded, filled=requests.num_rows - recorded, torn=tuple(torn))
        self.observe("compacted", recorded=report.recorded, filled=report.filled, torn=report.torn)
        self._drop_segments()
        return report

    def seal(self) -> str:
        """Seal the finished attempt and return the root; HostError when a file it must hold is missing."""
        shutil.rmtree(self.path / _MERGED, ignore_errors=True)
        missing = [n for n in RUN_FILES if n not in _OPTIONAL and not (self.path / n).is_file()]
        if missing or self.segments.exists():
            what = f"missing={missing} segments={'left' if self.segments.exists() else 'merged'}: an unfinished attempt is not sealed"
            raise HostError(Problem("record_unfinished", what, "re-run this replicate; the cut attempt stays as it is", str(self.path)))
        return seal(self.path)

    def _open(self, name: str) -> Path:
        if self.sealed:
            raise ValueError(f"{self.path}: a sealed attempt is never changed")
        return self.path / name

    def _requests(self, fill: Callable[[set[int]], list[Row]]) -> tuple[pa.Table, int, list[str]]:
        recorded, torn = _gather(self.segments, segment_names(self.segments, "requests"), REQUESTS)
        ids = recorded["request_id"].to_pylist()
        _refuse_twice(ids, self.segments)
        filled = table_of(fill(set(ids)), REQUESTS)
        _refuse_twice([*ids, *filled["request_id"].to_pylist()], self.segments)
        merged = pa.concat_tables([recorded, filled]).sort_by([("arrival_ns", "ascending"), ("request_id", "ascending")])
        return merged, len(ids), torn

    def _drop_segments(self) -> None:
        """Renamed first: a kill in the middle of the removal must not leave a folder that looks like fewer segments."""
        try:
            self.segments.rename(self.path / _MERGED)
            shutil.rmtree(self.path / _MERGED)
        except OSError as error:
            raise disk_refused(self.segments, error) from error


def _check_names(campaign: str, cell: str, replicate: int) -> None:
    wrong = [f"campaign={campaign!r}"] if not _SLUG.fullmatch(campaign) else []
    wrong += [f"cell={cell!r}"] if not _CELL.fullmatch(cell) else []
    wrong += [f"replicate={replicate!r}"] if replicate < 0 else []
    if wrong:
        what = f"{' '.join(wrong)}: becomes a folder name and may hold only letters, digits, '.', '_', '-' (a cell also '@' and '+')"
        raise UsageError(Problem("record_name", what, "rename the campaign or the arm in the manifest"))


def _check_inside(results: Path, parent: Path) -> None:
    steps = [parent, *parent.parents][: len(parent.relative_to(results).parts)]
    links = [str(p) for p in steps if p.is_symlink()]
    if links or not parent.resolve().is_relative_to(results.resolve()):
        what = f"symlinks={links}: a record is written below the results folder only, never through a link"
        raise UsageError(Problem("record_outside", what, "replace the link by a folder, or choose another results folder", str(parent)))


def _claim(parent: Path) -> int:
    number = 1 + max((int(p.name) for p in parent.iterdir() if p.name.isdecimal()), default=0)
    while True:
        try:
            (parent / str(number)).mkdir()
        except FileExistsError:  # another process took it between our look and our step
            number += 1
        else:
            return number


def _gather(folder: Path, names: Iterable[str], schema: pa.Schema) -> tuple[pa.Table, list[str]]:
    read = [(name, *read_segments(folder, name, schema)) for name in names]
    table = pa.concat_tables([schema.empty_table(), *(t for _, t, _ in read)])
    return table, [name for name, _, torn in read if torn]


def _samples(folder: Path, names: Iterable[str], torn: list[str]) -> pa.Table:
    """Merge samples in an order that no worker's luck can change; names of cut segments are added to ``torn``."""
    table, cut = _gather(folder, names, SAMPLES)
    torn += cut
    return table.sort_by([(c, "ascending") for c in ("t_ns", "source", "metric", "labels", "value")])


def _refuse_twice(ids: list[int], where: Path) -> None:
    twice = sorted(i for i, times in Counter(ids).items() if times > 1)
    if twice:
        what = f"request_id={twice[:10]} ({len(twice)} in all): recorded more than once, so no count over this attempt can be trusted"
        remedy = "re-run this replicate and report the defect: two workers recorded the same request"
        raise HostError(Problem("record_twice", what, remedy, str(where)))
