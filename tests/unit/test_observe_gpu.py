"""Facts and samples of accelerators, against a recording of the driver's library: one refusal costs one answer, and nothing becomes 0."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.observe.gpu import NAMES, QUESTIONS, SETTINGS, THROTTLE, gpu_facts, reasons
from harness.observe.gpu_watch import READINGS, GpuWatch
from harness.observe.nvml import owners
from harness.observe.record_nvml import Recorder, main, record
from harness.record.metric_names import GPU
from tests.nvml import FOLDER, Replay, recording, replay

REFUSALS = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST)
SERVER = [1000]


def silent(reason: str) -> None:
    raise AssertionError(reason)


def test_two_devices_are_told_whole() -> None:
    found = gpu_facts((), replay(), SERVER)
    assert tuple(found) == NAMES
    assert (found["host.gpu"].value, found["host.gpu_count"].value) == ("NVIDIA H200", 2)
    assert (found["host.driver"].value, found["host.cuda_driver"].value) == ("580.95.05", "13.0")
    assert found["host.gpu_memory_gib"].value == [140.4, 140.4]
    assert found["host.gpu_power_limit_w"].value == [700.0, 700.0]
    assert (found["host.gpu_ecc"].value, found["host.gpu_mig"].value) == (["on", "on"], ["off", "off"])
    assert found["host.gpu_topology"].value == [["X", "NV18"], ["NV18", "X"]]
    assert (found["host.gpu_processes"].value, found["host.gpu_foreign_processes"].value) == (2, 1)
    assert not [name for name, fact in found.items() if fact.value is None or fact.reason]


def test_every_file_replays_by_the_library_s_own_names() -> None:
    for path in FOLDER.glob("*.json"):
        page = json.loads(path.read_text(encoding="utf-8"))
        assert page["made"].startswith(("by hand", "recorded")), path
        replay(path.name)


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("fact", list(QUESTIONS))
def test_a_refused_call_costs_its_own_facts_only(fact: str, code: int) -> None:
    call = QUESTIONS[fact].call
    found = gpu_facts((), replay(**{call: code}), SERVER)
    missing = {name for name, told in found.items() if told.value is None}
    assert missing - {"host.gpu_settings"} == {name for name, question in QUESTIONS.items() if question.call == call}
    assert call in (found[fact].reason or "")


def test_a_device_that_refuses_has_null_beside_the_other_s_value() -> None:
    calls = [
        c | {"raises": 3} if c["call"] == "nvmlDeviceGetEccMode" and c["args"][0]["device"] == 1 else c for c in recording("h200x2.json")
    ]
    fact = gpu_facts((), Replay(calls))["host.gpu_ecc"]
    assert fact.value == ["on", None]
    assert (fact.reason or "").startswith("device 1: nvmlDeviceGetEccMode: Not Supported")


@pytest.mark.parametrize("call", ["nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetName"])
def test_a_refusal_of_what_identifies_is_unknown(call: str) -> None:
    names = {
        "nvmlSystemGetDriverVersion": "host.driver",
        "nvmlSystemGetCudaDriverVersion": "host.cuda_driver",
        "nvmlDeviceGetName": "host.gpu",
    }
    found = gpu_facts((), replay(**{call: pynvml.NVML_ERROR_UNKNOWN}))
    assert found[names[call]].value is None
    assert found["host.gpu_count"].value == 2


def test_settings_are_told_together() -> None:
    settings = gpu_facts((), replay())["host.gpu_settings"].value
    assert settings == {"power_limit_w": [700.0] * 2, "ecc": ["on"] * 2, "mig": ["off"] * 2, "sm_clock_application_mhz": [1980] * 2}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_a_device_does_not_have_is_told_and_one_that_is_not_told_leaves_all_unknown(name: str) -> None:
    call = QUESTIONS[f"host.gpu_{name}"].call
    assert gpu_facts((), replay(**{call: pynvml.NVML_ERROR_NOT_SUPPORTED}))["host.gpu_settings"].value[name] == ["not supported"] * 2
    fact = gpu_facts((), replay(**{call: pynvml.NVML_ERROR_NO_PERMISSION}))["host.gpu_settings"]
    assert fact.value is None
    assert call in (fact.reason or "")


def test_processes_that_cannot_be_listed_are_unknown() -> None:
    found = gpu_facts((), replay(nvmlDeviceGetComputeRunningProcesses=pynvml.NVML_ERROR_NO_PERMISSION), SERVER)
    assert found["host.gpu_processes"].value is None
    assert found["host.gpu_foreign_processes"].value is None


def test_processes_of_which_none_is_known_as_the_server_s_may_be_the_server() -> None:
    found = gpu_facts((), replay())
    assert found["host.gpu_processes"].value == 2
    assert found["host.gpu_foreign_processes"].value is None


def hiding(used: int | None) -> Replay:
    """The recorded devices where the driver shows no process, as in a container, and so many bytes of each are in use; None: not told."""
    calls = []
    for call in recording("h200x2.json"):
        if call["call"] == "nvmlDeviceGetComputeRunningProcesses":
            call = call | {"returns": []}
        elif call["call"] == "nvmlDeviceGetMemoryInfo":
            call = call | ({"raises": pynvml.NVML_ERROR_NO_PERMISSION} if used is None else {"returns": call["returns"] | {"used": used}})
        calls.append(call)
    return Replay(calls)


def test_no_process_on_a_board_in_use_is_hidden_and_on_an_idle_one_is_none() -> None:
    for name in ("host.gpu_processes", "host.gpu_foreign_processes"):
        assert gpu_facts((), hiding(600 << 20), SERVER)[name].value == 0
        fact = gpu_facts((), hiding(120 << 30), SERVER)[name]
        assert fact.value is None
        assert fact.reason == "120 GiB of device 0 are in use and no process is shown: the driver hides them here"
    assert "nvmlDeviceGetMemoryInfo" in (gpu_facts((), hiding(None), SERVER)["host.gpu_processes"].reason or "")


def test_without_a_link_the_common_ancestor_tells() -> None:
    assert gpu_facts((), replay(nvmlDeviceGetP2PStatus=3))["host.gpu_topology"].value == [["X", "NODE"], ["NODE", "X"]]
    fact = gpu_facts((), replay(nvmlDeviceGetP2PStatus=3, nvmlDeviceGetTopologyCommonAncestor=3))["host.gpu_topology"]
    assert fact.value == [["X", None], [None, "X"]]
    assert fact.reason


def test_links_that_end_at_the_other_device_are_counted() -> None:
    """Of 18 links of the first, four end at the second: the rest lead elsewhere, and no switch is between."""
    far = {"busId": "00000000:3A:00.0", "domain": 0, "bus": 58, "device": 0}
    calls = [
        c | {"returns": far} if c["call"] == "nvmlDeviceGetNvLinkRemotePciInfo" and c["args"][0]["device"] == 0 and c["args"][1] < 4 else c
        for c in recording("h200x2.json")
    ]
    assert gpu_facts((), Replay(calls))["host.gpu_topology"].value[0] == ["X", "NV4"]


def test_no_library_and_no_device_is_none_with_the_reason() -> None:
    found = gpu_facts((), replay(nvmlInit=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert tuple(found) == NAMES
    assert (found["host.gpu"].value, found["host.gpu_count"].value) == ("none", 0)
    assert "no accelerator device here" in (found["host.gpu"].reason or "")
    assert {n for n, f in found.items() if f.value is not None} == {
        "host.gpu", "host.gpu_count", "host.gpu_processes", "host.gpu_foreign_processes",
    }  # fmt: skip
    assert all(f.reason for f in found.values())


def test_a_driver_without_devices_is_none() -> None:
    found = gpu_facts((), Replay([{"call": "nvmlDeviceGetCount", "args": [], "returns": 0}]))
    assert (found["host.gpu"].value, found["host.gpu"].reason) == ("none", "the driver lists no device")


def test_a_device_that_cannot_be_asked_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    for refused in ({"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}, {"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST}):
        found = gpu_facts((tmp_path / "nvidia0",), replay(**refused))
        assert {f.value for f in found.values()} == {None}
        assert "nvidia0 exists, but NVML says" in (found["host.gpu"].reason or "")


def test_the_library_is_closed_again() -> None:
    library = replay()
    gpu_facts((), library)
    assert not library.open
    watch = GpuWatch(lambda: SERVER, silent, library)
    assert library.open
    watch.close()
    assert not library.open
    assert watch.rows() == []


@given(st.integers(min_value=0, max_value=2**20))
def test_every_bit_has_a_word(bits: int) -> None:
    assert len(reasons(bits)) == bits.bit_count()


def test_words_of_the_bits_are_those_of_the_library() -> None:
    for name, bit in (
        ("GpuIdle", 0x1), ("SwPowerCap", 0x4), ("HwSlowdown", 0x8), ("SyncBoost", 0x10), ("SwThermalSlowdown", 0x20),
        ("HwThermalSlowdown", 0x40), ("HwPowerBrakeSlowdown", 0x80), ("DisplayClockSetting", 0x100),
    ):  # fmt: skip
        assert getattr(pynvml, f"nvmlClocksEventReason{name}") == bit
        assert bit in THROTTLE


def values(rows: list[dict[str, Any]], device: str = "0") -> dict[str, float]:
    return {r["metric"]: r["value"] for r in rows if r["labels"] == device}


def test_a_sample_has_every_metric_of_every_device() -> None:
    watch = GpuWatch(lambda: SERVER, silent, replay())
    rows = watch.rows()
    assert {r["source"] for r in rows} == {"gpu"}
    assert set(values(rows)) == set(values(rows, "1")) == set(GPU)
    assert values(rows)["gpu_power_watts"] == 512.345
    assert values(rows)["gpu_energy_j_total"] == 900000123.456
    assert (values(rows)["gpu_processes_server"], values(rows)["gpu_processes_foreign"]) == (1.0, 0.0)
    assert (values(rows, "1")["gpu_processes_server"], values(rows, "1")["gpu_processes_foreign"]) == (0.0, 1.0)
    assert values(watch.rows())["gpu_power_watts"] == 640.210


def test_a_device_s_handle_is_opened_once() -> None:
    library = replay()
    watch = GpuWatch(lambda: SERVER, silent, library)
    for _ in range(3):
        watch.rows()
    assert library.made.count("nvmlDeviceGetHandleByIndex") == 2


@pytest.mark.parametrize("metric", list(READINGS))
def test_a_refused_reading_makes_no_row_and_is_told(metric: str) -> None:
    call = READINGS[metric].call
    lost = {m for m, r in READINGS.items() if r.call == call}
    told: list[str] = []
    library = replay(**{call: pynvml.NVML_ERROR_NOT_SUPPORTED})
    watch = GpuWatch(lambda: SERVER, told.append, library)
    assert set(values(watch.rows())) == set(GPU) - lost
    made = library.made.count(call)
    watch.rows()
    assert library.made.count(call) == made  # what is not supported is not asked again
    assert len(told) == 2 * len(lost)
    assert all("Not Supported" in reason and reason.endswith("not asked again") for reason in told)


def test_a_passing_refusal_is_asked_again() -> None:
    told: list[str] = []
    library = replay(nvmlDeviceGetPowerUsage=pynvml.NVML_ERROR_UNKNOWN, nvmlDeviceGetComputeRunningProcesses=pynvml.NVML_ERROR_UNKNOWN)
    watch = GpuWatch(lambda: SERVER, told.append, library)
    watch.rows()
    watch.rows()
    assert library.made.count("nvmlDeviceGetPowerUsage") == 4
    assert sum("gpu_power_watts" in reason for reason in told) == 4
    assert sum("gpu_processes" in reason for reason in told) == 2


def test_where_no_process_is_ours_nobody_is_called_foreign() -> None:
    rows = GpuWatch(list, silent, replay()).rows()
    assert not any(r["metric"].startswith("gpu_processes") for r in rows)


def test_no_library_is_silence_and_a_device_without_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.observe.gpu_watch.accelerator_nodes", list)
    assert GpuWatch(list, silent, replay(nvmlInit=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)).rows() == []
    told: list[str] = []
    monkeypatch.setattr("harness.observe.gpu_watch.accelerator_nodes", lambda: ["/dev/nvidia0"])
    assert GpuWatch(list, told.append, replay(nvmlInit=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)).rows() == []
    assert told == ["the accelerators of this host cannot be sampled: Driver Not Loaded"]


@given(st.lists(st.sets(st.integers(1, 6)), max_size=4), st.sets(st.integers(1, 6)))
def test_ownership_accounts_for_every_process(seen: list[set[int]], ours: set[int]) -> None:
    told = owners(seen, ours)
    assert (told is None) == (not any(pids & ours for pids in seen))
    if told is not None:
        assert [sum(one) for one in told] == [len(pids) for pids in seen]


def test_what_is_recorded_replays_to_the_same_facts_and_samples() -> None:
    again = Replay(record(replay(), samples=3, wait=lambda _s: None))
    first, second = gpu_facts((), replay()), gpu_facts((), again)
    assert first == second
    before, after = (GpuWatch(lambda: SERVER, silent, library) for library in (replay(), again))
    assert values(before.rows()).keys() == values(after.rows()).keys()


def test_a_recording_keeps_no_identity_and_no_refusal_is_lost() -> None:
    calls = recording("h200x2.json")
    own = [
        c | {"returns": "GPU-8f1d"} if c["call"] == "nvmlDeviceGetUUID" else c | {"raises": 3} if "EccMode" in c["call"] else c
        for c in calls
    ]
    found = record(Replay(own), samples=1, wait=lambda _s: None)
    assert "8f1d" not in json.dumps(found)
    assert {c["raises"] for c in found if c["call"] == "nvmlDeviceGetEccMode"} == {3}


def test_structures_of_the_library_are_kept_by_their_fields() -> None:
    info = pynvml.c_nvmlUtilization_t()
    info.gpu, info.memory = 7, 3
    recorder = Recorder(SimpleNamespace(NVMLError=pynvml.NVMLError, nvmlDeviceGetUtilizationRates=lambda _h: info))
    assert recorder.nvmlDeviceGetUtilizationRates(0).gpu == 7
    assert recorder.calls == [{"call": "nvmlDeviceGetUtilizationRates", "args": [0], "returns": {"gpu": 7, "memory": 3}}]


def test_the_command_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ([], ["-h"], ["a", "b"], ["a", "1", "2"]):
        assert main(wrong) == 2
        assert "FILE" in capsys.readouterr().err
