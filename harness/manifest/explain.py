"""What the schema finds wrong, turned into instructions with line numbers."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.errors import Problem
from harness.manifest.document import Document, Path

_USERS = frozenset({"launch", "prefix", "launch-prefix", "command", "entrypoint"})
"""Keys that a reader of other tools would try: what they would do is for the user's own configuration."""

_SHOWN = 60
"""Characters of a bad value that are shown: enough to find it."""


def explain(error: ValidationError, model: type[BaseModel], document: Document) -> list[Problem]:
    """Return one Problem per schema error, each with its line (``where`` holds the bare line number)."""
    found: dict[Path, Problem] = {}
    for detail in error.errors(include_url=False):
        path = written_path(detail["loc"], document.data)
        if path not in document.faulty:
            # A union answers once per member; the first answer is enough.
            found.setdefault(path, _problem(detail, path, model, document))
    return list(found.values())


def written_path(loc: tuple[int | str, ...], data: Any) -> Path:
    """Drop from ``loc`` what is not in the document: tags of unions and marks of keys. A missing key stays, as the last part."""
    path: list[int | str] = []
    here = data
    for i, part in enumerate(loc):
        last = i == len(loc) - 1
        if (isinstance(here, dict) and part in here) or (isinstance(here, list) and isinstance(part, int) and part < len(here)):
            here = _step(here, part)
        elif not (last and isinstance(here, dict)) or part == "[key]":
            continue
        path.append(part)
    return tuple(path)


def dotted(path: Path) -> str:
    """Write a path as a reader would: ``arms.a.args``, ``load.rate[1]``."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out or "manifest"


def shown(value: Any) -> str:
    """Show a value briefly, on one line."""
    text = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else repr(value)
    text = {"True": "true", "False": "false", "None": "null"}.get(text, text)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _problem(detail: ErrorDetails, path: Path, model: type[BaseModel], document: Document) -> Problem:
    kind = detail["type"]
    line = str(document.line(path))
    if kind == "extra_forbidden":
        return _unknown_key(path, model, document, line)
    if kind == "missing":
        return Problem("missing_key", f"{dotted(path)} is missing", f"add it: {_meaning(path, model, document)}", line)
    context = detail.get("ctx", {})
    text = context.get("what") or _sentence(detail)
    remedy = context.get("remedy") or _remedy(detail, path, model, document)
    known = {"literal_error": "bad_choice", "union_tag_invalid": "bad_choice", "union_tag_not_found": "missing_key"}
    code = kind if "remedy" in context else known.get(kind, "bad_type" if kind.endswith("_type") else "bad_value")
    return Problem(code, f"{dotted(path)}={shown(detail['input'])}: {text}", remedy, line)


def _sentence(detail: ErrorDetails) -> str:
    message = detail["msg"]
    context = detail.get("ctx", {})
    if detail["type"] == "union_tag_invalid":
        return f"must be one of {context.get('expected_tags', '')}"
    if detail["type"] == "union_tag_not_found":
        return f"needs the key {context.get('discriminator', '')}"
    return message.removeprefix("Input ")


def _remedy(detail: ErrorDetails, path: Path, model: type[BaseModel], document: Document) -> str:
    kind = detail["type"]
    if kind == "string_type" and isinstance(detail["input"], int | float):
        return f'quote it: "{shown(detail["input"])}", so that no digit is lost'
    if kind in {"literal_error", "union_tag_invalid"}:
        context = detail.get("ctx", {})
        choices = str(context.get("expected", context.get("expected_tags", ""))).replace("'", "").replace(" or ", ", ").split(", ")
        given = detail["input"]
        if kind == "union_tag_invalid":
            given = context.get("tag", "")
        near = nearest(str(given), choices)
        return f"did you mean {near}?" if near else "write one of those"
    meaning = _meaning(path, model, document)
    return f"correct it: {meaning}" if meaning else "correct it"


def nearest(name: str, choices: list[str]) -> str | None:
    """Return the choice that looks most like ``name``, if any does; underscores and case do not count."""
    folded = {c.lower().replace("_", "-"): c for c in choices}
    # 0.6 is difflib's own cut-off: about two wrong letters in five.
    found = difflib.get_close_matches(name.lower().replace("_", "-")[:80], folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def _unknown_key(path: Path, model: type[BaseModel], document: Document, line: str) -> Problem:
    key = str(path[-1])
    if key in _USERS:
        what = f"{dotted(path)}: how a server is launched can execute anything, so it is never a manifest's to say"
        return Problem("not_in_manifest", what, "write launch.toml in your configuration folder, and choose an entry with `--launch`", line)
    owners = _models_at(path[:-1], model, document.data)
    keys = sorted({k for owner in owners for k in keys_of(owner)})
    near = nearest(key, keys)
    below = next((k for owner in owners for k, child in _children(owner) if key in keys_of(child)), None)
    if near:
        remedy = f"did you mean {near}?"
    elif below:
        remedy = f"it belongs one level down: {below}: {{{key}: ...}}"
    else:
        remedy = f"delete it, or use one of: {', '.join(keys)}" if keys else "delete it"
    return Problem("unknown_key", f"{dotted(path)}: no such key, and a key that is not understood is never ignored", remedy, line)


def keys_of(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section as they are written."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _children(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        for child in _models_in(field.annotation):
            yield field.alias or name, child


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in get_args(annotation) for m in _models_in(arg)]


def _models_at(path: Path, model: type[BaseModel], data: Any) -> list[type[BaseModel]]:
    """Return the sections that may stand at ``path``; of a tagged union, the one whose tag is written there."""
    models, named = [model], False
    for part in path:
        data = _step(data, part)
        fields = [] if named else [field for owner in models for key, field in _fields(owner) if key == part]
        # A key of a mapping of names (arms.NAME) or a place in a list is no field: the models stay.
        models = [m for field in fields for m in _models_in(field.annotation)] or models
        named = any(get_origin(field.annotation) is dict for field in fields)
    tagged = [m for m in models if isinstance(data, dict) and _has_tag(m, data)]
    return tagged or models


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, Any]]:
    return ((field.alias or name, field) for name, field in model.model_fields.items())


def _has_tag(model: type[BaseModel], data: Mapping[str, Any]) -> bool:
    for key in ("transform", "kind"):
        field = model.model_fields.get(key)
        if field is not None and data.get(key) in get_args(field.annotation):
            return True
    return False


def _step(data: Any, part: str | int) -> Any:
    try:
        return data[part]
    except (KeyError, IndexError, TypeError):
        return None


def _meaning(path: Path, model: type[BaseModel], document: Document) -> str:
    """Return the description of the field at ``path``, or that of the nearest field above it."""
    for end in range(len(path), 0, -1):
        for owner in _models_at(path[: end - 1], model, document.data):
            for key, field in _fields(owner):
                if key == path[end - 1] and field.description:
                    return f"{key}: {field.description}"
    return ""
