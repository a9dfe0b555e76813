"""``PYTHON guidellm_metrics.py FILE.npz``: GuideLLM's metric code on requests given as columns; prints one JSON object.

Timed is ``GenerativeMetrics.compile`` over finished requests, with what it asks of the benchmark around them filled in. Its records keep
the first and the last token of a request and none between, so most of its cost is one by the request.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import numpy as np


def main() -> None:
    """Time it, best of three, and tell what it found."""
    from guidellm.benchmark.schemas.accumulator import GenerativeRequestsAccumulator  # type: ignore[import-not-found]
    from guidellm.benchmark.schemas.metrics import GenerativeMetrics  # type: ignore[import-not-found]
    from guidellm.schemas import GenerativeRequestStats  # type: ignore[import-not-found]
    from guidellm.schemas.base.info import RequestInfo, RequestTimings  # type: ignore[import-not-found]
    from guidellm.schemas.base.request import UsageMetrics  # type: ignore[import-not-found]

    data = dict(np.load(sys.argv[1]))
    columns = [data[name].tolist() for name in ("send", "first", "last", "end", "tokens")]
    done = []
    for i, (send, first, last, end, n) in enumerate(zip(*columns, strict=True)):
        times = {"resolve_start": send, "request_start": send, "first_token_iteration": first, "last_token_iteration": last}
        timings = RequestTimings(**times, request_end=end, resolve_end=end, request_iterations=n, token_iterations=n)
        info = RequestInfo(request_id=str(i), status="completed", scheduler_start_time=0.0, timings=timings)
        counts = {"input_metrics": UsageMetrics(text_tokens=16), "output_metrics": UsageMetrics(text_tokens=n)}
        done.append(GenerativeRequestStats(request_id=str(i), info=info, **counts))

    gathered = GenerativeRequestsAccumulator(requests_stats=done)
    nothing = GenerativeRequestsAccumulator()
    config = SimpleNamespace(confidence=None, slo=None, strategy=SimpleNamespace(defines_arrival_schedule=False))
    span = SimpleNamespace(finalized_measure_start=0.0, finalized_measure_end=float(data["end"].max()) + 1.0)
    whole = SimpleNamespace(completed=gathered, incomplete=nothing, errored=nothing, config=config, timings=span)

    spent = []
    for _ in range(3):
        before = time.process_time()
        found = GenerativeMetrics.compile(whole)
        spent.append(time.process_time() - before)
    summaries = {"ttft": found.time_to_first_token_ms, "tpot": found.time_per_output_token_ms, "itl": found.inter_token_latency_ms}
    values = {f"mean_{name}": summary.successful.mean / 1e3 for name, summary in summaries.items()}
    print(json.dumps({"cpu_s": min(spent), "values": values}))


if __name__ == "__main__":
    main()
