"""Counters and gauges as each engine keeps them: SGLang's are some decode steps old and count a request when it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analysis.gates.counters import finished_requests, gauge_age_s, generation_tokens, in_flight_area, prompt_tokens
from analysis.model import Verdict
from analysis.samples import AbsentError
from harness.record.reader import RunRecord
from harness.record.spec import Arm
from tests.builders import S, make_server_samples, make_spec
from tests.gates.cases import healthy, rows, run_context


def served(
    runtime: str, requests: list[dict[str, Any]] | None = None, *, late_s: float = 0.0, extra: float = 0.0, interval: int | None = None
) -> RunRecord:
    """A healthy run on an engine whose gauges are as they were ``late_s`` ago, with ``extra`` requests of others."""
    requests = rows() if requests is None else requests
    shown = [r | {"end_ns": r["end_ns"] + round(late_s * S)} for r in requests]
    args = {} if interval is None else {"decode-log-interval": interval}
    samples = make_server_samples(shown, requests_running=extra)
    return healthy(requests, server_metrics=samples, spec=make_spec(arm=Arm(name="a", runtime=runtime, args=args)))


def step_s(record: RunRecord) -> float:
    return gauge_age_s(run_context(record)) / 40


def test_an_engine_that_writes_its_gauges_at_every_step_has_fresh_ones() -> None:
    assert gauge_age_s(run_context(served("vllm"))) == 0.0


def test_sglang_s_are_as_old_as_the_steps_between_two_writings() -> None:
    step = step_s(served("sglang"))
    assert step > 0
    assert gauge_age_s(run_context(served("sglang", interval=3))) == pytest.approx(3 * step)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_counters_of_an_endpoint_are_those_of_the_engine_that_its_user_names(engine: str) -> None:
    arm = Arm(name="a", runtime="endpoint", metrics=engine)
    attached, own = (replace(served(engine), spec=make_spec(arm=a)) for a in (arm, Arm(name="a", runtime=engine)))
    assert gauge_age_s(run_context(attached)) == gauge_age_s(run_context(own))
    assert (gauge_age_s(run_context(attached)) > 0) is (engine == "sglang")


def test_without_a_stream_of_two_tokens_the_age_is_unknown() -> None:
    single = [
        r | {key: r[key][:1] for key in ("event_ns", "event_tokens", "event_bytes", "event_kind")} | {"client_tokens": 1} for r in rows()
    ]
    with pytest.raises(AbsentError, match="how old"):
        gauge_age_s(run_context(served("sglang", single)))


def test_requests_still_shown_after_their_end_are_no_foreign_load_on_sglang() -> None:
    late = 20 * step_s(served("sglang"))
    assert in_flight_area(run_context(served("sglang", late_s=late))).verdict is Verdict.PASS


def test_foreign_load_is_seen_on_sglang() -> None:
    record = served("sglang", extra=4.0, interval=1)
    assert in_flight_area(run_context(record)).verdict is Verdict.FAIL


def closed(runtime: str, tokens: float, finished: int) -> RunRecord:
    """Every request closed by the client at 3 of at most 9 tokens, of which the server counted ``tokens`` in all."""
    told = [r | {"end_kind": "client_stop", "client_tokens": 3, "usage_completion_tokens": 3} for r in rows()]
    growth = {"prompt_tokens_total": 16.0 * len(told), "generation_tokens_total": tokens, "requests_finished_total": float(finished)}
    schedule = healthy().schedule
    limited = schedule.set_column(schedule.schema.get_field_index("max_tokens"), "max_tokens", [[9] * len(schedule)])
    return healthy(
        told, server_metrics=make_server_samples(told, **growth), spec=make_spec(arm=Arm(name="a", runtime=runtime)), schedule=limited
    )


@pytest.mark.parametrize(
    ("runtime", "tokens", "verdict"),
    [
        ("sglang", 0.0, Verdict.PASS),  # it may count a request only when it ends
        ("sglang", 140 * 9.0, Verdict.PASS),
        ("sglang", 140 * 9.0 + 1, Verdict.FAIL),
        ("vllm", 140 * 3.0, Verdict.PASS),
        ("vllm", 140 * 3.0 - 1, Verdict.FAIL),  # it counts every token as it is made
    ],
)
def test_tokens_of_closed_requests_are_counted_as_the_engine_counts_them(runtime: str, tokens: float, verdict: Verdict) -> None:
    context = run_context(closed(runtime, tokens, 0))
    assert generation_tokens(context).verdict is verdict
    assert prompt_tokens(context).verdict is Verdict.PASS


@pytest.mark.parametrize(("finished", "verdict"), [(0, Verdict.PASS), (140, Verdict.PASS), (141, Verdict.FAIL)])
def test_a_given_up_request_may_count_as_finished_or_not(finished: int, verdict: Verdict) -> None:
    for runtime in ("vllm", "sglang"):  # vLLM counts none of those whose client left, SGLang all of them
        assert finished_requests(run_context(closed(runtime, 140 * 5.0, finished))).verdict is verdict
