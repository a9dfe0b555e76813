"""What is sealed about a run: every registered coordinate, declared, observed, attested or unknown with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from harness.campaign.attached import evidence_class, held_pins
from harness.campaign.coordinates import OBSERVED, build_coordinates
from harness.campaign.launching import launched_facts
from harness.record.coordinates import RUN_COORDINATES, Coordinate, Known, NotApplicable, Unknown
from harness.record.facts import Fact
from harness.record.spec import Arm, LoadPoint, ModelPin, ParallelismPin, Pins, TraceRef
from harness.runtimes.placement import member_facts
from harness.system import Disaggregation
from tests.builders import make_facts, make_spec, make_workload


def test_every_registered_coordinate_is_sealed_and_what_was_not_found_is_unknown() -> None:
    found = build_coordinates(make_spec(), make_facts(before={})).coordinates
    assert set(found) == set(RUN_COORDINATES)
    assert {n for n, c in found.items() if isinstance(c, Unknown)} == set(OBSERVED)
    assert all(c.reason for c in found.values() if isinstance(c, Unknown))


def test_observed_facts_become_values_and_null_facts_keep_their_reason() -> None:
    facts = make_facts(before={"server.dtype": Fact(value="bfloat16"), "host.cpu_model": Fact(reason="no /proc here")})
    found = build_coordinates(make_spec(), facts).coordinates
    assert found["model.dtype"] == Known(value="bfloat16", source="observed")
    assert found["hardware.cpu"] == Unknown(reason="no /proc here")


def test_what_changed_under_the_load_is_unknown_though_somebody_vouches_for_it() -> None:
    told = {"server.version": Fact(value="0.32.0"), "server.dtype": Fact(value="bfloat16"), "host.cpu_model": Fact(value="x")}
    later = {"server.version": Fact(value="0.33.0"), "server.dtype": Fact(value="bfloat16"), "host.cpu_model": Fact(reason="gone")}
    found = build_coordinates(make_spec(), make_facts(before=told, after=later)).coordinates
    assert found["runtime.version"] == Unknown(reason="'0.32.0' before the load and '0.33.0' after it")
    assert found["model.dtype"] == Known(value="bfloat16")
    assert found["hardware.cpu"] == Known(value="x")  # a server that died says nothing any more
    arm = ENDPOINT.model_copy(update={"attested": {"runtime.version": "0.32.0"}})
    assert isinstance(build_coordinates(make_spec(arm=arm), make_facts(before=told, after=later)).coordinates["runtime.version"], Unknown)


def test_the_window_is_a_coordinate_of_its_own_and_not_part_of_the_chain() -> None:
    trace = TraceRef(format="azure-2023", name="t", sha256="0" * 64, licence="own", attribution="us")
    sealed = []
    for start in (0.0, 12.0):
        chain = (
            {"name": "window", "start_s": start, "stop_s": start + 12, "rows_before": 9, "rows_after": int(start)},
            {"name": "time_compress", "factor": 2.0, "rows_before": 4, "rows_after": 4},
        )
        workload = make_workload(trace=trace, window_s=(start, start + 12), transforms=chain)
        sealed.append(build_coordinates(make_spec(workload=workload), make_facts()).coordinates)
    assert sealed[0]["workload.transforms"] == sealed[1]["workload.transforms"]
    assert sealed[0]["workload.window"] != sealed[1]["workload.window"]
    assert isinstance(sealed[0]["workload.trace"], Known)


def test_the_loop_says_how_many_users_it_has_and_when_they_go_on_after_a_failure() -> None:
    workload = make_workload(loop="closed", users=3, failed_pause_ns=10**9)
    for own, said in ((workload, "closed, 3 users, 1 s after a failure"), (make_workload(), "open")):
        assert build_coordinates(make_spec(workload=own), make_facts()).coordinates["workload.loop"] == Known(value=said, source="declared")


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ({}, "unlimited"),
        ({"concurrency_cap": 8}, 8),
        ({"concurrency_cap": 8, "request_timeout_ns": 5 * 10**8}, "8, 0.5 s a request"),
        ({"workers": 2}, "unlimited, 2 workers"),
    ],
)
def test_what_limits_and_spreads_requests_is_one_coordinate(client: dict[str, int], said: int | str) -> None:
    found = build_coordinates(make_spec(**client), make_facts()).coordinates["client.concurrency"]
    assert found == Known(value=said, source="declared")


def test_a_host_without_accelerator_has_no_driver_to_compare() -> None:
    facts = make_facts(before={"host.gpu": Fact(value="none"), "host.driver": Fact(reason="no NVML")})
    found = build_coordinates(make_spec(), facts).coordinates
    assert isinstance(found["hardware.driver"], NotApplicable)
    assert isinstance(found["hardware.gpu_settings"], NotApplicable)


def test_how_accelerators_are_set_is_a_coordinate_and_which_boards_they_are_is_none() -> None:
    told = {"host.gpu": "H200", "host.gpu_settings": {"power_limit_w": [700.0]}, "host.gpu_uuids": ["GPU-1"]}
    found = build_coordinates(make_spec(), make_facts(before={name: Fact(value=value) for name, value in told.items()})).coordinates
    assert found["hardware.gpu_settings"] == Known(value={"power_limit_w": [700.0]})
    assert "GPU-1" not in str(found)
    silent = build_coordinates(make_spec(), make_facts(before={"host.gpu": Fact(value="H200")})).coordinates
    assert isinstance(silent["hardware.gpu_settings"], Unknown)


def test_attestation_fills_only_what_could_not_be_observed() -> None:
    arm = Arm(name="a", runtime="endpoint", attested={"hardware.gpu": "H200", "model.dtype": "float16", "nonsense": 1})
    facts = make_facts(before={"server.dtype": Fact(value="bfloat16")})
    found = build_coordinates(make_spec(arm=arm, load=LoadPoint(kind="rate", value=1)), facts).coordinates
    assert found["hardware.gpu"] == Known(value="H200", source="attested")
    assert found["model.dtype"] == Known(value="bfloat16", source="observed")
    assert "nonsense" not in found


ENDPOINT = Arm(name="a", runtime="endpoint", attested={"runtime.args": "--max-num-seqs 8", "hardware.gpu": "none", "model.digest": "ab"})


def attached(arm: Arm = ENDPOINT, **facts: Fact) -> dict[str, Coordinate]:
    before = {name.replace("__", "."): fact for name, fact in facts.items()}
    return build_coordinates(make_spec(arm=arm), make_facts(before=before)).coordinates


def test_nothing_is_declared_of_a_server_that_somebody_else_started() -> None:
    found = attached()
    for name in ("runtime.name", "runtime.env", "runtime.launch", "parallelism.tensor", "parallelism.expert", "parallelism.replicas"):
        assert isinstance(found[name], Unknown), name
    assert found["runtime.args"] == Known(value="--max-num-seqs 8", source="attested")
    assert isinstance(found["hardware.driver"], NotApplicable)
    assert isinstance(found["model.revision"], NotApplicable)


def test_what_such_a_server_says_of_itself_is_observed_whatever_is_attested() -> None:
    arm = ENDPOINT.model_copy(update={"attested": {"runtime.name": "vllm", "parallelism.tensor": 2}})
    found = attached(arm, server__engine=Fact(value="reference"), server__tensor_parallel=Fact(value=1))
    assert found["runtime.name"] == Known(value="reference", source="observed")
    assert found["parallelism.tensor"] == Known(value=1, source="observed")


BEHIND = {
    "one": ParallelismPin(replicas=1), "two": ParallelismPin(replicas=2),
    "apart": ParallelismPin(disaggregation=Disaggregation(prefill=1, decode=2, connector="nixl")),
}  # fmt: skip


def behind(split: str, attest: dict[str, Any], **facts: Fact) -> tuple[dict[str, Coordinate], dict[str, str]]:
    """Coordinates of the servers behind an endpoint, and the results of its pins."""
    arm, pins = ENDPOINT.model_copy(update={"attested": attest}), Pins(model=ModelPin(id="m", dtype="x"), parallelism=BEHIND[split])
    before = member_facts(arm, pins, lambda _url: {}) | {name.replace("__", "."): fact for name, fact in facts.items()}
    found = build_coordinates(make_spec(arm=arm, pins=pins), make_facts(before=before)).coordinates
    return found, {p.pin: p.result for p in held_pins(pins, arm, before, OBSERVED)}


@pytest.mark.parametrize(("split", "name"), [("one", "replicas"), ("two", "replicas"), ("apart", "disaggregation")])
def test_a_pinned_number_of_servers_behind_an_endpoint_is_no_knowledge_of_it(split: str, name: str) -> None:
    found, pins = behind(split, {})
    assert isinstance(found[f"parallelism.{name}"], Unknown)
    assert pins[f"parallelism.{name}"] == "unknown"


@pytest.mark.parametrize(("split", "count"), [("one", 1), ("two", 2)])
def test_servers_that_a_user_counted_are_attested_though_they_are_pinned(split: str, count: int) -> None:
    found, pins = behind(split, {"parallelism.replicas": count, "parallelism.disaggregation": "none"})
    assert found["parallelism.replicas"] == Known(value=count, source="attested")
    assert found["parallelism.disaggregation"] == Known(value="none", source="attested")
    assert pins["parallelism.replicas"] == "matched"
    assert behind(split, {"parallelism.replicas": 3})[1]["parallelism.replicas"] == "mismatched"


def test_servers_that_were_asked_are_observed_whatever_is_pinned() -> None:
    found, pins = behind("two", {}, server__replicas=Fact(value=3))
    assert found["parallelism.replicas"] == Known(value=3)
    assert pins["parallelism.replicas"] == "mismatched"
    found, pins = behind("apart", {}, server__roles=Fact(value={"prefill": 1, "decode": 2}))
    assert found["parallelism.disaggregation"] == Known(value={"prefill": 1, "decode": 2, "connector": "nixl"})
    assert isinstance(found["parallelism.replicas"], NotApplicable)
    assert pins["parallelism.disaggregation"] == "matched"


def test_how_a_server_was_launched_is_not_known_of_one_that_somebody_else_started() -> None:
    facts = launched_facts({}, None, managed=False)
    said = ENDPOINT.model_copy(update={"attested": {"runtime.launch": "numactl"}})
    found = build_coordinates(make_spec(arm=said), make_facts(before=facts)).coordinates["runtime.launch"]
    assert found == Known(value="numactl", source="attested")
    assert isinstance(build_coordinates(make_spec(arm=ENDPOINT), make_facts(before=facts)).coordinates["runtime.launch"], Unknown)
    assert [p for p in held_pins(make_spec().pins, said, facts, OBSERVED) if p.pin == "runtime.launch"] == []


@pytest.mark.parametrize(("said", "sealed"), [("synthetic", "synthetic"), ("measured", "measured"), (None, "measured")])
def test_a_simulated_server_makes_no_measured_run_of_an_endpoint(said: str | None, sealed: str) -> None:
    facts = {} if said is None else {"server.evidence_class": Fact(value=said)}
    assert evidence_class("measured", facts) == sealed
    assert evidence_class("synthetic", {"server.evidence_class": Fact(value="measured")}) == "synthetic"
