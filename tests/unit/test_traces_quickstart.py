"""The quickstart trace is ours, reproducible, and what the quickstart needs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from workloads.traces import read_trace

FOLDER = Path(__file__).parents[2] / "manifests" / "traces"


def test_the_script_reproduces_the_file_byte_for_byte() -> None:
    spec = importlib.util.spec_from_file_location("make_quickstart", FOLDER / "make_quickstart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.render() == (FOLDER / "quickstart.csv").read_bytes()


def test_it_has_five_windows_of_like_load_and_known_licence() -> None:
    trace = read_trace("azure-2023", FOLDER / "quickstart.csv")
    assert trace.licence == "Apache-2.0"
    assert 119 * 10**9 < trace.arrival_ns[-1] < 120 * 10**9
    windows = np.histogram(trace.arrival_ns, bins=5, range=(0, 120 * 10**9))[0]
    assert windows.min() > 0.7 * windows.max()
    # Any 12 s of it hold the 100 requests that a p99 needs.
    after = np.searchsorted(trace.arrival_ns, trace.arrival_ns + 12 * 10**9) - np.arange(len(trace))
    assert after[trace.arrival_ns <= 108 * 10**9].min() >= 100
    assert (trace.input_tokens.min(), trace.input_tokens.max()) == (16, 256)
    assert (trace.output_tokens.min(), trace.output_tokens.max()) == (4, 32)
    gaps = np.diff(trace.arrival_ns)
    assert 1.1 < gaps.std() / gaps.mean() < 1.4
