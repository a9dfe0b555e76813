"""What reading alone costs: a program in C that sends the load on time, looks once in two milliseconds and throws away what it read.

It stamps nothing, parses nothing and keeps nothing; a client has all of this to do, and more. So its CPU time an event is a floor under
any client's on this host that reads a token when it comes, nearly all of it the kernel's. ``python -m benchmarks.peers.bare LOAD PORT OUT``
compiles and becomes it.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.load import Load
from benchmarks.peers.ours import connections, plan
from benchmarks.peers.seen import Seen
from harness.replay.worker import request_head

REST_US = 2000
"""As often as this engine looks where a token comes every 10 ms, as in this load."""

_SOURCE = Path(__file__).with_suffix(".c")


def compiler() -> str | None:
    """The host's C compiler."""
    return shutil.which("cc")


def write_load(load: Load, port: int, folder: Path) -> Path:
    """What the program is to send, in the form that it reads."""
    made = plan(load, port, folder)
    path = folder / "load.bin"
    with path.open("wb") as out:
        out.write(struct.pack("=I", load.requests))
        for body, due_ns in zip(made.bodies, made.arrival_ns.tolist(), strict=True):
            payload = request_head(made, len(body)) + body
            out.write(struct.pack("=qI", due_ns, len(payload)) + payload)
    return path


def read(folder: Path) -> list[Seen]:
    """Which requests ended, and with how many tokens; it knows nothing else."""
    counts = map(int, (folder / "tokens").read_text().split())
    return [Seen(name=f"c{number}", done=True, tokens=count) for number, count in enumerate(counts)]


def main() -> None:
    """Compile, prepare, and become the program; RuntimeError without a compiler."""
    cc = compiler()
    if cc is None:
        raise RuntimeError("no C compiler: cc is not on the path")
    load = Load(**json.loads(Path(sys.argv[1]).read_text()))
    port, folder = int(sys.argv[2]), Path(sys.argv[3])
    folder.mkdir(parents=True)
    program = folder / "bare"
    subprocess.run([cc, "-O2", "-o", program, _SOURCE], check=True)
    words = (port, write_load(load, port, folder), folder / "tokens", REST_US, connections(load))
    os.execv(program, ["bare", *map(str, words)])  # noqa: S606 - it must be this process, which is watched


if __name__ == "__main__":
    main()
