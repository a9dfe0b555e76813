"""policies list | show | fit-cost: what each scheduling policy of the reference engine is, what must not be said of it, what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from analysis.cost_fit import CostFit, fit_costs, to_dict
from harness.cli.output import OK, answers, console, emit_json, json_option, printable, problem_dict
from harness.cli.sides import load_records
from harness.errors import HostError, UsageError
from harness.reference.policy import Card
from harness.reference.registry import POLICIES

CONTRACT = {
    "granularity": "G", "identity": "I", "visible_state": "S", "decision": "D", "unknown_future": "U", "objective": "O", "metric": "M",
    "assumptions": "A", "foreign_owners": "F",
}  # fmt: skip
"""Parts of a method's contract K_m and their letters (F65)."""


@click.group()
def policies() -> None:
    """Scheduling policies of the reference engine: their contracts, their evidence, and their limits."""


def card_of(name: str) -> Card:
    """The card of a policy; UsageError ``policy_unknown``."""
    if name not in POLICIES:
        known = ", ".join(sorted(POLICIES))
        raise UsageError.single("policy_unknown", f"policy={name!r}: no such policy", f"use one of: {known}")
    return POLICIES[name].card


@policies.command("list")
@json_option
@answers
def list_(as_json: bool) -> int:
    """List the policies: name, what each is shaped like, and on what evidence. None is an exact reproduction.

    Example: trigpoint policies list
    """
    cards = [policy.card for _, policy in sorted(POLICIES.items())]
    if as_json:
        emit_json({"policies": [_head(card) for card in cards]})
        return OK
    out, width = console(), max(len(card.policy_id) for card in cards)
    for card in cards:
        out.print(f"{card.policy_id:{width}s}  {card.shaped_like}; {card.evidence_basis}")
    out.print(f"{len(cards)} policies, {sum(card.exact_reproduction for card in cards)} of them an exact reproduction of anything")
    return OK


@policies.command("show")
@click.argument("name")
@json_option
@answers
def show(name: str, as_json: bool) -> int:
    """Show a policy's card: contract K_m, evidence basis, tie-break, parameters, and what must not be claimed.

    Example: trigpoint policies show vtc-shaped
    """
    card = card_of(name)
    if as_json:
        emit_json(card_dict(card))
        return OK
    out = console()
    for line in card_lines(card):
        out.print(line)
    return OK


@policies.command("fit-cost")
@click.argument("campaign_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@answers
def fit_cost(campaign_dir: Path, as_json: bool) -> int:
    """Fit the engine's cost model to a campaign's records, and print it with its error and as arguments of an arm.

    Each replicate is predicted from the others; that is the error. What an engine yields at a fitted cost is as synthetic as at any other.

    Example: trigpoint policies fit-cost results/vllm-cpu-azure-conv
    """
    records, broken = load_records(campaign_dir)
    if broken:
        raise HostError(*broken)
    fits, problems = fit_costs(records)
    if as_json:
        emit_json({"fits": [to_dict(fit) for fit in fits], "not_fitted": [problem_dict(problem) for problem in problems]})
        return OK
    out = console()
    for line in (*(line for fit in fits for line in fit_lines(fit)), *(f"not fitted: {problem.what}" for problem in problems)):
        out.print(printable(line))
    return OK


def fit_lines(fit: CostFit) -> Iterator[str]:
    """A fit for people, and what to paste into an arm."""
    seen = f"{fit.iterations} iterations ({fit.left_out} left out)"
    yield f"arm {fit.arm}: fitted to {fit.replicates} {fit.evidence_class} replicates, {seen}"
    for name, found in fit.estimates.items():
        kept = "set to 0: the records ask for less than nothing" if name in fit.dropped else f"standard error {found.error:.6g}"
        yield f"  {name} {found.value:.6g} ({kept})"
    yield (
        f"  held out: iterations are off by {fit.median_error:.1%} (median) and {fit.p90_error:.1%} (p90), "
        f"summed time by {fit.time_error:.1%} at worst"
    )
    yield "  args of an arm of runtime reference (its records are synthetic, and say fitted):"
    yield from (f"    {name}: {value}" for name, value in fit.arguments().items())


def card_dict(card: Card) -> dict[str, Any]:
    """A card as the JSON answer gives it."""
    return _head(card) | {
        "contract": asdict(card.contract),
        "tie_break": list(card.tie_break),
        "parameters": {name: asdict(parameter) for name, parameter in card.parameters.items()},
        "claim_limits": list(card.claim_limits),
    }


def card_lines(card: Card) -> Iterator[str]:
    """A card for people, a fact a line."""
    yield f"{card.policy_id} (version {card.policy_version}), shaped like: {card.shaped_like}"
    yield f"exact reproduction: {'yes' if card.exact_reproduction else 'no'}"
    yield f"evidence basis: {card.evidence_basis}"
    yield f"tie-break, ascending: {', then '.join(card.tie_break)}"
    yield "contract K_m = (G, I, S, D, U, O, M, A, F):"
    for part, value in asdict(card.contract).items():
        text = value if isinstance(value, str) else "; ".join(value) or "none"
        yield f"  {CONTRACT[part]} {part.replace('_', ' ')}: {text}"
    yield "parameters:" if card.parameters else "parameters: none"
    for name, known in card.parameters.items():
        yield f"  {name}={known.default} ({known.unit}, at least {known.least}): {known.meaning}"
    yield "must not be claimed:"
    yield from (f"  {limit}" for limit in card.claim_limits)


def _head(card: Card) -> dict[str, Any]:
    names = ("policy_id", "policy_version", "shaped_like", "evidence_basis", "exact_reproduction")
    return {name: getattr(card, name) for name in names}


COMMANDS = (policies,)
