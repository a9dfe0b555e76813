"""Placement in a manifest: counts and roles of servers, their addresses, and what we refuse to start ourselves."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.manifest import Campaign, expand, parse_manifest
from harness.manifest.pins import declared
from harness.manifest.schema import Arm, Disaggregation, Members, ParallelismPin, Pins
from harness.record.coordinates import RUN_COORDINATES

BASE: dict[str, Any] = {
    "trigpoint": 1,
    "question": "What does a split buy?",
    "pins": {"model": {"id": "tiny", "dtype": "float32"}},
    "arms": {"them": {"runtime": "endpoint", "url": "http://127.0.0.1:8000"}},
    "workload": {
        "lengths": {"input": {"kind": "constant", "value": 8}, "output": {"kind": "constant", "value": 8}},
        "arrivals": {"process": "poisson"},
        "output-length": "forced",
    },
    "window": {"warm-up": "0s", "measured": "5s", "drain": "1s"},
    "load": {"rate": ["1/s"]},
    "replicates": {"count": 1, "vary": "none", "seed": 1},
}
URLS = ("http://127.0.0.1:8001", "http://127.0.0.1:8002", "http://127.0.0.1:8003")


def manifest(arm: dict[str, Any], parallelism: dict[str, Any]) -> Campaign:
    text = yaml.safe_dump(BASE | {"arms": {"them": arm}, "pins": BASE["pins"] | {"parallelism": parallelism}})
    return expand(parse_manifest(text, "m.yaml", known_gates=frozenset()))


def endpoint(**members: tuple[str, ...]) -> dict[str, Any]:
    return {"runtime": "endpoint", "url": "http://127.0.0.1:8000", "members": {role: list(urls) for role, urls in members.items()}}


def problems(arm: dict[str, Any], parallelism: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(UsageError) as caught:
        manifest(arm, parallelism)
    return [(p.code, p.remedy) for p in caught.value.problems]


def test_servers_behind_an_endpoint_are_carried_into_the_run() -> None:
    run = manifest(endpoint(prefill=URLS[:2], decode=URLS[2:]), {"disaggregation": {"prefill": 2, "decode": 1, "connector": "nixl"}}).runs[
        0
    ]
    assert run.arm.members == {"prefill": URLS[:2], "decode": URLS[2:]}
    assert run.pins.parallelism.disaggregation is not None
    assert run.pins.parallelism.disaggregation.model_dump() == {"prefill": 2, "decode": 1, "connector": "nixl"}


def test_an_arm_may_override_placement_and_declares_it() -> None:
    text = yaml.safe_dump(
        BASE
        | {
            "arms": {
                "one": endpoint() | {"pins": {"parallelism": {"replicas": 1}}},
                "split": endpoint() | {"pins": {"parallelism": {"disaggregation": {"prefill": 1, "decode": 3}}}},
            }
        }
    )
    runs = {run.arm.name: run for run in expand(parse_manifest(text, "m.yaml", known_gates=frozenset())).runs}
    assert {"parallelism.replicas", "parallelism.disaggregation"} <= set(runs["split"].arm.declared)


def test_a_split_declares_that_servers_are_counted_by_role() -> None:
    arms = {
        "whole": Arm.model_validate({"runtime": "vllm", "version": "1"}),
        "apart": Arm.model_validate(
            {"runtime": "endpoint", "url": "http://r:1", "pins": {"parallelism": {"disaggregation": {"prefill": 1, "decode": 1}}}}
        ),
    }
    names = declared(arms, Pins.model_validate({"model": {"id": "m", "dtype": "x"}}))
    assert {"parallelism.replicas", "parallelism.disaggregation"} <= {*names["apart"], *names["whole"]}
    assert "parallelism.tensor" not in {*names["apart"], *names["whole"]}


def test_a_manifest_without_placement_keeps_the_digest_it_had() -> None:
    resolved = json.dumps(manifest({"runtime": "reference"}, {}).resolved)
    assert "members" not in resolved
    assert 'replicas": null' not in resolved
    assert "disaggregation" not in resolved


@pytest.mark.parametrize(
    ("arm", "parallelism", "code"),
    [
        ({"runtime": "vllm", "version": "0.32.0"}, {"replicas": 2}, "several_servers"),
        ({"runtime": "vllm", "version": "0.32.0"}, {"disaggregation": {"prefill": 1, "decode": 1}}, "several_servers"),
        ({"runtime": "reference"}, {"replicas": 2}, "several_servers"),
        ({"runtime": "reference"}, {"disaggregation": {"prefill": 1, "decode": 0}}, "bad_placement"),
        ({"runtime": "reference", "members": {"replicas": [URLS[0]]}}, {}, "only_for_endpoint"),
        (endpoint(), {"disaggregation": {"prefill": 0, "decode": 0}}, "bad_placement"),
        (endpoint(), {"replicas": 2, "disaggregation": {"prefill": 1, "decode": 1}}, "bad_placement"),
        (endpoint(replicas=URLS), {"replicas": 2}, "bad_placement"),
        (endpoint(replicas=URLS[:2]), {}, "bad_placement"),
        (endpoint(prefill=URLS[:1], decode=URLS[:1]), {"disaggregation": {"prefill": 1, "decode": 1}}, "bad_placement"),
        (endpoint(prefill=URLS[:1]), {"disaggregation": {"prefill": 1, "decode": 1}}, "bad_placement"),
        (endpoint(replicas=("http://me:secret@127.0.0.1:1",)), {}, "bad_url"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_do(arm: dict[str, Any], parallelism: dict[str, Any], code: str) -> None:
    found = problems(arm, parallelism)
    assert code in {c for c, _ in found}
    assert "secret" not in str(found)
    if code == "several_servers":
        assert all("runtime: endpoint" in remedy for c, remedy in found if c == code)


@given(
    prefill=st.integers(0, 4),
    decode=st.integers(0, 4),
    replicas=st.none() | st.integers(1, 4),
    runtime=st.sampled_from(["reference", "endpoint"]),
)
def test_what_we_start_is_always_one_server(prefill: int, decode: int, replicas: int | None, runtime: str) -> None:
    arm = endpoint() if runtime == "endpoint" else {"runtime": runtime}
    split = {"disaggregation": {"prefill": prefill, "decode": decode}} | ({} if replicas is None else {"replicas": replicas})
    fits = prefill + decode > 0 and replicas in (None, 1) and runtime == "endpoint"
    if fits:
        assert manifest(arm, split).runs
    else:
        assert problems(arm, split)


def test_every_placement_is_a_coordinate() -> None:
    assert {f"parallelism.{name}" for name in ParallelismPin.model_fields} <= RUN_COORDINATES.keys()
    assert set(Disaggregation.model_fields) - {"connector"} < set(Members.model_fields)


def test_the_committed_schema_knows_placement() -> None:
    schema = json.loads((Path(__file__).parents[2] / "manifests" / "schema.json").read_text(encoding="utf-8"))
    assert {"Members", "Disaggregation"} <= schema["$defs"].keys()


def test_the_documented_split_is_a_manifest() -> None:
    text = (Path(__file__).parents[2] / "docs" / "launching.md").read_text(encoding="utf-8")
    written = yaml.safe_load(textwrap.dedent(text[text.index("    pins:") : text.index("Server metrics are read")]))
    (run,) = expand(parse_manifest(yaml.safe_dump(BASE | written), "m.yaml", known_gates=frozenset())).runs
    assert sorted(run.arm.members) == ["decode", "prefill"]
