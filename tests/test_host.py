"""host: limits of control groups of both versions, and the node id."""

import os
import re
import threading

import psutil
import pytest

from edge_appliance import host

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A root with the given files, on a machine of 8 GiB (5 available) and 8 cores."""

    class Memory:
        total = 8 * GIB
        available = 5 * GIB

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))

    def build(files):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return tmp_path

    return build


V2 = {"proc/self/cgroup": "0::/system.slice/edge.service\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory\n"}
OWN = "sys/fs/cgroup/system.slice/edge.service"
UPPER = "sys/fs/cgroup/system.slice"


def test_no_control_groups(machine):
    """Without any control group files the machine itself is the limit."""
    root = machine({})
    assert (host.usable_cores(root), host.usable_memory_bytes(root)) == (8, 8 * GIB)
    assert host.available_memory_bytes(root) == 5 * GIB


def test_memory_limit_of_the_own_group(machine):
    """MemoryMax= of the service is the usable memory."""
    root = machine({**V2, f"{OWN}/memory.max": f"{GIB}\n", f"{UPPER}/memory.max": "max\n"})
    assert host.usable_memory_bytes(root) == GIB


def test_memory_limit_of_an_ancestor(machine):
    """A tighter limit anywhere above counts, and so does memory.high."""
    root = machine({**V2, f"{OWN}/memory.max": f"{4 * GIB}", f"{UPPER}/memory.high": f"{2 * GIB}"})
    assert host.usable_memory_bytes(root) == 2 * GIB


def test_memory_limit_above_the_machine(machine):
    """A limit larger than the machine is none."""
    root = machine({**V2, f"{OWN}/memory.max": f"{64 * GIB}"})
    assert host.usable_memory_bytes(root) == 8 * GIB


def test_memory_limit_version_1(machine):
    """Version 1 is understood, and its way to say unlimited, in the root and in a group."""
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/a/b\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert host.usable_memory_bytes(machine(files)) == 3 * GIB


def test_memory_unlimited_version_1(machine):
    """The unlimited value of version 1 is no limit."""
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert host.usable_memory_bytes(machine(files)) == 8 * GIB


@pytest.mark.parametrize("path", ["/docker/0123456789", "/../../init.scope"])
def test_container_sees_only_its_own_group(machine, path):
    """A path that is not mounted here, or lies above our namespace, means the mount itself."""
    root = machine({**V2, "proc/self/cgroup": f"0::{path}\n", "sys/fs/cgroup/memory.max": f"{GIB}"})
    assert host.usable_memory_bytes(root) == GIB


def test_available_memory_below_a_group_limit(machine):
    """Room below the group's limit counts, measured by anonymous memory: page cache is given back."""
    root = machine({**V2, f"{OWN}/memory.max": f"{GIB}", f"{OWN}/memory.stat": f"file {GIB}\nanon {GIB // 4}\n"})
    assert host.available_memory_bytes(root) == GIB * 3 // 4


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("200000 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("garbage", 8)],
)
def test_cpu_quota(machine, quota, cores):
    """A quota bounds the cores, rounded down, but never below one."""
    assert host.usable_cores(machine({**V2, f"{UPPER}/cpu.max": quota})) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
def test_cpu_quota_version_1(machine, quota, cores):
    """So does one of version 1, where -1 means unlimited and controllers share a directory."""
    files = {
        "proc/self/cgroup": "5:cpu,cpuacct:/a\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
    }
    assert host.usable_cores(machine(files)) == cores


def test_affinity_bounds_the_cores(machine, monkeypatch):
    """Cores the process is not allowed on do not count."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert host.usable_cores(machine({})) == 1


def test_node_id_from_the_machine_id(machine):
    """The node id is stable, short, and does not give the machine id away."""
    root = machine({"etc/machine-id": "0123456789abcdef0123456789abcdef\n"})
    node_id = host.default_node_id(root)
    assert re.fullmatch(r"[0-9a-f]{12}", node_id)
    assert node_id == host.default_node_id(root)
    assert node_id not in "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("files", [{}, {"etc/machine-id": ""}])
def test_node_id_without_a_machine_id(machine, monkeypatch, files):
    """Without a machine id the host name serves, in characters that names may have."""
    monkeypatch.setattr(host.socket, "gethostname", lambda: "gw_01.example")
    assert host.default_node_id(machine(files)) == "gw-01-example"


def test_real_host():
    """On a real machine every answer makes sense."""
    assert host.usable_cores() >= 1
    assert 0 < host.rss_bytes() < host.usable_memory_bytes()
    assert 0 < host.available_memory_bytes() <= psutil.virtual_memory().total


def test_release_free_memory_is_harmless():
    """It may be called at any time, with any C library."""
    host.release_free_memory()


def test_thread_that_steps_back_takes_its_children_along():
    """Others have the CPU first, also before threads that it starts; the rest of the process stays as it is."""
    seen = []

    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def child() -> None:
        seen.append(nice())

    def parent() -> None:
        host.step_back()
        seen.append(nice())
        thread = threading.Thread(target=child)
        thread.start()
        thread.join()

    before = nice()
    thread = threading.Thread(target=parent)
    thread.start()
    thread.join()
    assert seen == [max(before, 10)] * 2
    assert nice() == before
