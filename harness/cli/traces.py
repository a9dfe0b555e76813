"""traces list, traces inspect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import yaml
from rich.table import Table

from analysis.cautions import Caution, cautions
from analysis.describe import describe
from analysis.report import render_trace, rows_of
from harness.cli.output import OK, answers, console, emit_json, json_option, printable
from harness.errors import Problem, TrigpointError, UsageError
from workloads import Trace, formats, get_reader, guess_format, read_trace
from workloads.profiles import profile
from workloads.traces.find import file_digest

TEXT = "text"
"""Not a trace: a text that prompts may be cut from, looked at in the same way."""

format_option = click.option("--format", "format_", metavar="NAME", help="Format of the file; default: told by its name and first lines.")
options_option = click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="Option of the reader, value as in YAML; repeatable."
)
file_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group()
def traces() -> None:
    """Look into trace files, and make smaller or plainer ones of them."""


@traces.command("list")
@click.argument("folders", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@answers
def list_(folders: tuple[Path, ...], as_json: bool) -> int:
    """List the formats that can be read, or the trace files in FOLDERS.

    Example: trigpoint traces list ~/traces
    """
    if folders:
        _show_files([row for folder in folders for row in _files(folder)], as_json=as_json)
        return OK
    infos = [get_reader(name).info for name in formats()]
    if as_json:
        emit_json([asdict(info) for info in infos])
        return OK
    table = Table("format", "clock", "prefix ids", "tested on", "what it is", box=None, pad_edge=False)
    for info in infos:
        rule = info.prefix
        ids = f"{rule.block_size} tokens, {rule.rounding}, per {rule.scope}" if rule else "-"
        table.add_row(info.format, f"{info.clock}, {info.time_unit}", ids, info.tested, info.summary)
    console().print(table)
    return OK


def _files(folder: Path) -> list[dict[str, Any]]:
    """Every file below ``folder`` that a reader knows, with the digest a manifest would pin."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        try:
            name = guess_format(path)
        except TrigpointError:  # not a trace: a licence, a page, a component file
            continue
        found.append({"file": str(path.relative_to(folder)), "format": name, "sha256": file_digest(path), "bytes": path.stat().st_size})
    return found


def _show_files(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        emit_json(rows)
        return
    table = Table("file", "format", "bytes", "sha256", box=None, pad_edge=False)
    for row in rows:
        table.add_row(printable(row["file"]), row["format"], str(row["bytes"]), row["sha256"])
    console().print(table)


@traces.command("inspect")
@file_argument
@format_option
@options_option
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with figures there.")
@click.option("--context", type=click.IntRange(min=1), help="Context length of the model, to count the rows that do not fit it.")
@json_option
@answers
def inspect(file: Path, format_: str | None, options: tuple[str, ...], html: Path | None, context: int | None, as_json: bool) -> int:
    """Describe a trace: arrivals, lengths, clients, sessions, sharing, and what to know before replaying it.

    Example: trigpoint traces inspect manifests/traces/quickstart.csv
    """
    name = format_ or _guess(file)
    drawn = name != TEXT and get_reader(name).info.drawn and not options
    if name == TEXT or drawn:
        _refuse_of_rows({"--html": html, "--context": context}, name, _DRAWN.remedy if drawn else "leave it out")
        _show({"file": file.name, "format": name} | profile(file, name), [_DRAWN] if drawn else [], as_json=as_json)
        return OK
    trace = read_trace(name, file, parse_options(options))
    found = look(trace, file)
    warnings = cautions(trace, found, context=context)
    if html is not None:
        html.write_text(render_trace(file.name, trace, found, warnings), encoding="utf-8")
    _show(found, warnings, as_json=as_json)
    return OK


_DRAWN = Caution(
    "rows_are_drawn",
    "rows: the format holds distributions, and rows exist only once options say for whom and for how long they are drawn",
    "give --option for each, e.g. those of the manifest, to describe a draw",
)


def _refuse_of_rows(given: Mapping[str, object], name: str, remedy: str) -> None:
    """Refuse what can be said of rows only, where there are none."""
    problems = [
        Problem("no_rows", f"{option}={value}: {name} has no rows to draw or to count", remedy)
        for option, value in given.items()
        if value is not None
    ]
    if problems:
        raise UsageError(*problems)


def _guess(file: Path) -> str:
    return TEXT if file.name.removesuffix(".gz").endswith(".txt") else guess_format(file)


def parse_options(options: tuple[str, ...]) -> dict[str, Any]:
    """Return KEY=VALUE pairs as a mapping, values read as YAML. Raises UsageError for a pair without ``=`` or a value that is no YAML."""
    found: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise UsageError.single("option", f"option={option!r}: not KEY=VALUE", "write e.g. --option time-unit=ms")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UsageError.single("option", f"option={option!r}: the value is no YAML", "quote it") from error
    return found


def look(trace: Trace, file: Path) -> dict[str, Any]:
    """Everything that can be said of a trace file in one mapping: origin, raw profile, description."""
    head = {
        "file": file.name,
        "format": trace.format,
        "sha256": trace.sha256,
        "licence": trace.licence,
        "attribution": trace.attribution,
        "clock": trace.clock,
        "grid_ns": trace.grid_ns,
        "skipped": trace.skipped,
        **({"options_that_pin": trace.unpinned} if trace.unpinned else {}),
        "notes": list(trace.notes),
    }
    found = _merge(profile(file, trace.format), describe(trace))
    origin = found.pop("origin_s", None)
    if origin is not None:
        found["arrivals"] |= {end: found["arrivals"][end] + origin for end in ("first_s", "last_s")}
    return head | found


def _merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {k: _merge(one[k], other[k]) for k in one.keys() & other.keys() if isinstance(one[k], Mapping) and isinstance(other[k], Mapping)}
    return {**one, **other, **both}


def _show(found: dict[str, Any], warnings: list[Caution], *, as_json: bool) -> None:
    if as_json:
        emit_json(found | {"warnings": [asdict(w) for w in warnings]})
        return
    table = Table.grid(padding=(0, 2))
    for key, value in rows_of(found):
        table.add_row(key, value)
    console().print(table)
    for note in found.get("notes", ()):
        console().print(f"\nnote: {printable(note)}")
    for warning in warnings:
        console().print(f"\n{warning.code}: {printable(warning.text)}\n  {warning.remedy}")
