"""Certificates: what was measured, on which host and boot, under which protocol, and up to which rate it held."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from harness.errors import HostError, Problem
from harness.record.canonical import digest
from harness.record.spec import CertificateRef
from harness.system import Frozen

FOLDER = "certificates"


class Thresholds(Frozen):
    """Limits a rate must hold to be certified.

    Slip: the gate ``client_slip`` allows max(1 ms, 1% of the tightest TTFT or E2E limit). A certificate serves runs whose limits are not
    known yet, so the stricter bound holds: 1 ms. Delivery: a request lost by the engine itself cannot be excused by any limit.
    """

    slip_p99_ns: int = Field(1_000_000, description="Greatest p99 of send minus intended arrival, ns")
    delivered: float = Field(1.0, description="Share of the requests that must be served and stamped whole")


Axis = Literal["rate", "events", "streams", "live"]
"""What a stage presses: requests a second, token events a second, streams open at once, or events that are decoded as they come."""


class RateRow(Frozen):
    """One stage of the table. Null: there was nothing to take the number from."""

    axis: Axis = "rate"
    rate: float = Field(description="Requests per second offered")
    tokens: int = Field(40, description="Tokens of each answer")
    gap_ms: float = Field(10.0, description="Between tokens, ms")
    attempt: int = Field(description="1, or 2 for the one repetition of a rate that did not hold")
    offered: int
    delivered: int
    events: int = Field(description="Token events stamped")
    events_per_s: float
    slip_p50_ns: int | None
    slip_p99_ns: int | None
    slip_max_ns: int | None
    ttft_error_p50_ns: int | None
    ttft_error_p99_ns: int | None
    tbt_error_p50_ns: int | None
    tbt_error_p99_ns: int | None
    client_cpu_us_per_event: float | None = Field(description="CPU time of the load worker over events")
    spooler_cpu_us_per_event: float | None = Field(None, description="CPU time of the spooler over events")
    streams: int = Field(0, description="Most streams open at once, from send to last token")
    streams_held: int = Field(0, description="Streams open, at least, at half of the sends: so many were there while slip held")
    memory_per_stream_bytes: int | None = Field(
        None, description="Worker's resident memory in this stage less that before any load, over its streams; null below 200 streams"
    )
    truth_lateness_p99_ns: int | None = Field(None, description="How late the truth server itself wrote in this stage")
    truth_lateness_max_ns: int | None = None
    reasons: tuple[str, ...] = Field(description="Why the rate is not certified; empty when it is")

    @property
    def certified(self) -> bool:
        """The rate held every limit."""
        return not self.reasons


class Certificate(Frozen):
    """One calibration. ``truth_lateness_*``: how late the truth server itself was; it is logged, so it is no client error (the worse
    of the attempts)."""

    ref: CertificateRef
    quick: bool
    thresholds: Thresholds
    rates: tuple[RateRow, ...]
    truth_ttft_ns: int
    truth_lateness_p99_ns: int | None
    truth_lateness_max_ns: int | None
    placement: dict[str, list[int]] = Field(description="Cores by role; empty: none reserved")


class Ceilings(NamedTuple):
    """How far this client held, on each axis; ``best``: the row of the highest rate. ``live_events``: None when it was not tried, 0 when
    not even its lowest stage held."""

    best: RateRow
    rate: float
    events: float
    streams: int
    live_events: float | None
    memory_per_stream_bytes: int | None


def ceilings(rows: tuple[RateRow, ...]) -> Ceilings | None:
    """What the rows certify; None when the lowest rate did not hold.

    A row that held, with every lower one of its axis, held in everything it offered: so each ceiling is the most that any such row had.
    Of streams that is what its sends met, not their peak, at which hardly any send was made. The rate alone is taken from its own axis, for
    short answers are what presses it.
    """
    best = ceiling(tuple(row for row in rows if row.axis == "rate"))
    if best is None:
        return None
    held = [row for axis in ("rate", "events", "streams") for row in _chain(rows, axis)]
    live = max((row.events_per_s for row in _chain(rows, "live")), default=0.0)
    memory = max((row for row in held if row.memory_per_stream_bytes is not None), key=lambda row: row.streams, default=None)
    return Ceilings(
        best,
        best.rate,
        max(row.events_per_s for row in held),
        max(row.streams_held for row in held),
        live if any(row.axis == "live" for row in rows) else None,
        None if memory is None else memory.memory_per_stream_bytes,
    )


def _chain(rows: tuple[RateRow, ...], axis: str) -> list[RateRow]:
    """Rows of an axis that held, up to the first rate that held in no attempt."""
    own = tuple(row for row in rows if row.axis == axis)
    top = ceiling(own)
    return [] if top is None else [row for row in own if row.certified and row.rate <= top.rate]


def ceiling(rates: tuple[RateRow, ...]) -> RateRow | None:
    """The highest rate of one axis up to which every tried rate held in one of its attempts; None when the lowest did not.

    One repetition is allowed and shown: a certificate says what this client can do, and a disturbance of the host is not its limit. What it
    did in a run is judged by the run's own slip.
    """
    held = {row.rate: row for row in rates if row.certified}
    best = None
    for rate in sorted({row.rate for row in rates}):
        if rate not in held:
            break
        best = held[rate]
    return best


def certificate_id(body: object) -> str:
    """Hex sha256 over everything a certificate says but its own id."""
    return digest(body)


def save(cache: Path, certificate: Certificate) -> Path:
    """Write ``<cache>/certificates/<id>.json`` in one step. Raises HostError ``certificate_unwritable``."""
    folder = cache / FOLDER
    target = folder / f"{certificate.ref.id}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd, part = tempfile.mkstemp(dir=folder, suffix=".part")
        with os.fdopen(fd, "w", encoding="utf-8") as sink:
            sink.write(certificate.model_dump_json(indent=2) + "\n")
        Path(part).replace(target)
    except OSError as error:
        raise HostError(
            Problem(
                "certificate_unwritable",
                f"{target}: {os.strerror(error.errno or 0)}; without it no run can cite this calibration",
                "make room or name another cache folder",
            )
        ) from error
    return target


def load(path: Path) -> Certificate | None:
    """Read a certificate; None when it is not one, was changed, or another program wrote it: a doubtful one must not be cited."""
    try:
        certificate = Certificate.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return certificate if certificate.ref.id == path.stem == certificate_id(body_of(certificate)) else None


def cited(cache: Path, ref: CertificateRef) -> Certificate | None:
    """The whole certificate that a reference stands for; None when it is gone or was changed."""
    return load(cache / FOLDER / f"{ref.id}.json")


def body_of(certificate: Certificate) -> dict[str, object]:
    """Everything the id covers."""
    document = certificate.model_dump(mode="json")
    document["ref"].pop("id")
    return document


def find_certificate(cache: Path, host: str, protocol: int, workers: int = 1) -> CertificateRef | None:
    """The newest intact certificate of this host and boot under this measurement protocol; None when there is none.

    One made with as many workers as the run has comes before any other: analysis judges what a certificate of another number is worth.
    """
    found = [load(path) for path in sorted((cache / FOLDER).glob("*.json"))]
    fitting = [item.ref for item in found if item is not None and (item.ref.host, item.ref.protocol) == (host, protocol)]
    return max(fitting, key=lambda ref: (ref.workers == workers, ref.created, ref.id), default=None)
