"""SGLang's serving benchmark: the Python client (one process, one loop, a connection a request) and the Rust client that its wheel brings.

Both write for each request, in the order of sending, the time to the first token and every gap; neither writes when it sent, and neither
can send at constant intervals (the next one follows an exponential pause after the last).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.peers.environments import HOMES
from benchmarks.peers.load import Load
from benchmarks.peers.peer import OFFLINE, Command, Peer, ns, tokenizer, url
from benchmarks.peers.seen import Seen
from harness.runtimes.truth_server import MODEL

_NOTES = (
    "sglang knows only Poisson arrivals (paused after each send) and does not record when it sent: neither slip nor stamps can be known",
)


class SGLang(Peer):
    """``sglang.benchmark.serving`` (``bench_serving``) over OpenAI completions."""

    name = "sglang bench"
    home = HOMES["sglang"]
    module = "sglang.benchmark.serving"
    constant = False
    notes = _NOTES

    def command(self, load: Load, port: int, folder: Path) -> Command:
        """Prompts as a ShareGPT file, the one form of given prompts that both clients read; its answers are needed and not used."""
        prompts = folder / "prompts.json"
        prompts.write_text(json.dumps([{"conversations": [{"value": text}, {"value": "an answer"}]} for text in load.prompts()]))
        flags = ["--backend", "sglang-oai", "--base-url", url(port), "--model", MODEL, "--tokenizer", tokenizer()]
        flags += ["--dataset-name", "sharegpt", "--dataset-path", str(prompts), "--sharegpt-output-len", str(load.tokens)]
        flags += ["--num-prompts", str(load.requests), "--request-rate", f"{load.rate:g}", "--disable-tqdm"]
        flags += ["--output-file", str(folder / "out.jsonl"), "--output-details"]
        return Command([str(self.python()), "-m", self.module, *flags], OFFLINE)

    def read(self, folder: Path, load: Load, wall_ns: int) -> list[Seen]:
        """The arrays of the one line it wrote."""
        del load, wall_ns
        told = json.loads((folder / "out.jsonl").read_text().splitlines()[-1])
        return [
            Seen(
                name=None,
                done=not error and ttft > 0,
                tokens=1 + len(gaps) if ttft > 0 else 0,
                ttft_ns=ns(ttft) if ttft > 0 else None,
                gaps_ns=np.round(np.asarray(gaps) * 1e9).astype(np.int64),
            )
            for ttft, gaps, error in zip(told["ttfts"], told["itls"], told["errors"], strict=True)
        ]


class SGLangRust(SGLang):
    """The same wheel's Rust client, which parses streams on threads of its own: SGLang's own answer to a busy client."""

    name = "sglang rust"
    spread = True
    compiled = True
    module = "sglang.benchmark.rust_client"
