"""Hangs of the real process: the watchdog falls silent, and the log says which thread hangs and where.

The disk hangs by strace, the limits are shortened from outside, and the notification socket is the test's own.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess
from ports import free_port, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PING_S = 0.2
SILENCE_S = 5 * PING_S
LAUNCH = """
import runpy, sys
import edge_appliance.appliance as appliance, edge_appliance.ingest as ingest, edge_appliance.mqtt_source as mqtt_source
{change}
sys.argv = sys.argv[3:]
runpy.run_module("edge_appliance", run_name="__main__")
"""


class Watched:
    """A process with a service manager that counts its pings; it lives on when they end."""

    def __init__(self, directory: Path, change: str, settings: dict[str, dict[str, object]]) -> None:
        """`change` is Python that runs in the process before it starts."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(directory / "notify"))
        self.process = ApplianceProcess(
            directory / "a",
            mqtt_port=free_port(),
            settings=settings,
            wrapper=[
                *("env", f"NOTIFY_SOCKET={directory / 'notify'}", f"WATCHDOG_USEC={int(3 * PING_S * 1e6)}"),
                *(sys.executable, "-c", LAUNCH.format(change=change)),
            ],
        )
        self.process.start()

    def wait_silent(self) -> None:
        """Wait until no ping has come for a while; systemd would end the process then."""
        deadline = time.monotonic() + 30
        last_ping = time.monotonic()
        self._socket.settimeout(PING_S)
        while time.monotonic() - last_ping < SILENCE_S:
            assert time.monotonic() < deadline, "pings go on"
            with contextlib.suppress(TimeoutError):
                if self._socket.recv(4096) == b"WATCHDOG=1":
                    last_ping = time.monotonic()

    def pings_for(self, seconds: float) -> int:
        """Number of pings that come in a time."""
        until = time.monotonic() + seconds
        pings = 0
        while (left := until - time.monotonic()) > 0:
            self._socket.settimeout(left)
            with contextlib.suppress(TimeoutError):
                pings += self._socket.recv(4096) == b"WATCHDOG=1"
        return pings

    def drain(self) -> None:
        """Forget what has come so far."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(4096)

    def close(self) -> None:
        """End all of it."""
        self.process.kill()
        self._socket.close()


@contextlib.contextmanager
def watched(directory: Path, change: str, **settings: dict[str, object]) -> Iterator[Watched]:
    """A running process of which something was changed."""
    it = Watched(directory, change, settings)
    try:
        yield it
    finally:
        it.close()


@contextlib.contextmanager
def slow(process: ApplianceProcess, call: str, seconds: float) -> Iterator[None]:
    """Have each such call of a running process take so long."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    inject = f"inject={call}:delay_enter={int(seconds * 1e6)}"
    command = [strace, "-f", "-qq", "-o", "/dev/null", "-p", str(process.pid), "-e", f"trace={call}", "-e", inject]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as tracer:
        try:
            wait_until(lambda: _is_traced(process.pid), "strace has all threads")
            yield
        finally:
            tracer.kill()


def _is_traced(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").glob("*/status")
    return all(re.search(r"(?m)^TracerPid:\s+[1-9]", task.read_text()) for task in tasks)


def write_in_background(process: ApplianceProcess) -> threading.Thread:
    """Write a line whose answer may never come."""

    def write() -> None:
        with contextlib.suppress(OSError):
            process.write(b"m v=1")

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_sync_that_hangs_beyond_its_limit(tmp_path: Path) -> None:
    """The dump shows the ingest thread in the sync, and one line says what has made no progress."""
    with watched(tmp_path, "ingest.FSYNC_LIMIT_S = 1.0") as it:
        with slow(it.process, "fdatasync", 60):
            writer = write_in_background(it.process)
            it.wait_silent()
            assert it.process.query("SELECT 1 AS one") == [{"one": 1}], "queries go on"
        writer.join()
        log = it.process.log.read_text()
        assert re.search(r"no progress: ingest, commit \(limit 1 s, overdue \d+\.\d s\); the watchdog", log)
        assert re.search(r"in sync_data\n(  File .*\n)* .*ingest\.py.* in _sync\n", log)


def test_sync_that_hangs_within_its_limit(tmp_path: Path) -> None:
    """A worn card may take its time: pings go on, beyond the limit of the thread itself, and the row is there."""
    change = "appliance.STATION_LIMIT_S = 2.0"
    with watched(tmp_path, change) as it, slow(it.process, "fdatasync", 4):
        writer = write_in_background(it.process)
        it.drain()
        assert it.pings_for(3.0) >= 3.0 / PING_S / 3
        writer.join()
        assert it.process.query("SELECT count(*) AS n FROM m") == [{"n": 1}]
        assert "no progress" not in it.process.log.read_text()


def test_worker_that_hangs(tmp_path: Path) -> None:
    """A worker whose file is never synced is named as a worker."""
    change = "appliance.SLICE_LIMIT_S = 1.0"
    with watched(tmp_path, change, segment={"max_age": "3s"}) as it:
        it.process.write(b"m v=1")
        with slow(it.process, "fsync", 3):  # a cut syncs, too, and must come to its end
            it.wait_silent()
        log = it.process.log.read_text()
        assert re.search(r"no progress: persist worker \d \(limit 1 s", log)
        assert re.search(r"in sync_file\n|in _sync_path\n|in publish\n", log)


def test_mqtt_that_hangs(tmp_path: Path) -> None:
    """The link's task stands still while the loop turns and queries are answered."""
    stands_still = "import asyncio\nmqtt_source.MqttSource._sleep = lambda *_: asyncio.Event().wait()\n"
    change = f"{stands_still}appliance.MQTT_LIMIT_S = 1.0"
    with watched(tmp_path, change) as it:
        it.wait_silent()
        assert re.search(r"no progress: MQTT \(limit 1 s", it.process.log.read_text())
        assert it.process.query("SELECT 1 AS one") == [{"one": 1}]
