"""runtime list, install --version, probe and remove at the command line, in an empty cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cli.app import main
from harness.runtimes import install
from tests.environments import make_ready


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIGPOINT_CACHE", str(tmp_path))
    return tmp_path


def runtime(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["runtime", *arguments])


def test_every_recipe_is_listed_with_its_lock_and_what_is_on_disk() -> None:
    env = make_ready("sglang-cpu", size_bytes=3_100_000_000)
    rows = {row["name"]: row for row in json.loads(runtime("list", "--json").stdout)["runtimes"]}
    assert rows.keys() == {*install.RECIPES, "reference"}
    for name, made in install.RECIPES.items():
        row = rows[name]
        assert (row["version"], row["packages"], row["lock_digest"]) == (made.version, len(made.pins()), made.digest())
        assert (row["installed"], row["bytes"]) == ((True, 3_100_000_000) if name == "sglang-cpu" else (False, None))
        assert row["changed"] is None
    lines = runtime("list").stdout.splitlines()
    assert any("sglang-cpu" in line and "126 packages" in line and "installed, 3.1 GB" in line for line in lines)
    assert sum("not installed" in line for line in lines) == len(install.RECIPES) - 1
    (env.site_packages / "stray-1.0.dist-info").mkdir()
    (state,) = [line for line in runtime("list").stdout.splitlines() if "sglang-cpu" in line]
    assert "not usable: its packages are not those that were installed" in " ".join(state.split())


def test_a_version_without_a_lock_is_refused_with_the_one_that_has_it() -> None:
    done = runtime("install", "sglang", "--version", "0.4.0")
    assert done.exit_code == 2
    assert "version_not_locked" in done.stderr
    assert "install sglang 0.5.23" in done.stderr


def test_what_is_not_there_is_neither_probed_nor_removed() -> None:
    done = runtime("probe", "sglang-cpu")
    assert done.exit_code == 3
    assert "trigpoint runtime install sglang-cpu" in done.stderr
    assert json.loads(runtime("remove", "sglang-cpu", "--json").stdout) == {"name": "sglang-cpu", "removed": False}
    make_ready("sglang-cpu")
    assert json.loads(runtime("remove", "sglang-cpu", "--json").stdout) == {"name": "sglang-cpu", "removed": True}
    assert not install.root_of(install.recipe("sglang-cpu")).exists()
