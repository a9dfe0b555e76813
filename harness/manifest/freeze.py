"""A planned run plus what only the machine knows, frozen into the spec that analysis reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from harness.manifest.expand import Campaign, PlannedRun
from harness.record import spec
from workloads import failed_pause_ns

_CARRIED = (
    "cell", "arm", "load", "replicate", "server_start", "estimand", "pins", "slo", "slo_classes", "window", "replication", "rank", "probe",
    "fairness", "waivers", "host_profile", "concurrency_cap", "request_timeout_ns", "workers", "fleet", "placement",
)  # fmt: skip
"""What a planned run and a spec call by one name."""


def freeze(
    run: PlannedRun,
    campaign: Campaign,
    *,
    attempt: int,
    trace: spec.TraceRef | None,
    schedule_digest: str,
    transforms: Sequence[Mapping[str, Any]],
    tokenizer_digest: str,
    evidence_class: spec.EvidenceClass,
    certificate: spec.CertificateRef | None,
    source_digest: str,
    version: str,
    bodies_digest: str | None = None,
    chat_overhead: int | None = None,
) -> spec.RunSpec:
    """Return the spec of one attempt.

    ``attempt`` counts from 1. ``trace`` is the trace as found (null: synthetic), ``transforms`` the chain as carried out,
    ``schedule_digest``/``tokenizer_digest``/``source_digest``/``bodies_digest`` hex sha256, ``certificate`` the calibration that the run
    cites, if any, ``chat_overhead`` the tokens that the server's template adds to a prompt.
    """
    workload = _sent(run, tuple(dict(t) for t in transforms))
    found: dict[str, Any] = {
        "trace": trace,
        "digest": schedule_digest,
        "tokenizer_digest": tokenizer_digest,
        "bodies_digest": bodies_digest,
        "chat_overhead": chat_overhead if run.workload.api == "chat" else None,
    }
    carried: dict[str, Any] = {name: getattr(run, name) for name in _CARRIED}
    return spec.RunSpec(
        **carried,
        campaign=campaign.name,
        campaign_digest=campaign.digest,
        question=campaign.question,
        attempt=attempt,
        evidence_class=evidence_class,
        workload=spec.WorkloadSpec(**workload, **found),
        certificate=certificate,
        source_digest=source_digest,
        version=version,
    )


def _sent(run: PlannedRun, transforms: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {
        "window_s": run.window_s,
        "transforms": transforms,
        "arrivals": run.workload.arrivals.model_dump() | ({} if run.workload.ramp is None else {"ramp": run.workload.ramp.model_dump()}),
        "loop": run.loop,
        "users": run.workload.users,
        "failed_pause_ns": failed_pause_ns(run.workload),
        "sessions": _dumped(run.workload.sessions),
        "tenants": {t.name: t.model_dump(exclude={"name"}) | {"weight": run.weights[t.name]} for t in run.workload.tenants},
        "cancellations": _dumped(run.workload.cancellations),
        "without_clients": run.workload.without_clients,
        "prefix_sharing_planned": run.workload.prompts.sharing == "as_trace",
        "prompts": run.workload.prompts.model_dump(),
        "api": run.workload.api,
        "output_length": run.workload.output.control,
        "max_tokens": run.workload.output.max_tokens,
        "cache": run.cache,
        "seed": run.workload.seed,
    }


def _dumped(part: BaseModel | None) -> dict[str, Any] | None:
    return None if part is None else part.model_dump()
