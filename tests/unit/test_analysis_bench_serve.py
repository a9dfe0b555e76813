from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.bench_serve import bench_serve
from analysis.dialects import CLIENTS, VLLM
from analysis.run import measure_run
from harness.record.reader import RunRecord
from harness.record.schema import EventKind
from tests.builders import MS, S, make_record, make_request

DONE = int(EventKind.DONE)
TOKEN = int(EventKind.TOKEN)
LEVELS = {"p90": Fraction(9, 10)}


def answer(ident: int, arrival: int, gaps: list[int], **changes: Any) -> dict[str, Any]:
    """A request sent 1 ms after it arrived, with a chunk after each gap and an end mark, one token a chunk."""
    stamps = (arrival + np.cumsum(gaps)).tolist()
    lists = {
        "event_ns": [*stamps, stamps[-1] if stamps else arrival],
        "event_tokens": [1] * len(stamps) + [0],
        "event_kind": [TOKEN] * len(stamps) + [DONE],
        "event_bytes": [9] * (len(stamps) + 1),
        "client_tokens": len(stamps),
        "send_ns": arrival + MS,
    }
    return make_request(ident, arrival) | lists | changes


def by_loops(record: RunRecord) -> dict[str, float]:
    """The same figures as the tool's rules read, a request and a chunk at a time."""
    window, rows = record.spec.window, record.requests.to_pylist()
    rows = [r for r in rows if window.start_ns <= r["arrival_ns"] < window.stop_ns]
    chunks = {r["request_id"]: [ns for ns, k in zip(r["event_ns"], r["event_kind"], strict=True) if k == TOKEN] for r in rows}
    done = [r for r in rows if r["end_kind"] == "complete" and chunks[r["request_id"]]]
    sends, streams = [r["send_ns"] for r in done], [chunks[r["request_id"]] for r in done]
    samples = {
        "ttft": [(c[0] - s) / S for c, s in zip(streams, sends, strict=True)],
        "tpot": [(c[-1] - c[0]) / S / (len(c) - 1) for c in streams if len(c) > 1],
        "itl": [(b - a) / S for c in streams for a, b in pairwise(c)],
        "e2el": [(c[-1] - s) / S for c, s in zip(streams, sends, strict=True)],
    }
    found: dict[str, float] = {"completed": len(done), "failed": len(rows) - len(done), "total_output": sum(map(len, streams))}
    for name, values in samples.items():
        if values:
            found |= {f"mean_{name}": float(np.mean(values)), f"std_{name}": float(np.std(values))}
            found |= {f"median_{name}": float(np.median(values)), f"p90_{name}": float(np.percentile(values, 90))}
    if done:
        seconds = [(ns - min(sends)) // S for c in streams for ns in c]
        found["max_output_tokens_per_s"] = max(seconds.count(s) for s in seconds)
        spans = [((s - min(sends)) // S, (c[-1] - min(sends)) // S) for s, c in zip(sends, streams, strict=True)]
        found["max_concurrent_requests"] = max(sum(a <= t <= b for a, b in spans) for t in range(max(b for _, b in spans) + 1))
    return found


@given(
    st.lists(
        st.tuples(
            st.integers(0, 14 * S), st.lists(st.integers(MS, 900 * MS), max_size=9), st.sampled_from(["complete", "complete", "reset"])
        ),
        max_size=8,
    )
)
@settings(max_examples=25, deadline=None)
def test_every_figure_is_what_a_loop_over_requests_and_chunks_gives(rows: list[tuple[int, list[int], str]]) -> None:
    record = make_record([answer(i, a, g, end_kind=kind) for i, (a, g, kind) in enumerate(sorted(rows))])
    found = bench_serve(record, LEVELS)
    for name, value in by_loops(record).items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-9), name


def test_what_the_dialects_say_is_the_same() -> None:
    rng = np.random.default_rng(5)
    rows = [answer(i, 3 * S + i * 20 * MS, [60 * MS, *rng.integers(MS, 80 * MS, i % 7).tolist()]) for i in range(300)]
    record = make_record(rows)
    found, said = bench_serve(record), {(s.tool, s.figure.metric): s.figure.value for s in measure_run(record).dialects}
    for name in ("ttft", "tpot", "itl"):
        assert found[f"mean_{name}"] == pytest.approx(said[CLIENTS, f"{name}_mean"], rel=1e-12)
        assert found[f"p99_{name}"] == pytest.approx(said[CLIENTS, f"{name}_p99"], rel=1e-12)
    assert found["mean_e2el"] == pytest.approx(said[VLLM, "e2el_mean"], rel=1e-12)
    assert found["goodput"] == pytest.approx(said[CLIENTS, "goodput"], rel=1e-12)


def test_seconds_are_counted_from_the_first_send_that_was_answered_with_a_token() -> None:
    silent = answer(0, 10 * S, [])
    counted = [answer(i, 10 * S + 700 * MS, [400 * MS, 500 * MS]) for i in (1, 2)]
    found = bench_serve(make_record([silent, *counted]))
    assert found["max_output_tokens_per_s"] == 4  # from 10 s they would fall into two seconds, two in each
    assert found["completed"] == 2
    assert found["failed"] == 1


def test_without_a_success_there_is_no_time_and_no_zero_in_its_place() -> None:
    found = bench_serve(make_record([answer(0, 10 * S, [5 * MS], end_kind="reset")]))
    assert found["completed"] == 0
    assert found["request_throughput"] == 0
    assert {name: found[name] for name in ("mean_ttft", "p99_itl", "std_tpot", "max_concurrent_requests")} == dict.fromkeys(
        ("mean_ttft", "p99_itl", "std_tpot", "max_concurrent_requests")
    )


def test_a_success_whose_tokens_nobody_counted_leaves_what_needs_them_unknown() -> None:
    rows = [answer(0, 10 * S, [5 * MS, 6 * MS]), answer(1, 11 * S, [5 * MS], client_tokens=None, usage_completion_tokens=None)]
    found = bench_serve(make_record(rows))
    assert [found[name] for name in ("total_output", "output_throughput", "mean_tpot", "goodput")] == [None] * 4
    assert found["mean_itl"] is not None
    assert math.isclose(found["mean_itl"], 0.006)
