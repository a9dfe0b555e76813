"""What belonged to a cluster of our own ends with its driver, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.replay.fleet.reaper import MARK, Reaper

pytestmark = pytest.mark.e2e

SLEEP = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
DRIVER = """
import subprocess, sys, time
from harness.replay.fleet.reaper import MARK, Reaper
Reaper(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={MARK: sys.argv[1]}, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def started(**settings: object) -> subprocess.Popen[bytes]:
    child: subprocess.Popen[bytes] = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, **settings)  # type: ignore[call-overload]
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_what_carries_the_mark_or_holds_a_file_of_it_is_killed_and_nothing_else(tmp_path: Path) -> None:
    folder, near = tmp_path / "c", tmp_path / "c2"
    folder.mkdir()
    near.mkdir()
    reaper = Reaper(str(folder))
    with (folder / "log").open("wb") as ours, (near / "log").open("wb") as other:  # the driver holds one open itself
        marked, holding = started(env={MARK: str(folder)}), started(env={}, stderr=ours)
        stranger, namesake = started(env={MARK: str(near)}, stderr=other), started(env={"A": str(folder)})
        try:
            reaper.end()
            assert (marked.wait(10), holding.wait(10)) == (-9, -9)
            assert (stranger.poll(), namesake.poll()) == (None, None)
        finally:
            for child in (marked, holding, stranger, namesake):
                child.kill()
                child.communicate()
    assert not folder.exists()
    assert (near / "log").exists()
    reaper.end()


def test_a_driver_that_is_killed_takes_its_cluster_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(folder)], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        child = psutil.Process(int(driver.stdout.readline()))
        (reaper,) = (p for p in psutil.Process(driver.pid).children() if p != child)
        driver.kill()
    assert psutil.wait_procs([child, reaper], timeout=20)[1] == []
    assert not folder.exists()
