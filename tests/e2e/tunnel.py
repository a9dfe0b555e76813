"""What ``ssh -L`` is to a launch prefix, on one machine: ``tunnel.py PORT WORD...`` runs the words with another port and forwards to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(port: int, argv: list[str]) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        there = probe.getsockname()[1]

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", there)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    argv[argv.index("--port") + 1] = str(there)
    server = await asyncio.create_subprocess_exec(*argv)
    async with await asyncio.start_server(forward, "127.0.0.1", port):
        return await server.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]), sys.argv[2:])))
