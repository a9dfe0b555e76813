"""Response bytes: HTTP heads, chunked server-sent events, whole JSON bodies. Constant parts are built once a request, not once a token."""

from __future__ import annotations

from typing import Any

import orjson

from harness.reference.api import Asked
from harness.reference.tokens import EOS_ID, VOCAB_SIZE

_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable",
}  # fmt: skip

_TEXT = tuple("" if i == EOS_ID else bytes([i]).decode("utf-8", errors="replace") for i in range(VOCAB_SIZE))
_TEXT_JSON = tuple(orjson.dumps(text) for text in _TEXT)

LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def whole(status: int, body: bytes, *, keep_alive: bool, content_type: str = "application/json") -> bytes:
    """A complete response."""
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + (b"\r\n" if keep_alive else b"connection: close\r\n\r\n") + body


def stream_head(*, keep_alive: bool) -> bytes:
    """Head of a chunked event stream."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n"
    return head + (b"\r\n" if keep_alive else b"connection: close\r\n\r\n")


def error_event(body: bytes) -> bytes:
    """An error in the middle of a stream, as real servers send it; the end mark and the last chunk do not follow."""
    return chunk(b"data: " + body + b"\n\n")


def chunk(data: bytes) -> bytes:
    """Frame ``data`` as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Reply:
    """Builds the bytes of one answer from its tokens, streamed or whole."""

    __slots__ = ("_asked", "_base", "_open", "_tokens", "cached_tokens")

    def __init__(self, asked: Asked, request_id: str, created: int, model: str) -> None:
        self._asked = asked
        self._tokens: list[int] = []
        self.cached_tokens = 0
        """prompt tokens that came from the prefix store; set before the first token"""
        kind = "chat.completion.chunk" if asked.chat else "text_completion"
        self._base: dict[str, Any] = {"id": request_id, "object": kind, "created": created, "model": model}
        self._open = b"data: " + orjson.dumps(self._base)[:-1] + b","

    def stream(self, token: int, finish: str | None) -> bytes:
        """Chunks for one more token; with ``finish`` the usage event, the end mark and the last chunk follow in the same write."""
        first = not self._tokens
        self._tokens.append(token)
        parts = []
        if first and self._asked.chat:
            parts.append(chunk(self._event(b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}', 0)))
        parts.append(chunk(self._event(self._choice(token, finish), len(self._tokens))))
        if finish is not None:
            if self._asked.include_usage:
                parts.append(chunk(self._open + b'"choices":[],"usage":' + orjson.dumps(self._usage()) + b"}\n\n"))
            parts.append(chunk(DONE) + LAST_CHUNK)
        return b"".join(parts)

    def collect(self, token: int) -> None:
        """Keep one more token of an answer that is not streamed."""
        self._tokens.append(token)

    def body(self, finish: str) -> bytes:
        """JSON of a whole answer."""
        text = "".join([_TEXT[token] for token in self._tokens])
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if self._asked.chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if self._asked.return_ids:
            choice["token_ids"] = self._tokens
        kind = "chat.completion" if self._asked.chat else "text_completion"
        return orjson.dumps({**self._base, "object": kind, "choices": [choice], "usage": self._usage()})

    def _event(self, choice: bytes, completion: int) -> bytes:
        usage = b""
        if self._asked.continuous_usage:
            prompt = self._asked.prompt_tokens
            # Said once, with the first token: a client that closes the stream after its last wanted token never sees the final usage.
            cached = b',"prompt_tokens_details":{"cached_tokens":%d}' % self.cached_tokens if completion == 1 else b""
            counts = (prompt, prompt + completion, completion, cached)
            usage = b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % counts
        return b'%b"choices":[%b]%b}\n\n' % (self._open, choice, usage)

    def _choice(self, token: int, finish: str | None) -> bytes:
        reason = b"null" if finish is None else b'"%b"' % finish.encode()
        ids = b',"token_ids":[%d]' % token if self._asked.return_ids else b""
        if self._asked.chat:
            return b'{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":%b%b}' % (_TEXT_JSON[token], reason, ids)
        return b'{"index":0,"text":%b,"logprobs":null,"finish_reason":%b%b}' % (_TEXT_JSON[token], reason, ids)

    def _usage(self) -> dict[str, Any]:
        prompt, completion = self._asked.prompt_tokens, len(self._tokens)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
