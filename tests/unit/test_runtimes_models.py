"""The tiny model is a function of its seed; a manifest's model id never reaches outside the folders the user allows."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harness.errors import HostError, UsageError
from harness.runtimes import models
from harness.runtimes.digests import directory_digest
from harness.runtimes.tinymodel import SPECIALS, TinyShape, make_tiny_model, write_safetensors

SMALL = TinyShape(hidden=16, intermediate=32, layers=1, vocab=300, positions=128)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    make_tiny_model(folder, 7, SMALL)
    return folder


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIGPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TRIGPOINT_MODELS", raising=False)


def test_same_seed_same_bytes_other_seed_other_weights(tiny: Path, tmp_path: Path) -> None:
    assert make_tiny_model(tmp_path / "again", 7, SMALL) == directory_digest(tiny)
    make_tiny_model(tmp_path / "other", 8, SMALL)
    assert (tmp_path / "other/tokenizer.json").read_bytes() == (tiny / "tokenizer.json").read_bytes()
    assert (tmp_path / "other/model.safetensors").read_bytes() != (tiny / "model.safetensors").read_bytes()


def test_an_existing_folder_is_left_alone(tiny: Path) -> None:
    before = directory_digest(tiny)
    assert make_tiny_model(tiny, 99, SMALL) == before


def test_tokenizer_has_the_specials_first_and_round_trips_any_text(tiny: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == SMALL.vocab
    assert [tokenizer.id_to_token(i) for i in range(6)] == list(SPECIALS)
    config = json.loads((tiny / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 0)

    @given(st.text(max_size=40))
    def round_trip(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text

    round_trip()


def test_weights_are_what_the_header_says(tiny: Path) -> None:
    raw = (tiny / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    assert size % 8 == 0
    entry = header["lm_head.weight"]
    start, stop = (8 + size + o for o in entry["data_offsets"])
    weights = np.frombuffer(raw[start:stop], dtype="<f4").reshape(entry["shape"])
    assert weights.shape == (300, 16)
    assert abs(float(weights.std()) - 0.02) < 0.002
    assert max(e["data_offsets"][1] for n, e in header.items() if n != "__metadata__") == len(raw) - 8 - size


def test_safetensors_are_read_by_the_format_s_own_library(tmp_path: Path) -> None:
    numpy_io = pytest.importorskip("safetensors.numpy")
    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(1, dtype=np.float32)}
    write_safetensors(tmp_path / "t", tensors)
    read = numpy_io.load_file(tmp_path / "t")
    assert {k: v.tolist() for k, v in read.items()} == {k: v.tolist() for k, v in tensors.items()}


def test_allowed_models_are_found_by_name(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIGPOINT_MODELS", f"/nowhere:{tiny.parent}")
    assert models.model_config(models.model_dir("small"))["vocab_size"] == 300
    assert models.model_digest(models.model_dir("small")) == directory_digest(tiny)
    monkeypatch.setenv("TRIGPOINT_MODELS", str(tiny))
    assert models.model_dir("small") == tiny
    assert models.find_model("org/absent") is None


def test_an_id_never_climbs_out_of_a_root(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tiny)
    monkeypatch.setenv("TRIGPOINT_MODELS", str(root))
    for name in ("../models/small", str(tiny), "link", f"../{tiny.parent.name}/small"):
        assert models.find_model(name) is None
    with pytest.raises(HostError, match="link") as caught:
        models.model_dir("link")
    assert caught.value.problems[0].code == "model_missing"


def test_models_from_the_user_s_configuration(tiny: Path, tmp_path: Path) -> None:
    config = tmp_path / "config/trigpoint"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(f"models = [{str(tiny.parent)!r}]\n")
    assert tiny.parent in models.model_roots()
    (config / "config.toml").write_text("models = [")
    with pytest.raises(UsageError, match="not TOML"):
        models.model_roots()


def test_a_digest_sees_names_contents_and_no_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = directory_digest(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/x").write_text("2")
    assert directory_digest(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "b")
    assert directory_digest(tmp_path) != first
