"""Folders that look like finished environments of real servers, without their gigabytes."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from harness.runtimes import install


def make_ready(name: str, packages: tuple[str, ...] = (), flags: str | None = None, size_bytes: int = 7) -> install.Environment:
    """Write the environment of a recipe: its server as one file, ``packages`` (``Name-version``) as metadata, the marker.

    ``flags``: what its parser would print, kept beside it.
    """
    made = install.recipe(name)
    root = install.root_of(made)
    site = root / "lib/python3.11/site-packages"
    for package in (f"{name.replace('-', '_') if made.alias else made.module}-{made.version}", *packages):
        (site / f"{package}.dist-info").mkdir(parents=True)
    source = f"__version__ = '{made.version}'\n".encode()
    (site / made.module).mkdir()
    (site / made.module / "__init__.py").write_bytes(source)
    (record,) = site.glob(f"{made.module}*-{made.version}.dist-info")
    digest = base64.urlsafe_b64encode(hashlib.sha256(source).digest()).decode().rstrip("=")
    (record / "RECORD").write_text(f"{made.module}/__init__.py,sha256={digest},{len(source)}\n{record.name}/RECORD,,\n", encoding="utf-8")
    install.put_platform(site, made)
    env = install.Environment(made.name, made.runtime, made.version, root, made.digest())
    (root / "READY").write_text(json.dumps({"lock_digest": made.digest(), "packages_digest": env.packages_digest(), "bytes": size_bytes}))
    if flags is not None:
        (root.parent / f"{root.name}.flags.json").write_text(flags)
    return env


def engine_source(env: install.Environment) -> Path:
    """The one file of its server."""
    return env.site_packages / install.RECIPES[env.name].module / "__init__.py"
