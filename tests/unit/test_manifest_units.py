"""Quantities with units: exact both ways, and nothing guessed."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.manifest import units


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("250us", 250_000),
        ("100ms", 100_000_000),
        ("1.5s", 1_500_000_000),
        ("10m", 600_000_000_000),
        ("1h", 3_600_000_000_000),
        ("7ns", 7),
        ("0s", 0),
        ("0.1s", 100_000_000),
    ],
)
def test_durations_are_exact(text: str, ns: int) -> None:
    assert units.parse_duration(text) == ns


@pytest.mark.parametrize("raw", [100, 0.5, 0])
def test_a_bare_number_is_refused_with_the_remedy(raw: float) -> None:
    with pytest.raises(units.UnitError) as caught:
        units.parse_duration(raw)
    assert "bare number" in caught.value.what
    assert "100ms" in caught.value.remedy


@pytest.mark.parametrize(
    "raw",
    ["100", "ms", "100 ms", " 1s", "1s\n", "-1s", "+1s", "1e3s", "infs", "nans", "1S", "1sec", "1,5s", "01s", "1.s", ".5s", "٣s", "1MB"],
)  # fmt: skip
def test_what_is_no_duration_is_refused(raw: str) -> None:
    with pytest.raises(units.UnitError):
        units.parse_duration(raw)


@pytest.mark.parametrize("raw", [None, True, [], {}, b"1s"])
def test_no_parser_takes_another_type(raw: object) -> None:
    for parse in (units.parse_duration, units.parse_size, units.parse_rate, units.parse_fraction):
        with pytest.raises(units.UnitError):
            parse(raw)


def test_a_number_of_any_length_is_refused() -> None:
    with pytest.raises(units.UnitError):
        units.parse_duration("9" * 16 + "s")


def test_finer_than_a_nanosecond_is_refused_not_rounded() -> None:
    with pytest.raises(units.UnitError, match="finer"):
        units.parse_duration("0.5ns")


def test_sizes_know_binary_units_only() -> None:
    assert units.parse_size("16MiB") == 16 * 2**20
    assert units.parse_size("1.5KiB") == 1536
    with pytest.raises(units.UnitError):
        units.parse_size("16MB")


def test_rates() -> None:
    assert units.parse_rate("5/s") == 5.0
    assert units.parse_rate("90/m") == 1.5
    assert units.parse_rate("1800/h") == 0.5
    with pytest.raises(units.UnitError):
        units.parse_rate(5)


def test_fractions_in_both_spellings() -> None:
    assert units.parse_fraction("2%") == units.parse_fraction(0.02) == 0.02
    assert units.parse_fraction("12.5%") == 0.125


@given(st.integers(0, 10**15))
def test_durations_survive_writing_and_reading(ns: int) -> None:
    assert units.parse_duration(units.format_duration(ns)) == ns


@given(st.integers(1, 2**49))
def test_sizes_survive_writing_and_reading(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == size


@given(st.integers(1, 10**9), st.sampled_from(["s", "m", "h"]))
def test_rates_survive_writing_and_reading(number: int, per: str) -> None:
    rate = units.parse_rate(f"{number}/{per}")
    assert units.parse_rate(units.format_rate(rate)) == rate


@given(st.text(max_size=20))
def test_any_text_gives_a_number_or_a_unit_error(text: str) -> None:
    for parse in (units.parse_duration, units.parse_size, units.parse_rate, units.parse_fraction):
        with contextlib.suppress(units.UnitError):
            assert parse(text) >= 0


@given(st.from_regex(re.compile(units.DURATION_PATTERN, re.ASCII), fullmatch=True))
def test_the_pattern_editors_see_is_the_one_we_read_by(text: str) -> None:
    try:
        units.parse_duration(text.removesuffix("\n"))
    except units.UnitError as bad:
        assert "finer" in bad.what  # noqa: PT017 - the one thing a pattern cannot say
