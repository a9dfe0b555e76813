"""The model that is not one: a byte vocabulary, tokens and natural lengths drawn from the request's seed.

Realized lengths are known here and nowhere else: the executor asks row by row, the policy never does.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

VOCAB_SIZE = 256
"""One id for each byte value: id = byte."""

EOS_ID = 0
"""Ends a natural output; counted as an output token, its text is empty. Prompts may hold it."""

_FIRST_PRINTABLE, _PRINTABLES = 32, 95  # ASCII space to tilde: each generated token is one whole character of valid UTF-8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
MODEL_DESCRIPTION = (
    f"byte vocabulary {VOCAB_SIZE}, eos {EOS_ID}, printable output by splitmix64 of seed and position, geometric natural length, rule 1"
)


def model_digest(natural_mean: float) -> str:
    """sha256 over everything that decides which tokens are generated."""
    return hashlib.sha256(f"{MODEL_DESCRIPTION}, mean {natural_mean!r}".encode()).hexdigest()


def tokenizer_digest() -> str:
    """sha256 of the byte tokenizer's definition."""
    return hashlib.sha256(b"bytes: id = byte value, vocabulary 256, UTF-8").hexdigest()


def mix(seed: int, position: int) -> int:
    """splitmix64 of a seed and a position: 64 well-mixed bits, equal in every process (Steele, Lea, Flood 2014)."""
    z = (seed + (position + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def tokens_at(seeds: UInt64, index: Int64, natural: Int64) -> Int64:
    """``Truth.token`` for many requests at once: seeds, 0-based positions and natural lengths (k,)."""
    mixed = seeds + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    printable = _FIRST_PRINTABLE + (mixed % np.uint64(_PRINTABLES)).astype(np.int64)
    return np.where(index + 1 >= natural, np.int64(EOS_ID), printable)


def natural_length(seed: int, mean: float, minimum: int = 1) -> int:
    """Draw the natural output length, EOS included: geometric on 1, 2, ... with the given mean >= 1, raised to ``minimum``."""
    if mean <= 1:
        return max(1, minimum)
    # 53 bits make a uniform number in (0, 1]; inversion of the geometric law.
    uniform = ((mix(seed ^ 0x5EED, 0) >> 11) + 1) / 9007199254740992.0
    return max(1 + int(math.log(uniform) / math.log1p(-1.0 / mean)), minimum)


@dataclass(frozen=True, slots=True)
class Truth:
    """Hidden truth of one request: its seed, and the output length at which EOS comes (None: never, ignore_eos)."""

    seed: int
    natural: int | None

    def token(self, index: int) -> int:
        """Id of output token ``index`` (0-based)."""
        if self.natural is not None and index + 1 >= self.natural:
            return EOS_ID
        return _FIRST_PRINTABLE + mix(self.seed, index) % _PRINTABLES


def encode_text(text: str) -> bytes:
    """Token ids of a text: its UTF-8 bytes."""
    return text.encode("utf-8")
