"""YAML text to plain data with a line number for every key: no tags, no duplicate keys, no bombs, no surprises of YAML 1.1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harness.errors import Problem

Path = tuple[str | int, ...]

MAX_BYTES = 1 << 20
"""1 MiB: a manifest is written by hand, and is a few KiB."""
MAX_DEPTH = 24
"""The schema is eight levels deep; three times that leaves room and keeps recursion far from its limit."""
MAX_VALUES = 20_000
"""Values after aliases are expanded; it stops an alias bomb early, and nobody writes a tenth of it by hand."""
MAX_DIGITS = 18
"""Digits of a bare number: more do not fit 63 bits."""

_BAD_CHARACTER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029\ufeff]")


class _Stop(Exception):  # noqa: N818 - it ends the reading; it is not an error of ours
    """Reading cannot go on."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


class _Loader(yaml.SafeLoader):
    """The safe loader with limits, without tags, and with the scalars of YAML 1.2: `no`, `1:30` and dates are text, not guessed."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - declared so by the base class

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.nodes = 0
        self.tags: list[Problem] = []

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose one node inside the limits; an explicit tag is noted and left without effect."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it untyped
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH:
            raise _Stop(_problem("too_deep", f"nesting is deeper than {MAX_DEPTH} levels", "write it flat", event))
        if self.nodes > MAX_VALUES:
            raise _Stop(_problem("too_many_values", f"more than {MAX_VALUES} values", "is it the right file?", event))
        tag = getattr(event, "tag", None)
        if tag is not None:
            self.tags.append(_problem("bad_tag", f"tag {tag[:60]} is not allowed", "delete the tag: a manifest is plain data", event))
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("int", r"^[-+]?[0-9]+$", [*"-+0123456789"]),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", [*"-+0123456789."]),
    ("float", r"^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$", [*"-+."]),
    ("null", r"^(?:~|null|Null|NULL|)$", [*"~nN", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


def _line(mark_holder: Any) -> int | None:
    mark = getattr(mark_holder, "start_mark", None)
    return None if mark is None else mark.line + 1


def _problem(code: str, what: str, remedy: str, at: Any = None) -> Problem:
    line = _line(at)
    return Problem(code, what, remedy, "" if line is None else str(line))


@dataclass(slots=True)
class Document:
    """Plain data of one manifest.

    ``lines`` maps a path to the 1-based line of its key (or item); ``problems`` hold a bare line number as ``where``.
    """

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    faulty: set[Path] = field(default_factory=set)
    """places whose value could not be read: what stands in ``data`` there is a stand-in"""
    values: int = 0

    def line(self, path: Path) -> int:
        """Return the line of the path or of its nearest ancestor that is there."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def decode(raw: bytes) -> str | Problem:
    """Decode a manifest file's bytes as UTF-8, or say why not."""
    if len(raw) > MAX_BYTES:
        return Problem(
            "too_large", f"the file has {len(raw)} bytes, more than {MAX_BYTES}", "a manifest is written by hand: is it the right file?"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        line = raw.count(b"\n", 0, bad.start) + 1
        return Problem("not_utf8", f"byte {bad.start} is not UTF-8", "save the file as UTF-8", str(line))


def read(text: str) -> Document:
    """Read YAML text. Never raises: what is wrong stands in ``problems``, all of it where YAML lets reading go on."""
    document = Document()
    try:
        root = _compose(text, document)
        document.data = _plain(root, (), document, 0)
    except _Stop as stop:
        document.data = None
        document.problems.append(stop.problem)
    return document


def _compose(text: str, document: Document) -> Node:
    if len(text) > MAX_BYTES:
        raise _Stop(Problem("too_large", f"the text has {len(text)} characters, more than {MAX_BYTES}", "a manifest is written by hand"))
    bad = _BAD_CHARACTER.search(text.replace("\r\n", "\n"))
    if bad:
        line = text.replace("\r\n", "\n").count("\n", 0, bad.start()) + 1
        raise _Stop(Problem("bad_character", f"character U+{ord(bad.group()):04X} cannot stand in a manifest", "delete it", str(line)))
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        document.problems.extend(loader.tags)
    except yaml.MarkedYAMLError as error:
        raise _Stop(_syntax(error)) from error
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise _Stop(Problem("bad_yaml", f"not YAML: {error.__class__.__name__}", "check the file by eye or with a YAML linter")) from error
    if node is None:
        raise _Stop(Problem("empty", "the manifest is empty", "start from one of the examples in manifests/"))
    return node


def _syntax(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    what = f"not YAML: {error.problem or error.context or 'unreadable'}"
    return Problem(
        "bad_yaml", what, "check indentation, colons, brackets and quotes around this line", "" if mark is None else str(mark.line + 1)
    )


def _plain(node: Node, path: Path, document: Document, depth: int) -> Any:
    document.values += 1
    if document.values > MAX_VALUES:
        raise _Stop(_problem("too_many_values", f"more than {MAX_VALUES} values after aliases are expanded", "write fewer aliases", node))
    if depth > MAX_DEPTH:
        raise _Stop(_problem("too_deep", f"nesting is deeper than {MAX_DEPTH} levels, or an alias holds itself", "write it flat", node))
    document.lines.setdefault(path, (_line(node) or 1))
    if isinstance(node, MappingNode):
        return _mapping(node, path, document, depth)
    if isinstance(node, SequenceNode):
        return [_plain(item, (*path, i), document, depth + 1) for i, item in enumerate(node.value)]
    return _scalar(node, path, document)


def _mapping(node: MappingNode, path: Path, document: Document, depth: int) -> dict[str, Any]:
    seen: dict[str, int] = {}
    out: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _key(key_node, document)
        line = _line(key_node) or 1
        if key is None:
            continue
        if key in seen:
            document.problems.append(_duplicate(path, key, seen[key], key_node))
            continue
        seen[key] = line
        document.lines[(*path, key)] = line
        out[key] = _plain(value_node, (*path, key), document, depth + 1)
    return out


def _key(node: Node, document: Document) -> str | None:
    value = _scalar(node, (), document) if isinstance(node, ScalarNode) else None
    if isinstance(value, str):
        return value
    remedy = "write a plain name as the key; quote it when it is a number, true, false or null"
    document.problems.append(_problem("bad_key", "a key must be text", remedy, node))
    return None


def _duplicate(path: Path, key: str, first: int, node: Node) -> Problem:
    thing = f"arm {key}" if path == ("arms",) else f"key {'.'.join(str(p) for p in (*path, key))}"
    what = f"{thing} stands twice, first in line {first}: one of the two would be lost without a word"
    return _problem("duplicate_arm" if path == ("arms",) else "duplicate_key", what, "rename or delete one of them", node)


def _scalar(node: Node, path: Path, document: Document) -> Any:
    text: str = node.value
    bad = _BAD_CHARACTER.search(text)
    if bad:
        document.problems.append(
            _problem("bad_character", f"escape for U+{ord(bad.group()):04X}: not a printable character", "delete it", node)
        )
        document.faulty.add(path)
        return _BAD_CHARACTER.sub("?", text)
    read_as = _READERS.get(node.tag.removeprefix("tag:yaml.org,2002:"), str)
    try:
        return read_as(text)
    except ValueError:
        name = ".".join(str(p) for p in path) or "value"
        document.faulty.add(path)
        what = f"{name}={text[:40]}: not a finite number of at most {MAX_DIGITS} digits"
        document.problems.append(_problem("bad_number", what, "write a plain number, or quote it to mean text", node))
        return text


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    # A leading zero is octal to one YAML and decimal to another.
    if len(digits) > MAX_DIGITS or (len(digits) > 1 and digits[0] == "0"):
        raise ValueError(text)
    return int(text)


def _float(text: str) -> float:
    if len(text) > 2 * MAX_DIGITS or "inf" in text.lower() or "nan" in text.lower():
        raise ValueError(text)
    value = float(text)
    if abs(value) > 1e300:
        raise ValueError(text)
    return value


_READERS: Mapping[str, Any] = {
    "str": str,
    "bool": lambda text: text.lower() == "true",
    "int": _integer,
    "float": _float,
    "null": lambda _text: None,
}
