"""A planned run plus what only the machine knows, frozen into the spec that analysis reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.manifest.expand import Campaign, PlannedRun
from harness.record import spec


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
    prefix_sharing_planned: bool = False,
) -> spec.RunSpec:
    """Return the spec of one attempt.

    ``attempt`` counts from 1. ``trace`` is the trace as found (null: synthetic), ``transforms`` the chain as carried out,
    ``schedule_digest``/``tokenizer_digest``/``source_digest`` hex sha256, ``certificate`` the calibration that the run cites, if any.
    """
    workload = spec.WorkloadSpec(
        trace=trace,
        window_s=run.window_s,
        transforms=tuple(dict(t) for t in transforms),
        arrivals=run.workload.arrivals.model_dump(),
        loop=run.loop,
        prompts=run.workload.prompts.model_dump(),
        api=run.workload.api,
        output_length=run.workload.output.control,
        max_tokens=run.workload.output.max_tokens,
        cache=run.cache,
        prefix_sharing_planned=prefix_sharing_planned,
        digest=schedule_digest,
        tokenizer_digest=tokenizer_digest,
        seed=run.workload.seed,
    )
    return spec.RunSpec(
        campaign=campaign.name,
        campaign_digest=campaign.digest,
        question=campaign.question,
        cell=run.cell,
        arm=run.arm,
        load=run.load,
        replicate=run.replicate,
        server_start=run.server_start,
        attempt=attempt,
        estimand=run.estimand,
        evidence_class=evidence_class,
        pins=run.pins,
        workload=workload,
        slo=run.slo,
        window=run.window,
        replication=run.replication,
        rank=run.rank,
        waivers=run.waivers,
        host_profile=run.host_profile,
        concurrency_cap=run.concurrency_cap,
        request_timeout_ns=run.request_timeout_ns,
        placement=run.placement,
        certificate=certificate,
        source_digest=source_digest,
        version=version,
    )
