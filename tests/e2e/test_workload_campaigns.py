"""Whole campaigns of every kind of workload: what the record proves of them, and that analysis and reports stand on it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pytest
from click.testing import CliRunner

from analysis.model import CampaignAnalysis, CheckResult, Outcome
from harness.campaign.replicate import Settings
from harness.campaign.runner import run_campaign
from harness.cli.app import main
from harness.cli.sides import analyze_campaign
from harness.clock import MonotonicClock
from harness.manifest import PlannedRun, expand, load_manifest
from harness.observe import host_facts
from harness.record.reader import RunRecord, latest_sealed, read_run
from harness.record.schema import MEASUREMENT_PROTOCOL
from harness.record.spec import CertificateRef
from harness.replay.contract import Progress
from tests.e2e.test_campaign import ROOT, SHA, TRACES, command

pytestmark = pytest.mark.e2e

OWN = ROOT / "tests" / "fixtures" / "traces"
MS, S = 10**6, 10**9
SERVED = ("complete", "client_stop")
SOUND = (
    "partition_closes", "requests_wellformed", "tokens_agree", "counts_agree", "delivered_load", "output_length", "prefix_realised",
    "seal_intact", "server_survived", "pins_match",
)  # fmt: skip
"""Gates of integrity and of the workload: they hold on a busy host too, where the client's own may not."""

MAP = "{arrival: at, session: talk, turn: turn, think: pause, client: who, input-tokens: asked, output-tokens: answered}"
QUICKSTART = f"trace: {{format: azure-2023, name: quickstart.csv, sha256: {SHA}, window: [0s, 40s]}}"


def digest(name: str) -> str:
    return hashlib.sha256((OWN / name).read_bytes()).hexdigest()


def talks() -> str:
    options = f"{{columns: {MAP}, clock: relative, unit: s, history: excluded}}"
    return f"trace: {{format: csv, name: talks.csv, sha256: {digest('talks.csv')}, options: {options}}}"


def manifest(folder: Path, name: str, *workload: str, **parts: str) -> Path:
    """A campaign of one arm and one replicate of 5 s; ``parts`` are top-level keys, ``arm`` is what follows the runtime."""
    own = {
        "slo": "{ttft: 500ms, tbt: 200ms}",
        "window": "{warm-up: 500ms, measured: 3500ms, drain: 1s}",
        "load": "{time-compression: [1.0]}",
        "replicates": "{count: 1, order: interleaved, vary: none, seed: 5}",
        "arm": "{max-num-seqs: 16, cost-base: 4ms}",
    } | {key.replace("_", "-"): value for key, value in parts.items()}
    arms = own.pop("arms", f"{{one: {{runtime: reference, args: {own['arm']}}}}}")
    del own["arm"]
    lines = [
        "trigpoint: 1",
        "question: Is what was planned what was sent?",
        "pins: {model: {id: tiny, dtype: float32}}",
        f"arms: {arms}",
        "workload:",
        *(f"  {line}" for line in (*workload, "cache: cold")),
        *(f"{key}: {value}" for key, value in own.items()),
    ]
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def run(path: Path, *, expect: int = 0, hash_seed: str | None = None) -> Path:
    """Run a campaign in a process of its own; returns its folder."""
    results = path.parent / "results"
    args = command("run", path, "--results", results, "--traces", TRACES, "--traces", OWN, "--json")
    environment = os.environ | ({} if hash_seed is None else {"PYTHONHASHSEED": hash_seed})
    done = subprocess.run(args, capture_output=True, text=True, timeout=120, cwd=ROOT, env=environment)
    assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return results / path.stem


def ask(*args: str | Path, expect: int = 0) -> Any:
    """Answer of a command that starts nothing, in this process."""
    done = CliRunner().invoke(main, [*map(str, args), "--json"])
    assert done.exit_code == expect, f"exit {done.exit_code}\n{done.output}\n{done.exception!r}"
    return json.loads(done.stdout)


def the_record(campaign: Path) -> RunRecord:
    (path,) = latest_sealed(campaign).values()
    return read_run(path)


@functools.cache
def analysed(campaign: Path) -> CampaignAnalysis:
    """Analysis by the command, which must exit properly, and by the library, which can be looked into."""
    ask("analyze", campaign)
    return analyze_campaign(campaign)


def checks(campaign: Path) -> dict[str, CheckResult]:
    (run_,) = analysed(campaign).cells[0].runs
    return {check.code: check for check in run_.checks}


def assert_sound(campaign: Path, but: Sequence[str] = ()) -> None:
    found = checks(campaign)
    bad = {code: found[code].reason for code in SOUND if code not in but and found[code].verdict != "PASS"}
    assert not bad


def written(campaign: Path) -> str:
    """The report as text."""
    ask("report", campaign)
    assert (campaign / "report" / "report.html").stat().st_size > 10_000
    return (campaign / "report" / "report.md").read_text(encoding="utf-8")


def columns(record: RunRecord) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of schedule and requests, both by id."""
    tables = (record.schedule, record.whole_requests())
    planned, came = (sorted(table.to_pylist(), key=lambda row: int(row["request_id"])) for table in tables)
    assert [row["request_id"] for row in planned] == [row["request_id"] for row in came] == list(range(len(planned)))
    return planned, came


def assert_waited(record: RunRecord) -> Counter[str]:
    """Every waiting request came its pause after the last end it waited for, or never; returns how those that never came ended."""
    planned, came = columns(record)
    never: Counter[str] = Counter()
    for plan, row in zip(planned, came, strict=True):
        if not plan["after"]:
            assert (plan["after"], plan["think_ns"]) == (None, None)
            assert row["arrival_ns"] == plan["arrival_ns"]
            continue
        before = [came[i] for i in plan["after"]]
        assert all(planned[i]["session"] == plan["session"] for i in plan["after"])
        if row["arrival_ns"] is not None:
            assert {b["end_kind"] for b in before} <= set(SERVED)
            assert row["arrival_ns"] == max(b["end_ns"] for b in before) + plan["think_ns"]
            assert row["send_ns"] >= row["arrival_ns"]
            continue
        never[row["end_kind"]] += 1
        if row["end_kind"] == "never_due":
            assert {b["end_kind"] for b in before} - set(SERVED)
        else:
            late = [b for b in before if b["end_ns"] is None or b["end_ns"] + plan["think_ns"] >= record.spec.window.end_ns]
            assert late or {b["end_kind"] for b in before} <= {"never_sent"}
    return never


def test_trees_of_chats_wait_share_and_grow_as_their_trace_says(tmp_path: Path) -> None:
    trace = f"trace: {{format: qwen-bailian, name: chats.jsonl, sha256: {digest('chats.jsonl')}}}"
    path = manifest(
        tmp_path, "chats", trace, "loop: partly_open", "sessions: {think-unknown: 150ms, history: carry}",
        "prompts: {source: random-ids, sharing: as-trace}", "output-length: forced",
    )  # fmt: skip
    campaign = run(path)
    record = the_record(campaign)
    planned, _ = columns(record)
    never = assert_waited(record)
    assert set(never) <= {"never_due", "never_sent"}
    assert {row["think_ns"] for row in planned if row["after"]} == {150 * MS}
    followers = Counter(i for row in planned for i in row["after"] or ())
    assert max(followers.values()) >= 2, "no fork was replayed"
    # All share a system prompt of two blocks; a later turn shares at least its parent's whole blocks.
    assert sorted(row["reusable_tokens"] for row in planned)[:2] == [0, 32]
    for row in planned:
        for before in row["after"] or ():
            assert row["reusable_tokens"] >= planned[before]["input_tokens"] // 16 * 16
    assert_sound(campaign)
    text = written(campaign)
    for words in (
        "after others",
        "Prefix reuse: possible against realised",
        "Outcomes by request class",
        "later turns wait for earlier ones",
    ):
        assert words in text


@pytest.fixture(scope="module")
def overrun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations in text over chat, eight of which begin at once at a server that lets one wait."""
    path = manifest(
        tmp_path_factory.mktemp("overrun"), "overrun", talks(), "loop: partly_open", "sessions: {think-limit: 300ms}",
        "prompts: {source: text, sharing: as-trace}", "api: chat", "output-length: forced", arm="{max-num-seqs: 1, max-queue: 1}",
    )  # fmt: skip
    return run(path)


def test_turns_of_a_conversation_whose_turn_was_refused_never_come_due(overrun: Path) -> None:
    record = the_record(overrun)
    planned, came = columns(record)
    refused = {row["request_id"] for row in came if row["http_status"] == 503}
    assert len(refused) >= 4
    assert assert_waited(record)["never_due"] >= 2 * 4
    lost = {planned[row["request_id"]]["session"] for row in came if row["end_kind"] == "never_due"}
    assert lost == {planned[i]["session"] for i in refused if any(i in (row["after"] or ()) for row in planned)}
    assert {row["think_ns"] for row in planned if row["after"]} <= {100 * MS, 250 * MS, 200 * MS, 300 * MS}
    assert_sound(overrun)
    outcomes = analysed(overrun).cells[0].runs[0].outcomes
    assert outcomes.closes()
    assert outcomes.counts[Outcome.REJECTED] >= 4
    assert outcomes.not_due["never_due"] == sum(row["end_kind"] == "never_due" for row in came)


def test_a_text_that_carries_its_history_is_counted_by_the_server_as_planned(overrun: Path) -> None:
    record = the_record(overrun)
    planned, came = columns(record)
    served = [row for row in came if row["end_kind"] in SERVED]
    assert served
    assert all(row["usage_prompt_tokens"] == planned[row["request_id"]]["input_tokens"] for row in served)
    for row in planned:
        for before in row["after"] or ():
            assert row["input_tokens"] > planned[before]["input_tokens"]
            assert row["reusable_tokens"] >= planned[before]["input_tokens"] - record.spec.workload.chat_overhead
    text = written(overrun)
    for words in ("Outcomes by client", "ann", "Never due, in no cohort", "a request they wait for did not end as planned"):
        assert words in text


def test_texts_of_a_data_set_go_out_as_sessions_of_single_questions(tmp_path: Path) -> None:
    of = f"{{format: sharegpt, name: conversations.json, sha256: {digest('conversations.json')}, options: {{tokenizer: bytes}}}}"
    path = manifest(
        tmp_path, "texts", f"trace: {of}", "arrivals: {process: poisson}", "loop: partly_open",
        "sessions: {think-time: 200ms, history: none}", f"prompts: {{source: dataset, dataset: {of}}}", "output-length: natural",
        load="{rate: [3/s]}", replicates="{count: 1, vary: seed, seed: 5}",
    )  # fmt: skip
    campaign = run(path)
    record = the_record(campaign)
    planned, came = columns(record)
    assert set(assert_waited(record)) <= {"never_sent", "never_due"}
    questions = [len(turn["value"].encode()) for talk in json.loads((OWN / "conversations.json").read_text())
                 for turn in talk["conversations"] if turn["from"] == "human"]  # fmt: skip
    assert all(row["input_tokens"] == questions[row["source_row"]] for row in planned)
    assert all(row["usage_prompt_tokens"] == planned[row["request_id"]]["input_tokens"] for row in came if row["end_kind"] in SERVED)
    assert_sound(campaign)
    written(campaign)


def test_tenants_are_served_by_priority_judged_by_class_and_given_up_by_plan(tmp_path: Path) -> None:
    tenants = (
        "tenants: {gold: {share: 30%, priority: 0, slo-class: fast, weight: 2}, silver: {share: 30%, priority: 1, slo-class: fast}, "
        "bulk: {share: 40%, priority: 9, slo-class: slow}}"
    )
    path = manifest(
        tmp_path, "tenants", QUICKSTART, tenants, "cancellations: {share: 25%, after: 400ms}", "output-length: forced",
        arm="{max-num-seqs: 1, cost-base: 6ms, policy: vllm-shaped-priority}",
        slo="{ttft: 1s, tbt: 200ms, per-class: {fast: {ttft: 400ms}, slow: {e2e: 5s}}}",
    )  # fmt: skip
    campaign = run(path)
    planned, came = columns(the_record(campaign))
    assert {row["client"]: (row["priority"], row["request_class"]) for row in planned} == {
        "gold": (0, "fast"), "silver": (1, "fast"), "bulk": (9, "slow"),
    }  # fmt: skip
    first: dict[str, list[float]] = {"gold": [], "silver": [], "bulk": []}
    for row in came:
        first[planned[row["request_id"]]["client"]].append(row["event_ns"][0] - row["arrival_ns"] if row["event_ns"] else math.inf)
    assert median(first["gold"]) < median(first["bulk"]) / 2, "urgent requests were not served before others"
    outcomes = analysed(campaign).cells[0].runs[0].outcomes
    gone = [row for row in came if row["end_kind"] == "cancelled"]
    assert gone
    for row in gone:
        assert planned[row["request_id"]]["cancel_after_ns"] == 400 * MS
        assert row["end_ns"] >= row["arrival_ns"] + 400 * MS
    window = the_record(campaign).spec.window
    assert outcomes.counts[Outcome.CANCELLED] == sum(window.start_ns <= row["arrival_ns"] < window.stop_ns for row in gone)
    assert outcomes.offered == sum(window.start_ns <= row["arrival_ns"] < window.stop_ns for row in planned)
    assert outcomes.closes()
    assert_sound(campaign)
    found = {(g.by, g.name): g for g in analysed(campaign).cells[0].groups}
    assert {("client", "gold"), ("client", "bulk"), ("request_class", "fast"), ("request_class", "slow")} <= set(found)
    assert "ttft <= 400 ms" in found["request_class", "fast"].slo.lower()
    assert found["request_class", "slow"].outcomes.counts[Outcome.CANCELLED] > 0
    assert "Outcomes by client" in written(campaign)


def test_a_closed_loop_is_labelled_and_never_exceeds_its_users(tmp_path: Path) -> None:
    users = 4
    lengths = "lengths: {input: {kind: constant, value: 20}, output: {kind: uniform, low: 2, high: 6}}"
    arm = "{runtime: reference, args: {max-num-seqs: 2, cost-base: %s}}"
    path = manifest(
        tmp_path, "loop", lengths, "arrivals: {process: constant}", "loop: closed", f"users: {users}", "sessions: {think-time: 20ms}",
        "output-length: forced", load="{rate: [60/s]}", replicates="{count: 1, vary: none, seed: 5}",
        window="{warm-up: 500ms, measured: 1500ms, drain: 500ms}", rank="{metric: goodput, margin: 2%}",
        arms=f"{{slow: {arm % '8ms'}, slower: {arm % '10ms'}}}",
    )  # fmt: skip
    campaign = run(path)
    for one in latest_sealed(campaign).values():
        record = read_run(one)
        assert (record.spec.workload.loop, record.spec.workload.users, record.spec.workload.failed_pause_ns) == ("closed", users, S)
        assert set(assert_waited(record)) == {"never_sent"}
        came = [row for row in columns(record)[1] if row["send_ns"] is not None]
        # At equal instants an end comes before a beginning.
        changes = sorted([(row["send_ns"], 1) for row in came] + [(row["end_ns"], -1) for row in came])
        assert np.cumsum([change for _, change in changes]).max() <= users
        assert f"closed, {users} users" in record.coordinates.coordinates["workload.loop"].value  # type: ignore[union-attr]
    refused = ask("rank", campaign, expect=1)
    assert "never a capacity" in refused["title"]
    cell = analysed(campaign).cells[0]
    assert cell.figures
    assert all(f"closed ({users} users) loop" in figure.population for figure in cell.figures.values())
    assert "never a capacity" in written(campaign)


def test_a_chain_is_carried_out_in_order_logged_and_reported(tmp_path: Path) -> None:
    steps = [
        "{transform: window, from: 0s, to: 20s}", "{transform: jitter, grid: 1ms}", "{transform: thin, keep: 80%}",
        "{transform: retime, process: gamma, cv: 2.0}", "{transform: scale-lengths, input-factor: 0.5, output-factor: 0.5}",
        "{transform: loop, times: 2}", "{transform: time-compress, factor: 2.0}",
    ]  # fmt: skip
    path = manifest(tmp_path, "chain", QUICKSTART, f"transforms: [{', '.join(steps)}]", "output-length: forced")
    campaign = run(path)
    record = the_record(campaign)
    log = {entry["name"]: entry for entry in record.spec.workload.transforms}
    names = [entry["name"] for entry in record.spec.workload.transforms]
    wanted = ["window", "window", "jitter", "thin", "retime", "scale_lengths", "loop", "time_compress"]
    assert names[: len(wanted)] == wanted
    assert names[-1] == "trace_to_sent"
    assert log["loop"]["rows_after"] == 2 * log["loop"]["rows_before"]
    assert log["thin"]["rows_after"] < log["thin"]["rows_before"]
    told = {"cv_interarrival", *(f"index_of_dispersion_{width}s" for width in (1, 10, 60)), "input_tokens", "output_tokens"}
    whole = log["trace_to_sent"]["effect"]
    assert told <= whole["before"].keys() & whole["after"].keys()
    assert whole["after"]["input_tokens"]["mean"] < 0.7 * whole["before"]["input_tokens"]["mean"]
    assert log["retime"]["effect"]["after"]["cv_interarrival"] > 1.5
    assert_sound(campaign)
    text = written(campaign).replace("\\", "")
    assert "Transform chain" in text
    assert not [name for name in names if f" {name} |" not in text]


WORKERS = ((1, "0"), (2, "4242"), (5, "1"))


@pytest.fixture(scope="module")
def shared_out(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """One workload from 1, 2 and 5 workers, each under another hash seed."""
    done = {}
    for workers, hash_seed in WORKERS:
        path = manifest(
            tmp_path_factory.mktemp(f"workers-{workers}"), "shares", talks(), "loop: partly_open", "sessions: {}",
            "prompts: {source: random-ids, sharing: as-trace}", "cancellations: {share: 10%, after: 300ms}", "output-length: forced",
            client=f"{{fleet: {{mode: processes, workers: {workers}}}}}", window="{warm-up: 500ms, measured: 2s, drain: 500ms}",
        )  # fmt: skip
        done[workers] = run(path, hash_seed=hash_seed)
    return done


def test_any_number_of_workers_under_any_hash_seed_plans_and_sends_the_same(shared_out: dict[int, Path]) -> None:
    records = {workers: the_record(campaign) for workers, campaign in shared_out.items()}
    first = records[1]
    for record in records.values():
        assert record.spec.workload.digest == first.spec.workload.digest
        assert record.spec.workload.bodies_digest == first.spec.workload.bodies_digest
        assert record.spec.workload.bodies_digest is not None
        assert record.schedule.equals(first.schedule)
        assert record.truth.equals(first.truth)
        assert_waited(record)
    for workers, campaign in shared_out.items():
        assert_sound(campaign, but=["counts_agree"])  # two seconds may be too short for its eight gauges
        roles = {
            label for source, label in zip(*(records[workers].host.column(c).to_pylist() for c in ("source", "labels")), strict=True)
            if source == "client"
        }  # fmt: skip
        assert roles == ({None} if workers == 1 else {f"w{k}" for k in range(workers)})


def test_a_fleet_on_cores_of_its_own_cites_its_certificate_and_is_judged_worker_by_worker(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core cannot be reserved for the client and leave another to the server")
    path = manifest(
        tmp_path, "fleet", QUICKSTART, "output-length: forced",
        client=f"{{fleet: {{mode: processes, workers: 2}}, cpus: [{cores[0]}], server-cpus: [{cores[1]}]}}",
        load="{time-compression: [2.5]}",
    )  # fmt: skip
    host = str(host_facts()["host.identity"].value)
    paper = CertificateRef(
        id="test", protocol=MEASUREMENT_PROTOCOL, host=host, created=datetime.now(UTC).isoformat(), rate_ceiling=200.0,
        event_ceiling=20_000.0, stream_ceiling=1_000, live_event_ceiling=10_000.0, workers=2,
        slip_p99_ns=MS, ttft_error_p99_ns=MS, tbt_error_p99_ns=MS,
    )  # fmt: skip
    settings = Settings(tmp_path / "results", (TRACES,), paper, MonotonicClock(), lambda *_: None, lambda _: None)
    run_campaign(expand(load_manifest(path)), settings)
    campaign = tmp_path / "results" / "fleet"
    record = the_record(campaign)
    assert record.spec.certificate == paper
    assert record.spec.placement == {"client": [cores[0]], "server": [cores[1]]}
    assert_sound(campaign)
    found = checks(campaign)
    # A busy host may be late; what must not happen is that nobody knows.
    known = {code: found[code] for code in ("client_slip", "receive_lag", "client_headroom")}
    assert not {code: check.reason for code, check in known.items() if check.verdict not in ("PASS", "FAIL")}
    assert "the worst of 2 workers" in known["receive_lag"].reason
    # What the certificate is worth is said last: a client that waited for its core fails first.
    assert any(words in found["client_headroom"].reason for words in ("certificate was made on", "client waited for a core"))
    written(campaign)


def test_pauses_that_nobody_knows_are_refused_before_a_server_starts(tmp_path: Path) -> None:
    of = f"{{format: sharegpt, name: conversations.json, sha256: {digest('conversations.json')}, options: {{tokenizer: bytes}}}}"
    path = manifest(
        tmp_path, "unknown", f"trace: {of}", "arrivals: {process: poisson}", "loop: partly_open", "sessions: {}", "output-length: natural",
        load="{rate: [3/s]}", replicates="{count: 1, vary: seed, seed: 5}",
    )  # fmt: skip
    for name in ("plan", "run"):
        args = ("--results", tmp_path / "results") if name == "run" else ()
        refused = ask(name, path, "--traces", OWN, *args, expect=2)
        assert [problem["code"] for problem in refused["error"]] == ["workload.think_unknown"]
    assert not (tmp_path / "results").exists()


def led(path: Path, strike: Callable[[], None], at_s: float) -> Path:
    """Run a campaign in this process and ``strike`` once, ``at_s`` after the epoch."""
    left = [strike]

    def watch(_run: PlannedRun, _live: Progress, elapsed_s: float) -> None:
        if left and elapsed_s >= at_s:
            left.pop()()

    settings = Settings(path.parent / "results", (TRACES, OWN), None, MonotonicClock(), watch, lambda _: None)
    run_campaign(expand(load_manifest(path)), settings)
    assert not left
    return path.parent / "results" / path.stem


def test_an_interrupted_run_leaves_neither_a_process_nor_an_open_file(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def held() -> tuple[set[int], set[str]]:
        us = psutil.Process()
        # Python's own tracker is started once and lives as long as we do.
        below = {p.pid for p in us.children(recursive=True) if "resource_tracker" not in " ".join(p.cmdline())}
        return below, {file.path for file in us.open_files() if tmp_path in Path(file.path).parents}

    path = manifest(tmp_path, "cut", QUICKSTART, "output-length: forced", client="{fleet: {workers: 2}}")
    before = held()
    with pytest.raises(KeyboardInterrupt):
        led(path, interrupt, 0.5)
    assert held() == before


def processes() -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The server under test, and the workers: whoever holds a connection to it."""
    below = psutil.Process().children(recursive=True)
    serving = [p for p in below if "harness.reference.server" in " ".join(p.cmdline()) and p.net_connections("tcp")]
    (port,) = {c.laddr.port for p in serving for c in p.net_connections("tcp")}
    calling = [p for p in below if any(c.raddr and c.raddr.port == port for c in p.net_connections("tcp")) and p not in serving]
    return serving, calling


def test_users_of_a_closed_loop_outlive_their_server_and_every_try_is_counted(tmp_path: Path) -> None:
    users = 4
    lengths = "lengths: {input: {kind: constant, value: 20}, output: {kind: constant, value: 4}}"
    path = manifest(
        tmp_path, "gone", lengths, "arrivals: {process: constant}", "loop: closed", f"users: {users}", "sessions: {think-time: 20ms}",
        "output-length: forced", load="{rate: [100/s]}",
    )  # fmt: skip

    def kill_server() -> None:
        for server in processes()[0]:
            server.kill()

    campaign = led(path, kill_server, 1.5)
    _, came = columns(the_record(campaign))
    refused = [row for row in came if row["end_kind"] == "connect_refused"]
    # From 1.5 s to 5 s a user tries about once a second; the request that was under way was reset.
    assert users * 2 <= len(refused) <= users * 4
    assert any(row["end_kind"] in SERVED for row in came)
    found = checks(campaign)
    assert {code: found[code].verdict for code in ("server_survived", "partition_closes", "delivered_load", "seal_intact")} == {
        "server_survived": "FAIL", "partition_closes": "PASS", "delivered_load": "PASS", "seal_intact": "PASS",
    }, found["delivered_load"].reason  # fmt: skip
    outcomes = analysed(campaign).cells[0].runs[0].outcomes
    assert outcomes.counts[Outcome.FAILED] >= users * 2
    written(campaign)


def test_a_lost_worker_takes_its_sessions_with_it_and_no_others(tmp_path: Path) -> None:
    path = manifest(tmp_path, "lost", talks(), "loop: partly_open", "sessions: {}", "output-length: forced", client="{fleet: {workers: 2}}")
    campaign = led(path, lambda: processes()[1][0].kill(), 2.0)
    planned, came = columns(the_record(campaign))
    faulty = {row["request_id"] for row in came if row["end_kind"] == "client_fault"}
    assert faulty
    later = {row["request_id"] for row in came if row["end_kind"] in SERVED and row["arrival_ns"] > 3 * S}
    assert later, "the other worker stopped too"
    assert not {planned[i]["session"] for i in faulty} & {planned[i]["session"] for i in later}
    for i in faulty:
        assert came[i]["arrival_ns"] == (None if planned[i]["after"] else planned[i]["arrival_ns"])
    found = checks(campaign)
    assert {found[code].verdict for code in ("requests_wellformed", "delivered_load")} == {"FAIL"}
    assert found["seal_intact"].verdict == "PASS"
    assert "client faults" in found["requests_wellformed"].reason
    written(campaign)
