"""Manifest arguments against a parser: every wrong one is named, every right one becomes the argv that was meant."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HostError
from harness.runtimes import flags

PARSER = argparse.ArgumentParser(add_help=False)
PARSER.add_argument("--max-num-seqs", type=int)
PARSER.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction)
PARSER.add_argument("--enforce-eager", action="store_true")
PARSER.add_argument("--scheduling-policy", choices=["fcfs", "priority"])
PARSER.add_argument("--lora-modules", nargs="+")
PARSER.add_argument("--compilation-config", "-cc")
PARSER.add_argument("--dtype")

DUMP = [{"flags": a.option_strings, "nargs": a.nargs, "choices": list(a.choices) if a.choices else None} for a in PARSER._actions]
OPTIONS = flags.parse_dump(DUMP)
RESERVED = {"dtype": "set pins.model.dtype"}


def codes(**args: Any) -> list[str]:
    return [p.code for p in flags.check_args({k.replace("_", "-"): v for k, v in args.items()}, OPTIONS, RESERVED)]


def test_dump_lists_positive_names_only() -> None:
    assert sorted(OPTIONS) == sorted(
        ["max-num-seqs", "enable-chunked-prefill", "enforce-eager", "scheduling-policy", "lora-modules", "compilation-config", "dtype"]
    )
    assert OPTIONS["enable-chunked-prefill"].negatable
    assert not OPTIONS["enforce-eager"].negatable
    assert OPTIONS["lora-modules"].many


def test_right_arguments_pass_and_become_argv() -> None:
    args = {
        "max-num-seqs": 4, "enable-chunked-prefill": False, "enforce-eager": True, "scheduling-policy": "priority",
        "lora-modules": ["a", "b"], "compilation-config": {"mode": 0, "a": 1},
    }  # fmt: skip
    assert flags.check_args(args, OPTIONS, RESERVED) == []
    argv = flags.to_argv(args, OPTIONS)
    assert argv == [
        "--compilation-config", '{"a":1,"mode":0}', "--no-enable-chunked-prefill", "--enforce-eager", "--lora-modules", "a", "b",
        "--max-num-seqs", "4", "--scheduling-policy", "priority",
    ]  # fmt: skip
    parsed = PARSER.parse_args(argv)
    assert parsed.max_num_seqs == 4
    assert parsed.enable_chunked_prefill is False


def test_false_on_a_switch_without_a_no_form_is_left_out() -> None:
    assert flags.to_argv({"enforce-eager": False}, OPTIONS) == []


def test_an_unknown_flag_is_refused_with_the_nearest_name() -> None:
    (problem,) = flags.check_args({"max-num-seq": 4}, OPTIONS, RESERVED)
    assert problem.code == "flag_unknown"
    assert "did you mean `max-num-seqs`" in problem.remedy


@pytest.mark.parametrize("spelling", ["max_num_seqs", "--max-num-seqs"])
def test_other_spellings_are_refused_so_that_equal_arms_look_equal(spelling: str) -> None:
    (problem,) = flags.check_args({spelling: 4}, OPTIONS, RESERVED)
    assert "`max-num-seqs`" in problem.remedy


def test_a_no_form_is_refused_for_false() -> None:
    (problem,) = flags.check_args({"no-enable-chunked-prefill": True}, OPTIONS, RESERVED)
    assert "`enable-chunked-prefill: false`" in problem.remedy


def test_every_problem_is_reported_at_once() -> None:
    found = flags.check_args({"dtype": "float16", "nonsense": 1, "max-num-seqs": True, "enforce-eager": 3}, OPTIONS, RESERVED)
    assert [p.code for p in found] == ["flag_reserved", "flag_value", "flag_value", "flag_unknown"]
    assert found[0].remedy == "set pins.model.dtype"


@pytest.mark.parametrize(
    "args",
    [
        {"max_num_seqs": None}, {"max_num_seqs": [1, 2]}, {"scheduling_policy": "lifo"}, {"enable_chunked_prefill": "yes"},
        {"compilation_config": "--host"}, {"lora_modules": ["ok", "-x"]}, {"lora_modules": []},
    ],
)  # fmt: skip
def test_wrong_values_are_refused(args: dict[str, Any]) -> None:
    assert codes(**args) == ["flag_value"]


@pytest.mark.parametrize(
    "value",
    [
        "os.system", "my_package.passes:Mine", "/etc/passwd", "~/x", "../x", "@config.yaml", "https://host/x", "tcp://10.0.0.1:1",
        {"inductor_passes": {"a": "os.system"}}, {"x": [1, {"y": "/home/z"}]}, {"/home/key": 1}, '{"backend": "os.system"}', "{cut",
    ],
)  # fmt: skip
def test_a_value_that_names_code_a_file_or_a_host_is_refused_wherever_it_hides(value: Any) -> None:
    assert codes(compilation_config=value) == ["flag_value"]
    assert codes(lora_modules=["ok", value]) == ["flag_value"]


@pytest.mark.parametrize(
    "value", ["auto", "0.5", "qwen2.5", "FLASH_ATTN", "16,32", "a/b", "0-3|4-7", {"mode": 3, "backend": "eager"}, '{"a": [1]}']
)
def test_a_value_that_only_tunes_passes(value: Any) -> None:
    assert codes(compilation_config=value) == []


@pytest.mark.parametrize("value", [-1, -0.5, "-1"])
def test_negative_numbers_are_values(value: Any) -> None:
    assert codes(max_num_seqs=value) == []


@given(st.dictionaries(st.text(max_size=20), st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.lists(st.integers())))
def test_whatever_passes_the_check_is_understood_by_the_parser_as_named(args: dict[str, Any]) -> None:
    if flags.check_args(args, OPTIONS, RESERVED):
        return
    given_args = {k: v for k, v in args.items() if v is not False}
    parsed = vars(PARSER.parse_args(flags.to_argv(args, OPTIONS)))
    assert all(parsed[k.replace("-", "_")] is not None for k in given_args)


def test_the_dump_is_asked_once_and_kept(tmp_path: Path) -> None:
    cache = tmp_path / "flags.json"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho noise\necho '{orjson.dumps(DUMP).decode()}'\n")
    python.chmod(0o700)
    assert flags.installed_options(python, "", cache, {}) == OPTIONS
    python.unlink()
    assert flags.installed_options(python, "", cache, {}) == OPTIONS
    cache.write_text("[{")
    with pytest.raises(HostError, match="could not be asked"):
        flags.installed_options(python, "", cache, {})


def test_a_parser_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no module named torch' >&2\nexit 1\n")
    python.chmod(0o700)
    with pytest.raises(HostError, match="no module named torch"):
        flags.installed_options(python, "", tmp_path / "flags.json", {})
    assert not (tmp_path / "flags.json").exists()
