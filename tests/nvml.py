"""The driver's management library as a recording: pynvml's own names, constants and exceptions, answers from a file."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pynvml

FOLDER = Path(__file__).parent / "fixtures" / "nvml"


class Handle(NamedTuple):
    """A device of the recording."""

    device: int


class Replay:
    """Answers every call as the file says, call by call; the last answer of a call holds. A call that the file lacks is an error of the
    test, and a name that pynvml lacks one of the recording.
    """

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self.made: list[str] = []
        self.open = False
        self._answers: dict[str, list[dict[str, Any]]] = {}
        for call in calls:
            assert callable(getattr(pynvml, call["call"])), call["call"]
            self._answers.setdefault(_key(call["call"], call["args"]), []).append(call)

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        return (lambda *args: self._answer(name, args)) if name.startswith("nvml") and callable(real) else real

    def _answer(self, name: str, args: tuple[Any, ...]) -> Any:
        self.made.append(name)
        plain = [{"device": a.device} if isinstance(a, Handle) else a for a in args]
        if name in ("nvmlInit", "nvmlShutdown") and _key(name, plain) not in self._answers:
            self.open = name == "nvmlInit"
            return None
        answers = self._answers[_key(name, plain)]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if "raises" in answer:
            raise pynvml.NVMLError(answer["raises"])
        return _live(answer["returns"])


def _key(name: str, args: list[Any]) -> str:
    return json.dumps([name, args])


def _live(value: Any) -> Any:
    if isinstance(value, list):
        return [_live(v) for v in value]
    if isinstance(value, dict):
        return Handle(**value) if value.keys() == {"device"} else SimpleNamespace(**{k: _live(v) for k, v in value.items()})
    return value


@cache
def recording(name: str) -> list[dict[str, Any]]:
    """The calls of a file under tests/fixtures/nvml."""
    calls: list[dict[str, Any]] = json.loads((FOLDER / name).read_text(encoding="utf-8"))["calls"]
    return calls


def replay(name: str = "h200x2.json", /, **refused: int) -> Replay:
    """Replay a file; ``refused``: call -> NVML's error code that each such call raises instead."""
    changed = [{"call": c["call"], "args": c["args"], "raises": refused[c["call"]]} if c["call"] in refused else c for c in recording(name)]
    known = {c["call"] for c in changed}
    extra = [{"call": call, "args": [], "raises": code} for call, code in refused.items() if call not in known]
    return Replay(changed + extra)
