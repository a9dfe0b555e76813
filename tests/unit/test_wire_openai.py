from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from harness.wire import PROTOCOLS
from harness.wire.contract import Ask
from harness.wire.decode import BodyDecoder, StreamDecoder


def ask(**changes: Any) -> Ask:
    base: dict[str, Any] = {"model": "tiny", "prompt": [5, 6], "max_tokens": 7, "ignore_eos": True, "seed": 3}
    return Ask(**(base | changes))


def test_completions_asks_for_everything_that_makes_tokens_countable() -> None:
    assert json.loads(PROTOCOLS["completions"].encode(ask())) == {
        "model": "tiny",
        "prompt": [5, 6],
        "return_token_ids": True,
        "max_tokens": 7,
        "temperature": 0.0,
        "seed": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def test_chat_sends_text_as_one_user_message() -> None:
    body = json.loads(PROTOCOLS["chat"].encode(ask(prompt="hé", max_tokens=None, ignore_eos=False)))
    assert body["messages"] == [{"role": "user", "content": "hé"}]
    assert not {"prompt", "return_token_ids", "max_tokens", "ignore_eos"} & body.keys()


def test_ids_from_numpy_encode_like_ids_from_a_list() -> None:
    protocol = PROTOCOLS["completions"]
    assert protocol.encode(ask(prompt=np.array([5, 6], dtype=np.int32))) == protocol.encode(ask())


def test_a_priority_is_sent_when_there_is_one() -> None:
    for api, prompt in (("completions", [5]), ("chat", "a")):
        assert "priority" not in json.loads(PROTOCOLS[api].encode(ask(prompt=prompt)))
        assert json.loads(PROTOCOLS[api].encode(ask(prompt=prompt, priority=0)))["priority"] == 0


@pytest.mark.parametrize(("api", "prompt"), [("chat", [1, 2]), ("completions", []), ("completions", "")])
def test_a_prompt_that_cannot_be_sent_is_refused_before_the_run(api: str, prompt: Any) -> None:
    with pytest.raises(UsageError, match="prompt_unsendable"):
        PROTOCOLS[api].encode(ask(prompt=prompt))


def test_the_content_type_chooses_the_decoder() -> None:
    protocol = PROTOCOLS["chat"]
    assert isinstance(protocol.decoder(stream=True), StreamDecoder)
    assert isinstance(protocol.decoder(stream=False), BodyDecoder)
    paths = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate"}
    assert {name: p.path for name, p in PROTOCOLS.items()} == paths
