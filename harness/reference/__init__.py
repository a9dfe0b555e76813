"""The embedded reference engine: scheduler contract, policies, HTTP server process (DESIGN 11). Evidence class ``synthetic``, always."""

from __future__ import annotations

ENGINE_VERSION = "1.2.0"
"""Raised whenever scheduling, the cost model or token generation could change a number."""
