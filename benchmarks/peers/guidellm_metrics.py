"""``PYTHON guidellm_metrics.py FILE.npz``: GuideLLM's metric code on requests given as columns; prints one JSON object.

Timed is what its report makes of finished requests: the per-request properties, and the weighted distributions over them. Its records keep
the first and the last token of a request and none between, so its cost is one by the request.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np


def main() -> None:
    """Time it, best of three, and tell what it found."""
    from guidellm.schemas import GenerativeRequestStats, StatusDistributionSummary  # type: ignore[import-not-found]
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

    def summary(function: Any) -> Any:
        return StatusDistributionSummary.from_values_function(function=function, successful=done, incomplete=[], errored=[]).successful

    def compiled() -> dict[str, Any]:
        return {
            "latency": summary(lambda r: r.request_latency or 0.0),
            "ttft": summary(lambda r: r.time_to_first_token_ms or 0.0),
            "tpot": summary(lambda r: (r.time_per_output_token_ms or 0.0, r.output_tokens or 0.0)),
            "itl": summary(lambda r: (r.inter_token_latency_ms or 0.0, (r.output_tokens or 1.0) - 1.0)),
            "tokens": summary(lambda r: r.output_tokens or 0.0),
        }

    spent = []
    for _ in range(3):
        before = time.process_time()
        found = compiled()
        spent.append(time.process_time() - before)
    values = {f"mean_{name}": found[name].mean / 1e3 for name in ("ttft", "tpot", "itl")}
    print(json.dumps({"cpu_s": min(spent), "values": values}))


if __name__ == "__main__":
    main()
