"""What the server did under one run's load, by its own account and by the host's: beside the client's numbers, never instead of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from analysis.clocks import Clocks
from analysis.model import Figure
from analysis.planned import MISSING
from analysis.quantities import NoneSuchError, Quantity, figure_of
from analysis.reuse import caching
from analysis.samples import AbsentError, need
from analysis.server_host import host_quantities, missed
from analysis.server_window import Pages
from harness.record.reader import RunRecord

IN_WINDOW = "the measured window, first page to last"
LEVELS = (("running", "requests_running", "requests"), ("waiting", "requests_waiting", "requests"), ("kv_usage", "kv_usage_ratio", "ratio"))
COUNTS = (
    ("preemptions", "preemptions_total", "requests"), ("recomputed", "recomputed_rows_total", "rows"),
    ("aborted", "requests_aborted_total", "requests"),
)  # fmt: skip
RETRACTED = (
    ("retracted_input", "retracted_input_tokens_total", "tokens"), ("retracted_output", "retracted_output_tokens_total", "tokens"),
)  # fmt: skip
RATES = (("prompt_rate", "prompt_tokens_total", "tok/s"), ("output_rate", "generation_tokens_total", "tok/s"))
TIMES = (
    ("queue_time", "queue_time_s"), ("prefill_time", "prefill_time_s"), ("decode_time", "decode_time_s"), ("server_ttft", "server_ttft_s"),
    ("server_tpot", "server_tpot_s"), ("server_gap", "server_gap_s"), ("server_e2e", "server_e2e_s"),
)  # fmt: skip
"""Figure -> what it is read from (``harness.record.metric_names``)."""

SAME_REQUESTS = 0.02
"""The server's mean and ours are held against each other when they count the same requests to 2%, or to two of them: a request whose first
token falls beside a page is counted on one side only."""


@dataclass(frozen=True, slots=True)
class ServerSide:
    """``figures`` by name, of the measured window; what is not known says why. ``iterations``: how many iterations held at most so many
    tokens (upper bound as text, ascending), not cumulated; empty where the engine does not tell.
    """

    figures: Mapping[str, Figure]
    iterations: Mapping[str, float] = field(default_factory=dict)


def server_side(record: RunRecord, clocks: Clocks, figures: Mapping[str, Figure]) -> ServerSide:
    """Say what one run's server did. ``figures``: the run's own, for the tokens that the client received."""
    pages = Pages(record)
    asked = (*_levels(pages), *_work(pages), *_times(pages, clocks), *host_quantities(record, figures))
    try:
        iterations = pages.buckets("iteration_tokens_bucket")
    except AbsentError:
        iterations = {}
    return ServerSide({q.metric: figure_of(q) for q in asked}, iterations)


def _levels(pages: Pages) -> Iterator[Quantity]:
    """Gauges: mean by time, and the highest sample."""
    for name, metric, unit in LEVELS:
        yield Quantity(name, unit, "the measured window, by time", partial(_mean_level, pages, metric))
        yield Quantity(f"{name}_max", unit, "samples in the measured window", partial(_highest, pages, metric))


def _mean_level(pages: Pages, metric: str) -> tuple[float, int]:
    found = pages.level(metric)
    return found.mean, found.n


def _highest(pages: Pages, metric: str) -> tuple[float, int]:
    found = pages.level(metric)
    return found.highest, found.n


def _work(pages: Pages) -> Iterator[Quantity]:
    """Counters: what was done, and what was done in vain."""
    for name, metric, unit in RATES:
        yield Quantity(name, unit, IN_WINDOW, partial(_rate, pages, metric))
    retracted = [row for row in RETRACTED if pages.shows(row[1])]  # one engine's word: no other lacks it
    for name, metric, unit in (*COUNTS, *retracted):
        yield Quantity(name, unit, IN_WINDOW, partial(_count, pages, metric))
    yield Quantity("prefix_hit_share", "ratio", f"prompt tokens looked up in {IN_WINDOW}", partial(_hit_share, pages))
    yield Quantity("iteration_tokens", "tokens", f"iterations in {IN_WINDOW}", partial(pages.mean_of, "iteration_tokens"))
    yield Quantity("iteration_rate", "1/s", IN_WINDOW, partial(_rate, pages, "iteration_tokens_count"))
    yield Quantity("unread_pages", "pages", "the whole run", partial(_unread, pages))


def _rate(pages: Pages, metric: str) -> tuple[float, int]:
    grown = pages.grown(metric)
    return grown / pages.span_s, round(grown)


def _count(pages: Pages, metric: str) -> tuple[float, int]:
    return pages.grown(metric), len(pages.stamps)


def _unread(pages: Pages) -> tuple[float, int]:
    """Pages of its metrics that the server did not give, or that could not be read: what is told of it rests on so many fewer."""
    lost = missed(pages.record, "scrape_failed")
    need(pages.read > 0 or lost > 0, "the server has no page of metrics, or it was never asked")
    return lost, pages.read + round(lost)


def _hit_share(pages: Pages) -> tuple[float, int]:
    if caching(pages.record) is False:
        raise NoneSuchError("the server says that its prefix cache is off")
    return pages.ratio("cached_tokens_total", "prefix_queries_total", "no prompt token was looked up in the measured window")


def _times(pages: Pages, clocks: Clocks) -> Iterator[Quantity]:
    """Means that the server kept by its own clock; its time to first token beside the client's for the same requests."""
    for name, histogram in TIMES:
        yield Quantity(name, "s", f"what the server counted in {IN_WINDOW}", partial(pages.mean_of, histogram))
    yield Quantity("client_ttft", "s", f"first tokens that came in {IN_WINDOW}, from the send", partial(_client_ttft, pages, clocks))
    yield Quantity("outside_ttft", "s", "client_ttft less server_ttft", partial(_outside, pages, clocks))


def _client_ttft(pages: Pages, clocks: Clocks) -> tuple[float, int]:
    """Mean from send to first token: the server's clock starts when it has received the request, so the arrival is none of its business."""
    first = clocks.first_ns
    came = (first > pages.stamps[0]) & (first <= pages.stamps[-1]) & (clocks.send_ns != MISSING)
    need(bool(came.any()), f"no first token came in {IN_WINDOW}")
    return float((first - clocks.send_ns)[came].mean()) / 1e9, int(came.sum())


def _outside(pages: Pages, clocks: Clocks) -> tuple[float, int]:
    """What the way there and back, the server's front and the client took, on average."""
    (ours, seen), (theirs, counted) = _client_ttft(pages, clocks), pages.mean_of("server_ttft_s")
    same = abs(seen - counted) <= max(2.0, SAME_REQUESTS * max(seen, counted))
    need(same, f"the server counted {counted} first tokens, the client {seen}: their means are not of the same requests")
    return ours - theirs, min(seen, counted)
