"""Workloads: pure functions from public traces and seeds to an immutable schedule."""

from workloads.build import build_schedule, check_rows
from workloads.digest import content_digest
from workloads.plan import TraceSource, WorkloadPlan
from workloads.reuse import reusable_tokens
from workloads.schedule import Schedule, Trace
from workloads.sessions import failed_pause_ns
from workloads.tokens import ByteTokenizer, HFTokenizer, TokenSource, load_tokenizer
from workloads.traces import find_trace, formats, get_reader, guess_format, load_trace, read_trace, trace_ref
from workloads.transforms import Transformed, apply

__all__ = [
    "ByteTokenizer",
    "HFTokenizer",
    "Schedule",
    "TokenSource",
    "Trace",
    "TraceSource",
    "Transformed",
    "WorkloadPlan",
    "apply",
    "build_schedule",
    "check_rows",
    "content_digest",
    "failed_pause_ns",
    "find_trace",
    "formats",
    "get_reader",
    "guess_format",
    "load_tokenizer",
    "load_trace",
    "read_trace",
    "reusable_tokens",
    "trace_ref",
]
