"""Records and analyses as data frames: what they hold, what stays missing, and that they change nothing."""

from __future__ import annotations

import builtins
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis.campaign import analyze
from analysis.frames import checks_frame, figures_frame, groups_frame, outcomes_frame, requests_frame
from analysis.model import Outcome
from analysis.notebook import read_campaign, read_cell
from harness.errors import HostError, UsageError
from tests.builders import MS, make_never_due, make_record, make_request, make_spec

pd = pytest.importorskip("pandas")

EXAMPLE = Path(__file__).parents[2] / "results" / "example"


def record() -> Any:
    made = [make_request(i, i * 100 * MS) for i in range(140)]
    made[30] = made[30] | {
        "end_kind": "http_error",
        "http_status": 429,
        "event_ns": [],
        "event_tokens": [],
        "event_bytes": [],
        "event_kind": [],
    }
    made[31] = make_request(31, 3100 * MS, tokens=1)
    made[32] = made[32] | {"send_ns": None}
    plan = {i: {"client": "ab"[i % 2]} for i in range(140)} | {140: {"after": [30], "think_ns": 0}}
    return make_record([*made, make_never_due(140)], plan=plan)


def test_requests_carry_their_clocks_in_seconds_and_leave_out_what_did_not_happen() -> None:
    frame = requests_frame(record())
    assert (len(frame), frame.index.name) == (140, "request_id")  # the turn that never came due has no clocks
    plain = frame.loc[40]
    assert [plain[c] for c in ("arrival_s", "first_token_s", "ttft_s", "tpot_s")] == pytest.approx([4.0, 4.05, 0.05, 0.02])
    assert plain["e2e_s"] == pytest.approx(plain["end_s"] - 4.0)
    assert (plain["outcome"], plain["client"], plain["output_tokens"], bool(plain["in_cohort"])) == ("valid", "a", 5, True)
    rejected, single, unsent = frame.loc[30], frame.loc[31], frame.loc[32]
    assert (rejected["outcome"], rejected["http_status"]) == ("rejected", 429)
    assert math.isnan(rejected["ttft_s"])
    assert math.isnan(single["tpot_s"])  # one token has no gap: undefined, not 0
    assert math.isnan(unsent["slip_s"])
    assert frame["session"].isna().all()


def test_attributes_say_where_the_rows_come_from() -> None:
    attrs = requests_frame(record()).attrs
    assert (attrs["cell"], attrs["replicate"], attrs["window_s"], attrs["not_due"]) == ("a@x1", 0, (2.0, 12.0), {"never_due": 1})
    assert attrs["coordinates"]["model.dtype"] == "value of model.dtype"
    assert attrs["evidence_class"] == "synthetic"


def test_counts_of_the_frame_are_the_counts_of_the_analysis() -> None:
    one = record()
    frame, found = requests_frame(one), analyze([one], incomplete=())
    counted = frame[frame["in_cohort"]]["outcome"].value_counts().to_dict()
    assert {o.value: n for o, n in found.cells[0].outcomes.counts.items() if n} == counted
    row = outcomes_frame(found).iloc[0]
    assert (row["offered"], bool(row["closes"])) == (100, True)
    assert {o.value: row[o.value] for o in Outcome if row[o.value]} == counted


def test_figures_keep_status_and_reason_where_they_have_no_value() -> None:
    found = analyze([record()], incomplete=())
    frame = figures_frame(found)
    cell = frame[frame["replicate"].isna()].set_index("metric")
    assert cell.loc["ttft_p999", "status"] == "withheld"
    assert math.isnan(cell.loc["ttft_p999", "value"])
    assert "insufficient_sample" in cell.loc["ttft_p999", "reason"]
    assert cell.loc["goodput", "value"] == found.cells[0].figures["goodput"].value
    assert len(frame) == len(found.cells[0].figures) + len(found.cells[0].runs[0].figures)
    assert set(frame["estimand"]) <= {"E1", "E2", ""}
    assert len(figures_frame(found.cells[0].runs[0])) == len(found.cells[0].runs[0].figures)


def test_intervals_stand_beside_their_figures() -> None:
    records = [make_record(spec=make_spec(replicate=i, server_start=i, load={"kind": "rate", "value": 1.0})) for i in range(3)]
    frame = figures_frame(analyze(records, incomplete=()).cells[0])
    row = frame[frame["replicate"].isna() & (frame["metric"] == "goodput")].iloc[0]
    assert (row["low"] <= row["value"] <= row["high"], row["interval_n"], row["unit_of_inference"]) == (True, 3, "replicate")


def test_checks_and_groups_have_a_row_each() -> None:
    found = analyze([record()], incomplete=())
    checks = checks_frame(found)
    assert len(checks) == len(found.cells[0].checks) + len(found.cells[0].runs[0].checks)
    assert set(checks["verdict"]) <= {"PASS", "FAIL", "UNKNOWN"}
    groups = groups_frame(found)
    assert groups[["by", "name"]].to_numpy().tolist()[:2] == [["client", "a"], ["client", "b"]]
    assert groups["offered"].sum() == 100
    assert "replicate" not in groups


def test_changing_a_frame_changes_no_record() -> None:
    one = record()
    frame = requests_frame(one)
    frame["arrival_s"] = 0.0
    frame.attrs["coordinates"].clear()
    assert requests_frame(one)["arrival_s"].max() == 13.9
    assert requests_frame(one).attrs["coordinates"]


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError("no pandas", name="pandas")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(HostError, match=r'pip install "trigpoint\[notebook\]"'):
        requests_frame(record())


def test_a_folder_without_records_is_an_instruction(tmp_path: Any) -> None:
    with pytest.raises(HostError, match="holds no campaign"):
        read_campaign(tmp_path)
    (tmp_path / "campaign.json").write_text('{"name":"x","digest":"d","question":"q","manifest":"","resolved":{},"planned":[["a@x1",0]]}')
    with pytest.raises(UsageError, match="run the campaign first"):
        read_campaign(str(tmp_path))


def test_a_cell_is_read_as_a_side_and_what_cannot_be_read_stands_against_it(tmp_path: Path) -> None:
    whole = read_cell(EXAMPLE / "seqs-8@x1.5")
    assert (len(whole.cell.runs), whole.broken, whole.spec.cell) == (1, (), "seqs-8@x1.5")
    shutil.copytree(EXAMPLE, tmp_path / "c")
    shutil.copytree(tmp_path / "c/seqs-8@x1.5/0", tmp_path / "c/seqs-8@x1.5/1")
    (tmp_path / "c/seqs-8@x1.5/1/1/spec.json").write_text("{")
    torn = read_cell(tmp_path / "c/seqs-8@x1.5")
    assert (len(torn.cell.runs), len(torn.broken)) == (1, 1)
    with pytest.raises(UsageError, match="no_sealed_run"):
        read_cell(tmp_path / "c/nowhere")
    shutil.rmtree(tmp_path / "c/seqs-8@x1.5/0")
    with pytest.raises(HostError):
        read_cell(tmp_path / "c/seqs-8@x1.5")
