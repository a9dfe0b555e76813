"""AIPerf: services that talk over ZMQ, each a process. Per request it writes the instant of the start (wall clock), the time to the first
token and every gap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.environments import HOMES
from benchmarks.peers.load import Load
from benchmarks.peers.peer import Command, Peer, tokenizer, url, write_lines
from benchmarks.peers.seen import Seen
from harness.runtimes.truth_server import MODEL

WARM_UPS = 20
"""Its first request over a worker waits for the connection, with a cold worker up to 180 ms; warm-ups are its own cure."""


class AIPerf(Peer):
    """``aiperf profile``, per-request records on, everything that only shows or scrapes off."""

    name = "aiperf"
    home = HOMES["aiperf"]
    spread = True

    def command(self, load: Load, port: int, folder: Path) -> Command:
        """Prompts as a single-turn file, taken in order."""
        rows = [{"text": text, "output_length": load.tokens} for text in load.prompts()]
        prompts = write_lines(folder / "prompts.jsonl", rows)
        argv = [str(self.python().with_name("aiperf")), "profile", "-m", MODEL, "--url", url(port)]
        argv += ["--endpoint-type", "completions", "--streaming", "--use-legacy-max-tokens", "--osl", str(load.tokens)]
        argv += ["--request-rate", f"{load.rate:g}", "--arrival-pattern", "constant", "--request-count", str(load.requests)]
        argv += ["--input-file", str(prompts), "--custom-dataset-type", "single-turn", "--dataset-sampling-strategy", "sequential"]
        argv += ["--tokenizer", tokenizer(), "--artifact-dir", str(folder / "out"), "--warmup-request-count", str(WARM_UPS)]
        # The server counts tokens, so that none of its processes tokenises answers beside the load.
        argv += ["--use-server-token-count"]
        # Pooled connections, uvloop, orjson and its timerfd pacing are its defaults. No screen, no scraping of GPUs and metrics; records
        # without the raw answers. The numbers of workers and record processors are left to it: it counts cores.
        argv += ["--ui", "none", "--log-level", "warning", "--no-gpu-telemetry", "--no-server-metrics", "--export-level", "records"]
        # Told to stay offline, it refuses a tokenizer given as a folder; given one, it asks nobody.
        return Command(argv)

    def read(self, folder: Path, load: Load, wall_ns: int) -> list[Seen]:
        """Records of the profiling phase; which prompt a conversation had stands in ``inputs.json``."""
        del load
        inputs = json.loads((folder / "out" / "inputs.json").read_text())["data"]
        words = {entry["session_id"]: entry["payloads"][0]["prompt"].split(" ", 1)[0] for entry in inputs}
        lines = (folder / "out" / "profile_export.jsonl").read_text().splitlines()
        return [_seen(row, words, wall_ns) for row in map(json.loads, lines) if row["metadata"]["benchmark_phase"] == "profiling"]


def _seen(row: Mapping[str, Any], words: Mapping[str, str], wall_ns: int) -> Seen:
    told, metrics = row["metadata"], {name: metric["value"] for name, metric in row["metrics"].items()}
    ttft, gaps = metrics.get("time_to_first_token"), metrics.get("inter_chunk_latency")
    ttft_ns = None if ttft is None else round(ttft * 1e6)
    return Seen(
        name=words[told["conversation_id"]],
        done=row.get("error") is None and not told["was_cancelled"],
        # One chunk a token here, so its count of chunks is what it received.
        tokens=None if ttft is None else 1 + len(gaps or ()),
        ttft_ns=ttft_ns,
        first_ns=None if ttft_ns is None else told["request_start_ns"] + wall_ns + ttft_ns,
        gaps_ns=None if gaps is None else np.round(np.asarray(gaps) * 1e6).astype(np.int64),
    )
