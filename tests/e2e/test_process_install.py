"""Making an environment for real: a venv, pip with a lock, the metadata twin, proof by import, the marker last."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.runtimes import install

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
    assert install.remove("small")


def test_locks_are_package_data() -> None:
    folder = resources.files("harness.runtimes") / "locks"
    assert all((folder / r.lock).is_file() for r in install.RECIPES.values())
