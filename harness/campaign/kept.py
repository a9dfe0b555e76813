"""What is added to a campaign is made as what it holds was made: behind the same launch prefixes, from the same kind of fleet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from harness.campaign.fleet import Mode
from harness.campaign.launching import DIRECT
from harness.errors import Problem, UsageError
from harness.record.coordinates import Known, RunCoordinates
from harness.record.reader import read_coordinates, read_spec
from harness.record.spec import RunSpec
from harness.runtimes import get_runtime
from harness.runtimes.launch import Launch

_LAUNCH = "runtime.launch"


def refuse_other_way(sealed: Iterable[Path], launches: Mapping[str, Launch], mode: Mode) -> None:
    """Hold the user's choices against the attempts that are kept, before anything is started.

    Replicates of one arm that were launched or sent otherwise would make its cell's coordinates unknown, and no longer comparable. Raises
    UsageError ``launch_differs``, ``fleet_differs``, each once an arm; HostError when a record cannot be read.
    """
    found = (problem for path in sealed for problem in _differing(read_spec(path), read_coordinates(path), launches, mode))
    problems = tuple(dict.fromkeys(found))
    if problems:
        raise UsageError(*problems)


def _differing(spec: RunSpec, coordinates: RunCoordinates, launches: Mapping[str, Launch], mode: Mode) -> Iterator[Problem]:
    arm = spec.arm.name
    elsewhere = "or give --results another folder, which begins anew"
    if spec.fleet != mode:
        what = f"arm {arm} was sent from fleet={spec.fleet}, and the rest would be from fleet={mode}: one cell of two clients"
        yield Problem("fleet_differs", what, f"run it with `--fleet {spec.fleet}`, {elsewhere}")
    was = coordinates.coordinates[_LAUNCH]
    launch = launches.get(arm)
    now = DIRECT if launch is None else launch.label
    # What an older record does not say makes the cell's coordinate unknown anyway.
    if get_runtime(spec.arm.runtime).managed and isinstance(was, Known) and was.value != now:
        what = f"arm {arm} was launched {_said(str(was.value))}, and the rest would be {_said(now)}: one cell of two systems"
        remedy = "leave --launch out" if was.value == DIRECT else "give the same --launch, with the entry as it was in launch.toml"
        yield Problem("launch_differs", what, f"{remedy}, {elsewhere}")


def _said(label: str) -> str:
    return "directly" if label == DIRECT else f"by `{label}`"
