"""What the host gives us: cores, memory, and an identity.

Limits of control groups count like physical ones: a service with `MemoryMax=` or a container must size itself by
its limit, not by the machine. All functions take the file system root they read below, so that tests can hand in a
tree of their own; psutil answers for the physical machine. Nothing here is remembered between calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]

_ROOT: Final = Path("/")

# Version 1 says "unlimited" as the largest multiple of the page size below 2^63; nothing near it is a real limit.
_UNLIMITED_BYTES: Final = 1 << 60

_NODE_ID_HEX_DIGITS: Final = 12

_STEPPED_BACK: Final = 10
"""Nice value of threads that must not hold up others: about a tenth of the CPU time of an ordinary one."""


def usable_cores(root: Path = _ROOT) -> int:
    """Cores this process may really use: its affinity, cut by every CPU quota above it; at least 1."""
    cores = float(len(os.sched_getaffinity(0)))
    for directory in _groups(root, "cpu"):
        quota = _cpu_quota(directory)
        if quota is not None:
            cores = min(cores, quota)
    return max(1, int(cores))


def usable_memory_bytes(root: Path = _ROOT) -> int:
    """Memory this process may use: physical memory, cut by every control group limit above it."""
    limits = [limit for directory in _groups(root, "memory") if (limit := _memory_limit(directory)) is not None]
    return min([int(psutil.virtual_memory().total), *limits])


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Memory that can be had now without swapping: of the host, and below every control group limit above us.

    Inside a group, anonymous memory is what counts as used: page cache is given back under pressure.
    """
    available = int(psutil.virtual_memory().available)
    for directory in _groups(root, "memory"):
        limit, used = _memory_limit(directory), _anonymous_bytes(directory)
        if limit is not None and used is not None:
            available = min(available, max(0, limit - used))
    return available


def rss_bytes() -> int:
    """Resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def release_free_memory() -> None:
    """Hand memory that was freed back to the system, where the C library can (glibc): it would keep most of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def step_back() -> None:
    """Let other threads have the CPU first, from here on, in this thread and in those that it starts."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _STEPPED_BACK)


def raise_open_files_limit() -> None:
    """Use the hard limit: at the usual 1,024 a thousand idle clients would keep the log from opening its next file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def machine_id(root: Path = _ROOT) -> str | None:
    """The identity systemd gave this installation; None where there is none, as in some containers."""
    return _text(root / "etc/machine-id") or None


def default_node_id(root: Path = _ROOT) -> str:
    """A node id that stays the same over restarts: derived from the machine id, else the host name.

    The machine id is meant to stay on the machine and node ids travel (topics, object names), hence the hash.
    """
    machine = machine_id(root)
    if machine is not None:
        return hashlib.sha256(f"edge-appliance:{machine}".encode()).hexdigest()[:_NODE_ID_HEX_DIGITS]
    name = "".join(c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in socket.gethostname())
    return name.strip("-")[:63] or "node"


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the control group directories of this process for `controller`, from its own up to the root."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for mount in _mounts(root, controllers, controller):
            # A container sees its path on the host, of which only the mount itself exists here: going up ends there.
            parts = Path(path).parts[1:]
            directory = mount if ".." in parts else mount.joinpath(*parts)
            while True:
                yield directory
                if directory == mount:
                    break
                directory = directory.parent


def _mounts(root: Path, controllers: str, wanted: str) -> list[Path]:
    """Where the hierarchy of one line of /proc/self/cgroup is mounted, if it has to do with `wanted`."""
    base = root / "sys/fs/cgroup"
    if controllers == "":
        candidates = [base / "unified", base] if not (base / "cgroup.controllers").exists() else [base]
    elif wanted in controllers.split(","):
        candidates = [base / controllers, base / wanted]
    else:
        return []
    return next(([mount] for mount in candidates if mount.is_dir()), [])


def _cpu_quota(directory: Path) -> float | None:
    """Cores' worth of CPU time that a group may use; None when unlimited."""
    words = (_text(directory / "cpu.max") or "").split()
    if len(words) == 2:
        quota, period = _integer(words[0]), _integer(words[1])
    else:
        quota = _integer(_text(directory / "cpu.cfs_quota_us"))
        period = _integer(_text(directory / "cpu.cfs_period_us"))
    return quota / period if quota and period and quota > 0 else None


def _memory_limit(directory: Path) -> int | None:
    """The tightest memory limit a group states; None when unlimited."""
    # memory.high counts too: beyond it the kernel throttles us so hard that it looks like a hang.
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    stated = [limit for name in names if (limit := _integer(_text(directory / name))) is not None]
    return min((limit for limit in stated if 0 < limit < _UNLIMITED_BYTES), default=None)


def _anonymous_bytes(directory: Path) -> int | None:
    for line in (_text(directory / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("anon", "total_rss"):
            return _integer(value)
    return None


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None  # "max", or no such file


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


_CLOCK_ERROR: Final = 5
"""adjtimex: the clock is not synchronised."""


def is_clock_synchronised() -> bool:
    """Whether the kernel calls the wall clock synchronised, as a time service tells it."""
    # Asking only (modes 0) needs no privilege; the buffer is larger than struct timex anywhere.
    state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))
    return bool(0 <= state < _CLOCK_ERROR)
