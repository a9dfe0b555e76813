"""Facts about machines that are not this one, shown as files; and about accelerators through a stand-in of the driver's library."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.observe.cgroup import UNLIMITED, cpu_limit, group_folder, throttled_s
from harness.observe.gpu import gpu_facts
from harness.observe.host import host_facts


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    write(
        tmp_path,
        proc__cpuinfo="processor\t: 0\nmodel name\t: Example CPU 9000\n\nprocessor\t: 1\nmodel name\t: Other\n",
        proc__meminfo="MemTotal:       16777216 kB\nSwapTotal:       1048576 kB\n",
        proc__sys__kernel__random__boot_id="b-1\n",
    )
    return tmp_path


def facts(root: Path, machine_id: str | None = "m-1") -> dict[str, Any]:
    if machine_id is not None:
        write(root, machine_id=machine_id)
    return host_facts(root / "proc", root / "sys", root / "machine_id")


def test_what_the_kernel_states(machine: Path) -> None:
    found = facts(machine)
    assert found["host.cpu_model"].value == "Example CPU 9000"
    assert (found["host.memory_gib"].value, found["host.swap"].value) == (16.0, 1.0)
    assert found["host.cores"].value == os.cpu_count()
    assert found["host.machine"].value != "m-1"
    assert found["host.identity"].value == f"{found['host.machine'].value[:16]}:b-1"


def test_what_it_does_not_state_is_null_with_a_reason(tmp_path: Path) -> None:
    found = facts(tmp_path, None)
    for name in ("host.cpu_model", "host.memory_gib", "host.governor", "host.boot", "host.machine", "host.identity", "host.cgroup_cpu_max"):
        assert found[name].value is None, name
        assert found[name].reason, name


def test_a_container_without_a_machine_id_still_has_an_identity(machine: Path) -> None:
    assert facts(machine, "\n")["host.identity"].value == "unnamed:b-1"


def test_governors(machine: Path) -> None:
    for core, governor in enumerate(("performance", "powersave")):
        write(machine, **{f"sys__devices__system__cpu__cpu{core}__cpufreq__scaling_governor": f"{governor}\n"})
    assert facts(machine)["host.governor"].value == "performance+powersave"


def group(root: Path, cgroup: str, **files: str) -> tuple[Path, Path]:
    write(root, proc__self__cgroup=cgroup, **{f"sys__{k}": v for k, v in files.items()})
    return root / "proc", root / "sys"


def test_version_2_group_with_a_quota(tmp_path: Path) -> None:
    proc, sys = group(
        tmp_path, "0::/a\n", cgroup_dot_controllers="cpu", a__cpu_dot_stat="usage_usec 5\nthrottled_usec 1500000\n",
        a__cpu_dot_max="150000 100000\n",
    )  # fmt: skip
    assert cpu_limit(proc, sys).value == 1.5
    assert throttled_s(group_folder(proc, sys)) == 1.5


def test_version_2_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    proc, sys = group(
        tmp_path, "0::/docker/abc\n", cgroup_dot_controllers="cpu", cpu_dot_stat="throttled_usec 0\n", cpu_dot_max="max 100000\n"
    )
    assert cpu_limit(proc, sys).value == UNLIMITED
    assert throttled_s(group_folder(proc, sys)) == 0.0


def test_version_2_true_root_cannot_be_throttled(tmp_path: Path) -> None:
    proc, sys = group(tmp_path, "0::/\n", cgroup_dot_controllers="cpu", cpu_dot_stat="usage_usec 5\n")
    assert cpu_limit(proc, sys).value == UNLIMITED
    assert throttled_s(group_folder(proc, sys)) == 0.0


def test_a_quota_without_a_counter_is_unknown_not_zero(tmp_path: Path) -> None:
    proc, sys = group(tmp_path, "0::/\n", cgroup_dot_controllers="cpu", cpu_dot_stat="usage_usec 5\n", cpu_dot_max="50000 100000")
    assert throttled_s(group_folder(proc, sys)) is None
    assert throttled_s(None) is None


def test_version_1(tmp_path: Path) -> None:
    proc, sys = group(
        tmp_path, "3:memory:/\n4:cpu,cpuacct:/x\n0::/\n", cpu__x__cpu_dot_stat="nr_periods 1\nthrottled_time 2500000000\n",
        cpu__x__cpu_dot_cfs_quota_us="200000\n", cpu__x__cpu_dot_cfs_period_us="100000\n",
    )  # fmt: skip
    assert cpu_limit(proc, sys).value == 2.0
    assert throttled_s(group_folder(proc, sys)) == 2.5
    write(sys, cpu__x__cpu_dot_cfs_quota_us="-1\n")
    assert cpu_limit(proc, sys).value == UNLIMITED
    write(sys, cpu__x__cpu_dot_cfs_quota_us="?")
    assert cpu_limit(proc, sys).value is None


class NvmlError(Exception):
    pass


def nvml(count: int = 0, init: str | None = None, processes: str | None = None) -> Any:
    """The functions of the driver's library that we call; no test host is sure to have a GPU."""

    def start() -> None:
        if init:
            raise NvmlError(init)

    def running(_handle: int) -> list[Any]:
        if processes:
            raise NvmlError(processes)
        return [SimpleNamespace(pid=7)]

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=start,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetName=lambda _h: b"NVIDIA H200",
        nvmlSystemGetDriverVersion=lambda: "580.65.06",
        nvmlDeviceGetComputeRunningProcesses=running,
    )


def test_two_equal_accelerators() -> None:
    found = gpu_facts((), nvml(2))
    assert (found["host.gpu"].value, found["host.gpu_count"].value, found["host.driver"].value) == ("NVIDIA H200", 2, "580.65.06")
    assert found["host.gpu_processes"].value == 1


def test_no_library_and_no_device_is_none_with_the_reason() -> None:
    found = gpu_facts((), nvml(init="Library Not Found"))
    assert (found["host.gpu"].value, found["host.gpu_count"].value) == ("none", 0)
    assert "Library Not Found" in (found["host.gpu"].reason or "")
    assert found["host.driver"].value is None


def test_a_device_that_cannot_be_asked_is_unknown(tmp_path: Path) -> None:
    write(tmp_path, nvidia0="")
    found = gpu_facts((tmp_path / "nvidia0",), nvml(init="Driver Not Loaded"))
    assert found["host.gpu"].value is None
    assert found["host.gpu_count"].value is None
    assert gpu_facts((), nvml(1, processes="Not Permitted"))["host.gpu_processes"].value is None
