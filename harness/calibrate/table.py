"""A certificate as a table to read: one line a stage, plain text."""

from __future__ import annotations

from harness.calibrate.certificate import Certificate, RateRow
from harness.clock import NS_PER_MS

_HEAD = (
    "axis", "req/s", "tokens", "gap ms", "delivered", "events/s", "streams", "peak", "slip p50", "p99", "max", "TTFT err p99",
    "TBT err p99", "CPU us/ev", "spooler", "KB/stream", "truth p99", "max", "held",
)  # fmt: skip


def table(certificate: Certificate) -> list[str]:
    """Header and one line for each stage and attempt; times in ms; ``-`` where there is nothing to tell."""
    lines = [_HEAD, *map(_cells, certificate.rates)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    return ["  ".join(f"{cell:>{width}s}" for cell, width in zip(line, widths, strict=True)) for line in lines]


def _cells(row: RateRow) -> tuple[str, ...]:
    times = (row.slip_p50_ns, row.slip_p99_ns, row.slip_max_ns, row.ttft_error_p99_ns, row.tbt_error_p99_ns)
    memory = None if row.memory_per_stream_bytes is None else row.memory_per_stream_bytes / 1000
    return (
        row.axis, f"{row.rate:g}", str(row.tokens), f"{row.gap_ms:g}", f"{row.delivered}/{row.offered}", f"{row.events_per_s:.0f}",
        str(row.streams_held), str(row.streams), *map(_ms, times), _number(row.client_cpu_us_per_event),
        _number(row.spooler_cpu_us_per_event), _number(memory), _ms(row.truth_lateness_p99_ns), _ms(row.truth_lateness_max_ns),
        "yes" if row.certified else f"no ({row.attempt})",
    )  # fmt: skip


def _ms(value_ns: int | None) -> str:
    return "-" if value_ns is None else f"{value_ns / NS_PER_MS:.2f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def summary(certificate: Certificate) -> str:
    """What it certifies, in one sentence."""
    ref = certificate.ref
    live = "not measured" if ref.live_event_ceiling is None else f"{ref.live_event_ceiling:.0f}"
    memory = "" if ref.memory_per_stream_bytes is None else f", {ref.memory_per_stream_bytes / 1000:.0f} KB a stream"
    return (
        f"certificate {ref.id[:16]} ({ref.workers} worker{'s' if ref.workers > 1 else ''}): up to {ref.rate_ceiling:g} req/s, "
        f"{ref.event_ceiling:.0f} events/s ({live} decoded as they come), {ref.stream_ceiling} streams{memory}; at that rate slip p99 "
        f"{ref.slip_p99_ns / NS_PER_MS:.2f} ms, TTFT error p99 {ref.ttft_error_p99_ns / NS_PER_MS:.2f} ms, "
        f"TBT error p99 {ref.tbt_error_p99_ns / NS_PER_MS:.2f} ms"
    )
