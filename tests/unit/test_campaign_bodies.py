"""Bodies: what is sent, byte by byte, whichever process encodes which part first."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.campaign.bodies import bodies_digest, encode_bodies
from harness.errors import UsageError
from harness.manifest import PlannedRun, expand, load_manifest
from harness.record.spec import Slo
from harness.runtimes.contract import Target
from tests.unit.test_workloads_digest import schedule
from tests.unit.test_workloads_prompts import make
from workloads.schedule import Labels

MS = 1_000_000

ROOT = Path(__file__).parents[2]
TARGET = Target("http://127.0.0.1:1", "tiny", "bytes", 256, 512)


@cache
def planned() -> PlannedRun:
    return expand(load_manifest(ROOT / "manifests" / "quickstart.yaml")).runs[0]


def run(**changes: Any) -> PlannedRun:
    """The first run of the quickstart with another interface or other prompts."""
    workload = planned().workload
    prompts = workload.prompts.model_copy(update={"source": changes.pop("source", "random-ids")})
    return replace(planned(), workload=workload.model_copy(update={"prompts": prompts, **changes}))


def sent(plan: Any, run_: PlannedRun, target: Target = TARGET) -> list[dict[str, Any]]:
    return [json.loads(body) for body in encode_bodies(plan, run_, target).bodies]


def test_ids_priorities_and_maxima_are_sent() -> None:
    plan = schedule()
    bodies = sent(plan, run())
    assert [body["prompt"] for body in bodies] == [plan.prompts.ids(i).tolist() for i in range(3)]
    assert [body["priority"] for body in bodies] == [1, 2, 3]
    assert {body["max_tokens"] for body in bodies} == {7}
    assert len({body["seed"] for body in bodies}) == 3
    assert "priority" not in sent(schedule(priority=None), run())[0]
    assert "max_tokens" not in sent(schedule(max_tokens=np.full(3, -1)), run())[0]


@pytest.mark.parametrize("source", ["text", "dataset"])
def test_texts_are_sent_as_text(source: str) -> None:
    plan = schedule(prompts=make([4, 5, 6], source="text"))
    assert [body["prompt"] for body in sent(plan, run(source=source))] == [plan.prompts.text(i) for i in range(3)]
    chat = sent(plan, run(source=source, api="chat"))
    assert [body["messages"][0]["content"] for body in chat] == [plan.prompts.text(i) for i in range(3)]


def test_random_ids_for_a_server_that_takes_none_are_refused() -> None:
    with pytest.raises(UsageError, match="prompts_need_text"):
        encode_bodies(schedule(), run(), replace(TARGET, token_ids=False))


def test_the_digest_is_of_bodies_in_order_with_their_lengths() -> None:
    made = encode_bodies(schedule(), run(), TARGET)
    assert made.digest == bodies_digest(made.bodies)
    assert len({bodies_digest(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"c", b"ab"], [b"abc"], [b"abc", b""])}) == 5


def test_encoding_one_by_one_in_any_order_gives_the_same_bytes() -> None:
    for source in ("random-ids", "text"):
        plan = schedule(prompts=make([4, 5, 6], source=source))
        alone = {}
        for i in (2, 0, 1):
            fresh = pickle.loads(pickle.dumps(plan))  # noqa: S301 - our own bytes
            alone[i] = encode_bodies(fresh, run(source=source), TARGET).bodies[i]
        assert encode_bodies(plan, run(source=source), TARGET).bodies == [alone[i] for i in range(3)]


def test_limits_of_the_class_are_sent_to_a_scheduler_that_looks_and_to_no_other() -> None:
    plan = replace(schedule(), request_class=Labels(("fast",), np.array([-1, 0, -1], np.int32)))
    limited = replace(run(), slo=Slo(ttft_ns=800 * MS), slo_classes={"fast": Slo(ttft_ns=50 * MS, tbt_ns=2_500_000)})
    told = sent(plan, limited, replace(TARGET, reads_limits=True))
    assert [body["slo"] for body in told] == [{"ttft_ms": 800}, {"ttft_ms": 50, "tbt_ms": 2.5}, {"ttft_ms": 800}]
    assert not any("slo" in body for body in sent(plan, limited))


@pytest.mark.parametrize("source", ["random-ids", "text"])
def test_an_id_outside_the_vocabulary_is_never_encoded(source: str) -> None:
    plan = schedule(prompts=make([4, 5, 6], source=source))
    worst = max(int(plan.prompts.ids(i).max()) for i in range(3))
    assert len(sent(plan, run(source=source), replace(TARGET, vocab_size=worst + 1))) == 3
    assert len(sent(plan, run(source=source), replace(TARGET, vocab_size=0))) == 3  # a server that does not say
    with pytest.raises(UsageError, match=f"token id {worst} is not in 0..{worst - 1}") as caught:
        encode_bodies(plan, run(source=source), replace(TARGET, vocab_size=worst))
    assert caught.value.problems[0].code == "id_out_of_vocabulary"
