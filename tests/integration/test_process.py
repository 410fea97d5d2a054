"""The real process as the service manager sees it: notifications, watchdog, signals, exit codes.

The notification socket is the test's own, so everything the process says is on record in its order.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess, RefusedError
from ports import free_port, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WATCHDOG_S = 0.6
STOP_S = 10.0
BATCHES, BATCH_LINES = 10, 20_000
TIME_NS = 1_700_000_000_000_000_000
ENDPOINTS = ("/ping", "/health", "/ready", "/metrics", "/api/v1/status", "/nothing", "/query?q=SHOW+DATABASES")
FORMATS = ("json", "jsonl", "csv", "pretty", "parquet")


class Manager:
    """The service manager's end of the notification socket; keeps every message in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def close(self) -> None:
        """Forget the socket."""
        self._socket.close()

    def expect(self, start: str, timeout_s: float = 30.0) -> str:
        """Receive until a message begins with `start`, and return that one."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            message = self._socket.recv(4096).decode()
            self.messages.append(message)
            if message.startswith(start):
                return message

    def drain(self) -> None:
        """Receive what is there."""
        self._socket.setblocking(False)
        try:
            while True:
                self.messages.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            pass


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """A listening service manager."""
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


@pytest.fixture
def appliance(tmp_path: Path) -> Iterator[ApplianceProcess]:
    """An appliance without a broker, not started yet."""
    one_segment = {"memory": {"buffer_limit": "1GiB"}, "segment": {"max_bytes": "256MiB"}}
    with ApplianceProcess(tmp_path / "a", mqtt_port=free_port(), settings=one_segment) as appliance:
        yield appliance


def watched_by(manager: Manager, **variables: str) -> list[str]:
    """The command prefix that gives the process this manager, as systemd does by its environment."""
    watchdog = f"WATCHDOG_USEC={int(WATCHDOG_S * 1e6)}"
    return ["env", f"NOTIFY_SOCKET={manager.path}", watchdog, *(f"{k}={v}" for k, v in variables.items())]


def fill_log(appliance: ApplianceProcess) -> None:
    """Leave a log behind whose replay takes a few seconds: each line is of a new series."""
    appliance.start()
    for batch in range(BATCHES):
        times = range(TIME_NS + batch * BATCH_LINES, TIME_NS + (batch + 1) * BATCH_LINES)
        appliance.write(b"\n".join(b"m,t=t%d v=1 %d" % (time_ns, time_ns) for time_ns in times))
    appliance.kill()


def test_start_and_stop_as_the_service_manager_sees_them(manager: Manager, appliance: ApplianceProcess) -> None:
    """Replay asks for time by its progress, READY=1 comes once rows are served, pings follow, a stop says so."""
    fill_log(appliance)
    appliance.wrapper = watched_by(manager)
    appliance.launch()
    manager.expect("STATUS=replaying the log")
    with pytest.raises((RefusedError, OSError)):
        appliance.get("/ready")
    manager.expect("READY=1")
    before = [m for m in manager.messages[:-1] if m.startswith(("READY", "WATCHDOG"))]
    assert before == []
    assert manager.messages[0].startswith("EXTEND_TIMEOUT_USEC=")
    assert sum(m.startswith("EXTEND_TIMEOUT_USEC=") for m in manager.messages) >= 2
    # No retry: READY=1 is a promise about this very moment.
    assert appliance.get("/ready")
    assert appliance.query("SELECT count(*) AS n FROM m") == [{"n": BATCHES * BATCH_LINES}]
    for _ in range(4):
        manager.expect("WATCHDOG=1", WATCHDOG_S)
    assert appliance.stop(STOP_S) == 0
    manager.drain()
    stops = [n for n, m in enumerate(manager.messages) if m.startswith("STOPPING=1")]
    assert len(stops) == 1
    assert not [m for m in manager.messages[stops[0] + 1 :] if m.startswith(("READY", "EXTEND"))]


def test_stop_during_replay(manager: Manager, appliance: ApplianceProcess) -> None:
    """SIGTERM in the middle of replay ends it soon, without READY=1, and the next start has every row."""
    fill_log(appliance)
    appliance.wrapper = watched_by(manager)
    appliance.launch()
    manager.expect("STATUS=replaying the log")
    assert appliance.stop(STOP_S) == 0
    manager.drain()
    assert not [m for m in manager.messages if m.startswith("READY")]
    appliance.wrapper = ()
    appliance.start()
    assert appliance.query("SELECT count(*) AS n FROM m") == [{"n": BATCHES * BATCH_LINES}]


def test_nothing_is_imported_after_ready(manager: Manager, appliance: ApplianceProcess) -> None:
    """Every module is loaded before READY=1: a first import later would stall the loop on a slow card."""
    appliance.wrapper = watched_by(manager, PYTHONVERBOSE="1")
    appliance.launch()
    manager.expect("READY=1")
    mark = appliance.log.stat().st_size
    for path in ENDPOINTS:
        try:
            appliance.get(path)
        except RefusedError as error:
            assert error.status == 404
    appliance.write(b'm,t=a v=1,n=1i,s="x"')
    with pytest.raises(RefusedError):
        appliance.write(b"broken")
    for name in FORMATS:
        appliance.get(f"/api/v3/query_sql?db=edge&format={name}&q=SELECT+*,now()+FROM+m")
    with pytest.raises(RefusedError):
        appliance.query("SELECT nothing FROM m")
    wait_until(lambda: appliance.metric("broker_connected") == 0, "the numbers are there")
    log = appliance.log.read_bytes()[mark:].decode(errors="replace")
    assert appliance.stop(STOP_S) == 0
    assert re.findall(r"^import '?([\w.]+)", log, re.MULTILINE) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_signal_twice(appliance: ApplianceProcess, how: signal.Signals) -> None:
    """A second signal of an impatient operator changes nothing: the stop goes on, in time, without a traceback."""
    appliance.start()
    appliance.write(b"m v=1")
    os.kill(appliance.pid, how)
    os.kill(appliance.pid, how)
    wait_until(lambda: not appliance.is_running, "it has ended", STOP_S)
    assert appliance.stop() == 0
    assert "Traceback" not in appliance.log.read_text()


def test_abort_by_the_watchdog_shows_all_stacks(appliance: ApplianceProcess) -> None:
    """When systemd aborts a process that hangs as a whole, the journal has where each thread was."""
    appliance.start()
    os.kill(appliance.pid, signal.SIGABRT)
    wait_until(lambda: not appliance.is_running, "it has ended", STOP_S)
    log = appliance.log.read_text()
    assert "Fatal Python error: Aborted" in log
    assert "ingest.py" in log
    appliance.kill()


def test_second_daemon_on_the_same_directory(appliance: ApplianceProcess, tmp_path: Path) -> None:
    """Only one process owns a data directory: the other one says so in one line and exits with 73."""
    appliance.start()
    with ApplianceProcess(tmp_path / "b", mqtt_port=free_port(), data_dir=appliance.data_dir) as other:
        other.launch()
        wait_until(lambda: not other.is_running, "it has ended", STOP_S)
        assert other.stop() == 73
        assert other.log.read_text().count("\n") == 1
        assert str(appliance.data_dir) in other.log.read_text()
    appliance.write(b"m v=1")


def test_port_in_use(appliance: ApplianceProcess) -> None:
    """An address that somebody else listens on is one line that names it, and exit code 73."""
    with socket.create_server(("127.0.0.1", appliance.http_port)):
        appliance.launch()
        wait_until(lambda: not appliance.is_running, "it has ended", STOP_S)
    assert appliance.stop() == 73
    log = appliance.log.read_text()
    assert f"127.0.0.1:{appliance.http_port}" in log.splitlines()[-1]
    assert "Traceback" not in log


def test_open_files_up_to_the_hard_limit(appliance: ApplianceProcess) -> None:
    """Idle clients in the hundreds do not keep the log from opening its next file."""
    appliance.wrapper = ["sh", "-c", 'ulimit -S -n 100; exec "$@"', "sh"]
    appliance.start()
    limits = Path(f"/proc/{appliance.pid}/limits").read_text()
    soft, hard = re.findall(r"Max open files +(\d+) +(\d+)", limits)[0]
    assert soft == hard


def test_write_caught_by_a_stop_is_refused_at_once(tmp_path: Path) -> None:
    """What was not taken when SIGTERM came is answered 503, so the stop waits for no client's time limit."""
    with (
        ApplianceProcess(tmp_path / "a", mqtt_port=free_port(), settings={"wal": {"group_delay": "1s"}}) as appliance,
        ThreadPoolExecutor(1) as pool,
    ):
        appliance.start()
        appliance.write(b"m v=1")  # the next one waits a quarter of the delay
        write = pool.submit(appliance.write, b"m v=2")
        wait_until(lambda: appliance.metric("inbox_bytes") > 0, "the write waits for its group", 5, pause_s=0.005)
        assert appliance.stop(4.0) == 0
        with pytest.raises(RefusedError) as refused:
            write.result(1)
        assert (refused.value.status, "stopping" in str(refused.value)) == (503, True)
