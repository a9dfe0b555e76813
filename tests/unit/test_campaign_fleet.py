"""Where a campaign's workers run: what is refused, who the client was, and what goes on beside a worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.fleet import ProcessSessions, Watch, client_facts, opened_sessions
from harness.errors import UsageError
from harness.manifest import Campaign, expand, parse_manifest
from harness.record.facts import Fact, Facts
from harness.record.schema import SAMPLES
from harness.record.segments import read_segments
from harness.replay.contract import FleetFacts
from tests.unit.test_manifest_load import GOOD, changed


def campaign(client: str = "") -> Campaign:
    return expand(parse_manifest(changed(("question", f"{client}question")) if client else GOOD, "m.yaml"))


def found(*hosts: str | None) -> FleetFacts:
    """Facts of a fleet whose workers sat on ``hosts``."""
    facts = {f"fleet.w{k}.host": Fact(value=host, reason=None if host else "no boot id") for k, host in enumerate(hosts)}
    return FleetFacts(facts, {"fleet.w0.drift_ns": Fact(value=5)})


def test_processes_are_what_a_manifest_without_a_fleet_gets() -> None:
    with opened_sessions(campaign(), None, None) as sessions:
        assert sessions == ProcessSessions()


def test_a_declared_ray_fleet_is_not_run_as_processes() -> None:
    declared = campaign("client: {fleet: {mode: ray, workers: 2}}\n")
    with pytest.raises(UsageError) as refused, opened_sessions(declared, "processes", None):
        raise AssertionError("opened")
    assert refused.value.problems[0].code == "fleet_mode"


@pytest.mark.parametrize(
    ("hosts", "value"),
    [(("m:b", "m:b"), "m:b"), (("n:b", "m:b", "n:b"), ["m:b", "n:b"]), (("m:b", None), None)],
    ids=["one host", "the set of hosts", "one of them unknown"],
)
def test_the_client_of_a_fleet_is_the_set_of_its_hosts(hosts: tuple[str | None, ...], value: Any) -> None:
    driver = {"client.identity": Fact(value="driver"), "host.boot": Fact(value="b")}
    base = Facts(before=driver, after=driver)
    merged = client_facts(base, found(*hosts))
    assert merged.before["client.identity"].value == value
    assert value is not None or "fleet.w1.host: no boot id" in str(merged.before["client.identity"].reason)
    assert merged.before["host.boot"].value == "b"
    assert merged.after["fleet.w0.drift_ns"].value == 5
    assert "client.identity" not in merged.after


def test_processes_of_one_host_change_no_fact() -> None:
    base = Facts(before={"client.identity": Fact(value="driver")})
    assert client_facts(base, FleetFacts()) is base


def test_what_goes_on_beside_a_worker_samples_its_processes_and_not_the_host(tmp_path: Path) -> None:
    stop = Watch().begin({"client/w1": os.getpid()}, 0, tmp_path)
    stop()
    table, torn = read_segments(tmp_path, "fleet-w1", SAMPLES)
    assert not torn
    assert set(table["source"].to_pylist()) == {"client"}
    assert set(table["labels"].to_pylist()) == {"w1"}
    assert {"cpu_s_total", "rss_bytes"} <= set(table["metric"].to_pylist())


def test_a_host_says_who_it_is_and_what_it_runs() -> None:
    assert Watch().identity()
    assert len(Watch().source()) == 64
