"""traces convert, traces sample: whole traces, or parts of them, in this project's own format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from harness.cli.output import OK, answers, console, emit_json, json_option, printable
from harness.cli.traces import file_argument, format_option, options_option, parse_options, traces
from harness.errors import UsageError
from harness.manifest import units
from workloads import Trace, apply, guess_format, read_trace
from workloads.plan import Sort, Thin, Transform, WindowTransform
from workloads.traces.find import file_digest
from workloads.traces.own import SUFFIX, write_trace

out_argument = click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
force_option = click.option("--force", is_flag=True, help="Overwrite OUT.")


@traces.command("convert")
@file_argument
@out_argument
@format_option
@options_option
@force_option
@json_option
@answers
def convert(file: Path, out: Path, format_: str | None, options: tuple[str, ...], force: bool, as_json: bool) -> int:
    """Write a trace in this project's own format, with everything a replay needs and its licence.

    Example: trigpoint traces convert manifests/traces/quickstart.csv quickstart.trigpoint.parquet
    """
    _check_out(out, force=force)
    return _write(read_trace(format_ or guess_format(file), file, parse_options(options)), out, as_json=as_json)


@traces.command("sample")
@file_argument
@out_argument
@format_option
@options_option
@click.option(
    "--window", nargs=2, metavar="FROM TO", help="Keep arrivals in [FROM, TO) of trace time, e.g. 600s 1200s; TO becomes the end."
)
@click.option("--keep", type=click.FloatRange(0, 1, min_open=True), help="Keep each request, or each session, with this probability.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draw.")
@click.option("--rows", type=click.IntRange(min=1), help="Keep at most so many rows, from the start of what is left.")
@force_option
@json_option
@answers
def sample(
    file: Path, out: Path, format_: str | None, options: tuple[str, ...], window: tuple[str, str] | None, keep: float | None, seed: int,
    rows: int | None, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """Write a part of a trace in this project's own format; the file says of what it is a part.

    Example: trigpoint traces sample manifests/traces/quickstart.csv small.trigpoint.parquet --window 0s 60s
    """
    _check_out(out, force=force)
    if window is None and keep is None and rows is None:
        raise UsageError.single("sample", "neither --window, --keep nor --rows is given: that is the whole trace", "use convert")
    trace = read_trace(format_ or guess_format(file), file, parse_options(options), seed)
    return _write(_part(trace, _chain(window, keep), seed, rows), out, as_json=as_json)


def _chain(window: tuple[str, str] | None, keep: float | None) -> list[Transform]:
    chain: list[Transform] = [Sort()]
    if window is not None:
        start, stop = (_seconds(text) for text in window)
        chain.append(WindowTransform(start_s=start, stop_s=stop))
    return chain if keep is None else [*chain, Thin(keep=keep)]


def _seconds(text: str) -> float:
    try:
        return units.parse_duration(text) / 1e9
    except units.UnitError as bad:
        raise UsageError.single("bad_unit", f"--window {text}: {bad.what}", bad.remedy) from bad


def _part(trace: Trace, chain: list[Transform], seed: int, rows: int | None) -> Trace:
    """Apply the chain and note what was done, so that nobody takes the part for the whole."""
    if trace.clock not in {"absolute", "relative"}:
        chain = [step for step in chain if not isinstance(step, Sort)]
    done = apply(chain, trace, seed)
    part = done.trace.take(np.arange(rows, dtype=np.int64)) if rows is not None and rows < len(done.trace) else done.trace
    steps = [f"{step.transform} {step.model_dump(exclude={'transform'}) or ''}".strip() for step in chain]
    steps += [] if rows is None else [f"first {rows} rows"]
    note = f"a part of {trace.name} (sha256 {trace.sha256}, {len(trace)} rows): {', '.join(steps)}; seed {seed}; {len(part)} rows kept"
    return replace(part, notes=(*part.notes, note))


def _check_out(out: Path, *, force: bool) -> None:
    if not out.name.endswith(SUFFIX):
        remedy = f"write {out.name.split('.')[0]}{SUFFIX}"
        raise UsageError.single("trace.name", f"out={out.name}: a file of our own format is known by its ending {SUFFIX}", remedy)
    if out.exists() and not force:
        raise UsageError.single("file_exists", f"out={out}: is there already", "choose another name, or add --force")


def _write(trace: Trace, out: Path, *, as_json: bool) -> int:
    write_trace(trace, out)
    found: dict[str, Any] = {"file": out.name, "format": "trigpoint", "sha256": file_digest(out), "rows": len(trace)}
    if as_json:
        emit_json(found)
        return OK
    console().print(printable(f"{out}: {len(trace)} rows of {trace.name}"))
    console().print("in a manifest:")
    console().print(printable(f"  trace: {{format: trigpoint, name: {out.name}, sha256: {found['sha256']}}}"))
    return OK


COMMANDS = (traces,)
