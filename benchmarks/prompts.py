"""``python -m benchmarks.prompts``: what prompts cost, on two cores, and whether the cost is linear in their tokens.

Three kinds: random ids, prefix blocks, and text under a byte-level BPE of about 32,000 tokens trained here on words made up here. Beside
each, a baseline that cannot be beaten by much: numpy drawing as many integers, and for text, one encoding of the final texts.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from workloads import HFTokenizer, TokenSource, WorkloadPlan
from workloads.prompts import NotedPrompts, corpus_words, make_prompts
from workloads.schedule import Blocks, Ragged

CORES = 2
LIMIT_S = 60.0
BLOCK = 64
VOCABULARY = 32_000
KINDS = ("random-ids", "blocks", "text", "text blocks")


@dataclass(frozen=True, slots=True)
class Work:
    """Some prompts of one kind: requests start..stop of ``count``, ``tokens`` tokens each."""

    kind: str
    count: int
    tokens: int
    tokenizer: Path
    start: int
    stop: int


def train(path: Path) -> int:
    """Write a tokenizer.json of ours and return its size. Words are our own and compounds of them, so that there is enough to merge."""
    words = corpus_words()
    rng = np.random.Generator(np.random.PCG64(1))
    pairs = rng.integers(0, len(words), size=(60_000, 2)).tolist()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((" ".join((words[a], words[b], words[a] + words[b])) for a, b in pairs), trainer)
    tokenizer.save(str(path))
    return int(tokenizer.get_vocab_size())


def prompts_of(work: Work, tokens: TokenSource) -> NotedPrompts:
    """Build the prompts of one share of the work: those from ``start`` to ``stop``."""
    sharing = "as_trace" if "blocks" in work.kind else "none"
    prompts = {"source": "text" if "text" in work.kind else "random-ids", "sharing": sharing}
    plan = WorkloadPlan.model_validate(
        {"trace": None, "arrivals": {"process": "trace"}, "output": {"control": "natural"}, "horizon_s": 1, "seed": 5, "prompts": prompts}
    )
    content = np.full(work.stop - work.start, work.tokens, dtype=np.int64)
    return make_prompts(plan, tokens, content, bos=False, blocks=_blocks(work) if sharing == "as_trace" else None)


def _blocks(work: Work) -> Blocks:
    """Half of each prompt shared with a hundred others, half its own."""
    per, rows = -(-work.tokens // BLOCK), np.arange(work.start, work.stop, dtype=np.uint64)[:, None]
    place = np.arange(per, dtype=np.uint64)
    ids = np.where(place < per // 2, (rows % np.uint64(200)) << np.uint64(40), rows << np.uint64(20)) + place
    return Blocks(Ragged(np.arange(len(rows) + 1, dtype=np.int64) * per, ids.ravel()), BLOCK, "ceil")


def spend(work: Work) -> float:
    """Make every prompt of ``work`` once, ids and text; returns CPU seconds, all but loading the tokenizer."""
    tokens = HFTokenizer(work.tokenizer)
    begun = time.process_time()
    prompts = prompts_of(work, tokens)
    for i in range(work.stop - work.start):
        if len(prompts.ids(i)) != work.tokens:
            raise AssertionError(f"prompt {i} of {work.kind} has {len(prompts.ids(i))} tokens")
        prompts.text(i)
    return time.process_time() - begun


def baseline(work: Work) -> float:
    """CPU seconds of the least there is to do: draw as many integers; for text, encode the finished texts once."""
    count = work.stop - work.start
    if "text" in work.kind:
        prompts = prompts_of(work, HFTokenizer(work.tokenizer))
        plain = Tokenizer.from_file(str(work.tokenizer))
        texts = [prompts.text(i) or "" for i in range(count)]
        begun = time.process_time()
        for text in texts:
            plain.encode(text, add_special_tokens=False)
        return time.process_time() - begun
    begun = time.process_time()
    rng = np.random.default_rng(1)
    for _ in range(count):
        rng.integers(0, VOCABULARY, size=work.tokens)
    return time.process_time() - begun


def shared_out(job: Callable[[Work], float], kind: str, count: int, tokens: int, tokenizer: Path) -> tuple[float, float]:
    """Run ``job`` in one process a core; returns (wall seconds, CPU microseconds a token), without the start of processes."""
    shares = [Work(kind, count, tokens, tokenizer, k * count // CORES, (k + 1) * count // CORES) for k in range(CORES)]
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        list(pool.map(abs, range(CORES)))
        begun = time.perf_counter()
        spent = list(pool.map(job, shares))
        return time.perf_counter() - begun, sum(spent) / (count * tokens) * 1e6


def main() -> None:
    """Print one table for the total and one for the cost a token, which a busy host changes less."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000, help="prompts of 1,000 tokens; a tenth of it for the cost a token")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what to measure")
    chosen = parser.parse_args()
    count = chosen.count
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # two processes have the two cores
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = Path(folder) / "tokenizer.json"
        print(f"BPE of {train(tokenizer):,} tokens; {count:,} prompts of 1,000 tokens on {CORES} cores; limit {LIMIT_S:g} s")
        lengths = (250, 1000, 4000)
        print(
            f"\n{'':14s}{'wall s':>8s}{'CPU s/core':>12s} within  CPU us a token at"
            + "".join(f"{n:>8,d}" for n in lengths)
            + f"{'baseline':>10s}{'ratio':>8s}"
        )
        for kind in chosen.kinds:
            wall, cost = shared_out(spend, kind, count, 1000, tokenizer)
            _, least = shared_out(baseline, kind, count // 10, 1000, tokenizer)
            costs = [shared_out(spend, kind, count * 100 // n, n, tokenizer)[1] for n in lengths]
            shown = "".join(f"{c:8.3f}" for c in costs)
            each = cost * count * 1000 / 1e6 / CORES
            verdict = f"{wall:8.2f}{each:12.2f} {'yes' if wall <= LIMIT_S else 'NO':26s}"
            print(f"{kind:14s}{verdict}{shown}{least:10.3f}{cost / least:7.1f}x", flush=True)


if __name__ == "__main__":
    main()
