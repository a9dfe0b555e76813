"""``PYTHON vllm_metrics.py FILE.npz``: the metric code of ``vllm bench serve`` on requests given as columns; prints one JSON object.

Only ``calculate_metrics`` is timed, on objects made before: with the percentiles 50, 95 and 99, and with 99 alone, as it is by default.
What it prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

import numpy as np

PEAKS = ("max_output_tokens_per_s", "max_concurrent_requests")


def main() -> None:
    """Time it, best of seven, and tell what it found."""
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput  # type: ignore[import-not-found]
    from vllm.benchmarks.serve import calculate_metrics  # type: ignore[import-not-found]

    data = dict(np.load(sys.argv[1]))  # an archive would be read again at every name
    stop = np.cumsum(data["tokens"] - 1)
    outputs = []
    for i, n in enumerate(data["tokens"].tolist()):
        send, first, last = (float(data[name][i]) for name in ("send", "first", "last"))
        one = RequestFuncOutput(success=True, latency=last - send, output_tokens=n, ttft=first - send, prompt_len=16, start_time=send)
        one.itl = data["gaps"][stop[i] - n + 1 : stop[i]].tolist()
        outputs.append(one)
    limits = {"ttft": float(data["limits"][0]) * 1e3, "tpot": float(data["limits"][1]) * 1e3}
    spent: dict[str, list[float]] = {"p99": [], "p50 p95 p99": []}
    with contextlib.redirect_stdout(sys.stderr):
        for levels in list(spent) * 7:
            before = time.process_time()
            found, _ = calculate_metrics([], outputs, float(data["limits"][2]), None, [float(p[1:]) for p in levels.split()], limits)
            spent[levels].append(time.process_time() - before)
    print(json.dumps({"cpu_s": {levels: min(each) for levels, each in spent.items()}, "values": _values(found)}))


def _values(found: Any) -> dict[str, float]:
    """All it found, but for what concerns audio; times in s."""
    values = {"goodput": found.request_goodput}
    for name in ("completed", "failed", "total_input", "total_output", "request_throughput", "output_throughput", *PEAKS):
        values[name] = getattr(found, name)
    values["total_token_throughput"] = found.total_token_throughput
    for name in ("ttft", "tpot", "itl", "e2el"):
        values |= {f"{statistic}_{name}": getattr(found, f"{statistic}_{name}_ms") / 1e3 for statistic in ("mean", "std", "median")}
        values |= {f"p{level:g}_{name}": value / 1e3 for level, value in getattr(found, f"percentiles_{name}_ms")}
    return values


if __name__ == "__main__":
    main()
