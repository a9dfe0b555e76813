"""Whether a certificate will be taken for what it has to prove, known before a run begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from analysis.gates.certified import MOST_AGE
from harness.record.spec import CertificateRef


def unfit(ref: CertificateRef, workers: int, now: datetime | None = None) -> str | None:
    """Why analysis will not take a certificate of this host for a run that begins now (an aware date); None when it will."""
    age = (now or datetime.now(UTC)) - datetime.fromisoformat(ref.created)
    if ref.workers != workers:
        return f"the certificate is of workers={ref.workers}, the runs have {workers}"
    if not timedelta(0) <= age <= MOST_AGE:
        return f"the certificate was made on {ref.created}, and one is taken for {MOST_AGE.days} days"
    if ref.stream_ceiling is None or ref.live_event_ceiling is None:
        return "the certificate did not measure open streams or live decoding"
    return None
