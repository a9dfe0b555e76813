"""The one record in the repository: sealed, free of this or any machine's paths, and analyzed to the same bytes everywhere."""

import os
import re
import shutil
from pathlib import Path

import pytest

from analysis.model import Verdict
from analysis.report import to_json
from harness.cli.sides import analyze_campaign
from harness.record.canonical import canonical_json
from harness.record.reader import read_run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "results" / "example"
ATTEMPT = EXAMPLE / "seqs-8@x1.5" / "0" / "1"
GOLDEN = Path(__file__).parent / "expected" / "analysis.json"


def test_the_seal_is_intact() -> None:
    record = read_run(ATTEMPT)
    assert re.fullmatch("[0-9a-f]{64}", record.seal.root or "")
    (run,) = analyze_campaign(EXAMPLE).cells[0].runs
    verdicts = {check.code: check.verdict for check in run.checks}
    assert verdicts["seal_intact"] is Verdict.PASS
    assert verdicts["partition_closes"] is Verdict.PASS


@pytest.mark.parametrize("name", ["spec.json", "facts.json", "server.log"])
def test_a_changed_byte_is_seen(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder)
    changed = folder / "seqs-8@x1.5" / "0" / "1" / name
    changed.write_bytes(changed.read_bytes() + b"\n")  # still whole JSON, still a log: only the seal knows
    (run,) = analyze_campaign(folder).cells[0].runs
    assert {c.code: c.verdict for c in run.checks}["seal_intact"] is Verdict.FAIL


def test_analysis_is_the_same_bytes_as_when_it_was_committed() -> None:
    found = canonical_json(to_json(analyze_campaign(EXAMPLE))) + b"\n"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_bytes(found)
    assert found == GOLDEN.read_bytes()


def test_no_file_names_a_place_on_a_machine() -> None:
    files = [p for p in EXAMPLE.rglob("*") if p.is_file()]
    assert len(files) > 10
    place = re.compile(rb"/(?:home|root|tmp|work|Users|usr/bin|usr/local|opt)/")
    assert [p.name for p in files if place.search(p.read_bytes())] == []
    assert sum(p.stat().st_size for p in files) < 200_000
