"""From a workload document with hidden truth to what an online policy may see, and the truth to the executor that may not tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import Problem, UsageError
from harness.reference.contract import Budgets, Declaration, WorkloadManifest

HIDDEN = "fixture_only_hidden_truth"
"""The one field a realized length may stand in."""

LEAKS = dict.fromkeys(("realized_output_tokens", "output_tokens", "stop_after", "finish_iteration"), "hidden_truth_leak") | dict.fromkeys(
    ("physical_blocks", "block_ids", "block_table", "host_address"), "physical_block_leak"
)
"""Fields that belong to another owner, and the code under which they are refused in workloads and in plans."""

_REQUIRED = ("arrival_order", "prompt_tokens", "max_output_tokens")
_OPTIONAL = ("generation", "priority", "client", "arrival_ns", "ttft_ns", "tbt_ns")


def online_projection(document: Mapping[str, Any]) -> tuple[WorkloadManifest, dict[str, Any]]:
    """Split a document into the online manifest and the hidden truth by request id.

    Fields outside an allow-list are refused, so that no realized length or physical block can reach a policy under another name.
    Requests are numbered in the order of the document; ``client`` is a number. Raises UsageError with every problem:
    ``hidden_truth_leak``, ``physical_block_leak``, ``unknown_field``, ``missing_field``, ``bad_count``, ``duplicate_request``.
    """
    requests = [(f"requests[{i}]", entry) for i, entry in enumerate(document["requests"])]
    problems = [problem for where, entry in requests for problem in _check_entry(where, entry)]
    problems += _check_top(document)
    if problems:
        raise UsageError(*problems)
    ids = [entry["request_id"] for _, entry in requests]
    if len(set(ids)) != len(ids):
        raise UsageError.single("duplicate_request", f"requests={ids}: an id appears twice", "give every request an id of its own")
    manifest = WorkloadManifest(
        workload_id=document["workload_id"],
        clock=document["clock"],
        policy_id=document["policy_id"],
        policy_version=document["policy_version"],
        tie_break=tuple(document["tie_break"]),
        budgets=Budgets(**document["budgets"]),
        requests=tuple(_declaration(number, entry) for number, (_, entry) in enumerate(requests)),
        parameters=tuple(sorted(document.get("parameters", {}).items())),
    )
    return manifest, {entry["request_id"]: entry[HIDDEN] for _, entry in requests if HIDDEN in entry}


_TOP = ("parameters", "workload_id", "clock", "policy_id", "policy_version", "tie_break", "budgets", "requests")


def _check_top(document: Mapping[str, Any]) -> list[Problem]:
    return [_refuse(name, "workload") for name in document if name not in _TOP]


def _check_entry(where: str, entry: Mapping[str, Any]) -> list[Problem]:
    problems = [_refuse(name, where) for name in entry if name not in ("request_id", *_REQUIRED, *_OPTIONAL, HIDDEN)]
    problems += [
        Problem("missing_field", f"{name}: not given", "declare it; there is no default", where)
        for name in ("request_id", *_REQUIRED)
        if name not in entry
    ]
    for name in ("prompt_tokens", "max_output_tokens"):
        value = entry.get(name, 1)
        if not isinstance(value, int) or value < 1:
            problems.append(Problem("bad_count", f"{name}={value!r}: must be a whole number >= 1", "give the declared token count", where))
    return problems


def _refuse(name: str, where: str) -> Problem:
    if name in LEAKS:
        return Problem(LEAKS[name], f"{name}: an online policy must not see it", f"move it under {HIDDEN}", where)
    return Problem("unknown_field", f"{name}: not part of the contract", "remove it", where)


def _declaration(number: int, entry: Mapping[str, Any]) -> Declaration:
    optional = {name: entry[name] for name in _OPTIONAL if name in entry}
    return Declaration(handle=number, **{name: entry[name] for name in _REQUIRED}, **optional)
