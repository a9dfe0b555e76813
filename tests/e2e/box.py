"""A container engine in small, for tests of launch prefixes: what it runs belongs to a daemon, not to the process that asked for it.

``box.py daemon SOCKET``, ``box.py run SOCKET NAME WORD...`` (stays in the foreground, hands no environment on, ends with the program; the
program outlives it) and ``box.py stop SOCKET NAME``.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading

RUNNING: dict[str, subprocess.Popen[bytes]] = {}


def serve(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as source:
        asked = json.loads(source.readline())
        if asked["op"] == "run":
            out = connection.fileno()
            with subprocess.Popen(asked["argv"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True) as program:
                RUNNING[asked["name"]] = program
        elif asked["name"] in RUNNING:
            program = RUNNING.pop(asked["name"])
            program.kill()
            program.wait()


def daemon(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()
        print("up", flush=True)
        while True:
            connection, _ = door.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


def ask(path: str, **asked: object) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        line.sendall(json.dumps(asked).encode() + b"\n")
        while data := line.recv(4096):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["daemon", path]:
            daemon(path)
        case ["run", path, name, *argv]:
            ask(path, op="run", name=name, argv=argv)
        case ["stop", path, name]:
            ask(path, op="stop", name=name)
