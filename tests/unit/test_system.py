"""What a model's config.json says about its vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.system import TEXT_PARTS, embedding_size


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 512}, 512),
        *(({name: {"vocab_size": 262_208}, "vision_config": {"vocab_size": 7}}, 262_208) for name in TEXT_PARTS),
        ({"vocab_size": 512, "text_config": {"vocab_size": 100}}, 512),  # both engines look at the top first
        ({"vocab_size": 0, "text_config": {"vocab_size": 100}}, 100),
        ({}, None),
        ({"vocab_size": "512"}, None),
        ({"vocab_size": True}, None),
        ({"text_config": [1]}, None),
    ],
)
def test_the_vocabulary_is_found_where_models_keep_it(config: dict[str, Any], size: int | None) -> None:
    assert embedding_size(config) == size


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["vocab_size", *TEXT_PARTS]), inner, max_size=3),
)


@given(st.dictionaries(st.sampled_from(["vocab_size", *TEXT_PARTS, "x"]), json_like))
def test_whatever_stands_there_it_is_a_count_or_nothing(config: dict[str, Any]) -> None:
    size = embedding_size(config)
    assert size is None or (type(size) is int and size > 0)
