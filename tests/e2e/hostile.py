"""A server that behaves as its requests ask it to, badly. Run as a process: prints its port. The prompt names the behaviour.

``--bodies FILE`` appends the sha256 of each request body to that file, a line each; ``--events FILE`` what happened: ``open`` for each
connection (under TLS once its handshake is over), ``asked NAME`` for each request that has come whole. ``--tls CERT KEY`` serves TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import ssl
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


SLOW_FROM, SLOW_READ = 4_000_000, 64 * 1024
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


async def interim_flood(writer: Writer) -> bool:
    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000)
    return True


async def slow_head(writer: Writer) -> bool:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for _ in range(600):
        writer.write(b"x-y: z\r\n")
        await asyncio.sleep(0.1)
    return False


async def long_line(writer: Writer) -> bool:
    """One event of 10 MB, well formed."""
    writer.write(CHUNKED + chunk(token("é" * 5_000_000)) + chunk(DONE) + END)
    return True


async def endless_line(writer: Writer) -> bool:
    """More than any event may hold, without a line feed; the HTTP framing is whole."""
    writer.write(CHUNKED + chunk(token()))
    for _ in range(20):
        writer.write(chunk(b"x" * 1_000_000))
        await writer.drain()
    writer.write(END)
    return True


def sized(size: int | str, body: bytes, *, keep: bool) -> Callable[[Writer], Awaitable[bool]]:
    """Answer with a ``content-length`` that may be wrong."""

    async def send(writer: Writer) -> bool:
        writer.write(HEAD + f"content-length: {size}\r\n\r\n".encode() + body)
        return keep

    return send


async def two_lengths(writer: Writer) -> bool:
    writer.write(HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef")
    return True


async def half_closed(writer: Writer) -> bool:
    """Say no more in the middle of an answer, and go on listening."""
    writer.write(CHUNKED + chunk(token()))
    writer.write_eof()
    await asyncio.sleep(60)
    return False


async def good_then_half_closed(writer: Writer) -> bool:
    """A whole answer, and behind it no more without a word, as a server does that has had enough of a connection."""
    writer.write(GOOD)
    writer.write_eof()
    await asyncio.sleep(60)
    return False


async def generate(writer: Writer) -> bool:
    for n in range(1, 6):
        meta = {"finish_reason": {"type": "length", "length": 5} if n == 5 else None, "prompt_tokens": 3, "completion_tokens": n}
        value = {"text": "é" * n, "output_ids": [7] * n, "meta_info": meta}
        writer.write((CHUNKED if n == 1 else b"") + chunk(b"data: " + json.dumps(value).encode() + b"\n\n"))
        await asyncio.sleep(0.005)
    writer.write(chunk(DONE) + END)
    return True


def answer(code: int) -> Callable[[Writer], Awaitable[bool]]:
    async def send(writer: Writer) -> bool:
        writer.write(status(code))
        return True

    return send


NAMED = (good, slow, bytewise, reset, early_close, no_answer, stall, half_character, bad_json, no_done, until_eof, error_event, gzip)
BEHAVIOURS: dict[str, Callable[[Writer], Awaitable[bool]]] = {
    **{f.__name__: f for f in (*NAMED, endless_head, interim, interim_flood, slow_head, long_line, endless_line, two_lengths)},
    **{f.__name__: f for f in (half_closed, good_then_half_closed, generate)},
    "length_too_long": sized(2 * len(token()), token(), keep=False),
    "length_too_short": sized(len(token()) - 9, token() + DONE, keep=True),
    "length_no_number": sized("many", token() + DONE, keep=True),
    **{f"status_{code}": answer(code) for code in (302, 429, 503)},
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bodies", type=Path)
    parser.add_argument("--events", type=Path)
    parser.add_argument("--tls", nargs=2)
    parser.add_argument("--port", type=int, default=0)
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else argparse.Namespace(bodies=None, events=None)


def log(path: Path | None, line: str) -> None:
    if path is not None:
        with path.open("a", encoding="ascii") as file:
            file.write(line + "\n")


def refuse_unread(body: bytes) -> bool:
    """Whether the beginning of a body asks for an answer before the rest was read."""
    return b"refuse_unread" in body[:200]


async def read_body(reader: asyncio.StreamReader, size: int) -> bytes:
    """The whole body; one of megabytes is read slowly, so that its sender's socket stays full for most of a second."""
    body = bytearray()
    while len(body) < size and not refuse_unread(body):
        body += await reader.readexactly(min(size - len(body), SLOW_READ))
        await asyncio.sleep(0.005 if size > SLOW_FROM else 0)
    return bytes(body)


async def serve(reader: asyncio.StreamReader, writer: Writer) -> None:
    log(ARGS.events, "open")
    try:
        keep = True
        while keep:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await read_body(reader, size)
            if refuse_unread(body):
                writer.write(status(429))
                await writer.drain()
                await asyncio.sleep(60)  # and neither reads on nor closes
            log(ARGS.bodies, hashlib.sha256(body).hexdigest())
            asked = json.loads(body)
            name = (asked.get("prompt") or asked["text"]).split()[0]
            log(ARGS.events, f"asked {name}")
            keep = await BEHAVIOURS[name](writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    logging.disable()  # asyncio says on stderr what it thinks of clients that go away
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if ARGS.tls else None
    if context is not None:
        context.load_cert_chain(*ARGS.tls)
    server = await asyncio.start_server(serve, "127.0.0.1", ARGS.port, backlog=512, limit=SLOW_READ, ssl=context)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
