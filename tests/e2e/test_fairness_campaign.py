"""Fairness from a manifest to the page: the noisy neighbour with and without it, in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from analysis.campaign import analyze
from analysis.model import CampaignAnalysis, Ranking
from harness.cli.app import main
from harness.cli.sides import load_records
from harness.record.reader import RunRecord

TEACHING = Path(__file__).parents[2] / "manifests" / "teaching"

pytestmark = pytest.mark.e2e


def simulate(folder: Path, name: str = "noisy-neighbour", **parts: Any) -> Path:
    """Play a teaching manifest with some sections replaced; its campaign folder."""
    path = folder / f"{name}.yaml"
    text = (TEACHING / path.name).read_text(encoding="utf-8")
    path.write_text(yaml.safe_dump(yaml.safe_load(text) | parts), encoding="utf-8")
    result = CliRunner().invoke(main, ["simulate", str(path), "--results", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    return folder / name


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunRecord], CampaignAnalysis]:
    campaign = simulate(tmp_path_factory.mktemp("neighbour"))
    records, broken = load_records(campaign)
    assert broken == []
    return campaign, records, analyze(records, incomplete=())


def test_the_quiet_client_loses_everything_in_order_of_arrival_and_nothing_under_counters(played: Any) -> None:
    found = {n.crowded: n for n in played[2].neighbours}
    assert set(found) == {"arrival-order@rate-33", "fair-by-client@rate-33"}
    assert {(n.client, n.without, n.pairs) for n in found.values()} == {("quiet", ("noisy",), 5)}
    assert found["arrival-order@rate-33"].difference > 0.95
    assert found["fair-by-client@rate-33"].difference < 0.02


def test_the_quiet_clients_requests_are_the_same_with_and_without_its_neighbour(played: Any) -> None:
    def sent(record: RunRecord) -> list[tuple[int, int, int]]:
        rows = [r for r in record.schedule.to_pylist() if r["client"] == "quiet"]
        return [(r["arrival_ns"], r["input_tokens"], r["max_tokens"]) for r in rows]

    records = {(r.spec.arm.name, r.spec.replicate): r for r in played[1]}
    for replicate in range(5):
        whole, alone = records["arrival-order", replicate], records["arrival-order-alone", replicate]
        assert sent(whole) == sent(alone)
        assert set(alone.schedule["client"].to_pylist()) == {"quiet"}
        assert whole.spec.workload.digest != alone.spec.workload.digest
        assert alone.coordinates.coordinates["workload.transforms"].value == [{"name": "without_clients", "clients": ["noisy"]}]


def test_fair_queueing_ranks_first_by_gap_and_controls_are_in_no_ranking(played: Any) -> None:
    verdict = played[2].verdict
    assert isinstance(verdict, Ranking), verdict.reasons
    assert [s.arm for s in verdict.standings] == ["fair-by-client", "arrival-order"]
    assert [(e.verdict, e.scale) for e in verdict.effects] in ([("better", "difference")], [("worse", "difference")])
    assert {(arm, reasons[0].code) for arm, reasons in verdict.unranked} == {
        ("arrival-order-alone", "control_arm"),
        ("fair-by-client-alone", "control_arm"),
    }


def test_the_declarations_are_frozen_and_printed(played: Any) -> None:
    campaign, records, _ = played
    assert all(r.spec.fairness is not None for r in records)
    result = CliRunner().invoke(main, ["report", str(campaign), "--json"])
    assert result.exit_code == 0, result.output
    page = Path(json.loads(result.output)["markdown"]).read_text(encoding="utf-8").replace("\\", "")
    for words in ("Fairness side by side", "What is called fair here", "eligibility interval", "w_p = 1", "As declared", "never ranked"):
        assert words in page


def test_a_starved_client_stands_against_a_claim_about_fairness(tmp_path: Path) -> None:
    """A second without service is called starvation here, and in order of arrival the quiet client waits longer than that."""
    once = {"count": 2, "server-starts": 2, "vary": "seed", "seed": 4}
    campaign = simulate(tmp_path, fairness={"horizon": "1s"}, replicates=once)
    found = analyze(load_records(campaign)[0], incomplete=())
    answers = {c.arm: {x.verdict.value for run in c.runs for x in run.checks if x.code == "starvation"} for c in found.cells}
    assert "FAIL" in answers["arrival-order"]
    assert answers["fair-by-client"] == {"PASS"}
    reasons = found.verdict.reasons if not isinstance(found.verdict, Ranking) else [r for _, rs in found.verdict.unranked for r in rs]
    assert any(r.code == "starvation" and "arrival-order" in r.text for r in reasons)


def test_each_order_of_priorities_keeps_what_it_promises_and_only_one_serves_everybody(tmp_path: Path) -> None:
    once = {"count": 1, "server-starts": 1, "vary": "seed", "seed": 3}
    cells = {c.arm: c for c in analyze(load_records(simulate(tmp_path, "starvation", replicates=once))[0], incomplete=()).cells}
    shares = {}
    for arm, cell in cells.items():
        assert cell.fairness is not None
        found = cell.fairness.inversions
        assert found.static is not None
        assert found.aged is not None
        shares[arm] = (found.static / found.first_tokens, found.aged / found.first_tokens)
    assert shares["static"][0] < 0.02 < 0.5 < shares["static"][1]
    assert shares["aging"][1] < 0.05 < shares["aging"][0]
    starved = {arm: [s.name for s in cell.fairness.shares if s.starved] for arm, cell in cells.items() if cell.fairness}
    assert starved == {"static": ["other"], "aging": []}
