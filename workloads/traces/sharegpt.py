"""Reader ``sharegpt``: conversations as texts, every turn of them; lengths are counted with a tokenizer of the user's choice.

A row is a question and the answer that follows it. Nothing is cut, capped or left out by length. A turn that is no such pair is counted in
``skipped`` by reason. Questions count without the turns before them (``history`` excluded), which a session replay puts in front.
"""

from __future__ import annotations

import codecs
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic import Field

from harness.errors import UsageError
from workloads.schedule import Ragged, Trace, Turns, frozen
from workloads.tokens import TokenSource, load_tokenizer
from workloads.traces.collect import int64
from workloads.traces.contract import FormatInfo, Options
from workloads.traces.find import opened
from workloads.traces.jsonl import show
from workloads.traces.problems import ProblemList

FORMAT = "sharegpt"
ASKS = frozenset({"human", "user"})
ANSWERS = frozenset({"gpt", "chatgpt", "assistant", "bard", "bing", "model"})
PIECE = 1 << 20
MAX_ITEM = 1 << 28
"""Longest conversation read, 256 Mi characters; the longest published has a few million. Beyond it the file is no list of conversations."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPIN = "restore the published file and pin its sha256"


class ShareGptOptions(Options):
    """How tokens are counted."""

    tokenizer: str | None = Field(None, description="`bytes`, or a tokenizer.json or its folder, from the trace's folder")


@dataclass(frozen=True, slots=True)
class Pair:
    """One row: a question, its answer, and the conversation it belongs to (by number in the file)."""

    conversation: int
    question: str
    answer: str


@dataclass(slots=True)
class Pairs:
    """Iterate over the rows of a file of conversations. ``skipped`` counts what is no row, ``conversations`` all that were seen.

    Raises UsageError at the end with every item that is no conversation, and ``trace.unreadable`` when the file cannot be read.
    """

    path: Path
    skipped: Counter[str] = field(default_factory=Counter)
    conversations: int = 0

    def __iter__(self) -> Iterator[Pair]:
        self.skipped.clear()
        self.conversations = rows = 0
        problems = ProblemList(self.path.name)
        with opened(self.path) as stream:
            for item in _items(stream, problems):
                turns = _turns(item, self.conversations, problems)
                for question, answer in _paired(turns, self.skipped):
                    rows += 1
                    yield Pair(self.conversations, question, answer)
                self.conversations += 1
        if not rows and not len(problems):
            reasons = ", ".join(f"{count} x {reason}" for reason, count in self.skipped.items() if count) or "no turn at all"
            problems.add("trace.no_rows", f"rows=0: no question with an answer in {self.conversations} conversations ({reasons})", _REPIN)
        problems.raise_if_any()


def read_texts(path: Path, options: ShareGptOptions) -> list[str]:  # noqa: ARG001 - rows do not depend on the tokenizer
    """Questions by row of the trace. Raises UsageError as reading does."""
    return [pair.question for pair in Pairs(path)]


def token_source(tokenizer: str | None, path: Path) -> TokenSource:
    """Load the tokenizer that lengths are counted with, from the trace's folder unless its path is absolute. Raises UsageError."""
    if tokenizer is None:
        what = "tokenizer: not given, and a file of texts has no token counts of its own"
        remedy = "name the tokenizer.json of the served model, or `bytes` for the reference runtime"
        raise UsageError.single("trace.tokenizer", what, remedy, "workload.trace.options.tokenizer")
    return load_tokenizer(tokenizer if tokenizer == "bytes" else str(path.parent / tokenizer))


def tokenizer_note(source: TokenSource) -> str:
    """Say how lengths were counted."""
    return f"lengths counted with the tokenizer of sha256 {source.digest}, without special tokens or a chat template"


def chained(conversation: array[int]) -> Turns:
    """Turns of rows that come conversation by conversation: each waits for the one before it, pauses unknown."""
    number = int64(conversation)
    rows = np.arange(len(number), dtype=np.int64)
    first = np.concatenate(([True], np.diff(number) != 0))
    before = np.where(first, -1, rows - 1)
    return Turns(
        session=frozen(np.cumsum(first) - 1),
        turn=frozen(rows - np.maximum.accumulate(np.where(first, rows, 0))),
        after=Ragged(frozen(np.concatenate(([0], np.cumsum(~first))).astype(np.int64)), frozen(before[~first])),
        think_ns=frozen(np.full(len(rows), -1, np.int64)),
        extends=frozen(before),
        history="excluded",
    )


def _items(stream: BinaryIO, problems: ProblemList) -> Iterator[Any]:
    """Values of a JSON list, one at a time, so that the file is never in memory as a whole."""
    text, number = _Text(stream), 0
    try:
        if not text.starts_with("["):
            problems.add("trace.json", f"head={show(text.head()[:60])}: not a JSON list of conversations", "name the right format")
            return
        while not text.starts_with("]"):
            if number and not text.starts_with(","):
                raise ValueError("a comma or the list's end is wanted")
            value = text.value()
            number += 1
            yield value
        if text.head():
            problems.add("trace.json", f"tail={show(text.head()[:60])}: text after the list's end", _REPIN)
    except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8
        what = f"after {number} conversations: not JSON ({str(error)[:80]})"
        problems.add("trace.json", what, f"{_REPIN}; nothing behind this place was read")


class _Text:
    """A window on decoded text that moves with what was read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._text = ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._done = False
        self._decoder = json.JSONDecoder(parse_constant=_no_constant)

    def starts_with(self, mark: str) -> bool:
        """Whether the next character that is no white space is ``mark``, which is then taken."""
        if not self.head().startswith(mark):
            return False
        self._text = self._text[1:]
        return True

    def head(self) -> str:
        """Text from the next character that is no white space, empty at the end of the file."""
        self._text = self._text.lstrip(" \t\r\n")
        while not self._text and self._more():
            self._text = self._text.lstrip(" \t\r\n")
        return self._text

    def value(self) -> Any:
        """Take the next value. Raises ValueError when there is none, and when it never ends."""
        size = PIECE
        while True:
            head = self.head()
            try:
                value, end = self._decoder.raw_decode(head)
            except ValueError:
                # Perhaps only cut off: ask again with twice the text, until there is no more of it.
                if len(head) > MAX_ITEM or not self._more(size):
                    raise
                size *= 2
                continue
            if end == len(head) and self._more():  # a number could go on
                continue
            self._text = head[end:]
            return value

    def _more(self, size: int = PIECE) -> bool:
        """Read on; a character cut in two waits for the next piece. Raises ValueError on bytes that are no UTF-8."""
        if self._done:
            return False
        piece = self._stream.read(size)
        self._done = not piece
        self._text += self._utf8.decode(piece, final=self._done)
        return not self._done


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _turns(item: Any, number: int, problems: ProblemList) -> list[tuple[str, str]]:
    """(role, text) of each turn of one item; nothing after recording that it is no conversation."""
    turns = item.get("conversations") if isinstance(item, dict) else None
    if not isinstance(turns, list):
        what = f"conversation {number}={show(item)}: not an object with a list `conversations`"
        problems.add("trace.conversation", what, "name the right format, or restore the published form")
        return []
    found: list[tuple[str, str]] = []
    for place, turn in enumerate(turns):
        role, text = (turn.get("from"), turn.get("value")) if isinstance(turn, dict) else (None, None)
        if isinstance(role, str) and isinstance(text, str):
            found.append((role, text))
        else:
            what = f"conversation {number}, turn {place}={show(turn)}: not an object with strings `from` and `value`"
            problems.add("trace.conversation", what, "restore the published form")
    return found


def _paired(turns: list[tuple[str, str]], skipped: Counter[str]) -> Iterator[tuple[str, str]]:
    """Questions with the answers right after them. Every turn is in one pair, or counted once by what keeps it out."""
    question: str | None = None
    for role, text in turns:
        if role not in ASKS | ANSWERS:
            skipped["system turn" if role == "system" else f"unknown role {show(role)}"] += 1
            continue
        if question is not None and role in ANSWERS and not _unusable(text):
            yield question, text
            question = None
            continue
        skipped["question without an answer"] += question is not None
        question = None
        if _unusable(text):
            skipped[f"{_unusable(text)} {'question' if role in ASKS else 'answer'}"] += 1
        elif role in ASKS:
            question = text
        else:
            skipped["answer without a question"] += 1
    skipped["question without an answer"] += question is not None


def _unusable(text: str) -> str:
    """Why a text cannot be sent, or nothing. JSON can write half a surrogate pair, which no encoding can."""
    if not text:
        return "empty"
    return "" if text.isascii() or not _SURROGATE.search(text) else "unencodable"


class _ShareGpt:
    """``sharegpt``: a JSON list of ``{id, conversations: [{from, value}]}``."""

    info = FormatInfo(
        format=FORMAT,
        summary="ShareGPT: conversations as texts, every turn a request, lengths counted with a tokenizer",
        clock="none",
        time_unit="none: sessions start by a process, pauses are unknown",
        lengths="input (the question alone) and output tokens, counted with the option tokenizer",
        prefix=None,
        tested="schema",
    )
    options = ShareGptOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the head tells
        """Whether a list of objects begins, with turns ``from`` and ``value`` near its head."""
        return head.lstrip()[:1] == b"[" and all(key in head for key in (b'"conversations"', b'"from"', b'"value"'))

    def read(self, path: Path, options: ShareGptOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing is drawn
        """Read the whole file, one conversation in memory at a time. Raises UsageError with every problem."""
        source = token_source(options.tokenizer, path)
        pairs = Pairs(path)
        tokens_in, tokens_out, conversation = array("q"), array("q"), array("q")
        for pair in pairs:
            tokens_in.append(len(source.encode(pair.question)))
            tokens_out.append(len(source.encode(pair.answer)))
            conversation.append(pair.conversation)
        rows = np.arange(len(tokens_in), dtype=np.int64)
        return Trace(
            FORMAT,
            path.name,
            frozen(np.zeros(len(rows), np.int64)),
            int64(tokens_in),
            int64(tokens_out),
            frozen(rows),
            clock="none",
            turns=chained(conversation),
            skipped={reason: count for reason, count in sorted(pairs.skipped.items()) if count},
            notes=(tokenizer_note(source), f"{pairs.conversations} conversations; rows are numbered over the pairs of question and answer"),
        )


READERS = (_ShareGpt(),)
