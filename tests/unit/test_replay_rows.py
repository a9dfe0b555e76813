from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from harness.record.schema import REQUESTS, EndKind, EventKind
from harness.replay.contract import ReplayPlan
from harness.replay.exchange import not_sent
from harness.replay.frames import RawExchange
from harness.replay.rows import exchange_row, missing_rows
from harness.wire import PROTOCOLS
from workloads.schedule import Ragged

TOKEN = b'data: {"choices":[{"text":"a","token_ids":[7]}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"full","type":"Overloaded","code":503}}\n\n'


def raw(*pieces: bytes, **changes: Any) -> RawExchange:
    base: dict[str, Any] = {
        "request_id": 3,
        "arrival_ns": 10,
        "send_ns": 11,
        "headers_ns": 12,
        "end_ns": 90,
        "kind": EndKind.COMPLETE,
        "status": 200,
        "stream": True,
        "reused": True,
        "error": "",
        "stamps": tuple(20 + i for i in range(len(pieces))),
        "sizes": tuple(map(len, pieces)),
        "body": b"".join(pieces),
    }
    return RawExchange(**(base | changes))


def row(*pieces: bytes, **changes: Any) -> dict[str, Any]:
    made = exchange_row(raw(*pieces, **changes), PROTOCOLS["completions"])
    pa.Table.from_pylist([made], REQUESTS)
    assert set(made) == set(REQUESTS.names)
    return made


def test_a_good_stream_is_complete_with_its_stamps() -> None:
    made = row(TOKEN, TOKEN[:9], TOKEN[9:] + DONE)
    assert (made["end_kind"], made["client_tokens"], made["error"]) == ("complete", 2, None)
    assert made["event_ns"] == [20, 22, 22]
    assert made["event_kind"] == [EventKind.TOKEN, EventKind.TOKEN, EventKind.DONE]


@pytest.mark.parametrize("body", [TOKEN, b"", b"data: {oops\n\n" + DONE, TOKEN + b"data: \xc3"])
def test_a_complete_response_that_is_not_the_protocol_is_malformed(body: bytes) -> None:
    assert row(body)["end_kind"] == "malformed"


@pytest.mark.parametrize("kind", [EndKind.COMPLETE, EndKind.RESET, EndKind.TIMEOUT, EndKind.DRAIN_END, EndKind.CANCELLED])
def test_an_error_event_is_how_the_request_ended(kind: EndKind) -> None:
    made = row(TOKEN + ERROR, kind=kind)
    assert (made["end_kind"], made["error_status"], made["error"]) == ("error_event", 503, "Overloaded: full")


@pytest.mark.parametrize("kind", [EndKind.RESET, EndKind.TIMEOUT, EndKind.DRAIN_END, EndKind.CLIENT_STOP])
def test_a_cut_stream_keeps_its_events_and_its_cause(kind: EndKind) -> None:
    made = row(TOKEN + TOKEN[:5], kind=kind, error="why")
    assert (made["end_kind"], made["error"], made["client_tokens"]) == (kind.value, "why", 1)
    assert made["event_kind"] == [EventKind.TOKEN]


def test_a_refusal_keeps_its_status_and_message() -> None:
    made = row(b'{"error":{"message":"slow down","code":429}}', kind=EndKind.HTTP_ERROR, status=429, stream=False)
    assert (made["end_kind"], made["http_status"], made["error"]) == ("http_error", 429, "slow down")
    page = row(b"<html>bad gateway</html>", kind=EndKind.HTTP_ERROR, status=502, stream=False)
    assert (page["error"], page["event_kind"]) == ("HTTP 502", [])


def test_a_request_that_never_got_a_byte_has_nulls_not_zeros() -> None:
    made = row(kind=EndKind.CONNECT_REFUSED, status=None, send_ns=None, headers_ns=None, reused=None)
    assert [made[k] for k in ("send_ns", "headers_ns", "http_status", "client_tokens", "reused_connection")] == [None] * 5


def test_missing_rows_close_the_partition() -> None:
    plan = ReplayPlan("h", 1, "/", "chat", np.array([0, 5, 9]), [b""] * 3, np.full(3, -1), 10, Path("x"))
    rows = missing_rows(plan, {1}, EndKind.CLIENT_FAULT)
    seen = [(r["request_id"], r["arrival_ns"], r["end_kind"], r["end_ns"]) for r in rows]
    assert seen == [(0, 0, "client_fault", None), (2, 9, "client_fault", None)]
    assert pa.Table.from_pylist(rows, REQUESTS).num_rows == 2


def test_a_missing_row_of_a_request_that_waits_has_no_arrival() -> None:
    after = Ragged.of([[], [0], []], np.int64)
    plan = ReplayPlan("h", 1, "/", "chat", np.array([0, 5, 9]), [b""] * 3, np.full(3, -1), 10, Path("x"), after=after)
    assert [r["arrival_ns"] for r in missing_rows(plan, (), EndKind.CLIENT_FAULT)] == [0, None, 9]


def test_a_request_that_did_not_come_due_has_no_stamps() -> None:
    made = exchange_row(not_sent(4, EndKind.NEVER_DUE, None, None), PROTOCOLS["completions"])
    table = pa.Table.from_pylist([made], REQUESTS)
    assert (made["request_id"], made["end_kind"], made["error"]) == (4, "never_due", None)
    assert [table[name].null_count for name in ("arrival_ns", "send_ns", "headers_ns", "end_ns", "http_status")] == [1] * 5
