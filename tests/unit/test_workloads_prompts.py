"""Prompts: the exact number of tokens, the same for one request whatever came before, no shared prefixes beyond chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from tests.unit.test_workloads_tokens import bpe
from workloads.prompts import RandomIds, TextWriter, corpus_words, random_ids
from workloads.tokens import ByteTokenizer, HFTokenizer, Ids, TokenSource

BYTES = ByteTokenizer()
SEEDS = st.integers(0, 2**63)


class PairTokenizer(ByteTokenizer):
    """A tokenizer of which every token is two characters: an odd number of characters costs a padding token more, so counts are even."""

    def encode(self, text: str, *, add_special: bool = False) -> Ids:
        return super().encode(text + " " * (len(text) % 2), add_special=add_special)


class GrowingTokenizer(ByteTokenizer):
    """A tokenizer whose counts do not add up over words: every tenth byte of a text costs one token more."""

    def encode(self, text: str, *, add_special: bool = False) -> Ids:
        plain = super().encode(text, add_special=add_special)
        return np.concatenate([plain, np.zeros(len(plain) // 10, dtype=np.int32)])


class ShrinkingTokenizer(ByteTokenizer):
    """The other way round: beyond 16 bytes, only every third byte is a token."""

    def encode(self, text: str, *, add_special: bool = False) -> Ids:
        plain = super().encode(text, add_special=add_special)
        return np.concatenate([plain[:16], plain[16::3]])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenSource]:
    path = tmp_path_factory.mktemp("tokenizers")
    return {
        "bytes": BYTES,
        "bpe": HFTokenizer(bpe(path / "a.json")),
        "small": HFTokenizer(bpe(path / "b.json", vocab=270)),
        "bos": HFTokenizer(bpe(path / "c.json", bos=True)),
    }


def test_the_corpus_is_words_of_our_own() -> None:
    words = corpus_words()
    assert len(words) == len(set(words)) > 300
    assert all(word.isascii() and word.islower() for word in words)


@given(SEEDS, st.integers(0, 10**6), st.integers(1, 300))
def test_random_ids_are_safe_and_exact(seed: int, request_id: int, count: int) -> None:
    ids = random_ids(BYTES.safe_ids, count, seed, request_id)
    assert ids.shape == (count,)
    assert ids.dtype == np.int32
    assert set(ids.tolist()) <= set(BYTES.safe_ids.tolist())


def test_random_ids_do_not_depend_on_order() -> None:
    prompts = RandomIds(BYTES.safe_ids, np.array([5, 6, 7]), 3)
    forward = [prompts.ids(i).tolist() for i in (0, 1, 2)]
    backward = [prompts.ids(i).tolist() for i in (2, 1, 0)]
    assert forward == backward[::-1]
    assert [len(ids) for ids in forward] == [5, 6, 7]


def test_random_ids_reach_the_whole_vocabulary_evenly() -> None:
    counts = np.bincount(random_ids(BYTES.safe_ids, 243 * 400, 1, 0), minlength=256)
    assert (counts[BYTES.safe_ids] > 280).all()  # mean 400, standard deviation 20: six of them
    assert counts.sum() == counts[BYTES.safe_ids].sum()


def test_no_two_prompts_share_a_block() -> None:
    heads = {tuple(random_ids(BYTES.safe_ids, 16, 1, i).tolist()) for i in range(500)}
    texts = {TextWriter(BYTES).write(64, 1, i)[:32] for i in range(500)}
    assert len(heads) == len(texts) == 500


@given(SEEDS, st.integers(0, 10**6), st.integers(1, 400))
def test_text_over_bytes_is_exact(seed: int, request_id: int, count: int) -> None:
    text = TextWriter(BYTES).write(count, seed, request_id)
    assert len(BYTES.encode(text)) == count


@pytest.mark.parametrize("name", ["bytes", "bpe", "small", "bos"])
@pytest.mark.parametrize("bos", [False, True])
def test_text_is_exact_under_every_tokenizer(sources: dict[str, TokenSource], name: str, bos: bool) -> None:
    tokens = sources[name]
    writer = TextWriter(tokens, bos=bos)
    least = 1 + (tokens.added_tokens if bos else 0)
    for request_id, count in enumerate([*range(least, least + 40), 100, 333, 1000]):
        text = writer.write(count, 9, request_id)
        assert len(tokens.encode(text, add_special=bos)) == count
        assert set(text) <= set("abcdefghijklmnopqrstuvwxyzIx .!")


def test_text_is_the_same_for_one_request_and_differs_between_seeds(sources: dict[str, TokenSource]) -> None:
    writer = TextWriter(sources["bpe"])
    assert writer.write(50, 1, 7) == TextWriter(sources["bpe"]).write(50, 1, 7)
    assert len({writer.write(50, seed, i) for seed in (1, 2) for i in (7, 8)}) == 4


def test_a_count_below_the_bos_rule_is_refused(sources: dict[str, TokenSource]) -> None:
    with pytest.raises(UsageError, match=r"input_tokens=1 of request 4: .*the shortest text has 2"):
        TextWriter(sources["bos"], bos=True).write(1, 1, 4)


def test_a_count_that_no_text_has_is_refused_not_approximated() -> None:
    writer = TextWriter(PairTokenizer())
    assert len(PairTokenizer().encode(writer.write(10, 1, 1))) == 10
    with pytest.raises(UsageError, match=r"input_tokens=11 of request 1: .*rounds of correction.*prompt\.impossible"):
        writer.write(11, 1, 1)


@pytest.mark.parametrize("tokens", [GrowingTokenizer(), ShrinkingTokenizer()])
def test_counts_that_do_not_add_up_over_words_are_corrected(tokens: TokenSource) -> None:
    writer = TextWriter(tokens)
    for request_id, count in enumerate((1, 5, 64, 300, 2000)):
        text = writer.write(count, 2, request_id)
        assert len(tokens.encode(text)) == count
        assert len(text.split()) > count // 12
