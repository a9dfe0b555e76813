"""The load that every client of a comparison is given: the same prompts, as many, as fast, for answers of the same length."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from workloads.seeds import generator

TTFT_MS, GAP_MS, TOKENS = 20, 10, 100
"""The truth server's timing in the published comparison: first token after 20 ms, then one every 10 ms, 100 in all."""

WORDS = ("amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "lagoon", "meadow", "notch")
PROMPT_WORDS = 60
"""About 350 characters, an ordinary short prompt: what is compared is receiving, not sending."""

_SEED = 20261130


@dataclass(frozen=True, slots=True)
class Load:
    """``requests`` at ``rate`` per second, each answered with ``tokens`` tokens."""

    rate: float
    requests: int
    tokens: int = TOKENS

    def prompt(self, index: int) -> str:
        """The text of request ``index``. Its first word names it: the truth server logs that, and most tools keep the prompt."""
        picked = generator(_SEED, "peers", index).integers(0, len(WORDS), PROMPT_WORDS)
        return " ".join((f"c{index}", *(WORDS[i] for i in picked)))

    def prompts(self) -> list[str]:
        """All of them, in order."""
        return [self.prompt(index) for index in range(self.requests)]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)
