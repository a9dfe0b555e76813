"""The promise of DESIGN 5, against a real kill -9: what was flushed is readable, the lock is free, finished attempts are intact."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.record.attempt import Attempt
from harness.record.journal import Journal, campaign_lock
from harness.record.provenance import git_state
from harness.record.schema import SAMPLES
from harness.record.segments import read_segments

pytestmark = pytest.mark.e2e

WRITER = """
import sys
from pathlib import Path
from harness.clock import MonotonicClock
from harness.record.attempt import Attempt
from harness.record.journal import Journal, campaign_lock
from harness.record.schema import SAMPLES
from harness.record.segments import SegmentWriter

results = Path(sys.argv[1])
attempt = Attempt.create(results, "demo", "a@x1", 0)
with campaign_lock(results / "demo"):
    journal = Journal(results / "demo" / "journal.jsonl")
    writer = SegmentWriter(attempt.segments, "host-0", SAMPLES, clock=MonotonicClock())
    batch = 0
    while True:
        rows = [{"t_ns": 10 * batch + i, "source": "host", "metric": "m", "value": 1.0} for i in range(10)]
        writer.append(rows)
        writer.flush()
        attempt.observe("flushed", batch=batch)
        journal.append("flushed", batch=batch)
        print(batch, flush=True)  # tells the parent: so much is promised
        batch += 1
"""


def start(results: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(results)], stdout=subprocess.PIPE, text=True)


def kill_after(process: subprocess.Popen[str], batches: int) -> int:
    """Kill -9 at an instant the child does not choose, some batches on; return the last batch it reported."""
    assert process.stdout is not None
    for _ in range(batches):
        assert process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    return int(rest[-1]) if rest else batches - 1


def test_what_was_flushed_survives_a_kill(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        with pytest.raises(HostError, match=f"pid={process.pid}"), campaign_lock(tmp_path / "demo"):
            pass
        last = kill_after(process, 20)
    attempt = Attempt(path=tmp_path / "demo" / "a@x1" / "0" / "1", number=1)
    table, torn = read_segments(attempt.segments, "host-0", SAMPLES)
    assert torn
    assert table["t_ns"].to_pylist() == list(range(table.num_rows))
    assert table.num_rows >= 10 * (last + 1)
    events = Journal(tmp_path / "demo" / "journal.jsonl").events()
    assert [e["batch"] for e in events][: last + 1] == list(range(last + 1))
    with campaign_lock(tmp_path / "demo"):
        assert Attempt.create(tmp_path, "demo", "a@x1", 0).number == 2


def test_git_state_names_commit_and_dirt(tmp_path: Path) -> None:
    def git(*args: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org", *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "f").write_text("1")
    git("add", "f")
    git("commit", "-q", "-m", "first")
    clean = git_state(tmp_path)
    (tmp_path / "f").write_text("2")
    dirty = git_state(tmp_path)
    assert clean is not None
    assert dirty is not None
    assert (clean.commit, clean.dirty, dirty.dirty) == (git("rev-parse", "HEAD"), False, True)
    (tmp_path / "f").write_text("1")
    (tmp_path / "note").write_text("beside the packages")
    assert git_state(tmp_path) == clean
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "new.py").write_text("1")
    assert git_state(tmp_path) == dirty
