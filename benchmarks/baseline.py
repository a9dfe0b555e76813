"""The client most load generators start as, to hold the engine against: one asyncio loop, a connection a request, sleeps to pace, JSON
parsed inline before the stamp. It sends the same bytes at the same instants.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Row:
    """What the client noted about one request, ns on the epoch."""

    arrival_ns: int
    send_ns: int | None = None
    stamps: list[int] = field(default_factory=list)
    done: bool = False


async def one(host: str, port: int, path: str, body: bytes, row: Row, epoch_ns: int) -> None:
    """Send one request at its arrival and stamp every token after parsing it."""
    await asyncio.sleep(max(0.0, (epoch_ns + row.arrival_ns - time.monotonic_ns()) / 1e9))
    reader, writer = await asyncio.open_connection(host, port)
    try:
        row.send_ns = time.monotonic_ns() - epoch_ns
        fields = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
        head = "\r\n".join((f"POST {path} HTTP/1.1", f"Host: {host}", *fields))
        writer.write(f"{head}\r\n\r\n".encode() + body)
        await writer.drain()
        async for line in reader:
            text = line.strip()
            if not text.startswith(b"data:"):
                continue
            if text.endswith(b"[DONE]"):
                row.done = True
                break
            event: dict[str, Any] = json.loads(text.removeprefix(b"data:"))
            if event.get("choices"):
                row.stamps.append(time.monotonic_ns() - epoch_ns)
    finally:
        writer.close()


async def _all(host: str, port: int, path: str, bodies: list[bytes], rows: list[Row], epoch_ns: int) -> None:
    await asyncio.gather(*(one(host, port, path, body, row, epoch_ns) for body, row in zip(bodies, rows, strict=True)))


def drive(host: str, port: int, path: str, bodies: list[bytes], arrivals: list[int]) -> tuple[list[Row], float, int]:
    """Run the load in this process; returns rows, CPU seconds and the epoch (monotonic ns)."""
    rows = [Row(a) for a in arrivals]
    before = time.process_time()
    epoch_ns = time.monotonic_ns() + 500_000_000
    asyncio.run(_all(host, port, path, bodies, rows, epoch_ns))
    return rows, time.process_time() - before, epoch_ns
