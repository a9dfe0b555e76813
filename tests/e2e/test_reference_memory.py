"""Blocks, promises and a second tier behind real sockets: streams are whole, and what became of the rows stands on /metrics."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.reference.accounts import COUNTERS, GAUGES, PLAIN
from harness.runtimes.reference import ReferenceRuntime
from tests.e2e.test_reference_server import PINS, client, completion, data_events, metric, post, reference_arm, running

pytestmark = pytest.mark.e2e

TIGHT = {"max-num-seqs": 4, "max-queue": 8, "max-model-len": 128, "kv-cache-tokens": 128, "kv-block": 16}
"""Two of the three requests below outgrow it together."""
ASKED, OUTPUTS = 3, 70


def answers(base_url: str) -> list[tuple[int, bytes]]:
    """Three streams at once."""

    def ask(number: int) -> tuple[int, bytes]:
        with client(base_url) as connection:
            fields = {"prompt": "p" * 20, "max_tokens": OUTPUTS, "ignore_eos": True, "seed": number, "stream": True}
            try:
                return post(connection, completion(**fields))
            except http.client.IncompleteRead as cut:
                return 200, cut.partial

    with ThreadPoolExecutor(ASKED) as pool:
        return list(pool.map(ask, range(ASKED)))


def tokens(body: bytes) -> int:
    return sum(event != "done" and "choices" in event and event["choices"][0]["text"] != "" for event in data_events(body))


@pytest.mark.parametrize(
    "rules",
    [
        {"preemption": "preserve", "swap-tokens": 512, "swap-write-token": "20us", "swap-read-token": "20us"},
        {"preemption": "preserve", "swap-tokens": 512, "admission": "point", "admission-parameters": "default=4"},
        {"admission": "watermark", "admission-parameters": "default=8", "kv-watermark": 16},
    ],
)
def test_streams_are_whole_whoever_gives_way(tmp_path: Path, rules: dict[str, Any]) -> None:
    with running(ReferenceRuntime(), reference_arm(**TIGHT | rules), PINS, tmp_path) as (base_url, _):
        found = answers(base_url)
        assert [status for status, _ in found] == [200] * ASKED
        assert [tokens(body) for _, body in found] == [OUTPUTS] * ASKED
        kept, again = metric(base_url, "preemptions_preserve_total"), metric(base_url, "preemptions_recompute_total")
        assert kept + again == metric(base_url, "preemptions_total") >= 1
        assert (kept > 0) == ("preemption" in rules)
        assert metric(base_url, "resume_tickets_total") == kept
        assert metric(base_url, "recomputed_tokens_total") == 0 or not kept
        assert metric(base_url, "kv_usage_ratio") == metric(base_url, "kv_idle_rows") == metric(base_url, "kv_promised_rows") == 0
        reserved, used = metric(base_url, "reserved_rows_total"), metric(base_url, "used_rows_total")
        assert reserved - metric(base_url, "unused_rows_total") + metric(base_url, "under_rows_total") == used
        assert (metric(base_url, "reservations_total") == ASKED) == ("admission" in rules)


def test_a_stream_that_is_ended_for_want_of_room_says_so(tmp_path: Path) -> None:
    rules = {"preemption": "preserve", "swap-tokens": 1, "swap-full": "abort"}
    with running(ReferenceRuntime(), reference_arm(**TIGHT | rules), PINS, tmp_path) as (base_url, _):
        bodies = [body for _, body in answers(base_url)]
        whole = [tokens(body) == OUTPUTS for body in bodies]
        assert 1 <= sum(whole) < ASKED
        for body, complete in zip(bodies, whole, strict=True):
            assert (b"preempted_without_room" in body) != complete
            assert (b"[DONE]" in body) == complete
        assert metric(base_url, "preemptions_abort_total") == metric(base_url, "requests_declined_total") == whole.count(False)


def test_the_adapter_samples_all_of_it_and_an_engine_without_an_owner_has_none_of_it(tmp_path: Path) -> None:
    mapped = {rule.name for rule in ReferenceRuntime.metrics}
    assert {f"trigpoint:{name}" for name, _ in (*GAUGES, *COUNTERS)} <= mapped
    with running(ReferenceRuntime(), reference_arm(), PINS, tmp_path) as (base_url, _), client(base_url) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        assert {name for name, _ in (*GAUGES, *COUNTERS) if f"\ntrigpoint:{name} " in page} == set(PLAIN)
        connection.request("GET", "/server_info")
        config = json.loads(connection.getresponse().read())["effective_config"]
        assert (config["admission"], config["kv_block"], config["preemption"]) == ("own", 1, "recompute")
