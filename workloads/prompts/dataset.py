"""Texts of a data set as prompts: sent as they are, counted as the server counts them, each used once at most."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from harness.errors import UsageError
from workloads.plan import TraceSource, WorkloadPlan
from workloads.prompts.kept import Kept, Made
from workloads.schedule import Int64, frozen
from workloads.seeds import generator
from workloads.tokens import Ids, TokenSource
from workloads.traces.find import find_trace
from workloads.traces.registry import checked_options, get_reader

NOTE = "Prompts are texts of a data set: they share what its texts share, whatever `sharing` says, and carry no earlier turns."


@dataclass(frozen=True, slots=True, eq=False)
class DatasetPrompts:
    """Texts of a data set: request i is ``texts[rows[i]]``, ``input_tokens[i]`` tokens (special ones too, when ``bos``)."""

    tokens: TokenSource
    texts: Sequence[str]
    rows: Int64
    input_tokens: Int64
    bos: bool
    notes: tuple[str, ...] = (NOTE,)
    kept: Kept = field(default_factory=Kept)

    def ids(self, request_id: int) -> Ids:
        """Ids of one request's text."""
        return self.kept.get(request_id, self._make)[1]

    def text(self, request_id: int) -> str:
        """One request's text."""
        return self.texts[int(self.rows[request_id])]

    def _make(self, request_id: int) -> Made:
        text = self.text(request_id)
        ids = self.tokens.encode(text, add_special=self.bos)
        count = int(self.input_tokens[request_id])
        if len(ids) != count:
            what = f"input_tokens={count} of request {request_id}: its text in the data set has {len(ids)} tokens under this tokenizer"
            raise UsageError.single("prompt.dataset_length", what, "drop the transforms that change input lengths")
        if int(ids.max(initial=-1)) >= self.tokens.vocab_size:
            what = f"request {request_id}: its text has id {int(ids.max())}, and the model has {self.tokens.vocab_size} ids"
            raise UsageError.single("prompt.impossible", what, "name the tokenizer of the served model")
        return text, ids


def dataset_texts(source: TraceSource, search_path: Sequence[Path]) -> Sequence[str]:
    """Find, verify and read the texts of ``plan.prompts.dataset``, by row of its file.

    Raises UsageError as ``find_trace`` does, and ``prompt.dataset_format`` for a format that holds no texts.
    """
    reader = get_reader(source.format)
    read: Callable[..., Sequence[str]] | None = getattr(sys.modules[type(reader).__module__], "read_texts", None)
    if read is None:
        what = f"prompts.dataset.format={source.format}: rows of this format have lengths and no texts"
        raise UsageError.single("prompt.dataset_format", what, "name a data set with texts, e.g. format sharegpt, or use prompts of text")
    return read(find_trace(source, search_path), checked_options(reader, source.options))


def dataset_rows(plan: WorkloadPlan, source_row: Int64, available: int) -> Int64:
    """Which of ``available`` texts each request sends, (n,): its own when the trace is the data set, else drawn without repetition.

    Raises UsageError ``prompt.dataset_rows`` when there are too few, or a row comes twice (a loop): a text sent twice is a cache hit that
    nobody planned.
    """
    own = plan.trace is not None and plan.trace == plan.prompts.dataset
    distinct = len(np.unique(source_row)) if own else min(available, len(source_row))
    if distinct < len(source_row) or (own and int(source_row.max(initial=-1)) >= available):
        what = f"prompts.dataset: {distinct} texts for {len(source_row)} requests ({available} in the file)"
        what += "; no text is sent twice, since that would be a cache hit that nobody planned"
        raise UsageError.single("prompt.dataset_rows", what, "shorten the run, lower the rate, drop the loop, or name a larger data set")
    if own:
        return source_row
    return frozen(generator(plan.seed, "prompt", "dataset").permutation(available)[: len(source_row)].astype(np.int64))


def dataset_lengths(plan: WorkloadPlan, tokens: TokenSource, texts: Sequence[str], source_row: Int64, *, bos: bool) -> Int64:
    """Tokens of each request's text, (n,): the ``content`` that ``make_prompts`` must be given, special tokens counted when ``bos``."""
    rows = dataset_rows(plan, source_row, len(texts))
    lengths = (len(tokens.encode(texts[row], add_special=bos)) for row in rows.tolist())
    return frozen(np.fromiter(lengths, np.int64, len(rows)))
