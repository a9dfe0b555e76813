"""Prompts with an exact token count, each from its own seed: the prompt of request i never depends on another request or on order.

Words and ids are drawn independently rather than cut from a running text: two prompts then share no prefix beyond chance, so a server's
prefix cache finds nothing that the plan did not put there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from harness.errors import Problem, UsageError
from workloads import seeds
from workloads.schedule import Int64
from workloads.tokens import Ids, TokenSource

MAX_ROUNDS = 64
"""Rounds of adding, trimming or filling before a text prompt is given up. Word boundaries cost a token or two each, so a few rounds do; a
tokenizer that needs more does not add up over words, and no loop would end."""

_FILLERS = (" a", " I", " x", ".", " .", "a", "!", " to")
"""Tried in order to add exactly what is missing: most vocabularies hold a one-token form of one of these."""


@dataclass(frozen=True, slots=True, eq=False)
class RandomIds:
    """Prompts of (input_tokens[i],) int32 ids, uniform over ``safe_ids``; they have no text."""

    safe_ids: Ids
    input_tokens: Int64
    seed: int

    def ids(self, request_id: int) -> Ids:
        """Ids of one request's prompt."""
        return random_ids(self.safe_ids, int(self.input_tokens[request_id]), self.seed, request_id)

    def text(self, request_id: int) -> None:
        """None: no text is sent."""


@dataclass(frozen=True, slots=True, eq=False)
class TextPrompts:
    """Texts of all requests and their ids under the server's tokenizer; ``bos`` as in ``TextWriter``."""

    tokens: TokenSource
    texts: tuple[str, ...]
    bos: bool

    def ids(self, request_id: int) -> Ids:
        """Ids of one request's text, with the tokenizer's own special tokens when ``bos``."""
        return self.tokens.encode(self.texts[request_id], add_special=self.bos)

    def text(self, request_id: int) -> str:
        """One request's text."""
        return self.texts[request_id]


def random_ids(safe_ids: Ids, count: int, seed: int, request_id: int) -> Ids:
    """Return ``count`` ids drawn uniformly from ``safe_ids``, from the dimension (prompt, request_id)."""
    rng = seeds.generator(seed, "prompt", request_id)
    return safe_ids[rng.integers(0, len(safe_ids), size=count)]


class TextWriter:
    """Writes texts of our own words with an exact number of tokens under one tokenizer.

    ``bos``: count the special tokens that the tokenizer's own rule adds, as completions servers do; off for chat, where the template is
    counted apart.
    """

    __slots__ = ("_bos", "_costs", "_dearest", "_tokens", "_words")

    def __init__(self, tokens: TokenSource, *, bos: bool = False) -> None:
        self._tokens, self._bos = tokens, bos
        self._words = corpus_words()
        # What a word adds behind another word: an estimate where merges cross spaces, made exact by encoding the whole.
        alone = len(tokens.encode("a"))
        self._costs = np.array([max(1, len(tokens.encode(f"a {word}")) - alone) for word in self._words], dtype=np.int64)
        self._dearest = int(self._costs.max())

    def write(self, count: int, seed: int, request_id: int) -> str:
        """Return a text of exactly ``count`` tokens from the seed's dimension (prompt, request_id).

        Raises UsageError ``prompt.impossible`` when no text found has that many tokens under this tokenizer.
        """
        least = 1 + (self._tokens.added_tokens if self._bos else 0)
        if count < least:
            raise _impossible(request_id, count, f"the shortest text has {least} under this tokenizer")
        # A word costs at least one token, so ``count`` draws are always enough.
        picks = seeds.generator(seed, "prompt", request_id).integers(0, len(self._words), size=count)
        text: str | None = self._fit(picks, count)
        for _ in range(MAX_ROUNDS):
            missing = count - self._length(text) if text is not None else -1
            if text is None or missing <= 0:
                break
            text = self._fill(text, missing)
        if text is None or self._length(text) != count:
            raise _impossible(request_id, count, f"none found in {MAX_ROUNDS} rounds of correction")
        return text

    def _length(self, text: str) -> int:
        return len(self._tokens.encode(text, add_special=self._bos))

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


def _impossible(request_id: int, count: int, why: str) -> UsageError:
    what = f"input_tokens={count} of request {request_id}: no such text prompt; {why}"
    return UsageError(Problem("prompt.impossible", what, "raise input_minimum of scale_lengths, or use prompts of random-ids"))
