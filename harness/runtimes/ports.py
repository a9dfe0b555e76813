"""TCP ports of this machine: a free one, and who holds an occupied one."""

from __future__ import annotations

import socket

import psutil

from harness.errors import HostError

HOST = "127.0.0.1"
"""Servers under test listen on the loopback only."""


def free_port() -> int:
    """Return a port nobody listens on right now. Somebody may take it before it is used; the server then says so in its log."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> None:
    """Raise HostError ``port_in_use``, naming the process if it can be seen, when a server could not listen on ``port``."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier run in TIME_WAIT do not occupy a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as refused:
            raise HostError.single(
                "port_in_use",
                f"port={port} on {HOST} is taken by {holder(port)}: a reply from there would not be the server under test",
                "stop that process or choose another port",
            ) from refused


def listeners(port: int) -> set[int]:
    """Return the ids of the processes that listen on TCP ``port``; only those whose sockets this user may see."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.AccessDenied, OSError):
        return set()
    return {c.pid for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port and c.pid}


def holder(port: int) -> str:
    """Name who listens on ``port``, for a person."""
    pids = sorted(listeners(port))
    return f"pid {', '.join(map(str, pids))}" if pids else "a process that this user cannot see"
