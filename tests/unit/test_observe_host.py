"""Facts about machines that are not this one, shown as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.observe.cgroup import UNLIMITED, cpu_limit, group_chain, memory_limit, throttled_s
from harness.observe.host import host_facts
from harness.observe.virtual import container, virtualisation


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
    (machine / "sys/devices/system/cpu/cpu2/cpufreq/scaling_governor").mkdir(
        parents=True
    )  # cannot be read, like that of a core that is off
    assert facts(machine)["host.governor"].value is None
    assert "does not tell" in (facts(machine)["host.governor"].reason or "")


def group(root: Path, cgroup: str, **files: str) -> tuple[Path, Path]:
    write(root, proc__self__cgroup=cgroup, **{f"sys__{k}": v for k, v in files.items()})
    return root / "proc", root / "sys"


def test_version_2_group_with_a_quota(tmp_path: Path) -> None:
    proc, sys = group(
        tmp_path, "0::/a\n", cgroup_dot_controllers="cpu", a__cpu_dot_stat="usage_usec 5\nthrottled_usec 1500000\n",
        a__cpu_dot_max="150000 100000\n",
    )  # fmt: skip
    assert cpu_limit(proc, sys).value == 1.5
    assert throttled_s(group_chain(proc, sys)) == 1.5


def test_version_2_path_of_the_host_falls_back_to_the_mount(tmp_path: Path) -> None:
    proc, sys = group(
        tmp_path, "0::/docker/abc\n", cgroup_dot_controllers="cpu", cpu_dot_stat="throttled_usec 0\n", cpu_dot_max="max 100000\n"
    )
    assert cpu_limit(proc, sys).value == UNLIMITED
    assert throttled_s(group_chain(proc, sys)) == 0.0


def test_version_2_true_root_cannot_be_throttled(tmp_path: Path) -> None:
    proc, sys = group(tmp_path, "0::/\n", cgroup_dot_controllers="cpu", cpu_dot_stat="usage_usec 5\n")
    assert cpu_limit(proc, sys).value == UNLIMITED
    assert throttled_s(group_chain(proc, sys)) == 0.0


def test_a_quota_without_a_counter_is_unknown_not_zero(tmp_path: Path) -> None:
    proc, sys = group(tmp_path, "0::/\n", cgroup_dot_controllers="cpu", cpu_dot_stat="usage_usec 5\n", cpu_dot_max="50000 100000")
    assert throttled_s(group_chain(proc, sys)) is None
    assert throttled_s(()) is None


def test_version_1(tmp_path: Path) -> None:
    proc, sys = group(
        tmp_path, "3:memory:/\n4:cpu,cpuacct:/x\n0::/\n", cpu__x__cpu_dot_stat="nr_periods 1\nthrottled_time 2500000000\n",
        cpu__x__cpu_dot_cfs_quota_us="200000\n", cpu__x__cpu_dot_cfs_period_us="100000\n",
    )  # fmt: skip
    assert cpu_limit(proc, sys).value == 2.0
    assert throttled_s(group_chain(proc, sys)) == 2.5
    write(sys, cpu__x__cpu_dot_cfs_quota_us="-1\n")
    assert cpu_limit(proc, sys).value == UNLIMITED
    write(sys, cpu__x__cpu_dot_cfs_quota_us="?")
    assert cpu_limit(proc, sys).value is None


def test_the_tightest_limit_of_the_visible_groups_holds(tmp_path: Path) -> None:
    proc, sys = group(
        tmp_path, "0::/a/b\n", cgroup_dot_controllers="cpu memory", cpu_dot_stat="usage_usec 5\n", a__cpu_dot_max="100000 100000\n",
        a__b__cpu_dot_stat="throttled_usec 0\n", a__b__cpu_dot_max="max 100000\n", a__memory_dot_max="2147483648\n",
        a__b__memory_dot_stat="anon 1\n", a__b__memory_dot_max="max\n",
    )  # fmt: skip
    assert cpu_limit(proc, sys).value == 1.0
    assert memory_limit(proc, sys).value == 2.0


def test_memory_limits_of_both_versions(tmp_path: Path) -> None:
    proc, sys = group(tmp_path / "1", "4:memory:/x\n", memory__x__memory_dot_stat="", memory__x__memory_dot_limit_in_bytes="1610612736\n")
    assert memory_limit(proc, sys).value == 1.5
    write(sys, memory__x__memory_dot_limit_in_bytes="9223372036854771712\n")
    assert memory_limit(proc, sys).value == UNLIMITED
    write(sys, memory__x__memory_dot_limit_in_bytes="?")
    assert memory_limit(proc, sys).value is None
    proc, sys = group(tmp_path / "2", "0::/\n", cgroup_dot_controllers="memory", memory_dot_stat="anon 1\n")
    assert memory_limit(proc, sys).value == UNLIMITED
    assert memory_limit(tmp_path / "none", sys).value is None


@given(st.text(max_size=20))
def test_no_text_in_a_limit_is_taken_for_a_number(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = tmp_path_factory.mktemp("group")
    proc, sys = group(root, "0::/\n", cgroup_dot_controllers="memory", memory_dot_stat="", cpu_dot_stat="")
    for name in ("memory.max", "cpu.max"):
        (sys / name).write_text(text, encoding="utf-8")
    for fact in (memory_limit(proc, sys), cpu_limit(proc, sys)):
        assert (fact.value is None) == bool(fact.reason)


def test_threads_nodes_and_load(machine: Path) -> None:
    assert facts(machine)["host.numa"].value is None
    assert facts(machine)["host.smt"].value is None
    write(
        machine, sys__devices__system__cpu__smt__active="1\n", sys__devices__system__node__node0__cpulist="0-3,8\n",
        sys__devices__system__node__node10__cpulist="4-7\n", proc__loadavg="1.25 0.9 0.7 2/345 678\n",
    )  # fmt: skip
    found = facts(machine)
    assert found["host.smt"].value == "on"
    assert found["host.numa"].value == {"0": "0-3,8", "10": "4-7"}
    assert found["host.load"].value == 1.25
    write(machine, proc__loadavg="high\n")
    assert facts(machine)["host.load"].value is None


@given(st.text(max_size=40), st.sampled_from(["", "MemTotal:", "SwapTotal: ", "model name:", "flags:", "4:memory:", "0::"]))
def test_whatever_the_kernel_writes_each_fact_is_a_value_or_a_reason(
    tmp_path_factory: pytest.TempPathFactory, text: str, start: str
) -> None:
    root = tmp_path_factory.mktemp("machine")
    for name in (
        "proc/cpuinfo", "proc/meminfo", "proc/loadavg", "proc/self/cgroup", "proc/sys/kernel/random/boot_id",
        "sys/devices/system/cpu/smt/active", "sys/devices/system/node/node0/cpulist", "sys/class/dmi/id/sys_vendor",
    ):  # fmt: skip
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(start + text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:  # a hundred times: what the driver of this host says is another test's matter
        patch.setattr("harness.observe.host.gpu_facts", lambda ours: {})
        found = facts(root)
    for name, fact in found.items():
        assert fact.value is not None or fact.reason, name


def test_a_hypervisor_shows_in_tables_or_flags_or_not(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    assert virtualisation(proc, sys).value is None
    write(tmp_path, proc__cpuinfo="flags\t\t: fpu vme\n")
    assert virtualisation(proc, sys).value == "none"
    write(tmp_path, proc__cpuinfo="flags\t\t: fpu hypervisor vme\n")
    assert virtualisation(proc, sys).value == "unnamed"
    write(tmp_path, sys__class__dmi__id__sys_vendor="QEMU\n")
    assert virtualisation(proc, sys).value == "kvm"
    write(tmp_path, sys__hypervisor__type="xen\n")
    assert virtualisation(proc, sys).value == "xen"


def test_a_container_shows_by_its_file_or_its_groups(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    assert container(proc, tmp_path).value is None
    write(tmp_path, proc__self__cgroup="0::/user.slice\n")
    assert container(proc, tmp_path).value == "none"
    write(tmp_path, proc__self__cgroup="4:memory:/kubepods/burstable/pod1\n")
    assert container(proc, tmp_path).value == "kubepods"
    write(tmp_path, _dot_dockerenv="")
    assert container(proc, tmp_path).value == "docker"
