import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.compare import Side, compare
from analysis.coordinates import merge_runs
from harness.errors import HostError
from harness.record import durable
from harness.record.coordinates import RUN_COORDINATES, RunCoordinates
from harness.record.reader import read_run
from harness.record.schema import REQUESTS, SAMPLES, SCHEDULE, TRUTH
from harness.record.seal import check_seal, seal
from harness.record.tables import conform, table_of
from tests.builders import make_coordinates, make_facts, make_request, make_spec


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """An attempt as the writer leaves it, without a seal yet."""
    path = tmp_path / "k=v" / "1"  # a folder that looks like a partition must not become a column
    path.mkdir(parents=True)
    durable.write_json(path / "spec.json", make_spec())
    durable.write_json(path / "coordinates.json", RunCoordinates(coordinates=make_coordinates()))
    durable.write_json(path / "facts.json", make_facts())
    durable.write_table(path / "requests.parquet", table_of([make_request(i, i) for i in range(3)], REQUESTS))
    for name, schema in {"schedule": SCHEDULE, "truth": TRUTH, "server_metrics": SAMPLES, "host": SAMPLES}.items():
        durable.write_table(path / f"{name}.parquet", schema.empty_table())
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def codes(path: Path) -> list[str]:
    with pytest.raises(HostError) as caught:
        read_run(path)
    return [p.code for p in caught.value.problems]


def test_a_cut_attempt_can_be_read_and_says_so(attempt: Path) -> None:
    run = read_run(attempt)
    assert run.seal.intact is None
    assert run.requests.num_rows == 3
    assert run.whole_requests().column_names == REQUESTS.names
    assert run.observations == ()


@pytest.mark.parametrize(("major", "code"), [(2, "record_newer"), (0, "record_older"), ("1", "record_damaged"), (None, "record_damaged")])
def test_another_format_is_named_for_what_it_is(attempt: Path, major: object, code: str) -> None:
    edit(attempt / "spec.json", lambda v: v.update(format_major=major, something_new={"deep": 1}))
    assert codes(attempt) == [code]


def test_a_newer_minor_with_unknown_fields_asks_for_an_upgrade(attempt: Path) -> None:
    edit(attempt / "spec.json", lambda v: v.update(format_minor=7, later="x"))
    assert codes(attempt) == ["record_newer"]
    edit(attempt / "spec.json", lambda v: v.pop("later"))
    assert read_run(attempt).spec.format_minor == 7


def test_an_unknown_field_of_our_own_format_is_damage(attempt: Path) -> None:
    edit(attempt / "spec.json", lambda v: v.update(later="x"))
    assert codes(attempt) == ["record_damaged"]


def test_everything_wrong_is_told_at_once(attempt: Path) -> None:
    (attempt / "facts.json").unlink()
    (attempt / "coordinates.json").write_bytes(b'{"coordinates": \xff')
    (attempt / "truth.parquet").write_bytes(b"PAR1")
    (attempt / "host.parquet").unlink()
    (attempt / "observations.jsonl").write_text("[1]\n")
    assert sorted(codes(attempt)) == ["record_damaged"] * 3 + ["record_missing"] * 2
    assert codes(attempt / "nowhere") == ["record_missing"]


def test_a_coordinate_registered_later_is_unknown(attempt: Path) -> None:
    name = next(iter(RUN_COORDINATES))
    edit(attempt / "coordinates.json", lambda v: v["coordinates"].pop(name))
    assert read_run(attempt).coordinates.coordinates[name].state == "unknown"


LATER = {
    "spec": ("fleet",),
    "arm": ("metrics", "members"),
    "parallelism": ("replicas", "disaggregation"),
    "certificate": ("stream_ceiling", "live_event_ceiling", "workers", "cpu_us_per_event", "memory_per_stream_bytes"),
    "coordinates": ("hardware.gpu_settings", "parallelism.replicas", "parallelism.disaggregation", "runtime.launch"),
}
"""What minor 3 added, by where."""


def test_a_record_of_minor_2_is_read_and_is_unknown_where_it_says_nothing(attempt: Path) -> None:
    edit(attempt / "spec.json", as_minor_2)
    edit(attempt / "coordinates.json", lambda v: [v["coordinates"].pop(name) for name in LATER["coordinates"]])
    edit(attempt / "facts.json", lambda v: [pin.pop("source") for pin in v["pins"]])
    run = read_run(attempt)
    assert (run.spec.format_minor, run.spec.fleet, run.spec.arm.metrics, run.spec.pins.parallelism.replicas) == (2, "processes", None, None)
    assert run.spec.certificate is not None
    assert run.spec.certificate.stream_ceiling is None
    assert {pin.source for pin in run.facts.pins} == {None}
    side = Side("old", merge_runs([(0, run.coordinates)]))
    assert {d.coordinate for d in compare(side, side).differences if d.answer == "unknown"} >= set(LATER["coordinates"])
    assert not compare(side, side).comparable


def as_minor_2(spec: dict[str, Any]) -> None:
    """Take out of a spec what its minor did not know."""
    spec["format_minor"] = 2
    places = {"spec": spec, "arm": spec["arm"], "parallelism": spec["pins"]["parallelism"], "certificate": spec["certificate"]}
    for place, fields in places.items():
        for name in LATER[place]:
            fields.pop(name)


def test_a_torn_last_observation_is_left_out(attempt: Path) -> None:
    (attempt / "observations.jsonl").write_bytes(b'{"kind":"a"}\n{"kind":"b"')
    assert read_run(attempt).observations == ({"kind": "a"},)


def test_extra_columns_are_ignored_and_later_nullable_ones_are_null() -> None:
    table = table_of([make_request(0, 0)], REQUESTS).drop_columns(["finish_reason"]).append_column("later", pa.array([1]))
    found, problems = conform(table, REQUESTS)
    assert problems == []
    assert found.schema.equals(REQUESTS)
    assert found["finish_reason"].to_pylist() == [None]


def test_required_columns_are_required(attempt: Path) -> None:
    table = table_of([make_request(0, 0)], REQUESTS)
    wrong = table.drop_columns(["end_kind"]).set_column(1, "arrival_ns", pa.array([1.5]))
    wrong = wrong.set_column(0, "request_id", pa.array([None], pa.int64()))
    pq.write_table(wrong, attempt / "requests.parquet")
    with pytest.raises(HostError) as caught:
        read_run(attempt)
    told = " ".join(p.what for p in caught.value.problems)
    assert len(caught.value.problems) == 3
    assert "end_kind: missing" in told
    assert "arrival_ns: double" in told
    assert "request_id: 1 nulls" in told


def test_rows_that_break_the_schema_are_never_written() -> None:
    with pytest.raises(ValueError, match="end_kind"):
        table_of([make_request(0, 0, end_kind=None)], REQUESTS)


def test_a_seal_names_every_changed_missing_and_extra_file(attempt: Path) -> None:
    root = seal(attempt)
    assert check_seal(attempt).root == root
    for name in ("facts.json", "spec.json"):
        (attempt / name).chmod(0o644)
    (attempt / "facts.json").write_text("{}")
    (attempt / "spec.json").unlink()
    (attempt / "new").mkdir()
    (attempt / "new" / "note.txt").write_text("hi")
    state = check_seal(attempt)
    assert state.intact is False
    assert state.problems == ("spec.json: missing", "facts.json: changed", "new/note.txt: appeared after sealing")


def test_a_file_replaced_by_a_link_to_the_same_bytes_is_changed(attempt: Path, tmp_path: Path) -> None:
    seal(attempt)
    (tmp_path / "copy").write_bytes((attempt / "facts.json").read_bytes())
    (attempt / "facts.json").unlink()
    (attempt / "facts.json").symlink_to(tmp_path / "copy")
    assert check_seal(attempt).problems == ("facts.json: changed",)


def test_a_seal_rewritten_to_fit_shows_in_its_root(attempt: Path) -> None:
    seal(attempt)
    (attempt / "SEAL").chmod(0o644)
    edit(attempt / "SEAL", lambda v: v["files"].update({"facts.json": "0" * 64}))
    assert check_seal(attempt).problems == ("SEAL: its root does not match its list", "facts.json: changed")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"files": {}, "root": 3}', "\x00"])
def test_an_unreadable_seal_is_broken_not_absent(attempt: Path, text: str) -> None:
    (attempt / "SEAL").write_text(text)
    assert check_seal(attempt).intact is False


def test_the_root_depends_on_content_not_on_the_folder(attempt: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in attempt.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert seal(copy) == seal(attempt)


def test_a_link_inside_an_attempt_is_not_sealed(attempt: Path, tmp_path: Path) -> None:
    (attempt / "server.log").symlink_to(tmp_path / "log")
    with pytest.raises(ValueError, match=r"server\.log"):
        seal(attempt)
    assert check_seal(attempt).intact is None
