"""Token sources: what a server's tokenizer is to a workload. Pure once loaded; nothing is ever downloaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from harness.errors import Problem, UsageError
from harness.system import embedding_size

Ids = npt.NDArray[np.int32]


class TokenSource(Protocol):
    """A vocabulary and its rules.

    ``safe_ids`` (k,) int32 ascending: ids that may be sent, below ``vocab_size``, none special. ``added_tokens``: how many tokens the
    tokenizer's own rule (a BOS, say) puts around a text prompt. ``digest``: sha256 that identifies the tokenizer.
    """

    vocab_size: int
    safe_ids: Ids
    added_tokens: int
    digest: str

    def encode(self, text: str, *, add_special: bool = False) -> Ids:
        """Token ids of ``text``; ``add_special`` puts the tokenizer's own special tokens around it, as completions servers do."""
        ...

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Text of ``ids``, special tokens included; not always the inverse of ``encode``."""
        ...


class ByteTokenizer:
    """One token a UTF-8 byte, id = byte value, 256 ids; the embedded reference server's rule.

    Of the 256, the 13 values that no UTF-8 text contains (0xC0, 0xC1, 0xF5-0xFF) are not sent.
    """

    vocab_size = 256
    added_tokens = 0
    digest = hashlib.sha256(b"trigpoint/byte-tokenizer/1").hexdigest()

    def __init__(self) -> None:
        never = {0xC0, 0xC1, *range(0xF5, 0x100)}
        self.safe_ids: Ids = _id_array(i for i in range(256) if i not in never)

    def encode(self, text: str, *, add_special: bool = False) -> Ids:  # noqa: ARG002 - bytes have no special tokens
        """Bytes of ``text`` as ids."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Text of the bytes; what is no UTF-8 becomes U+FFFD."""
        return bytes(int(i) for i in ids).decode("utf-8", "replace")


class HFTokenizer:
    """A ``tokenizer.json`` as the ``tokenizers`` library reads it, with its truncation and padding switched off.

    ``vocab_limit``: size of the model's embedding where it is known; a tokenizer may hold more ids than the model, and one id beyond it
    fails the request or kills the server.
    """

    def __init__(self, path: Path, *, vocab_limit: int | None = None) -> None:
        raw = _read(path)
        try:
            self._tokenizer = Tokenizer.from_str(raw.decode("utf-8"))
        except Exception as error:  # the library raises bare Exception
            what = f"tokenizer={path}: not a tokenizer.json that the tokenizers library reads ({_first_line(error)})"
            raise UsageError(
                Problem("tokenizer.unreadable", what, "export it with save_pretrained of a fast tokenizer", str(path))
            ) from error
        # Left on, these would cut or fill prompts and make every count wrong.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.digest = hashlib.sha256(raw).hexdigest()
        self.added_tokens = int(self._tokenizer.num_special_tokens_to_add(False))
        ids = set(self._tokenizer.get_vocab(with_added_tokens=True).values())
        special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        size = max(ids, default=-1) + 1
        self.vocab_size = size if vocab_limit is None else min(size, vocab_limit)
        self.safe_ids: Ids = _id_array(i for i in ids - special if i < self.vocab_size)
        if not len(self.safe_ids):
            what = f"tokenizer={path}: no id below {self.vocab_size} that is not special"
            raise UsageError(Problem("tokenizer.no_ids", what, "name the tokenizer of the served model", str(path)))

    def encode(self, text: str, *, add_special: bool = False) -> Ids:
        """Token ids of ``text``."""
        # The same ids as ``encode`` in two thirds of the time: it keeps no offsets into the text, which nobody here asks for.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special)
        return np.array(encoding.ids, dtype=np.int32)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Text of ``ids``, special tokens included."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))


def load_tokenizer(name: str, *, vocab_limit: int | None = None) -> TokenSource:
    """Return the token source called ``bytes``, or the one in a tokenizer.json, named itself or by its folder.

    Without ``vocab_limit``, the vocabulary of a config.json in the same folder is the limit. Raises UsageError when there is no such
    file or it cannot be read; never looks anywhere else.
    """
    if name == "bytes":
        return ByteTokenizer()
    path = Path(name)
    if path.is_dir():
        path /= "tokenizer.json"
    if not path.is_file():
        what = f"tokenizer={name!r}: no tokenizer.json there"
        raise UsageError.single("tokenizer.missing", what, "give `bytes`, the path of a tokenizer.json, or the folder that holds one")
    return HFTokenizer(path, vocab_limit=_model_vocabulary(path.with_name("config.json")) if vocab_limit is None else vocab_limit)


def _model_vocabulary(config: Path) -> int | None:
    if not config.is_file():
        return None
    try:
        return embedding_size(json.loads(_read(config)))
    except (ValueError, AttributeError) as error:
        what = f"config={config}: not a JSON object ({_first_line(error)})"
        raise UsageError(
            Problem("tokenizer.config", what, "restore the model's config.json, or move the tokenizer away", str(config))
        ) from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        what = f"path={path}: cannot be read ({error.strerror or error})"
        raise UsageError(Problem("tokenizer.unreadable", what, "check that the file exists and that you may read it", str(path))) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _id_array(ids: Iterable[int]) -> Ids:
    array = np.array(sorted(ids), dtype=np.int32)
    array.flags.writeable = False
    return array
