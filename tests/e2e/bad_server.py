"""An OpenAI-like server that answers each request as its declared maximum tells it to. Run as a process: prints its port.

The load engine sends random prompts, so the behaviour cannot be named by them; under the control ``forced`` the trace's output length
arrives as ``max_tokens``, and ``MODES[max_tokens - 1]`` is what the request gets. The last Authorization header is kept for the test, which
asks GET /seen for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Writer = asyncio.StreamWriter
MODES = (
    "good", "status_429", "status_503", "error_vllm", "error_sglang", "overload_late", "half_character", "early_close", "bad_json",
    "never", "error_internal", "status_400", "status_404", "status_422",
)  # fmt: skip
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE, END = b"data: [DONE]\n\n", b"0\r\n\r\n"


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def token() -> bytes:
    return event({"choices": [{"index": 0, "text": "é", "finish_reason": None, "token_ids": [7]}]})


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def stream(*events: bytes) -> bytes:
    return HEAD + b"".join(map(chunk, events))


def json_answer(status: int, value: object) -> bytes:
    body = json.dumps(value).encode()
    return f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


VLLM_ERROR = event({"error": {"message": "queue is full", "type": "ServiceUnavailableError", "code": 503}})
SGLANG_ERROR = event({"object": "error", "message": "The request queue is full.", "type": "ServiceUnavailable", "param": None, "code": 503})
INTERNAL = event({"error": {"message": "engine died", "type": "InternalServerError", "code": 500}})


def status(n: int) -> Callable[[Writer, int], Awaitable[bool]]:
    """Answer with the error status ``n``."""

    async def send(writer: Writer, _tokens: int) -> bool:
        writer.write(json_answer(n, {"error": {"message": "told to", "type": "Told", "code": n}}))
        return True

    return send


def fixed(*events: bytes) -> Callable[[Writer, int], Awaitable[bool]]:
    """Answer with a stream of these events."""

    async def send(writer: Writer, _tokens: int) -> bool:
        writer.write(stream(*events, DONE) + END)
        return True

    return send


async def good(writer: Writer, tokens: int) -> bool:
    usage = event({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": tokens}})
    writer.write(stream(*[token()] * tokens, usage, DONE) + END)
    return True


async def half_character(writer: Writer, _tokens: int) -> bool:
    """Cut between the two bytes of a character; the HTTP framing is whole."""
    cut = token().index("é".encode()) + 1
    writer.write(stream(token(), token()[:cut]) + END)
    return True


async def early_close(writer: Writer, _tokens: int) -> bool:
    writer.write(stream(token()))
    return False


async def never(_writer: Writer, _tokens: int) -> bool:
    await asyncio.sleep(60)
    return False


async def cumulative(writer: Writer, body: dict[str, Any]) -> bool:
    """Answer as SGLang's own route does: each event repeats what came before, and the last one says why it is the last."""
    wanted = body["sampling_params"]["max_new_tokens"]
    events = []
    for n in range(1, wanted + 1):
        end = {"type": "length", "length": n} if n == wanted else None
        meta = {"finish_reason": end, "prompt_tokens": 8, "completion_tokens": n, "cached_tokens": 3}
        events.append(event({"text": "é" * n, "output_ids": [7] * n, "meta_info": meta}))
    writer.write(stream(*events, DONE) + END)
    return True


ACTS: dict[str, Callable[[Writer, int], Awaitable[bool]]] = {
    **{f"status_{n}": status(n) for n in (429, 503, 400, 404, 422)},
    "good": good,
    "error_vllm": fixed(VLLM_ERROR),
    "error_sglang": fixed(SGLANG_ERROR),
    "error_internal": fixed(INTERNAL),
    "overload_late": fixed(token(), VLLM_ERROR),
    "bad_json": fixed(token(), b"data: {not json\n\n"),
    "half_character": half_character,
    "early_close": early_close,
    "never": never,
}


async def drip_head(writer: Writer) -> bool:
    """A head that never ends, a byte at a time."""
    writer.write(b"HTTP/1.1 200 OK\r\nx: ")
    while not writer.is_closing():
        writer.write(b"y")
        await writer.drain()
        await asyncio.sleep(0.2)
    return False


async def drip(writer: Writer) -> bool:
    """A page that never ends, a byte at a time: no single wait for it is long."""
    writer.write(HEAD)
    while not writer.is_closing():
        writer.write(chunk(b" "))
        await writer.drain()
        await asyncio.sleep(0.2)
    return False


SEEN: list[str | None] = [None]


def page(path: str) -> bytes:
    if path.endswith("/v1/models") and "/v1/v1/" not in path:
        if path.startswith("/locked"):
            return json_answer(401, {"error": {"message": "who are you?"}})
        length = {} if path.startswith("/silent") else {"max_model_len": 4096}
        return json_answer(200, {"object": "list", "data": [{"id": "tiny", "object": "model", **length}]})
    return json_answer(200, {"authorization": SEEN[0]}) if path == "/seen" else json_answer(404, {"error": {"message": "no page"}})


async def serve(reader: asyncio.StreamReader, writer: Writer) -> None:
    try:
        keep = True
        while keep:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, _ = head.split(" ", 2)
            fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.split("\r\n")[1:])}
            if path.startswith("/drip"):
                keep = await (drip_head if path.startswith("/drip-head") else drip)(writer)
            elif method == "GET":
                writer.write(page(path))
            else:
                SEEN[0] = fields.get("authorization")
                body = json.loads(await reader.readexactly(int(fields["content-length"])))
                if path.endswith("/generate"):
                    keep = await cumulative(writer, body)
                else:
                    keep = await ACTS[MODES[body["max_tokens"] - 1]](writer, body["max_tokens"])
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
