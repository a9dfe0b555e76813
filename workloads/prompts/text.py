"""Text prompts with an exact token count, words of our own drawn independently rather than cut from a running text: two prompts then share
no beginning beyond chance, so a server's prefix cache finds nothing that the plan did not put there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources

import numpy as np

from harness.errors import Problem, UsageError
from workloads.prompts.ids import short_notes
from workloads.prompts.kept import Kept, Made
from workloads.prompts.streams import Keys, Numbering, draw
from workloads.schedule import Int64
from workloads.tokens import Ids, TokenSource

MAX_ROUNDS = 64
"""Rounds of adding, trimming or filling before a text prompt is given up. Word boundaries cost a token or two each, so a few rounds do; a
tokenizer that needs more does not add up over words, and no loop would end."""

_FILLERS = (" a", " I", " x", ".", " .", "a", "!", " to")
"""Tried in order to add exactly what is missing: most vocabularies hold a one-token form of one of these."""


@dataclass(frozen=True, slots=True, eq=False)
class TextPrompts:
    """Prompts of words, written when asked for: (input_tokens[i],) tokens each as ``writer`` counts them."""

    writer: TextWriter
    input_tokens: Int64
    notes: tuple[str, ...] = ()
    kept: Kept = field(default_factory=Kept)

    def ids(self, request_id: int) -> Ids:
        """Ids of one request's text, with the tokenizer's own special tokens when the writer counts them."""
        return self.kept.get(request_id, self._make)[1]

    def text(self, request_id: int) -> str:
        """One request's text."""
        return self.kept.get(request_id, self._make)[0]

    def _make(self, request_id: int) -> Made:
        return self.writer.write(int(self.input_tokens[request_id]), request_id)


class TextWriter:
    """Writes texts of our own words with an exact number of tokens under one tokenizer, no two of ``requests`` beginning alike.

    ``bos``: count the special tokens that the tokenizer's own rule adds, as completions servers do; off for chat, where the template is
    counted apart.
    """

    __slots__ = ("_bos", "_costs", "_dearest", "_fillers", "_numbering", "_own", "_starts", "_tokens", "_words")

    def __init__(self, tokens: TokenSource, *, seed: int, requests: int, bos: bool = False) -> None:
        self._tokens, self._bos = tokens, bos
        self._words = _sendable_words(tokens)
        self._own = Keys(seed, "own")
        self._numbering = Numbering.of(requests, len(self._words), seed)
        # What a word adds at the start and behind another: an estimate where merges cross spaces, made exact by encoding the whole.
        alone = len(tokens.encode("a"))
        self._starts = np.array([len(tokens.encode(word)) for word in self._words], dtype=np.int64)
        self._costs = np.array([max(1, len(tokens.encode(f"a {word}")) - alone) for word in self._words], dtype=np.int64)
        self._dearest = int(max(self._costs.max(), self._starts.max()))
        gains = [(len(tokens.encode(f"a{filler}")) - alone, filler) for filler in _FILLERS]
        self._fillers = sorted(((gain, filler) for gain, filler in gains if gain > 0), key=lambda pair: -pair[0])

    @property
    def least(self) -> int:
        """Tokens of the shortest text."""
        return 1 + (self._tokens.added_tokens if self._bos else 0)

    def notes(self, counts: Int64) -> tuple[str, ...]:
        """Say how many prompts of ``counts`` (n,) tokens have no room for the words that tell them apart."""
        short = int((counts < self.least + self._numbering.width * self._dearest).sum())
        return short_notes(short, len(counts), len(self._words))

    def write(self, count: int, request_id: int) -> Made:
        """Return a text of exactly ``count`` tokens and its ids.

        Raises UsageError ``prompt.impossible`` when no text found has that many tokens under this tokenizer.
        """
        if count < self.least:
            raise impossible(request_id, count, f"the shortest text has {self.least} under this tokenizer")
        picks = self._picks(count, request_id)
        ids = self._encode(text := self._guess(picks, count))
        if len(ids) != count:  # this tokenizer's counts do not add up over words
            text = self._correct(picks, count)
            ids = self._encode(text)
        if len(ids) != count:
            raise impossible(request_id, count, f"none found in {MAX_ROUNDS} rounds of correction")
        if int(ids.max()) >= self._tokens.vocab_size:
            raise impossible(request_id, count, f"its text has id {int(ids.max())}, and the model has {self._tokens.vocab_size} ids")
        return text, ids

    def _encode(self, text: str) -> Ids:
        return self._tokens.encode(text, add_special=self._bos)

    def _length(self, text: str) -> int:
        return len(self._encode(text))

    def _picks(self, count: int, request_id: int) -> Int64:
        """Words by index; a word costs at least one token, so ``count`` of them are always enough."""
        picks = draw(self._own(np.array([request_id], np.uint64)), np.array([count]), len(self._words))
        head = self._numbering.symbols(request_id)[:count]
        picks[: len(head)] = head
        return picks

    def _guess(self, picks: Int64, count: int) -> str:
        """Text whose words and fillers have the right sum of single costs: right at once where costs add up."""
        room = count - self.least + 1
        costs = self._costs[picks]
        costs[0] = self._starts[picks[0]]
        sums = np.cumsum(costs)
        kept = int(np.searchsorted(sums, room, side="right"))
        missing = room - (int(sums[kept - 1]) if kept else 0)
        parts = [" ".join([self._words[k] for k in picks[:kept].tolist()])]
        for gain, filler in self._fillers:
            parts.append(filler * (missing // gain))
            missing %= gain
        return "".join(parts).lstrip()

    def _correct(self, picks: Int64, count: int) -> str:
        """Text found by encoding the whole after every change; the caller checks its count."""
        text = self._fit(picks, count)
        for _ in range(MAX_ROUNDS):
            missing = count - self._length(text)
            longer = self._fill(text, missing) if missing > 0 else None
            if longer is None:
                break
            text = longer
        return text

    def _fit(self, picks: Int64, count: int) -> str:
        """Longest run of the picked words found that stays within ``count`` tokens, less than one word short where costs add up."""
        kept = int(np.searchsorted(np.cumsum(self._costs[picks]), count, side="right"))
        growing = True
        for _ in range(MAX_ROUNDS):
            text = " ".join(self._words[k] for k in picks[:kept])
            missing = count - self._length(text)
            if missing < 0:
                # Trimming ends all growing, or the two could take turns forever.
                kept, growing = max(0, kept - max(1, -missing // self._dearest)), False
            elif growing and missing > self._dearest and kept < len(picks):
                kept += missing // self._dearest
            else:
                return text
        return ""

    def _fill(self, text: str, missing: int) -> str | None:
        """Append the filler that gains most without passing ``missing``; None when each passes it or gains nothing."""
        best, most, length = None, 0, self._length(text)
        for filler in _FILLERS:
            candidate = (text + filler).lstrip()
            gain = self._length(candidate) - length
            if most < gain <= missing:
                best, most = candidate, gain
            if most == missing:
                break
        return best


@lru_cache(maxsize=1)
def corpus_words() -> tuple[str, ...]:
    """Distinct words of the shipped corpus, lower case, in order of first use (the order is part of every text prompt)."""
    text = (resources.files("workloads") / "corpus.txt").read_text("utf-8")
    return tuple(dict.fromkeys(re.findall(r"[a-z]+", text.lower())))


def _sendable_words(tokens: TokenSource) -> tuple[str, ...]:
    """Words of which no token, at the start of a text or within, is one that the model lacks."""
    words = tuple(w for w in corpus_words() if max(tokens.encode(f"{w} {w}").tolist()) < tokens.vocab_size)
    if words:
        return words
    what = f"prompts.source=text: under this tokenizer every word needs an id that the model, with {tokens.vocab_size} ids, lacks"
    raise UsageError.single("prompt.no_words", what, "name the tokenizer of the served model, or use prompts of random-ids")


def impossible(request_id: int, count: int, why: str) -> UsageError:
    """Build the error for a prompt that no text has the count of."""
    what = f"input_tokens={count} of request {request_id}: no such text prompt; {why}"
    return UsageError(Problem("prompt.impossible", what, "raise input_minimum of scale_lengths, or use prompts of random-ids"))
