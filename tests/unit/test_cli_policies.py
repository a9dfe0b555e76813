"""What the command says of every policy is what its card says, and no card claims an exact reproduction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli.app import main
from harness.cli.policies import CONTRACT, card_lines
from harness.reference.registry import POLICIES
from tests.unit.test_analysis_cost_fit import record


def answer(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["policies", *words])
    assert result.exit_code == code
    return result.output


def test_the_list_holds_every_policy_and_none_is_exact() -> None:
    found = json.loads(answer("list", "--json"))["policies"]
    assert [policy["policy_id"] for policy in found] == sorted(POLICIES)
    assert not any(policy["exact_reproduction"] for policy in found)
    printed = answer("list")
    assert all(name in printed for name in POLICIES)
    assert f"{len(POLICIES)} policies, 0 of them" in printed


@pytest.mark.parametrize("name", POLICIES)
def test_a_card_is_shown_whole(name: str) -> None:
    card = POLICIES[name].card
    found = json.loads(answer("show", name, "--json"))
    assert found["contract"].keys() == CONTRACT.keys()
    assert found["tie_break"] == list(card.tie_break)
    assert found["claim_limits"] == list(card.claim_limits) != []
    assert found["parameters"].keys() == card.parameters.keys()
    printed = answer("show", name)
    assert printed.splitlines() == list(card_lines(card))
    assert "exact reproduction: no" in printed
    wanted = [card.evidence_basis, card.contract.objective, *card.claim_limits, *(f"{p}={k.default}" for p, k in card.parameters.items())]
    assert [text for text in wanted if text not in printed] == []


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    found = json.loads(answer("show", "best", "--json", code=2).partition("\npolicy=")[0])
    assert found["error"][0]["code"] == "policy_unknown"
    assert "vtc-shaped" in found["error"][0]["remedy"]


def test_a_fit_is_printed_with_its_error_and_what_to_paste(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for replicate in range(2):
        record(tmp_path, replicate, monkeypatch)
    (tmp_path / "demo" / "campaign.json").touch()
    printed = answer("fit-cost", str(tmp_path / "demo"))
    assert "arm a: fitted to 2 synthetic replicates" in printed
    assert "held out: iterations are off by 0.0% (median)" in printed
    assert "    cost-base: 5000000ns\n" in printed
    assert "    cost-source: fitted:cccccccccccccccc:0.000\n" in printed
    found = json.loads(answer("fit-cost", str(tmp_path / "demo"), "--json"))
    assert found["fits"][0]["parameters"]["decode_row_ns"]["value"] == pytest.approx(130_000, rel=1e-6)
    assert found["not_fitted"] == []
