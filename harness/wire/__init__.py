"""Request encoding and event decoding per protocol; no sockets, no clocks."""

from harness.wire.openai import PROTOCOLS

__all__ = ["PROTOCOLS"]
