"""Figures of a trace: load over time, gaps, lengths, clients, sessions, sharing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.describe import TraceColumns, leading_hits
from analysis.report.svg import PALETTE, Plot, draw
from analysis.report.words import clean, number, shorten
from harness import burstiness
from harness.clock import NS_PER_S

BINS = 180
"""Columns of the load figure: at the page's width about four pixels each."""
POINTS = 400
"""Points a distribution is drawn with: more than the page has pixels to tell apart."""
BARS = 20

Floats = npt.NDArray[np.float64]


def trace_plots(trace: TraceColumns) -> tuple[Plot, ...]:
    """Every figure whose data the trace has, in the order of the page."""
    found: list[Plot] = []
    if trace.clock in {"absolute", "relative"} and len(trace.arrival_ns) > 1:
        found += [_load(trace), _gaps(trace)]
    if len(trace.input_tokens):
        found.append(_lengths(trace))
    if trace.client is not None:
        found.append(_clients(trace))
    if trace.turns is not None and len(trace.turns.session):
        found.append(_sessions(trace))
    if trace.blocks is not None and len(trace.input_tokens):
        found.append(_sharing(trace))
    return tuple(found)


def survival(values: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Return (value, share of values above or at it) thinned to ``POINTS``, the least and the greatest kept."""
    ordered = np.sort(values).astype(np.float64)
    at = np.unique(np.linspace(0, len(ordered) - 1, min(POINTS, len(ordered))).round().astype(np.int64))
    return ordered[at], 1.0 - at / len(ordered)


def _load(trace: TraceColumns) -> Plot:
    arrival = burstiness.in_order(trace.arrival_ns)
    width = max(1, math.ceil(int(arrival[-1] - arrival[0] + 1) / BINS))
    counts = burstiness.counts_per_bin(arrival, width)
    starts = (np.arange(len(counts)) * width + int(arrival[0])) / NS_PER_S

    def _paint(canvas: Canvas) -> None:
        panel = canvas.subplots()
        panel.step(starts, counts / (width / NS_PER_S), where="post", color=PALETTE[0])
        panel.set_xlim(starts[0], starts[-1] + width / NS_PER_S)
        panel.set_ylim(bottom=0)
        panel.set_xlabel("time in the trace, s")
        panel.set_ylabel("requests per second")

    caption = f"Requests per second in bins of {width / NS_PER_S:.4g} s; the last bin is cut by the end of the trace."
    return Plot("Arrivals over time", draw(2.6, _paint), caption)


def _gaps(trace: TraceColumns) -> Plot:
    gaps = np.diff(burstiness.in_order(trace.arrival_ns)) / NS_PER_S
    zero = float((gaps == 0).mean())
    positive = gaps[gaps > 0]

    def _paint(canvas: Canvas) -> None:
        panel = canvas.subplots()
        if len(positive):
            values, above = survival(positive)
            panel.plot(values, above * (1 - zero), color=PALETTE[0], label="trace")
            mean = gaps.mean()
            panel.plot(values, np.exp(-values / mean), color=PALETTE[1], linestyle=(0, (5, 2)), label="Poisson at the same rate")
            _log(panel)
            panel.set_yscale("log")
            panel.set_ylim(0.5 / len(gaps), 1.2)  # no share of n gaps lies below 1/n
            panel.yaxis.set_major_formatter(_PLAIN)
            canvas.legend(loc="outside upper left", ncols=2, frameon=False)
        panel.set_xlabel("gap between arrivals, s")
        panel.set_ylabel("share of gaps above")

    caption = f"{100 * zero:.3g} % of the gaps are zero and lie left of the figure."
    return Plot("Gaps", draw(2.8, _paint), caption)


def _lengths(trace: TraceColumns) -> Plot:
    sides = (("input tokens", trace.input_tokens), ("output tokens", trace.output_tokens))

    def _paint(canvas: Canvas) -> None:
        for panel, (name, column), colour in zip(canvas.subplots(1, 2, sharey=True), sides, PALETTE, strict=False):
            values, above = survival(column)
            panel.plot(np.maximum(values, 0.5), above, color=colour, drawstyle="steps-post")
            _log(panel)
            panel.set_xlabel(name)
        canvas.axes[0].set_ylabel("share of rows at or above")

    return Plot("Lengths", draw(2.8, _paint), "Rows with no tokens are drawn at one half.")


def _clients(trace: TraceColumns) -> Plot:
    client = trace.client
    assert client is not None  # noqa: S101 - the caller asked
    counts = np.bincount(client.codes[client.codes >= 0], minlength=len(client.names))
    order = np.argsort(-counts, kind="stable")[:BARS]
    rest = int(counts.sum() - counts[order].sum())

    def _paint(canvas: Canvas) -> None:
        panel = canvas.subplots()
        panel.barh(range(len(order)), counts[order], color=PALETTE[0])
        panel.set_yticks(range(len(order)), [f" {shorten(clean(client.names[i]), 30)}" for i in order])
        panel.invert_yaxis()
        panel.set_xlabel("requests")
        panel.grid(visible=False, axis="y")

    more = f"; the other {int((counts > 0).sum()) - len(order)} sent {rest}" if rest else ""
    return Plot("Clients", draw(0.8 + 0.22 * len(order), _paint), f"The {len(order)} clients that sent most{more}.")


def _sessions(trace: TraceColumns) -> Plot:
    turns = trace.turns
    assert turns is not None  # noqa: S101 - the caller asked
    _, sizes = np.unique(turns.session, return_counts=True)
    pauses = turns.think_ns[turns.think_ns >= 0] / NS_PER_S

    def _paint(canvas: Canvas) -> None:
        panels = canvas.subplots(1, 2 if len(pauses) else 1, squeeze=False)[0]
        values, above = survival(sizes)
        panels[0].plot(values, above, color=PALETTE[0], drawstyle="steps-post")
        panels[0].set_xlabel("requests of a session")
        panels[0].set_ylabel("share at or above")
        _log(panels[0])
        if len(pauses):
            values, above = survival(pauses)
            panels[1].plot(np.maximum(values, 1e-3), above, color=PALETTE[1], drawstyle="steps-post")
            panels[1].set_xlabel("pause before a turn, s")
            _log(panels[1])

    known = "" if len(pauses) else " The trace does not say how long users paused."
    return Plot("Sessions", draw(2.8, _paint), f"{len(sizes)} sessions.{known}")


def _sharing(trace: TraceColumns) -> Plot:
    blocks = trace.blocks
    assert blocks is not None  # noqa: S101 - the caller asked
    hits = leading_hits(blocks.ids.offsets, blocks.ids.values)
    tokens = np.minimum(hits * blocks.size, trace.input_tokens)
    whole = np.cumsum(trace.input_tokens)
    share = np.cumsum(tokens) / np.maximum(whole, 1)
    at = np.unique(np.linspace(0, len(share) - 1, min(POINTS, len(share))).round().astype(np.int64))

    def _paint(canvas: Canvas) -> None:
        panel = canvas.subplots()
        panel.plot(at + 1, share[at], color=PALETTE[2])
        panel.set_xlim(1, len(share))
        panel.set_ylim(0, 1)
        panel.set_xlabel("requests so far, in the file's order")
        panel.set_ylabel("share of prompt tokens seen before")

    caption = "What a cache that forgets nothing could have reused: beginnings of prompts whose prefix ids had all occurred before."
    return Plot("Sharing", draw(2.6, _paint), caption)


_PLAIN = FuncFormatter(lambda x, _: number(x))


def _log(panel: Axes) -> None:
    """A logarithmic axis of values, plain numbers on it, against shares."""
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(_PLAIN)
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_ylim(0, 1.02)
