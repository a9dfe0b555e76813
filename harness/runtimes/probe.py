"""Proving a runtime: start it on the tiny model, ask it for its facts, stop it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.clock import NS_PER_S, Clock, MonotonicClock
from harness.errors import HostError, UsageError
from harness.runtimes.models import TINY
from harness.runtimes.ports import HOST, free_port, holder
from harness.runtimes.process import ServerProcess
from harness.runtimes.registry import get_runtime
from harness.system import Arm, Fact, ModelPin, Pins

READY_S = 300.0
"""Ready was seen after 35-80 s on two cores; a cold disk may double that."""


def probe_runtime(name: str, version: str | None, *, dtype: str = "bfloat16", clock: Clock | None = None) -> dict[str, Fact]:
    """Return the runtime's facts plus ``probe.ready_s`` (seconds from start to ready). Raises what check, start and readiness raise."""
    clock = clock or MonotonicClock()
    runtime = get_runtime(name)
    arm = Arm(name="probe", runtime=name, version=version)
    pins = Pins(model=ModelPin(id=TINY, dtype=dtype))
    problems = runtime.check(arm, pins)
    if problems:
        raise UsageError(*problems)
    with tempfile.TemporaryDirectory(prefix="trigpoint-probe-") as folder:
        port = free_port()
        base_url = f"http://{HOST}:{port}"
        server = ServerProcess()
        began = clock.now_ns()
        try:
            server.start(runtime.command(arm, pins, port, Path(folder)), Path(folder) / "server.log")
            server.wait_ready(lambda: runtime.ready(base_url), READY_S, clock)
            if not server.listens_on(port):
                what = f"port={port}: {holder(port)} answers there, not the {name} that was started; its facts would be another server's"
                raise HostError.single("stale_server", what, "stop that process, then probe again")
            ready_s = round((clock.now_ns() - began) / NS_PER_S, 1)
            facts = runtime.facts(arm, pins, base_url, Path(folder) / "server.log")
        finally:
            server.stop()
    return facts | {"probe.ready_s": Fact(value=ready_s, source="monotonic clock")}
