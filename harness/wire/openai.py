"""The OpenAI-compatible protocols that vLLM, SGLang and most endpoints serve: completions and chat completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from harness.clock import NS_PER_MS
from harness.errors import Problem, UsageError
from harness.wire.contract import Ask, Decoder, Protocol_
from harness.wire.decode import BodyDecoder, StreamDecoder


@dataclass(slots=True)
class OpenAIProtocol:
    """One of the two routes. They differ in how the prompt is sent; what comes back is read by the same decoders."""

    name: str
    path: str
    prompt_fields: Callable[[Ask], dict[str, Any]]
    cumulative: bool = False

    def encode(self, ask: Ask) -> bytes:
        """Encode a streaming request as JSON; the same ask gives the same bytes. UsageError for a prompt that the route cannot take."""
        fields: dict[str, Any] = {"model": ask.model, **self.prompt_fields(ask)}
        if ask.max_tokens is not None:
            fields["max_tokens"] = ask.max_tokens
        fields["temperature"] = ask.temperature
        fields["seed"] = ask.seed
        if ask.priority is not None:
            fields["priority"] = ask.priority  # an extension of vLLM (lower is sooner) and SGLang: which way it counts is the server's own
        limits = {name: ns / NS_PER_MS for name, ns in (("ttft_ms", ask.ttft_ns), ("tbt_ms", ask.tbt_ns)) if ns is not None}
        if limits:
            fields["slo"] = limits  # an extension of our reference server: no engine seen so far takes one
        if ask.ignore_eos:
            fields["ignore_eos"] = True  # an extension of vLLM and SGLang: not sent unless asked for
        fields["stream"] = True
        fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)

    def decoder(self, *, stream: bool) -> Decoder:
        """Make a decoder for one response."""
        return StreamDecoder() if stream else BodyDecoder()


def _completions_prompt(ask: Ask) -> dict[str, Any]:
    # vLLM lists the ids of each event when asked; SGLang ignores the key and is counted by usage.
    return {"prompt": sendable_prompt(ask), "return_token_ids": True}


def sendable_prompt(ask: Ask) -> Any:
    """The prompt as orjson can write it. UsageError ``prompt_unsendable`` for one that holds nothing."""
    if len(ask.prompt) == 0:
        raise _bad_prompt("prompt is empty: the servers answer 400", "give every request at least one token")
    return ask.prompt if isinstance(ask.prompt, str | np.ndarray) else list(ask.prompt)


def _chat_prompt(ask: Ask) -> dict[str, Any]:
    if not isinstance(ask.prompt, str):
        what = f"prompt is {len(ask.prompt)} token ids: the chat route takes text only"
        raise _bad_prompt(what, "use api: completions, or a text prompt source")
    return {"messages": [{"role": "user", "content": ask.prompt}]}


def _bad_prompt(what: str, remedy: str) -> UsageError:
    return UsageError(Problem("prompt_unsendable", what, remedy))


OPENAI: dict[str, Protocol_] = {
    "completions": OpenAIProtocol("completions", "/v1/completions", _completions_prompt),
    "chat": OpenAIProtocol("chat", "/v1/chat/completions", _chat_prompt),
}
"""The two routes by the name a manifest uses (``workload.api``)."""
