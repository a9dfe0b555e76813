"""One attempt in virtual time, from a frozen spec to the seal: the same files as a measured one, class ``synthetic``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from harness.errors import Problem, UsageError
from harness.record.attempt import Attempt
from harness.record.coordinates import VIRTUAL_TIME, RunCoordinates
from harness.record.facts import Fact, Facts, ServerExit
from harness.record.schema import SAMPLES
from harness.record.segments import SUFFIX, disk_refused
from harness.record.spec import RunSpec
from harness.reference import ENGINE_VERSION
from harness.reference.arguments import cost_model, deployment_problems, parse
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.engine import Core, online_workload
from harness.reference.memory_arguments import budgets_of, declared_rules, rules_of
from harness.reference.owner import NO_RULES, MemoryRules
from harness.reference.registry import make_policy
from harness.reference.tokens import tokenizer_digest
from harness.simulate.offered import declared_limits, offer
from harness.simulate.rows import request_table, sample_table
from harness.simulate.virtual import Door, simulate
from workloads import Schedule


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The engine under test. ``costs`` is the declared cost model; it stands for no hardware."""

    policy: str
    budgets: Budgets
    costs: CostModel
    max_model_len: int
    parameters: Mapping[str, int] = field(default_factory=dict)
    door: Door = field(default_factory=Door)
    rules: MemoryRules = NO_RULES

    @classmethod
    def from_arguments(cls, argv: Sequence[str]) -> EngineSetup:
        """The engine that the reference server would build from the same command line (flags of ``harness.reference.arguments``).

        Raises UsageError as the server's parser does, and ``simulate_prefix_cache``: virtual time has no prompts to find prefixes in.
        """
        args = parse(argv)
        if args.prefix_cache_tokens:
            what = f"prefix-cache-tokens={args.prefix_cache_tokens}: a simulation has lengths and no prompts, so nothing can be found again"
            raise UsageError(Problem("simulate_prefix_cache", what, "set it to 0, or run the arm in real time"))
        return cls(
            args.policy,
            budgets_of(args),
            cost_model(args),
            args.max_model_len,
            args.policy_parameters,
            Door(waiting=args.max_queue, status=args.overload_status),
            rules_of(args),
        )

    def core(self, workload_id: str) -> Core:
        """Build the core. Raises UsageError for an unknown policy or parameter, and ``kv_too_small`` or ``pool_too_small`` when one request
        could never finish.
        """
        if self.budgets.kv_capacity < self.max_model_len:
            what = f"kv_capacity={self.budgets.kv_capacity}: less than max_model_len={self.max_model_len}, one request could never finish"
            raise UsageError(Problem("kv_too_small", what, "raise the capacity or lower max_model_len"))
        policy = make_policy(self.policy, self.parameters)
        problems = deployment_problems(policy, self.budgets, self.max_model_len)
        if problems:
            raise UsageError(*problems)
        return Core(
            online_workload(policy, self.budgets, workload_id=workload_id, clock=VIRTUAL_TIME, rules=self.rules), policy, self.costs
        )

    def effective(self) -> dict[str, Any]:
        """Everything that decides a plan or its price, by name: the effective configuration of the engine."""
        budgets, costs, door = self.budgets, self.costs, self.door
        return {
            "policy": self.policy, "max_num_batched_tokens": budgets.tokens, "max_num_seqs": budgets.sequences,
            "kv_cache_tokens": budgets.kv_capacity, "kv_watermark": budgets.kv_watermark, "max_model_len": self.max_model_len,
            "cost_base": costs.base_ns, "cost_prefill_token": costs.prefill_token_ns, "cost_decode_row": costs.decode_row_ns,
            "cost_context_token": costs.context_token_ns, "cost_transfer_base": costs.transfer_base_ns,
            "cost_transfer_token": costs.transfer_row_ns, "cost_source": costs.source,
            "max_queue": door.waiting, "max_live": door.live, "overload_status": door.status,
            **declared_rules(self.budgets, self.rules),
            **{f"policy_{name}": value for name, value in sorted(make_policy(self.policy, self.parameters).parameters.items())},
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What a campaign decided for one attempt. ``schedule_table`` and ``truth_table``: columns SCHEDULE and TRUTH of ``schedule``."""

    manifest_text: str
    spec: RunSpec
    schedule: Schedule
    schedule_table: pa.Table
    truth_table: pa.Table
    setup: EngineSetup
    facts: Facts
    coordinates: RunCoordinates


def virtual_facts(setup: EngineSetup, *, model: str, dtype: str, model_digest: str) -> dict[str, Fact]:
    """Facts of an engine in virtual time, under the names of a measured run: what has no meaning here says so, the rest is as declared."""
    declared = {
        "server.version": ENGINE_VERSION, "server.dtype": dtype, "server.quantization": "none", "server.packages": ENGINE_VERSION,
        "server.kv_capacity_tokens": setup.budgets.kv_capacity, "server.max_model_len": setup.max_model_len,
        "server.effective_config": setup.effective(), "server.prefix_caching": False, "model.id": model,
        "model.digest": model_digest, "model.revision": model_digest, "tokenizer.digest": tokenizer_digest(),
        "host.gpu": "none", "host.gpu_count": 0,
        "cache.flushed": True,  # every run begins with an engine that has served nothing
    }  # fmt: skip
    declared |= {f"server.{axis}_parallel": 1 for axis in ("tensor", "pipeline", "data", "expert")}
    hosts = ("host.cpu_model", "host.cores", "host.memory_gib", "host.identity", "client.identity", "client.stamps")
    return {name: Fact(value=value, source="simulate") for name, value in (declared | dict.fromkeys(hosts, VIRTUAL_TIME)).items()}


def simulate_run(attempt: Attempt, run: SimulatedRun) -> str:
    """Simulate the run's schedule to the end of its drain, write the attempt and return the seal's root.

    Raises UsageError ``evidence_class`` unless the spec says ``synthetic``, what ``EngineSetup.core`` and ``offer`` raise, and
    ContractError when the policy breaks the contract.
    """
    if run.spec.evidence_class != "synthetic":
        what = f"evidence_class={run.spec.evidence_class}: a simulation measures nothing"
        raise UsageError(Problem("evidence_class", what, "freeze the spec of a simulated run as synthetic"))
    limits = declared_limits(run.schedule, run.spec.slo, run.spec.slo_classes)
    offered = offer(run.schedule, max_model_len=run.setup.max_model_len, limits=limits)
    core = run.setup.core(f"{run.spec.campaign}/{run.spec.cell}")
    owner = run.setup.rules.owner(core.workload)
    done = simulate(core, offered, until_ns=run.spec.window.end_ns, door=run.setup.door, owner=owner)
    attempt.write_manifest(run.manifest_text)
    attempt.write_spec(run.spec)
    attempt.write_schedule(run.schedule_table)
    attempt.write_truth(run.truth_table)
    attempt.write_facts(run.facts.model_copy(update={"after": run.facts.before, "server_exit": ServerExit(survived=True)}))
    attempt.write_coordinates(run.coordinates)
    attempt.server_log.write_text(f"simulated {done.counts.iterations} iterations, {done.counts.intervals} intervals\n", encoding="utf-8")
    attempt.observe("simulated", iterations=done.counts.iterations, intervals=done.counts.intervals)
    _write_tables(attempt, request_table(offered, done), sample_table(done))
    return attempt.seal()


def _write_tables(attempt: Attempt, requests: pa.Table, samples: pa.Table) -> None:
    """Hand whole tables over as segments and let the attempt merge them, so that one code decides what a finished record looks like.

    Raises HostError when the disk refuses.
    """
    for name, table in (("requests-v0", requests), ("server-v0", samples), ("host-v0", SAMPLES.empty_table())):
        path = attempt.segments / f"{name}{SUFFIX}"
        try:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        except OSError as error:
            raise disk_refused(path, error) from error
    attempt.compact(lambda _recorded: [])
