"""All that is said to Ray. It is imported when a fleet is opened and not before; every wait has an end."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from harness.errors import HostError, UsageError
from harness.replay.fleet.contract import Beside
from harness.replay.fleet.host import FleetHost
from harness.replay.fleet.reaper import MARK, Reaper

OBJECT_STORE = 100 * 10**6
"""Bytes of a cluster of our own: what passes through it is at most some megabytes at a time, and Ray would take a third of the memory."""

RESERVE_S = 30.0
"""Room that is free is given within a second; half a minute lets the leavings of the run before go."""

REACH_S = 5.0

TRIES = "RAY_gcs_server_port_wait_time_s"
"""One try of Ray's own, which takes 40 s, instead of twenty: something else may listen at the address."""

Handle = Any
"""An actor, as Ray hands it out."""

Ref = Any
"""An answer to come."""


class LostError(Exception):
    """A host gave no answer; its text says why, without names or addresses of machines."""


@dataclass(frozen=True, slots=True)
class Seat:
    """An actor and what Ray calls the node it sits on."""

    actor: Handle
    node: str


@dataclass(frozen=True, slots=True)
class Crew:
    """The actors of one replay and the room they hold."""

    seats: tuple[Seat, ...]
    room: Any


class Cluster:
    """A connection to a Ray cluster, as a context manager.

    ``address``: HOST:PORT or ``auto``, of a cluster that this host has joined; None: a cluster of one node with room for ``workers``, bound
    to 127.0.0.1, which ends with the connection. Actors live no longer than the driver that asked for them. HostError: Ray is not installed
    (``ray_missing``), the cluster does not answer (``ray_unreachable``), or there is no room (``fleet_resources``).
    """

    def __init__(self, address: str | None = None, workers: int = 1) -> None:
        if address is not None and "://" in address:
            what = f"ray-address={address}: a Ray client's proxy stands between driver and actors, and clocks are compared through it"
            raise UsageError.single("ray_address", what, "run on a host that has joined the cluster and give HOST:PORT, or auto")
        self._address, self._workers = None if address == "local" else address, workers  # Ray's word for one of this host's own
        self._ray: Any = None
        self._reaper: Reaper | None = None

    def __enter__(self) -> Self:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # reports go to a host of Ray's makers otherwise
        ray = _import_ray()
        logging.getLogger("ray").setLevel(logging.ERROR)  # nothing prints on the way of a measurement
        try:
            self._connect(ray)
        except BaseException:
            self._end_own()
            raise
        self._ray = ray
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._ray.shutdown()
        finally:
            self._end_own()

    def _connect(self, ray: Any) -> None:
        if self._address is not None:
            _reach(self._address)
            with _environment(**{TRIES: os.environ.get(TRIES, "1")}):
                self._init(ray, {"address": self._address})
            return
        folder = tempfile.mkdtemp(prefix="trigpoint-ray-")  # short: sockets below it may have 107 bytes of path
        self._reaper = Reaper(folder)
        # Ray would leave a token in the user's home; and what a killed actor leaves behind lies where it is removed.
        with _environment(RAY_AUTH_TOKEN=secrets.token_hex(32), TMPDIR=folder, **{MARK: folder}):
            self._init(ray, self._own(folder))

    def _own(self, folder: str) -> dict[str, Any]:
        return {
            "address": "local",
            "num_cpus": max(self._workers, os.cpu_count() or 1),
            "object_store_memory": OBJECT_STORE,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": folder,
            "_system_config": {"worker_niceness": 0},
        }

    def _init(self, ray: Any, where: dict[str, Any]) -> None:
        try:
            ray.init(log_to_driver=False, configure_logging=False, **where)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _unreachable(self._address or "a cluster of our own", f"{type(error).__name__}: {error!s:.300}") from error

    def _end_own(self) -> None:
        """End what is left of a cluster of our own, and its folder."""
        if self._reaper is not None:
            self._reaper.end()

    # -- actors

    def hire(self, count: int, memory: int | None, beside: Beside) -> Crew:
        """Reserve room for ``count`` actors (a core each, ``memory`` bytes each), spread over nodes, and begin to start them."""
        bundle = {"CPU": 1.0} | ({} if memory is None else {"memory": float(memory)})
        groups = importlib.import_module("ray.util.placement_group")
        room = groups.placement_group([bundle] * count, strategy="SPREAD")
        if not room.wait(RESERVE_S):
            self.dismiss(Crew((), room))
            raise self._no_room(count, memory)
        nodes = groups.placement_group_table(room)["bundles_to_node_id"]
        return Crew(tuple(Seat(self._seat(room, k, memory, beside), nodes[k]) for k in range(count)), room)

    def _seat(self, room: Any, index: int, memory: int | None, beside: Beside) -> Handle:
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        where = strategies.PlacementGroupSchedulingStrategy(placement_group=room, placement_group_bundle_index=index)
        # No restart and no second try: a worker that comes back would send its part of the load again, late.
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": where}
        return self._ray.remote(FleetHost).options(**options, **({} if memory is None else {"memory": memory})).remote(beside)

    def _no_room(self, count: int, memory: int | None) -> HostError:
        free = self._ray.available_resources()
        has = f"{free.get('CPU', 0):g} cores and {free.get('memory', 0) / 2**30:.3g} GiB"
        each = "1 core" if memory is None else f"1 core and {memory / 2**30:.3g} GiB"
        what = f"client.fleet.workers={count}: {each} for each was not to be had within {RESERVE_S:g} s; the cluster has {has} free"
        return HostError.single("fleet_resources", what, "add nodes, end what holds them, or declare fewer workers or less memory")

    def dismiss(self, crew: Crew) -> None:
        """End all actors of ``crew`` and give their room back."""
        for seat in crew.seats:
            self.fire(seat.actor)
        with contextlib.suppress(self._ray.exceptions.RayError):
            importlib.import_module("ray.util.placement_group").remove_placement_group(crew.room)

    def fire(self, actor: Handle) -> None:
        """End one actor; its worker and spooler see their pipes close and end themselves."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(actor, no_restart=True)

    # -- questions

    def ask(self, actor: Handle, method: str, *arguments: Any) -> Ref:
        """Call a method; does not wait."""
        return getattr(actor, method).remote(*arguments)

    def answer(self, ref: Ref, timeout_s: float) -> Any:
        """Wait for an answer; LostError when none comes."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(ref, timeout=timeout_s)
        except errors.GetTimeoutError as error:
            raise LostError(f"no answer within {timeout_s:g} s") from error
        except errors.RayTaskError as error:
            raise LostError(f"{type(error.cause).__name__}: {error.cause!s:.300}") from error
        except errors.RayError as error:
            raise LostError(f"its process or its node is gone ({type(error).__name__})") from error

    def wait(self, refs: Sequence[Ref], timeout_s: float) -> list[Ref]:
        """Wait until one of ``refs`` has an answer, a loss being one; return those that have."""
        ready, _ = self._ray.wait(list(refs), num_returns=1, timeout=timeout_s)
        return list(ready)


@contextlib.contextmanager
def _environment(**changes: str) -> Iterator[None]:
    """Set variables for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        what = f"fleet=ray: the package ray is not installed here ({error}), so there is no cluster to send workers to"
        raise HostError.single("ray_missing", what, "pip install 'trigpoint[ray]' on every host, or use mode: processes") from error


def _reach(address: str) -> None:
    """Ray waits minutes for a cluster that is not there; its port says so at once."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return  # auto: Ray knows what this host has joined
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, ValueError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, why: str) -> HostError:
    what = f"ray-address={address}: {why}; without the cluster nothing can be sent"
    remedy = (
        "start it (`ray start --head` there, `ray start --address=HOST:PORT` on every other host, this one too), or correct the address"
    )
    return HostError.single("ray_unreachable", what, remedy)
