"""Reader ``ragpulse`` (a university's question answering, one week): prompts made of named components with known lengths.

``hash_ids`` is an object of five lists; files beside the trace give each component's token length. Components are no fixed blocks, so
prefix identity is rebuilt: a block belongs to the chain of components from the start of the prompt to the one that holds the block's last
token. Two prompts get equal ids as far as they consist of the same components in the same places, and what is lost is at most
``block_size`` - 1 tokens where two prompts part. The default of 16 is a common block of servers, so nothing that such a server could share
is lost.

Not stated upstream, and therefore chosen and told in the notes: the order of the components (default: the order of the keys in the file),
and where the 6 to 12 tokens lie by which ``input_length`` exceeds the components (here: behind them, and shared by nobody).
"""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from harness.errors import UsageError
from workloads.schedule import Blocks, Ragged, Trace, Turns
from workloads.traces.collect import Columns, TurnColumn, int64, pause_notes, uint64
from workloads.traces.contract import PIN_OR_NONE, FormatInfo, Options, PrefixRule
from workloads.traces.fields import elapsed, integer, text, tokens
from workloads.traces.find import file_digest
from workloads.traces.jsonl import JsonLines, first_object, show
from workloads.traces.problems import ProblemList

FORMAT = "ragpulse"
NS = 1_000_000_000
Component = Literal["sys_prompt", "passages_ids", "history", "web_search", "user_input"]
ORDER: tuple[Component, ...] = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
COMPONENT_FILES = {
    "sys_prompt": ("1_sys_prompt", "sys_prompt_id"),
    "passages_ids": ("2_passages", "passage_id"),
    "history": ("3_history", "history_id"),
    "web_search": ("5_web_search", "web_search_id"),
    "user_input": ("4_user_input", "user_input_id"),
}
"""Component -> its file beside the trace (``.jsonl`` or ``.jsonl.gz``) and the key of the id in it."""

_KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids", "session_id"})
_Id = tuple[str, int]


class RagPulseOptions(Options):
    """Order of the components in the prompt, tokens a block of the prefix ids made of them, and the digest of the component files."""

    order: tuple[Component, ...] = ORDER
    components_sha256: str | None = Field(
        None, pattern=PIN_OR_NONE, description="digest of the component files, as `traces inspect` prints it"
    )
    block_size: int = Field(16, ge=1, le=4096)

    @field_validator("order")
    @classmethod
    def _each_once(cls, order: tuple[Component, ...]) -> tuple[Component, ...]:
        if sorted(order) != sorted(ORDER):
            raise ValueError(f"each of {', '.join(ORDER)} once")
        return order


class _Chains:
    """Prefix ids of component chains: a trie whose nodes own the blocks that end within their component."""

    def __init__(self, lengths: dict[_Id, int], size: int) -> None:
        self._lengths = lengths
        self._size = size
        self._nodes: dict[tuple[int, _Id], tuple[int, int, int]] = {}  # (parent, component) -> (node, first id, blocks)
        self._next = 0
        self.ids = array("Q")
        self.ends = array("q", [0])

    def add(self, chain: list[_Id], tokens_in: int) -> int:
        """Append one row; return its tokens beyond the components (negative: they do not fit the row, which then has no ids)."""
        beyond = tokens_in - sum(self._lengths[component] for component in chain)
        if beyond < 0:  # blocks of it could be more than memory holds
            chain, tokens_in = [], 0
        node, start = -1, 0
        for component in chain:
            stop = start + self._lengths[component]
            node, first, blocks = self._node(node, component, stop // self._size - start // self._size)
            self.ids.extend(range(first, first + blocks))
            start = stop
        own = max(0, tokens_in // self._size - start // self._size)  # blocks that reach into the glue are the row's own
        self.ids.extend(range(self._next, self._next + own))
        self._next += own
        self.ends.append(len(self.ids))
        return beyond

    def _node(self, parent: int, component: _Id, blocks: int) -> tuple[int, int, int]:
        # The parent fixes where the component starts, so the number of blocks is the same whenever the node is met.
        found = self._nodes.get((parent, component))
        if found is None:
            found = self._nodes[parent, component] = (len(self._nodes), self._next, blocks)
            self._next += blocks
        return found

    def blocks(self) -> Blocks:
        """The column: only full blocks have ids."""
        return Blocks(Ragged(int64(self.ends), uint64(self.ids)), self._size, "floor")


class _RagPulse:
    """``ragpulse``: the trace file; component files are found beside it."""

    info = FormatInfo(
        format=FORMAT,
        summary="RAGPulse: one week of a retrieval-augmented service, with sessions and prompt components",
        clock="relative",
        time_unit="whole seconds from the trace's start, written as strings",
        lengths="input and output tokens; the input holds passages and history",
        prefix=PrefixRule(16, "floor", "trace"),
        tested="full file",
    )
    options = RagPulseOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the keys tell
        """Whether the first row's ids are an object of component lists."""
        ids = first_object(head).get("hash_ids")
        return isinstance(ids, dict) and "passages_ids" in ids

    def read(self, path: Path, options: RagPulseOptions, seed: int) -> Trace:  # noqa: ARG002 - nothing is drawn
        """Read the trace and the component files beside it; the file's two passes stay in file order, as rows of every reader do."""
        lengths, notes, digest = _component_lengths(path)
        if options.components_sha256 not in (None, digest):
            what = f"components-sha256={options.components_sha256}: the component files have {digest}"
            raise UsageError.single("trace.digest_mismatch", what, "fetch the files that are meant, or pin these", path.name)
        problems = ProblemList(path.name)
        rows, columns, sessions, lines = JsonLines(path, problems), Columns(), list[str](), array("q")
        chains = _Chains(lengths, options.block_size) if lengths else None
        glue = array("q")
        for line, row in rows:
            tokens_in = tokens(row, "input_length", problems, line)
            arrival = elapsed(row, "timestamp", NS, problems, line, "text")
            columns.add(arrival, tokens_in, tokens(row, "output_length", problems, line))
            sessions.append(text(row, "session_id", problems, line))
            lines.append(line)
            chain = _chain(row, options.order, lengths, problems, line)
            if chains is not None:
                glue.append(chains.add(chain, tokens_in))
        _check_glue(glue, lines, problems)
        problems.raise_if_any()
        turns = _turns(sessions, columns)
        notes = (*_order_notes(columns), *notes, *_block_notes(glue, options), *pause_notes(turns), *rows.unread(_KEYS))
        blocks = chains.blocks() if chains is not None else None
        trace = columns.trace(FORMAT, path.name, grid_ns=NS, blocks=blocks, turns=turns, notes=notes)
        return trace if options.components_sha256 else replace(trace, unpinned={"components-sha256": digest})


def _component_lengths(path: Path) -> tuple[dict[_Id, int], tuple[str, ...], str]:
    """Token length by (component, id), notes, and the digest of the files; no lengths and ``none`` when one of the five is not there.

    Raises UsageError for a bad file.
    """
    files = {name: beside(path, stem) for name, (stem, _) in COMPONENT_FILES.items()}
    absent = sorted(COMPONENT_FILES[name][0] for name, file in files.items() if file is None)
    if absent:
        lost = "without component lengths the prompts share nothing: no prefix ids"
        return {}, (f"component files not found beside the trace ({', '.join(absent)}): {lost}",), "none"
    lengths: dict[_Id, int] = {}
    digests = []
    for name, file in files.items():
        if file is not None:
            _read_lengths(file, name, lengths)
            digests.append(f"{name} {file_digest(file)}")
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return lengths, (f"component lengths from {len(digests)} files beside the trace (components-sha256 {digest})",), digest


def beside(path: Path, stem: str) -> Path | None:
    """File of a component beside the trace, None where there is none."""
    return next((file for ending in (".jsonl", ".jsonl.gz") if (file := path.parent / f"{stem}{ending}").is_file()), None)


def _read_lengths(path: Path, name: str, lengths: dict[_Id, int]) -> None:
    problems = ProblemList(path.name)
    key = COMPONENT_FILES[name][1]
    for line, row in JsonLines(path, problems):
        identity = (name, integer(row, key, problems, line, low=0))
        length = tokens(row, "token_length", problems, line)
        if lengths.setdefault(identity, length) != length:
            what = f"{key}={identity[1]}: {length} tokens here and {lengths[identity]} above"
            problems.add("trace.component_length", what, "leave one length for each id", line)
    problems.raise_if_any()


def _chain(row: dict[str, Any], order: tuple[Component, ...], lengths: dict[_Id, int], problems: ProblemList, line: int) -> list[_Id]:
    """Components of one row in prompt order; wrong shapes and, where lengths are known, ids without one are recorded and left out."""
    lists = row.get("hash_ids")
    if not isinstance(lists, dict):
        what = f"hash_ids={show(lists)}: an object of component lists is wanted"
        problems.add("trace.hash_ids", what, "name the right format; a plain list of ids is mooncake or qwen-bailian", line)
        return []
    extra = sorted(lists.keys() - set(ORDER))
    if extra:
        what = f"hash_ids has {show(extra[0])}: not one of {', '.join(ORDER)}, so its place in the prompt is unknown"
        problems.add("trace.component", what, "remove it on purpose", line)
    chain: list[_Id] = []
    for name in order:
        ids = lists.get(name)
        if not isinstance(ids, list) or any(type(i) is not int for i in ids):
            problems.add("trace.component", f"hash_ids.{name}={show(ids)}: not a list of ids", "restore the published form", line)
            continue
        chain.extend((name, i) for i in ids)
    unknown = [c for c in chain if c not in lengths] if lengths else []
    if unknown:
        what = f"hash_ids.{unknown[0][0]} has {show(unknown[0][1])}: {COMPONENT_FILES[unknown[0][0]][0]} gives no length for it"
        problems.add("trace.component_length", what, "use the component files of the same release", line)
    return [c for c in chain if c in lengths]


def _check_glue(glue: array[int], lines: array[int], problems: ProblemList) -> None:
    if len(problems):  # rows with problems have incomplete chains
        return
    for line, extra in zip(lines, glue, strict=False):
        if extra < 0:
            what = f"input_length is {-extra} tokens less than the components of the row together"
            problems.add("trace.component_sum", what, "use the component files of the same release", line)


def _turns(sessions: list[str], columns: Columns) -> Turns:
    """Rows of a session follow each other by time (stable). Nothing says that a prompt begins with the one before: none extends another."""
    number: dict[str, int] = {}
    last: dict[str, int] = {}
    count: dict[str, int] = {}
    turn, before = [0] * len(sessions), [-1] * len(sessions)
    for row in np.argsort(int64(columns.arrival), kind="stable").tolist():
        name = sessions[row]
        turn[row], before[row] = count.get(name, 0), last.get(name, -1)
        count[name], last[name] = turn[row] + 1, row
    column = TurnColumn()
    for row, name in enumerate(sessions):
        column.add(number.setdefault(name, len(number)), turn[row], (before[row],) if before[row] >= 0 else (), -1, -1)
    return column.turns()


def _order_notes(columns: Columns) -> tuple[str, ...]:
    back = np.flatnonzero(np.diff(int64(columns.arrival)) < 0) + 1
    if not len(back):
        return ()
    what = f"time goes back {len(back)} times, first at row {int(back[0])}: the file holds several passes over one week"
    return (f"{what}; rows are in file order, so use the transform sort first",)


def _block_notes(glue: array[int], options: RagPulseOptions) -> tuple[str, ...]:
    if not glue:
        return ()
    order = f"component order is not stated upstream; taken as {', '.join(options.order)} (option order)"
    rest = f"{min(glue)} to {max(glue)} tokens a row belong to no component and are taken to lie at the end, unshared"
    return order, f"prefix ids are made from component chains in blocks of {options.block_size} tokens; {rest}"


READERS = (_RagPulse(),)
