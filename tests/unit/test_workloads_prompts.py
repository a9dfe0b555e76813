"""Prompts: the exact number of tokens, the same whatever came before, shared as the trace says and otherwise no more than chance."""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from tests.unit.test_workloads_tokens import bpe
from workloads.plan import WorkloadPlan
from workloads.prompts import NotedPrompts, corpus_words, dataset_lengths, dataset_rows, dataset_texts, make_prompts
from workloads.prompts.atoms import find_atoms
from workloads.prompts.kept import Kept
from workloads.prompts.layouts import HistoryLayout
from workloads.prompts.streams import Keys, Numbering, draw
from workloads.prompts.text import TextWriter
from workloads.schedule import Blocks, Int64, Ragged, Turns
from workloads.tokens import ByteTokenizer, HFTokenizer, Ids, TokenSource
from workloads.traces import load_trace

BYTES = ByteTokenizer()
SEEDS = st.integers(0, 2**63)
IDS64 = st.integers(0, 2**64 - 1)
NAMES = ["bytes", "bpe", "small", "bos", "limited"]


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


class RareTokenizer(ByteTokenizer):
    """A tokenizer of which one pair of letters in the middle of long texts merges, which no short trial shows."""

    def encode(self, text: str, *, add_special: bool = False) -> Ids:
        ids = super().encode(text, add_special=add_special)
        return ids if len(text) <= 100 else np.concatenate([ids[:99], ids[100:]])


class LargeTokenizer(ByteTokenizer):
    """As many ids as a usual model has, with gaps between them."""

    def __init__(self) -> None:
        self.safe_ids = np.arange(7, 96_007, 3, dtype=np.int32)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TokenSource]:
    path = tmp_path_factory.mktemp("tokenizers")
    return {
        "bytes": BYTES,
        "bpe": HFTokenizer(bpe(path / "a.json")),
        "small": HFTokenizer(bpe(path / "b.json", vocab=270)),
        "bos": HFTokenizer(bpe(path / "c.json", bos=True, vocab=1000)),
        "limited": HFTokenizer(bpe(path / "d.json", vocab=1000), vocab_limit=300),
    }


def plan(**changes: Any) -> WorkloadPlan:
    prompts = {key: changes.pop(key) for key in ("source", "sharing", "dataset") if key in changes}
    base: dict[str, Any] = {"trace": None, "arrivals": {"process": "trace"}, "output": {"control": "natural"}, "horizon_s": 1, "seed": 5}
    return WorkloadPlan.model_validate(base | {"prompts": prompts} | changes)


def make(lengths: Sequence[int], tokens: TokenSource = BYTES, **changes: Any) -> NotedPrompts:
    given_: dict[str, Any] = {k: changes.pop(k) for k in ("blocks", "turns", "answers", "texts", "source_row") if k in changes}
    bos = changes.pop("bos", False)
    return make_prompts(plan(**changes), tokens, np.array(lengths, dtype=np.int64), bos=bos, **given_)


def rows_of(prompts: NotedPrompts, count: int) -> list[list[int]]:
    return [prompts.ids(i).tolist() for i in range(count)]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def blocks(rows: Sequence[Sequence[int]], size: int, rounding: Any = "ceil") -> Blocks:
    return Blocks(Ragged.of(rows, np.uint64), size, rounding)


def turns(extends: Sequence[int]) -> Turns:
    count = len(extends)
    none = np.full(count, -1, dtype=np.int64)
    return Turns(none, none, Ragged.of([[]] * count, np.int64), none, np.array(extends, dtype=np.int64), "included")


def test_the_corpus_is_words_of_our_own() -> None:
    words = corpus_words()
    assert len(words) == len(set(words)) > 300
    assert all(word.isascii() and word.islower() for word in words)


# --- streams -------------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(IDS64, st.integers(0, 20)), min_size=1, max_size=6), st.integers(1, 2**32))
def test_joined_streams_are_the_streams_joined(parts: list[tuple[int, int]], bound: int) -> None:
    keys = np.array([k for k, _ in parts], dtype=np.uint64)
    counts = np.array([c for _, c in parts], dtype=np.int64)
    alone = [draw(keys[j : j + 1], np.array([20]), bound)[: counts[j]] for j in range(len(parts))]
    joined = draw(keys, counts, bound)
    assert joined.tolist() == np.concatenate(alone).tolist()
    assert ((joined >= 0) & (joined < bound)).all()


def test_streams_are_splitmix64() -> None:
    """The first outputs published for seed 0; ours start one step later, and keep the upper half."""
    found = draw(np.array([0x9E3779B97F4A7C15], dtype=np.uint64), np.array([3]), 2**32)
    assert [hex(value) for value in found.tolist()] == ["0xe220a839", "0x6e789e6a", "0x6c45d18"]


def test_keys_never_change() -> None:
    """A change here is another workload under the same manifest: raise the recipe's format number and say so in the changelog."""
    keys = Keys(7, "block")(np.array([0, 1, 2**64 - 1], dtype=np.uint64))
    assert keys.tolist() == [10475274675429186794, 2906561199309563185, 2546709258937058903]


def test_ids_of_64_bits_are_never_truncated() -> None:
    """Ids that agree in their low 32 bits, or as float64, are different prefixes (the fault of dynamo#12046)."""
    pairs = [(5, 5 + 2**32), (2**63, 2**63 + 1), (2**64 - 1, 2**64 - 2), (2**53, 2**53 + 1), (0, 2**63)]
    for a, b in pairs:
        first, second = rows_of(make([64, 64], sharing="as_trace", blocks=blocks([[a], [b]], 64)), 2)
        assert common(first, second) < 8


@given(st.integers(2, 5000), st.integers(2, 300), SEEDS)
def test_numbers_are_unique_and_least_in_width(count: int, base: int, seed: int) -> None:
    numbering = Numbering.of(count, base, seed)
    some = {tuple(numbering.symbols(i)) for i in {*range(0, count, max(1, count // 50)), count - 1}}
    assert len(some) == len({*range(0, count, max(1, count // 50)), count - 1})
    assert all(0 <= digit < base for symbols in some for digit in symbols)
    assert base**numbering.width >= count
    assert numbering.width == 1 or base ** (numbering.width - 1) < count


def test_one_symbol_numbers_nothing() -> None:
    assert Numbering.of(10, 1, 3).symbols(4) == []


# --- cache-busting -------------------------------------------------------------------------------------------------------------------


@given(SEEDS, st.lists(st.integers(1, 300), min_size=1, max_size=20))
def test_random_ids_are_safe_and_exact(seed: int, lengths: list[int]) -> None:
    prompts = make(lengths, seed=seed)
    for i, count in enumerate(lengths):
        ids = prompts.ids(i)
        assert (ids.shape, ids.dtype) == ((count,), np.int32)
        assert set(ids.tolist()) <= set(BYTES.safe_ids.tolist())
        assert prompts.text(i) is None


def test_prompts_do_not_depend_on_order_or_process() -> None:
    for source in ("random-ids", "text"):
        prompts = make([5, 6, 7], source=source)
        forward = rows_of(prompts, 3)
        again = pickle.loads(pickle.dumps(prompts))  # noqa: S301 - our own bytes
        assert [again.ids(i).tolist() for i in (2, 1, 0)] == forward[::-1]


def test_random_ids_reach_the_whole_vocabulary_evenly() -> None:
    counts = np.bincount(make([243 * 400]).ids(0), minlength=256)
    assert (counts[BYTES.safe_ids] > 280).all()  # mean 400, standard deviation 20: six of them
    assert counts.sum() == counts[BYTES.safe_ids].sum()


def test_no_two_prompts_share_more_than_their_number() -> None:
    """500 prompts over 243 ids need two tokens for a number; over 32,000 ids, the first tells them apart."""
    heads = {tuple(row[:2]) for row in rows_of(make([16] * 500), 500)}
    firsts = [row[0] for row in rows_of(make([16] * 500), 500)]
    assert len(heads) == 500
    assert max(firsts.count(first) for first in set(firsts)) <= 3  # 500 over 243: as even as can be

    assert len({row[0] for row in rows_of(make([4] * 500, LargeTokenizer()), 500)}) == 500


def test_numbers_of_different_seeds_do_not_line_up() -> None:
    """Replicates that share a server must not meet each other's prompts in its cache."""
    first, second = (rows_of(make([16] * 300, seed=seed), 300) for seed in (1, 2))
    assert sum(tuple(row[:4]) in {tuple(other[:4]) for other in first} for row in second) == 0


def test_text_is_numbered_too(sources: dict[str, TokenSource]) -> None:
    for name in ("bytes", "bpe"):
        prompts = make([40] * 400, sources[name], source="text")
        assert len({" ".join((prompts.text(i) or "").split()[:2]) for i in range(400)}) == 400


def test_none_means_none_within_a_session_and_whatever_the_blocks_say() -> None:
    same = {"blocks": blocks([[1, 2], [1, 2]], 16), "turns": turns([-1, 0]), "answers": np.array([3, 3])}
    first, second = rows_of(make([32, 32], sharing="none", **same), 2)
    assert common(first, second) < 1


def test_prompts_too_short_for_a_number_are_counted() -> None:
    assert make([1, 9, 1, *[9] * 300]).notes == ("2 of 303 prompts are too short to be told apart by 243 symbols: some may be equal.",)
    assert make([9] * 300).notes == ()
    assert "too short" in make([3] * 300, source="text").notes[0]


# --- blocks --------------------------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=5), st.integers(0, 20)), min_size=2, max_size=6),
    st.integers(1, 5),
    st.sampled_from(["ceil", "floor"]),
    SEEDS,
)
def test_rows_share_what_their_ids_say(rows: list[tuple[list[int], int]], size: int, rounding: str, seed: int) -> None:
    """Exactly the agreeing blocks, cut where a row ends; beyond them only what chance gives, which 32,000 ids make a rarity."""

    lengths = [max(1, min(extra, len(ids) * size) if rounding == "ceil" else len(ids) * size + extra % size) for ids, extra in rows]
    made = rows_of(
        make(lengths, LargeTokenizer(), seed=seed, sharing="as_trace", blocks=blocks([ids for ids, _ in rows], size, rounding)), len(rows)
    )
    assert [len(row) for row in made] == lengths
    for a in range(len(rows)):
        for b in range(a):
            agreed = common(rows[a][0], rows[b][0]) * size
            least = min(agreed, lengths[a], lengths[b])
            assert made[a][:least] == made[b][:least]
            assert common(made[a], made[b]) <= least + 2


def test_a_block_partial_in_one_row_and_full_in_another_is_one_block() -> None:
    """aiperf#1219 aborts here."""
    short, long, cut = rows_of(make([20, 40, 36], sharing="as_trace", blocks=blocks([[9, 4], [9, 4, 7], [9, 4, 7]], 16)), 3)
    assert (short, cut) == (long[:20], long[:36])


def test_under_floor_the_tail_is_the_requests_own() -> None:
    one, two = rows_of(make([40, 40], sharing="as_trace", blocks=blocks([[9, 4], [9, 4]], 16, "floor")), 2)
    assert 32 <= common(one, two) < 36


def test_a_row_without_ids_is_its_own_and_an_id_is_the_same_in_any_place() -> None:
    plain, first, second = rows_of(make([12, 12, 12], sharing="as_trace", blocks=blocks([[], [1, 2, 3], [3, 2, 1]], 4)), 3)
    assert len(plain) == 12
    assert first[4:8] == second[4:8]
    assert first[:4] == second[8:]


def test_different_ids_begin_alike_as_often_as_chance_has_it() -> None:
    made = rows_of(make([1] * 4000, sharing="as_trace", blocks=blocks([[i] for i in range(4000)], 1)), 4000)
    counts = np.bincount([row[0] for row in made], minlength=256)[BYTES.safe_ids]
    chi2 = float(((counts - 4000 / 243) ** 2 / (4000 / 243)).sum())
    assert 150 < chi2 < 350  # 242 degrees of freedom: mean 242, standard deviation 22


def test_prompts_that_do_not_fit_their_blocks_are_counted() -> None:
    given_ = blocks([[1, 2], [1, 2], [1, 2]], 16)
    made = make([16, 32, 40], sharing="as_trace", blocks=given_)
    assert [len(row) for row in rows_of(made, 3)] == [16, 32, 40]
    assert [note.split()[:3] for note in made.notes] == [["1", "prompts", "are"], ["1", "prompts", "are"]]
    assert make([17, 32, 31], sharing="as_trace", blocks=given_).notes == ()
    assert make([33, 47, 32], sharing="as_trace", blocks=Blocks(given_.ids, 16, "floor")).notes == ()
    assert len(make([31, 48, 32], sharing="as_trace", blocks=Blocks(given_.ids, 16, "floor")).notes) == 2


# --- history -------------------------------------------------------------------------------------------------------------------------


def history(lengths: Sequence[int], answers: Sequence[int], extends: Sequence[int], **changes: Any) -> NotedPrompts:
    return make(lengths, sharing="as_trace", turns=turns(extends), answers=np.array(answers), **changes)


def test_a_turn_begins_with_the_earlier_prompt_and_its_answer() -> None:
    made = history([10, 30, 60, 30], [8, 12, 5, 5], [-1, 0, 1, 0])
    first, second, third, branch = rows_of(made, 4)
    assert (second[:10], third[:30]) == (first, second)
    assert branch[:18] == second[:18]  # two turns that answer the same: prompt and planned answer are shared
    assert common(branch, second) < 21
    assert made.notes == ()


def test_a_turn_too_short_for_the_answer_cuts_it_and_for_the_prompt_begins_anew() -> None:
    made = history([10, 14, 9, 10], [8, 3, 3, 3], [-1, 0, 0, 0])
    first, cut, anew, again = rows_of(made, 4)
    assert cut[:10] == first
    assert common(anew, first) < 4
    assert again == first
    assert [note.split(":")[0] for note in made.notes] == [
        "1 turns are shorter than the prompt they extend",
        "2 turns are shorter than the prompt and answer they extend",
    ]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 10), st.integers(-1, 8)), min_size=1, max_size=8), SEEDS)
def test_histories_have_exact_lengths_and_end(rows: list[tuple[int, int, int]], seed: int) -> None:
    """Also for references that point forward, to themselves, or in a circle."""
    lengths, answers, extends = (list(column) for column in zip(*rows, strict=True))
    extends = [e if e < len(rows) else -1 for e in extends]
    made = rows_of(history(lengths, answers, extends, seed=seed), len(rows))
    assert [len(row) for row in made] == lengths
    for i, parent in enumerate(extends):
        if parent >= 0 and lengths[parent] < lengths[i]:
            assert made[i][: lengths[parent]] == made[parent]


def test_a_long_chain_costs_no_more_than_its_tokens() -> None:
    """Segments of a turn number twice its depth: nothing of an earlier turn is made again to find them."""
    count = 500
    layout = HistoryLayout(np.arange(1, count + 1) * 10, np.full(count, 4), np.arange(-1, count - 1), 3)
    keys, counts = layout.segments(count - 1)
    assert (len(keys), int(counts.sum())) == (2 * count, 10 * count)


def test_blocks_win_over_history_and_a_plan_can_decline_it() -> None:
    both = {"blocks": blocks([[1], [2]], 16), "turns": turns([-1, 0]), "answers": np.array([2, 2]), "sharing": "as_trace"}
    first, second = rows_of(make([16, 16], **both), 2)
    assert common(first, second) < 4
    declined = {"turns": turns([-1, 0]), "answers": np.array([2, 2]), "sharing": "as_trace", "sessions": {"history": "none"}}
    first, second = rows_of(make([16, 40], **declined), 2)
    assert common(first, second) < 1
    carried = declined | {"sessions": {"history": "carry"}}
    first, second = rows_of(make([16, 40], **carried), 2)
    assert second[:16] == first
    with pytest.raises(ValueError, match="planned lengths"):
        make([16], turns=turns([-1]), sharing="as_trace")


# --- text ----------------------------------------------------------------------------------------------------------------------------


def writer(tokens: TokenSource, *, bos: bool = False, seed: int = 9) -> TextWriter:
    return TextWriter(tokens, seed=seed, requests=1000, bos=bos)


@given(SEEDS, st.integers(0, 999), st.integers(1, 400))
def test_text_over_bytes_is_exact(seed: int, request_id: int, count: int) -> None:
    text, ids = writer(BYTES, seed=seed).write(count, request_id)
    assert BYTES.encode(text).tolist() == ids.tolist()
    assert len(ids) == count


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bos", [False, True])
def test_text_is_exact_under_every_tokenizer(sources: dict[str, TokenSource], name: str, bos: bool) -> None:
    tokens = sources[name]
    made = writer(tokens, bos=bos)
    least = 1 + (tokens.added_tokens if bos else 0)
    assert made.least == least
    for request_id, count in enumerate([*range(least, least + 40), 100, 333, 1000]):
        text, ids = made.write(count, request_id)
        assert tokens.encode(text, add_special=bos).tolist() == ids.tolist()
        assert (len(ids), int(ids.max()) < tokens.vocab_size) == (count, True)
        assert set(text) <= set("abcdefghijklmnopqrstuvwxyzIx .!")
        assert text == text.strip()  # chat templates cut blanks around a message


def test_text_is_the_same_for_one_request_and_differs_between_seeds(sources: dict[str, TokenSource]) -> None:
    assert writer(sources["bpe"]).write(50, 7)[0] == writer(sources["bpe"]).write(50, 7)[0]
    assert len({writer(sources["bpe"], seed=seed).write(50, i)[0] for seed in (1, 2) for i in (7, 8)}) == 4


def test_counts_below_the_bos_rule_are_refused_together(sources: dict[str, TokenSource]) -> None:
    with pytest.raises(UsageError, match=r"input_tokens=1 of request 1: .*the shortest text has 2") as caught:
        make([5, 1, 1], sources["bos"], source="text", bos=True)
    assert len(caught.value.problems) == 2
    with pytest.raises(UsageError, match="the shortest text has 2"):
        writer(sources["bos"], bos=True).write(1, 4)


def test_a_count_that_no_text_has_is_refused_not_approximated() -> None:
    made = writer(PairTokenizer())
    assert len(made.write(10, 1)[1]) == 10
    with pytest.raises(UsageError, match=r"input_tokens=11 of request 1: .*rounds of correction.*prompt\.impossible"):
        made.write(11, 1)


@pytest.mark.parametrize("tokens", [GrowingTokenizer(), ShrinkingTokenizer()])
def test_counts_that_do_not_add_up_over_words_are_corrected(tokens: TokenSource) -> None:
    for request_id, count in enumerate((1, 5, 64, 300, 2000)):
        text, _ = writer(tokens).write(count, request_id)
        assert len(tokens.encode(text)) == count
        assert len(text.split()) > count // 12


def test_a_vocabulary_without_our_words_is_refused(sources: dict[str, TokenSource]) -> None:
    class Tiny(ByteTokenizer):
        vocab_size = 97

    with pytest.raises(UsageError, match=r"with 97 ids, lacks \[prompt\.no_words\]"):
        make([5], Tiny(), source="text")


# --- text that is shared -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bos", [False, True])
def test_shared_texts_share_token_by_token(sources: dict[str, TokenSource], name: str, bos: bool) -> None:
    tokens = sources[name]
    added = tokens.added_tokens if bos else 0
    given_ = blocks([[1, 2, 3], [1, 2], [1, 2**63 + 1, 9], [1, 2]], 16)
    made = make([40 + added, 32 + added, 40 + added, 20 + added], tokens, source="text", sharing="as_trace", blocks=given_, bos=bos)
    rows = rows_of(made, 4)
    for i, row in enumerate(rows):
        text = made.text(i) or ""
        assert tokens.encode(text, add_special=bos).tolist() == row
        assert text == text.strip()
        assert set(row[added:]) <= set(tokens.safe_ids.tolist())
    assert [len(row) - added for row in rows] == [40, 32, 40, 20]
    assert (rows[1], rows[3]) == (rows[0][: 32 + added], rows[0][: 20 + added])
    assert 16 <= common(rows[0], rows[2]) - added < 24


def test_histories_can_be_text(sources: dict[str, TokenSource]) -> None:
    made = history([10, 30, 60], [8, 12, 5], [-1, 0, 1], source="text", tokens=sources["bos"], api="chat")
    first, second, third = (made.text(i) or "" for i in range(3))
    assert second.startswith(first)
    assert third.startswith(second)


def test_words_are_preferred_then_letters_then_digits(sources: dict[str, TokenSource]) -> None:
    kinds = {name: "".join(find_atoms(sources[name]).joined) for name in NAMES}
    assert kinds["bos"].startswith(" ")
    assert kinds["bytes"].startswith("abc")
    assert kinds["small"] == "0123456789"


def test_a_tokenizer_without_stable_pieces_is_refused() -> None:
    with pytest.raises(UsageError, match=r"prompt\.no_stable_text"):
        make([40], PairTokenizer(), source="text", sharing="as_trace", blocks=blocks([[1]], 64))


def test_texts_that_do_not_encode_block_by_block_are_named() -> None:
    given_ = blocks([[1], [1], [2]], 256)
    with pytest.raises(UsageError, match=r"request=1: .*prompt\.unstable") as caught:
        make([90, 120, 130], RareTokenizer(), source="text", sharing="as_trace", blocks=given_)
    assert [problem.what.split(":")[0] for problem in caught.value.problems] == ["request=1", "request=2"]


# --- data sets -----------------------------------------------------------------------------------------------------------------------

DATASET = {"format": "azure-2023", "name": "texts", "sha256": "0" * 64}
TEXTS = ["one", "twenty", "three four", "é"]


def dataset(count: int, texts: Sequence[str] = TEXTS, tokens: TokenSource = BYTES, **changes: Any) -> tuple[NotedPrompts, Int64]:
    source_row = np.array(changes.pop("source_row", range(count)), dtype=np.int64)
    with_dataset = {"source": "dataset", "dataset": DATASET} | changes
    content = dataset_lengths(plan(**with_dataset), tokens, texts, source_row, bos=False)
    return make(content.tolist(), tokens, texts=texts, source_row=source_row, **with_dataset), content


def test_the_traces_own_texts_are_sent_by_row() -> None:
    prompts, content = dataset(3, source_row=[2, 0, 3], trace=DATASET)
    assert [prompts.text(i) for i in range(3)] == ["three four", "one", "é"]
    assert content.tolist() == [10, 3, 2] == [len(prompts.ids(i)) for i in range(3)]
    assert "share what its texts share" in prompts.notes[0]


def test_texts_of_another_set_are_drawn_once_each() -> None:
    texts = [f"text {i}" for i in range(50)]
    prompts, _ = dataset(30, texts)
    drawn = [prompts.text(i) for i in range(30)]
    assert len(set(drawn)) == 30
    assert drawn != [dataset(30, texts, seed=6)[0].text(i) for i in range(30)]
    assert drawn == [dataset(30, texts)[0].text(i) for i in range(30)]


def test_too_few_texts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"4 texts for 5 requests.*prompt\.dataset_rows"):
        dataset_rows(plan(source="dataset", dataset=DATASET), np.arange(5), 4)
    with pytest.raises(UsageError, match=r"prompt\.dataset_rows"):
        dataset_rows(plan(source="dataset", dataset=DATASET, trace=DATASET), np.array([7]), 4)
    with pytest.raises(UsageError, match="2 texts for 3 requests"):
        dataset_rows(plan(source="dataset", dataset=DATASET, trace=DATASET), np.array([0, 1, 0]), 4)


def test_a_length_other_than_the_texts_is_refused() -> None:
    prompts = make([4], source="dataset", dataset=DATASET, trace=DATASET, texts=["one"], source_row=np.array([0]))
    with pytest.raises(UsageError, match=r"input_tokens=4 of request 0: its text in the data set has 3 tokens"):
        prompts.ids(0)
    with pytest.raises(ValueError, match="texts"):
        make([4], source="dataset", dataset=DATASET)


def test_a_text_with_an_id_that_the_model_lacks_is_refused() -> None:
    class Small(ByteTokenizer):
        vocab_size = 128

    prompts, _ = dataset(1, ["é"], Small(), trace=DATASET)
    with pytest.raises(UsageError, match=r"id 195, and the model has 128 ids"):
        prompts.ids(0)


def test_a_data_set_and_the_trace_read_from_it_agree_row_by_row(tmp_path: Path) -> None:
    talk = [
        {"from": "human", "value": "one"},
        {"from": "gpt", "value": "two"},
        {"from": "human", "value": ""},
        {"from": "gpt", "value": "skipped"},
        {"from": "human", "value": "three"},
        {"from": "gpt", "value": "four"},
    ]
    raw = json.dumps([{"id": "a", "conversations": talk}, {"id": "b", "conversations": talk[4:]}]).encode()
    (tmp_path / "talks.json").write_bytes(raw)
    source = {"format": "sharegpt", "name": "talks", "sha256": hashlib.sha256(raw).hexdigest(), "options": {"tokenizer": "bytes"}}
    of_set = plan(source="dataset", dataset=source, trace=source)
    assert of_set.prompts.dataset is not None
    texts, trace = dataset_texts(of_set.prompts.dataset, [tmp_path]), load_trace(of_set.prompts.dataset, [tmp_path])
    content = dataset_lengths(of_set, BYTES, texts, trace.source_row, bos=False)
    assert content.tolist() == trace.input_tokens.tolist()
    prompts = make(content.tolist(), source="dataset", dataset=source, trace=source, texts=texts, source_row=trace.source_row)
    assert [prompts.text(i) for i in range(len(trace))] == ["one", "three", "three"]


def test_a_format_without_texts_is_refused() -> None:
    with pytest.raises(UsageError, match=r"format=azure-2023.*no texts.*prompt\.dataset_format"):
        dataset_texts(plan(source="dataset", dataset=DATASET).prompts.dataset or pytest.fail("no data set"), ())


# --- what is kept --------------------------------------------------------------------------------------------------------------------


def test_what_is_kept_has_a_bound_and_stays_behind() -> None:
    made: list[int] = []

    def _make(i: int) -> tuple[str, Ids]:
        made.append(i)
        return "abcd", np.zeros(4, dtype=np.int32)

    kept = Kept(room=2 * (sys.getsizeof("abcd") + 16))
    for i in (0, 1, 2, 0, 1, 2):
        kept.get(i, _make)
    assert made == [0, 1, 2, 2]
    pickle.loads(pickle.dumps(kept)).get(0, _make)  # noqa: S301 - our own bytes
    assert made[-1] == 0


def test_what_is_kept_counts_as_the_memory_it_takes_once_it_was_sent() -> None:
    made: list[int] = []

    def _make(i: int) -> tuple[str, Ids]:
        made.append(i)
        return "".join(["語"] * 100), np.zeros(1, dtype=np.int32)

    text, _ = _make(0)
    orjson.dumps(text)
    kept = Kept(room=sys.getsizeof(text))
    for _ in range(2):
        kept.get(1, _make)
    assert made == [0, 1, 1]
    assert sys.getsizeof(text) > 5 * len(text)
