import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import HostError, UsageError
from harness.record import durable
from harness.record.journal import Campaign, Journal, campaign_lock, read_campaign, write_campaign

HEADER: dict[str, Any] = {
    "name": "demo",
    "digest": "a" * 64,
    "question": "Does it?",
    "manifest": "trigpoint: 1\nslo: {ttft: 2s}\n",
    "resolved": {"slo": {"ttft_ns": 2_000_000_000}},
    "planned": [("a@x1", 0), ("b@x1", 0)],
}


def test_events_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal.events() == []
    journal.append("started", cell="a@x1", replicate=0)
    journal.append("sealed", root="é\n")
    assert journal.events() == [{"event": "started", "cell": "a@x1", "replicate": 0}, {"event": "sealed", "root": "é\n"}]


@given(cut=st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_cut_anywhere_it_gives_a_prefix_and_takes_new_events(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    journal = Journal(tmp_path_factory.mktemp("j", numbered=True) / "journal.jsonl")
    for i in range(5):
        durable.append_line(journal.path, {"event": "e", "i": i, "text": "x" * i}, sync=False)
    os.truncate(journal.path, min(cut, journal.path.stat().st_size))
    left = [e["i"] for e in journal.events()]
    assert left == list(range(len(left)))
    durable.append_line(journal.path, {"event": "e", "i": 99}, sync=False)
    assert [e["i"] for e in journal.events()] == [*left, 99]


def test_a_torn_line_longer_than_one_look_back_is_cut_off(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("whole")
    with journal.path.open("ab") as file:
        file.write(b"x" * 10_000)
    journal.append("next")
    assert [e["event"] for e in journal.events()] == ["whole", "next"]


@pytest.mark.parametrize("junk", [b"nonsense\n", b"\xff\n", b"[]\n", b"\n"])
def test_damage_before_the_last_line_is_told_with_its_line(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event":"a"}\n' + junk + b'{"event":"b"}\n')
    with pytest.raises(HostError, match=r"journal\.jsonl:2"):
        Journal(path).events()


def test_a_full_disk_keeps_the_old_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("first")
    real = os.write
    monkeypatch.setattr(durable.os, "write", lambda fd, data: real(fd, data[:5]))
    with pytest.raises(HostError, match="record_disk"):
        journal.append("second")
    monkeypatch.undo()
    assert journal.path.read_bytes() == b'{"event":"first"}\n'


def test_the_lock_is_free_again_and_names_its_holder(tmp_path: Path) -> None:
    with campaign_lock(tmp_path), pytest.raises(HostError, match=f"pid={os.getpid()}"), campaign_lock(tmp_path):
        raise AssertionError("two holders")
    with campaign_lock(tmp_path):
        assert (tmp_path / ".lock").read_text().strip() == str(os.getpid())


def test_a_lock_file_left_behind_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("999999999999\n")
    with campaign_lock(tmp_path):
        assert (tmp_path / ".lock").read_text().strip() == str(os.getpid())


def test_a_campaign_is_written_once_and_accepted_again(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "demo"
    written = write_campaign(folder, HEADER)
    before = (folder / "campaign.json").read_bytes()
    again = write_campaign(folder, Campaign.model_validate(HEADER | {"manifest": "# a comment\n" + HEADER["manifest"]}))
    assert again == written == read_campaign(folder)
    assert (folder / "campaign.json").read_bytes() == before
    assert read_campaign(folder).planned == (("a@x1", 0), ("b@x1", 0))


def test_another_manifest_is_refused_with_the_difference(tmp_path: Path) -> None:
    write_campaign(tmp_path, HEADER)
    with pytest.raises(UsageError) as caught:
        write_campaign(tmp_path, HEADER | {"digest": "b" * 64, "manifest": "trigpoint: 1\nslo: {ttft: 3s}\n"})
    text = str(caught.value)
    assert "campaign_differs" in text
    assert "-slo: {ttft: 2s}" in text
    assert "+slo: {ttft: 3s}" in text
    assert read_campaign(tmp_path).digest == "a" * 64


@pytest.mark.parametrize("text", ["", "{}", "[1]", json.dumps(HEADER | {"planned": [["a", -1, 2]]})])
def test_a_damaged_campaign_is_told_from_a_missing_one(tmp_path: Path, text: str) -> None:
    with pytest.raises(HostError, match="campaign_missing"):
        read_campaign(tmp_path)
    (tmp_path / "campaign.json").write_text(text)
    with pytest.raises(HostError, match="campaign_damaged"):
        read_campaign(tmp_path)


def test_simulated_and_real_runs_of_one_manifest_never_share_a_folder(tmp_path: Path) -> None:
    assert write_campaign(tmp_path, HEADER).clock == "real"
    with pytest.raises(UsageError, match="clock_differs"):
        write_campaign(tmp_path, HEADER | {"clock": "virtual"})
