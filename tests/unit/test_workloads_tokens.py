"""Token sources: which ids may be sent, exact counts, and no help from the network."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from harness.errors import UsageError
from workloads.prompts import corpus_words
from workloads.tokens import ByteTokenizer, HFTokenizer, TokenSource, load_tokenizer


def bpe(path: Path, *, bos: bool = False, vocab: int = 400) -> Path:
    """Train a byte-level BPE on our own corpus, as real servers' tokenizers are made, and write its tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([" ".join(corpus_words())], trainer)
    tokenizer.add_tokens([AddedToken("<plain>", special=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    # Servers' files often carry these; a source that obeyed them would miscount.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    bpe(path / "tokenizer.json")
    return path


def test_bytes_are_ids() -> None:
    tokens = ByteTokenizer()
    assert tokens.encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert tokens.decode([97, 0xC3, 0xA9, 0xFF]) == "aé\N{REPLACEMENT CHARACTER}"
    assert (tokens.vocab_size, tokens.added_tokens, len(tokens.safe_ids)) == (256, 0, 243)


@given(st.text())
def test_bytes_give_back_what_they_took_and_use_only_safe_ids(text: str) -> None:
    tokens = ByteTokenizer()
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert set(ids.tolist()) <= set(tokens.safe_ids.tolist())


def test_every_source_is_a_token_source(folder: Path) -> None:
    for name in ("bytes", str(folder), str(folder / "tokenizer.json")):
        source: TokenSource = load_tokenizer(name)
        assert source.safe_ids.min() >= 0
        assert source.safe_ids.max() < source.vocab_size
        assert len(source.digest) == 64


def test_specials_are_not_sent_and_plain_added_tokens_are(folder: Path) -> None:
    tokens = HFTokenizer(folder / "tokenizer.json")
    safe = set(tokens.safe_ids.tolist())
    assert safe == set(range(2, tokens.vocab_size))
    assert tokens.decode([tokens.vocab_size - 1]) == "<plain>"


def test_truncation_and_padding_of_the_file_are_ignored(folder: Path) -> None:
    tokens = HFTokenizer(folder / "tokenizer.json")
    assert len(tokens.encode("q" * 100)) > 16
    assert len(tokens.encode("a")) == 1


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[HFTokenizer, Tokenizer]:
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    plain.no_truncation()
    plain.no_padding()
    return HFTokenizer(folder / "tokenizer.json"), plain


@given(st.text(max_size=60), st.booleans())
def test_ids_are_those_of_the_library(both: tuple[HFTokenizer, Tokenizer], text: str, special: bool) -> None:
    """Encoding without offsets is faster and must change nothing."""
    ours, plain = both
    assert ours.encode(text, add_special=special).tolist() == plain.encode(text, add_special_tokens=special).ids


def test_the_models_own_size_limits_the_ids(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300}))
    assert load_tokenizer(str(tmp_path)).safe_ids.max() == 299
    assert load_tokenizer(str(tmp_path), vocab_limit=100).vocab_size == 100
    assert load_tokenizer(str(folder)).vocab_size > 300
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 290}}))
    assert load_tokenizer(str(tmp_path)).safe_ids.max() == 289


def test_a_bos_rule_is_counted(tmp_path: Path) -> None:
    tokens = HFTokenizer(bpe(tmp_path / "tokenizer.json", bos=True))
    assert tokens.added_tokens == 1
    assert tokens.encode("the mill", add_special=True).tolist() == [0, *tokens.encode("the mill").tolist()]


def test_the_digest_is_the_files(folder: Path) -> None:
    raw = (folder / "tokenizer.json").read_bytes()
    assert HFTokenizer(folder / "tokenizer.json").digest == hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("raw", [b"", b"{", b"{}", b"\xff", b"[1]"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(raw)
    with pytest.raises(UsageError, match=r"tokenizer\.unreadable"):
        load_tokenizer(str(tmp_path))


def test_a_missing_tokenizer_is_refused_without_looking_elsewhere(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "x.json"), "gpt2", ""):
        with pytest.raises(UsageError, match=r"tokenizer\.missing"):
            load_tokenizer(name)


def test_a_limit_that_leaves_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.no_ids"):
        HFTokenizer(folder / "tokenizer.json", vocab_limit=2)


def test_a_broken_config_beside_the_tokenizer_is_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    for content in ("{", "[]"):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(UsageError, match=r"tokenizer\.config"):
            load_tokenizer(str(tmp_path))
