"""Sealing the frame of a run: every registered coordinate from what was declared and what was found out (DESIGN 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.campaign.attached import BY_ROLE, STATED, unseen, vouched
from harness.record.coordinates import RUN_COORDINATES, Coordinate, Known, NotApplicable, RunCoordinates, Unknown
from harness.record.facts import Fact, Facts
from harness.record.spec import RunSpec, WorkloadSpec


def build_coordinates(spec: RunSpec, facts: Facts) -> RunCoordinates:
    """Return all run coordinates of one attempt.

    What the plan decides is *declared*; what was read from server or host is *observed*; for an attached endpoint the user's attestations
    fill what could not be observed, marked *attested*. The rest is unknown with the reason, never left out, and so is what was another
    thing after the load than before it.
    """
    settled = {name: _settled(fact, facts.after.get(name)) for name, fact in facts.before.items()}
    found = _declared(spec) | _observed(settled) | unseen(spec, settled)
    seen = {name for name, fact in (OBSERVED | STATED).items() if facts.before.get(fact, Fact()).value is not None}
    found |= vouched(found, spec.arm, seen)
    return RunCoordinates(coordinates={name: found.get(name, Unknown(reason="not recorded")) for name in RUN_COORDINATES})


def _say(value: Any) -> Known:
    return Known(value=value, source="declared")


def _declared(spec: RunSpec) -> dict[str, Coordinate]:
    workload, window, pins = spec.workload, spec.window, spec.pins
    trace = workload.trace
    no_trace = NotApplicable(reason="synthetic workload")
    return {
        "parallelism.tensor": _say(pins.parallelism.tensor),
        "parallelism.pipeline": _say(pins.parallelism.pipeline),
        "parallelism.data": _say(pins.parallelism.data),
        "parallelism.expert": _say(pins.parallelism.expert),
        **_placement(spec),
        "runtime.name": _say(spec.arm.runtime),
        "runtime.args": _say(dict(spec.arm.args)),
        "runtime.env": _say(dict(spec.arm.env)),
        "workload.trace": _say({"name": trace.name, "sha256": trace.sha256}) if trace else no_trace,
        "workload.window": _say(list(workload.window_s)) if workload.window_s else no_trace,
        # Rows kept depend on the window, which is a coordinate of its own; the chain is compared by its parameters.
        "workload.transforms": _say(_chain(workload)),
        "workload.arrivals": _say(dict(workload.arrivals)),
        "workload.loop": _say(_loop(workload)),
        "workload.prompts": _say(dict(workload.prompts)),
        "workload.api": _say(workload.api),
        "workload.output_length": _say({"control": workload.output_length, "max_tokens": workload.max_tokens}),
        "workload.cache": _say(workload.cache),
        "workload.digests": _say(workload.digest),
        "workload.estimand": _say(spec.estimand),
        "evidence.class": _say(spec.evidence_class),
        "protocol.measurement": _say(spec.measurement_protocol),
        "window.warm_up": _say(window.warm_up_ns / 1e9),
        "window.measured": _say(window.measured_ns / 1e9),
        "window.drain": _say(window.drain_ns / 1e9),
        "client.concurrency": _say(_concurrency(spec)),
        "client.placement": _say({role: list(cpus) for role, cpus in spec.placement.items()}),
    }


def _placement(spec: RunSpec) -> dict[str, Coordinate]:
    """One server, or the role that it was started in; ``unseen`` has the last word about somebody else's address."""
    replicas, roles = spec.pins.parallelism.replicas, spec.pins.parallelism.disaggregation
    if roles is not None:
        apart = {"parallelism.disaggregation": _say(roles.model_dump())}
        return {"parallelism.replicas": NotApplicable(reason=BY_ROLE), **apart}
    return {"parallelism.replicas": _say(replicas or 1), "parallelism.disaggregation": _say("none")}


def _loop(workload: WorkloadSpec) -> str:
    users = "" if workload.users is None else f", {workload.users} users"
    pause = "" if workload.failed_pause_ns is None else f", {workload.failed_pause_ns / 1e9:g} s after a failure"
    return f"{workload.loop}{users}{pause}"


def _concurrency(spec: RunSpec) -> int | str:
    """The cap, and what else ends or spreads requests: a time limit decides which of them fail, workers share cores and connections."""
    cap = "unlimited" if spec.concurrency_cap is None else spec.concurrency_cap
    limit = "" if spec.request_timeout_ns is None else f", {spec.request_timeout_ns / 1e9:g} s a request"
    cluster = " on a Ray cluster" if spec.fleet == "ray" else ""
    workers = f", {spec.workers} worker{'s' * (spec.workers > 1)}{cluster}" if spec.workers > 1 or cluster else ""
    return f"{cap}{limit}{workers}" if limit or workers else cap


def _chain(workload: WorkloadSpec) -> list[dict[str, Any]]:
    """The chain by its parameters, with the clients that an arm leaves out as its last step, whether or not there is a log of it."""
    steps = [_parameters(t) for t in workload.transforms if t.get("name") != "without_clients"]
    return [*steps, {"name": "without_clients", "clients": list(workload.without_clients)}] if workload.without_clients else steps


def _parameters(transform: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what the step did and the window transform's bounds: both vary with the replicate by plan."""
    drop = {"rows_before", "rows_after", "effect"} | ({"start_s", "stop_s"} if transform.get("name") == "window" else set())
    return {k: v for k, v in transform.items() if k not in drop}


OBSERVED: dict[str, str] = {
    "model.id": "model.id",
    "model.revision": "model.revision",
    "model.digest": "model.digest",
    "tokenizer.digest": "tokenizer.digest",
    "model.dtype": "server.dtype",
    "model.quantization": "server.quantization",
    "hardware.cpu": "host.cpu_model",
    "hardware.cores": "host.cores",
    "hardware.memory": "host.memory_gib",
    "hardware.host": "host.identity",
    "hardware.gpu": "host.gpu",
    "hardware.gpu_count": "host.gpu_count",
    "hardware.driver": "host.driver",
    "hardware.gpu_settings": "host.gpu_settings",
    "runtime.version": "server.version",
    "runtime.launch": "server.launch",
    "runtime.packages": "server.packages",
    "runtime.effective_config": "server.effective_config",
    "runtime.kv_capacity_tokens": "server.kv_capacity_tokens",
    "client.host": "client.identity",
    "client.stamps": "client.stamps",
}
"""Coordinate name -> fact it is read from."""


def _observed(facts: Mapping[str, Fact]) -> dict[str, Coordinate]:
    return {name: _from_fact(facts.get(fact), fact) for name, fact in OBSERVED.items()}


def _settled(before: Fact, after: Fact | None) -> Fact:
    """A server that was exchanged or changed under the load is not the one that was found."""
    if after is None or None in (before.value, after.value) or before.value == after.value:
        return before
    return Fact(reason=f"{before.value!r} before the load and {after.value!r} after it", source=before.source)


def _from_fact(fact: Fact | None, name: str) -> Coordinate:
    if fact is None:
        return Unknown(reason=f"fact {name} was not collected")
    if fact.value is None:
        return Unknown(reason=fact.reason or f"fact {name} has no value")
    return Known(value=fact.value, source="observed")
