"""Reader hf-datasets: local files through the package datasets, no network, every column by a map and every unit said."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import HostError, UsageError
from workloads.schedule import Trace
from workloads.traces import read_trace
from workloads.traces.hf import HfOptions, read_texts
from workloads.traces.hf_files import tree_digest

ROWS: list[dict[str, Any]] = [
    {"q": "NA", "a": "x", "n": 7, "who": "u1", "t": 1.5},
    {"q": "007", "a": "yy", "n": 8, "who": "u2", "t": 2.0},
    {"q": "", "a": "yy", "n": 8, "who": "u2", "t": 2.0},
]
TEXTS = {"columns": {"prompt": "q", "completion": "a"}, "tokenizer": "bytes"}
TIMED = {"columns": {"prompt": "q", "output-tokens": "n", "client": "who", "arrival": "t"}, "arrival-unit": "s", "tokenizer": "bytes"}
COUNTS = {"columns": {"input-tokens": "i", "output-tokens": "o"}}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any name looked up or address called is a failure of its own kind, which no reader may swallow into a trace."""

    def called(*args: object, **kwargs: object) -> None:
        raise AssertionError("the network was asked")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, called)
    monkeypatch.setattr(socket.socket, "connect", called)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    elif path.suffix == ".csv":
        path.write_text("\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, options: dict[str, Any]) -> Trace:
    return read_trace("hf-datasets", path, options)


def outcome(path: Path, options: dict[str, Any]) -> Trace | UsageError:
    try:
        return read(path, options)
    except UsageError as error:
        return error


def refused(path: Path, options: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        read(path, options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.parquet", "d.arrow"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ROWS)
    trace = read(path, TIMED)
    assert trace.input_tokens.tolist() == [2, 3]
    assert trace.output_tokens.tolist() == [7, 8]
    assert trace.arrival_ns.tolist() == [0, 500_000_000]
    assert trace.clock == "relative"
    assert trace.client is not None
    assert trace.client.values() == ["u1", "u2"]
    assert trace.skipped == {"prompt is empty": 1}
    assert read_texts(path, HfOptions.model_validate(TIMED)) == ["NA", "007"]


def test_without_an_arrival_column_there_is_no_clock(tmp_path: Path) -> None:
    trace = read(write(tmp_path / "d.jsonl", ROWS), TEXTS)
    assert trace.clock == "none"
    assert trace.arrival_ns.tolist() == [0, 0]
    assert trace.output_tokens.tolist() == [1, 2]


def test_revision_split_and_digest_of_the_data_are_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", ROWS)
    note = read(path, TEXTS | {"revision": "0e9e39f", "split": "train"}).notes[0]
    digest = note.split("data-sha256 ")[1].split(")")[0]
    assert "revision 0e9e39f, split train" in note
    assert len(read(path, TEXTS | {"data-sha256": digest})) == 2
    assert "the data files have" in refused(path, TEXTS | {"data-sha256": "0" * 64})
    assert "revision not stated" in read(path, TEXTS).notes[0]


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """A data set as a hub keeps it: a card, a script nobody runs, and shards of two splits."""
    (tmp_path / "README.md").write_text("card")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.py").write_text("raise SystemExit('a script of a data set ran')")
    (tmp_path / "data" / "dataset_info.json").write_text("{}")
    write(tmp_path / "data" / "train-00001-of-00002.parquet", [{"i": 3, "o": 30}])
    write(tmp_path / "data" / "train-00000-of-00002.parquet", [{"i": 1, "o": 10}, {"i": 2, "o": 20}])
    write(tmp_path / "data" / "test-00000-of-00001.parquet", [{"i": 9, "o": 90}])
    return tmp_path / "README.md"


def test_a_folder_is_read_by_split_in_the_order_of_its_names_and_runs_no_script(card: Path) -> None:
    trace = read(card, COUNTS | {"path": "data", "split": "train"})
    assert trace.input_tokens.tolist() == [1, 2, 3]
    assert trace.output_tokens.tolist() == [10, 20, 30]
    assert trace.notes[0].startswith("2 data files (data-sha256 ")
    assert read(card, COUNTS | {"path": "data", "split": "test"}).input_tokens.tolist() == [9]


def test_a_folder_of_several_splits_needs_one_named(card: Path) -> None:
    assert "holds files of train, test" in refused(card, COUNTS | {"path": "data"})
    assert "no files of split 'val'" in refused(card, COUNTS | {"path": "data", "split": "val"})


def test_the_digest_of_a_folder_sees_names_and_bytes(card: Path) -> None:
    options = COUNTS | {"path": "data", "split": "train"}
    before = read(card, options).notes[0]
    assert read(card, options).notes[0] == before
    write(card.parent / "data" / "train-00001-of-00002.parquet", [{"i": 4, "o": 30}])
    assert read(card, options).notes[0] != before


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("../x", "leads out"),
        ("/etc", "leads out"),
        ("absent", "nothing is downloaded"),
        ("squad", "nothing is downloaded"),
        ("README.md", "(ending|files ending)"),
    ],
)
def test_only_data_beside_the_trace_are_read(card: Path, path: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(card, COUNTS | {"path": path})


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"prompt": "q"},
        {"prompt": "q", "input-tokens": "n", "output-tokens": "n"},
        {"completion": "a", "output-tokens": "n", "prompt": "q"},
        {"nonsense": "q"},
    ],
)
def test_a_map_names_one_input_and_one_output(tmp_path: Path, columns: dict[str, str]) -> None:
    assert "columns" in refused(write(tmp_path / "d.jsonl", ROWS), {"columns": columns, "tokenizer": "bytes"})


def test_a_missing_column_is_told_with_those_that_are_there(tmp_path: Path) -> None:
    message = refused(write(tmp_path / "d.jsonl", ROWS), {"columns": {"prompt": "question", "completion": "answer"}, "tokenizer": "bytes"})
    assert "'question', 'answer'" in message
    assert "'q', 'a', 'n', 'who', 't'" in message


def test_texts_need_a_tokenizer_and_counts_do_not(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", ROWS)
    assert "tokenizer" in refused(path, {"columns": {"prompt": "q", "completion": "a"}})
    assert len(read(path, {"columns": {"input-tokens": "n", "output-tokens": "n"}})) == 3


def test_lengths_alone_have_no_texts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lengths and no texts"):
        read_texts(write(tmp_path / "d.jsonl", [{"i": 1, "o": 2}]), HfOptions.model_validate(COUNTS))


def test_vllm_39795_a_numeric_time_needs_its_unit(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", ROWS)
    assert "a number needs arrival-unit" in refused(path, {key: value for key, value in TIMED.items() if key != "arrival-unit"})
    assert read(path, TIMED | {"arrival-unit": "ms"}).arrival_ns.tolist() == [0, 500_000]


def test_time_stamps_have_their_unit_and_keep_their_nanoseconds(tmp_path: Path) -> None:
    stamps = pa.array([1_700_000_000_000_000_007, 1_700_000_000_000_000_000], pa.timestamp("ns"))
    pq.write_table(pa.table({"i": [1, 2], "o": [3, 4], "t": stamps}), tmp_path / "d.parquet")
    options: dict[str, Any] = {"columns": COUNTS["columns"] | {"arrival": "t"}}
    assert read(tmp_path / "d.parquet", options).arrival_ns.tolist() == [7, 0]
    assert "leave arrival-unit out" in refused(tmp_path / "d.parquet", options | {"arrival-unit": "s"})


def test_smg_636_a_missing_time_is_refused_and_never_0(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", [{"i": 1, "o": 1, "t": 5}, {"i": 1, "o": 1, "t": None}])
    message = refused(path, {"columns": COUNTS["columns"] | {"arrival": "t"}, "arrival-unit": "s"})
    assert "row 1: arrival=None" in message


def test_nulls_are_counted_and_wrong_values_refused_with_their_row(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", [{"i": 1, "o": 2}, {"i": None, "o": 2}, {"i": 3, "o": None}])
    assert read(path, COUNTS).skipped == {"input-tokens is null": 1, "output-tokens is null": 1}
    message = refused(write(tmp_path / "e.jsonl", [{"i": 1.5, "o": 2}, {"i": 1, "o": -2}, {"i": 1, "o": 1 << 40}]), COUNTS)
    assert all(f"row {row}" in message for row in range(3))
    assert "conversations in lists" in refused(write(tmp_path / "f.jsonl", [{"q": ["x"], "a": "y"}]), TEXTS)


def test_a_blank_number_in_csv_spoils_no_other_row(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("i,o,x\n1,2,a\n,3,b\n4,5,\n")
    trace = read(tmp_path / "d.csv", COUNTS)
    assert trace.input_tokens.tolist() == [1, 4]
    assert trace.skipped == {"input-tokens is null": 1}


def test_texts_have_the_rows_of_the_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", [{"q": q, "a": a} for q, a in (("x", "y"), ("", "y"), ("zz", None), ("www", "v"))])
    trace, texts = read(path, TEXTS), read_texts(path, HfOptions.model_validate(TEXTS))
    assert [len(texts[row]) for row in trace.source_row] == trace.input_tokens.tolist() == [1, 3]


def test_more_rows_than_a_batch_keep_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", [{"i": row, "o": 1} for row in range(2500)])
    assert read(path, COUNTS).input_tokens.tolist() == list(range(2500))


def test_without_the_package_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "d.jsonl", ROWS)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(HostError, match=r"pip install 'trigpoint\[datasets\]'"):
        read(path, TEXTS)


def test_the_packages_own_settings_are_left_as_they_were(tmp_path: Path) -> None:
    import datasets

    before = datasets.config.HF_HUB_OFFLINE, datasets.logging.get_verbosity()
    read(write(tmp_path / "d.jsonl", ROWS), TEXTS)
    refused(write(tmp_path / "e.jsonl", [{"x": 1}]), TEXTS)
    assert (datasets.config.HF_HUB_OFFLINE, datasets.logging.get_verbosity()) == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    st.sampled_from([".json", ".jsonl", ".csv", ".parquet", ".arrow"]),
    st.binary(max_size=40),
    st.sampled_from([b"", b'{"i":1,"o":2}\n', b"i,o\n1,2\n"]),
)
def test_any_bytes_end_in_a_trace_or_in_problems(tmp_path: Path, ending: str, noise: bytes, head: bytes) -> None:
    path = tmp_path / f"d{ending}"
    path.write_bytes(head + noise)
    result = outcome(path, COUNTS)
    if isinstance(result, UsageError):
        assert all(problem.code.startswith("trace.") for problem in result.problems)
    else:
        assert len(result) > 0


def test_a_digest_of_files_whose_folders_end_alike_keeps_their_names_apart(tmp_path: Path) -> None:
    def digest(first: str, second: str) -> str:
        return tree_digest([write(tmp_path / first / "data" / "a.jsonl", ROWS), write(tmp_path / second / "data" / "b.jsonl", ROWS)])

    assert digest("2024", "2025") != digest("2024", "2026")
