"""A paper's number stands in few coordinates; against a measurement every missing one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.compare import Side, compare
from analysis.coordinates import ALL_COORDINATES, result_coordinates
from analysis.papers import FIELDS, find_paper, read_papers
from harness.errors import UsageError
from harness.record.coordinates import Known
from harness.record.spec import LoadPoint, Rank, Slo
from tests.builders import make_coordinates

REGISTRY = Path(__file__).parents[3] / "shared" / "papers" / "results.yaml"

SMALL = """
schema: papers-registry/1
papers:
- id: demo
  title: A paper of our own
  results:
  - id: demo.one
    subject: a scheduler
    V: 1
    Theta: {model: tiny, dtype: null}
    H_par: {gpu: none, tp: 1}
    M: {name: goodput, unit: req/s}
    B: null
    E: {class: source_reported}
"""


def measured() -> Side:
    rank = Rank(metric="goodput", margin=0.02)
    own = result_coordinates(rank, "goodput", Slo(ttft_ns=1), LoadPoint(kind="rate", value=1.0))
    return Side("run", make_coordinates(evidence_class=Known(value="measured")) | own)


def test_everything_the_paper_does_not_say_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "papers.yaml"
    path.write_text(SMALL, encoding="utf-8")
    side = find_paper(read_papers(path), "demo.one").side
    found = compare(side, measured())
    named = {d.coordinate: d.answer for d in found.differences}
    assert not found.comparable
    assert named["evidence.class"] == "different"
    assert named["model.dtype"] == "unknown"
    assert set(named) | {"result.metric", "result.unit", "result.fairness"} == set(ALL_COORDINATES)


def test_every_mapped_coordinate_exists() -> None:
    assert set(FIELDS.values()) <= set(ALL_COORDINATES)


@pytest.mark.parametrize("text", ["", "[]", "schema: other", "a: [", "schema: papers-registry/9\npapers: []"])
def test_what_is_no_registry_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "papers.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="papers_"):
        read_papers(path)


def test_an_unknown_result_lists_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "papers.yaml"
    path.write_text(SMALL, encoding="utf-8")
    with pytest.raises(UsageError, match=r"demo\.one"):
        find_paper(read_papers(path), "demo.two")


@pytest.mark.traces
@pytest.mark.skipif(not REGISTRY.exists(), reason="the papers registry is not beside the project")
def test_a_published_result_is_refused_against_a_measured_run_with_every_coordinate_listed() -> None:
    paper = find_paper(read_papers(REGISTRY), "orca.gpt175b.match190ms")
    found = compare(paper.side, measured())
    named = {d.coordinate: d.answer for d in found.differences}
    assert not found.comparable
    assert named["model.id"] == "different"
    assert named["evidence.class"] == "different"
    assert named["runtime.args"] == "unknown"
    assert len(named) == len(ALL_COORDINATES) - found.equal
