"""GuideLLM: worker processes fed by queues, httpx. Per request it writes wall-clock instants of its own schedule, of the start and of the
first and the last token; of the gaps only the mean is left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import HOMES
from benchmarks.peers.load import Load
from benchmarks.peers.peer import OFFLINE, Command, Peer, ns, tokenizer, url, write_lines
from benchmarks.peers.seen import Seen
from harness.runtimes.truth_server import MODEL

MOST_WORKERS = 10
"""Its default."""


def workers() -> int:
    """A process for each core, at most its default: ten that share two cores only take turns. ``GUIDELLM__MAX_WORKER_PROCESSES`` decides
    otherwise, as it does for GuideLLM itself.
    """
    return int(os.environ.get("GUIDELLM__MAX_WORKER_PROCESSES") or min(MOST_WORKERS, len(os.sched_getaffinity(0))))


class GuideLLM(Peer):
    """``guidellm run`` with its ``perf`` extra (orjson, msgspec, uvloop), HTTP/1.1, nothing on the console."""

    name = "guidellm"
    home = HOMES["guidellm"]
    spread = True
    notes = ("guidellm keeps the first and the last token's instant of a request and none between: no gap can be held against the log",)

    def command(self, load: Load, port: int, folder: Path) -> Command:
        """Prompts as a file of JSON lines with a column ``prompt``."""
        prompts = write_lines(folder / "prompts.jsonl", [{"prompt": text} for text in load.prompts()])
        options: dict[str, Mapping[str, Any]] = {
            # HTTP/2 is negotiated with TLS only; off, it is not tried. The number of tokens is asked of the server.
            "backend": {"kind": "openai_http", "target": url(port), "model": MODEL, "request_format": "/v1/completions"}
            | {"http2": False, "max_tokens": load.tokens},
            "profile": {"kind": "constant", "rate": [load.rate]},
            "constraint": {"kind": "max_requests", "count": load.requests},
            "data": {"kind": "json_file", "path": str(prompts)},
            "tokenizer": {"kind": "huggingface_auto", "model": tokenizer()},
            "output": {"kind": "json", "path": str(folder / "out.json")},
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", json.dumps(value))]
        argv = [str(self.python().with_name("guidellm")), "run", *flags, "--disable-console"]
        return Command(argv, OFFLINE | {"GUIDELLM__MAX_WORKER_PROCESSES": str(workers())})

    def read(self, folder: Path, load: Load, wall_ns: int) -> list[Seen]:
        """Requests of every status."""
        del load
        groups = json.loads((folder / "out.json").read_text())["benchmarks"][0]["requests"]
        return [_seen(row, status, wall_ns) for status in ("successful", "errored", "incomplete") for row in groups[status] or ()]


def _seen(row: Mapping[str, Any], status: str, wall_ns: int) -> Seen:
    times = row["info"]["timings"]
    start, first, due = times["request_start"], times["first_token_iteration"], times["targeted_start"]
    return Seen(
        # A request that was cancelled before its turn has no arguments; the empty name joins it with nothing.
        name=json.loads(row["request_args"])["body"]["prompt"].split(" ", 1)[0] if row["request_args"] else "",
        done=status == "successful",
        tokens=times["token_iterations"],
        ttft_ns=None if first is None or start is None else ns(first) - ns(start),
        first_ns=None if first is None else ns(first) + wall_ns,
        slip_ns=None if start is None or due is None else ns(start) - ns(due),
    )
