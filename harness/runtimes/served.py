"""Facts that are found the same way for every real server we start: from its environment, its log's beginning and the model's files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness.errors import HostError
from harness.runtimes.asking import served_models
from harness.runtimes.digests import file_digest
from harness.runtimes.environments import Environment
from harness.runtimes.models import find_model, model_digest
from harness.system import Fact, Pins

HEAD_BYTES = 4 << 20
"""The banner stands at the start of the log; request lines behind it may run to gigabytes."""

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def known(value: Any, source: str, reason: str) -> Fact:
    """A fact, or its absence with the reason."""
    return Fact(value=value, source=source) if value is not None else Fact(reason=reason, source=source)


def served_length(base_url: str, model_id: str) -> int:
    """Longest prompt plus answer of ``model_id`` as GET /v1/models states it; HostError ``server_silent``.

    The list is the proof of what is served: SGLang answers a request for any name.
    """
    listed = {m["id"]: m for m in served_models(base_url)}
    length = listed.get(model_id, {}).get("max_model_len")
    if isinstance(length, int):
        return length
    raise HostError.single(
        "server_silent",
        f"model={model_id}: GET /v1/models names no such model with a max_model_len (it lists {sorted(listed)})",
        "read the server's log; its adapter knows vLLM's and SGLang's answer only",
    )


def read_head(log: Path | None) -> list[str]:
    """Lines of the log's beginning without colours; [] when there is no log."""
    if log is None or not log.exists():
        return []
    with log.open("rb") as source:
        text = source.read(HEAD_BYTES).decode("utf-8", errors="replace")
    return [_ESCAPES.sub("", line) for line in text.splitlines()]


def environment_facts(env: Environment | None) -> dict[str, Fact]:
    """Which installed environment it runs from."""
    why = "the environment is no longer installed"
    return {
        "server.packages": known(env.packages_digest() if env else None, "package metadata of the environment", why),
        "server.lock_digest": known(env.digest if env else None, "lock file", why),
        "server.environment": known(env.name if env else None, "READY marker", why),
    }


def model_facts(pins: Pins) -> dict[str, Fact]:
    """Digests of the files that were served."""
    folder = find_model(pins.model.id)
    here = folder is not None and folder.is_dir()
    tokenizer = folder / "tokenizer.json" if folder is not None else None
    counted = file_digest(tokenizer) if tokenizer is not None and tokenizer.is_file() else None
    return {
        "model.digest": known(model_digest(folder) if folder is not None and here else None, "model files", "the files are not here"),
        "model.revision": Fact(reason="a local directory has no revision; model.digest identifies it", source="model files"),
        "tokenizer.digest": known(counted, "tokenizer.json", "the model directory has no tokenizer.json"),
    }
