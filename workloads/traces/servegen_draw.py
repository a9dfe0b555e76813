"""Draw requests of ServeGen clients: a stationary renewal process in every window, lengths from histograms.

Each client and window has generators of its own (dimensions ``servegen/gaps`` and ``servegen/lengths``), so a longer window extends the
same draw and a client's requests do not depend on who else is chosen. Windows are drawn whole and cut afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from harness.errors import UsageError
from workloads import seeds
from workloads.schedule import Int64
from workloads.traces.servegen_files import GAMMA, SILENT, WINDOW_S, Client, Floats, Histogram, Lengths

NS = 1_000_000_000
_WINDOW_NS = WINDOW_S * NS

MAX_ROWS = 4_000_000
"""Most requests drawn, as expected and as drawn: a day of the busiest published client, 128 MB of columns; past it a rate is a slip."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Lengths of a client without histograms: the same for every request."""

    tokens_in: int
    tokens_out: int


Source = Lengths | Fixed


@dataclass(frozen=True, slots=True)
class Drawn:
    """Requests of one client, ascending (n,): ns from the file's start, tokens; and how many had no lengths to draw."""

    arrival_ns: Int64
    tokens_in: Int64
    tokens_out: Int64
    silent: int


def expected(client: Client, start_s: float, stop_s: float) -> float:
    """Requests of a client in [start_s, stop_s) by its rates, before any factor."""
    overlap = np.minimum(client.start_s + WINDOW_S, stop_s) - np.maximum(client.start_s, start_s)
    return float((client.rate * np.maximum(overlap, 0)).sum())


def draw_clients(
    clients: Mapping[int, Client], sources: Mapping[int, Source], start_s: float, stop_s: float, factor: float, seed: int
) -> dict[int, Drawn]:
    """Draw every client's requests in [start_s, stop_s). Raises UsageError ``trace.rows`` when the draw exceeds ``MAX_ROWS``."""
    drawn: dict[int, Drawn] = {}
    total = 0
    for number, client in clients.items():
        drawn[number] = _draw(client, sources[number], (start_s, stop_s), factor, seed)
        total += len(drawn[number].arrival_ns)
        if total > MAX_ROWS:
            raise too_many(f"drawn up to client {number}", total, factor)
    return drawn


def too_many(what: str, rows: float, factor: float) -> UsageError:
    """Build the error for more rows than are drawn, with the factor that would fit."""
    fit = float(f"{factor * MAX_ROWS / rows * 0.5:.1g}")
    said = f"{what}: {rows:,.0f} rows at factor {factor:g}, more than the {MAX_ROWS:,} that are drawn at once"
    return UsageError.single("trace.rows", said, f"shorten the window, choose clients, or set factor (e.g. {fit:g}) or rate")


def _draw(client: Client, source: Source, span_s: tuple[float, float], factor: float, seed: int) -> Drawn:
    start, stop = (round(edge * NS) for edge in span_s)
    active = (client.pattern != SILENT) & (client.start_s * NS < stop) & ((client.start_s + WINDOW_S) * NS > start)
    parts: list[tuple[Int64, Int64, Int64]] = []
    silent = 0
    for w in np.flatnonzero(active).tolist():
        at = int(client.start_s[w])
        times = at * NS + _window(client, w, factor, seed)
        inside = (times >= start) & (times < stop)
        tokens = _lengths(client.number, source, at, len(times), seed)
        if tokens is None:
            silent += int(inside.sum())
        else:
            parts.append((times[inside], tokens[0][inside], tokens[1][inside]))
    columns = [np.concatenate([part[i] for part in parts]) if parts else np.empty(0, np.int64) for i in range(3)]
    return Drawn(columns[0], columns[1], columns[2], silent)


def _window(client: Client, w: int, factor: float, seed: int) -> Int64:
    """Arrivals of one window in [0, WINDOW_S), ns.

    Gaps have the published shape; the scale is set so that their mean is 1 over the window's rate. The first arrival is what a window cut
    from an endless process begins with (the residual of a length-biased gap): so the expected count is exactly rate x length. Starting
    with a whole gap would add (cv^2 - 1)/2 requests, hundreds in the published bursty windows. The draw itself is never rescaled.
    """
    rng = seeds.generator(seed, "servegen", "gaps", client.number, int(client.start_s[w]))
    rate, shape, gamma = float(client.rate[w]) * factor, float(client.shape[w]), client.pattern[w] == GAMMA
    scale = _scale(rate, shape, gamma=gamma)
    chunk = min(64 + int(1.1 * rate * WINDOW_S), MAX_ROWS)
    whole = rng.standard_gamma(shape + 1) if gamma else rng.standard_gamma(1 + 1 / shape) ** (1 / shape)
    now, count = round(min(rng.random() * whole * scale, WINDOW_S) * NS), 0
    times = [np.array([now], np.int64)]
    while now < _WINDOW_NS:
        gaps = (rng.standard_gamma(shape, chunk) if gamma else rng.weibull(shape, chunk)) * scale
        steps = np.rint(np.minimum(gaps, WINDOW_S) * NS).astype(np.int64)  # a gap may be too long for int64; the window ends it anyway
        times.append(now + np.cumsum(steps))
        now, count = int(times[-1][-1]), count + chunk
        if count > 2 * MAX_ROWS:  # the mean was checked; only extreme clustering gets here
            raise too_many(f"client {client.number}, window {client.start_s[w]} s", count, factor)
    everything = np.concatenate(times)
    within: Int64 = everything[everything < _WINDOW_NS]
    return within


def _scale(rate: float, shape: float, *, gamma: bool) -> float:
    """Seconds: the scale with which a gamma or Weibull gap of this shape has mean 1/rate."""
    return 1 / (rate * (shape if gamma else math.gamma(1 + 1 / shape)))


def _lengths(number: int, source: Source, at: int, count: int, seed: int) -> tuple[Int64, Int64] | None:
    """Input and output lengths of one window's requests, independent as published; None where the client has no histogram."""
    if isinstance(source, Fixed):
        return np.full(count, source.tokens_in, np.int64), np.full(count, source.tokens_out, np.int64)
    sides: tuple[Histogram | None, Histogram | None] = (source.at(at, "input_tokens"), source.at(at, "output_tokens"))
    if sides[0] is None or sides[1] is None:
        return None
    rng = seeds.generator(seed, "servegen", "lengths", number, at)
    uniform: Floats = rng.random((count, 2))
    return sides[0].draw(uniform[:, 0]), sides[1].draw(uniform[:, 1])
