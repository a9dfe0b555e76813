"""One seed per dimension, derived by a keyed hash, so that one dimension can vary alone and every process agrees."""

from __future__ import annotations

import hashlib

import numpy as np

_KEY = b"trigpoint/seeds/1"


def derive(root: int, *path: str | int) -> int:
    """Derive a 63-bit seed for the dimension named by ``path`` from the manifest's root seed.

    The same arguments give the same seed in every process, Python version and PYTHONHASHSEED: BLAKE2b keyed with a constant, over
    length-prefixed parts (so that ("a", "bc") and ("ab", "c") differ).
    """
    digest = hashlib.blake2b(key=_KEY, digest_size=8)
    for part in (root, *path):
        kind = b"i" if isinstance(part, int) else b"s"
        raw = str(part).encode("utf-8")
        digest.update(kind + len(raw).to_bytes(8, "big") + raw)
    return int.from_bytes(digest.digest(), "big") >> 1


def generator(root: int, *path: str | int) -> np.random.Generator:
    """Return a PCG64 generator for the dimension ``path``; the bit generator is named so that numpy's default may change."""
    return np.random.Generator(np.random.PCG64(derive(root, *path)))
