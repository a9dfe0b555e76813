"""Command line of the reference server. ``python -m harness.reference.arguments`` prints its flags as JSON, so that an adapter can hold
an argv against the parser of the very version it will start.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence

from harness.errors import Problem, UsageError
from harness.reference.admission import Rule
from harness.reference.contract import Budgets
from harness.reference.cost import CostModel
from harness.reference.deployment import Pools
from harness.reference.memory_arguments import budgets_of, memory_problems
from harness.reference.policy import Policy
from harness.reference.registry import make_policy
from harness.reference.resume import Mode
from harness.reference.suspension import FALLBACKS

METRICS_NAMES = ("trigpoint", "vllm", "sglang")
_MOST = 2**31 - 1
_UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s)")


def duration_ns(text: str) -> int:
    """Parse ``4ms``, ``20us``, ``0.5s`` into ns; a bare ``0`` is allowed, any other bare number is refused (which unit?)."""
    if text.strip() == "0":
        return 0
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number with a unit, for example 4ms (ns, us, ms, s)")
    value = float(match[1]) * _UNITS[match[2]]
    if value > 3600e9:
        raise argparse.ArgumentTypeError(f"{text!r}: more than an hour for one step is not a plausible cost")
    return round(value)


def count(text: str) -> int:
    """Parse a whole number >= 1, of no more tokens or requests than any server has (the scheduler's sums are of 64 bits)."""
    value = count_or_zero(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be at least 1")
    return value


def count_or_zero(text: str) -> int:
    """Parse a whole number >= 0."""
    value = int(text)
    if not 0 <= value <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r}: must not be negative, nor beyond {_MOST}")
    return value


def port(text: str) -> int:
    """Parse a port number; 0 lets the kernel choose."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: must lie from 0 to 65535")
    return value


def seed(text: str) -> int:
    """Parse a seed: any whole number >= 0."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must not be negative")
    return value


def mean(text: str) -> float:
    """Parse a finite mean length >= 1."""
    value = float(text)
    if not math.isfinite(value) or value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a finite number of at least 1 token")
    return value


def parameters(text: str) -> dict[str, int]:
    """Parse ``name=number,name=number``; empty for none."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    wrong = [name for name, _, value in pairs if not value.strip().lstrip("-").isdigit()]
    if wrong:
        raise argparse.ArgumentTypeError(f"{text!r}: give name=whole number, separated by commas; wrong at {', '.join(wrong)}")
    return {name.strip(): int(value) for name, _, value in pairs}


def cost_source(text: str) -> str:
    """Check ``declared`` or ``fitted:DIGEST:ERROR``: campaign the costs were fitted to, and their median relative error on unseen runs."""
    if text != "declared" and re.fullmatch(r"fitted:[0-9a-f]{16,64}:\d{1,3}\.\d{1,6}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r}: give declared, or what trigpoint policies fit-cost prints, fitted:DIGEST:ERROR")
    return text


def metrics_names(text: str) -> tuple[str, ...]:
    """Parse ``trigpoint,vllm``: engines in whose names /metrics speaks. Our own are always among them, since our adapter reads those."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    wrong = [name for name in names if name not in METRICS_NAMES]
    if wrong or METRICS_NAMES[0] not in names:
        raise argparse.ArgumentTypeError(f"{text!r}: give {METRICS_NAMES[0]}, and beside it {' or '.join(METRICS_NAMES[1:])}")
    return names


def make_parser() -> argparse.ArgumentParser:
    """Build the parser; defaults are what the quickstart needs, not a statement about any hardware."""
    parser = argparse.ArgumentParser(
        prog="harness.reference.server", description="OpenAI-compatible server over the reference scheduler.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=port, default=8100, help="port to listen on; 0 lets the kernel choose, the log says which")
    add("--model", default="tiny", help="name the model is served under")
    add("--dtype", default="float32", help="element type to report; nothing is computed with it")
    add("--policy", default="vllm-shaped-fcfs", help="scheduling policy")
    add("--policy-parameters", type=parameters, default={}, help="the policy's parameters, for example aging_ns=2000000000")
    add("--max-num-seqs", type=count, default=16, help="sequence budget of an iteration and cap on running requests")
    add("--max-num-batched-tokens", type=count, default=512, help="token budget of an iteration")
    add("--max-model-len", type=count, default=4096, help="prompt plus output, tokens")
    add("--kv-cache-tokens", type=count, default=65536, help="KV capacity, tokens")
    add("--kv-watermark", type=count_or_zero, default=0, help="KV rows held back from admission, tokens")
    _add_memory(parser)
    add("--prefix-cache-tokens", type=count_or_zero, default=0, help="prompt tokens kept for reuse, beside the KV cache; 0: none")
    add("--prefix-block", type=count, default=16, help="tokens of a block in which prompts are reused")
    add("--prefix-remote", action="store_true", help="the prefix store is on another host: rows from there cost a transfer")
    add("--cost-base", type=duration_ns, default="4ms", help="duration of an iteration before its rows")
    add("--cost-prefill-token", type=duration_ns, default="20us", help="added for each prompt (or rebuilt) row")
    add("--cost-decode-row", type=duration_ns, default="100us", help="added for each decode row")
    add("--cost-context-token", type=duration_ns, default="0", help="added for each KV row that an interval reads")
    add("--cost-transfer-base", type=duration_ns, default="1ms", help="duration of one movement of KV between pools or tiers")
    add("--cost-transfer-token", type=duration_ns, default="2us", help="added for each KV row of it, with all its layers")
    add("--cost-source", type=cost_source, default="declared", help="where these costs are from: declared, or fitted:DIGEST:ERROR")
    add("--max-queue", type=count_or_zero, default=None, help="requests that may wait; more are declined (default: no limit)")
    add("--overload-status", type=int, choices=(429, 503), default=503, help="HTTP status of a declined request")
    add("--max-clients", type=count, default=1024, help="distinct users that are told apart; requests of further ones are declined")
    add("--metrics-names", type=metrics_names, default="trigpoint", help="families of /metrics: trigpoint, and vllm or sglang beside it")
    add("--natural-mean", type=mean, default=64.0, help="mean natural output length, tokens")
    add("--seed", type=seed, default=0, help="mixed into the seed of requests that bring none")
    return parser


def _add_memory(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kv-block", type=count, default=1, help="KV rows that are given at a time; the last block of a request is partly idle")
    add("--admission", choices=[rule.value for rule in Rule], default=Rule.OWN.value, help="what is set aside for a request; own: policy's")
    add("--admission-parameters", type=parameters, default={}, help="percent=90, default=64, learn=0, class.1=200 (outputs of priority 1)")
    add("--preemption", choices=("recompute", "preserve"), default="recompute", help="what becomes of the rows of one that gives way")
    add("--swap-tokens", type=count_or_zero, default=0, help="rows that the second tier takes under preemption preserve")
    add("--swap-write-token", type=duration_ns, default="0", help="time to preserve a row")
    add("--swap-read-token", type=duration_ns, default="0", help="time to bring a row back")
    add("--swap-full", choices=[m.value for m in FALLBACKS], default=Mode.RECOMPUTE.value, help="what follows when the tier has no room")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check what no single flag can check. Raises UsageError with all problems; argparse itself exits with 2."""
    args = make_parser().parse_args(argv)
    problems: list[Problem] = []
    try:
        problems += deployment_problems(
            make_policy(args.policy, args.policy_parameters), budgets_of(args), args.max_model_len, remote=args.prefix_remote
        )
    except UsageError as error:
        problems += error.problems
    problems += memory_problems(args)
    if args.kv_cache_tokens < args.max_model_len:
        problems.append(
            Problem(
                "kv_too_small",
                f"kv-cache-tokens={args.kv_cache_tokens}: less than max-model-len={args.max_model_len}, one request could never finish",
                "raise --kv-cache-tokens or lower --max-model-len",
            )
        )
    if args.kv_watermark >= args.kv_cache_tokens:
        problems.append(
            Problem(
                "watermark_too_large",
                f"kv-watermark={args.kv_watermark}: holds back the whole cache of {args.kv_cache_tokens} tokens",
                "lower --kv-watermark",
            )
        )
    problems += _prefix_problems(args)
    if problems:
        raise UsageError(*problems)
    return args


def _prefix_problems(args: argparse.Namespace) -> list[Problem]:
    problems = []
    if 0 < args.prefix_cache_tokens < args.prefix_block:
        what = f"prefix-cache-tokens={args.prefix_cache_tokens}: less than one block of {args.prefix_block}, nothing could ever be reused"
        remedy = "raise --prefix-cache-tokens, lower --prefix-block, or set 0 for no prefix cache"
        problems.append(Problem("prefix_cache_too_small", what, remedy))
    if args.prefix_remote and not args.prefix_cache_tokens:
        what = "prefix-remote: prefix-cache-tokens=0, so there is no store that could be on another host"
        problems.append(Problem("prefix_remote", what, "set --prefix-cache-tokens, or leave --prefix-remote out"))
    return problems


def cost_model(args: argparse.Namespace) -> CostModel:
    """The declared cost model of a command line."""
    rows = (args.cost_prefill_token, args.cost_decode_row, args.cost_context_token)
    return CostModel(args.cost_base, *rows, args.cost_transfer_base, args.cost_transfer_token, args.cost_source)


def deployment_problems(policy: Policy, budgets: Budgets, max_model_len: int, *, remote: bool = False) -> list[Problem]:
    """Why a policy cannot run on what it would deploy within ``budgets``. ``remote``: prompt beginnings come from another host."""
    problems: list[Problem] = []
    pools = policy.deployment(budgets)
    if remote and pools is not None:
        what = f"prefix-remote: policy {policy.policy_id} has its KV moved by another owner already"
        problems.append(Problem("prefix_remote", what, "leave --prefix-remote out"))
    if not isinstance(pools, Pools):
        return problems
    if budgets.tokens < 2 or budgets.sequences < 2:
        what = f"max-num-batched-tokens={budgets.tokens} max-num-seqs={budgets.sequences}: two pools step at once, each needs one at least"
        problems.append(Problem("pool_too_small", what, "raise both to 2 or more"))
    if max_model_len > min(pools.prefill_kv, pools.decode_kv):
        what = f"pools of {pools.prefill_kv} and {pools.decode_kv} KV tokens: less than max-model-len={max_model_len} in one of them"
        problems.append(Problem("pool_too_small", what, "raise --kv-cache-tokens, which both share, or change prefill_percent"))
    return problems


def describe() -> list[dict[str, object]]:
    """List what argparse knows of each option: its flags, nargs (None: one value) and choices."""
    return [
        {"flags": action.option_strings, "nargs": action.nargs, "choices": [str(c) for c in action.choices] if action.choices else None}
        for action in make_parser()._actions
        if action.dest != "help"
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Without arguments print the flags; with arguments check them (exit 2 and the reason on stderr when refused)."""
    given = sys.argv[1:] if argv is None else list(argv)
    if not given:
        sys.stdout.write(json.dumps(describe()) + "\n")
        return 0
    try:
        parse(given)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
