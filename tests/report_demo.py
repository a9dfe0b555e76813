"""Analyses built by hand for the report's tests, and for looking at a page: `python -m tests.report_demo FOLDER`."""

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

from analysis.model import (
    Arrivals,
    CampaignAnalysis,
    CellAnalysis,
    CheckResult,
    Claim,
    Comparison,
    Difference,
    Effect,
    Figure,
    Group,
    Interval,
    Outcome,
    Outcomes,
    Ranking,
    Reason,
    Refusal,
    Reuse,
    RunAnalysis,
    Sent,
    Standing,
    Stream,
    Tally,
    Tokens,
    Verdict,
)
from tests.builders import make_coordinates

ARMS = ("budget-512", "budget-8192")


def interval(low: float, high: float) -> Interval:
    return Interval(low, high, 0.95, "t over replicates", 5, "replicate")


def figures(shift: float) -> dict[str, Figure]:
    cohort, done = "offered cohort (arrival in the measured window)", "completed requests"
    found = [
        Figure("goodput", "req/s", 9.2 + shift, "ok", 610, cohort, "measured window W = 12 s", interval=interval(9.0 + shift, 9.4 + shift)),
        Figure("request_throughput", "req/s", 10.0 + shift, "ok", 640, "completions", interval=interval(9.9 + shift, 10.2 + shift)),
        Figure("token_throughput", "tok/s", 1834.2, "ok", 640, "tokens", interval=interval(1800.0, 1870.25)),
        Figure("attainment", "ratio", 0.93, "ok", 610, cohort, "offered requests N_off = 610", interval=interval(0.91, 0.95)),
        Figure("attainment_completed", "ratio", 0.97, "ok", 600, done, diagnostic=True),
        Figure("ttft_p50", "s", 0.0812 - shift / 50, "ok", 600, done, interval=interval(0.078, 0.084)),
        Figure("ttft_p99", "s", 0.412, "ok", 600, done, interval=interval(0.398, 0.431)),
        Figure(
            "ttft_p99_offered",
            "s",
            math.inf,
            "ok",
            610,
            cohort,
            reason="more than the tail did not complete",
            interval=interval(0.4, math.inf),
        ),
        Figure("ttft_p999", "s", None, "withheld", 600, done, reason="insufficient_sample: n=600 requests, at least 1000 are needed"),
        Figure("tbt_p99", "s", 0.0312, "ok", 600, "gaps of completed requests", interval=interval(0.0301, 0.0324)),
        Figure("tpot_p50", "s", None, "undefined", 0, done, reason="every completed request had one token"),
        Figure("slip_p50", "s", 0.0001, "ok", 610, cohort),
        Figure("slip_p99", "s", 0.0003, "ok", 610, cohort),
        Figure("slip_max", "s", 0.0021, "ok", 610, cohort),
    ]
    return {f.metric: f for f in found}


def checks(fail: bool) -> tuple[CheckResult, ...]:
    one = Claim.INTEGRITY
    found = [
        CheckResult("partition_closes", Verdict.PASS, "every offered request has one outcome", (one,), "", {"offered": 122}),
        CheckResult("tokens_agree", Verdict.PASS, "client and server count the same tokens", (one,), "", {"differing": 0, "limit": 0}),
        CheckResult("client_slip", Verdict.PASS, "sends were on time", (Claim.LATENCY,), "", {"p99_s": 0.00031, "limit_s": 0.005}),
        CheckResult(
            "starvation",
            Verdict.UNKNOWN,
            "no client identity in this trace",
            (Claim.FAIRNESS,),
            "use a trace with clients",
            waived="One tenant only in this trace.",
        ),
    ]
    if fail:
        found.append(
            CheckResult(
                "receive_lag",
                Verdict.FAIL,
                "p99 above its limit",
                (Claim.LATENCY, Claim.GOODPUT),
                "give the client a core",
                {"p99_s": 0.0041, "limit_s": 0.002},
            )
        )
    return tuple(found)


def run(arm: str, replicate: int, *, fail: bool) -> RunAnalysis:
    slow = 0.6 if arm == ARMS[1] else 1.0
    share = tuple((i + 1) / 60 for i in range(60))
    lag = 0.9 + 0.05 * replicate
    return RunAnalysis(
        path=f"{arm}@x1/{replicate}/1",
        cell=f"{arm}@x1",
        arm=arm,
        replicate=replicate,
        server_start=replicate,
        seal_root=f"{replicate}" * 64,
        outcomes=outcomes(1),
        figures=figures(0.0),
        checks=checks(fail),
        sent=sent(waiting=30 if arm == ARMS[0] else 0),
        series={
            "ttft_cdf": (tuple(0.05 * lag * slow * math.exp(2.2 * s**2) for s in share), share),
            "tbt_cdf": (tuple(0.0 if s < 0.05 else 0.01 * lag * math.exp(s**3) for s in share), share),
            "slip_cdf": (tuple(0.0001 * lag * math.exp(s) for s in share), share),
            "in_flight": (
                tuple(i * 0.25 for i in range(60)),
                tuple(float(int(4 + 3 * math.sin(i / 5 + replicate) * slow)) for i in range(60)),
            ),
        },
    )


def stream(count: int, cv: float | None) -> Stream:
    return Stream(count, count / 14, cv, {"1s": 1.91, "10s": 3.2, "60s": None})


def tokens(n: int) -> Tokens:
    lost = Tally(12 * n, n - 1, f"stated by the server for {n - 1} of {n} requests")
    return Tokens(Tally(16 * n, n), Tally(15 * n, n), lost, Tally(5 * n, n), Tally(5 * n, n), Tally(None, 0, "not stated by the server"))


def reuse(n: int, realised: int | None) -> Reuse:
    why = "" if realised is not None else "the server's counter does not say whose they are"
    return Reuse({"1": Tally(9 * n, n), "16": Tally(8 * n, n)}, Tally(realised, n, why), "server counter", "on")


def sent(waiting: int) -> Sent:
    effect = {
        "before": {"mean_rate_rps": 4.0, "cv_interarrival": 2.1, "input_tokens": {"mean": 120.5}},
        "after": {"mean_rate_rps": 8.0, "cv_interarrival": 2.1, "input_tokens": {"mean": 120.5}},
    }
    clock = Arrivals("clock", 160 - waiting, 160 - waiting, 160 - waiting, {}, stream(160 - waiting, 1.4), stream(160 - waiting, 1.38))
    after = Arrivals("waiting", waiting, waiting - 2, waiting - 3, {"never_due": 2}, stream(waiting - 2, 0.9), stream(waiting - 3, None))
    return Sent(
        arrivals=(clock, after) if waiting else (clock,),
        tokens=tokens(160),
        server={"input": Tally(2400, 160), "output": Tally(None, 160, "no snapshot from after the last request ended")},
        reuse=reuse(160, 640),
        transforms=({"name": "time_compress", "factor": 2.0, "rows_before": 160, "rows_after": 160, "effect": effect},),
    )


def group(by: Any, name: str | None, *, members: int = 1) -> Group:
    found = figures(0.0)
    few = Figure("ttft_p99", "s", None, "withheld", 60, "completed", reason="insufficient_sample: n=60 requests, at least 100 are needed")
    own = {m: found[m] for m in ("goodput", "attainment", "ttft_p50")} | {"ttft_p99": few}
    return Group(by, name, members, "TTFT <= 500 ms", outcomes(1), own, tokens(60), reuse(60, None))


def outcomes(runs: int) -> Outcomes:
    counts = {Outcome.VALID: 113, Outcome.MISS: 5, Outcome.REJECTED: 2, Outcome.FAILED: 1, Outcome.CANCELLED: 0, Outcome.OPEN: 1}
    return Outcomes(122 * runs, {o: n * runs for o, n in counts.items()})


GROUPS = (
    group("client", "tenant-1"),
    group("client", "tenant-2"),
    group("client", None),
    group("client", "others", members=12),
    group("request_class", "chat"),
    group("request_class", None),
)


def paired(verdict: Verdict) -> CheckResult:
    why, remedy = "mean output tokens 100 and 104 over 600 requests that both served", "fix the lengths"
    return CheckResult("output_length_agree", verdict, why, (Claim.COMPARISON,), remedy, {"difference": 0.04}, "budget-512 against 8192")


def cell(arm: str, shift: float, *, fail: bool) -> CellAnalysis:
    coordinates: dict[str, Any] = dict(make_coordinates())
    coordinates["runtime.args"] = make_coordinates(runtime_args=coordinates["runtime.args"].model_copy(update={"value": {"max": arm}}))[
        "runtime.args"
    ]
    return CellAnalysis(
        cell=f"{arm}@x1",
        arm=arm,
        load="time_compression=1",
        estimand="E2",
        evidence_class="measured",
        runs=tuple(run(arm, i, fail=fail and i == 3) for i in range(5)),
        outcomes=outcomes(5),
        figures=figures(shift),
        checks=(CheckResult("replicates", Verdict.PASS, "five server starts", (Claim.COMPARISON,), "", {"replicates": 5, "needed": 2}),),
        coordinates=coordinates,
        declared=("runtime.args",),
        design_effect=1.4,
    )


def ranking(cells: tuple[CellAnalysis, ...]) -> Ranking:
    standings = tuple(Standing(i + 1, c.arm, c.cell, c.figures["goodput"]) for i, c in enumerate(reversed(cells)))
    effects = (Effect(ARMS[0], ARMS[1], "difference", 0.9, 0.62, 1.18, 0.95, 0.184, "better", 5),)
    return Ranking("goodput under TTFT <= 500 ms and TBT (every) <= 100 ms at time_compression=1", "goodput", standings, effects)


def refusal() -> Refusal:
    return Refusal(
        "goodput under TTFT <= 500 ms at time_compression=1",
        (
            Reason("receive_lag", "arm budget-512: FAIL: p99 above its limit (budget-512@x1/3/1)", "give the client a core of its own"),
            Reason("coordinate_unknown", "model.revision of a against b: 'unknown' against 'r1'", "pin the revision in the manifest"),
        ),
    )


def campaign(*, refused: bool = False, **changes: Any) -> CampaignAnalysis:
    cells = (cell(ARMS[0], 0.0, fail=refused), cell(ARMS[1], 0.9, fail=False))
    difference = Difference("runtime.args", {"max": 512}, {"max": 8192}, "differs_by_declaration", "nothing: this is the treatment")
    base = CampaignAnalysis(
        campaign="budget-sweep",
        question="Does a smaller token budget raise goodput when every token gap must stay under 100 ms?",
        digest="ab" * 32,
        cells=cells,
        comparisons=(Comparison(cells[0].cell, cells[1].cell, not refused, (difference,), 50, (paired(Verdict.PASS),)),),
        verdict=refusal() if refused else ranking(cells),
        waivers=(("starvation", "One tenant only in this trace."),),
        incomplete=("budget-512@x1 replicate 4: cut, not sealed",) if refused else (),
        provenance={
            "version": ["0.1.0"],
            "source_digest": ["d" * 64],
            "measurement_protocol": [1],
            "traces": [
                {
                    "format": "azure-2023",
                    "name": "AzureLLMInferenceTrace_conv",
                    "sha256": "3f" * 32,
                    "licence": "CC-BY-4.0",
                    "attribution": "Azure",
                }
            ],
            "certificates": [{"id": "f" * 64, "rate_ceiling": 200.0}],
            "seals": {},
            "epochs": {"budget-512@x1/0": "2026-11-30T03:00:00Z"},
        },
    )
    return dataclasses.replace(base, **changes)


def shared() -> CampaignAnalysis:
    """The ranked one under a closed loop, with clients, classes, turns that never came due and cancellations by plan."""
    whole = campaign()
    counts = dict(outcomes(5).counts) | {Outcome.CANCELLED: 7}
    crowded = Outcomes(617, counts, {"never_due": 10})
    cells = tuple(dataclasses.replace(c, groups=GROUPS, loop="closed (8 users)", outcomes=crowded) for c in whole.cells)
    return dataclasses.replace(whole, cells=cells)


def main(folder: Path) -> None:
    from analysis.report import render_html, render_markdown

    for name, c in {"ranked": campaign(), "refused": campaign(refused=True), "shared": shared()}.items():
        (folder / f"{name}.html").write_text(render_html(c), encoding="utf-8")
        (folder / f"{name}.md").write_text(render_markdown(c), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
