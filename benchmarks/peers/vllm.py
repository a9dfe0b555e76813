"""``vllm bench serve``: one process, one asyncio loop, aiohttp. Its detailed result lists for each request, in the order of the prompts,
the start (``perf_counter``, which is CLOCK_MONOTONIC on Linux), the time to the first token and every gap.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.peers.environments import HOMES
from benchmarks.peers.load import Load
from benchmarks.peers.peer import OFFLINE, Command, Peer, ns, tokenizer, url, write_lines
from benchmarks.peers.seen import Seen
from harness.runtimes.truth_server import MODEL

WARM_UPS = 20


class VLLM(Peer):
    """``vllm bench serve`` over completions, without progress bar."""

    name = "vllm bench"
    home = HOMES["vllm"]

    def command(self, load: Load, port: int, folder: Path) -> Command:
        """Prompts as a custom data set, unshuffled. An infinite burstiness is its word for constant intervals."""
        rows = [{"prompt": text, "output_tokens": load.tokens} for text in load.prompts()]
        prompts = write_lines(folder / "prompts.jsonl", rows)
        argv = [str(self.python().with_name("vllm")), "bench", "serve", "--backend", "openai", "--base-url", url(port)]
        argv += ["--endpoint", "/v1/completions", "--model", MODEL, "--tokenizer", tokenizer(), "--ignore-eos"]
        argv += ["--dataset-name", "custom", "--dataset-path", str(prompts), "--disable-shuffle", "--skip-chat-template"]
        argv += ["--custom-output-len", str(load.tokens), "--num-prompts", str(load.requests)]
        argv += ["--request-rate", f"{load.rate:g}", "--burstiness", "inf"]
        argv += ["--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "out.json"]
        # Warm-ups open connections that the load reuses; a progress bar would cost it a call a request.
        argv += ["--num-warmups", str(WARM_UPS), "--ready-check-timeout-sec", "0", "--disable-tqdm"]
        return Command(argv, OFFLINE)

    def read(self, folder: Path, load: Load, wall_ns: int) -> list[Seen]:
        """The arrays of the detailed result."""
        del wall_ns
        told = json.loads((folder / "out.json").read_text())
        columns = zip(told["ttfts"], told["itls"], told["start_times"], told["errors"], strict=True)
        if len(told["ttfts"]) != load.requests:
            raise ValueError(f"{len(told['ttfts'])} requests are told of where {load.requests} were asked for")
        return [
            Seen(
                name=f"c{i}",
                done=not error and ttft > 0,
                tokens=1 + len(gaps) if ttft > 0 else 0,
                ttft_ns=ns(ttft) if ttft > 0 else None,
                first_ns=ns(start + ttft) if ttft > 0 else None,
                gaps_ns=np.round(np.asarray(gaps) * 1e9).astype(np.int64),
            )
            for i, (ttft, gaps, start, error) in enumerate(columns)
        ]
