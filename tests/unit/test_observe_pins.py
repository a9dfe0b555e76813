"""A pin is matched, mismatched or unknown; silence never matches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.observe.pins import check_attested, check_pins, equal, prefix, substring
from harness.record.facts import Fact
from harness.record.spec import HardwarePin, ModelPin, ParallelismPin, Pins

FACTS = {
    "model.id": Fact(value="m"), "model.digest": Fact(value="abcdef0123456789"), "model.revision": Fact(reason="local"),
    "server.dtype": Fact(value="bfloat16"), "server.quantization": Fact(value="none"), "host.gpu": Fact(value="NVIDIA H200"),
    "host.gpu_count": Fact(value=1), "host.driver": Fact(value="580.65.06"),
    "host.cpu_model": Fact(value="AMD EPYC 9V74 80-Core Processor"), "host.cores": Fact(value=2), "server.tensor_parallel": Fact(value=1),
}  # fmt: skip


def results(pins: Pins, **changes: Fact | None) -> dict[str, str]:
    facts = {k: v for k, v in (FACTS | {k.replace("__", "."): v for k, v in changes.items()}).items() if v is not None}
    return {p.pin: p.result for p in check_pins(pins, facts)}


def model(**changes: Any) -> ModelPin:
    return ModelPin(**{"id": "m", "dtype": "bfloat16", **changes})


def test_everything_pinned_and_true_is_matched_and_the_rest_absent() -> None:
    pins = Pins(
        model=model(revision="abcdef0"),
        hardware=HardwarePin(gpu="nvidia h200", count=1, driver="580", cpu="epyc 9v74", cores=2),
    )
    found = results(pins)
    assert set(found.values()) == {"matched"}
    assert list(found) == [
        "model.id", "model.revision", "model.dtype", "model.quantization", "hardware.gpu", "hardware.count", "hardware.driver",
        "hardware.cpu", "hardware.cores", "parallelism.tensor",
    ]  # fmt: skip
    assert list(results(Pins(model=model()))) == ["model.id", "model.dtype", "model.quantization", "parallelism.tensor"]


def test_each_kind_of_mismatch_names_what_was_seen() -> None:
    pins = Pins(model=model(dtype="float32", revision="1234567"), hardware=HardwarePin(gpu="none", count=0, driver="57", cores=4))
    found = check_pins(pins, FACTS)
    wrong = {p.pin: p for p in found if p.result == "mismatched"}
    assert set(wrong) == {"model.revision", "model.dtype", "hardware.gpu", "hardware.count", "hardware.driver", "hardware.cores"}
    assert wrong["model.dtype"].observed == "bfloat16"
    assert "bfloat16" in wrong["model.dtype"].reason


def test_silence_is_unknown_with_the_fact_s_own_reason() -> None:
    found = check_pins(Pins(model=model(), hardware=HardwarePin(driver="580")), FACTS | {"host.driver": Fact(reason="no driver")})
    (driver,) = [p for p in found if p.pin == "hardware.driver"]
    assert (driver.result, driver.reason, driver.observed) == ("unknown", "no driver", None)
    assert results(Pins(model=model()), server__dtype=None)["model.dtype"] == "unknown"


def test_parallelism_of_one_is_held_only_where_a_fact_speaks_and_above_one_always() -> None:
    pins = Pins(model=model(), parallelism=ParallelismPin(pipeline=2))
    found = results(pins)
    assert found["parallelism.pipeline"] == "unknown"
    assert "parallelism.data" not in found
    assert results(Pins(model=model()), server__tensor_parallel=Fact(value=2))["parallelism.tensor"] == "mismatched"
    assert results(Pins(model=model()), server__tensor_parallel=Fact(reason="?"))["parallelism.tensor"] == "unknown"


def test_a_revision_is_held_before_the_digest() -> None:
    pins = Pins(model=model(revision="0e9e39f"))
    assert results(pins, model__revision=Fact(value="0e9e39f249a16976918f6564b8830bc894c89659"))["model.revision"] == "matched"
    assert results(pins, model__revision=Fact(value="abcdef0123456789"))["model.revision"] == "mismatched"
    assert results(Pins(model=model(revision="abc")))["model.revision"] == "mismatched"


@pytest.mark.parametrize(
    ("want", "have", "held"), [("580", "580.65", True), ("580", "5801", False), ("580.", "580.65", True), ("8", "580", False)]
)
def test_driver_prefix_ends_at_a_number(want: str, have: str, *, held: bool) -> None:
    assert prefix(want, have) is held


def test_a_count_of_one_is_not_true() -> None:
    assert not equal(1, True)
    assert not equal(True, 1)


@given(st.text(min_size=1), st.text())
def test_rules_agree_with_plain_equality(want: str, rest: str) -> None:
    assert equal(want, want)
    assert prefix(want, want)
    assert substring(want, rest + want)


UNSEEN = {name: Fact(reason="attached") for name in FACTS} | {"model.id": Fact(value="m")}
ENDPOINT = Pins(model=model(revision="abcdef0"), hardware=HardwarePin(gpu="none", count=0))


def attested(said: dict[str, Any], facts: dict[str, Fact] = UNSEEN) -> dict[str, tuple[str, str | None]]:
    return {p.pin: (p.result, p.source) for p in check_pins(ENDPOINT, facts, said)}


def test_what_is_attested_as_pinned_matches_where_nothing_was_seen() -> None:
    said = {"model.revision": "abcdef0123", "model.dtype": "BFloat16", "model.quantization": "none", "hardware.gpu_count": 0}
    assert attested(said | {"parallelism.tensor": 1}) == {
        "model.id": ("matched", "observed"),
        "model.revision": ("matched", "attested"),
        "model.dtype": ("matched", "attested"),
        "model.quantization": ("matched", "attested"),
        "hardware.gpu": ("unknown", None),
        "hardware.count": ("matched", "attested"),
        "parallelism.tensor": ("matched", "attested"),
    }
    assert attested(said | {"model.dtype": "float32"})["model.dtype"] == ("mismatched", "attested")


@given(st.sampled_from(["bfloat16", "float32", "float16"]), st.sampled_from(["bfloat16", "float32"]))
def test_an_attestation_that_contradicts_what_was_seen_never_matches(said: str, seen: str) -> None:
    (found,) = [
        p
        for p in check_pins(Pins(model=model()), FACTS | {"server.dtype": Fact(value=seen)}, {"model.dtype": said})
        if p.pin == "model.dtype"
    ]
    assert (found.result == "matched") == (said == seen == "bfloat16")
    assert (found.observed, found.source) == (seen, "observed")
    assert ("is attested" in found.reason) == (said != seen)


def test_what_nobody_pinned_is_held_too_where_it_was_seen() -> None:
    names = {"runtime.version": "server.version", "model.dtype": "server.dtype", "runtime.packages": "server.packages"}
    facts = {"server.version": Fact(value="0.32.0"), "server.dtype": Fact(value="bfloat16"), "server.packages": Fact(reason="?")}
    said = {"runtime.version": "0.31.0", "model.dtype": "float32", "runtime.packages": "x", "max_model_len": 8}
    pins = check_pins(Pins(model=model()), facts, said)
    (found,) = check_attested(said, facts, names, pins)  # the dtype is a pin, packages nobody saw
    assert (found.pin, found.result, found.expected, found.observed) == ("runtime.version", "mismatched", "0.31.0", "0.32.0")
    (same,) = check_attested({"runtime.version": "0.32.0"}, facts, names, pins)
    assert (same.result, same.source) == ("matched", "observed")
