"""Whole campaigns in virtual time: all policies beside one another, ranked among themselves and never beside anything else."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from analysis.campaign import analyze
from analysis.model import CampaignAnalysis, CellAnalysis, Ranking, Refusal
from harness.cli.app import main
from harness.cli.sides import load_records
from harness.record.coordinates import Coordinate, Known, RunCoordinates
from harness.record.reader import RunRecord, latest_sealed
from harness.reference.registry import POLICIES

ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
TRACES = MANIFESTS / "traces"
EXAMPLE = ROOT / "results" / "example" / "seqs-8@x1.5"

pytestmark = pytest.mark.e2e


def trigpoint(*words: str | Path, code: int = 0) -> Any:
    """The JSON answer of a command; a refusal prints its problems on standard error too."""
    result = CliRunner().invoke(main, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def simulate(path: Path, results: Path, code: int = 0) -> Any:
    return trigpoint("simulate", path, "--results", results, "--traces", TRACES, code=code)


def changed(name: str, folder: Path, **parts: Any) -> Path:
    """A committed manifest with whole sections replaced, under its own name."""
    text = yaml.safe_load((MANIFESTS / name).read_text(encoding="utf-8"))
    path = folder / Path(name).name
    path.write_text(yaml.safe_dump(text | parts), encoding="utf-8")
    return path


def once(name: str) -> dict[str, Any]:
    """The manifest's replicates, but one of them."""
    return {"replicates": yaml.safe_load((MANIFESTS / name).read_text(encoding="utf-8"))["replicates"] | {"count": 1, "server-starts": 1}}


def analyzed(campaign: Path, *changed_records: RunRecord) -> CampaignAnalysis:
    records, broken = load_records(campaign)
    assert broken == []
    return analyze(changed_records or records, incomplete=())


# all policies


@pytest.fixture(scope="module")
def everyone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every policy once on a short window."""
    folder = tmp_path_factory.mktemp("everyone")
    name = "policies-virtual.yaml"
    path = changed(name, folder, **once(name), window={"warm-up": "1s", "measured": "6s", "drain": "2s"})
    assert simulate(path, folder)["sealed"] == len(POLICIES)
    return folder / "policies-virtual"


def test_the_manifest_has_every_policy_of_the_registry_as_an_arm() -> None:
    arms = yaml.safe_load((MANIFESTS / "policies-virtual.yaml").read_text(encoding="utf-8"))["arms"]
    assert sorted(arm["args"]["policy"] for arm in arms.values()) == sorted(POLICIES)
    rest = {arm["args"]["policy"]: {k: v for k, v in arm["args"].items() if not k.startswith("policy")} for arm in arms.values()}
    pair = rest.pop("distserve-like-split")  # two workers: places and KV of two
    assert pair == rest["fixed-batch"] | {k: 2 * rest["fixed-batch"][k] for k in ("max-num-seqs", "kv-cache-tokens")}
    assert all(args == rest["fixed-batch"] for args in rest.values())


def test_every_policy_serves_the_same_load_and_is_reported_with_its_clients(everyone: Path) -> None:
    found = analyzed(everyone)
    assert len(found.cells) == len(POLICIES)
    assert {cell.outcomes.offered for cell in found.cells} == {found.cells[0].outcomes.offered}
    for cell in found.cells:
        assert cell.evidence_class == "synthetic"
        assert cell.figures["goodput"].value is not None
        assert {group.name for group in cell.groups} == {"bulk", "team", "desk"}
        assert sum(group.outcomes.offered for group in cell.groups) == cell.outcomes.offered
        blind = [check for run in cell.runs for check in run.checks if check.verdict == "UNKNOWN" and check.code != "steady_state"]
        assert blind == []  # six seconds of an overloaded arm are too few for a trend
    trigpoint("report", everyone, "--out", everyone / "report")
    page = (everyone / "report" / "report.md").read_text(encoding="utf-8")
    assert [cell.arm for cell in found.cells if cell.arm not in page] == []
    assert all(word in page for word in ("synthetic", "goodput", "ttft\\_p95", "bulk"))


# ranked among themselves


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies over five replicates, as the committed manifest has them."""
    folder = tmp_path_factory.mktemp("ranked")
    name = "policies-virtual.yaml"
    arms = yaml.safe_load((MANIFESTS / name).read_text(encoding="utf-8"))["arms"]
    path = changed(name, folder, arms={arm: arms[arm] for arm in ("vllm-shaped-fcfs", "iteration-refill")})
    simulate(path, folder)
    return folder / "policies-virtual"


def elsewhere(record: RunRecord, coordinates: Mapping[str, Any], **spec: Any) -> RunRecord:
    """The record of the first arm under other coordinates, everything else as it was."""
    if record.spec.arm.name != "iteration-refill":
        return record
    frame: dict[str, Coordinate] = dict(record.coordinates.coordinates)
    frame |= {name: Known(value=value) for name, value in coordinates.items()}
    return replace(record, spec=record.spec.model_copy(update=spec), coordinates=RunCoordinates(coordinates=frame))


def refused_for(campaign: Path, coordinates: Mapping[str, Any], **spec: Any) -> set[str]:
    """Which coordinates a refused ranking names when one arm's records say other ones."""
    records, _ = load_records(campaign)
    verdict = analyze([elsewhere(record, coordinates, **spec) for record in records], incomplete=()).verdict
    assert isinstance(verdict, Refusal)
    return {reason.text.split()[0] for reason in verdict.reasons if reason.code == "coordinate_different"}


def test_policies_are_ranked_inside_synthetic(ranked: Path) -> None:
    found = analyzed(ranked)
    assert isinstance(found.verdict, Ranking)
    assert {cell.evidence_class for cell in found.cells} == {"synthetic"}
    assert [standing.arm for standing in found.verdict.standings] == ["vllm-shaped-fcfs", "iteration-refill"]


def test_nothing_simulated_is_ranked_beside_a_measurement(ranked: Path) -> None:
    """Even with every other coordinate equal, which no real host could be."""
    assert refused_for(ranked, {"evidence.class": "measured"}, evidence_class="measured") == {"evidence.class"}
    cell = ranked / "vllm-shaped-fcfs@x1.3"
    found = trigpoint(
        "compare", cell, EXAMPLE, "--factor", "evidence.class", "--factor", "hardware.host", "--factor", "client.host", code=1
    )
    assert found["comparable"] is False


def test_nothing_simulated_is_ranked_beside_a_synthetic_run_that_took_time(ranked: Path) -> None:
    assert refused_for(ranked, {"client.host": "m:b", "hardware.host": "m:b"}) == {"client.host", "hardware.host"}
    found = trigpoint("compare", ranked / "vllm-shaped-fcfs@x1.3", EXAMPLE, code=1)
    named = {d["coordinate"] for d in found["differences"]}
    assert {"client.host", "hardware.host", "hardware.cpu", "hardware.cores"} <= named
    assert "evidence.class" not in named  # both are synthetic: the class alone would let them through


# journal, resume, refusals


def test_what_was_cut_is_simulated_again_to_the_same_bytes_and_never_measured(ranked: Path, tmp_path: Path) -> None:
    campaign = tmp_path / ranked.name
    shutil.copytree(ranked, campaign)
    lost = latest_sealed(campaign)["iteration-refill@x1.3", 2]
    before = {path.name: path.read_bytes() for path in lost.glob("*.parquet")}
    (lost / "SEAL").unlink()
    assert trigpoint("status", campaign)["counts"] == {"sealed": 9, "cut": 1}
    answer = trigpoint("resume", campaign, "--traces", TRACES)
    assert (answer["kept"], answer["sealed"]) == (9, 10)
    again = latest_sealed(campaign)["iteration-refill@x1.3", 2]
    assert (again.name, {path.name: path.read_bytes() for path in again.glob("*.parquet")}) == ("2", before)
    manifest = tmp_path / "policies-virtual.yaml"
    manifest.write_text(json.loads((campaign / "campaign.json").read_bytes())["manifest"], encoding="utf-8")
    refused = trigpoint("run", manifest, "--results", tmp_path, "--traces", TRACES, code=2)
    assert [problem["code"] for problem in refused["error"]] == ["clock_differs"]


def test_what_has_no_virtual_form_is_refused_by_name_before_anything_is_written(tmp_path: Path) -> None:
    name = "teaching/overload.yaml"
    arms = {"ours": {"runtime": "reference"}, "theirs": {"runtime": "endpoint", "url": "http://127.0.0.1:9/v1"}}
    path = changed(name, tmp_path, arms=arms, client={"concurrency-cap": 4, "request-timeout": "5s"})
    found = simulate(path, tmp_path / "results", code=2)["error"]
    assert {problem["code"] for problem in found} == {"not_simulated"}
    assert [re.split("=", problem["text"])[0] for problem in found] == [
        "arms.theirs.runtime",
        "client.concurrency-cap",
        "client.request-timeout",
    ]
    assert not (tmp_path / "results").exists()


def test_an_engine_that_virtual_time_cannot_be_is_refused_with_its_arm(tmp_path: Path) -> None:
    arms = {"cached": {"runtime": "reference", "args": {"prefix-cache-tokens": 64}}, "plain": {"runtime": "reference"}}
    found = simulate(changed("teaching/overload.yaml", tmp_path, arms=arms), tmp_path / "results", code=2)["error"]
    assert [problem["code"] for problem in found] == ["simulate_prefix_cache"]
    assert found[0]["text"].startswith("arms.cached:")


def test_a_closed_loop_is_refused_where_some_users_would_never_send_again(tmp_path: Path) -> None:
    workload = yaml.safe_load((MANIFESTS / "quickstart.yaml").read_text(encoding="utf-8"))["workload"]
    arms = {"declining": {"runtime": "reference", "args": {"max-queue": 1}}, "patient": {"runtime": "reference"}}
    path = changed("quickstart.yaml", tmp_path, arms=arms, workload=workload | {"loop": "closed", "users": 4}, **once("quickstart.yaml"))
    found = simulate(path, tmp_path / "results", code=2)["error"]
    assert [(problem["code"], problem["text"].partition(":")[0]) for problem in found] == [("not_simulated", "arms.declining")]


# what the teaching manifests teach


def lesson(name: str, folder: Path) -> dict[str, CellAnalysis]:
    """Cells of a teaching manifest, one replicate of each."""
    path = changed(f"teaching/{name}.yaml", folder, **once(f"teaching/{name}.yaml"))
    simulate(path, folder)
    found = analyzed(folder / name)
    assert {cell.evidence_class for cell in found.cells} == {"synthetic"}
    return {cell.cell: cell for cell in found.cells}


def figure(cell: CellAnalysis, name: str) -> float:
    value = cell.figures[name].value
    assert value is not None, cell.figures[name].reason
    return value


def verdict(cell: CellAnalysis, code: str) -> str:
    return next(str(check.verdict) for check in cell.runs[0].checks if check.code == code)


def attainment(cell: CellAnalysis, client: str) -> float:
    value = next(group for group in cell.groups if group.name == client).figures["attainment"].value
    assert value is not None
    return value


def counts(cell: CellAnalysis, client: str) -> dict[str, int]:
    return {str(k): n for k, n in next(group for group in cell.groups if group.name == client).outcomes.counts.items() if n}


def test_overload(tmp_path: Path) -> None:
    cells = lesson("overload", tmp_path)
    endless, bounded = cells["endless-queue@rate-33"], cells["bounded-queue@rate-33"]
    assert figure(endless, "request_throughput") == pytest.approx(figure(bounded, "request_throughput"), rel=0.02)
    assert figure(endless, "goodput") < 0.05 * figure(bounded, "goodput")
    assert verdict(endless, "backlog") == "FAIL"
    assert verdict(bounded, "backlog") == "PASS"
    assert endless.figures["ttft_p99"].status == "withheld"
    assert bounded.outcomes.counts["rejected"] > 0
    assert bounded.outcomes.counts["valid"] + bounded.outcomes.counts["rejected"] == bounded.outcomes.offered
    light = [cells[f"{arm}@rate-15"].outcomes.counts for arm in ("endless-queue", "bounded-queue")]
    assert light[0] == light[1]


def test_preemption_thrash(tmp_path: Path) -> None:
    cells = lesson("preemption-thrash", tmp_path)
    thrashing, reserving, roomy = (cells[f"{arm}@rate-2.6"] for arm in ("thrashing", "reserving", "roomy"))
    assert figure(thrashing, "request_throughput") == pytest.approx(figure(roomy, "request_throughput"), rel=0.02)
    assert figure(thrashing, "tbt_p99") > 1.5 * figure(roomy, "tbt_p99")
    assert figure(thrashing, "attainment") < 0.9 < figure(roomy, "attainment")
    assert figure(reserving, "tbt_p99") <= figure(roomy, "tbt_p99")
    assert figure(reserving, "ttft_p50") > 5 * figure(thrashing, "ttft_p50")
    assert figure(cells["thrashing@rate-4"], "token_throughput") < 0.9 * figure(cells["roomy@rate-4"], "token_throughput")
    assert figure(cells["reserving@rate-4"], "token_throughput") < figure(cells["thrashing@rate-4"], "token_throughput")
    told = {name: cell.runs[0].memory for name, cell in cells.items()}
    counts = {name: use.counts for name, use in told.items() if use is not None}
    assert counts["thrashing@rate-4"]["recomputed_rows_total"] > 20_000
    assert counts["roomy@rate-4"]["preemptions_total"] == counts["reserving@rate-4"]["preemptions_total"] == 0
    kept = counts["preserving@rate-4"]
    assert kept["preemptions_preserve_total"] == kept["preemptions_total"] > 100
    assert kept["recomputed_rows_total"] == 0
    assert figure(cells["preserving@rate-4"], "token_throughput") > 1.1 * figure(cells["thrashing@rate-4"], "token_throughput")


def test_starvation(tmp_path: Path) -> None:
    cells = lesson("starvation", tmp_path)
    static, aging = cells["static@rate-20"], cells["aging@rate-20"]
    assert verdict(static, "starvation") == "FAIL"
    assert counts(static, "other").keys() == {"open"}
    assert verdict(aging, "starvation") == "PASS"
    assert counts(aging, "other")["miss"] > 0
    assert figure(static, "request_throughput") == pytest.approx(figure(aging, "request_throughput"), rel=0.02)


def test_noisy_neighbour(tmp_path: Path) -> None:
    cells = lesson("noisy-neighbour", tmp_path)
    in_order, fair = cells["arrival-order@rate-33"], cells["fair-by-client@rate-33"]
    assert attainment(in_order, "quiet") < 0.1
    assert attainment(fair, "quiet") > 0.95
    assert attainment(fair, "noisy") < 0.1
    assert figure(in_order, "request_throughput") == pytest.approx(figure(fair, "request_throughput"), rel=0.02)


def test_long_prompts(tmp_path: Path) -> None:
    cells = lesson("long-prompts", tmp_path)
    whole, pieces = cells["whole-prompts@rate-4"], cells["pieces@rate-4"]
    assert figure(whole, "tbt_p99") > 0.15
    assert figure(pieces, "tbt_p99") < 0.035
    assert figure(pieces, "attainment") > 0.95 > 2 * figure(whole, "attainment")
    assert figure(pieces, "ttft_p50") > figure(whole, "ttft_p50")
