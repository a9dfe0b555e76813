"""A report is the same bytes in every process: no hash order, no clock, no state of the plotting library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


def test_two_processes_write_the_same_report(tmp_path: Path) -> None:
    written = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": seed, "TZ": f"UTC{seed}"}
        root = Path(__file__).parents[2]
        subprocess.run([sys.executable, "-m", "tests.report_demo", str(folder)], check=True, env=environment, cwd=root)
        written.append({p.name: p.read_bytes() for p in folder.iterdir()})
    assert len(written[0]) == 6  # HTML and Markdown of each demonstration
    assert written[0] == written[1]
