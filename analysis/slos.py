"""Which SLO a request is held to, and the tightest limits of a run: an SLO may differ by request class."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from analysis.model import Limit
from analysis.planned import MISSING, Bools, Int64, names
from harness.clock import NS_PER_S
from harness.record.reader import RunRecord
from harness.record.spec import RunSpec, Slo


def judged_by(record: RunRecord, request_id: Int64) -> list[tuple[Slo, Bools]]:
    """Pair every SLO of the run with the requests it judges (n,); each request is in exactly one mask.

    A class with an entry in ``slo_classes`` is held to that; every other request, with or without a class, to ``slo``.
    """
    named = record.spec.slo_classes
    if not named:
        return [(record.spec.slo, np.ones(len(request_id), dtype=bool))]
    classes = names(record.schedule, "request_class", request_id)
    parts = [(slo, np.asarray(classes == name, dtype=bool)) for name, slo in named.items()]
    rest = ~np.logical_or.reduce([mask for _, mask in parts])
    return [*parts, (record.spec.slo, rest)]


def limits(record: RunRecord, request_id: Int64, limit: str) -> Int64:
    """The named limit that each request is held to (n,), ns; MISSING where its SLO sets none."""
    found = np.full(len(request_id), MISSING)
    for slo, mask in judged_by(record, request_id):
        own = getattr(slo, limit)
        found[mask] = MISSING if own is None else own
    return found


def tightest(spec: RunSpec, *limits: str) -> int | None:
    """Return the smallest of the named limits over every SLO of the run, ns; None when none is set."""
    found = [getattr(slo, limit) for slo in (spec.slo, *spec.slo_classes.values()) for limit in limits]
    return min((x for x in found if x is not None), default=None)


def describe_slo(slo: Slo, classes: Mapping[str, Slo] | None = None) -> str:
    """Write the SLO predicate as one line, limits in ms; equal text means equal predicate."""
    parts = []
    if slo.ttft_ns is not None:
        parts.append(f"TTFT <= {slo.ttft_ns / 1e6:g} ms")
    if slo.tbt_ns is not None:
        parts.append(f"TBT ({slo.tbt_rule}) <= {slo.tbt_ns / 1e6:g} ms")
    if slo.e2e_ns is not None:
        parts.append(f"E2E <= {slo.e2e_ns / 1e6:g} ms")
    own = " and ".join(parts) or "completion only"
    # Names are quoted as JSON: a class may be called anything, also like a limit.
    return "; ".join([own, *(f"class {json.dumps(n)}: {describe_slo(s)}" for n, s in sorted((classes or {}).items()))])


def drawn_limits(slo: Slo, classes: Mapping[str, Slo] | None = None) -> tuple[Limit, ...]:
    """Return the limits that a plot of a clock can show, of every SLO of a run. A rule on means of gaps limits no gap: not among them."""
    found: list[Limit] = []
    for name, one in ((None, slo), *sorted((classes or {}).items())):
        whose = "" if name is None else f"class {name}"
        rule = {"every": "every gap", "p99": "p99 of a request's gaps"}.get(one.tbt_rule)
        found += [Limit("ttft", one.ttft_ns / NS_PER_S, whose)] if one.ttft_ns is not None else []
        found += [Limit("tbt", one.tbt_ns / NS_PER_S, ", ".join(filter(None, [whose, rule])))] if one.tbt_ns is not None and rule else []
        found += [Limit("e2e", one.e2e_ns / NS_PER_S, whose)] if one.e2e_ns is not None else []
    return tuple(found)
