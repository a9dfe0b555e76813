"""Admission rules: forecasts by hand, what is learned and what never is, the ledger, and the seed's 28-row table through the engine."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.admission import Promises, future_rows, settle
from harness.errors import UsageError
from harness.reference.accounts import NAMES, account_values
from harness.reference.admission import (
    NOTHING_LEARNED,
    UNKNOWN,
    Admission,
    Forecaster,
    Learned,
    ReservationLedger,
    Rule,
    estimate_rows,
    forecast,
    make_admission,
    recalled_rows,
)
from harness.reference.arguments import parse
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.engine import Engine
from harness.reference.memory_arguments import budgets_of, declared_rules, rules_of
from harness.reference.owner import MemoryRules
from harness.reference.registry import make_policy
from harness.reference.resume import Mode
from harness.reference.tokens import Truth
from harness.reference.transition import set_ready
from tests.unit.test_reference_contract import member, table

MIXED = table(
    member(0, maximum=50), member(1, maximum=50, priority=1), member(2, maximum=50, client=1), member(3, maximum=5, client=2),
    member(4, maximum=50, emitted=20, computed=23, committed=23, client=1),
)  # fmt: skip
LEARNED = Learned(12, np.array([UNKNOWN, 30], np.int64))


# Forecasts


def test_who_knows_best_decides() -> None:
    """Declared for the class, then what ended of the client, then what ended at all, then the default, then the maximum; capped by it."""
    rule = make_admission("point", {"class.1": 7, "default": 9})
    assert forecast(rule, LEARNED, MIXED).tolist() == [12, 7, 30, 5, 30]
    assert forecast(rule, NOTHING_LEARNED, MIXED).tolist() == [9, 7, 9, 5, 9]
    assert forecast(rule, None, MIXED).tolist() == [9, 7, 9, 5, 9]
    assert forecast(make_admission("quantile", {}), None, MIXED).tolist() == [50, 50, 50, 5, 50]
    assert forecast(make_admission("maximum", {}), LEARNED, MIXED).tolist() == [50, 50, 50, 5, 50]


def test_rows_of_a_forecast() -> None:
    """F25: 4 prompt rows and the outputs but the last. F24: 23 rows before the next output, and 30 - 20 to come."""
    rule = make_admission("point", {"class.1": 7, "default": 9})
    assert estimate_rows(rule, LEARNED, MIXED).tolist() == [15, 10, 33, 8, 33]
    assert estimate_rows(rule, LEARNED, MIXED, 16).tolist() == [16, 16, 48, 16, 48]


@given(st.integers(1, 40), st.integers(0, 60), st.integers(1, 60))
def test_rows_are_those_of_the_seed_s_formulas(prompt: int, emitted: int, outputs: int) -> None:
    """What is there already and the future rows of F24 and F25, as the settlement counts them."""
    here = prompt + emitted - 1 if emitted else 0
    row = table(member(0, prompt=prompt, maximum=60, emitted=emitted, computed=here, committed=here))
    rule = make_admission("point", {"default": outputs, "learn": 0})
    uncached = 0 if emitted else prompt
    future = future_rows(np.array([emitted]), np.array([uncached]), np.array([outputs]))
    assert estimate_rows(rule, None, row).tolist() == [here + int(future[0])]


def test_who_is_called_back_is_promised_its_next_step() -> None:
    row = table(member(0, maximum=50, emitted=20, computed=23, committed=23, preserved=23))
    rule = make_admission("point", {"default": 2, "learn": 0})
    assert estimate_rows(rule, None, row).tolist() == [23]
    assert recalled_rows(rule, None, row, 1).tolist() == [24]


def test_a_mean_is_rounded_up_and_a_quantile_is_a_value_that_was_seen() -> None:
    for name, parameters, expected in (("point", {}, 6), ("quantile", {"percent": 50}, 2), ("quantile", {"percent": 90}, 16)):
        forecaster = Forecaster(make_admission(name, parameters | {"after": 4}))
        for outputs in (16, 1, 2, 2):  # mean 5.25; ranks of 50 % and 90 % of four: 2 and 4
            forecaster.note(3, outputs)
        assert forecaster.published().overall == expected
        assert forecaster.published().clients.tolist() == [UNKNOWN, UNKNOWN, UNKNOWN, expected]


def test_few_that_ended_are_no_forecast() -> None:
    forecaster = Forecaster(make_admission("point", {"after": 3}))
    forecaster.note(0, 9)
    forecaster.note(1, 9)
    assert forecaster.published().overall == UNKNOWN
    forecaster.note(1, 9)
    assert forecaster.published().overall == 9
    assert forecaster.published().clients.tolist() == [UNKNOWN, UNKNOWN]


def test_what_was_published_does_not_change() -> None:
    forecaster = Forecaster(make_admission("point", {"after": 1}))
    forecaster.note(0, 9)
    before = forecaster.published()
    forecaster.note(0, 1)
    assert before.clients.tolist() == [9]
    with pytest.raises(ValueError, match="read-only"):
        before.clients[0] = 1


# The ledger


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.booleans()), max_size=20))
def test_the_ledger_closes(ended: list[tuple[int, int, bool]]) -> None:
    ledger = ReservationLedger()
    for number, (promised, used, cut_off) in enumerate(ended):
        ledger.promise(number, promised)
        ledger.promise(number, 2 * promised)  # it comes back: the first promise counts
        if cut_off:
            ledger.withdraw(number)
        ledger.settle(number, used)
        ledger.settle(number, used)  # nobody ends twice
    assert ledger.reserved - ledger.unused + ledger.under == ledger.used
    assert ledger.used == sum(used for _, used, cut_off in ended if not cut_off)
    assert ledger.settled + ledger.withdrawn == len(ended)


# The seed's 28-row table (0x06) through the engine

HARD, RESERVED, WATERMARK = 28, 8, 4
MAXIMA, POINTS, P90S, REALIZED = (11, 8, 9), (4, 3, 3), (8, 5, 5), (8, 6, 7)
"""Future rows of A, B and C, reconstructed as in test_analysis_admission. There they have emitted one output; here each is new with one
prompt row, so that its rows are its outputs and every total is the same."""


def table_engine(rule: str) -> Engine:
    """The engine with 8 rows reserved by Z, which stands still with 7 of them. A, B and C have a priority class each, C the lowest."""
    values = {"point": POINTS}.get(rule, P90S)
    parameters = {"learn": 0, "class.-1": 2} | {f"class.{i}": rows for i, rows in enumerate(values)} if rule != "maximum" else {}
    budgets = Budgets(64, 8, HARD, WATERMARK if rule == "watermark" else 0)
    engine = Engine(
        make_policy("vllm-shaped-priority"), budgets, CostModel(1_000, 0, 0, 0), rules=MemoryRules(make_admission(rule, parameters))
    )
    number = engine.submit("Z", RESERVED - 1, 2, Truth(9, None), priority=-1)
    step(engine, 0)
    assert engine.state.running.reserved.tolist() == [RESERVED]
    engine.state = set_ready(engine.state, [number], ready=False)
    return engine


def step(engine: Engine, now: int) -> list[str]:
    """One iteration; names of those that ended."""
    begun = engine.begin(now)
    assert begun is not None
    return [p.request_id for p in engine.tokens_of(engine.complete(now + begun[1])) if p.finish]


def ask(engine: Engine, *names: str) -> None:
    for name in names:
        at = "ABC".index(name)
        engine.submit(name, 1, MAXIMA[at], Truth(at, REALIZED[at]), priority=at)


@pytest.mark.parametrize(
    ("rule", "admits", "unused", "under"),
    [("maximum", "AB", 5, 0), ("point", "ABC", 0, 11), ("quantile", "ABC", 0, 3), ("watermark", "AB", 0, 1)],
)
def test_the_28_row_table_by_the_engine(rule: str, admits: str, unused: int, under: int) -> None:
    engine = table_engine(rule)
    ask(engine, *"ABC")
    step(engine, 10_000)
    numbers = dict(zip(engine.state.running.handle.tolist(), engine.state.running.reserved.tolist(), strict=True))
    estimates = {"maximum": MAXIMA, "point": POINTS}.get(rule, P90S)
    assert numbers == {0: RESERVED} | {1 + "ABC".index(name): estimates["ABC".index(name)] for name in admits}
    ended, now = set[str](), 20_000
    ledger = engine.owner.ledger if engine.owner else ReservationLedger()
    while not ended >= set(admits):
        ended |= set(step(engine, now))
        now += 10_000
    assert (ledger.unused, ledger.under) == (unused, under)
    assert ledger.settled == len(admits)
    assert ledger.breach == 0  # each gives its rows back as it ends: all 29 are never wanted at once


@pytest.mark.parametrize("rule", ["point", "quantile"])
def test_29_rows_of_28_are_a_breach_of_one_and_c_gives_way(rule: str) -> None:
    """A, C and B come one and two iterations apart, so that all three reach their last row in the same one."""
    engine = table_engine(rule)
    gone: list[int] = []
    for turn in range(8):
        if turn < 3:
            ask(engine, "ACB"[turn])
        begun = engine.begin(10_000 * (turn + 1))
        assert begun is not None
        gone += begun[0].preempt.keys[0].tolist()
        list(engine.tokens_of(engine.complete(10_000 * (turn + 1) + begun[1])))
    assert engine.owner is not None
    assert engine.owner.ledger.breach == 1
    assert gone == [2]  # C, who came second
    assert engine.state.suspended.handle.tolist() == [2]
    assert engine.state.suspended.emitted.tolist() == [6]


def test_within_the_ceiling_an_extension_needs_no_victim() -> None:
    engine = table_engine("watermark")
    ask(engine, "A", "B")
    ended, now = set[str](), 10_000
    while len(ended) < 2:
        ended |= set(step(engine, now))
        now += 10_000
    counted = dict(zip(NAMES, account_values(engine.state, engine.owner), strict=True)) if engine.owner else {}
    assert (counted["extensions_total"], counted["extension_rows_total"], counted["preemptions_recompute_total"]) == (1, 1, 0)


@pytest.mark.parametrize("rule", ["maximum", "point", "quantile"])
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 16), st.integers(1, 16)), min_size=1, max_size=8))
def test_the_engine_counts_what_the_settlement_says(rule: str, asked: list[tuple[int, int, int]]) -> None:
    """First promises, read off the plans, against the lengths that came true: by ``analysis.admission`` and by the engine's counters."""
    parameters = {} if rule == "maximum" else {"default": 3, "after": 2}
    rules = MemoryRules(make_admission(rule, parameters))
    engine = Engine(make_policy("vllm-shaped-fcfs"), Budgets(32, 4, 40), CostModel(1_000, 0, 0, 0), rules=rules)
    for number, (prompt, maximum, natural) in enumerate(asked):
        engine.submit(f"r{number}", prompt, maximum, Truth(number, natural))
    first, now = dict[int, int](), 0
    while (begun := engine.begin(now)) is not None:
        for number, _, rows in begun[0].reserve.T.tolist():
            first.setdefault(number, rows)
        now += begun[1]
        list(engine.tokens_of(engine.complete(now)))
    prompts, maxima, naturals = (np.array(values, np.int64) for values in zip(*asked, strict=True))
    forecasts = np.array([first[n] for n in range(len(asked))]) - prompts + 1
    count = len(asked)
    everyone = Promises(
        rule, tuple(map(str, range(count))), np.zeros(count, np.int64), prompts, maxima, forecasts, np.ones(count, bool), 0, 40, 1
    )
    found, owner = settle(everyone, np.minimum(maxima, naturals)), engine.owner
    assert owner is not None
    assert (owner.ledger.unused, owner.ledger.under) == (found.unused_rows, found.under_rows)
    assert owner.ledger.used == found.occupied_rows


# How it is declared


def test_a_rule_is_read_with_its_parameters() -> None:
    rule = make_admission("quantile", {"percent": 95, "default": 64, "learn": 0, "after": 3, "class.2": 200, "class.-1": 8})
    assert rule == Admission(Rule.QUANTILE, 95, 64, learn=False, after=3, classes=((-1, 8), (2, 200)))
    assert not rule.learns
    assert rule.reserves
    assert not Admission().reserves
    assert astuple(make_admission("own", {})) == astuple(Admission())


def test_every_wrong_parameter_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        make_admission("quantile", {"percent": 0, "learn": 2, "class.x": 5, "class.1": 0, "horizon": 3})
    assert [problem.code for problem in caught.value.problems] == ["admission_parameter"] * 5
    for name in ("class.--5", "class.", "class.²", "class.99999999999"):
        with pytest.raises(UsageError, match="no such parameter"):
            make_admission("point", {name: 5})
    with pytest.raises(UsageError, match="without effect"):
        make_admission("maximum", {"percent": 90})
    with pytest.raises(UsageError, match="admission_rule"):
        make_admission("oracle", {})


def test_the_command_line_says_all_of_it() -> None:
    memory = "--kv-block 16 --kv-watermark 256 --admission watermark --admission-parameters percent=95,class.1=200"
    tier = "--preemption preserve --swap-tokens 9000 --swap-write-token 20us --swap-read-token 10us --swap-full abort"
    args = parse([*memory.split(), *tier.split()])
    assert budgets_of(args).kv_block == 16
    rules = rules_of(args)
    assert rules == MemoryRules(make_admission("watermark", {"percent": 95, "class.1": 200}), 9000, 20_000, 10_000, Mode.ABORT)
    said = declared_rules(budgets_of(args), rules)
    assert said == {
        "kv_block": 16, "admission": "watermark", "admission_default": 0, "admission_learn": 1, "admission_after": 16,
        "admission_percent": 95, "admission_class_1": 200, "preemption": "preserve", "swap_tokens": 9000, "swap_write_token": 20_000,
        "swap_read_token": 10_000, "swap_full": "abort",
    }  # fmt: skip
    plain = parse([])
    assert rules_of(plain) == MemoryRules()
    assert declared_rules(budgets_of(plain), rules_of(plain)) == {}


@pytest.mark.parametrize("words", ["--max-num-seqs 2147483648", "--kv-cache-tokens 10000000000", "--port 65536", "--port -1", "--seed -1"])
def test_numbers_that_no_server_has_are_refused_before_a_sum_could_wrap(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(words.split())
    assert caught.value.code == 2
    assert words.split()[0] in capsys.readouterr().err
    assert parse([f"--seed={2**64}"]).seed == 2**64


CONTRADICTIONS = {
    "kv_block_uneven": "--kv-block 7",
    "watermark_missing": "--admission watermark",
    "tier_missing": "--preemption preserve",
    "tier_unused": "--swap-full abort",
    "memory_rule_unsupported": "--policy static-priority --kv-block 16",
    "admission_parameter": "--admission-parameters percent=95",
}


@pytest.mark.parametrize("code", CONTRADICTIONS)
def test_what_contradicts_itself_is_refused(code: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(CONTRADICTIONS[code].split())
    assert {problem.code for problem in caught.value.problems} == {code}


@pytest.mark.parametrize("rule", ["--admission point", "--preemption preserve --swap-tokens 5"])
def test_a_policy_that_reserves_by_itself_takes_no_other_rule(rule: str) -> None:
    with pytest.raises(UsageError, match="memory_rule_unsupported"):
        parse(["--policy", "orca-shaped", *rule.split()])
