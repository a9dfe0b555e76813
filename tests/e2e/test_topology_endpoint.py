"""An endpoint with servers behind it: each is asked, counted, held against the pins, and sealed among the coordinates."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.clock import MonotonicClock
from harness.record.coordinates import Known, Unknown
from harness.record.reader import RunRecord, latest_sealed, read_run
from harness.runtimes.ports import free_port
from harness.runtimes.process import ServerProcess
from harness.runtimes.reference import ReferenceRuntime
from harness.system import Arm, ModelPin, Pins
from tests.e2e.test_bad_input import FEW, GOOD, write

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
MANY = "  many: {runtime: reference, args: {max-num-seqs: 16, cost-base: 5ms}}\n"
PINS = "  model: {id: tiny, dtype: float32}\n"
MODEL = "nobody-has-it"
"""A model of that name must not lie on this machine, or its tokenizer would be taken for the server's."""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two reference servers; the first plays the router as well."""
    runtime, arm, pins = ReferenceRuntime(), Arm(name="a", runtime="reference"), Pins(model=ModelPin(id=MODEL, dtype="float32"))
    folder = tmp_path_factory.mktemp("servers")
    processes, found = [ServerProcess(), ServerProcess()], []
    try:
        for i, process in enumerate(processes):
            port = free_port()
            process.start(runtime.command(arm, pins, port, folder), folder / f"log{i}")
            process.wait_ready(lambda port=port: runtime.ready(f"http://127.0.0.1:{port}"), 60, MonotonicClock())
            found.append(f"http://127.0.0.1:{port}")
        yield found[0], found[1]
    finally:
        for process in processes:
            process.stop()


def measured(folder: Path, arm: str, parallelism: str) -> RunRecord:
    """Measure the endpoint ``arm`` once and return the record."""
    text = ("  output-length:", "  prompts: {source: text}\n  output-length:")
    pins = PINS.replace("tiny", MODEL) + f"  parallelism: {parallelism}\n"
    path = write(folder, GOOD, text, (FEW, f"them: {arm}"), (MANY, ""), (PINS, pins))
    command = [sys.executable, "-m", "harness.cli", "run", str(path), "--results", str(folder / "results")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    (sealed,) = latest_sealed(folder / "results" / "m").values()
    return read_run(sealed)


def test_servers_behind_an_address_are_asked_and_sealed(tmp_path: Path, urls: tuple[str, str]) -> None:
    one, two = urls
    arm = f"{{runtime: endpoint, url: '{one}', members: {{prefill: ['{one}'], decode: ['{two}']}}}}"
    record = measured(tmp_path, arm, "{disaggregation: {prefill: 1, decode: 1, connector: nixl}}")
    assert set(record.whole_requests()["end_kind"].to_pylist()) == {"complete"}
    pins = {pin.pin: pin for pin in record.facts.pins}
    assert pins["parallelism.disaggregation"].result == "matched"
    assert pins["parallelism.disaggregation"].observed == {"prefill": 1, "decode": 1}
    split = record.coordinates.coordinates["parallelism.disaggregation"]
    assert isinstance(split, Known)
    assert split.value == {"prefill": 1, "decode": 1, "connector": "nixl"}
    assert record.spec.arm.members == {"prefill": (one,), "decode": (two,)}


def test_a_server_that_is_claimed_and_silent_leaves_the_count_unknown(tmp_path: Path, urls: tuple[str, str]) -> None:
    silent = f"http://127.0.0.1:{free_port()}"
    arm = f"{{runtime: endpoint, url: '{urls[0]}', members: {{replicas: ['{urls[0]}', '{silent}']}}}}"
    record = measured(tmp_path, arm, "{replicas: 2}")
    pin = next(pin for pin in record.facts.pins if pin.pin == "parallelism.replicas")
    assert (pin.result, pin.reason) == ("unknown", f"no {MODEL} at {silent}")


def test_nobody_says_how_many_servers_answer_behind_an_endpoint(tmp_path: Path, urls: tuple[str, str]) -> None:
    record = measured(tmp_path, f"{{runtime: endpoint, url: '{urls[0]}'}}", "{tensor: 1}")
    assert isinstance(record.coordinates.coordinates["parallelism.replicas"], Unknown)
    assert isinstance(record.coordinates.coordinates["runtime.launch"], Unknown)
