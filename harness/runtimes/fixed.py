"""The part of a real server's environment that is the same for every one we start."""

from __future__ import annotations

import os
from collections.abc import Iterable

from harness.errors import Problem
from harness.runtimes.environments import Environment

INHERITED = ("HOME", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def base_environment(env: Environment) -> dict[str, str]:
    """No network, no usage reports, no colours, nothing of the caller's but its home and its devices."""
    out = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return out | {
        "PATH": f"{env.root / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }


def env_problem(name: str, allowed: Iterable[str]) -> Problem:
    """The problem of a variable that a manifest may not set."""
    return Problem(
        "env_not_allowed",
        f"env.{name}: not among the variables a manifest may set, because it could execute code, leak or change what is measured unseen",
        f"remove it; allowed are {', '.join(sorted(allowed))}",
    )
