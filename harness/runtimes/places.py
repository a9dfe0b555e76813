"""Where runtimes, models and the user's own settings live on this machine. Read from the environment at the call, never at import."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """``$TRIGPOINT_CACHE``, else ``$XDG_CACHE_HOME/trigpoint``, else ``~/.cache/trigpoint``. Not created here."""
    own = os.environ.get("TRIGPOINT_CACHE")
    if own:
        return Path(own).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trigpoint"


def config_dir() -> Path:
    """``$XDG_CONFIG_HOME/trigpoint``, else ``~/.config/trigpoint``: what can execute or leak is the user's alone (DESIGN 4)."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "trigpoint"
