"""Gates about client and host on a run that had neither: what virtual time makes true, and what a run that only says so does not get."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.gates import run_checks
from analysis.model import CheckResult, Verdict
from harness.record.coordinates import VIRTUAL_TIME, Coordinate, Known
from harness.record.reader import RunRecord
from tests.builders import make_coordinates, make_sample, make_spec
from tests.gates.cases import healthy, rows, run_context

NOWHERE = Known(value=VIRTUAL_TIME)
ABOUT_THE_HOST = ("receive_lag", "client_headroom", "environment_stable")


def virtual(*, late_ns: int = 0, host: list[dict[str, Any]] | None = None, spec: Any = None, **coordinates: Coordinate) -> RunRecord:
    requests = [row | {"send_ns": row["arrival_ns"]} for row in rows()]
    requests[50]["send_ns"] += late_ns
    frame = make_coordinates(**({"client_host": NOWHERE, "hardware_host": NOWHERE} | coordinates))
    return healthy(requests, coordinates=frame, host=host or [], spec=spec or make_spec(certificate=None))


def answers(record: RunRecord) -> dict[str, CheckResult]:
    return {check.code: check for check in run_checks(run_context(record))}


def test_what_has_no_host_and_no_client_cannot_be_disturbed_by_them() -> None:
    found = answers(virtual())
    assert {found[code].verdict for code in (*ABOUT_THE_HOST, "client_slip")} == {Verdict.PASS}
    assert all("virtual time" in found[code].reason for code in (*ABOUT_THE_HOST, "client_slip"))


@pytest.mark.parametrize("late_ns", [1, -1])
def test_in_virtual_time_a_nanosecond_of_slip_is_a_fault(late_ns: int) -> None:
    assert answers(virtual(late_ns=late_ns))["client_slip"].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "record",
    [
        virtual(spec=make_spec(certificate=None, evidence_class="measured")),
        virtual(client_host=Known(value="m:b")),
        virtual(hardware_host=Known(value="m:b")),
        virtual(client_host=Known(value=VIRTUAL_TIME, source="attested")),
        virtual(host=[make_sample(0, "server", "cpu_s_total", 1.0)]),
    ],
    ids=["measured", "a client", "a host", "only attested", "a sample of a process"],
)
def test_a_run_that_contradicts_its_virtual_time_gets_nothing_for_it(record: RunRecord) -> None:
    found = answers(record)
    assert {found[code].verdict for code in ABOUT_THE_HOST} == {Verdict.UNKNOWN}
