"""Flags about the cache, from the parsed command line to the engine's rules, and what no single one of them can check."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from harness.errors import Problem, UsageError
from harness.reference.admission import Rule, make_admission
from harness.reference.contract import Budgets
from harness.reference.owner import MemoryRules
from harness.reference.registry import POLICIES
from harness.reference.resume import Mode


def budgets_of(args: argparse.Namespace) -> Budgets:
    """Limits of an iteration and of the cache."""
    return Budgets(args.max_num_batched_tokens, args.max_num_seqs, args.kv_cache_tokens, args.kv_watermark, args.kv_block)


def rules_of(args: argparse.Namespace) -> MemoryRules:
    """Admission rule and second tier. Raises UsageError as ``admission.make_admission`` does."""
    admission = make_admission(args.admission, args.admission_parameters)
    if args.preemption == "recompute":
        return MemoryRules(admission)
    return MemoryRules(admission, args.swap_tokens, args.swap_write_token, args.swap_read_token, Mode(args.swap_full))


def declared_rules(budgets: Budgets, rules: MemoryRules) -> dict[str, int | str]:
    """What differs from single rows, the policy's own admission and recompute preemption, by name; empty when nothing does."""
    found: dict[str, int | str] = {"kv_block": budgets.kv_block} if budgets.kv_block > 1 else {}
    rule = rules.admission
    if rule.reserves:
        found["admission"] = rule.rule.value
        if rule.rule is not Rule.MAXIMUM:
            found |= {"admission_default": rule.default, "admission_learn": int(rule.learn), "admission_after": rule.after}
            found |= {f"admission_class_{priority}": outputs for priority, outputs in rule.classes}
        if rule.rule in (Rule.QUANTILE, Rule.WATERMARK):
            found["admission_percent"] = rule.percent
    if rules.tier_rows:
        found |= {"preemption": "preserve", "swap_tokens": rules.tier_rows, "swap_write_token": rules.write_ns}
        found |= {"swap_read_token": rules.read_ns, "swap_full": rules.fallback.value}
    return found


def memory_problems(args: argparse.Namespace) -> list[Problem]:
    """Everything that contradicts itself or would be without effect."""
    problems: list[Problem] = []
    try:
        make_admission(args.admission, args.admission_parameters)
    except UsageError as error:
        problems += error.problems
    return [*problems, *_unsupported(args), *_contradictions(args)]


def _unsupported(args: argparse.Namespace) -> Iterator[Problem]:
    policy = POLICIES.get(args.policy)
    asked = {"kv-block": args.kv_block > 1, "preemption": args.preemption != "recompute", "admission": args.admission != Rule.OWN}
    for name, given in asked.items():
        if policy is not None and given and name not in policy.engine_rules:
            fit = ", ".join(sorted(p for p, cls in POLICIES.items() if name in cls.engine_rules))
            what = f"{name}={getattr(args, name.replace('-', '_'))}: the plans of policy {args.policy} do not keep this rule"
            yield Problem("memory_rule_unsupported", what, f"leave --{name} out, or use one of: {fit}")


def _contradictions(args: argparse.Namespace) -> Iterator[Problem]:
    if args.kv_cache_tokens % args.kv_block:
        what = f"kv-cache-tokens={args.kv_cache_tokens}: no whole number of blocks of {args.kv_block}"
        yield Problem("kv_block_uneven", what, "make the cache a multiple of --kv-block")
    if args.admission == Rule.WATERMARK and not args.kv_watermark:
        what = "admission=watermark: --kv-watermark is 0, so the rule would be quantile under another name"
        yield Problem("watermark_missing", what, "set --kv-watermark, or declare admission quantile")
    if args.preemption == "preserve" and not args.swap_tokens:
        what = "preemption=preserve: --swap-tokens is 0, so there is no tier to preserve in"
        yield Problem("tier_missing", what, "set --swap-tokens, or preemption recompute")
    swaps = args.swap_tokens or args.swap_write_token or args.swap_read_token or args.swap_full != Mode.RECOMPUTE.value
    if args.preemption == "recompute" and swaps:
        what = f"swap-tokens={args.swap_tokens} swap-full={args.swap_full}: recompute keeps nothing, so they would be without effect"
        yield Problem("tier_unused", what, "leave the swap flags out, or set --preemption preserve")
