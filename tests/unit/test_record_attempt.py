import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.clock import VirtualClock
from harness.errors import HostError, UsageError
from harness.record import durable
from harness.record.attempt import Attempt
from harness.record.coordinates import RunCoordinates
from harness.record.reader import find_attempts, latest_sealed, read_campaign_runs, read_run
from harness.record.schema import REQUESTS, RUN_FILES, SAMPLES, SCHEDULE, TRUTH
from harness.record.seal import check_seal
from harness.record.segments import SegmentWriter
from tests.builders import make_coordinates, make_facts, make_request, make_spec

Row = dict[str, Any]
ROWS = [make_request(i, (i // 2) * 1000) for i in range(8)]


def never_sent(offered: int) -> Callable[[set[int]], list[Row]]:
    empty: Row = {"event_ns": [], "event_tokens": [], "event_bytes": [], "event_kind": [], "end_kind": "never_sent"}
    return lambda recorded: [empty | {"request_id": i, "arrival_ns": (i // 2) * 1000} for i in range(offered) if i not in recorded]


def write_segment(attempt: Attempt, name: str, rows: list[Row], schema: pa.Schema = REQUESTS) -> None:
    with SegmentWriter(attempt.segments, name, schema, clock=VirtualClock()) as writer:
        writer.append(rows)


def sample(t: int, source: str = "host") -> Row:
    return {"t_ns": t, "source": source, "metric": "m", "labels": None, "value": 0.5}


def fill_in(attempt: Attempt, rows: list[Row] = ROWS) -> None:
    """Everything a finished attempt holds, before compaction; two workers with interleaved requests."""
    attempt.write_manifest("trigpoint: 1\n")
    attempt.write_spec(make_spec(attempt=attempt.number))
    attempt.write_coordinates(RunCoordinates(coordinates=make_coordinates()))
    attempt.write_facts(make_facts())
    plan = [{"request_id": r["request_id"], "arrival_ns": r["arrival_ns"], "input_tokens": 16} for r in rows]
    attempt.write_schedule(pa.Table.from_pylist(plan, SCHEDULE))
    attempt.write_truth(pa.Table.from_pylist([{"request_id": r["request_id"], "output_tokens": 5} for r in rows], TRUTH))
    attempt.server_log.write_text("ready\n")
    write_segment(attempt, "requests-0", rows[1::2][::-1])
    write_segment(attempt, "requests-1", rows[0::2])
    write_segment(attempt, "server-0", [sample(2, "server"), sample(1, "server")], SAMPLES)
    write_segment(attempt, "host-0", [sample(3)], SAMPLES)
    write_segment(attempt, "client-0", [sample(1, "client")], SAMPLES)


def finished(results: Path, replicate: int = 0) -> Attempt:
    attempt = Attempt.create(results, "demo", "a@x1", replicate)
    fill_in(attempt)
    attempt.compact(never_sent(len(ROWS)))
    attempt.seal()
    return attempt


def test_attempts_count_up_and_never_touch_an_earlier_one(tmp_path: Path) -> None:
    first = Attempt.create(tmp_path, "demo", "a@rate-1e+06", 3)
    first.observe("hello", n=1)
    second = Attempt.create(tmp_path, "demo", "a@rate-1e+06", 3)
    assert (first.number, second.number) == (1, 2)
    assert second.path == tmp_path / "demo" / "a@rate-1e+06" / "3" / "2"
    assert second.segments.is_dir()
    assert (first.path / "observations.jsonl").exists()


@pytest.mark.parametrize(
    ("campaign", "cell", "replicate"), [("..", "a", 0), ("a/b", "a", 0), ("demo", "../a", 0), ("demo", "", 0), ("demo", "a", -1)]
)
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, campaign: str, cell: str, replicate: int) -> None:
    with pytest.raises(UsageError, match="record_name"):
        Attempt.create(tmp_path, campaign, cell, replicate)
    assert list(tmp_path.iterdir()) == []


@given(name=st.text(max_size=12))
@settings(max_examples=60, deadline=None)
def test_whatever_the_name_nothing_appears_outside_results(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    top = tmp_path_factory.mktemp("top", numbered=True)
    try:
        attempt = Attempt.create(top / "results", name, name, 0)
    except UsageError:
        assert list(top.iterdir()) == []
    else:
        assert attempt.path.resolve().is_relative_to((top / "results").resolve())
        assert [p.name for p in top.iterdir()] == ["results"]


def test_a_link_on_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "demo").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="record_outside"):
        Attempt.create(tmp_path / "results", "demo", "a@x1", 0)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_compaction_merges_by_arrival_then_id_and_fills_the_rest(tmp_path: Path) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    fill_in(attempt, ROWS[:6])
    report = attempt.compact(never_sent(8))
    assert (report.recorded, report.filled, report.torn) == (6, 2, ())
    rows = pq.ParquetFile(attempt.path / "requests.parquet").read()
    assert rows["request_id"].to_pylist() == list(range(8))
    assert rows["end_kind"].to_pylist()[-2:] == ["never_sent"] * 2
    assert rows.schema.equals(REQUESTS)
    assert not attempt.segments.exists()


def test_samples_go_where_they_belong_in_one_order(tmp_path: Path) -> None:
    run = read_run(finished(tmp_path).path)
    assert run.server_metrics["t_ns"].to_pylist() == [1, 2]
    assert list(zip(run.host["t_ns"].to_pylist(), run.host["source"].to_pylist(), strict=True)) == [(1, "client"), (3, "host")]


def test_a_torn_segment_is_merged_and_named(tmp_path: Path) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    fill_in(attempt)
    segment = attempt.segments / "requests-1.arrows"
    segment.write_bytes(segment.read_bytes()[:-50])
    report = attempt.compact(never_sent(8))
    assert (report.recorded, report.filled, report.torn) == (4, 4, ("requests-1",))
    attempt.seal()
    observed = read_run(attempt.path).observations
    assert observed[-1] == {"kind": "compacted", "recorded": 4, "filled": 4, "torn": ["requests-1"]}


@pytest.mark.parametrize("again", [ROWS[:1], []], ids=["in two segments", "in the filling"])
def test_a_request_recorded_twice_is_refused_and_nothing_lost(tmp_path: Path, again: list[Row]) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    fill_in(attempt)
    write_segment(attempt, "requests-2", again)
    with pytest.raises(HostError, match=r"record_twice|more than once"):
        attempt.compact(lambda _ids: [] if again else ROWS[:1])
    assert len(list(attempt.segments.iterdir())) == 6
    assert not (attempt.path / "requests.parquet").exists()


def test_compacting_twice_cannot_replace_results_by_fillings(tmp_path: Path) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    fill_in(attempt)
    attempt.compact(never_sent(8))
    with pytest.raises(ValueError, match="no segments"):
        attempt.compact(never_sent(8))


def test_a_full_disk_during_compaction_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = finished(tmp_path)
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 1)
    fill_in(attempt)
    before = sorted(attempt.segments.iterdir())

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable.os, "fsync", full)
    with pytest.raises(HostError, match="errno=28"):
        attempt.compact(never_sent(8))
    monkeypatch.undo()
    assert sorted(attempt.segments.iterdir()) == before
    assert [p.name for p in attempt.path.iterdir() if p.name.startswith(".")] == []
    assert check_seal(earlier.path).intact
    attempt.compact(never_sent(8))
    attempt.seal()
    assert read_run(attempt.path).requests.num_rows == 8


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """Let the kernel itself refuse to write past a size: the real failure, not an imitation."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, handler)


def test_the_kernel_refusing_a_write_leaves_whole_files_only(tmp_path: Path, file_limit: Callable[[int], None]) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    fill_in(attempt)
    attempt.observe("first")
    with SegmentWriter(attempt.segments, "host-9", SAMPLES, clock=VirtualClock()) as writer:
        writer.append([sample(1)])
        file_limit(writer.path.stat().st_size + 10)
        with pytest.raises(HostError, match="record_disk"):
            writer.flush()
        with pytest.raises(HostError, match="record_disk"):
            attempt.compact(never_sent(8))
        with pytest.raises(HostError, match="record_disk"):
            attempt.observe("second", text="x" * 2000)
        file_limit(10_000_000)
    assert not (attempt.path / "requests.parquet").exists()
    attempt.compact(never_sent(8))
    attempt.seal()
    run = read_run(attempt.path)
    assert [o["kind"] for o in run.observations] == ["first", "compacted"]
    assert (run.requests.num_rows, run.host.num_rows) == (8, 3)


def test_the_same_rows_give_the_same_bytes_whichever_worker_wrote_them(tmp_path: Path) -> None:
    one, two = Attempt.create(tmp_path, "one", "a@x1", 0), Attempt.create(tmp_path, "two", "a@x1", 0)
    write_segment(one, "requests-0", ROWS)
    for k, row in enumerate(reversed(ROWS)):
        write_segment(two, f"requests-{k}", [row])
    for attempt in (one, two):
        attempt.compact(never_sent(8))
    assert (one.path / "requests.parquet").read_bytes() == (two.path / "requests.parquet").read_bytes()


def test_integers_are_delta_packed_and_everything_is_zstd(tmp_path: Path) -> None:
    attempt = finished(tmp_path)
    with pq.ParquetFile(attempt.path / "requests.parquet") as file:
        group = file.metadata.row_group(0)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["event_ns.list.element"].encodings
    assert "DELTA_BINARY_PACKED" in columns["http_status"].encodings
    assert {c.compression for c in columns.values()} == {"ZSTD"}


def test_an_unfinished_attempt_is_not_sealed(tmp_path: Path) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    with pytest.raises(HostError, match=r"facts\.json"):
        attempt.seal()
    fill_in(attempt)
    with pytest.raises(HostError, match="segments=left"):
        attempt.seal()


def test_a_sealed_attempt_is_never_changed(tmp_path: Path) -> None:
    attempt = finished(tmp_path)
    assert {p.name for p in attempt.path.iterdir()} == {*RUN_FILES, "SEAL"}
    assert {p.stat().st_mode & 0o777 for p in attempt.path.iterdir()} == {0o444}
    with pytest.raises(ValueError, match="sealed"):
        attempt.write_facts(make_facts())
    with pytest.raises(ValueError, match="sealed"):
        attempt.observe("late")
    with pytest.raises(ValueError, match="sealed"):
        attempt.seal()
    assert check_seal(attempt.path).intact


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    attempt = finished(tmp_path)
    run = read_run(attempt.path)
    assert run.spec == make_spec()
    assert run.facts == make_facts()
    assert run.coordinates.coordinates == make_coordinates()
    assert run.whole_requests().to_pylist() == ROWS
    assert run.seal.intact is True
    assert run.seal.root == check_seal(attempt.path).root


@pytest.mark.parametrize("argv", [("serve", "--api-key", "sk-1"), ("serve", "--api-key=sk-1"), ("serve", "--api_key", "sk-1")])
def test_keys_are_refused_and_not_echoed(tmp_path: Path, argv: tuple[str, ...]) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    with pytest.raises(UsageError, match="record_secret") as caught:
        attempt.write_facts(make_facts(argv=argv))
    assert "sk-1" not in str(caught.value)
    assert not (attempt.path / "facts.json").exists()


def test_redacted_keys_and_empty_ones_pass(tmp_path: Path) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    attempt.write_facts(make_facts(argv=("serve", "--api-key", "***", "--prompt-lookup", "3")))
    attempt.observe("note", headers=None)


@pytest.mark.parametrize("fields", [{"prompt": "hi"}, {"request": {"headers": {"x": "y"}}}, {"list": [{"Authorization": "Bearer x"}]}])
def test_prompts_and_headers_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    attempt = Attempt.create(tmp_path, "demo", "a@x1", 0)
    with pytest.raises(UsageError, match="record_secret"):
        attempt.observe("note", **fields)


def test_latest_sealed_attempt_counts_and_cut_ones_are_listed(tmp_path: Path) -> None:
    finished(tmp_path)
    second = finished(tmp_path)
    cut = Attempt.create(tmp_path, "demo", "a@x1", 0)
    other = finished(tmp_path, replicate=1)
    campaign = tmp_path / "demo"
    assert latest_sealed(campaign) == {("a@x1", 0): second.path, ("a@x1", 1): other.path}
    assert len(find_attempts(campaign)) == 4
    runs = read_campaign_runs(campaign)
    assert [r.path for r in runs.runs] == [second.path, other.path]
    assert runs.cut == (cut.path,)


def test_attempts_are_ordered_as_numbers(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / "demo" / "a@x1" / "0" / str(number)).mkdir(parents=True)
        (tmp_path / "demo" / "a@x1" / "0" / str(number) / "SEAL").touch()
    (tmp_path / "demo" / ".servers" / "0" / "1").mkdir(parents=True)
    assert len(find_attempts(tmp_path / "demo")) == 3
    assert latest_sealed(tmp_path / "demo")[("a@x1", 0)].name == "10"


def test_an_unreadable_attempt_does_not_stop_the_others(tmp_path: Path) -> None:
    good, bad = finished(tmp_path, 0), finished(tmp_path, 1)
    (bad.path / "requests.parquet").chmod(0o644)
    os.truncate(bad.path / "requests.parquet", 100)
    runs = read_campaign_runs(tmp_path / "demo")
    assert [r.path for r in runs.runs] == [good.path]
    ((path, problems),) = runs.unreadable
    assert path == bad.path
    assert [p.code for p in problems] == ["record_damaged"]
