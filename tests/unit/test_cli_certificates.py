"""A certificate that analysis will not take is named before a run begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from analysis.gates.certified import MOST_AGE
from harness.cli.certificates import unfit
from tests.builders import make_certificate

MADE = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "age", "why"),
    [
        ({}, timedelta(0), None),
        ({}, MOST_AGE, None),
        ({}, MOST_AGE + timedelta(seconds=1), "taken for 30 days"),
        ({}, timedelta(seconds=-1), "taken for 30 days"),
        ({"workers": 2}, timedelta(1), "workers=2, the runs have 1"),
        ({"stream_ceiling": None}, timedelta(1), "did not measure"),
        ({"live_event_ceiling": None}, timedelta(1), "did not measure"),
        ({"live_event_ceiling": 0.0}, timedelta(1), None),  # measured: none held
    ],
)
def test_what_is_wrong_with_a_certificate_is_said(changes: dict[str, Any], age: timedelta, why: str | None) -> None:
    found = unfit(make_certificate(created=MADE.isoformat(), **changes), 1, MADE + age)
    assert (found is None) if why is None else (found is not None and why in found)
