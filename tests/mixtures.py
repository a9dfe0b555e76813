"""Runs for property tests: requests by the clock, turns that wait, turns that never came due, of several clients and classes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from harness.record.reader import RunRecord
from harness.record.schema import EndKind
from harness.record.spec import Slo
from tests.builders import MS, S, make_never_due, make_record, make_request, make_spec

NAMES = st.sampled_from([None, "a", "b", "<c>"])
ARRIVED = [k.value for k in EndKind if k is not EndKind.NEVER_DUE]

arrived = st.fixed_dictionaries(
    {
        "at": st.integers(0, 13),
        "waits": st.booleans(),
        "end_kind": st.sampled_from([*ARRIVED, "complete", "complete", "an end of a later version"]),
        "http_status": st.sampled_from([200, 429, 500]),
        "ttft_ns": st.sampled_from([50 * MS, 300 * MS, 600 * MS]),
        "usage_cached_tokens": st.sampled_from([None, 0, 8]),
        "client": NAMES,
        "request_class": NAMES,
    }
)
never = st.fixed_dictionaries({"never": st.sampled_from(["never_due", "never_sent"]), "client": NAMES, "request_class": NAMES})
mixtures = st.lists(st.one_of(arrived, arrived, never), max_size=24)
"""Descriptions of requests, for ``record_of``."""

CLASSES = {"a": Slo(ttft_ns=100 * MS), "<c>": Slo(ttft_ns=1000 * MS, tbt_ns=10 * MS)}


def record_of(mixture: list[dict[str, Any]], **spec: Any) -> RunRecord:
    """Build the record that a mixture describes, request by request in its order."""
    rows, plan = [], {}
    for i, one in enumerate(mixture):
        plan[i] = {"client": one["client"], "request_class": one["request_class"], "reusable_tokens": i % 20}
        if "never" in one:
            rows.append(make_never_due(i, one["never"]))
        else:
            made = {k: v for k, v in one.items() if k not in ("at", "waits", "client", "request_class")}
            rows.append(make_request(i, one["at"] * S + i, **made))
        if one.get("waits", True):
            # The planned arrival of a turn that waits is a wish: here it always lies in the window.
            plan[i] |= {"arrival_ns": 5 * S, "after": [10**6], "think_ns": 0}
    return make_record(rows, plan=plan, spec=make_spec(slo_classes=CLASSES, **spec))
