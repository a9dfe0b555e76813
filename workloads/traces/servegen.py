"""Reader ``servegen``: clients of a model service as arrival processes and length histograms; requests are drawn from them.

The published files are no request log. What is drawn is stated in the notes, from which clients, window, factor and histograms.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

from harness.errors import Problem, UsageError
from workloads.schedule import Labels, Trace, frozen
from workloads.traces.contract import PIN_OR_NONE, FormatInfo, Options
from workloads.traces.find import file_digest
from workloads.traces.servegen_draw import MAX_ROWS, Drawn, Fixed, Source, draw_clients, expected, too_many
from workloads.traces.servegen_files import DATASET_NAME, TRACE_NAME, WINDOW_S, Client, read_clients, read_lengths

FORMAT = "servegen"
DATASETS = "servegen_datasets*.tar.gz"
"""What the archive of histograms is called when no option names it."""

_OPTIONS = "workload.trace.options"


class ServeGenOptions(Options):
    """What is drawn. ``rate`` and ``factor`` both scale every client alike, whichever clients and window are then taken."""

    clients: tuple[int, ...] = Field((), description="numbers of the clients to draw; none named: all")
    start_s: float = Field(0, ge=0, allow_inf_nan=False, description="start of the window, seconds of the file")
    stop_s: float | None = Field(None, gt=0, allow_inf_nan=False, description="end of the window; none: the file's end")
    factor: float | None = Field(None, gt=0, le=1e3, description="multiply every rate by this")
    rate: float | None = Field(None, gt=0, le=1e6, description="mean req/s that the whole file, all clients and windows, is scaled to")
    datasets: str | None = Field(None, description=f"file of histograms beside the trace; none: the one called {DATASETS}")
    datasets_sha256: str | None = Field(None, pattern=PIN_OR_NONE, description="sha256 of the file of histograms, or none")
    lengths_of: int | None = Field(None, description="client whose histograms stand in for clients that have none")
    fixed_lengths: tuple[int, int] | None = Field(None, description="input and output tokens of clients without histograms")


def draw(path: Path, options: ServeGenOptions, seed: int) -> Trace:
    """Draw the chosen clients' requests in the window, by arrival, ties by client number.

    Raises UsageError: unreadable archives, unknown clients, clients without lengths, more rows than ``MAX_ROWS``, an empty window.
    """
    family, clients = read_clients(path)
    chosen = _chosen(clients, options)
    start, stop = _window(clients, options)
    factor = _factor(clients, options)
    rows = sum(expected(client, start, stop) for client in chosen.values()) * factor
    if rows > MAX_ROWS:
        raise too_many(f"{len(chosen)} clients over {stop - start:g} s", rows, factor)
    sources, notes = _sources(path, family, chosen, options)
    drawn = draw_clients(chosen, sources, start, stop, factor, seed)
    notes += _draw_notes(chosen, drawn, (start, stop), factor, rows)
    trace = _trace(path.name, drawn, round(start * 1e9), tuple(notes))
    return trace if options.datasets_sha256 else replace(trace, unpinned={"datasets-sha256": pin_of(_datasets(path, options))})


def _chosen(clients: Mapping[int, Client], options: ServeGenOptions) -> dict[int, Client]:
    absent = sorted(set(options.clients) - set(clients))
    if absent:
        what = f"clients={absent}: the archive has no such client"
        raise UsageError.single("trace.options", what, f"choose among {', '.join(map(str, clients))}", f"{_OPTIONS}.clients")
    return {number: client for number, client in clients.items() if not options.clients or number in options.clients}


def _window(clients: Mapping[int, Client], options: ServeGenOptions) -> tuple[float, float]:
    end = max(int(client.start_s[-1]) + WINDOW_S for client in clients.values())
    stop = float(end) if options.stop_s is None else options.stop_s
    if not options.start_s < stop <= end:
        what = f"start-s={options.start_s:g}, stop-s={stop:g}: not a window within the file's {end} s"
        raise UsageError.single("trace.options", what, "choose start-s below stop-s, and stop-s within the file", f"{_OPTIONS}.stop-s")
    return options.start_s, stop


def _factor(clients: Mapping[int, Client], options: ServeGenOptions) -> float:
    """Factor on every rate. ``rate`` refers to the whole file, so that no client's draw depends on what else is chosen."""
    if options.rate is None:
        return 1.0 if options.factor is None else options.factor
    if options.factor is not None:
        what = f"rate={options.rate:g} and factor={options.factor:g}: two scales for one load"
        raise UsageError.single("trace.options", what, "give one of them", f"{_OPTIONS}.rate")
    span = max(int(client.start_s[-1]) + WINDOW_S for client in clients.values()) - min(int(c.start_s[0]) for c in clients.values())
    whole = sum(expected(client, 0, np.inf) for client in clients.values()) / span
    if not whole:
        raise UsageError.single("trace.no_rows", "rate: every client is silent in every window", "take the published archive")
    return options.rate / whole


def _sources(path: Path, family: str, chosen: Mapping[int, Client], options: ServeGenOptions) -> tuple[dict[int, Source], list[str]]:
    """Where each client's lengths come from, and the notes that say so. Raises UsageError when one has none."""
    if options.lengths_of is not None and options.fixed_lengths is not None:
        what = f"lengths-of={options.lengths_of} and fixed-lengths={options.fixed_lengths}: two stand-ins for one client"
        raise UsageError.single("trace.options", what, "give one of them", f"{_OPTIONS}.lengths-of")
    archive = _datasets(path, options)
    known = {} if archive is None else read_lengths(archive, family)
    sources: dict[int, Source] = {number: known[number] for number in chosen if number in known}
    missing = [number for number in chosen if number not in known]
    notes = [] if archive is None else [f"length histograms from {archive.name} (sha256 {file_digest(archive)})"]
    if missing:
        sources |= dict.fromkeys(missing, _stand_in(missing, known, options))
        from_whom = f"client {options.lengths_of}'s" if options.lengths_of is not None else f"fixed at {options.fixed_lengths}"
        notes.append(f"{len(missing)} of {len(chosen)} clients have no histograms; their lengths are {from_whom}")
    return sources, notes


def _stand_in(missing: list[int], known: Mapping[int, Source], options: ServeGenOptions) -> Source:
    if options.fixed_lengths is not None:
        low, high = min(options.fixed_lengths), max(options.fixed_lengths)
        if not 0 < low <= high <= 1 << 24:
            what = f"fixed-lengths={options.fixed_lengths}: lengths are from 1 to 16777216 tokens"
            raise UsageError.single("trace.options", what, "give two such numbers", f"{_OPTIONS}.fixed-lengths")
        return Fixed(*options.fixed_lengths)
    if options.lengths_of is not None and options.lengths_of in known:
        return known[options.lengths_of]
    asked = "" if options.lengths_of is None else f", and neither has lengths-of={options.lengths_of}"
    what = f"clients without histograms of lengths: {', '.join(map(str, missing))}{asked}"
    choice = f"choose clients among {', '.join(map(str, known))}; or name one as lengths-of" if known else "give their archive"
    raise UsageError.single("trace.lengths", what, f"{choice}; or set fixed-lengths", f"{_OPTIONS}.lengths-of")


def pin_of(archive: Path | None) -> str:
    """What ``datasets-sha256`` says of an archive."""
    return "none" if archive is None or not archive.is_file() else file_digest(archive)


def _datasets(path: Path, options: ServeGenOptions) -> Path | None:
    """Find the archive of histograms beside the trace; None when there is none and no option asks for it."""
    where = f"{_OPTIONS}.datasets"
    if options.datasets is not None and Path(options.datasets).name != options.datasets:
        what = f"datasets={options.datasets!r}: a file name is wanted, without folders"
        raise UsageError.single("trace.options", what, "put the file beside the trace and give its bare name", where)
    found = sorted(path.parent.glob(DATASETS)) if options.datasets is None else [path.parent / options.datasets]
    if len(found) > 1:
        what = f"files={', '.join(file.name for file in found)}: several archives of histograms lie beside the trace"
        raise UsageError.single("trace.options", what, "name one as datasets", where)
    if options.datasets_sha256 is not None:
        digest = pin_of(found[0] if found else None)
        if digest != options.datasets_sha256:
            what = f"datasets-sha256={options.datasets_sha256}: the file of histograms has {digest}"
            raise UsageError(Problem("trace.digest_mismatch", what, "fetch the file that is meant, or pin this one", where))
    return found[0] if found else None


def _draw_notes(
    chosen: Mapping[int, Client], drawn: Mapping[int, Drawn], span: tuple[float, float], factor: float, rows: float
) -> list[str]:
    length = span[1] - span[0]
    got = sum(len(part.arrival_ns) + part.silent for part in drawn.values())
    cvs = [float(c.cv[(c.start_s < span[1]) & (c.start_s + WINDOW_S > span[0])].max(initial=0)) for c in chosen.values()]
    rates = f"{rows / length:.6g} req/s expected, {got / length:.6g} drawn"
    return [
        "requests are drawn, none was logged: per client and 600 s window a stationary gamma or Weibull renewal process",
        "lengths are drawn from histograms, input and output independent of each other; windows are independent too",
        f"seconds {span[0]:g} to {span[1]:g} of the file, {len(chosen)} clients, rates x {factor:.9g}: {rates}",
        f"published cv of gaps up to {max(cvs):.6g}: far above 1, a window is mostly one spike and its count varies with the seed",
    ]


def _trace(name: str, drawn: Mapping[int, Drawn], start_ns: int, notes: tuple[str, ...]) -> Trace:
    names = tuple(sorted(str(number) for number in drawn))
    counts = [len(part.arrival_ns) for part in drawn.values()]
    number = np.repeat(np.array(list(drawn), np.int64), counts)
    code = np.repeat(np.array([names.index(str(n)) for n in drawn], np.int32), counts)
    arrival, tokens_in, tokens_out = (
        np.concatenate([getattr(part, column) for part in drawn.values()]) for column in ("arrival_ns", "tokens_in", "tokens_out")
    )
    if not len(arrival):
        what = "rows=0: nothing was drawn in this window"
        raise UsageError.single("trace.no_rows", what, "choose a longer window or a higher rate", name)
    order = np.lexsort((number, arrival))
    silent = sum(part.silent for part in drawn.values())
    return Trace(
        FORMAT,
        name,
        frozen(arrival[order] - start_ns),
        frozen(tokens_in[order]),
        frozen(tokens_out[order]),
        frozen(np.arange(len(order), dtype=np.int64)),
        clock="relative",
        client=Labels(names, frozen(code[order])),
        skipped={"no length histogram in this window": silent} if silent else {},
        notes=notes,
    )


class _ServeGen:
    """``servegen``: three model services of a cloud, by client."""

    info = FormatInfo(
        format=FORMAT,
        summary="ServeGen: clients of a cloud's model services as arrival processes and length histograms, from which requests are drawn",
        clock="relative",
        time_unit="seconds from the file's start, windows of 600 s",
        lengths="input and output tokens drawn from histograms of 6 h",
        prefix=None,
        tested="full file",
        drawn=True,
    )
    options = ServeGenOptions

    def sniff(self, name: str, head: bytes) -> bool:  # noqa: ARG002 - the first member's name tells
        """Whether the head is a tar header whose member is a client's table or histograms."""
        member = head[:100].split(b"\0", 1)[0].decode("utf-8", "replace")
        is_tar = re.match(rb"ustar", head[257:262]) is not None
        return is_tar and (TRACE_NAME.fullmatch(member) or DATASET_NAME.fullmatch(member)) is not None

    def read(self, path: Path, options: ServeGenOptions, seed: int) -> Trace:
        """Draw the chosen clients and window with ``seed``."""
        return draw(path, options, seed)


READERS = (_ServeGen(),)
