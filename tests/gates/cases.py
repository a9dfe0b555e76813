"""One passing, one failing and one unknown record for every gate code; the failing one differs from a passing one in one field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from analysis.clocks import derive_clocks
from analysis.gates import CellContext, PairContext, RunContext
from analysis.outcomes import classify, count_outcomes
from harness.record.coordinates import Known, Unknown
from harness.record.facts import Fact, Facts, PinResult, ServerExit
from harness.record.fairness import Fairness
from harness.record.reader import RunRecord, SealState
from harness.record.schema import SAMPLES, SCHEDULE, TRUTH
from harness.record.spec import Arm, Replication, Window, WorkloadSpec
from tests.builders import (
    MS,
    S,
    make_certificate,
    make_coordinates,
    make_facts,
    make_host_samples,
    make_never_due,
    make_record,
    make_request,
    make_sample,
    make_server_samples,
    make_spec,
    make_workload,
)
from tests.gates.fleets import of_fleet, of_workers

Factory = Callable[[], Any]

NO_EVENTS: dict[str, Any] = {
    "event_ns": [],
    "event_tokens": [],
    "event_bytes": [],
    "event_kind": [],
    "client_tokens": None,
    "usage_prompt_tokens": None,
    "usage_completion_tokens": None,
    "usage_cached_tokens": None,
    "finish_reason": None,
}
"""Fields of a row whose response brought nothing."""


@dataclass(frozen=True)
class Case:
    """Factories of a run record, of a list of them for gates of cell scope, or of two such lists for gates of pair scope."""

    passing: Factory
    failing: Factory
    unknown: Factory


def rows(n: int = 140, **one: Any) -> list[dict[str, Any]]:
    """Healthy rows, ten a second; ``one`` changes row 50, which lies in the window."""
    made = [make_request(i, i * 100 * MS) for i in range(n)]
    if one:
        made[50] |= one
    return made


def healthy(requests: list[dict[str, Any]] | None = None, **parts: Any) -> RunRecord:
    """A record that passes every gate of run scope, with parts replaced."""
    requests = rows() if requests is None else requests
    coordinates = make_coordinates(client_host=Known(value="m:b"))
    base: dict[str, Any] = {"coordinates": coordinates, "host": make_host_samples()}
    if "server_metrics" not in parts:
        base["server_metrics"] = make_server_samples(requests)
    return make_record(requests, **(base | parts))


def empty() -> RunRecord:
    """A record that says nothing at all."""
    unknown = {name.replace(".", "_"): Unknown(reason="nothing was seen") for name in make_coordinates()}
    return make_record([], facts=Facts(), seal=SealState(None, None), coordinates=make_coordinates(**unknown), host=[], server_metrics=[])


def run_context(record: RunRecord) -> RunContext:
    """What the analysis hands to gates of run scope."""
    clocks = derive_clocks(record)
    outcome = classify(record, clocks)
    return RunContext(record, clocks, outcome, count_outcomes(record, clocks, outcome))


def cell_context(records: Sequence[RunRecord]) -> CellContext:
    """What the analysis hands to gates of cell scope."""
    return CellContext([run_context(r) for r in records], records[0].spec if records else make_spec())


def pair_context(sides: Sequence[Sequence[RunRecord]]) -> PairContext:
    """What the analysis hands to gates of pair scope."""
    return PairContext(*(cell_context(records) for records in sides))


def facts_(**changes: Any) -> Callable[[], RunRecord]:
    return lambda: healthy(facts=make_facts(**changes))


def one(**change: Any) -> Callable[[], RunRecord]:
    """Row 50 changed, the server's story unchanged."""
    return lambda: healthy(rows(**change), server_metrics=make_server_samples(rows()))


def spec_(**changes: Any) -> Callable[[], RunRecord]:
    return lambda: healthy(spec=make_spec(**changes))


def host_(**changes: float) -> Callable[[], RunRecord]:
    return lambda: healthy(host=make_host_samples(**changes))


def without_host(metric: str) -> Callable[[], RunRecord]:
    return lambda: healthy(host=[s for s in make_host_samples() if s["metric"] != metric])


HOST_METRICS = ("cpu_steal_ratio", "foreign_cpu_ratio", "throttled_s_total", "swap_used_bytes")


def host_set(metric: str, seconds: Iterable[int], value: float | None) -> Callable[[], RunRecord]:
    """A healthy run in which a metric of the host had another value at some seconds, or was not sampled there."""
    at = {t * S for t in seconds}

    def made() -> RunRecord:
        meant = [(s, s["metric"] == metric and s["t_ns"] in at) for s in make_host_samples()]
        return healthy(host=[s if not hit else s | {"value": value} for s, hit in meant if not hit or value is not None])

    return made


def server_(**extra: float) -> Callable[[], RunRecord]:
    return lambda: healthy(server_metrics=make_server_samples(rows(), **extra))


def gauges_until(second: int) -> Callable[[], RunRecord]:
    """A healthy run whose server answered for its gauges until then only."""
    return lambda: healthy(
        server_metrics=[s for s in make_server_samples(rows()) if s["t_ns"] <= second * S or s["metric"].endswith("_total")]
    )


def schedule_of(requests: list[dict[str, Any]], clients: Sequence[str | None] | None = None) -> pa.Table:
    names = clients or [None] * len(requests)
    plan = [
        {"request_id": r["request_id"], "arrival_ns": r["arrival_ns"], "input_tokens": 16, "max_tokens": 5, "client": c}
        for r, c in zip(requests, names, strict=True)
    ]
    return pa.Table.from_pylist(plan, SCHEDULE)


def lost_row() -> RunRecord:
    return healthy(rows()[:50] + rows()[51:], schedule=schedule_of(rows()), server_metrics=make_server_samples(rows()))


def sliding(growth: float) -> Callable[[], RunRecord]:
    """TTFT of the window's requests grows by ``growth`` from its first to its last."""

    def make() -> RunRecord:
        made = [make_request(i, i * 100 * MS, ttft_ns=int(50 * MS * (1 + growth * max(0, i - 20) / 100))) for i in range(140)]
        return healthy(made)

    return make


def piling(share: float) -> Callable[[], RunRecord]:
    """Every request of the window waits ``share`` of the time since the window began; the drain is long enough to see them end."""

    def make() -> RunRecord:
        made = [make_request(i, i * 100 * MS, ttft_ns=50 * MS + int(share * max(0, i - 20) * 100 * MS)) for i in range(140)]
        window = Window(warm_up_ns=2 * S, measured_ns=10 * S, drain_ns=8 * S)
        return healthy(made, spec=make_spec(window=window))

    return make


def measured(width_ns: int) -> Callable[[], RunRecord]:
    return spec_(window=Window(warm_up_ns=2 * S, measured_ns=width_ns, drain_ns=2 * S))


def two_clients(*token_at: int) -> Callable[[], RunRecord]:
    """Client b has one request that is open from the start to the end; it gets one token at each of ``token_at``."""

    def make() -> RunRecord:
        made = rows()
        many = len(token_at)
        stamps = {"event_ns": [*token_at], "event_tokens": [1] * many, "event_bytes": [200] * many, "event_kind": [1] * many}
        made[0] |= NO_EVENTS | {"end_kind": "drain_end", "end_ns": 14 * S} | stamps
        clients = ["b"] + ["a"] * (len(made) - 1)
        return healthy(made, schedule=schedule_of(made, clients))

    return make


def apart() -> RunRecord:
    """Two clients of which one sends its requests when the other has none."""
    made = rows()
    return healthy(made, schedule=schedule_of(made, ["b" if i < 70 else "a" for i in range(len(made))]))


def horizon(ns: int) -> Callable[[], RunRecord]:
    """Client b is served at 5 s only, and open all the time; ``ns``: what is declared to be starvation."""
    return lambda: replace(two_clients(5 * S)(), spec=make_spec(fairness=Fairness(window_ns=S, horizon_ns=ns)))


def cell(count: int, starts: int, **changes: Any) -> Callable[[], list[RunRecord]]:
    return lambda: [healthy(spec=make_spec(replicate=i, server_start=i % starts, **changes)) for i in range(count)]


def on_one_start(count: int = 3, *, policy: str = "cold", **seen: Any) -> Callable[[], list[RunRecord]]:
    """Replicates on one process, each of which saw ``seen`` of the cache before its load; by default it was flushed."""

    def make() -> list[RunRecord]:
        records = cell(count, 1, workload=make_workload(cache=policy))()
        told = {"kind": "cache_prepared", "policy": policy, "emptied": "flush", "process": 7}
        return [replace(r, observations=(told | {"served_before": i} | seen,)) for i, r in enumerate(records)]

    return make


def warm_pass(completed: int = 140) -> dict[str, Any]:
    """What is observed of a warm pass over the 140 prompts of a healthy record."""
    return {"requests": 140, "completed": completed, "input_tokens": 16 * 140, "duration_s": 1.0}


def counted(records: Callable[[], list[RunRecord]], before: float, **fields: Any) -> Callable[[], list[RunRecord]]:
    """The same cell, whose server had counted so many prompt tokens before the load; ``fields``: of its spec."""
    metrics = pa.Table.from_pylist([s | {"value": s["value"] + before} for s in make_server_samples(rows())], SAMPLES)
    return lambda: [replace(r, server_metrics=metrics, spec=r.spec.model_copy(update=fields)) for r in records()]


def lived_on(*before: float) -> Callable[[], list[RunRecord]]:
    """Replicates on one start of an endpoint whose cache was left alone, by what it had counted before each."""
    kept = on_one_start(len(before), policy="as_trace", emptied="kept", process=None)
    return lambda: [counted(lambda i=i: [kept()[i]], n, arm=ATTACHED)()[0] for i, n in enumerate(before)]


def endpoint_starts(*before: float, starts: int = 5) -> Callable[[], list[RunRecord]]:
    """Replicates of an endpoint, ``starts`` of whose server are declared, by what it had counted before each."""
    made = cell(len(before), starts, replication=Replication(count=len(before), server_starts=starts))
    return lambda: [counted(lambda i=i: [made()[i]], n, arm=ATTACHED)()[0] for i, n in enumerate(before)]


def uncounted_endpoint(records: Callable[[], list[RunRecord]]) -> Callable[[], list[RunRecord]]:
    """The same, without a page of counters."""
    return lambda: [replace(r, server_metrics=r.server_metrics.slice(0, 0)) for r in records()]


TURN_NS = 10 * S + 500 * MS
"""When the turn of ``sessions`` comes due: it waits for request 50, which arrived at 5 s, and thinks."""


def sessions(**turn: Any) -> Callable[[], RunRecord]:
    """A healthy run whose last request, 140, waits for request 50; ``turn`` changes what came of it."""

    def make() -> RunRecord:
        made = rows()
        think = TURN_NS - made[50]["end_ns"]
        last = make_request(140, TURN_NS) | turn
        plan = {140: {"arrival_ns": 5 * S + think, "after": [50], "think_ns": think}}
        return healthy([*made, last], plan=plan)

    return make


def lost_turn(cause: str, *, kind: str = "never_due") -> Callable[[], RunRecord]:
    """A turn that never came due, and how the request it waits for ended."""

    def make() -> RunRecord:
        made = rows(**({} if cause == "complete" else NO_EVENTS | {"end_kind": cause}))
        plan = {140: {"arrival_ns": TURN_NS, "after": [50], "think_ns": S}}
        return healthy([*made, make_never_due(140, kind)], plan=plan)

    return make


SHARED = make_workload(prefix_sharing_planned=True)
CACHE_ON = make_facts(
    before={
        "host.boot": Fact(value="b", source="test"),
        "server.block_size": Fact(value=4, source="test"),
        "server.prefix_caching": Fact(value=True, source="test"),
    }
)
CACHE_OFF = make_facts(before={"host.boot": Fact(value="b", source="test"), "server.prefix_caching": Fact(value=False, source="test")})


def sharing(
    cached: int | None, *, counter: int | None = 0, shared: int = 9, facts: Facts = CACHE_ON, preempted: int = 0, **workload: Any
) -> Callable[[], RunRecord]:
    """Prompts of 16 tokens that begin alike for ``shared`` tokens in one request, 50, whose usage states ``cached``; others state 0.

    ``counter``: growth of the server's own counter; None: it has none.
    """

    def make() -> RunRecord:
        made = [r | {"usage_cached_tokens": None if cached is None else 0} for r in rows()]
        made[50]["usage_cached_tokens"] = cached
        plan = {i: {"reusable_tokens": shared if i == 50 else 0} for i in range(140)}
        metrics = make_server_samples(rows(), cached_tokens_total=counter or 0)
        metrics = [s for s in metrics if counter is not None or s["metric"] != "cached_tokens_total"]
        metrics += [make_sample(t * S, "server", "preemptions_total", v) for t, v in ((-1, 0), (20, preempted))]
        spec = make_spec(workload=make_workload(**({"prefix_sharing_planned": True} | workload)))
        return healthy(made, plan=plan, spec=spec, facts=facts, server_metrics=metrics)

    return make


def answering(tokens: int, control: str = "natural", n: int = 5) -> list[RunRecord]:
    """A cell of one replicate that answers every request with so many tokens."""
    made = [make_request(i, i * 100 * MS, tokens=tokens) for i in range(n)]
    return [healthy(made, spec=make_spec(workload=make_workload(output_length=control)))]


def arms(tokens: int, control: str = "natural") -> Callable[[], list[list[RunRecord]]]:
    """Two cells, one of which answers with 100 tokens and the other with ``tokens``."""
    return lambda: [answering(100, control), answering(tokens, control)]


ATTACHED = Arm(name="a", runtime="endpoint", base_url="http://127.0.0.1:1")
MISMATCH = (PinResult(pin="model.dtype", expected="float32", observed="bfloat16", result="mismatched"),)
OPEN_PIN = (PinResult(pin="hardware.driver", expected="580", result="unknown", reason="no driver"),)
VOUCHED_PIN = (PinResult(pin="hardware.gpu", expected="none", observed="none", result="matched", source="attested"),)
REFUSED_400 = NO_EVENTS | {"end_kind": "http_error", "http_status": 400, "error": "prompt too long"}
SMALL_CEILING = make_certificate(rate_ceiling=15.0)


def fleet(hosts: Any = "m:b", **facts: Any) -> Callable[[], RunRecord]:
    """A run whose two workers sat on a Ray cluster."""
    return lambda: healthy(**of_fleet(hosts, **facts))


FIXTURES: dict[str, Case] = {
    "clock_sync": Case(fleet(), fleet(drift_ns=5 * MS), fleet(lost=True)),
    "pins_match": Case(healthy, facts_(pins=MISMATCH), facts_(pins=OPEN_PIN)),
    "flags_known": Case(healthy, facts_(flags_unknown=("--nope",)), facts_(flags_checked=None)),
    "partition_closes": Case(healthy, lost_row, empty),
    "requests_wellformed": Case(healthy, one(**REFUSED_400), empty),
    "tokens_agree": Case(healthy, one(usage_completion_tokens=6), one(usage_completion_tokens=None)),
    "counts_agree": Case(healthy, server_(generation_tokens_total=7), lambda: healthy(server_metrics=[])),
    "delivered_load": Case(healthy, one(**NO_EVENTS, end_kind="never_sent", send_ns=None, end_ns=None), empty),
    "server_survived": Case(
        healthy, facts_(server_exit=ServerExit(survived=False, exit_code=-9, log_tail=("Killed",))), facts_(server_exit=None)
    ),
    "seal_intact": Case(
        healthy,
        lambda: healthy(seal=SealState(intact=False, root="9" * 64, problems=("spec.json changed",))),
        lambda: healthy(seal=SealState(intact=None, root=None)),
    ),
    "client_slip": Case(healthy, one(send_ns=5 * S + 60 * MS), measured(5 * S)),
    "receive_lag": Case(healthy, host_(loop_lag_s=0.003), without_host("loop_lag_s")),
    "client_headroom": Case(healthy, spec_(certificate=SMALL_CEILING), spec_(certificate=None)),
    "steady_state": Case(healthy, sliding(1.0), measured(5 * S)),
    "backlog": Case(piling(0.0), piling(0.5), empty),
    "window_length": Case(healthy, measured(1200 * MS), empty),
    "replicates": Case(cell(5, 5), cell(4, 5), list),
    "output_length": Case(healthy, one(client_tokens=4), one(client_tokens=None, usage_completion_tokens=None)),
    "output_length_agree": Case(arms(110), arms(111), lambda: [answering(100), []]),
    "prefix_realised": Case(
        healthy,
        one(usage_cached_tokens=16),
        lambda: healthy([r | {"usage_cached_tokens": None} for r in rows()], server_metrics=[]),
    ),
    "cache_state": Case(on_one_start(), on_one_start(emptied="start"), lambda: [empty()]),
    "environment_stable": Case(healthy, host_(cpu_steal_ratio=0.1), without_host("cpu_steal_ratio")),
    "starvation": Case(two_clients(5 * S), two_clients(), empty),
    "contention": Case(two_clients(5 * S), apart, empty),
}


def paper_(workload: WorkloadSpec | None = None, **changes: Any) -> Callable[[], RunRecord]:
    """A healthy run under a changed certificate."""
    return spec_(certificate=make_certificate(**changes), workload=workload or make_workload())


def two_workers(*seen: str) -> Callable[[], RunRecord]:
    """A healthy run with two workers, of which some were sampled."""
    return lambda: healthy(spec=make_spec(workers=2, certificate=make_certificate(workers=2)), host=of_workers(*seen))


def over_tls() -> RunRecord:
    """A healthy run against an endpoint behind TLS."""
    return healthy(spec=make_spec(arm=Arm(name="a", runtime="endpoint", base_url="https://example.org", declared=("runtime.args",))))


CUT = NO_EVENTS | {"end_kind": "drain_end"}
STOPPED = make_workload(output_length="client_stop", max_tokens=9)
GPU_LEVELS = {"gpu_throttle_bits": 0x4, "gpu_sm_clock_mhz": 1980.0, "gpu_processes_server": 1.0, "gpu_processes_foreign": 0.0}
GPU_CALM = [make_sample(t * S, "gpu", metric, level, "0") for metric, level in GPU_LEVELS.items() for t in range(15)]
GPU_SET = {
    "host.boot": Fact(value="b", source="test"),
    "host.gpu_settings": Fact(value={"power_limit_w": [700.0], "ecc": None}, source="test"),
}


def gpu(samples: Sequence[dict[str, Any]], after: dict[str, Fact] = GPU_SET) -> Callable[[], RunRecord]:
    facts = make_facts(before=GPU_SET, after=after)
    return lambda: healthy(spec=make_spec(host_profile="gpu"), host=[*make_host_samples(), *samples], facts=facts)


def gpu_at(metric: str, value: float, when: int | None = None) -> list[dict[str, Any]]:
    """A calm device of which one metric is ``value``, at one second or always."""
    return [s | {"value": value} if s["metric"] == metric and when in (None, s["t_ns"] // S) else s for s in GPU_CALM]


def gpu_without(metric: str) -> list[dict[str, Any]]:
    return [s for s in GPU_CALM if s["metric"] != metric]


CPU_HOST = {"host.boot": Fact(value="b", source="test")}
GPU_THERE = {"host.gpu": Fact(value="NVIDIA H200", source="test")}


def beside_gpu(used: float) -> Callable[[], RunRecord]:
    """A run on the CPUs of a host whose device, used so much, shows no process that is known as the server's."""
    samples = [make_sample(t * S, "gpu", "gpu_utilisation_ratio", used, "0") for t in range(15)]
    return lambda: healthy(host=[*make_host_samples(), *samples], facts=make_facts(before=CPU_HOST | GPU_THERE))


GPU_OTHER = [s | {"labels": "1", "value": 0.0 if s["metric"] == "gpu_processes_server" else 0x48} for s in GPU_CALM]
"""A second device that does not serve: throttled, slow and somebody else's."""


def stopped(counted: int, *, told: int = 5) -> Callable[[], RunRecord]:
    """Every request closed by the client at ``counted`` of 5 tokens."""

    def make() -> RunRecord:
        made = [r | {"end_kind": "client_stop", "client_tokens": counted, "usage_completion_tokens": counted} for r in rows()]
        truth = [{"request_id": i, "output_tokens": 5, "stop_after": 5} for i in range(140)]
        metrics = make_server_samples([r | {"end_kind": "complete"} for r in made])
        return healthy(made, spec=make_spec(workload=STOPPED), truth=pa.Table.from_pylist(truth, TRUTH), server_metrics=metrics)

    return make


def two_observers(share: float) -> Callable[[], RunRecord]:
    """The sampler beside the client counts 3 s more than the client itself: threads of its start."""
    beside = [make_sample(t * S + S // 2, "client", "cpu_s_total", 3.0 + share * (t + 0.5)) for t in range(15)]
    return lambda: healthy(host=[*make_host_samples(cpu_s_total=share), *beside])


def no_flags_endpoint(**args: Any) -> Callable[[], RunRecord]:
    arm = Arm(name="a", runtime="endpoint", args=args, base_url="http://127.0.0.1:1")
    return lambda: healthy(spec=make_spec(arm=arm), facts=make_facts(flags_checked=None, argv=()))


def closed_loop(*, last: int = 139, fails: int | None = None, pause: int | None = None) -> Callable[[], RunRecord]:
    """Two users who send one request after the other, 150 ms each and a pause of 50 ms; ``fails``: a request that ends its user, unless
    users go on ``pause`` after a failure.
    """

    def make() -> RunRecord:
        gone = range(140, 140) if fails is None or pause is not None else range(fails + 2, 141, 2)
        made, plan = [], {}
        for i in range(last + 1):
            one = make_request(i, (i // 2) * 200 * MS, end_ns=(i // 2) * 200 * MS + 150 * MS)
            made.append(make_never_due(i) if i in gone else one | (NO_EVENTS | {"end_kind": "reset"} if i == fails else {}))
            plan[i] = {"after": [i - 2], "think_ns": 50 * MS} if i > 1 else {}
        return healthy(made, plan=plan, spec=make_spec(workload=make_workload(loop="closed", users=2, failed_pause_ns=pause)))

    return make


def given_up(plan: int | None, after: int) -> Callable[[], RunRecord]:
    """Row 50 cancelled ``after`` its arrival, planned at ``plan``."""
    made = rows(**NO_EVENTS, end_kind="cancelled", end_ns=5 * S + after)
    return lambda: healthy(made, plan={50: {"cancel_after_ns": plan}})


def without_row(request_id: int) -> RunRecord:
    """A run with a waiting turn whose row was lost."""
    whole = sessions()()
    return replace(whole, requests=whole.requests.filter(pc.not_equal(whole.requests["request_id"], request_id)))


def after_failure() -> RunRecord:
    """A turn that arrived although the request it waits for failed."""
    made = sessions()()
    kinds = ["reset" if i == 50 else kind for i, kind in enumerate(made.requests["end_kind"].to_pylist())]
    column = made.requests.schema.get_field_index("end_kind")
    return replace(made, requests=made.requests.set_column(column, "end_kind", pa.array(kinds)))


def classes(**limits: int) -> Callable[[], RunRecord]:
    """Sends 0.6 ms late under a class whose limits are tighter than the default ones."""
    slo = make_spec().slo.model_copy(update=limits)
    late = [r | {"send_ns": r["arrival_ns"] + 600_000} for r in rows()]
    return lambda: healthy(late, spec=make_spec(slo_classes={"chat": slo}))


def lag_of_a_class() -> RunRecord:
    """A lag within 2% of the default TBT limit, under a class with a limit of 50 ms."""
    slo = make_spec().slo.model_copy(update={"tbt_ns": 50 * MS})
    return healthy(host=make_host_samples(loop_lag_s=0.0015), spec=make_spec(slo_classes={"chat": slo}))


def unshared_chat(cached: int, overhead: int | None) -> Callable[[], RunRecord]:
    return lambda: healthy(rows(usage_cached_tokens=cached), spec=make_spec(workload=make_workload(api="chat", chat_overhead=overhead)))


def other_schedule() -> list[RunRecord]:
    made = [make_request(i, i * 100 * MS, tokens=100) for i in range(5)]
    return [healthy(made, spec=make_spec(workload=make_workload(output_length="natural", digest="0" * 64)))]


def uncounted() -> list[RunRecord]:
    made = [make_request(i, i * 100 * MS, client_tokens=None, usage_completion_tokens=None) for i in range(5)]
    return [healthy(made, spec=make_spec(workload=make_workload(output_length="natural")), server_metrics=[])]


MORE: list[tuple[str, str, str, Factory]] = [
    ("pins_match", "no pins", "UNKNOWN", facts_(pins=())),
    ("pins_match", "by the word of an endpoint's user", "PASS", facts_(pins=VOUCHED_PIN)),
    ("pins_match", "mismatch beats unknown", "FAIL", facts_(pins=OPEN_PIN + MISMATCH)),
    ("flags_known", "endpoint without flags", "PASS", no_flags_endpoint()),
    ("flags_known", "endpoint with flags", "UNKNOWN", no_flags_endpoint(x=1)),
    ("flags_known", "no command line", "UNKNOWN", facts_(argv=())),
    ("requests_wellformed", "error event 422", "FAIL", one(**NO_EVENTS, end_kind="error_event", error_status=422)),
    ("requests_wellformed", "client fault", "FAIL", one(**NO_EVENTS, end_kind="client_fault")),
    ("requests_wellformed", "429 is the server's", "PASS", one(**NO_EVENTS, end_kind="http_error", http_status=429)),
    ("tokens_agree", "prompt differs", "FAIL", one(usage_prompt_tokens=17)),
    ("tokens_agree", "nothing served", "UNKNOWN", lambda: healthy([r | CUT for r in rows()])),
    ("tokens_agree", "client_stop reached", "PASS", stopped(5)),
    ("tokens_agree", "client_stop short", "FAIL", stopped(4)),
    ("counts_agree", "foreign prompt", "FAIL", server_(prompt_tokens_total=16)),
    ("counts_agree", "foreign request", "FAIL", server_(requests_finished_total=1)),
    ("counts_agree", "restart", "FAIL", server_(generation_tokens_total=-10_000)),
    ("counts_agree", "gauges of three seconds", "UNKNOWN", gauges_until(5)),
    ("counts_agree", "foreign in flight", "FAIL", server_(requests_running=4)),
    (
        "counts_agree",
        "no gauges",
        "UNKNOWN",
        lambda: healthy(server_metrics=[s for s in make_server_samples(rows()) if "total" in s["metric"]]),
    ),
    (
        "counts_agree",
        "no snapshot before",
        "UNKNOWN",
        lambda: healthy(server_metrics=[s for s in make_server_samples(rows()) if s["t_ns"] > 0]),
    ),
    (
        "counts_agree",
        "no snapshot after",
        "UNKNOWN",
        lambda: healthy(server_metrics=[s for s in make_server_samples(rows()) if s["t_ns"] < 14 * S]),
    ),
    ("counts_agree", "client_stop within bounds", "PASS", stopped(5)),
    ("delivered_load", "row lost", "FAIL", lost_row),
    ("delivered_load", "sent early", "FAIL", one(send_ns=5 * S - 2 * MS)),
    ("delivered_load", "arrival moved", "FAIL", lambda: healthy(rows(arrival_ns=5 * S + 1), schedule=schedule_of(rows()))),
    ("delivered_load", "refused connection was tried", "PASS", one(**NO_EVENTS, end_kind="connect_refused", send_ns=None)),
    ("partition_closes", "a waiting turn in the window", "PASS", sessions()),
    ("partition_closes", "a waiting turn whose row is missing", "FAIL", lambda: without_row(140)),
    ("partition_closes", "a turn that never came due", "PASS", lost_turn("reset")),
    ("delivered_load", "a waiting turn", "PASS", sessions()),
    ("delivered_load", "a waiting turn that came early", "FAIL", sessions(arrival_ns=TURN_NS - 2 * MS)),
    ("delivered_load", "a waiting turn that came late", "FAIL", sessions(arrival_ns=TURN_NS + 2 * MS)),
    ("delivered_load", "a waiting turn that was not sent", "FAIL", sessions(**NO_EVENTS, end_kind="never_sent", send_ns=None, end_ns=None)),
    ("delivered_load", "never due after a failure", "PASS", lost_turn("reset")),
    ("delivered_load", "never due after an unfinished request", "PASS", lost_turn("drain_end", kind="never_sent")),
    ("delivered_load", "never due without a cause", "FAIL", lost_turn("complete")),
    ("delivered_load", "came due after a failure", "FAIL", lambda: after_failure()),
    ("delivered_load", "cancelled by plan", "PASS", given_up(200 * MS, 200 * MS)),
    ("delivered_load", "cancelled before its time", "FAIL", given_up(200 * MS, 198 * MS)),
    ("delivered_load", "cancelled by no plan", "FAIL", given_up(None, 200 * MS)),
    ("delivered_load", "closed loop whose users last", "PASS", closed_loop()),
    ("delivered_load", "closed loop whose plan runs dry", "FAIL", closed_loop(last=119)),
    ("delivered_load", "closed loop that loses a user to a failure", "FAIL", closed_loop(fails=70)),
    ("delivered_load", "closed loop whose user goes on after a failure", "PASS", closed_loop(fails=70, pause=50 * MS)),
    ("delivered_load", "closed loop whose user went on too soon", "FAIL", closed_loop(fails=70, pause=60 * MS)),
    ("delivered_load", "the same failure in the drain", "PASS", closed_loop(fails=130)),
    ("requests_wellformed", "client fault before it came due", "FAIL", lost_turn("reset", kind="client_fault")),
    ("client_slip", "p99 beyond 5 ms", "FAIL", lambda: healthy([r | {"send_ns": r["arrival_ns"] + 6 * MS} for r in rows()])),
    ("client_headroom", "other host", "UNKNOWN", lambda: healthy(coordinates=make_coordinates(client_host=Known(value="n:b")))),
    ("client_headroom", "host unknown", "UNKNOWN", lambda: healthy(coordinates=make_coordinates(client_host=Unknown(reason="x")))),
    ("client_headroom", "other protocol", "UNKNOWN", paper_(protocol=0)),
    ("client_headroom", "too many events", "FAIL", paper_(event_ceiling=60.0)),
    ("client_headroom", "too many streams", "FAIL", paper_(stream_ceiling=1)),
    ("client_headroom", "streams to spare", "PASS", paper_(stream_ceiling=100)),
    ("client_headroom", "a month old", "PASS", paper_(created="2025-12-03T00:00:00+00:00")),
    ("client_headroom", "older than a month", "UNKNOWN", paper_(created="2025-12-02T23:59:59+00:00")),
    ("client_headroom", "made after the run", "UNKNOWN", paper_(created="2026-01-02T00:00:01+00:00")),
    ("client_headroom", "date of the run unknown", "UNKNOWN", facts_(epoch_wall=None)),
    ("client_headroom", "another number of workers", "UNKNOWN", spec_(workers=2)),
    ("client_headroom", "as many workers", "PASS", two_workers("w0", "w1")),
    ("client_headroom", "one of two workers seen", "UNKNOWN", two_workers("w0")),
    ("receive_lag", "two workers seen", "PASS", two_workers("w0", "w1")),
    ("receive_lag", "one of two workers seen", "UNKNOWN", two_workers("w1")),
    ("client_headroom", "streams not measured", "UNKNOWN", paper_(stream_ceiling=None)),
    ("client_headroom", "live not measured and not needed", "PASS", paper_(live_event_ceiling=None)),
    ("client_headroom", "live not measured", "UNKNOWN", paper_(make_workload(loop="closed"), live_event_ceiling=None, event_ceiling=1e9)),
    ("client_headroom", "decoded live, did not hold", "FAIL", paper_(make_workload(loop="closed"), live_event_ceiling=0.0)),
    ("client_headroom", "users, measured live", "PASS", paper_(make_workload(loop="closed"), live_event_ceiling=200.0)),
    ("client_headroom", "users, too many events for live", "FAIL", paper_(make_workload(loop="closed"), live_event_ceiling=60.0)),
    ("client_headroom", "TLS is said and not failed", "PASS", over_tls),
    ("clock_sync", "the allowance used up by drift and round trip", "PASS", fleet(drift_ns=-4 * MS, uncertainty_ns=MS)),
    ("clock_sync", "a round trip that bounds nothing", "FAIL", fleet(uncertainty_ns=6 * MS)),
    ("clock_sync", "one host, one clock", "PASS", fleet(shared=True, offset_ns=MS // 4)),
    ("clock_sync", "one host, and two clocks all the same", "FAIL", fleet(shared=True, offset_ns=MS)),
    ("clock_sync", "one host, and long round trips", "PASS", fleet(shared=True, offset_ns=0, uncertainty_ns=20 * MS)),
    ("clock_sync", "never compared", "UNKNOWN", lambda: healthy(spec=make_spec(workers=2, fleet="ray"))),
    ("clock_sync", "one of two never told of", "UNKNOWN", fleet(unseen=True)),
    ("clock_sync", "processes of one host", "PASS", healthy),
    ("client_headroom", "a fleet on the certified host", "PASS", fleet()),
    ("client_headroom", "a fleet on two hosts, one certified", "UNKNOWN", fleet(["m:b", "n:b"])),
    ("client_headroom", "a fleet on another host", "UNKNOWN", fleet("n:b")),
    ("client_headroom", "client busy", "FAIL", host_(cpu_s_total=0.6)),
    ("client_headroom", "client waits for a core", "FAIL", host_(run_delay_s_total=0.06)),
    ("client_headroom", "two observers of one process", "PASS", two_observers(0.1)),
    ("client_headroom", "two observers of one busy process", "FAIL", two_observers(0.6)),
    ("client_headroom", "no CPU samples", "UNKNOWN", without_host("cpu_s_total")),
    ("client_headroom", "host CPU does not matter", "PASS", host_(cpu_busy_ratio=1.0)),
    ("steady_state", "small drift is let through", "PASS", sliding(0.1)),
    (
        "backlog",
        "a queue that stands still",
        "PASS",
        lambda: healthy([make_request(i, i * 100 * MS, ttft_ns=800 * MS) for i in range(140)]),
    ),
    ("window_length", "too few for the metric", "FAIL", lambda: healthy([make_request(i, i * 2 * S) for i in range(7)])),
    ("output_length", "client_stop reached", "PASS", stopped(5)),
    ("output_length", "client_stop overshoots", "FAIL", stopped(6)),
    ("output_length", "natural is described", "PASS", spec_(workload=make_workload(output_length="natural"))),
    ("output_length", "capped is exceeded", "FAIL", spec_(workload=make_workload(output_length="capped", max_tokens=4))),
    ("prefix_realised", "less than a block", "PASS", one(usage_cached_tokens=1)),
    ("prefix_realised", "by counter", "PASS", lambda: healthy([r | {"usage_cached_tokens": None} for r in rows()])),
    (
        "prefix_realised",
        "by counter, reused",
        "FAIL",
        lambda: healthy(
            [r | {"usage_cached_tokens": None} for r in rows()], server_metrics=make_server_samples(rows(), cached_tokens_total=16 * 140)
        ),
    ),
    ("client_slip", "limits of a class", "FAIL", classes(ttft_ns=5 * MS)),
    ("receive_lag", "limits of a class", "FAIL", lag_of_a_class),
    ("prefix_realised", "what was possible is realised", "PASS", sharing(8)),
    ("prefix_realised", "less than possible", "PASS", sharing(4)),
    ("prefix_realised", "more than was shared", "FAIL", sharing(9)),
    ("prefix_realised", "warm: more than was shared", "PASS", sharing(9, cache="warm")),
    ("prefix_realised", "warm: what no plan shares", "PASS", sharing(9, cache="warm", prefix_sharing_planned=False)),
    ("prefix_realised", "as_trace: what earlier replicates left", "PASS", sharing(9, cache="as_trace", prefix_sharing_planned=False)),
    ("prefix_realised", "warm: more than was sent", "FAIL", sharing(16 * 140 + 1, cache="warm")),
    ("prefix_realised", "warm: by counter, more than was sent", "UNKNOWN", sharing(None, counter=16 * 140 + 1, cache="warm")),
    ("prefix_realised", "warm: nothing realised", "UNKNOWN", sharing(0, cache="warm")),
    ("prefix_realised", "warm: nothing realised, cache off", "PASS", sharing(0, cache="warm", facts=CACHE_OFF)),
    ("prefix_realised", "warm: nothing said, cache off", "PASS", sharing(None, counter=None, cache="warm", facts=CACHE_OFF)),
    ("prefix_realised", "as_trace: nothing realised", "PASS", sharing(0, cache="as_trace")),
    ("prefix_realised", "nothing realised with a cache that is on", "UNKNOWN", sharing(0)),
    ("prefix_realised", "nothing realised with a cache that is off", "PASS", sharing(0, facts=CACHE_OFF)),
    ("prefix_realised", "something realised with a cache that is off", "UNKNOWN", sharing(4, facts=CACHE_OFF)),
    ("prefix_realised", "nothing said with a cache that is off", "PASS", sharing(None, counter=None, facts=CACHE_OFF)),
    (
        "prefix_realised",
        "nothing planned, nothing said, cache off",
        "PASS",
        sharing(None, counter=None, prefix_sharing_planned=False, facts=CACHE_OFF),
    ),
    ("prefix_realised", "nothing planned, nothing said", "UNKNOWN", sharing(None, counter=None, prefix_sharing_planned=False)),
    ("prefix_realised", "nothing said", "UNKNOWN", sharing(None, counter=None)),
    ("prefix_realised", "nothing to be had", "PASS", sharing(0, shared=3)),
    ("prefix_realised", "by counter", "PASS", sharing(None, counter=8)),
    ("prefix_realised", "by counter, more than was shared", "FAIL", sharing(None, counter=9)),
    (
        "prefix_realised",
        "by a counter that fell",
        "UNKNOWN",
        lambda: healthy(
            [r | {"usage_cached_tokens": None} for r in rows()], server_metrics=make_server_samples(rows(), cached_tokens_total=-1000)
        ),
    ),
    ("prefix_realised", "by counter, more and preempted", "UNKNOWN", sharing(None, counter=9, preempted=1)),
    ("prefix_realised", "chat of unknown template, more than was shared", "UNKNOWN", sharing(12, api="chat")),
    ("prefix_realised", "chat, the template's tokens too", "PASS", sharing(12, api="chat", chat_overhead=3)),
    ("prefix_realised", "chat, more than that", "FAIL", sharing(16, api="chat", chat_overhead=1)),
    ("prefix_realised", "shared beginnings not recorded", "UNKNOWN", lambda: healthy(rows(), spec=make_spec(workload=SHARED))),
    ("prefix_realised", "chat without sharing", "PASS", unshared_chat(18, 3)),
    ("prefix_realised", "chat without sharing, more than its template", "FAIL", unshared_chat(19, 3)),
    ("prefix_realised", "chat without sharing, unknown template", "UNKNOWN", unshared_chat(19, None)),
    ("output_length_agree", "fixed by the plan", "PASS", arms(150, "forced")),
    ("output_length_agree", "only what both served", "PASS", lambda: [answering(100, n=5), [*answering(100, n=9)]]),
    ("output_length_agree", "other schedules", "UNKNOWN", lambda: [answering(100), other_schedule()]),
    ("output_length_agree", "not counted", "UNKNOWN", lambda: [answering(100), uncounted()]),
    ("replicates", "shared starts", "FAIL", cell(5, 4)),
    ("replicates", "an endpoint that began anew before each", "PASS", endpoint_starts(0, 0, 0, 0, 0)),
    ("replicates", "an endpoint that lived on", "FAIL", endpoint_starts(0, 0, 0, 0, 9000)),
    ("replicates", "an endpoint of which one start is declared", "PASS", uncounted_endpoint(endpoint_starts(0, 0, 0, 0, 0, starts=1))),
    ("replicates", "an endpoint without a counter", "UNKNOWN", uncounted_endpoint(endpoint_starts(0, 0, 0, 0, 0))),
    ("cache_state", "own starts, nothing written down", "PASS", cell(5, 5)),
    ("cache_state", "shared starts, nothing written down", "FAIL", cell(5, 4)),
    ("cache_state", "a process that served nothing, whatever its number", "PASS", on_one_start(emptied="start", served_before=0)),
    ("cache_state", "a cache that is off", "PASS", lambda: [replace(r, facts=CACHE_OFF) for r in on_one_start(emptied="start")()]),
    ("cache_state", "warm, every prompt sent", "PASS", on_one_start(policy="warm", warm_pass=warm_pass())),
    ("cache_state", "warm, a prompt left out", "FAIL", on_one_start(policy="warm", warm_pass=warm_pass(139))),
    ("cache_state", "warm, nothing sent", "UNKNOWN", on_one_start(policy="warm")),
    ("cache_state", "warm, not emptied before", "FAIL", on_one_start(policy="warm", warm_pass=warm_pass(), emptied="start")),
    (
        "cache_state",
        "warm, the pass is no earlier load",
        "PASS",
        counted(on_one_start(1, policy="warm", warm_pass=warm_pass(), emptied="start"), 16 * 140),
    ),
    (
        "cache_state",
        "warm, more than the pass came before",
        "FAIL",
        counted(on_one_start(1, policy="warm", warm_pass=warm_pass(), emptied="start"), 32 * 140),
    ),
    ("cache_state", "as_trace, left alone", "PASS", on_one_start(policy="as_trace", emptied="kept")),
    ("cache_state", "as_trace, flushed", "FAIL", on_one_start(policy="as_trace")),
    ("cache_state", "as_trace, nothing written down", "UNKNOWN", cell(5, 1, workload=make_workload(cache="as_trace"))),
    (
        "cache_state",
        "as_trace, restarted in between",
        "FAIL",
        lambda: [*on_one_start(1, policy="as_trace", emptied="kept")(), *on_one_start(1, policy="as_trace", emptied="kept", process=8)()],
    ),
    (
        "cache_state",
        "as_trace, restarted under the number of the process before it",
        "FAIL",
        on_one_start(policy="as_trace", emptied="kept", served_before=0),
    ),
    ("cache_state", "as_trace, endpoint that lived on", "PASS", lived_on(0, 5000)),
    ("cache_state", "as_trace, endpoint that began anew", "FAIL", lived_on(5000, 0)),
    (
        "cache_state",
        "as_trace, endpoint on starts of its own",
        "PASS",
        counted(on_one_start(1, policy="as_trace", emptied="kept"), 0, arm=ATTACHED),
    ),
    ("cache_state", "as_trace, endpoint without a counter", "UNKNOWN", uncounted_endpoint(lived_on(0, 5000))),
    ("cache_state", "endpoint, counter at 0", "PASS", counted(on_one_start(emptied="attached"), 0, arm=ATTACHED)),
    ("cache_state", "endpoint, served before", "FAIL", counted(on_one_start(emptied="attached"), 5000, arm=ATTACHED)),
    (
        "cache_state",
        "endpoint without a counter",
        "UNKNOWN",
        lambda: [
            replace(r, server_metrics=r.server_metrics.slice(0, 0)) for r in counted(on_one_start(emptied="attached"), 0, arm=ATTACHED)()
        ],
    ),
    (
        "cache_state",
        "served before",
        "FAIL",
        lambda: [healthy(server_metrics=[s | {"value": s["value"] + 5000} for s in make_server_samples(rows())])],
    ),
    ("environment_stable", "foreign load", "FAIL", host_(foreign_cpu_ratio=0.2)),
    ("environment_stable", "throttled", "FAIL", host_(throttled_s_total=0.01)),
    ("environment_stable", "swapping", "FAIL", host_(swap_used_bytes=1e6)),
    ("environment_stable", "swapping, and back", "FAIL", host_set("swap_used_bytes", [6], 2e6)),
    (
        "environment_stable",
        "throttled after the window's last sample",
        "FAIL",
        host_set("throttled_s_total", range(12, 15), 0.01),
    ),
    ("environment_stable", "throttled before the window", "PASS", host_set("throttled_s_total", range(2, 15), 0.01)),
    *(("environment_stable", f"{m} of two seconds", "UNKNOWN", host_set(m, range(5, 15), None)) for m in HOST_METRICS),
    ("environment_stable", "steal with a hole", "UNKNOWN", host_set("cpu_steal_ratio", range(4, 10), None)),
    ("environment_stable", "rebooted", "FAIL", facts_(after={"host.boot": Fact(value="c", source="test")})),
    ("environment_stable", "boot unknown", "UNKNOWN", facts_(after={})),
    ("environment_stable", "gpu calm, power cap allowed", "PASS", gpu(GPU_CALM)),
    ("environment_stable", "gpu without samples", "UNKNOWN", gpu([])),
    ("environment_stable", "a CPU profile on a gpu", "UNKNOWN", lambda: healthy(host=[*make_host_samples(), *GPU_CALM])),
    ("environment_stable", "a CPU profile beside a busy gpu", "UNKNOWN", beside_gpu(0.4)),
    ("environment_stable", "a CPU profile beside an idle gpu", "PASS", beside_gpu(0.0)),
    ("environment_stable", "a CPU profile beside a gpu that was never sampled", "UNKNOWN", facts_(before=CPU_HOST | GPU_THERE)),
    ("environment_stable", "whether there is a gpu is unknown", "UNKNOWN", facts_(before=CPU_HOST)),
    ("environment_stable", "gpu of two seconds", "UNKNOWN", gpu([s for s in GPU_CALM if s["t_ns"] <= 4 * S])),
    ("environment_stable", "gpu hot", "FAIL", gpu(gpu_at("gpu_throttle_bits", 0x40))),
    ("environment_stable", "gpu throttle not told", "UNKNOWN", gpu(gpu_without("gpu_throttle_bits"))),
    ("environment_stable", "gpu clock not told", "UNKNOWN", gpu(gpu_without("gpu_sm_clock_mhz"))),
    ("environment_stable", "gpu clock drops", "FAIL", gpu(gpu_at("gpu_sm_clock_mhz", 900.0, 5))),
    (
        "environment_stable",
        "gpu clock falls while idle",
        "PASS",
        gpu(
            [
                s | {"value": 0x1} if s["metric"] == "gpu_throttle_bits" and s["t_ns"] == 5 * S else s
                for s in gpu_at("gpu_sm_clock_mhz", 345.0, 5)
            ]
        ),
    ),
    ("environment_stable", "gpu never busy", "UNKNOWN", gpu(gpu_at("gpu_throttle_bits", 0x1))),
    ("environment_stable", "gpu shared", "FAIL", gpu(gpu_at("gpu_processes_foreign", 1.0, 7))),
    ("environment_stable", "gpu processes hidden", "UNKNOWN", gpu(gpu_without("gpu_processes_server"))),
    ("environment_stable", "another gpu is hot and somebody else's", "PASS", gpu([*GPU_CALM, *GPU_OTHER])),
    (
        "environment_stable",
        "gpu power limit changed",
        "FAIL",
        gpu(GPU_CALM, GPU_SET | {"host.gpu_settings": Fact(value={"power_limit_w": [500.0], "ecc": None}, source="test")}),
    ),
    ("environment_stable", "gpu settings after unknown", "UNKNOWN", gpu(GPU_CALM, {"host.boot": GPU_SET["host.boot"]})),
    ("starvation", "one client", "PASS", healthy),
    ("starvation", "a horizon shorter than the longest wait", "FAIL", horizon(6 * S)),
    ("starvation", "a horizon longer than the longest wait", "PASS", horizon(8 * S)),
    ("contention", "one client", "PASS", healthy),
    ("starvation", "served before the window and after it", "FAIL", two_clients(S, 13 * S)),
]
"""(code, what, verdict, factory): every other branch of every gate."""
