"""One broken rule, before it has a line number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.manifest.document import Path


class Finding(NamedTuple):
    """One broken rule; ``what`` continues the dotted path."""

    code: str
    path: Path
    what: str
    remedy: str


Findings = Iterator[Finding]
