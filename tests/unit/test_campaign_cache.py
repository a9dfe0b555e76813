"""What is done to a server's prefix cache before a replicate, by policy, runtime and what the server has served."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.cache import FLUSH_TRIES, Means, prepare_cache
from harness.campaign.servers import Server
from harness.clock import VirtualClock
from harness.errors import HostError
from harness.manifest import PlannedRun
from harness.record.spec import Replication
from harness.runtimes import get_runtime
from harness.runtimes.asking import Reply
from harness.runtimes.contract import RESTARTED
from harness.runtimes.process import ServerProcess
from harness.runtimes.reference import ReferenceRuntime
from tests.unit.test_campaign_bodies import TARGET, run
from tests.unit.test_workloads_digest import schedule

WHOLE = b'data: {"choices":[{"index":0,"text":"a","token_ids":[1],"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
ANSWERED = Reply(200, WHOLE)
FAILED = b'data: {"error":{"message":"no room","code":503}}\n\ndata: [DONE]\n\n'


class Started(ServerProcess):
    """A process that was started elsewhere."""

    pid = 7


class Flushing(ReferenceRuntime):
    """Answers a flush with the next of ``answers``."""

    def __init__(self, answers: Iterable[bool | None]) -> None:
        self.answers = iter(answers)

    def flush(self, base_url: str) -> bool | None:
        del base_url
        return next(self.answers)


class Heard:
    """A server that gives ``reply`` to everything and keeps what it was sent."""

    def __init__(self, reply: Reply | None) -> None:
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, _url: str, path: str, *, post: bytes, **_: Any) -> Reply | None:
        assert path == "/v1/completions"
        self.bodies.append(json.loads(post))
        return self.reply


def server(*answers: bool | None, served: int = 0, ours: bool = True) -> Server:
    process = Started() if ours else None
    return Server(("a", 0), Flushing(answers), TARGET, process, Path("x.log"), (), served)


def planned(policy: Any) -> PlannedRun:
    return replace(run(), cache=policy)


def prepare(policy: str, on: Server, reply: Reply | None = ANSWERED, *, caches: bool | None = True) -> tuple[dict[str, Any], Heard]:
    heard = Heard(reply)
    means = Means(VirtualClock(), lambda _line: None, heard, lambda _s: None)
    return prepare_cache(planned(policy), on, schedule(), {}, means, caches=caches), heard


@pytest.mark.parametrize(
    ("on", "caches", "emptied"),
    [
        (server(True), True, "flush"),
        (server(True, served=3), None, "flush"),
        (server(False, False, True, served=1), True, "flush"),
        (server(None), True, "start"),
        (server(None, served=2, ours=False), True, "attached"),
        (server(served=2), False, "off"),
    ],
)
def test_an_empty_cache_comes_of_a_flush_a_start_or_none_at_all(on: Server, caches: bool | None, emptied: str) -> None:
    before = on.served
    told, heard = prepare("cold", on, caches=caches)
    process = None if on.process is None else 7
    woken = {"woken": 2} if on.process and before == 0 else {}  # a server just started
    assert told == {"policy": "cold", "served_before": before, "process": process, "emptied": emptied} | woken
    assert on.served == before + 1
    assert len(heard.bodies) == len(woken) * 2


@pytest.mark.parametrize(("on", "code"), [(server(*[False] * FLUSH_TRIES), "flush_refused"), (server(None, served=1), "cache_not_emptied")])
@pytest.mark.parametrize("policy", ["cold", "warm"])
def test_a_cache_that_stays_full_stops_the_run_with_an_instruction(on: Server, code: str, policy: str) -> None:
    on = replace(on, runtime=Flushing([False] * FLUSH_TRIES if code == "flush_refused" else [None]))
    with pytest.raises(HostError) as caught:
        prepare(policy, on)
    (problem,) = caught.value.problems
    assert problem.code == code
    assert problem.what.startswith(f"workload.cache={policy}: ")
    assert "as_trace" in problem.remedy
    assert caught.value.exit_code == 3


def test_as_trace_touches_nothing() -> None:
    on = server(served=4)
    told, heard = prepare("as_trace", on)
    assert told == {"policy": "as_trace", "served_before": 4, "process": 7, "emptied": "kept"}
    assert heard.bodies == []


@pytest.mark.parametrize(("replicate", "served", "told"), [(0, 0, False), (1, 0, True), (1, 1, False), (2, 0, False), (3, 0, True)])
def test_a_replicate_that_resumes_without_the_cache_of_those_before_it_says_so(replicate: int, served: int, *, told: bool) -> None:
    lines: list[str] = []
    on, means = server(served=served), Means(VirtualClock(), lines.append, Heard(ANSWERED), lambda _s: None)
    one = replace(planned("as_trace"), replicate=replicate, replication=Replication(count=4, server_starts=2))
    prepare_cache(one, on, schedule(), {}, means, caches=True)
    assert [("their cache with it" in line) for line in lines] == [True] * told


def test_warm_sends_every_prompt_once_for_one_token_after_emptying() -> None:
    told, heard = prepare("warm", server(True, served=1))
    plan = schedule()
    assert told["emptied"] == "flush"
    assert told["warm_pass"] == {"requests": 3, "completed": 3, "input_tokens": int(plan.input_tokens.sum()), "duration_s": 0.0}
    assert [body["prompt"] for body in heard.bodies] == [plan.prompts.ids(i).tolist() for i in range(3)]
    assert {body["max_tokens"] for body in heard.bodies} == {1}


@pytest.mark.parametrize(
    ("reply", "said"),
    [(None, "no answer"), (Reply(503, b""), "HTTP 503"), (Reply(200, FAILED), "no room"), (Reply(200, WHOLE[:-14]), "a cut answer")],
)
def test_a_prompt_without_a_whole_answer_stops_the_run(reply: Reply | None, said: str) -> None:
    with pytest.raises(HostError, match="warm_pass_failed") as caught:
        prepare("warm", server(True, served=1), reply)
    assert said in str(caught.value)
    told, _ = prepare("cold", server(True), reply)
    assert told["woken"] == 0  # what it declines at first it declines in the run, where that is counted


def test_a_server_just_started_gets_one_short_prompt_twice_in_every_policy() -> None:
    for policy in ("cold", "warm", "as_trace"):
        _, heard = prepare(policy, server(True))
        assert [body["prompt"] for body in heard.bodies[:2]] == [list(range(1, 9))] * 2
        assert {body["max_tokens"] for body in heard.bodies} == {1}


def test_who_is_restarted_is_who_cannot_flush_and_is_ours() -> None:
    assert {name for name in ("vllm", "truth") if get_runtime(name).flush("http://127.0.0.1:1") is None} == RESTARTED.keys()
    assert get_runtime("endpoint").flush("http://127.0.0.1:1") is None
    assert get_runtime("endpoint").managed is False
