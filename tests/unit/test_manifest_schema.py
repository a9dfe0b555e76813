"""What editors are told, and the manifests that come with the project."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from harness.manifest import Manifest, expand, load_manifest, schema_json
from harness.manifest.explain import keys_of
from harness.manifest.units import DURATION_PATTERN

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(ROOT.glob("manifests/**/*.yaml"))


def definitions() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(schema_json())
    return schema["$defs"] | {"Manifest": schema}


def test_the_committed_schema_is_not_stale() -> None:
    committed = (ROOT / "manifests" / "schema.json").read_text(encoding="utf-8")
    assert committed == schema_json(), "run `make schema` and commit manifests/schema.json"


def test_every_field_has_one_line_of_help() -> None:
    for name, definition in definitions().items():
        assert definition["description"], name
        for key, field in definition["properties"].items():
            assert field.get("description"), f"{name}.{key}"
            assert "\n" not in field["description"]
            assert "_" not in key, f"{name}.{key}: keys are hyphenated"
        assert definition["additionalProperties"] is False, name


def test_units_and_names_are_patterns() -> None:
    found = definitions()
    assert found["Window"]["properties"]["warm-up"]["pattern"] == DURATION_PATTERN
    assert re.match(found["Window"]["properties"]["warm-up"]["pattern"], "10s")
    assert not re.match(found["Window"]["properties"]["warm-up"]["pattern"], "10")
    assert found["Manifest"]["properties"]["trigpoint"]["const"] == 1
    shorthand = found["Limits"]["properties"]["tbt"]["anyOf"]
    assert any(option.get("pattern") == DURATION_PATTERN for option in shorthand + [x for o in shorthand for x in o.get("anyOf", [])])


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for child in model.__subclasses__():
        yield from sections(child)


def test_the_schema_knows_the_keys_the_reader_knows() -> None:
    found = definitions()
    assert set(found["Manifest"]["properties"]) == set(keys_of(Manifest))
    for section in {
        s.__name__: s for s in sections(BaseModel) if s.__module__ in {"harness.manifest.schema", "harness.manifest.workload"}
    }.values():
        assert set(found[section.__name__]["properties"]) == set(keys_of(section)), section.__name__


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_shipped_manifests_validate_and_expand(path: Path) -> None:
    loaded = load_manifest(path)
    campaign = expand(loaded)
    assert campaign.name == path.stem
    load = loaded.manifest.load
    points = len(load.time_compression or load.rate or ())
    assert len(campaign.runs) == len(loaded.manifest.arms) * points * loaded.manifest.replicates.count


def test_the_two_promised_manifests_are_there() -> None:
    assert {"quickstart.yaml", "vllm-cpu-azure-conv.yaml"} <= {p.name for p in SHIPPED}


def test_quickstart_pins_the_trace_beside_it() -> None:
    trace = load_manifest(ROOT / "manifests" / "quickstart.yaml").manifest.workload.trace
    assert trace is not None
    assert hashlib.sha256((ROOT / "manifests" / "traces" / f"{trace.name}.csv").read_bytes()).hexdigest() == trace.sha256
