"""The public files that the tabular readers read: printed rows of Azure 2024 and 2025, and the 2023 rows in vidur's form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UsageError
from tests.unit.test_traces_own import flat
from workloads.traces import formats, get_reader, guess_format, read_trace
from workloads.traces.own import SUFFIX, write_trace
from workloads.traces.registry import HEAD_BYTES

ROOT = Path(__file__).parents[3] / "shared" / "traces"
PRINTED = ROOT / "azure-2024-2025-printed-rows"
pytestmark = [pytest.mark.traces, pytest.mark.skipif(not ROOT.is_dir(), reason="the public traces are not beside the project")]

SAMPLES = {
    "AzureLLMInferenceTrace_code_1week.printed10.csv": "azure-2024",
    "AzureLLMInferenceTrace_conv_1week.printed10.csv": "azure-2024",
    "AzureLMMInferenceTrace_multimodal.printed10.csv": "azure-lmm-2025",
}


def stripped(name: str, tmp_path: Path) -> Path:
    """The printed rows without the notebook's row index, as the real file has them."""
    path = tmp_path / name
    path.write_text("".join(line.split(",", 1)[1] for line in (PRINTED / name).read_text().splitlines(keepends=True)))
    return path


@pytest.mark.parametrize(("name", "release"), SAMPLES.items())
def test_printed_rows_are_read_without_their_index(name: str, release: str, tmp_path: Path) -> None:
    path = stripped(name, tmp_path)
    trace = read_trace(release, path)
    rows = [line.split(",") for line in (PRINTED / name).read_text().splitlines()[1:]]
    assert trace.input_tokens.tolist() == [int(row[-2]) for row in rows]
    assert trace.output_tokens.tolist() == [int(row[-1]) for row in rows]
    stamps = np.array([row[1].removesuffix("+00:00").removesuffix("Z") for row in rows], "datetime64[ns]").astype(np.int64)
    assert trace.arrival_ns.tolist() == (stamps - stamps[0]).tolist()
    assert trace.licence == "unknown"
    assert guess_format(path) == release


@pytest.mark.parametrize(("name", "release"), SAMPLES.items())
def test_printed_rows_with_their_index_are_refused(name: str, release: str) -> None:
    with pytest.raises(UsageError, match=r"trace\.header"):
        read_trace(release, PRINTED / name)


def test_images_are_told_from_text(tmp_path: Path) -> None:
    trace = read_trace("azure-lmm-2025", stripped("AzureLMMInferenceTrace_multimodal.printed10.csv", tmp_path))
    assert trace.kind is not None
    assert trace.kind.values().count("image") == 7
    assert "7 of 10 rows carried images (22 in all)" in trace.notes[-1]


@pytest.mark.parametrize("part", ["code", "conv"])
def test_the_2023_files_are_named_by_another_release_only_to_be_refused(part: str) -> None:
    path = ROOT / "azure-llm-2023" / f"AzureLLMInferenceTrace_{part}.csv"
    with pytest.raises(UsageError, match=r"trace\.release.*\n.*azure-2023"):
        read_trace("azure-2024", path)
    assert guess_format(path) == "azure-2023"
    assert guess_format(ROOT / "azure-llm-2023" / "inference-perf_trace_sample.csv") == "azure-2023"


@pytest.mark.parametrize("part", ["code", "conv"])
def test_vidurs_seconds_are_the_2023_rows_to_the_nanosecond(part: str) -> None:
    path = ROOT / "azure-llm-2023" / f"vidur_splitwise_{part}.csv"
    seconds = read_trace("vidur", path)
    stamps = read_trace("azure-2023", ROOT / "azure-llm-2023" / f"AzureLLMInferenceTrace_{part}.csv")
    assert seconds.arrival_ns.tolist() == stamps.arrival_ns.tolist()
    assert seconds.input_tokens.tolist() == stamps.input_tokens.tolist()
    assert seconds.output_tokens.tolist() == stamps.output_tokens.tolist()
    assert (seconds.licence, seconds.grid_ns, guess_format(path)) == ("CC-BY-4.0", 1_000, "vidur")
    assert "vidur" in seconds.attribution
    facts: dict[str, Any] = json.loads((ROOT / "facts.json").read_text())["facts"][f"vidur_splitwise_{part}"]
    assert len(seconds) == facts["rows"]
    assert seconds.arrival_ns[-1] / 1e9 == facts["arrivals"]["span_s"]


@pytest.mark.parametrize(
    "name",
    [
        "azure-llm-2023/AzureLLMInferenceTrace_code.csv",
        "mooncake/conversation_trace.jsonl.gz",
        "vtc-arena/vtc_real_trace.csv",
        "weka-agentic/trace_0277.json",
        "burstgpt/burstgpt3_head105.converted.jsonl",
    ],
)
def test_our_own_format_holds_every_public_family(name: str, tmp_path: Path) -> None:
    """Prefix ids survive conversion (inference-sim#829), and so do clients, turns, classes, failures, licence and credit."""
    trace = read_trace(guess_format(ROOT / name), ROOT / name)
    path = tmp_path / f"t{SUFFIX}"
    write_trace(trace, path)
    again = read_trace("trigpoint", path)
    assert flat(again) == flat(trace)
    assert again.notes[: len(trace.notes)] == trace.notes
    assert trace.sha256 in again.notes[-1]


def test_no_public_file_is_claimed_twice() -> None:
    for path in sorted(path for path in ROOT.rglob("*") if path.is_file()):
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        claims = [name for name in formats() if get_reader(name).sniff(path.name, head)]
        assert len(claims) < 2, f"{path.name}: {claims}"
