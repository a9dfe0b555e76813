"""Transforms of a trace: window, sort, de-duplicate, compress, thin, re-time, jitter, lengths, clients, loop, as an explicit chain."""

from harness.burstiness import NS_PER_S
from workloads.transforms.apply import Transformed, apply
from workloads.transforms.contract import cut, extent, select, to_ns
from workloads.transforms.log import Described, describe, entry

__all__ = ["NS_PER_S", "Described", "Transformed", "apply", "cut", "describe", "entry", "extent", "select", "to_ns"]
