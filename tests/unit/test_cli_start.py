"""What a fresh interpreter has to import to become a worker of a command."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["harness.cli", "harness.cli.__main__"])
def test_importing_the_script_again_loads_no_command(module: str) -> None:
    code = f"import sys, {module}; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split("'")}
    assert not loaded & {"analysis", "click", "matplotlib", "numpy", "pyarrow", "scipy"}
