"""Roles as engines are told them, servers as they are counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from analysis.capacity_campaign import _degrees
from harness.observe.pins import check_pins
from harness.record.facts import Fact
from harness.runtimes import placement
from harness.runtimes.placement import member_facts, role_problems, sglang_role_args, vllm_role_args
from harness.system import Arm, Disaggregation, ModelPin, ParallelismPin, Pins


def pins(**split: Any) -> Pins:
    return Pins(model=ModelPin(id="tiny", dtype="float32"), parallelism=ParallelismPin(**split))


def role(prefill: int, decode: int, connector: str | None = "NixlConnector") -> Pins:
    return pins(disaggregation=Disaggregation(prefill=prefill, decode=decode, connector=connector))


def arm(**changes: Any) -> Arm:
    return Arm(**({"name": "a", "runtime": "vllm"} | changes))


@pytest.mark.parametrize(("given", "kv_role", "mode"), [(role(1, 0), "kv_producer", "prefill"), (role(0, 1), "kv_consumer", "decode")])
def test_an_engine_is_told_its_role_in_its_own_words(given: Pins, kv_role: str, mode: str) -> None:
    name, value = vllm_role_args(given)
    assert (name, json.loads(value)) == ("--kv-transfer-config", {"kv_connector": "NixlConnector", "kv_role": kv_role})
    assert sglang_role_args(given) == ["--disaggregation-mode", mode, "--disaggregation-transfer-backend", "NixlConnector"]


def test_an_engine_that_does_both_is_told_nothing() -> None:
    assert vllm_role_args(pins()) == sglang_role_args(pins()) == []
    assert sglang_role_args(role(1, 0, None)) == ["--disaggregation-mode", "prefill"]


@pytest.mark.parametrize(
    ("one", "given", "codes"),
    [
        (arm(), pins(), []),
        (arm(), pins(replicas=1), []),
        (arm(), role(1, 0), []),
        (arm(), pins(replicas=2), ["several_servers"]),
        (arm(), role(1, 2), ["several_servers"]),
        (arm(), role(0, 1, None), ["connector_missing"]),
        (arm(runtime="sglang"), role(0, 1, None), []),
        (arm(args={"kv-transfer-config": "{}"}), role(1, 0), ["flag_reserved"]),
        (arm(args={"kv-transfer-config": '{"kv_connector_module_path": "x"}'}), pins(), ["flag_reserved"]),
        (arm(args={"kv-transfer-config": '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'}), pins(), []),
    ],
)
def test_what_cannot_be_started_is_named(one: Arm, given: Pins, codes: list[str]) -> None:
    assert [p.code for p in role_problems(one, given)] == codes


def test_servers_behind_an_address_are_counted_by_asking_them(monkeypatch: pytest.MonkeyPatch) -> None:
    serving: dict[str, list[dict[str, Any]]] = {"http://p": [{"id": "tiny"}], "http://d": [{"id": "tiny"}], "http://other": [{"id": "big"}]}
    told: list[tuple[str, Mapping[str, str] | None]] = []

    def listed(url: str, headers: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        told.append((url, headers))
        return serving.get(url, [])

    monkeypatch.setattr(placement, "served_models", listed)
    split = arm(members={"prefill": ("http://p",), "decode": ("http://d",)})
    assert member_facts(split, role(1, 1), lambda url: {"for": url})["server.roles"].value == {"prefill": 1, "decode": 1}
    assert told == [("http://p", {"for": "http://p"}), ("http://d", {"for": "http://d"})]
    copies = arm(members={"replicas": ("http://p", "http://other", "http://gone")})
    (fact,) = member_facts(copies, pins(replicas=3), lambda _url: {}).values()
    assert fact.value is None
    assert fact.reason == "no tiny at http://other, http://gone"
    assert member_facts(arm(), pins(), lambda _url: {}) == {}


@pytest.mark.parametrize(
    ("given", "facts", "expected"),
    [
        (pins(), {}, {}),
        (pins(replicas=1), {}, {}),
        (pins(replicas=1), {"server.replicas": Fact(value=1)}, {"parallelism.replicas": "matched"}),
        (pins(replicas=3), {"server.replicas": Fact(value=2)}, {"parallelism.replicas": "mismatched"}),
        (pins(replicas=3), {"server.replicas": Fact(reason="silent")}, {"parallelism.replicas": "unknown"}),
        (pins(replicas=3), {}, {"parallelism.replicas": "unknown"}),
        (role(1, 2), {"server.roles": Fact(value={"prefill": 1, "decode": 2})}, {"parallelism.disaggregation": "matched"}),
        (role(1, 2), {"server.roles": Fact(value={"prefill": 2, "decode": 1})}, {"parallelism.disaggregation": "mismatched"}),
        (role(1, 2), {}, {"parallelism.disaggregation": "unknown"}),
    ],
)
def test_counted_servers_are_held_against_the_pins(given: Pins, facts: dict[str, Fact], expected: dict[str, str]) -> None:
    held = {pin.pin: pin.result for pin in check_pins(given, facts)}
    assert {name: result for name, result in held.items() if name.startswith("parallelism")} == expected


def test_every_server_behind_an_address_has_accelerators_of_its_own() -> None:
    assert _degrees(pins(tensor=2, pipeline=2, data=3)) == 12
    assert _degrees(pins(tensor=2, replicas=4)) == 8
    assert _degrees(pins(tensor=2, disaggregation=Disaggregation(prefill=3, decode=1))) == 8
