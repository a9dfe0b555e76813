"""Asking a server how it counts: ``POST /tokenize``, which vLLM and SGLang answer alike."""

from __future__ import annotations

from typing import Any

from harness.errors import HostError
from harness.runtimes.asking import ask


def count_tokens(base_url: str, **asked: Any) -> int:
    """Tokens the server itself counts in a prompt or a chat. HostError ``server_silent``: a guess would make prompts of a wrong length."""
    reply = ask(base_url, "/tokenize", timeout_s=10.0, post=asked)
    page = reply.json() if reply is not None and reply.status == 200 else None
    count = page.get("count") if isinstance(page, dict) else None
    if not isinstance(count, int):
        status = reply.status if reply is not None else "no answer"
        raise HostError.single("server_silent", f"POST /tokenize: {status}, no token count", "read the server's log")
    return count
