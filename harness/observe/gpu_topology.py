"""How the devices of a host are joined to each other, in the words that administrators use."""

from __future__ import annotations

from typing import Any

from harness.observe.nvml import Answer, Nvml, decoded
from harness.record.facts import Fact

SOURCE = "NVML"
SELF = "X"
LEVELS = (
    ("NVML_TOPOLOGY_INTERNAL", "PSB"), ("NVML_TOPOLOGY_SINGLE", "PIX"), ("NVML_TOPOLOGY_MULTIPLE", "PXB"),
    ("NVML_TOPOLOGY_HOSTBRIDGE", "PHB"), ("NVML_TOPOLOGY_NODE", "NODE"), ("NVML_TOPOLOGY_SYSTEM", "SYS"),
)  # fmt: skip
"""Nearest common ancestor on the bus -> the word: one board, one switch, several switches, a host bridge, a NUMA node, across nodes."""


def topology(nvml: Nvml) -> Fact:
    """A square matrix of words, row and column in NVML's order: ``X`` itself, ``NV18`` 18 NVLinks (through a switch or direct), else the
    nearest common ancestor on the bus; None where a pair was refused. One device has nothing to be joined to: ``[["X"]]``.
    """
    links = [_links(nvml, handle) for handle in nvml.handles]
    matrix: list[list[str | None]] = []
    refused = ""
    for i in range(len(nvml.handles)):
        row: list[str | None] = []
        for j in range(len(nvml.handles)):
            found = Answer(SELF) if i == j else _pair(nvml, links, i, j)
            row.append(found.value)
            refused = refused or found.reason
        matrix.append(row)
    return Fact(value=matrix, reason=refused or None, source=SOURCE)


def _pair(nvml: Nvml, links: list[list[str | None]], i: int, j: int) -> Answer:
    a, b = nvml.handles[i], nvml.handles[j]
    joined = nvml.ask("nvmlDeviceGetP2PStatus", a, b, nvml.constant("NVML_P2P_CAPS_INDEX_NVLINK"))
    if joined.value == nvml.constant("NVML_P2P_STATUS_OK"):
        bus = _bus(nvml, b)
        direct = sum(bus.value is not None and far == bus.value for far in links[i])
        # Through a switch no link ends at the other device: then all links of the poorer one lead to it.
        count = direct or min(len(links[i]), len(links[j]))
        if count:
            return Answer(f"NV{count}")
    words = {nvml.constant(name): word for name, word in LEVELS}
    return nvml.ask("nvmlDeviceGetTopologyCommonAncestor", a, b, read=lambda level: words.get(level, f"level {level}"))


def _links(nvml: Nvml, handle: Any) -> list[str | None]:
    """Where each active NVLink of a device ends (bus id; None when not told)."""
    ends: list[str | None] = []
    for link in range(nvml.constant("NVML_NVLINK_MAX_LINKS")):
        state = nvml.ask("nvmlDeviceGetNvLinkState", handle, link)
        if state.value is None:
            break  # the device has no link of this number, or none at all
        if state.value == nvml.constant("NVML_FEATURE_ENABLED"):
            ends.append(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link, read=_bus_id).value)
    return ends


def _bus(nvml: Nvml, handle: Any) -> Answer:
    return nvml.ask("nvmlDeviceGetPciInfo", handle, read=_bus_id)


def _bus_id(info: Any) -> str:
    return decoded(info.busId).lower()
