"""What reading alone costs: a program that sends the load on time, reads once a millisecond and throws away what it read.

It stamps nothing, parses nothing and keeps nothing; a client in Python that looks as often has all of this to do, and more. So its
CPU time an event is a floor under such a client's on this host, most of it the kernel's. ``python -m benchmarks.peers.bare LOAD PORT OUT``.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.load import Load
from benchmarks.peers.ours import connections, plan
from benchmarks.peers.seen import Seen
from harness.replay.worker import request_head
from harness.runtimes.ports import HOST

REST_S = 0.001
"""As often as this engine looks under load."""

END = b"0\r\n\r\n"
"""What a chunked answer ends with, and nothing inside an event of the truth server."""

EVENT = b'"choices":[{'
"""Of an event with a token; the usage behind the last one has no choices."""

LEAD_NS = 200_000_000


def run(load: Load, port: int, folder: Path) -> dict[str, Any]:
    """Send everything on time and read until the last answer has ended; tokens of each request, by number."""
    made = plan(load, port, folder)
    payloads = [request_head(made, len(body)) + body for body in made.bodies]
    free = [socket.create_connection((HOST, port)) for _ in range(connections(load))]
    ready = select.epoll()
    by_fd = {sock.fileno(): sock for sock in free}
    for sock in free:
        sock.setblocking(False)
        ready.register(sock.fileno(), select.EPOLLIN)
    due = (made.arrival_ns + time.monotonic_ns() + LEAD_NS).tolist()
    tokens, serving, sent, left = [0] * len(due), dict.fromkeys(by_fd, -1), 0, len(due)
    while left:
        while sent < len(due) and due[sent] <= time.monotonic_ns():
            sock = free.pop()
            serving[sock.fileno()] = sent
            sock.send(payloads[sent])
            sent += 1
        for fd, _ in ready.poll(0):
            data = by_fd[fd].recv(65536)
            tokens[serving[fd]] += data.count(EVENT)
            if data.endswith(END) or not data:
                free.append(by_fd[fd])
                left -= 1
        time.sleep(REST_S if sent == len(due) else max(0.0, min(REST_S, (due[sent] - time.monotonic_ns()) / 1e9)))
    return {"tokens": tokens}


def read(folder: Path) -> list[Seen]:
    """Which requests ended, and with how many tokens; it knows nothing else."""
    tokens: list[int] = json.loads((folder / "read.json").read_text())["tokens"]
    return [Seen(name=f"c{number}", done=True, tokens=count) for number, count in enumerate(tokens)]


def main() -> None:
    """Drive the load."""
    load = Load(**json.loads(Path(sys.argv[1]).read_text()))
    folder = Path(sys.argv[3])
    folder.mkdir(parents=True)
    (folder / "read.json").write_text(json.dumps(run(load, int(sys.argv[2]), folder)))


if __name__ == "__main__":
    main()
