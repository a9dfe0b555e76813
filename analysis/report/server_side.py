"""What the server did, as tables: its own account and the host's, a column a cell, beside the client's time to first token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from analysis.model import CampaignAnalysis, CellAnalysis, Figure
from analysis.report.table import Table
from analysis.report.words import Unit, clean, decimals_for, number, percent

CELLS = 4
"""Cells side by side: four values with their intervals fit 140 columns."""

QUEUE = (
    ("Running, mean", "running"), ("Running, highest sample", "running_max"), ("Waiting, mean", "waiting"),
    ("Waiting, highest sample", "waiting_max"), ("KV cache in use, mean", "kv_usage"), ("KV cache in use, highest sample", "kv_usage_max"),
    ("Prompt tokens", "prompt_rate"), ("Output tokens", "output_rate"), ("Prefix tokens found in cache", "prefix_hit_share"),
    ("Preemptions", "preemptions"), ("Rows computed again", "recomputed"), ("Prompt tokens of retracted requests", "retracted_input"),
    ("Output tokens of retracted requests", "retracted_output"), ("Aborted", "aborted"), ("Iterations", "iteration_rate"),
    ("Tokens an iteration, mean", "iteration_tokens"), ("Pages that could not be read", "unread_pages"),
)  # fmt: skip
TIMES = (
    ("In queue", "queue_time"), ("Prefill", "prefill_time"), ("Decode", "decode_time"), ("First token, by the server", "server_ttft"),
    ("First token, by the client", "client_ttft"), ("Outside the server", "outside_ttft"), ("Time per output token", "server_tpot"),
    ("Gap between tokens", "server_gap"), ("Whole request", "server_e2e"),
)  # fmt: skip
HOST = (
    ("Server CPU", "server_cpu"), ("Server memory, highest sample", "server_memory_max"), ("Client CPU", "client_cpu"),
    ("Client memory, highest sample", "client_memory_max"), ("Spooler CPU", "spooler_cpu"),
    ("Spooler memory, highest sample", "spooler_memory_max"), ("Host CPU in use", "host_busy"), ("Host CPU of others", "host_foreign"),
    ("Host CPU stolen", "host_steal"), ("GPU in use", "gpu_utilisation"), ("GPU clock", "gpu_clock"),
    ("GPU memory, highest sample", "gpu_memory_max"), ("GPU temperature", "gpu_temperature"), ("GPU power", "gpu_power"),
    ("GPU energy an output token", "gpu_energy_per_token"), ("GPU samples that failed", "gpu_unread"),
)  # fmt: skip

QUEUE_NOTE = (
    "By the server's own page, over the measured window; means by time, counts and rates from its first page to its last. Between two"
    " samples a level may have been higher. Rows computed again and tokens of retracted requests are work that is no service. Aborted are"
    " also those that the client closed after the last token it wanted (client_stop)."
)
TIME_NOTE = (
    "Means that the server kept by its own clock, of requests that it counted within the window (most engines count one when it ends)."
    " First token by the client: from the send, of the tokens that came in the same time; outside the server: the difference of the two,"
    " which is the way there and back, the server's front and the client."
)
HOST_NOTE = "Host is the one that the client runs on. Memory of a role is that of its processes added up, shared pages once each."
UNITS: Mapping[str, Unit] = {"s": Unit("ms", 1000.0), "bytes": Unit("GiB", 1 / 2**30), "ratio": Unit("%", 100.0)}


def server_tables(c: CampaignAnalysis) -> tuple[Table, ...]:
    """Queue and work, times, host, iterations; a few cells a table, folded when that makes many. None where no server said anything."""
    told = [cell for cell in c.cells if cell.server is not None]
    groups = [told[i : i + CELLS] for i in range(0, len(told), CELLS)]
    tables = []
    for at, cells in enumerate(groups, 1):
        of = f" ({at} of {len(groups)})" if len(groups) > 1 else ""
        tables += [
            *_table(f"Queue, cache and work{of}", cells, QUEUE, QUEUE_NOTE), *_table(f"Server times{of}", cells, TIMES, TIME_NOTE),
            *_table(f"Host{of}", cells, HOST, HOST_NOTE), *_iterations(f"Tokens of an iteration{of}", cells),
        ]  # fmt: skip
    return tuple(replace(table, folded=table.folded or len(groups) > 1) for table in tables)


def _table(title: str, cells: Sequence[CellAnalysis], rows: Sequence[tuple[str, str]], note: str) -> Iterable[Table]:
    found = [(words, [_of(cell, name) for cell in cells]) for words, name in rows]
    kept = [(words, figures) for words, figures in found if any(f is not None and f.status == "ok" for f in figures)]
    absent = [(words, figures) for words, figures in found if any(f is not None and f.status != "ok" for f in figures)]
    if not kept:
        return
    header = ("What", "Unit", *(clean(cell.cell) for cell in cells))
    lines = tuple(_row(words, figures) for words, figures in kept)
    yield Table(title, header, lines, frozenset(range(2, len(header))), " ".join(filter(None, [note, *_levels(kept), _reasons(absent)])))


def _of(cell: CellAnalysis, name: str) -> Figure | None:
    return cell.server.figures.get(name) if cell.server is not None else None


def _row(words: str, figures: Sequence[Figure | None]) -> tuple[str, ...]:
    known = [f for f in figures if f is not None]
    unit = UNITS.get(known[0].unit, Unit(known[0].unit))
    places = decimals_for(None if f.value is None else f.value * unit.factor for f in known)
    return (words, clean(unit.name), *(_cell(f, unit, places) for f in figures))


def _cell(figure: Figure | None, unit: Unit, places: int) -> str:
    if figure is None:
        return "unknown"
    return " ".join(filter(None, [unit.value(figure, places), unit.interval(figure.interval, places)]))


def _levels(kept: Sequence[tuple[str, Sequence[Figure | None]]]) -> Iterable[str]:
    levels = sorted({percent(f.interval.level) for _, figures in kept for f in figures if f is not None and f.interval is not None})
    if levels:
        yield f"Intervals: {', '.join(levels)}, t over replicates."


def _reasons(absent: Sequence[tuple[str, Sequence[Figure | None]]]) -> str:
    """Why there is no value, each reason once with what it takes."""
    why: dict[tuple[str, str], list[str]] = {}
    for words, figures in absent:
        for f in figures:
            if f is not None and f.status != "ok":
                why.setdefault((f.status, clean(f.reason)), []).append(words)
    return " ".join(f"{status.capitalize()}: {', '.join(dict.fromkeys(names))} ({reason})." for (status, reason), names in why.items())


def _iterations(title: str, cells: Sequence[CellAnalysis]) -> Iterable[Table]:
    """Share of iterations by the most tokens they may have held; bounds above the last one that occurs are left out."""
    told = [
        (clean(cell.cell), cell.server.iterations) for cell in cells if cell.server is not None and any(cell.server.iterations.values())
    ]
    bounds = sorted({bound for _, counts in told for bound, n in counts.items() if n > 0}, key=float)
    if not bounds:
        return
    every = sorted({bound for _, counts in told for bound in counts if float(bound) <= float(bounds[-1])}, key=float)
    rows = [(_bound(bound), *(_share(counts, bound) for _, counts in told)) for bound in every]
    header = ("Tokens, at most", *(name for name, _ in told))
    note = "Share of the iterations of the measured window, all replicates together; each row holds those above the row before it."
    yield Table(title, header, tuple(rows), frozenset(range(len(header))), note, folded=True)


def _bound(text: str) -> str:
    return "more" if float(text) == float("inf") else number(float(text))


def _share(counts: Mapping[str, float], bound: str) -> str:
    """Not rounded to 0: one long iteration in ten thousand is what a tail is made of."""
    return f"{number(100 * counts[bound] / sum(counts.values()))} %" if bound in counts else ""
