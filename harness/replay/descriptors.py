"""Open files: raised as far as the host lets us, and said in time when that is not far enough."""

from __future__ import annotations

import contextlib
import errno
import resource

SPARE = 64
"""Besides connections a worker holds its pipes, timers, standard streams and what its libraries open: a few dozen."""


def raise_limit() -> int:
    """Lift the soft limit of this process to its hard one; returns what holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def refusal(limit: int, connections: int) -> str | None:
    """Why a worker that needs ``connections`` before its first arrival should not start under ``limit``; None when it may."""
    if limit == resource.RLIM_INFINITY or limit >= connections + SPARE:
        return None
    return (
        f"open_files={limit} (hard limit): the plan's bursts need {connections} connections and {SPARE} files besides, so requests would "
        f"fail through us; allow at least {connections + SPARE}, e.g. `ulimit -Hn` or LimitNOFILE=, or spread the load over more workers"
    )


def run_out(error: BaseException) -> str:
    """What to do about a connection that could not be opened for want of descriptors; empty for every other error."""
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return f"; open_files={limit} is the hard limit: raise it (ulimit -Hn) or use more workers"
