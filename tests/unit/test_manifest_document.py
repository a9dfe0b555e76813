"""YAML to plain data: what is refused, where, and what is never guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import Problem
from harness.manifest import document
from harness.manifest.document import decode, read


def codes(text: str) -> list[tuple[str, str]]:
    return [(p.code, p.where) for p in read(text).problems]


def test_lines_are_those_of_the_keys() -> None:
    lines = read("a: 1\nb:\n  c: [1,\n    2]\n").lines
    assert (lines["a",], lines["b",], lines["b", "c"], lines["b", "c", 1]) == (1, 2, 3, 4)


def test_a_line_falls_back_to_the_nearest_key_above() -> None:
    assert read("a: 1\nb:\n  c: 2\n").line(("b", "x", 3)) == 2


def test_duplicate_keys_name_both_lines() -> None:
    (problem,) = read("a: 1\nb: 2\na: 3\n").problems
    assert (problem.code, problem.where) == ("duplicate_key", "3")
    assert "line 1" in problem.what


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("true", True),
        ("null", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("0.5", 0.5),
        ("0e9e39f", "0e9e39f"),
    ],
)
def test_scalars_of_yaml_1_1_are_not_guessed(text: str, value: object) -> None:
    found = read(f"a: {text}\n")
    assert found.problems == []
    assert found.data == {"a": value}
    assert type(found.data["a"]) is type(value)


@pytest.mark.parametrize("text", [".nan", ".inf", "-.inf", "1e999", "017", "9" * 19, "1e301"])
def test_numbers_that_are_none_are_refused(text: str) -> None:
    assert codes(f"x: 1\na: {text}\n") == [("bad_number", "2")]


@pytest.mark.parametrize("text", ["!!python/object/apply:os.system [id]", "!!str 3", "!mine {b: 1}", "!!binary aGk=", "!!set {a, b}"])
def test_tags_are_refused(text: str) -> None:
    assert ("bad_tag", "1") in codes(f"a: {text}\n")


@pytest.mark.parametrize("text", ["1: a", "true: a", "null: a", "[a]: b", "{a: 1}: b"])
def test_keys_are_text(text: str) -> None:
    assert codes(f"{text}\n") == [("bad_key", "1")]


def test_merge_keys_have_no_power() -> None:
    assert read("a: &x {b: 1}\nc:\n  <<: *x\n").data["c"] == {"<<": {"b": 1}}


def test_aliases_are_copies() -> None:
    assert read("a: &x [1]\nb: *x\n").data == {"a": [1], "b": [1]}


def test_an_alias_bomb_is_stopped() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    found = read("\n".join(lines))
    assert found.data is None
    assert [p.code for p in found.problems] == ["too_many_values"]
    assert found.values <= document.MAX_VALUES + 1


def test_an_alias_inside_itself_is_stopped() -> None:
    assert codes("a: &a [*a]\n") == [("too_deep", "1")]


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "- " * 5000])
def test_depth_is_limited_before_recursion_is(text: str) -> None:
    assert [c for c, _ in codes(text)] == ["too_deep"]


def test_too_many_values_are_stopped_early() -> None:
    assert [c for c, _ in codes("[" + "1," * (document.MAX_VALUES + 10) + "]")] == ["too_many_values"]


@pytest.mark.parametrize("text", ["a\0b: 1", "a: \x07", "a: 1\rb: 2", "\ufeffa: 1", "a: \u2028"])
def test_control_characters_are_refused(text: str) -> None:
    assert codes(text) == [("bad_character", "1")]


@pytest.mark.parametrize("escape", [r"\0", r"\ud800", r"\x07", r"\L"])
def test_escapes_of_control_characters_are_refused(escape: str) -> None:
    assert codes(f'a: 1\nb: "{escape}"\n') == [("bad_character", "2")]


def test_crlf_is_read_and_counted_once() -> None:
    found = read("a: 1\r\nb: 2\r\na: 3\r\n")
    assert [(p.code, p.where) for p in found.problems] == [("duplicate_key", "3")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("--- 1\n--- 2\n", "bad_yaml"),
        ("a: b: c", "bad_yaml"),
        ("a: [1", "bad_yaml"),
        ("a: *x", "bad_yaml"),
        ("\ta: 1", "bad_yaml"),
    ],
)
def test_what_is_no_single_document_is_refused(text: str, code: str) -> None:
    assert [c for c, _ in codes(text)] == [code]


def test_bytes_must_be_utf8_and_say_where_they_are_not() -> None:
    problem = decode(b"a: 1\nb: \xff\n")
    assert isinstance(problem, Problem)
    assert (problem.code, problem.where) == ("not_utf8", "2")
    assert isinstance(decode("a: 1".encode("utf-16")), Problem)
    assert decode(b"\xef\xbb\xbfa: 1") == "a: 1"


def test_size_is_limited() -> None:
    found = decode(b" " * (document.MAX_BYTES + 1))
    assert isinstance(found, Problem)
    assert found.code == "too_large"
    assert codes(" " * (document.MAX_BYTES + 1)) == [("too_large", "")]


YAMLISH = st.text(st.sampled_from("ab:-[]{},&*!#|>'\"\\ \n\t%@`~?0.1e<\0é"), max_size=60)


@given(YAMLISH)
def test_no_text_raises(text: str) -> None:
    found = read(text)
    assert found.problems or found.values
    assert all(p.code and p.remedy for p in found.problems)


@given(st.binary(max_size=60))
def test_no_bytes_raise(raw: bytes) -> None:
    text = decode(raw)
    assert isinstance(text, Problem) or read(text) is not None
