import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.record.canonical import canonical_json, digest
from harness.record.provenance import git_state, source_digest, source_root, version
from tests.builders import make_spec

text = st.text(st.characters(codec="utf-8"))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=12)


@given(value=values)
def test_canonical_form_is_json_and_a_fixed_point(value: Any) -> None:
    once = canonical_json(value)
    assert canonical_json(json.loads(once)) == once


@given(value=values)
def test_exact_form_reads_back_as_it_was(value: Any) -> None:
    assert json.loads(canonical_json(value, digits=None)) == value


@given(value=st.dictionaries(text, st.integers()))
def test_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert digest(value) == digest(dict(reversed(value.items())))


def test_nine_digits_hide_the_last_bits_and_nothing_more() -> None:
    assert digest([0.1 + 0.2, 1e9 + 0.0001]) == digest([0.3, 1e9])
    assert digest(1.00000001) != digest(1.0)
    assert canonical_json([-0.0, 1.0, 1, True]) == b"[0.0,1.0,1,true]"


def test_infinity_is_spelled_and_nan_refused() -> None:
    assert canonical_json([math.inf, -math.inf]) == b'["inf","-inf"]'
    with pytest.raises(ValueError, match="nan"):
        canonical_json({"x": float("nan")})


@pytest.mark.parametrize("value", [{1, 2}, b"x", {1: "a"}, object()], ids=["set", "bytes", "number key", "object"])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical_json(value)


def test_the_words_of_the_house_encode() -> None:
    class Word(StrEnum):
        A = "a"

    assert canonical_json({Word.A: (np.int64(3), np.float64(0.5), Word.A)}) == b'{"a":[3,0.5,"a"]}'
    assert json.loads(canonical_json(make_spec()))["arm"]["args"] == {"max-num-seqs": 8}


def test_source_digest_sees_names_and_bytes_of_the_three_packages(tmp_path: Path) -> None:
    for package in ("harness", "workloads", "analysis"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text("x = 1\n")
    first = source_digest(tmp_path)
    (tmp_path / "harness" / "notes.txt").write_text("no code")
    (tmp_path / "tests.py").write_text("not ours")
    assert source_digest(tmp_path) == first
    (tmp_path / "analysis" / "a.py").rename(tmp_path / "analysis" / "b.py")
    renamed = source_digest(tmp_path)
    (tmp_path / "harness" / "a.py").write_text("x = 2\n")
    assert len({first, renamed, source_digest(tmp_path)}) == 3


def test_provenance_of_this_source() -> None:
    assert (source_root() / "harness" / "record" / "provenance.py").is_file()
    assert version()[0].isdigit()


def test_no_repository_is_not_known_rather_than_clean(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
