"""``PYTHON guidellm_metrics.py FILE.npz``: GuideLLM's metric code on requests given as columns; prints one JSON object.

Timed is ``GenerativeMetrics.compile`` over finished requests, with what it asks of the benchmark around them filled in: what it runs for a
report. Beside it five of the summaries that it makes: latency, TTFT, TPOT, ITL and the rate of requests. Its records keep the first and
the last token of a request and none between, so most of its cost is one by the request.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np


def main() -> None:
    """Time it, best of seven, and tell what it found."""
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

    spent: dict[str, list[float]] = {"whole compile": [], "five summaries": []}
    for _ in range(7):
        before = time.process_time()
        found = GenerativeMetrics.compile(whole)
        between = time.process_time()
        _five(done, span)
        spent["whole compile"].append(between - before)
        spent["five summaries"].append(time.process_time() - between)
    summaries = {"ttft": found.time_to_first_token_ms, "tpot": found.time_per_output_token_ms, "itl": found.inter_token_latency_ms}
    values = {f"mean_{name}": summary.successful.mean / 1e3 for name, summary in summaries.items()}
    print(json.dumps({"cpu_s": {what: min(each) for what, each in spent.items()}, "values": values}))


def _five(done: list[Any], span: Any) -> None:
    """The summaries alone, by the calls that ``compile`` makes."""
    from guidellm.schemas import StatusDistributionSummary

    functions = (
        lambda r: r.request_latency or 0.0,
        lambda r: r.time_to_first_token_ms or 0.0,
        lambda r: (r.time_per_output_token_ms or 0.0, r.output_tokens or 0.0),
        lambda r: (r.inter_token_latency_ms or 0.0, (r.output_tokens or 1.0) - 1.0),
    )
    for function in functions:
        StatusDistributionSummary.from_values_function(function=function, successful=done, incomplete=[], errored=[])
    times = {"start_time": span.finalized_measure_start, "end_time": span.finalized_measure_end}
    StatusDistributionSummary.rate_distribution_from_timings_function(
        function=lambda r: r.request_end_time, successful=done, incomplete=[], errored=[], **times
    )


if __name__ == "__main__":
    main()
