"""``python -m benchmarks.peers``: this load engine and the load generators that are installed, one after another against the same truth
server, same load, same counting. See ``benchmarks/README.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.bare import compiler
from benchmarks.peers.figures import Figures
from benchmarks.peers.load import GAP_MS, TOKENS, TTFT_MS, Load
from benchmarks.peers.peer import Peer
from benchmarks.peers.run import BARE, ENGINE, PEERS, Cores, RunError, measure
from benchmarks.peers.table import lines, verdicts

SECONDS = 20.0
"""2,000 requests at 100 a second: twenty of them lie beyond a p99."""


DRIFT_NS = 100_000
"""A tenth of the tightest bound."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print one table a rate; 0 when every client that is installed could be measured."""
    args = parser().parse_args(argv)
    chosen = [peer for peer in PEERS if args.only is None or peer.name in args.only]
    there, missing = split(chosen)
    beside = [BARE] if compiler() else []
    if not beside:
        missing.append(f"{BARE.name}: skipped, it is compiled here; install a C compiler that is called cc")
    for line in missing:
        print(line)
    cores, report = Cores.of_host(), []
    print("\n".join(host_lines(cores)))
    with tempfile.TemporaryDirectory(prefix="trigpoint-peers-") as name:
        for rate in args.rates:
            load = Load(rate, round(rate * args.seconds))
            report.append(compare(load, [*beside, *there], cores, (args.keep or Path(name)).resolve() / f"{rate:g}"))
    if args.json is not None:
        args.json.write_text(json.dumps({"host": host_facts(), "missing": missing, "loads": report}, indent=1) + "\n", encoding="utf-8")
    return 1 if any(entry["failed"] for entry in report) else 0


def parser() -> argparse.ArgumentParser:
    """Options."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    made.add_argument("--rates", type=float, nargs="+", default=[101.0], help="requests per second, e.g. 20 101 303")
    made.add_argument("--seconds", type=float, default=SECONDS, help="how long each is offered")
    made.add_argument("--only", nargs="*", choices=[peer.name for peer in PEERS], help="these peers; none for this engine alone")
    made.add_argument("--json", type=Path, help="write everything to this file too")
    made.add_argument("--keep", type=Path, help="keep what the clients wrote in this new folder")
    return made


def split(peers: Sequence[Peer]) -> tuple[list[Peer], list[str]]:
    """Those that are installed, and a line for each that is not."""
    there = [peer for peer in peers if peer.home is None or peer.home.python() is not None]
    gone = [peer for peer in peers if peer not in there and peer.home is not None]
    return there, [f"{peer.name}: skipped, not installed; make it with: {peer.home.remedy()}" for peer in gone if peer.home is not None]


def compare(load: Load, peers: Sequence[Peer], cores: Cores, folder: Path) -> dict[str, Any]:
    """Run all clients on one load and print its table."""
    shape = f"{TTFT_MS} ms + {GAP_MS} ms a token, {TOKENS} tokens"
    print(f"\n{load.rate:g} req/s, {load.rate * load.tokens:g} events/s, {load.requests} requests; {shape}", flush=True)
    found: dict[str, Figures] = {}
    busy: dict[str, float] = {}
    failed: dict[str, str] = {}
    for peer in (ENGINE, *peers):
        busy[peer.name] = os.getloadavg()[0]
        print(f"  running {peer.name} (load average {busy[peer.name]:.2f})", file=sys.stderr, flush=True)
        try:
            found[peer.name] = measure(peer, load, cores, folder / peer.name.replace(" ", "-"))
        except RunError as error:
            failed[peer.name] = str(error)
            print(f"{peer.name}: not measured: {error}", flush=True)
    rows = {name: figures.to_json() | {"load_average_before": busy[name]} for name, figures in found.items()}
    notes = dict.fromkeys(note for peer in peers if peer.name in found for note in peer.notes)
    notes |= {drift_note(name, row.wall_drift_ns): None for name, row in found.items() if abs(row.wall_drift_ns) > DRIFT_NS}
    said = show(load, found, notes, [peer.name for peer in peers if peer.compiled])
    return {"load": load.to_json(), "clients": rows, "failed": failed, "notes": list(notes), "verdicts": [list(pair) for pair in said]}


def drift_note(name: str, drift_ns: int) -> str:
    """A wall clock that was moved during a run."""
    return f"{name}: the wall clock moved by {drift_ns / 1e6:.2f} ms while it ran; a stamp taken by it is that uncertain"


def show(load: Load, found: Mapping[str, Figures], notes: Iterable[str], compiled: Sequence[str]) -> list[tuple[str, str]]:
    """Print table, notes and verdicts; returns the verdicts. Without this engine's own line there is nothing to compare with."""
    peers = dict(found)
    ours, bare = peers.pop(ENGINE.name, None), peers.pop(BARE.name, None)
    if ours is None:
        return []
    said = verdicts(load.rate, ours, peers, compiled, bare)
    shown = [
        *lines((ENGINE.name, ours), peers, compiled, {} if bare is None else {BARE.name: bare}),
        *(f"  note: {note}" for note in notes),
        *(f"  {bound:66s} {word}" for bound, word in said),
    ]
    print("\n".join(shown), flush=True)
    return said


def host_facts() -> dict[str, Any]:
    """What the figures depend on."""
    model = next((line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), None)
    return {"cores": len(os.sched_getaffinity(0)), "cpu": model, "load_average": list(os.getloadavg())}


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def host_lines(cores: Cores) -> list[str]:
    """The host in words."""
    facts = host_facts()
    placed = "one core for all"
    if cores.server:
        placed = f"server on core {cores.server[0]}, clients of one process on {list(cores.client)}, of several on all"
    return [f"host: {facts['cores']} cores, {facts['cpu'] or 'unknown processor'}, load average {facts['load_average'][0]:.2f}; {placed}"]


if __name__ == "__main__":
    raise SystemExit(main())
