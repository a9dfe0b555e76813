"""From typed manifest arguments to argv, held against the installed version's own parser before anything is started."""

from __future__ import annotations

import difflib
import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.errors import HostError, Problem

DUMP_TIMEOUT_S = 300.0
"""Importing the server's parser took 14 s on two idle cores; a cold disk takes minutes."""

OUTSIDE = frozenset(
    {
        "path", "paths", "dir", "folder", "file", "url", "urls", "endpoint", "endpoints", "socket", "ssl", "domains", "connect", "addr",
        "address", "port", "ports", "plugin",
    }
)  # fmt: skip
"""Words in the name of an option that reaches outside a server (files, sockets, other hosts, code), in versions to come as well."""

_CODE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?::\w+)?")
_PLACES = ("/", "~", "./", "../", "@")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the server's parser. ``switch``: takes no value; ``negatable``: has a ``--no-`` form; ``many``: takes a list."""

    switch: bool
    negatable: bool
    many: bool
    choices: tuple[str, ...] | None = None


Options = Mapping[str, Option]
"""Long option name without dashes -> Option; ``no-`` forms are not listed, they are said with ``false``."""


def parse_dump(raw: Sequence[Mapping[str, Any]]) -> dict[str, Option]:
    """Read a parser dump: one {flags, nargs, choices} per argparse action."""
    options: dict[str, Option] = {}
    for action in raw:
        names = [f[2:] for f in action["flags"] if f.startswith("--")]
        negatives = {n for n in names if n.startswith("no-") and n[3:] in names}
        choices = tuple(action["choices"]) if action["choices"] else None
        option = Option(action["nargs"] == 0, bool(negatives), action["nargs"] not in (0, 1, None, "?"), choices)
        options |= dict.fromkeys((n for n in names if n not in negatives), option)
    return options


def installed_options(python: Path, script: str, cache: Path, env: Mapping[str, str]) -> dict[str, Option]:
    """Options that the environment's own parser knows, asked once and kept in ``cache`` (named by the environment's lock).

    ``script`` prints one JSON list on its last line of output. Raises HostError ``flags_unreadable``.
    """
    try:
        return parse_dump(orjson.loads(cache.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # absent or cut: asked again
    line = _ask_parser(python, script, env)
    try:
        options = parse_dump(orjson.loads(line))
    except (ValueError, KeyError, TypeError) as bad:
        raise _unreadable(f"it printed no option list ({bad})") from bad
    part = cache.with_suffix(".part")
    part.write_text(line, encoding="utf-8")
    part.replace(cache)
    return options


def _ask_parser(python: Path, script: str, env: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", script],  # isolated: a folder of that name in our directory is not the installed server
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=dict(env),
            timeout=DUMP_TIMEOUT_S,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as bad:
        raise _unreadable(str(bad)) from bad
    if done.returncode != 0:
        raise _unreadable("\n      ".join(done.stderr.splitlines()[-5:]))
    return (done.stdout.splitlines() or [""])[-1]


def _unreadable(why: str) -> HostError:
    return HostError(
        Problem(
            "flags_unreadable",
            f"the installed server's parser could not be asked: {why}",
            "an argument nobody checked may mean another system; remove and install the runtime again",
        )
    )


def reaching_outside(options: Iterable[str]) -> Iterator[str]:
    """Names among ``options`` that hold a word of ``OUTSIDE``."""
    return (name for name in options if OUTSIDE & set(name.split("-")))


def check_args(args: Mapping[str, Any], options: Options, reserved: Mapping[str, str]) -> list[Problem]:
    """Hold manifest arguments against the parser; one problem for each wrong one, none is dropped.

    ``reserved``: name -> who sets it instead.
    """
    problems = (_check_one(name, value, options, reserved) for name, value in sorted(args.items()))
    return [p for p in problems if p is not None]


def _check_one(name: str, value: Any, options: Options, reserved: Mapping[str, str]) -> Problem | None:
    if name in reserved:
        return Problem("flag_reserved", f"args.{name}={value!r}: is not an argument's to set", reserved[name])
    option = options.get(name)
    if option is None:
        return _unknown(name, value, options)
    wrong = _wrong_value(name, value, option)
    return Problem("flag_value", f"args.{name}={value!r}: {wrong[0]}", wrong[1]) if wrong else None


def _unknown(name: str, value: Any, options: Options) -> Problem:
    positive = name.removeprefix("no-")
    if positive != name and positive in options:
        remedy = f"write `{positive}: false`: one setting has one spelling, or equal arms would look different"
    else:
        near = difflib.get_close_matches(name.replace("_", "-").lstrip("-"), options, n=3, cutoff=0.6)
        remedy = f"did you mean `{near[0]}`? (near: {', '.join(near)})" if near else "remove it, or pin the version that has it"
    return Problem("flag_unknown", f"args.{name}={value!r}: the installed version's own parser has no such argument", remedy)


def _wrong_value(name: str, value: Any, option: Option) -> tuple[str, str] | None:
    if option.switch:
        return None if isinstance(value, bool) else ("it is a switch", f"write `{name}: true` or `{name}: false`")
    if isinstance(value, bool) or value is None:
        return ("it takes a value", f"write `{name}: VALUE`, or leave it out for the server's default")
    if isinstance(value, list) and not option.many:
        return ("it takes one value, not a list", f"write `{name}: VALUE`")
    given = [str(v) for v in value] if isinstance(value, list) else [_text(value)]
    bad = [v for v in given if option.choices is not None and v not in option.choices]
    if bad:
        return (f"{', '.join(bad)} is not a choice", f"choose from: {', '.join(option.choices or ())}")
    if option.many and not given:
        return ("it takes at least one value", "name one, or leave it out")
    if option.choices is None and (outside := next(_naming_outside(value), None)) is not None:
        return (f"{outside!r} names code, a file or a host, which a manifest may not choose", "leave it out")
    leading = [v for v in given if v.startswith("-") and not _is_number(v)]
    return ("a value that begins with a dash would be read as another argument", "write it without the dash") if leading else None


def _naming_outside(value: Any) -> Iterator[str]:
    """Texts of a value, however deep in lists, mappings or JSON, that are a dotted Python name, a place in a file system or a URL.

    vLLM imports what a field of a configuration names; some of SGLang's options read a JSON text or a file that holds one.
    """
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        yield from (found for item in value for found in _naming_outside(item))
    elif isinstance(value, str):
        text = value.strip()
        if text.startswith(("{", "[")):
            try:
                yield from _naming_outside(json.loads(text))
            except (ValueError, RecursionError):
                yield text
        elif text.startswith(_PLACES) or "://" in text or _CODE.fullmatch(text):
            yield text


def to_argv(args: Mapping[str, Any], options: Options) -> list[str]:
    """Turn checked arguments into argv, in name order: value -> ``--name value``, true -> ``--name``, false -> ``--no-name``.

    A switch without a ``no-`` form is off when it is left out, which is what false then means. Mappings are passed as canonical JSON.
    """
    argv: list[str] = []
    for name, value in sorted(args.items()):
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            argv += [f"--no-{name}"] if options[name].negatable else []
        elif isinstance(value, list):
            argv += [f"--{name}", *map(_text, value)]
        else:
            argv += [f"--{name}", _text(value)]
    return argv


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":")) if isinstance(value, dict) else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
