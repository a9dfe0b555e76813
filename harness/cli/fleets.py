"""Where workers run: options of the user's, since a manifest never says which cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import click

from harness.campaign.fleet import Mode, Sessions, opened_sessions
from harness.manifest import Campaign


class Where(NamedTuple):
    """``mode``: None for what the manifest says; ``address``: of a Ray cluster, None for one of this host alone."""

    mode: Mode | None
    address: str | None

    def opened(self, campaign: Campaign) -> AbstractContextManager[Sessions]:
        """Hold open what the workers of ``campaign`` run on; see ``opened_sessions``."""
        return opened_sessions(campaign, self.mode, self.address)


def fleet_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --fleet and --ray-address to a command, which gets both as ``where``."""

    @click.option(
        "--fleet",
        type=click.Choice(["processes", "ray"]),
        help="Where the workers of client.fleet run: processes of this host, or actors on a Ray cluster. Default: as the manifest says.",
    )
    @click.option(
        "--ray-address",
        metavar="HOST:PORT",
        envvar="RAY_ADDRESS",
        help="The Ray cluster that this host has joined, or auto. Default: RAY_ADDRESS, else a cluster of this host alone.",
    )
    @functools.wraps(command)
    def _with_where(*args: Any, fleet: Mode | None, ray_address: str | None, **rest: Any) -> None:
        command(*args, where=Where(fleet, ray_address), **rest)

    return _with_where
