"""What is told of the host after the load when the server did not live to be asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.campaign.replicate import _facts_after
from harness.record.facts import ServerExit
from harness.runtimes.launch import Launch
from tests.builders import make_facts

FAR = Launch.model_validate({"name": "far", "prefix": ["ssh", "far"], "where": "other-host", "url-host": "far"})


@pytest.mark.parametrize(("launch", "managed", "known"), [(None, True, True), (FAR, True, False), (None, False, False)])
def test_of_a_server_that_died_elsewhere_nothing_of_this_host_is_told(launch: Launch | None, *, managed: bool, known: bool) -> None:
    dead: Any = SimpleNamespace(exit_state=lambda: ServerExit(survived=False), runtime=SimpleNamespace(managed=managed), launch=launch)
    prepared: Any = SimpleNamespace(facts=make_facts())
    facts = _facts_after(prepared, dead, 0, "")
    assert any(name.startswith("host.") and fact.value is not None for name, fact in facts.after.items()) is known
