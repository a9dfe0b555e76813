"""traces convert, sample and inspect at the command line: what is written says what it is, and nothing that was asked for is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli.app import main
from workloads import read_trace

QUICKSTART = Path(__file__).parents[2] / "manifests" / "traces" / "quickstart.csv"


def traces(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["traces", *map(str, arguments)])


def answer(*arguments: str | Path) -> Any:
    done = traces(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    """A trace without times."""
    path = tmp_path / "sharegpt.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n" + "7,2,9,3.5\n" * 8, encoding="utf-8")
    return path


def test_a_converted_trace_is_the_trace(tmp_path: Path) -> None:
    out = tmp_path / "q.trigpoint.parquet"
    assert answer("convert", QUICKSTART, out)["rows"] == len(read_trace("azure-2023", QUICKSTART, {}))
    again = read_trace("trigpoint", out, {})
    assert again.arrival_ns.tolist() == read_trace("azure-2023", QUICKSTART, {}).arrival_ns.tolist()
    assert "file_exists" in traces("convert", QUICKSTART, out).output
    assert traces("convert", QUICKSTART, out, "--force").exit_code == 0


def test_a_sample_says_of_what_it_is_a_part_and_what_was_done(tmp_path: Path) -> None:
    out = tmp_path / "q.trigpoint.parquet"
    assert answer("sample", QUICKSTART, out, "--window", "0s", "5s", "--rows", "9")["rows"] == 9
    (note,) = [note for note in read_trace("trigpoint", out, {}).notes if note.startswith("a part of quickstart")]
    assert all(word in note for word in ("sort, window", "'stop_s': 5.0", "first 9 rows", "9 rows kept"))


def test_a_sample_of_a_trace_without_times_was_not_sorted_and_does_not_say_so(tmp_path: Path, lengths: Path) -> None:
    out = tmp_path / "l.trigpoint.parquet"
    assert answer("sample", lengths, out, "--rows", "3")["rows"] == 3
    (note,) = [note for note in read_trace("trigpoint", out, {}).notes if note.startswith("a part of")]
    assert "8 rows): first 3 rows; seed 0" in note


def test_a_page_that_cannot_be_drawn_is_refused_and_not_left_out(tmp_path: Path) -> None:
    text, page = tmp_path / "corpus.txt", tmp_path / "page.html"
    text.write_text("some words\n", encoding="utf-8")
    assert answer("inspect", text)["format"] == "text"
    refused = traces("inspect", text, "--html", page, "--context", "100")
    assert (refused.exit_code, refused.output.count("no_rows"), page.exists()) == (2, 2, False)
