"""What tests of users' complaints have in common: the ways a user takes, and the list of complaints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli.app import main
from harness.errors import UsageError
from tests.tracefiles import jsonl
from workloads import ByteTokenizer, Schedule, WorkloadPlan, build_schedule
from workloads.traces.find import file_digest

SHARED = Path(__file__).parents[2] / "shared" / "traces"
here = pytest.mark.skipif(not SHARED.is_dir(), reason="the public traces are not beside the project")
S, MS = 10**9, 10**6
TABLE: dict[str, Any] = {"columns": {"arrival": "at", "input-tokens": "in", "output-tokens": "out"}, "clock": "relative", "unit": "s"}
CHATS: dict[str, Any] = TABLE | {"columns": {**TABLE["columns"], "session": "chat", "think": "think"}, "history": "included"}


def facts(name: str) -> dict[str, Any]:
    """Expected values of a public file."""
    found: dict[str, Any] = json.loads((SHARED / "facts.json").read_text())["facts"][name]
    return found


def write(folder: Path, name: str, content: bytes | str) -> Path:
    """A trace file of our own."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def inspect(path: Path, *arguments: str) -> dict[str, Any]:
    """What ``trigpoint traces inspect --json`` answers."""
    result = CliRunner().invoke(main, ["traces", "inspect", str(path), "--json", *arguments])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def warned(page: dict[str, Any]) -> dict[str, str]:
    """Warnings of an answer by code: text and remedy."""
    return {w["code"]: f"{w['text']} -> {w['remedy']}" for w in page["warnings"]}


def build(path: Path, fmt: str, options: dict[str, Any] | None = None, **changes: Any) -> Schedule:
    """The schedule of a plan on this file: every row on its own clock, prompts as the trace shares them."""
    base: dict[str, Any] = {
        "trace": {"format": fmt, "name": path.name, "sha256": file_digest(path), "options": options or {}},
        "arrivals": {"process": "trace"},
        "prompts": {"sharing": "as_trace"},
        "output": {"control": "natural"},
        "horizon_s": 1,
        "seed": 7,
    }
    plan = WorkloadPlan.model_validate(base | changes)
    return build_schedule(plan, tokens=ByteTokenizer(), search_path=(path.parent,), max_model_len=1 << 20)


def refused(path: Path, fmt: str, options: dict[str, Any] | None = None, **changes: Any) -> dict[str, str]:
    """Why no schedule can be built: problem and remedy by code."""
    with pytest.raises(UsageError) as caught:
        build(path, fmt, options, **changes)
    return {p.code: f"{p.where}: {p.what} -> {p.remedy}" for p in caught.value.problems}


def prompt(schedule: Schedule, request: int) -> list[int]:
    """Token ids of one prompt."""
    return [int(i) for i in schedule.prompts.ids(request)]


def mooncake(*rows: tuple[int, int, list[int]]) -> bytes:
    """Rows of a Mooncake file from (timestamp in ms, input tokens, ids); one output token each."""
    return jsonl({"timestamp": at, "input_length": tokens, "output_length": 1, "hash_ids": ids} for at, tokens, ids in rows)


def complaints() -> list[str]:
    """Threads of the list of users' problems, ``owner/repository#number``; a line that names two threads of one repository gives two."""
    text = (SHARED / "README.md").read_text()
    lines = text[text.index("## Problems users had") :].splitlines()
    heads = [line.removeprefix("- ").split(" (")[0].split(": ")[0] for line in lines if line.startswith("- ")]
    return [f"{head.split('#')[0]}#{number}" for head in heads for number in re.findall(r"#(\d+)", head)]
