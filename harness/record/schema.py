"""The on-disk columns of one attempt (DESIGN 5). Within a format major version columns are only added, and nullable.

Every stamp is int64 nanoseconds since the run's epoch (an instant of CLOCK_MONOTONIC named in ``spec.json``); null means "did not
happen", never 0.
"""

from __future__ import annotations

import pyarrow as pa

from harness.vocabulary import EndKind, EventKind

__all__ = [
    "FORMAT_MAJOR",
    "FORMAT_MINOR",
    "MEASUREMENT_PROTOCOL",
    "REQUESTS",
    "RUN_FILES",
    "SAMPLES",
    "SCHEDULE",
    "TRUTH",
    "EndKind",
    "EventKind",
]

FORMAT_MAJOR = 1
"""1: first format. A reader refuses a newer major and reads any older minor."""

FORMAT_MINOR = 4
"""1: sessions, priorities, cancellations, reusable tokens in the schedule; per-class SLOs; null arrivals of turns that never came due.
2: probes of capacity searches, and capacity as a metric to rank by; how fairness is declared; clients that an arm was not sent.
3: servers behind an address and their roles; how a server was launched; how accelerators are set; who says that a pin holds; whose counters
   an endpoint shows; workers on other hosts; streams, live decoding and workers of a certificate; the interface /generate.
4: who stamps what the client receives.
"""

MEASUREMENT_PROTOCOL = 4
"""Raised whenever send, stamp or decode behaviour could change a number; runs of different protocols do not compare.

1: timerfd pacing, stamp on data_received, SSE decoded after the request ends.
2: large requests under TLS leave in pieces; several choices of one answer are counted together; a finish reason of ``abort`` is an error.
3: the kernel stamps what plain connections receive, and they are read together, up to a millisecond late.
4: how late follows the gaps between what comes, from half a millisecond to four.
"""

SCHEDULE = pa.schema(
    [
        pa.field("request_id", pa.int64(), nullable=False),
        pa.field("arrival_ns", pa.int64(), nullable=False),
        pa.field("input_tokens", pa.int64(), nullable=False),
        pa.field("max_tokens", pa.int64()),  # what the server is told; null: nothing declared
        pa.field("client", pa.string()),
        pa.field("request_class", pa.string()),
        pa.field("source_row", pa.int64()),  # row of the trace file this request came from
        pa.field("session", pa.int64()),  # conversation; null: none
        pa.field("turn", pa.int64()),  # 0-based within the session
        pa.field("after", pa.list_(pa.int64())),  # requests whose end this one waits for; null: it arrives by the clock
        pa.field("think_ns", pa.int64()),  # from the last of these ends to the arrival; null unless it waits
        pa.field("priority", pa.int64()),
        pa.field("cancel_after_ns", pa.int64()),  # planned cancellation, from the arrival; null: none
        pa.field("reusable_tokens", pa.int64()),  # longest beginning shared with an earlier prompt of the schedule, tokens
    ]
)

TRUTH = pa.schema(
    [
        pa.field("request_id", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),  # realized length in the trace; hidden from the server
        pa.field("stop_after", pa.int64()),  # null unless the control is client_stop
    ]
)

REQUESTS = pa.schema(
    [
        pa.field("request_id", pa.int64(), nullable=False),
        # When it came due. Null: it waits for others, and one of them did not end as planned, the run ended before its turn, or the
        # worker that knew its arrival was lost.
        pa.field("arrival_ns", pa.int64()),
        pa.field("send_ns", pa.int64()),  # first byte handed to the socket
        pa.field("headers_ns", pa.int64()),  # response head parsed
        pa.field("end_ns", pa.int64()),  # the exchange ended
        pa.field("end_kind", pa.string(), nullable=False),  # EndKind
        pa.field("http_status", pa.int16()),
        pa.field("error_status", pa.int16()),  # code of an error event inside a 200
        pa.field("error", pa.string()),  # short, never a prompt
        pa.field("finish_reason", pa.string()),
        pa.field("usage_prompt_tokens", pa.int64()),
        pa.field("usage_completion_tokens", pa.int64()),
        pa.field("usage_cached_tokens", pa.int64()),
        pa.field("client_tokens", pa.int64()),  # tokens counted from the stream (ids, else continuous usage); null: not countable
        pa.field("reused_connection", pa.bool_()),
        pa.field("event_ns", pa.list_(pa.int64()), nullable=False),
        pa.field("event_tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("event_bytes", pa.list_(pa.int32()), nullable=False),
        pa.field("event_kind", pa.list_(pa.int8()), nullable=False),
    ]
)
"""One row an offered request. Events that came in one socket read share one ``event_ns``; token stamps are derived in analysis."""

SAMPLES = pa.schema(
    [
        pa.field("t_ns", pa.int64(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("labels", pa.string()),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
"""Long form for ``server_metrics.parquet`` (source "server") and ``host.parquet`` (sources "host", "gpu", "server", "client", "spooler").

``labels`` tells apart what one source has several of: clients, accelerators, bounds of a histogram. What each metric means stands in
``harness.record.metric_names``; a reader meets metrics it does not know and leaves them.
"""

RUN_FILES = (
    "manifest.yaml",
    "spec.json",
    "coordinates.json",
    "facts.json",
    "schedule.parquet",
    "truth.parquet",
    "requests.parquet",
    "server_metrics.parquet",
    "host.parquet",
    "observations.jsonl",
    "server.log",
)
"""What a finished attempt holds beside its SEAL."""
