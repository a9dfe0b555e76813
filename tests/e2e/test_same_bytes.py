"""What is sent, encoded in processes of its own: the same bytes under any hash seed and for 1, 2 and 5 workers, and no room beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys

class Mixed:
    def __init__(self, parts):
        self.parts = parts

    def ids(self, i):
        return self.parts[i % 3].ids(i)

    def text(self, i):
        return self.parts[i % 3].text(i)

def main():
    import numpy as np
    from harness.campaign.bodies import encode_bodies
    from tests.unit.test_campaign_bodies import TARGET, run
    from tests.unit.test_workloads_digest import column, schedule
    from tests.unit.test_workloads_prompts import blocks, make, turns

    lengths = [40 + i % 50 for i in range(60)]
    kinds = (
        {},
        {"sharing": "as_trace", "blocks": blocks([[1 + i % 3, 2**63 + i % 5, i] for i in range(60)], 16)},
        {"sharing": "as_trace", "turns": turns([i - 10 for i in range(60)]), "answers": np.full(60, 1)},
    )
    none = column(*[-1] * 60)
    rest = {"source_row": none, "priority": None, "cancel_after_ns": None, "turns": None, "client": None}
    columns = {"arrival_ns": column(*range(60)), "input_tokens": column(*lengths), "output_tokens": column(*[3] * 60)}
    for source in ("random-ids", "text"):
        prompts = Mixed([make(lengths, source=source, **kind) for kind in kinds])
        plan = schedule(**columns, max_tokens=none, stop_after=none, prompts=prompts, **rest)
        print(source, *(encode_bodies(plan, run(source=source), TARGET, shares=int(k)).digest for k in sys.argv[1:]))

if __name__ == "__main__":  # spawned workers import this file, and should not import the tests
    main()
"""


def digests(tmp_path: Path, hash_seed: str, *shares: int) -> list[list[str]]:
    script = tmp_path / "same_bytes.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *map(str, shares)]
    done = subprocess.run(command, check=True, env=environment, cwd=ROOT, capture_output=True, text=True)
    return [line.split() for line in done.stdout.splitlines()]


def test_any_number_of_workers_and_any_hash_seed_send_the_same_bytes(tmp_path: Path) -> None:
    alone = digests(tmp_path, "0", 1)
    assert len({digest for _, digest in alone}) == 2
    for found in (digests(tmp_path, "1", 5), digests(tmp_path, "4242", 2)):
        assert found == alone


ROOM = """
import numpy as np
from harness.campaign.bodies import encode_bodies
from tests.unit.test_campaign_bodies import TARGET, run
from tests.unit.test_workloads_digest import column, schedule
from tests.unit.test_workloads_prompts import make

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

lengths = np.random.default_rng(1).integers(100, 24_000, 500).tolist()
none = column(*[-1] * 500)
rest = {"source_row": none, "priority": None, "cancel_after_ns": None, "turns": None, "client": None, "max_tokens": none}
columns = {"arrival_ns": column(*range(500)), "input_tokens": column(*lengths), "output_tokens": none, "stop_after": none}
plan = schedule(**columns, prompts=make(lengths, source="random-ids"), **rest)
first = encode_bodies(plan, run(), TARGET)  # what is set up once is no part of it
before = resident()
bodies = encode_bodies(plan, run(), TARGET).bodies
print(sum(map(len, bodies)), resident() - before)
"""


def test_bodies_take_no_more_room_than_their_bytes() -> None:
    done = subprocess.run([sys.executable, "-c", ROOM], check=True, cwd=ROOT, capture_output=True, text=True)
    size, grown = map(int, done.stdout.split())
    assert size > 10 * 2**20
    assert grown < 1.5 * size  # 2.5 times and more where each lies in the buffer that it was encoded in
