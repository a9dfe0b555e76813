"""Settings of every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A deadline is a timed assert, and a busy host would fail it; how fast things are is a matter of benchmarks/.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")
