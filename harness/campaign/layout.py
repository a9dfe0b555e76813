"""What a run sends and under which description it is sealed, whichever way it is made: measured on a server, or simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import HostError, Problem
from harness.manifest import Campaign, PlannedRun, freeze
from harness.record.facts import Fact, Facts
from harness.record.provenance import git_state, source_digest, version
from harness.record.spec import CertificateRef, EvidenceClass, RunSpec, TraceRef
from harness.runtimes.contract import Target
from workloads import Schedule, build_schedule, content_digest, load_tokenizer, load_trace, trace_ref


@dataclass(frozen=True, slots=True)
class Layout:
    """A run's schedule under the served model's tokenizer and limits."""

    run: PlannedRun
    target: Target
    schedule: Schedule
    trace: TraceRef | None
    tokenizer_digest: str


def lay_out(run: PlannedRun, target: Target, search_path: Sequence[Path]) -> Layout:
    """Build the schedule of ``run`` for ``target``; raises what reading a trace and building a schedule raise."""
    tokens = load_tokenizer(target.tokenizer, vocab_limit=target.vocab_size or None)
    schedule = build_schedule(
        run.workload,
        tokens=tokens,
        search_path=search_path,
        max_model_len=target.max_model_len,
        chat_overhead=target.chat_overhead,
        server_adds_bos=target.adds_bos,
    )
    source = run.workload.trace
    trace = TraceRef(**trace_ref(load_trace(source, search_path, run.workload.seed))) if source else None
    return Layout(run, target, schedule, trace, tokens.digest)


def freeze_layout(
    layout: Layout,
    campaign: Campaign,
    *,
    attempt: int,
    evidence_class: EvidenceClass,
    certificate: CertificateRef | None,
    bodies_digest: str | None,
) -> RunSpec:
    """Return the spec of one attempt; ``bodies_digest`` is None where no request was ever written out."""
    return freeze(
        layout.run,
        campaign,
        attempt=attempt,
        trace=layout.trace,
        schedule_digest=content_digest(layout.schedule),
        transforms=layout.schedule.transforms,
        tokenizer_digest=layout.tokenizer_digest,
        evidence_class=evidence_class,
        certificate=certificate,
        source_digest=source_digest(),
        version=version(),
        bodies_digest=bodies_digest,
        chat_overhead=layout.target.chat_overhead,
    )


def instrument_facts() -> dict[str, Fact]:
    """Which state of this instrument was at work: the source digest in the spec says what ran, the commit where to find it."""
    state = git_state()
    if state is None:
        return {name: Fact(reason="not a git checkout, or no git", source="git") for name in ("instrument.commit", "instrument.dirty")}
    return {
        "instrument.commit": Fact(value=state.commit, source="git"),
        "instrument.dirty": Fact(value=state.dirty, source="git"),
    }


def refuse_mismatch(run: PlannedRun, facts: Facts) -> None:
    """Stop before any load is sent when a pin differs from what was found, unless the manifest chose to run unranked."""
    bad = [p for p in facts.pins if p.result == "mismatched"]
    if bad and run.on_pin_mismatch == "stop":
        raise HostError(
            *(
                Problem(
                    "pins_match",
                    f"{p.pin}={p.expected!r} is pinned or attested, and {p.reason}: its numbers would belong to another system",
                    "start what the manifest pins, or pin (or attest) what you mean to measure",
                    where=run.cell,
                )
                for p in bad
            )
        )


def refuse_version(run: PlannedRun, facts: Facts) -> None:
    """Stop before any load when the server states another version than the arm declares. A silent server leaves it unknown.

    ``0.32.0`` holds for ``0.32.0+cpu``: the local part names a build of that version (PEP 440).
    """
    found = facts.before.get("server.version")
    stated = str(found.value) if found is not None and found.value is not None else None
    if run.arm.version is None or stated is None or run.arm.version in (stated, stated.partition("+")[0]):
        return
    raise HostError.single(
        "version_differs",
        f"arms.{run.arm.name}.version={run.arm.version}: the server says {stated}, so its numbers would be filed under another system",
        f"write version: {stated}, or start the version that is declared",
        where=run.cell,
    )
