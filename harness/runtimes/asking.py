"""Short requests to a server's own pages: readiness, models, version, metrics. Never through a proxy, never following a redirect."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from harness.errors import UsageError

MAX_BODY = 16 << 20
"""A metrics page is some hundred kB; more than 16 MiB is not one, and must not fill our memory."""


PATIENCE = 3
"""A page takes one socket wait, or a few when it is large; a server that drips bytes, head or body, must not hold up a run for ever."""

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    """Status and body of one answer."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the parsed body, or None when it is not JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


def split_url(base_url: str) -> tuple[bool, str, int, str]:
    """Return (tls, host, port, path without trailing slash) of an http(s) URL; UsageError ``bad_url``."""
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise UsageError.single(
            "bad_url",
            f"url={_without_userinfo(base_url)}: must be http(s)://host[:port][/path], without credentials, query or fragment",
            "write e.g. http://127.0.0.1:8000; keys belong into keys.toml of your configuration folder",
        )
    tls = parts.scheme == "https"
    return tls, parts.hostname, port or (443 if tls else 80), parts.path.rstrip("/")


def ask(
    base_url: str,
    path: str,
    *,
    timeout_s: float = 2.0,
    headers: Mapping[str, str] | None = None,
    post: Mapping[str, Any] | bytes | None = None,
) -> Reply | None:
    """GET ``base_url + path``, or POST ``post`` as JSON (bytes are JSON already); None when nothing answered in time.

    ``timeout_s`` is for each socket wait; what drips in for more than ``PATIENCE`` times as long is no answer either.
    """
    tls, host, port, prefix = split_url(base_url)
    connection: http.client.HTTPConnection
    if tls:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl.create_default_context())
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    kind = {"Content-Type": "application/json"} if post is not None else {}
    body = post if post is None or isinstance(post, bytes) else orjson.dumps(post)
    try:
        connection.request("GET" if post is None else "POST", prefix + path, body, {**kind, **(headers or {})})
        answer = _begun(connection.sock, timeout_s)
        said = _read(answer)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return Reply(answer.status, said) if said is not None else None


def distrust(base_url: str, timeout_s: float = 2.0) -> str | None:
    """Why the certificate of an https server is not trusted; None when it is, and when there is no such server to tell."""
    tls, host, port, _ = split_url(base_url)
    if not tls:
        return None
    try:
        with (
            socket.create_connection((host, port), timeout_s) as plain,
            ssl.create_default_context().wrap_socket(plain, server_hostname=host),
        ):
            return None
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError:
        return None


class _Patient(io.RawIOBase):
    """The read end of a socket, with one deadline for all waits together besides that of each; TimeoutError."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        self._sock, self._raw = sock, sock.makefile("rb", buffering=0)
        self._timeout_s, self._deadline = timeout_s, time.monotonic() + PATIENCE * timeout_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(min(self._timeout_s, left))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _begun(sock: socket.socket, timeout_s: float) -> http.client.HTTPResponse:
    """The answer on ``sock``, its head read; raises what http.client and sockets do."""
    answer = http.client.HTTPResponse(sock)
    answer.fp.close()
    answer.fp = io.BufferedReader(_Patient(sock, timeout_s))
    answer.begin()
    return answer


def _read(answer: http.client.HTTPResponse) -> bytes | None:
    """Return the body, None when it is longer than MAX_BODY."""
    body = bytearray()
    while part := answer.read1(_CHUNK):
        body += part
        if len(body) > MAX_BODY:
            return None
    if answer.length:  # closed before the length that it stated
        return None
    return bytes(body)


def ask_json(base_url: str, path: str, *, timeout_s: float = 2.0, headers: Mapping[str, str] | None = None) -> Any:
    """GET a JSON page; None when nothing answered, the status is not 200 or the body is not JSON."""
    reply = ask(base_url, path, timeout_s=timeout_s, headers=headers)
    return reply.json() if reply is not None and reply.status == 200 else None


def served_models(base_url: str, headers: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Entries of GET /v1/models, [] when there is no such list."""
    page = ask_json(base_url, "/v1/models", headers=headers)
    data = page.get("data") if isinstance(page, dict) else None
    return [m for m in data if isinstance(m, dict) and isinstance(m.get("id"), str)] if isinstance(data, list) else []


def _without_userinfo(url: str) -> str:
    """A password typed into a URL must not travel on in an error text."""
    scheme, at, rest = url.rpartition("@")
    return f"{scheme.split('//')[0]}//[redacted]@{rest}" if at else url
