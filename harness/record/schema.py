"""The on-disk columns of one attempt (DESIGN 5). Within a format major version columns are only added, and nullable.

Every stamp is int64 nanoseconds since the run's epoch (an instant of CLOCK_MONOTONIC named in ``spec.json``); null means "did not
happen", never 0.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import pyarrow as pa

FORMAT_MAJOR = 1
"""1: first format. A reader refuses a newer major and reads any older minor."""

FORMAT_MINOR = 0

MEASUREMENT_PROTOCOL = 1
"""Raised whenever send, stamp or decode behaviour could change a number; runs of different protocols do not compare.

1: timerfd pacing, stamp on data_received, SSE decoded after the request ends.
"""


class EventKind(IntEnum):
    """What one server-sent event (or one non-stream body) carried."""

    TOKEN = 1
    ROLE = 2
    EMPTY = 3
    USAGE = 4
    DONE = 5
    ERROR = 6
    COMMENT = 7
    MALFORMED = 8


class EndKind(StrEnum):
    """How the exchange ended as the client saw it. A closed vocabulary; analysis maps it to outcomes."""

    COMPLETE = "complete"
    """The response ended as its protocol says it should."""
    CLIENT_STOP = "client_stop"
    """The engine closed after ``stop_after`` tokens, as planned; the request is served."""
    CANCELLED = "cancelled"
    """The plan cancelled it."""
    HTTP_ERROR = "http_error"
    """A status other than 2xx; ``http_status`` says which."""
    ERROR_EVENT = "error_event"
    """An error object inside a 200 response; ``error_status`` holds its code if it had one."""
    CONNECT_REFUSED = "connect_refused"
    CONNECT_FAILED = "connect_failed"
    RESET = "reset"
    """The connection was reset or closed before the response ended."""
    TIMEOUT = "timeout"
    """The per-request deadline passed."""
    MALFORMED = "malformed"
    """Bytes that are not the protocol: bad HTTP, bad JSON, a stream without its end mark."""
    DRAIN_END = "drain_end"
    """Unfinished when the drain ended; the client closed it."""
    NEVER_SENT = "never_sent"
    """Its arrival never came because the run ended first, or the worker died."""
    CLIENT_FAULT = "client_fault"
    """Our own failure; invalidates the replicate."""


SCHEDULE = pa.schema(
    [
        pa.field("request_id", pa.int64(), nullable=False),
        pa.field("arrival_ns", pa.int64(), nullable=False),
        pa.field("input_tokens", pa.int64(), nullable=False),
        pa.field("max_tokens", pa.int64()),  # what the server is told; null: nothing declared
        pa.field("client", pa.string()),
        pa.field("request_class", pa.string()),
        pa.field("source_row", pa.int64()),  # row of the trace file this request came from
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
        pa.field("arrival_ns", pa.int64(), nullable=False),
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
"""Long form for ``server_metrics.parquet`` (source "server") and ``host.parquet`` (sources "host", "server", "client", "spooler").

Canonical server metrics: requests_running, requests_waiting, requests_finished_total, requests_aborted_total, prompt_tokens_total,
generation_tokens_total, cached_tokens_total, preemptions_total, kv_usage_ratio. Host metrics: cpu_busy_ratio, cpu_steal_ratio,
throttled_s_total, swap_used_bytes, foreign_cpu_ratio, memory_available_bytes. Per process (server, client, spooler): cpu_s_total,
rss_bytes, run_delay_s_total. Client only: loop_lag_s (one value a probe), open_connections, in_flight.
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
