"""``PYTHON vllm_metrics.py FILE.npz``: the metric code of ``vllm bench serve`` on requests given as columns; prints one JSON object.

Only ``calculate_metrics`` is timed, on objects made before; what it prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time

import numpy as np


def main() -> None:
    """Time it, best of three, and tell what it found."""
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
    spent = []
    with contextlib.redirect_stdout(sys.stderr):
        for _ in range(3):
            before = time.process_time()
            found, _ = calculate_metrics([], outputs, float(data["limits"][2]), None, [99.0], limits)
            spent.append(time.process_time() - before)
    names = ("mean_ttft_ms", "mean_tpot_ms", "mean_itl_ms", "mean_e2el_ms")
    values = {name.removesuffix("_ms"): getattr(found, name) / 1e3 for name in names}
    for name in ("ttft", "tpot", "itl"):
        values[f"p99_{name}"] = dict(getattr(found, f"percentiles_{name}_ms"))[99.0] / 1e3
    print(json.dumps({"cpu_s": min(spent), "values": values | {"goodput": found.request_goodput}}))


if __name__ == "__main__":
    main()
