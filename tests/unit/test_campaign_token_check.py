"""The server's own count of some texts, before any load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.campaign.token_check import LOOKED_AT, check_tokens
from harness.errors import HostError
from harness.runtimes.asking import Reply
from harness.runtimes.contract import Target
from workloads import ByteTokenizer, Schedule, WorkloadPlan, build_schedule

TARGET = Target("http://127.0.0.1:1", "tiny", "bytes", 256, 4096)


def schedule(api: str = "completions", source: str = "text") -> Schedule:
    plan = WorkloadPlan.model_validate(
        {
            "trace": None,
            "lengths": {"input": {"kind": "uniform", "low": 8, "high": 90}, "output": {"kind": "constant", "value": 2}},
            "arrivals": {"process": "constant", "rate": 10},
            "prompts": {"source": source},
            "output": {"control": "forced"},
            "api": api,
            "horizon_s": 2,
            "seed": 1,
        }
    )
    overhead = 3 if api == "chat" else 0
    return build_schedule(plan, tokens=ByteTokenizer(), search_path=[Path()], max_model_len=4096, chat_overhead=overhead)


def run(api: str = "completions") -> Any:
    return SimpleNamespace(cell="a@x1", workload=SimpleNamespace(api=api))


class Server:
    """Counts bytes as the byte tokenizer does, plus what a template or a wrong tokenizer adds."""

    def __init__(self, extra: int = 0, status: int = 200) -> None:
        self.extra, self.status, self.posts = extra, status, list[dict[str, Any]]()

    def __call__(self, _url: str, path: str, *, post: dict[str, Any], **_: Any) -> Reply:
        assert path == "/tokenize"
        self.posts.append(post)
        text = post["messages"][0]["content"] if "messages" in post else post["prompt"]
        return Reply(self.status, json.dumps({"count": len(text.encode()) + self.extra}).encode())


@pytest.mark.parametrize(("api", "template"), [("completions", 0), ("chat", 3)])
def test_a_server_that_counts_alike_is_left_to_work(api: str, template: int) -> None:
    server = Server(template)
    assert check_tokens(schedule(api), run(api), TARGET, {}, server) == {"asked": LOOKED_AT, "agreed": LOOKED_AT}
    lengths = sorted(len(json.dumps(p)) for p in server.posts)
    assert lengths[0] < lengths[-1]


@pytest.mark.parametrize(("api", "template"), [("completions", 1), ("chat", 4)])
def test_a_server_that_counts_otherwise_gets_no_load(api: str, template: int) -> None:
    with pytest.raises(HostError) as caught:
        check_tokens(schedule(api), run(api), TARGET, {}, Server(template))
    assert {p.code for p in caught.value.problems} == {"tokens_differ"}
    assert len(caught.value.problems) == LOOKED_AT
    assert "the server counts" in caught.value.problems[0].what


def test_one_silent_answer_does_not_hide_that_the_others_differ() -> None:
    server = Server(1)

    def once_silent(*args: Any, **told: Any) -> Reply | None:
        reply = server(*args, **told)
        return None if len(server.posts) == 1 else reply

    with pytest.raises(HostError, match="tokens_differ") as caught:
        check_tokens(schedule(), run(), TARGET, {}, once_silent)
    assert len(caught.value.problems) == LOOKED_AT - 1


def test_one_silent_answer_is_no_server_without_the_route() -> None:
    server = Server()

    def once_silent(*args: Any, **told: Any) -> Reply | None:
        reply = server(*args, **told)
        return None if len(server.posts) == 1 else reply

    assert check_tokens(schedule(), run(), TARGET, {}, once_silent) == {"asked": LOOKED_AT, "agreed": LOOKED_AT - 1}


def test_token_ids_need_no_count_and_a_server_without_the_route_is_left_to_its_usage() -> None:
    assert check_tokens(schedule(source="random-ids"), run(), TARGET, {}, Server(9))["asked"] == 0
    assert check_tokens(schedule(), run(), replace(TARGET), {}, Server(status=404))["reason"].startswith("the server has no")
