"""The JSON Schema that editors read: hyphenated keys, unit patterns, one line of help on every field."""

from __future__ import annotations

import json
from typing import Any

from harness.manifest.schema import Manifest


def schema_json() -> str:
    """Return the manifest's JSON Schema (draft 2020-12), the same bytes on every machine, ending in a newline."""
    schema = _tidy(Manifest.model_json_schema(by_alias=True))
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Trigpoint manifest"} | schema
    return json.dumps(schema, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _tidy(node: Any, *, names: bool = False) -> Any:
    """Drop made-up titles and structured defaults, which only repeat what the sections say. ``names``: the keys are names, not keywords."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = (
        node.items() if names else [(k, v) for k, v in node.items() if k != "title" and not (k == "default" and isinstance(v, dict | list))]
    )
    return {k: _tidy(v, names=k in {"properties", "$defs"} and not names) for k, v in kept}
