"""Open files: what is refused before the start, and what is said when they run out later."""

from __future__ import annotations

import errno
import resource

from hypothesis import given
from hypothesis import strategies as st

from harness.replay.descriptors import SPARE, raise_limit, refusal, run_out


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_start_is_refused_exactly_when_the_connections_do_not_fit(limit: int, connections: int) -> None:
    said = refusal(limit, connections)
    assert (said is None) == (connections + SPARE <= limit)
    assert said is None or (f"open_files={limit}" in said and str(connections + SPARE) in said)


def test_no_limit_refuses_nothing() -> None:
    assert refusal(resource.RLIM_INFINITY, 10**9) is None


def test_running_out_says_what_to_raise_and_other_errors_speak_for_themselves() -> None:
    assert "ulimit -Hn" in run_out(OSError(errno.EMFILE, "Too many open files"))
    assert run_out(ConnectionRefusedError(errno.ECONNREFUSED, "refused")) == ""


def test_the_soft_limit_ends_at_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert raise_limit() == before[1] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
