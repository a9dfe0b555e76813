"""The fairness section and arms without some clients: what may be written, what is refused, and what is frozen of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from harness.manifest import ManifestError, expand, freeze, parse_manifest
from harness.manifest.load import LoadedManifest, resolved_form
from harness.record.fairness import Fairness, Premises, VtcGuarantee
from harness.record.spec import RunSpec

S, MS = 10**9, 10**6

BASE: dict[str, Any] = {
    "trigpoint": 1,
    "question": "Who waits for whom?",
    "pins": {"model": {"id": "tiny", "dtype": "float32"}},
    "arms": {
        "a": {"runtime": "reference", "args": {"policy": "orca-shaped"}},
        "b": {"runtime": "reference", "args": {"policy": "vtc-shaped"}},
    },
    "workload": {
        "lengths": {"input": {"kind": "constant", "value": 8}, "output": {"kind": "constant", "value": 4}},
        "arrivals": {"process": "poisson"},
        "output-length": "forced",
        "tenants": {"noisy": {"share": 0.9}, "quiet": {"share": 0.1}},
    },
    "slo": {"ttft": "1s"},
    "window": {"warm-up": "1s", "measured": "20s", "drain": "1s"},
    "load": {"rate": ["5/s"]},
    "replicates": {"count": 2, "vary": "seed", "seed": 1},
}


def loaded(**parts: Any) -> LoadedManifest:
    return parse_manifest(yaml.safe_dump(BASE | parts), "neighbours.yaml")


def specs(**parts: Any) -> dict[str, RunSpec]:
    """The frozen spec of the first replicate of each arm."""
    campaign = expand(loaded(**parts))
    made = (
        freeze(
            run, campaign, attempt=1, trace=None, schedule_digest="e" * 64, transforms=(), tokenizer_digest="b" * 64,
            evidence_class="synthetic", certificate=None, source_digest="d" * 64, version="0",
        )
        for run in campaign.runs if run.replicate == 0
    )  # fmt: skip
    return {spec.arm.name: spec for spec in made}


def refused(**parts: Any) -> list[tuple[str, str]]:
    """Code and key of every problem."""
    with pytest.raises(ManifestError) as caught:
        loaded(**parts)
    return [(p.code, p.what.partition(":")[0].partition("=")[0]) for p in caught.value.problems]


def test_a_manifest_without_the_section_freezes_nothing_and_keeps_its_digest() -> None:
    assert {spec.fairness for spec in specs().values()} == {None}
    form = resolved_form(loaded().manifest)
    assert "fairness" not in form
    assert all("without-clients" not in arm for arm in form["arms"].values())


def test_what_is_left_out_of_the_section_has_its_default() -> None:
    assert specs(fairness={})["a"].fairness == Fairness(window_ns=2 * S, horizon_ns=20 * S)


def test_every_key_is_frozen_and_a_guarantee_only_for_the_arms_it_is_claimed_for() -> None:
    premises = {"both-backlogged": "yes", "lift-and-charges-kept": "yes", "no-preemption": "no"}
    guarantee = {"theorem": "vtc", "arms": ["b"], "longest-input": 8, "batch-tokens": 96, "premises": premises}
    own = {
        "identity": "client", "eligible": "waiting", "publication": "requests", "input-weight": 0.5, "output-weight": 4.0,
        "gap-window": "5s", "horizon": "10s", "aging-quantum": "100ms", "guarantee": guarantee,
    }  # fmt: skip
    found = specs(fairness=own)
    without = found["a"].fairness
    assert without == Fairness(
        input_weight=0.5, output_weight=4.0, publication="requests", eligible="waiting", window_ns=5 * S, horizon_ns=10 * S,
        aging_quantum_ns=100 * MS,
    )  # fmt: skip
    held = Premises(both_backlogged=True, lift_and_charges_kept=True, no_preemption=False)
    assert found["b"].fairness == without.model_copy(update={"guarantee": VtcGuarantee(longest_input=8, batch_tokens=96, premises=held)})
    assert loaded(fairness=own).digest != loaded(fairness=own | {"gap-window": "4s"}).digest


@pytest.mark.parametrize(
    ("section", "codes"),
    [
        ({"input-weight": 0.0, "output-weight": 0.0}, [("bad_fairness", "fairness")]),
        ({"gap-window": "21s", "horizon": "21s"}, [("bad_fairness", "fairness.gap-window"), ("bad_fairness", "fairness.horizon")]),
        ({"gap-window": "50ms"}, [("bad_fairness", "fairness.gap-window")]),
        ({"identity": "tenant"}, [("bad_choice", "fairness.identity")]),
        ({"output-weight": -1.0}, [("bad_value", "fairness.output-weight")]),
        (
            {"guarantee": {"theorem": "vtc", "longest-input": 8, "batch-tokens": 8, "arms": ["c"]}},
            [("unknown_arm", "fairness.guarantee.arms")],
        ),
        (
            {"identity": "request_class", "guarantee": {"theorem": "vtc", "longest-input": 8, "batch-tokens": 8}},
            [("bad_fairness", "fairness.guarantee")],
        ),
        (
            {"guarantee": {"theorem": "vtc", "longest-input": 8, "batch-tokens": 8, "premises": {"both-backlogged": "yes"}}},
            [("bad_fairness", "fairness.guarantee.premises.both-backlogged")],
        ),
    ],
)
def test_what_the_section_may_not_say(section: dict[str, Any], codes: list[tuple[str, str]]) -> None:
    assert refused(fairness=section) == codes


# Arms without some clients


def control(name: str = "a", **changes: Any) -> dict[str, Any]:
    return BASE["arms"] | {f"{name}-alone": BASE["arms"][name] | {"without-clients": ["noisy"]} | changes}


def test_a_control_declares_its_load_and_nothing_else() -> None:
    found = specs(arms=control())
    assert found["a-alone"].workload.without_clients == ("noisy",)
    assert found["a"].workload.without_clients == ()
    assert found["a-alone"].arm.declared == ("workload.digests", "workload.transforms")
    assert found["a"].arm.declared == ()
    assert found["b"].arm.declared == ("runtime.args",)


def test_the_others_of_the_campaign_send_what_they_send_without_a_control() -> None:
    with_, alone = (expand(loaded(**p)).runs for p in ({"arms": control()}, {}))
    assert {r.cell: r.workload for r in alone}.items() <= {r.cell: r.workload for r in with_}.items()
    one = next(r for r in with_ if r.arm.name == "a-alone").workload
    assert (
        one.model_copy(update={"without_clients": ()})
        == next(r for r in with_ if r.arm.name == "a" and r.workload.seed == one.seed).workload
    )


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"arms": control(**{"without-clients": ["loud"]})}, "unknown_client"),
        ({"arms": control(**{"without-clients": ["noisy", "quiet"]})}, "bad_clients"),
        ({"arms": control(), "workload": {k: v for k, v in BASE["workload"].items() if k != "tenants"}}, "unknown_client"),
        ({"arms": {k: v for k, v in control().items() if k != "b"}, "rank": {"metric": "goodput", "margin": 0.02}}, "bad_rank"),
    ],
)
def test_what_a_control_may_not_leave_out(parts: dict[str, Any], code: str) -> None:
    assert [c for c, _ in refused(**parts)] == [code]


def test_metrics_that_count_valid_requests_need_an_slo() -> None:
    without = {k: v for k, v in BASE.items() if k != "slo"}
    for metric in ("jain_attainment", "attainment_least"):
        with pytest.raises(ManifestError, match="is counted against an SLO"):
            parse_manifest(yaml.safe_dump(without | {"rank": {"metric": metric, "margin": 0.02}}), "x.yaml")
    parse_manifest(yaml.safe_dump(without | {"rank": {"metric": "service_gap", "margin": 0.02}}), "x.yaml")
