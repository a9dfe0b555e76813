"""What the command really prints, held against the files in ``expected``; UPDATE_GOLDEN=1 writes them anew, and the diff is the review."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cli.app import main

ROOT = Path(__file__).parents[2]
EXPECTED = Path(__file__).parent / "expected"
EXAMPLE = "results/example"
CELL = f"{EXAMPLE}/seqs-8@x1.5"
PAPERS = "tests/golden/papers.yaml"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in answers are as the user typed them: relative to the repository."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("TRIGPOINT_TRACES", raising=False)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="trigpoint")


def hold(name: str, found: str) -> None:
    """Compare but for blanks at the ends of lines, which editors strip."""
    text = "".join(f"{line.rstrip()}\n" for line in found.splitlines())
    path = EXPECTED / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


ANSWERS = {
    "validate.txt": (0, "validate manifests/quickstart.yaml"),
    "validate.json": (0, "validate manifests/quickstart.yaml --json"),
    "status.txt": (0, f"status {EXAMPLE}"),
    "status.json": (0, f"status {EXAMPLE} --json"),
    "rank.txt": (1, f"rank {EXAMPLE}"),
    "rank.json": (1, f"rank {EXAMPLE} --json"),
    "analyze.txt": (0, f"analyze {EXAMPLE}"),
    "compare-equal.txt": (0, f"compare {CELL} {CELL}/0/1"),
    "compare-equal.json": (0, f"compare {CELL} {CELL}/0/1 --json"),
    "compare-paper.txt": (1, f"compare {CELL} paper:demo.one --papers {PAPERS}"),
    "compare-paper.json": (1, f"compare {CELL} paper:demo.one --papers {PAPERS} --json"),
    "traces-inspect.txt": (0, "traces inspect manifests/traces/quickstart.csv"),
    "help.txt": (0, "--help"),
    "rank-help.txt": (0, "rank --help"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str) -> None:
    code, line = ANSWERS[name]
    result = invoke(*line.split())
    assert result.stderr == ""
    assert result.exit_code == code
    hold(name, result.stdout)


@pytest.mark.e2e
@pytest.mark.parametrize(("name", "more"), [("plan.txt", []), ("plan.json", ["--json"])])
def test_a_plan_is_what_the_manifest_says(name: str, more: list[str]) -> None:
    """Marked, since the arms are held against the server's own parser in a process of its own."""
    result = invoke("plan", "manifests/quickstart.yaml", *more)
    assert (result.stderr, result.exit_code) == ("", 0)
    hold(name, result.stdout)


def test_a_report_prints_and_writes_the_same_again(tmp_path: Path) -> None:
    printed, files = [], []
    for n in "12":
        out = tmp_path / n
        result = invoke("report", EXAMPLE, "--out", str(out))
        assert (result.stderr, result.exit_code) == ("", 0)
        printed.append(result.stdout.replace(str(out), "OUT"))
        files.append({p.name: p.read_bytes() for p in out.iterdir()})
    assert files[0] == files[1]
    assert sorted(files[0]) == ["analysis.json", "report.html", "report.md"]
    hold("report.txt", printed[0])
    hold("report.md", files[0]["report.md"].decode())
    assert len(printed[0].splitlines()) < 80


def test_a_pipe_gets_tables_of_120_columns_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = invoke("analyze", EXAMPLE).stdout
    monkeypatch.setenv("COLUMNS", "40")
    assert invoke("analyze", EXAMPLE).stdout == wide


def manifest_with(folder: Path, old: str, new: str) -> Path:
    text = (ROOT / "manifests" / "quickstart.yaml").read_text(encoding="utf-8")
    assert old in text
    path = folder / "m.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("command", ["validate", "plan", "run"])
def test_an_unknown_key_is_named_with_file_and_line(command: str, tmp_path: Path) -> None:
    path = manifest_with(tmp_path, "\nwindow:", "\nwindo:")
    line = path.read_text(encoding="utf-8").split("windo:")[0].count("\n") + 1
    result = invoke(command, str(path))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"m.yaml:{line}" in result.stderr
    assert "windo" in result.stderr
    assert "Traceback" not in result.stderr


def test_errors_come_as_json_too_and_all_at_once(tmp_path: Path) -> None:
    path = manifest_with(tmp_path, "margin: 2%", "margin: 2%, colour: red")
    path.write_text(path.read_text(encoding="utf-8").replace("dtype: float32", "dtype: float32, size: 7"), encoding="utf-8")
    result = invoke("validate", str(path), "--json")
    assert result.exit_code == 2
    problems = json.loads(result.stdout)["error"]
    assert {"colour", "size"} <= {word for p in problems for word in ("colour", "size") if word in p["text"]}
    assert all(p["code"] and p["remedy"] and "m.yaml:" in p["where"] for p in problems)


@pytest.mark.parametrize("command", ["rank", "analyze", "report", "status", "resume"])
def test_a_folder_that_is_not_there_is_a_usage_error(command: str) -> None:
    result = invoke(command, "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "nowhere" in result.stderr


@pytest.mark.parametrize("command", ["rank", "analyze", "report", "status"])
def test_a_folder_without_a_campaign_is_an_environment_error(command: str, tmp_path: Path) -> None:
    result = invoke(command, str(tmp_path))
    assert (result.exit_code, result.stdout) == (3, "")
    assert "campaign" in result.stderr


@pytest.mark.parametrize("command", ["rank", "analyze", "report", "compare"])
def test_a_newer_format_is_refused_with_the_remedy(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "example"
    shutil.copytree(ROOT / EXAMPLE, folder)
    spec = folder / "seqs-8@x1.5" / "0" / "1" / "spec.json"
    document = json.loads(spec.read_bytes()) | {"format_major": 99}
    spec.write_text(json.dumps(document), encoding="utf-8")
    arguments = [str(folder / "seqs-8@x1.5")] * 2 if command == "compare" else [str(folder)]
    result = invoke(command, *arguments)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "format_major=99" in result.stderr
    assert "upgrade trigpoint" in result.stderr


def test_a_campaign_is_no_side_of_a_comparison() -> None:
    result = invoke("compare", CELL, "paper:demo.one")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--papers" in result.stderr
