"""From a file to a checked manifest: every problem at once, each with its line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError, create_model
from pydantic.fields import FieldInfo

from harness.errors import Problem, UsageError
from harness.manifest import document as documents
from harness.manifest.checks import cross_check
from harness.manifest.explain import dotted, explain
from harness.manifest.fields import SLUG_PATTERN, Section
from harness.manifest.findings import Finding
from harness.manifest.schema import Manifest


class ManifestError(UsageError):
    """The manifest cannot be used; carries everything that is wrong with it."""


@dataclass(frozen=True)
class LoadedManifest:
    """A valid manifest with its text as typed.

    ``digest``: sha256 of the resolved form, the same whatever the comments, the order of keys and the spelling of quantities.
    """

    path: Path
    text: str
    manifest: Manifest
    digest: str
    name: str
    lines: Mapping[documents.Path, int] = field(default_factory=dict, compare=False, repr=False)

    def where(self, path: documents.Path) -> str:
        """Return ``file:line`` of a key, or of the nearest key above it."""
        return f"{self.path}:{documents.Document(lines=dict(self.lines)).line(path)}"


def load_manifest(path: Path, *, known_gates: frozenset[str] | None = None) -> LoadedManifest:
    """Read and check a manifest file.

    ``known_gates``: codes a waiver may name; None leaves names unchecked. Raises ManifestError with all problems at once, each with
    ``file:line``.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(documents.MAX_BYTES + 1)
    except OSError as bad:
        remedy = "check the path; `trigpoint init` writes a manifest to start from"
        raise ManifestError(Problem("unreadable", f"cannot read the manifest: {bad.strerror or bad}", remedy, str(path))) from bad
    text = documents.decode(raw)
    if isinstance(text, Problem):
        raise ManifestError(_placed(text, str(path)))
    return parse_manifest(text, path, known_gates=known_gates)


def parse_manifest(text: str, where: str | Path, *, known_gates: frozenset[str] | None = None) -> LoadedManifest:
    """Check manifest text; ``where`` names it in errors and, by its stem, the campaign. Raises ManifestError, and nothing else."""
    path = Path(where)
    document = documents.read(text)
    problems = list(document.problems)
    manifest: Manifest | None = None
    valid: dict[str, Any] = {}
    if document.data is not None or not problems:
        manifest, valid, found = _validate(document)
        problems += found
    problems += [_problem(f, document) for f in cross_check(valid, known_gates)]
    name, unnamed = _name(valid.get("name"), path)
    problems += unnamed
    if problems or manifest is None:
        placed = [_placed(p, str(path)) for p in sorted(problems, key=lambda p: int(p.where or 0))]
        raise ManifestError(*dict.fromkeys(placed))
    return LoadedManifest(path, text, manifest, manifest_digest(manifest), name, document.lines)


def _validate(document: documents.Document) -> tuple[Manifest | None, dict[str, Any], list[Problem]]:
    """Validate the whole; when that fails, also each section alone, so that checks across valid sections still run."""
    data = document.data
    if not isinstance(data, dict):
        return None, {}, [Problem("not_a_mapping", "a manifest is a mapping of keys", "start from one of the examples in manifests/", "1")]
    try:
        manifest = Manifest.model_validate_json(json.dumps(data))
    except ValidationError as bad:
        return None, _valid_sections(data, bad), explain(bad, Manifest, document)
    return manifest, {key: getattr(manifest, key) for key in Manifest.model_fields}, []


def _valid_sections(data: dict[str, Any], bad: ValidationError) -> dict[str, Any]:
    """Return the sections without an error of their own, read one at a time.

    The broken ones are left out of the data, so the only errors that remain are that those are missing.
    """
    faulty = {str(detail["loc"][0]) for detail in bad.errors(include_url=False) if detail["loc"]}
    valid: dict[str, Any] = {}
    for name, info in Manifest.model_fields.items():
        key = info.alias or name
        if key in faulty or (key not in data and info.is_required()):
            continue
        valid[name] = _one_section(name, key, data) if key in data else info.get_default()
    return valid


def _one_section(name: str, key: str, data: dict[str, Any]) -> Any:
    section = _SECTIONS[name]
    return getattr(section.model_validate_json(json.dumps({key: data[key]})), name)


def _alone(name: str, info: FieldInfo) -> type[Section]:
    field_of: dict[str, Any] = {name: (info.annotation, info)}
    return create_model(f"Only_{name}", __base__=Section, **field_of)


_SECTIONS = {name: _alone(name, info) for name, info in Manifest.model_fields.items()}


def _problem(finding: Finding, document: documents.Document) -> Problem:
    return Problem(finding.code, f"{dotted(finding.path)}{finding.what}", finding.remedy, str(document.line(finding.path)))


def _placed(problem: Problem, where: str) -> Problem:
    return replace(problem, where=f"{where}:{problem.where}" if problem.where else where)


def _name(given: str | None, path: Path) -> tuple[str, list[Problem]]:
    name = given or path.stem
    if re.fullmatch(SLUG_PATTERN[1:-1], name, re.ASCII):
        return name, []
    what = f"name={name[:80]!r} (from the file's name): becomes a folder name of a-z, 0-9, '-', '_' and '.', at most 63 characters"
    return name, [Problem("bad_name", what, "rename the file, or write `name:` into the manifest", "1")]


def resolved_form(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest with every default filled in, quantities in their shortest exact spelling; itself a valid manifest."""
    data: dict[str, Any] = manifest.model_dump(mode="json", by_alias=True)
    _leave_out_unused(data)
    data["replicates"]["server-starts"] = data["replicates"]["server-starts"] or data["replicates"]["count"]
    return data


def _leave_out_unused(data: dict[str, Any]) -> None:
    """Keys of later versions where they say nothing, so that a manifest without them keeps the digest its campaigns were sealed with."""
    if data["fairness"] is None:
        del data["fairness"]
    if data["rank"] is not None and data["rank"]["against"] is None:
        del data["rank"]["against"]
    if data["workload"]["arrivals"]["ramp"] is None:
        del data["workload"]["arrivals"]["ramp"]
    for arm in data["arms"].values():
        if not arm["without-clients"]:
            del arm["without-clients"]
        if arm["metrics"] is None:
            del arm["metrics"]
        if not any(arm["members"].values()):
            del arm["members"]
    for pins in (data["pins"], *(arm["pins"] for arm in data["arms"].values())):
        for key in ("replicas", "disaggregation"):
            if pins["parallelism"][key] is None:
                del pins["parallelism"][key]


def canonical_json(data: Any) -> str:
    """Return the one JSON text of ``data``: sorted keys, no spaces, shortest round-trip floats, no infinities."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def manifest_digest(manifest: Manifest) -> str:
    """Return the sha256 of the resolved form. The campaign's name is a label on a folder and does not enter."""
    data = resolved_form(manifest)
    del data["name"]
    return hashlib.sha256(canonical_json(data).encode("utf-8")).hexdigest()
