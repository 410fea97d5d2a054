"""Checks of this machine: the service, its port and token, the disk, memory, and the clock."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from edge_appliance import durable, host
from edge_appliance.cli.command import CommandError
from edge_appliance.cli.daemon import Daemon
from edge_appliance.cli.doctor import Finding, as_owner
from edge_appliance.config import Config
from edge_appliance.config_values import size_text
from edge_appliance.errors import DiskError

SYNCS: Final = 20
SYNC_BYTES: Final = 4_096
SLOW_SYNC_S: Final = 0.05
"""Above it, the default group delay of 20 ms only makes the disk busy."""
FIRST_SOUND_YEAR: Final = 2024
_TIMEOUT_S: Final = 5.0


def daemon(settings: Config) -> Iterator[Finding]:
    """Whether the service answers, and what it says of itself; else whether its port is free."""
    there = Daemon(settings.http)
    try:
        with there.get("/api/v1/status", timeout_s=_TIMEOUT_S) as answer:
            status = json.loads(answer.read())
        held, degraded = status.get("held"), status.get("degraded") or {}
        sentence = str(status.get("status") or status["phase"])
    except CommandError:
        yield from _port(settings.http.host, settings.http.port)
    except (OSError, ValueError, KeyError, AttributeError, http.client.HTTPException):
        yield Finding("service", "fail", f"{there.address} is used by something else", "choose another http.listen")
    else:
        verdict = "fail" if held else "warn" if degraded else "pass"
        yield Finding("service", verdict, f"answers on {there.address}: {sentence}")  # type: ignore[arg-type]


def _port(address: str, port: int) -> Iterator[Finding]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            text = f"does not answer, and {address}:{port} cannot be had: {error.strerror}"
            yield Finding("service", "fail", text, "choose another http.listen, or end who has it: ss -ltnp")
            return
    yield Finding("service", "warn", "does not run", "systemctl start edge-appliance; journalctl -u edge-appliance")


def token(settings: Config) -> Iterator[Finding]:
    """Whether others may read the token."""
    file = settings.http.token_file
    if file is not None:
        mode = stat.S_IMODE(file.stat().st_mode)
        fix = f"chmod 0640 {file}; chgrp edge-appliance {file}" if mode & 0o007 else ""
        yield Finding("token file", "fail" if fix else "pass", f"{file} has mode {mode:04o}", fix)


def disk(settings: Config) -> Iterator[Finding]:
    """How long a sync takes, and whether the log may grow to its limit."""
    directory = settings.node.data_dir
    existing = next(path for path in (directory, *directory.parents) if path.is_dir())
    try:
        with as_owner(existing):
            seconds = sorted(_syncs(existing))
    except (OSError, DiskError) as error:
        yield Finding("disk sync", "warn", f"not tried in {existing}: {error}", "run this as root")
    else:
        typical, worst = statistics.median(seconds), seconds[-1]
        is_slow = typical > SLOW_SYNC_S and settings.wal.group_delay_s < 2 * typical
        fix = 'set wal.group_delay = "200ms": fewer, larger commits' if is_slow else ""
        text = f"{typical * 1000:.1f} ms, at worst {worst * 1000:.1f} ms of {SYNCS}, in {existing}"
        yield Finding("disk sync", "warn" if is_slow else "pass", text, fix)
    free, log = durable.free_bytes(existing), settings.wal.max_bytes
    needed = log + settings.wal.min_free_bytes
    text = f"{size_text(free)} free in {existing}; the log may take {size_text(log)}"
    if free < settings.wal.min_free_bytes:
        yield Finding("disk space", "fail", text, "free space: below wal.min_free nothing is acknowledged")
    elif free < needed:
        yield Finding("disk space", "warn", text, "free space, or lower wal.max_bytes")
    else:
        yield Finding("disk space", "pass", text)


def _syncs(directory: Path) -> Iterator[float]:
    with tempfile.TemporaryFile(dir=directory) as file:  # it has no name that a crash could leave
        for _ in range(SYNCS):
            os.write(file.fileno(), bytes(SYNC_BYTES))
            before_s = time.perf_counter()
            durable.sync_data(file.fileno(), str(directory))
            yield time.perf_counter() - before_s


def memory(settings: Config) -> Iterator[Finding]:
    """Whether the buffer fits what is free now, and whether limits of systemd have an effect."""
    available, buffer = host.available_memory_bytes(), settings.memory.buffer_limit_bytes
    text = f"{size_text(available)} available, the buffer may take {size_text(buffer)}"
    fix = "lower memory.buffer_limit, or end other programs" if available < buffer else ""
    yield Finding("memory", "warn" if fix else "pass", text, fix)
    if not _has_memory_controller():
        text = "the kernel's memory controller is off: MemoryMax= of the unit has no effect"
        yield Finding(
            "memory limit", "warn", text, "add 'cgroup_enable=memory' to /boot/firmware/cmdline.txt and reboot"
        )


def _has_memory_controller() -> bool:
    groups = Path("/sys/fs/cgroup")
    try:
        return "memory" in (groups / "cgroup.controllers").read_text().split()
    except OSError:
        return (groups / "memory").is_dir()


def clock(_: Config) -> Iterator[Finding]:
    """Whether the clock is set, and kept so."""
    now = time.gmtime()
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC", now)
    if now.tm_year < FIRST_SOUND_YEAR:
        yield Finding("clock", "fail", f"{text} cannot be", "timedatectl set-ntp true, or set it by hand")
        return
    command = ["timedatectl", "show", "--property=NTPSynchronized", "--value"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        shown = ""
    fix = "timedatectl set-ntp true: lines without a time get that of this clock" if shown == "no" else ""
    state = {"yes": "synchronised", "no": "not synchronised"}.get(shown, "whether it is synchronised is not known")
    yield Finding("clock", "warn" if fix else "pass", f"{text}, {state}", fix)


CHECKS: Final = (daemon, token, disk, memory, clock)
