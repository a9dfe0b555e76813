"""Roles of a split into prefill and decode: what an engine is told of its own, and what the servers behind an address say when asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import Problem
from harness.runtimes.asking import served_models
from harness.system import Arm, Disaggregation, Fact, Pins

_VLLM_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_VLLM_ARG = "kv-transfer-config"
_MODULE = "kv_connector_module_path"


def own_role(pins: Pins) -> str | None:
    """Role of the one server that we start: ``prefill`` or ``decode``, None when it does both."""
    split = pins.parallelism.disaggregation
    return None if split is None else "prefill" if split.prefill else "decode"


def vllm_role_args(pins: Pins) -> list[str]:
    """``vllm serve`` arguments that give the server its role; [] without one. The pins must have passed ``role_problems``."""
    role, split = own_role(pins), pins.parallelism.disaggregation
    if role is None or split is None:
        return []
    config = {"kv_connector": split.connector, "kv_role": _VLLM_ROLES[role]}
    return [f"--{_VLLM_ARG}", json.dumps(config, sort_keys=True, separators=(",", ":"))]


def sglang_role_args(pins: Pins) -> list[str]:
    """``sglang.launch_server`` arguments that give the server its role; [] without one."""
    role, split = own_role(pins), pins.parallelism.disaggregation
    if role is None or split is None:
        return []
    carrier = ["--disaggregation-transfer-backend", split.connector] if split.connector else []
    return ["--disaggregation-mode", role, *carrier]


def role_problems(arm: Arm, pins: Pins) -> list[Problem]:
    """What we cannot start: more than one server, a role without what carries its cache (vLLM), a role said twice, code by path."""
    problems = [*_several(arm, pins.parallelism.disaggregation, pins.parallelism.replicas)]
    given = arm.args.get(_VLLM_ARG)
    split = pins.parallelism.disaggregation
    if split is not None and arm.runtime == "vllm" and split.connector is None:
        what = f"arm {arm.name}: pins.parallelism.disaggregation names no connector, and vLLM has no default for what carries the cache"
        problems.append(Problem("connector_missing", what, "add connector, e.g. connector: NixlConnector"))
    if split is not None and given is not None:
        what = f"arm {arm.name}: args.{_VLLM_ARG} beside pins.parallelism.disaggregation: the role would be said twice"
        problems.append(Problem("flag_reserved", what, f"remove {_VLLM_ARG}, or the pin"))
    if given is not None and _MODULE in str(given):
        what = f"arm {arm.name}: args.{_VLLM_ARG} names {_MODULE}: code by its path is never a manifest's to choose"
        problems.append(Problem("flag_reserved", what, f"remove {_MODULE}; connectors that vLLM brings are called by name"))
    return problems


def _several(arm: Arm, split: Disaggregation | None, replicas: int | None) -> list[Problem]:
    count = (replicas or 1) if split is None else split.prefill + split.decode
    if count <= 1:
        return []
    what = f"arm {arm.name}: {count} servers are pinned, and Trigpoint starts one an arm and routes nothing"
    return [Problem("several_servers", what, "start them behind a router of yours and measure its address with runtime: endpoint")]


def member_facts(arm: Arm, pins: Pins, headers: Callable[[str], Mapping[str, str]]) -> dict[str, Fact]:
    """Ask every server behind an endpoint whether it lists the pinned model.

    ``headers``: authorisation by address. Facts: ``server.replicas`` (int) or ``server.roles`` ({prefill, decode}); null as long as one of
    the named servers does not answer, since a router may then have fewer behind it than are claimed, and where one is pinned and no server
    is named. That each address leads to another server is the user's word.
    """
    split = pins.parallelism
    if not arm.members:
        pinned = {"server.replicas": split.replicas, "server.roles": split.disaggregation}
        return {name: Fact(reason="no server behind the address is named", source="members") for name, n in pinned.items() if n is not None}
    silent = [url for urls in arm.members.values() for url in urls if not _serves(url, pins.model.id, headers(url))]
    name = "server.replicas" if "replicas" in arm.members else "server.roles"
    if silent:
        return {name: Fact(reason=f"no {pins.model.id} at {', '.join(silent)}", source="GET /v1/models of the members")}
    counts: dict[str, Any] = {role: len(arm.members.get(role, ())) for role in ("prefill", "decode")}
    return {name: Fact(value=counts if name == "server.roles" else len(arm.members["replicas"]), source="GET /v1/models of the members")}


def _serves(url: str, model: str, headers: Mapping[str, str]) -> bool:
    return any(entry["id"] == model for entry in served_models(url, headers))
