"""Request encoding and event decoding per protocol; no sockets, no clocks."""

from harness.wire.contract import Protocol_
from harness.wire.generate import GenerateProtocol
from harness.wire.openai import OPENAI

PROTOCOLS: dict[str, Protocol_] = {**OPENAI, "generate": GenerateProtocol()}
"""Protocols by the name a manifest uses (``workload.api``)."""

__all__ = ["PROTOCOLS"]
