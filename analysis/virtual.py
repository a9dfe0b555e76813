"""Runs in virtual time: what gates about client and host may take from there being neither."""

from __future__ import annotations

from harness.record.coordinates import VIRTUAL_TIME, Known
from harness.record.reader import RunRecord

WORDS = "virtual time, instants computed and none of them read from a clock:"


def in_virtual_time(record: RunRecord) -> bool:
    """Whether the record says in every place that no machine took part: its class, both hosts, and not one sample of any process.

    A run that contradicts itself (a host named, a sample taken) is judged like any other, so what it lacks stays UNKNOWN.
    """
    coordinates = record.coordinates.coordinates
    hosts = [coordinates[name] for name in ("hardware.host", "client.host")]
    nowhere = all(isinstance(host, Known) and host.source == "observed" and host.value == VIRTUAL_TIME for host in hosts)
    return record.spec.evidence_class == "synthetic" and nowhere and record.host.num_rows == 0
