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


def template_tokens(base_url: str) -> int:
    """Tokens that the served model's chat template puts around one user message; HostError ``server_silent``.

    0 when the server refuses to count a chat (400): the model has no template, and chat requests would be refused alike.
    """
    chat = {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": True}
    reply = ask(base_url, "/tokenize", timeout_s=10.0, post=chat)
    if reply is not None and reply.status == 400:
        return 0
    return max(0, count_tokens(base_url, **chat) - count_tokens(base_url, prompt="x", add_special_tokens=False))
