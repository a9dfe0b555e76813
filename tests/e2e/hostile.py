"""A server that behaves as its requests ask it to, badly. Run as a process: prints its port. The prompt names the behaviour.

With a path as argument it appends the sha256 of each request body to that file, a line each.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

Writer = asyncio.StreamWriter
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def token(text: str = "é") -> bytes:
    value = {"choices": [{"index": 0, "text": text, "finish_reason": None, "token_ids": [7]}]}
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


GOOD = CHUNKED + b"".join(chunk(token()) for _ in range(5)) + chunk(DONE) + END


def status(code: int) -> bytes:
    body = json.dumps({"error": {"message": "told to", "type": "Told", "code": code}}).encode()
    return f"HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nlocation: /\r\n\r\n".encode() + body


async def good(writer: Writer) -> bool:
    writer.write(GOOD)
    return True


async def slow(writer: Writer) -> bool:
    writer.write(CHUNKED)
    for _ in range(20):
        writer.write(chunk(token()))
        await asyncio.sleep(0.02)
    writer.write(chunk(DONE) + END)
    return True


async def bytewise(writer: Writer) -> bool:
    for i in range(len(GOOD)):
        writer.write(GOOD[i : i + 1])
        await writer.drain()
        if i % 16 == 0:
            await asyncio.sleep(0.001)
    return True


async def reset(writer: Writer) -> bool:
    writer.write(CHUNKED + chunk(token()) * 2)
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()
    return False


async def early_close(writer: Writer) -> bool:
    writer.write(CHUNKED + chunk(token()))
    return False


async def no_answer(writer: Writer) -> bool:
    return False


async def stall(writer: Writer) -> bool:
    writer.write(CHUNKED + chunk(token()))
    await asyncio.sleep(60)
    return False


async def half_character(writer: Writer) -> bool:
    # The length frames the body well; the stream in it stops between the two bytes of a character.
    body = token() + token()[: token().index("é".encode()) + 1]
    writer.write(HEAD + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    return True


async def bad_json(writer: Writer) -> bool:
    writer.write(CHUNKED + chunk(b"data: {not json\n\n") + chunk(DONE) + END)
    return True


async def no_done(writer: Writer) -> bool:
    writer.write(HEAD + b"connection: close\r\n\r\n" + token())
    return False


async def until_eof(writer: Writer) -> bool:
    writer.write(HEAD + b"connection: close\r\n\r\n" + token() + DONE)
    return False


async def error_event(writer: Writer) -> bool:
    event = b'data: {"error":{"message":"queue is full","type":"Overloaded","code":503}}\n\n'
    writer.write(CHUNKED + chunk(event) + chunk(DONE) + END)
    return True


async def gzip(writer: Writer) -> bool:
    writer.write(HEAD + b"content-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc")
    return True


async def endless_head(writer: Writer) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\n" + b"x-y: z\r\n" * 60_000)
    await writer.drain()
    await asyncio.sleep(60)
    return False


async def interim(writer: Writer) -> bool:
    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD)
    return True


def answer(code: int) -> Callable[[Writer], Awaitable[bool]]:
    async def send(writer: Writer) -> bool:
        writer.write(status(code))
        return True

    return send


NAMED = (good, slow, bytewise, reset, early_close, no_answer, stall, half_character, bad_json, no_done, until_eof, error_event, gzip)
BEHAVIOURS: dict[str, Callable[[Writer], Awaitable[bool]]] = {
    **{f.__name__: f for f in (*NAMED, endless_head, interim)},
    **{f"status_{code}": answer(code) for code in (302, 429, 503)},
}


def log(body: bytes) -> None:
    if len(sys.argv) > 1:
        with Path(sys.argv[1]).open("a", encoding="ascii") as file:
            file.write(hashlib.sha256(body).hexdigest() + "\n")


async def serve(reader: asyncio.StreamReader, writer: Writer) -> None:
    try:
        keep = True
        while keep:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(size)
            log(body)
            prompt = json.loads(body)["prompt"]
            keep = await BEHAVIOURS[prompt.split()[0]](writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512, limit=8 * 1024 * 1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
