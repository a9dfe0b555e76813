"""What is left of a campaign is made as the rest of it was, or nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.campaign.kept import refuse_other_way
from harness.campaign.launching import DIRECT
from harness.errors import UsageError
from harness.record.coordinates import Coordinate, Known, RunCoordinates, Unknown
from harness.record.durable import write_json
from harness.record.spec import Arm
from harness.runtimes.launch import Launch
from tests.builders import make_coordinates, make_spec

NICE = Launch.model_validate({"name": "polite", "prefix": ("nice",), "where": "same-host"})
NICER = Launch.model_validate({"name": "polite", "prefix": ("nice", "-n", "1"), "where": "same-host"})


def kept(folder: Path, launch: Coordinate, runtime: str = "reference", **changes: Any) -> Path:
    """A sealed attempt of arm ``a``, as far as it is looked at."""
    path = folder / f"attempt-{len(list(folder.iterdir()))}"
    path.mkdir()
    write_json(path / "spec.json", make_spec(arm=Arm(name="a", runtime=runtime), **changes))
    write_json(path / "coordinates.json", RunCoordinates(coordinates=make_coordinates(runtime_launch=launch)))
    return path


def known(label: str) -> Known:
    return Known(value=label, source="observed")


@pytest.mark.parametrize(
    ("was", "now"),
    [(known(DIRECT), None), (known(NICE.label), NICE), (Unknown(reason="an older record"), NICE)],
    ids=["directly again", "by the same entry", "nobody knows"],
)
def test_what_is_made_in_the_same_way_is_added(tmp_path: Path, was: Coordinate, now: Launch | None) -> None:
    refuse_other_way([kept(tmp_path, was)], {} if now is None else {"a": now}, "processes")


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        (DIRECT, NICE, f"launched directly, and the rest would be by `{NICE.label}`"),
        (NICE.label, None, f"launched by `{NICE.label}`, and the rest would be directly"),
        (NICE.label, NICER, f"launched by `{NICE.label}`, and the rest would be by `{NICER.label}`"),
    ],
    ids=["a prefix now", "none now", "an entry of the same name that says something else"],
)
def test_another_launch_of_the_same_arm_is_refused_once(tmp_path: Path, was: str, now: Launch | None, words: str) -> None:
    sealed = [kept(tmp_path, known(was), replicate=k) for k in range(2)]
    with pytest.raises(UsageError, match=words) as refused:
        refuse_other_way(sealed, {"b": NICE} if now is None else {"a": now}, "processes")
    assert [problem.code for problem in refused.value.problems] == ["launch_differs"]


def test_another_fleet_and_another_launch_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        refuse_other_way([kept(tmp_path, known(DIRECT), fleet="ray")], {"a": NICE}, "processes")
    assert [problem.code for problem in refused.value.problems] == ["fleet_differs", "launch_differs"]
    assert "--fleet ray" in refused.value.problems[0].remedy


def test_an_endpoint_is_launched_by_nobody_here(tmp_path: Path) -> None:
    refuse_other_way([kept(tmp_path, known("numactl, as attested"), "endpoint")], {}, "processes")
