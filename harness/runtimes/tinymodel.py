"""A tiny Llama made on the spot, without downloads: real enough for a real server, small enough for two CPU cores.

Everything in it follows from (shape, seed) and the text of this machine's Python standard library; the digest says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.errors import HostError
from harness.runtimes.digests import directory_digest

SPECIALS = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
"""Ids 0..5. Prompts made of random ids should avoid them; ``<|end|>`` ends a natural reply."""

CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of the model. The default has about 1.4 M parameters: CPU servers run it at hundreds of tokens a second."""

    hidden: int = 128
    intermediate: int = 352
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 4096
    positions: int = 8192

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads


def make_tiny_model(folder: Path, seed: int = 0, shape: TinyShape | None = None) -> str:
    """Write config, tokenizer and seeded float32 weights into ``folder`` and return its digest (hex sha256).

    ``folder`` appears whole or not at all; an existing one is left as it is and its digest returned. Takes a few seconds. Raises
    HostError ``no_training_text`` when the standard library's source is not on this machine.
    """
    if folder.exists():
        return directory_digest(folder)
    shape = shape or TinyShape()
    part = folder.with_name(f"{folder.name}.part-{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    _write_json(part / "config.json", _config(shape))
    _write_json(part / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0})
    _write_tokenizer(part, shape.vocab)
    write_safetensors(part / "model.safetensors", _weights(shape, seed))
    _write_json(part / "trigpoint.json", {"seed": seed, "shape": asdict(shape)})
    try:
        part.replace(folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(part)  # somebody else was first; the content is the same
    return directory_digest(folder)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _config(shape: TinyShape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "initializer_range": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }


def _corpus() -> Iterator[str]:
    """Source of the top modules of the standard library, in name order; enough for 4096 merges, quick to read (a few MB)."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    if not files:
        raise HostError.single(
            "no_training_text",
            "the standard library's source files are not on this machine, and the tiny tokenizer is trained on them",
            "use a Python that ships its sources, or name a model directory in the user configuration",
        )
    for path in files:
        yield path.read_text(encoding="utf-8", errors="replace")


def _write_tokenizer(folder: Path, vocab: int) -> None:
    """Byte-level BPE: every byte is a token, so any text encodes and any id decodes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer=trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin|>",
            "eos_token": "<|end|>",
            "pad_token": "<|pad|>",
            "model_max_length": 1_000_000,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _shapes(shape: TinyShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of LlamaForCausalLM."""
    h, i, kv = shape.hidden, shape.intermediate, shape.kv_heads * shape.head_dim
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab, h), "lm_head.weight": (shape.vocab, h)}
    for n in range(shape.layers):
        p = f"model.layers.{n}."
        out |= {f"{p}self_attn.{k}_proj.weight": (h if k == "q" else kv, h) for k in "qkv"}
        out |= {f"{p}self_attn.o_proj.weight": (h, h), f"{p}mlp.down_proj.weight": (h, i)}
        out |= {f"{p}mlp.gate_proj.weight": (i, h), f"{p}mlp.up_proj.weight": (i, h)}
        out |= {f"{p}input_layernorm.weight": (h,), f"{p}post_attention_layernorm.weight": (h,)}
    return out | {"model.norm.weight": (h,)}


def _weights(shape: TinyShape, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    return {name: _draw(name, size, seed) for name, size in sorted(_shapes(shape).items())}


def _draw(name: str, size: tuple[int, ...], seed: int) -> npt.NDArray[np.float32]:
    """Uniform weights of standard deviation 0.02 (norms: ones), one stream a tensor.

    From raw bits and not from ``Generator``: numpy promises the bit stream for good, the distributions only within a version.
    """
    if len(size) == 1:
        return np.ones(size, dtype=np.float32)
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    bits = np.random.PCG64(int.from_bytes(key[:16], "little")).random_raw(int(np.prod(size)))
    unit = (bits >> np.uint64(40)).astype(np.float32) / np.float32(2**24)
    return ((unit - np.float32(0.5)) * np.float32(0.02 * 12**0.5)).reshape(size)


def write_safetensors(path: Path, tensors: dict[str, npt.NDArray[np.float32]]) -> None:
    """Write float32 tensors in the safetensors layout: u64 header length, JSON header padded to 8 bytes, raw little-endian data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    head = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for tensor in tensors.values():
            out.write(np.ascontiguousarray(tensor, dtype="<f4").tobytes())
