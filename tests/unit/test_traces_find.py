"""Traces are found by name and content; what was searched and what differs is always said."""

from __future__ import annotations

import gzip
import hashlib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from harness.errors import HostError, UsageError
from workloads.plan import TraceSource
from workloads.profiles import profile
from workloads.traces import find as finding
from workloads.traces import find_trace, guess_format, load_trace, registry, streams, trace_ref
from workloads.traces.azure import HEADER

RAW = HEADER + b"\n2023-11-16 18:15:46.6805900,374,44\n"
SHA = hashlib.sha256(RAW).hexdigest()


def source(name: str = "conv", sha256: str = SHA) -> TraceSource:
    return TraceSource(format="azure-2023", name=name, sha256=sha256)


def put(path: Path, raw: bytes = RAW) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("name", ["conv", "conv.csv"])
def test_the_ending_may_be_left_out(tmp_path: Path, name: str) -> None:
    assert (
        find_trace(source(name), [tmp_path / "absent", put(tmp_path / "a" / "b" / "conv.csv").parents[1]])
        == tmp_path / "a" / "b" / "conv.csv"
    )


def test_content_decides_between_files_of_one_name(tmp_path: Path) -> None:
    put(tmp_path / "one" / "conv.csv", b"other")
    right = put(tmp_path / "two" / "conv.csv")
    assert find_trace(source(), [tmp_path]) == right


def test_search_order_decides_between_equal_files(tmp_path: Path) -> None:
    first, second = put(tmp_path / "b" / "conv.csv"), put(tmp_path / "a" / "conv.csv")
    assert find_trace(source(), [tmp_path / "b", tmp_path / "a"]) == first
    assert find_trace(source(), [tmp_path]) == second


def test_a_missing_trace_lists_every_directory(tmp_path: Path) -> None:
    put(tmp_path / "here" / "conversation.csv")  # a longer name is another name
    with pytest.raises(UsageError) as caught:
        find_trace(source(), [tmp_path / "here", tmp_path / "gone"])
    (problem,) = caught.value.problems
    assert problem.code == "trace.not_found"
    assert str(tmp_path / "here") in problem.what
    assert f"{tmp_path / 'gone'} (no such directory)" in problem.what
    assert SHA in problem.remedy


def test_an_empty_search_path_says_so() -> None:
    with pytest.raises(UsageError, match="the search path is empty"):
        find_trace(source(), [])


def test_a_wrong_digest_shows_both_for_every_candidate(tmp_path: Path) -> None:
    paths = [put(tmp_path / "a" / "conv.csv", b"x"), put(tmp_path / "b" / "conv.csv", b"y")]
    with pytest.raises(UsageError) as caught:
        find_trace(source(), [tmp_path])
    assert [p.code for p in caught.value.problems] == ["trace.digest_mismatch"] * 2
    for path, problem in zip(paths, caught.value.problems, strict=True):
        assert problem.where == str(path)
        assert SHA in problem.what
        assert hashlib.sha256(path.read_bytes()).hexdigest() in problem.what


def test_names_with_folders_are_refused(tmp_path: Path) -> None:
    put(tmp_path / "conv.csv")
    for name in ("../conv.csv", "a/conv.csv", "/conv.csv", ""):
        with pytest.raises(UsageError, match=r"trace\.name"):
            find_trace(source(name), [tmp_path])


def test_depth_is_bounded_and_said(tmp_path: Path) -> None:
    put(tmp_path.joinpath(*"abcde") / "conv.csv")
    with pytest.raises(UsageError, match="not deeper than 4 folders"):
        find_trace(source(), [tmp_path])
    assert find_trace(source(), [tmp_path / "a"]).name == "conv.csv"


def test_entries_are_bounded_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(5):
        put(tmp_path / f"{index}.txt", b"")
    put(tmp_path / "z" / "conv.csv")
    monkeypatch.setattr(finding, "MAX_ENTRIES", 4)
    with pytest.raises(UsageError, match="stopped after 4 entries"):
        find_trace(source(), [tmp_path])


def test_links_to_files_are_followed_and_to_folders_are_not(tmp_path: Path) -> None:
    real = put(tmp_path / "elsewhere" / "conv.csv")
    here = tmp_path / "here"
    here.mkdir()
    (here / "loop").symlink_to(here)
    (here / "folder").symlink_to(real.parent)
    with pytest.raises(UsageError, match=r"trace\.not_found"):
        find_trace(source(), [here])
    (here / "conv.csv").symlink_to(real)
    assert find_trace(source(), [here]) == here / "conv.csv"


def test_a_folder_with_the_name_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "conv.csv").mkdir()
    with pytest.raises(UsageError, match=r"trace\.not_found"):
        find_trace(source(), [tmp_path])


def test_loading_gives_the_verified_trace_and_its_reference(tmp_path: Path) -> None:
    put(tmp_path / "conv.csv")
    trace = load_trace(source(), [tmp_path])
    assert trace_ref(trace) == {
        "format": "azure-2023",
        "name": "conv.csv",
        "sha256": SHA,
        "licence": "unknown",
        "attribution": trace.attribution,
    }


def test_another_file_of_the_name_is_refused_by_its_digest_and_not_for_what_it_holds(tmp_path: Path) -> None:
    put(tmp_path / "conv.csv", b"nothing like a trace")
    with pytest.raises(UsageError) as caught:
        load_trace(source(), [tmp_path])
    assert [p.code for p in caught.value.problems] == ["trace.digest_mismatch"]
    put(tmp_path / "conv.csv", RAW + b"2023-11-16 18:15:47.0000000,1,1\n")
    with pytest.raises(UsageError) as caught:
        load_trace(source(), [tmp_path])
    assert [p.code for p in caught.value.problems] == ["trace.digest_mismatch"]


def test_a_pinned_file_that_is_no_trace_says_what_is_wrong_in_it(tmp_path: Path) -> None:
    raw = b"nothing like a trace"
    put(tmp_path / "conv.csv", raw)
    with pytest.raises(UsageError, match=r"trace\.header"):
        load_trace(source(sha256=hashlib.sha256(raw).hexdigest()), [tmp_path])


def test_a_file_found_twice_by_the_search_path_is_one_file(tmp_path: Path) -> None:
    path = put(tmp_path / "a" / "conv.csv")
    assert finding.sole_candidate(source(), [tmp_path, tmp_path / "a"]) == path
    put(tmp_path / "b" / "conv.csv", b"other")
    assert finding.sole_candidate(source(), [tmp_path]) is None
    assert load_trace(source(), [tmp_path]).sha256 == SHA
    assert finding.sole_candidate(source("absent"), [tmp_path]) is None
    assert finding.sole_candidate(source("../conv.csv"), [tmp_path]) is None


def test_a_file_that_unpacks_to_more_than_is_read_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MAX_WHOLE", 1000)
    packed = put(tmp_path / "bomb.csv.gz", gzip.compress(b"0" * 1001))
    with pytest.raises(UsageError) as caught:
        finding.read_bytes(packed)
    assert [problem.code for problem in caught.value.problems] == ["trace.too_large"]
    assert finding.read_bytes(put(tmp_path / "whole.csv.gz", gzip.compress(b"0" * 1000))) == b"0" * 1000


@pytest.mark.parametrize("packed", [False, True])
def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    monkeypatch.setattr(streams, "MAX_LINE", 100)
    raw = b"[" * 50 + b"\n" + b"0" * 300
    path = put(tmp_path / "t.jsonl", gzip.compress(raw) if packed else raw)
    with pytest.raises(UsageError) as caught:
        list(streams.line_blocks(path, 16))
    assert [problem.code for problem in caught.value.problems] == ["trace.long_line"]


def test_a_damaged_gzip_file_whose_format_is_asked_for_is_called_unreadable(tmp_path: Path) -> None:
    packed = put(tmp_path / "t.jsonl.gz", gzip.compress(RAW)[:10] + b"\xff" * 50)
    with pytest.raises(UsageError) as caught:
        guess_format(packed)
    assert [problem.code for problem in caught.value.problems] == ["trace.unreadable"]


def test_a_plug_in_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("theirs", "no_such_package_of_theirs:READER", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [broken])
    with pytest.raises(HostError) as caught:
        registry._readers.__wrapped__()
    (problem,) = caught.value.problems
    assert problem.code == "trace.plugin"
    assert "theirs=no_such_package_of_theirs:READER" in problem.what


def test_a_file_without_a_layout_to_show_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "t.parquet", b"\x1f\x8b" + bytes(1000))
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("read whole"))
    assert profile(path, "trigpoint") == {"bytes": 1002, "compressed": True}
