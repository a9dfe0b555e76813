"""Every bad input of a user, given to the real command: the code, the words that say what to do, the exit code, and nothing left behind."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from harness.cli.app import main
from harness.record.reader import find_attempts, latest_sealed, read_run

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def rows(tokens_in: str = "50", tokens_out: str = "5") -> str:
    """Twenty seconds of ten requests each."""
    return "".join(f"2026-01-01 00:00:{i // 10:02d}.{i % 10}000000,{tokens_in},{tokens_out}\n" for i in range(200))


GOOD = (HEADER + rows()).encode()
MANIFEST = """trigpoint: 1
question: Does the sequence budget matter here?
pins:
  model: {id: tiny, dtype: float32}
arms:
  few: {runtime: reference, args: {max-num-seqs: 2, cost-base: 5ms}}
  many: {runtime: reference, args: {max-num-seqs: 16, cost-base: 5ms}}
workload:
  trace: {format: azure-2023, name: t.csv, sha256: SHA, window: [0s, 20s]}
  output-length: forced
  cache: cold
slo: {ttft: 500ms, tbt: 100ms}
window: {warm-up: 0s, measured: 2s, drain: 1s}
load: {time-compression: [1.0]}
replicates: {count: 1, vary: window, seed: 7}
rank: {metric: goodput, margin: 2%}
"""
FEW = "few: {runtime: reference, args: {max-num-seqs: 2, cost-base: 5ms}}"


def write(folder: Path, raw: bytes = GOOD, *swaps: tuple[str, str]) -> Path:
    """Write a trace and a manifest that pins it; ``swaps`` replace text of the manifest."""
    text = MANIFEST
    for old, new in swaps:
        assert old in text, old
        text = text.replace(old, new)
    (folder / "t.csv").write_bytes(raw)
    path = folder / "m.yaml"
    path.write_text(text.replace("SHA", hashlib.sha256(raw).hexdigest()), encoding="utf-8")
    return path


def give(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def refused(result: Result, exit_code: int, *words: str) -> None:
    """The command ended as it should, says each of ``words`` and what to do, and shows no traceback."""
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code == exit_code, result.output
    assert "\n    -> " in result.stderr
    for word in words:
        assert word in result.stderr, result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("raw", "swaps", "words"),
    [
        pytest.param(GOOD[:-7], (), ("t.csv:201", "1 fields where the header has 3", "[trace.torn_row]"), id="torn"),
        pytest.param(b"\xef\xbb\xbf" + GOOD, (), ("t.csv:1", "byte-order mark", "[trace.bom]"), id="bom"),
        pytest.param(HEADER.encode(), (), ("rows=0", "[trace.no_rows]"), id="no rows"),
        pytest.param(b"", (), ("bytes=0", "[trace.empty]"), id="empty"),
        pytest.param(GOOD, (("[0s, 20s]", "[100s, 120s]"),), ("[workload.window]", "covers [0 s, 20 s)"), id="window outside"),
        pytest.param((HEADER + rows("-5")).encode(), (), ("t.csv:2", "ContextTokens='-5'", "[trace.negative_count]"), id="negative"),
        pytest.param((HEADER + rows("5", "99999999999")).encode(), (), ("GeneratedTokens='99999999999'", "[trace.huge_count]"), id="huge"),
        pytest.param((HEADER + rows("5", "0")).encode(), (), ("[workload.no_output]", "drop_failed"), id="no output"),
        pytest.param(GOOD, (("SHA", "ab" * 32),), ("ab" * 32, hashlib.sha256(GOOD).hexdigest(), "[trace.digest_mismatch]"), id="digest"),
        pytest.param(GOOD, ((FEW, FEW.replace("max-num-seqs", "max-num-seq")),), ("[flag_unknown]", "max-num-seqs"), id="flag"),
        pytest.param(GOOD, ((FEW, FEW.replace("5ms}", "5ms}, env: {LD_PRELOAD: /x.so, PATH: /x}")),), ("LD_PRELOAD", "env.PATH"), id="env"),
        pytest.param(GOOD, ((FEW, FEW.replace("5ms}", "5ms, command: 'sh -c true'}")),), ("args.command", "[flag_unknown]"), id="shell"),
    ],
)
def test_bad_traces_and_arms_are_refused_before_anything_starts(
    tmp_path: Path, command: str, raw: bytes, swaps: tuple[tuple[str, str], ...], words: tuple[str, ...]
) -> None:
    place = ("--results", tmp_path / "results") if command == "run" else ()
    refused(give(command, write(tmp_path, raw, *swaps), *place), 2, *words)
    assert not (tmp_path / "results").exists()


def test_line_ends_of_another_system_are_read_as_the_same_rows(tmp_path: Path) -> None:
    assert give("plan", write(tmp_path, GOOD.replace(b"\n", b"\r\n"))).exit_code == 0


@pytest.mark.parametrize(
    ("swaps", "words"),
    [
        pytest.param((("output-length", "output-lenght"),), ("m.yaml:10", "did you mean output-length?", "[unknown_key]"), id="key"),
        pytest.param((("ttft: 500ms", "ttft: 500"),), ("m.yaml:12", "slo.ttft=500", "[bad_unit]"), id="no unit"),
        pytest.param((("measured: 2s", "measured: 2 sek"),), ("m.yaml:13", "window.measured=2 sek", "[bad_unit]"), id="unit"),
        pytest.param((("  many:", "  few:"),), ("m.yaml:7", "first in line 6", "[duplicate_arm]"), id="two arms"),
        pytest.param((("  few:", "  ../../few:"),), ("arms.../../few", "[bad_name]"), id="arm outside"),
        pytest.param((("question:", "name: ../evil\nquestion:"),), ("name=../evil", "[bad_name]"), id="campaign outside"),
        pytest.param((("t.csv", "../t.csv"),), ("workload.trace.name",), id="trace outside"),
        pytest.param((("id: tiny", "id: ../tiny"),), ("pins.model.id",), id="model outside"),
        pytest.param((("question: Does", "question: !!python/object/apply:os.system [id]\nname: Does"),), ("m.yaml:2",), id="yaml tag"),
    ],
)
def test_bad_manifests_are_refused_at_their_line(tmp_path: Path, swaps: tuple[tuple[str, str], ...], words: tuple[str, ...]) -> None:
    refused(give("run", write(tmp_path, GOOD, *swaps), "--results", tmp_path / "results"), 2, *words)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.yaml", "t.csv"]


def test_everything_that_is_wrong_comes_at_once(tmp_path: Path) -> None:
    flag = (FEW, FEW.replace("max-num-seqs", "max-num-seq"))
    refused(give("plan", write(tmp_path, GOOD[:-7], flag)), 2, "[flag_unknown]", "[trace.torn_row]")


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "harness.cli", *map(str, args)]


def trigpoint(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)


def children_of_ours(child: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(child.pid).children(recursive=True)


def wait_for(condition: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    """Poll until ``condition`` holds; fails when the child ends first or after a minute."""
    for _ in range(1200):
        if condition():
            return
        assert child.poll() is None, child.communicate()
        time.sleep(0.05)
    raise AssertionError("the moment the test waits for never came")


def replaying(campaign: Path, attempts: int) -> bool:
    """Whether that many attempts exist and the last one's load is under way."""
    found = find_attempts(campaign) if campaign.exists() else []
    cut = [p for p in found if not (p / "SEAL").exists()]
    return len(found) == attempts and bool(cut) and any(p.stat().st_size > 4096 for p in cut[0].glob("segments/requests-*"))


def start(path: Path, results: Path) -> subprocess.Popen[str]:
    args = command("run", path, "--results", results)
    return subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)


def test_a_prompt_longer_than_the_model_stops_before_load_and_leaves_no_server(tmp_path: Path) -> None:
    done = trigpoint("run", write(tmp_path, (HEADER + rows("90000")).encode()), "--results", tmp_path / "results")
    assert done.returncode == 2
    assert "max_model_len=4096" in done.stderr
    assert "90000 input" in done.stderr
    assert "[workload.too_long]" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "results" / "m" / "journal.jsonl").read_text().splitlines()[-1])["event"] == "cut"


def test_a_version_that_is_not_the_declared_one_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, (FEW, FEW.replace("reference,", "reference, version: '9.9',")), ("  many:", "  # many:"))
    done = trigpoint("run", path, "--results", tmp_path / "results")
    assert done.returncode == 3
    assert "arms.few.version=9.9" in done.stderr
    assert "[version_differs]" in done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished campaign of one arm, for tests that copy or extend it."""
    folder = tmp_path_factory.mktemp("finished")
    done = trigpoint("run", write(folder, GOOD, ("  many:", "  # many:")), "--results", folder / "results")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", ["run", "analyze", "rank", "report", "compare"])
def test_a_results_folder_of_a_newer_format_is_refused_and_untouched(finished: Path, name: str) -> None:
    campaign = finished / "results" / "m"
    (attempt,) = latest_sealed(campaign).values()
    spec = attempt / "spec.json"
    before = spec.read_bytes()
    spec.write_text(json.dumps(json.loads(before) | {"format_major": 99}))
    args = {
        "run": (finished / "m.yaml", "--results", finished / "results"),
        "report": (campaign, "--out", finished / "report"),
        "compare": (campaign / "few@x1", campaign / "few@x1"),
    }
    try:
        refused(give(name, *args.get(name, (campaign,))), 3, "format_major=99", "newer trigpoint", "upgrade trigpoint", "[record_newer]")
    finally:
        spec.write_bytes(before)
    assert find_attempts(campaign) == [attempt]
    assert not (finished / "report").exists()
    assert read_run(attempt).seal.intact is True


def test_a_results_folder_that_cannot_be_written_is_an_instruction(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file, not a folder")
    result = give("run", write(tmp_path), "--results", tmp_path / "results" / "below")
    refused(result, 3, "[record_disk]", "results")


def test_a_full_disk_in_the_middle_keeps_what_was_sealed_and_stops_everything(tmp_path: Path) -> None:
    path, results = write(tmp_path, GOOD), tmp_path / "results"
    campaign = results / "m"
    child = start(path, results)
    wait_for(lambda: replaying(campaign, 2), child)
    (kept,) = latest_sealed(campaign).values()
    seal = (kept / "SEAL").read_bytes()
    family = [psutil.Process(child.pid), *children_of_ours(child)]
    for process in family:
        if "harness.reference.server" not in " ".join(process.cmdline()):
            # From now on no file grows: what a full disk does, in a way that needs no mount and no privilege.
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, 1))
    _, said = child.communicate(timeout=60)
    assert child.returncode == 3, said
    assert "[record_disk]" in said
    assert "finished replicates are untouched" in said
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert (kept / "SEAL").read_bytes() == seal
    assert read_run(kept).seal.intact is True
    again = trigpoint("run", path, "--results", results)
    assert again.returncode == 0, again.stderr
    assert "(1 were there already)" in again.stdout


def test_a_load_engine_whose_rows_find_no_room_is_an_error_and_not_a_result(tmp_path: Path) -> None:
    child = start(write(tmp_path, GOOD, ("  many:", "  # many:")), tmp_path / "results")
    wait_for(lambda: replaying(tmp_path / "results" / "m", 1), child)
    for process in children_of_ours(child):
        if "harness.reference.server" not in " ".join(process.cmdline()):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, 1))
    _, said = child.communicate(timeout=60)
    assert child.returncode == 3, said
    assert "the load engine could not write its rows" in said
    assert "requests-w0.arrows" in said
    assert not latest_sealed(tmp_path / "results" / "m")
    assert json.loads((tmp_path / "results" / "m" / "journal.jsonl").read_text().splitlines()[-1])["event"] == "cut"


@pytest.mark.parametrize("whole_group", [False, True])
def test_ctrl_c_leaves_a_campaign_that_goes_on_and_no_process(tmp_path: Path, whole_group: bool) -> None:
    path, results = write(tmp_path, GOOD, ("  many:", "  # many:")), tmp_path / "results"
    child = start(path, results)
    wait_for(lambda: replaying(results / "m", 1), child)
    family = children_of_ours(child)
    if whole_group:
        os.killpg(child.pid, signal.SIGINT)  # what a terminal does
    else:
        os.kill(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "the same command goes on from here" in said
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive
    assert json.loads((results / "m" / "journal.jsonl").read_text().splitlines()[-1])["event"] == "cut"
    assert not latest_sealed(results / "m")
    if whole_group:
        again = trigpoint("run", path, "--results", results)
        assert again.returncode == 0, again.stderr
        assert len(find_attempts(results / "m")) == 2
