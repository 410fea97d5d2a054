"""A full disk and a failing fsync under the real process: only what is durable is acknowledged, nothing is lost."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from appliance_process import ApplianceProcess, RefusedError
from crash_load import ROUTE, HttpWriter, Lines, check, numbers_in, numbers_of
from fake_broker import FakeBroker
from ports import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.integration, pytest.mark.slow]

DISK_MIB = 48


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of DISK_MIB in memory."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path, leave_bytes: int) -> Path:
    """Fill the disk up to `leave_bytes`; returns the file that does it."""
    filler = disk / "filler"
    free = os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave_bytes)
    return filler


@pytest.mark.parametrize(
    ("min_free", "leave_bytes"),
    [
        pytest.param("16MiB", 2**20, id="stops before the disk is full"),
        pytest.param("0B", 20 * 4_096, id="meets ENOSPC in the middle of a write"),
    ],
)
def test_disk_full_is_read_only_and_back(tmp_path: Path, small_disk: Path, min_free: str, leave_bytes: int) -> None:
    """On a full disk queries go on and nothing is acknowledged; with room again it takes rows, and has them all."""
    settings: dict[str, dict[str, object]] = {
        "wal": {"min_free": min_free, "max_bytes": "32MiB", "group_delay": "5ms"},
        "segment": {"max_bytes": "4MiB"},
    }
    lines = Lines()
    with (
        FakeBroker() as broker,
        ApplianceProcess(
            tmp_path, mqtt_port=broker.port, settings=settings, routes=[ROUTE], data_dir=small_disk / "data"
        ) as appliance,
    ):
        appliance.start()
        writer = HttpWriter(appliance, lines, pause_s=0)
        for _ in range(50):
            writer.step()
        before = writer.books.acked.copy()
        assert before

        filler = fill(small_disk, leave_bytes)
        wait_until(lambda: not writer.step(), "writes are refused", timeout_s=60)
        acked_full = len(broker.ledger.acked)
        messages = [lines.payload("mqtt") for _ in range(100)]
        for payload in messages:
            broker.publish("crash/d1/lp", payload)
        assert not writer.step(), "it stays read-only while the disk is full"
        assert len(broker.ledger.acked) == acked_full, "nothing is acknowledged while the disk is full"
        mqtt = {number for payload in messages for number in numbers_in(payload)}
        check(appliance, lambda: writer.books.acked, lambda: writer.books.sent | mqtt)
        assert appliance.is_running

        filler.unlink()
        wait_until(writer.step, "writes are taken again", timeout_s=10)
        broker.wait_drained()
        for _ in range(20):
            writer.step()
        must = writer.books.acked | mqtt
        assert must > before | mqtt, "writes after the full disk are acknowledged"
        check(appliance, lambda: must, lambda: writer.books.sent | mqtt)

        appliance.kill()
        appliance.start()
        check(appliance, lambda: must, lambda: writer.books.sent | mqtt)
        assert appliance.stop() == 0


SYNC = re.compile(r"fdatasync\(\d+<([^>]+)>\)\s+= (.*)")
FIRST_LOG = "00000000000000000001.wal"


@pytest.mark.parametrize("failing", [1, 2, 7])
def test_failed_sync_is_never_believed(tmp_path: Path, failing: int) -> None:
    """After EIO from fdatasync its file is never synced again, and what was acknowledged is in another file."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    lines = Lines()
    with FakeBroker() as broker, ApplianceProcess(tmp_path, mqtt_port=broker.port, routes=[ROUTE]) as appliance:
        appliance.wrapper = [
            *(strace, "-f", "-y", "-o", str(trace), "-e", "trace=fdatasync"),
            *("-e", f"inject=fdatasync:error=EIO:when={failing}"),
            *("-P", str(appliance.data_dir / "wal" / FIRST_LOG)),
            *("-P", str(appliance.data_dir / "wal" / FIRST_LOG.replace("1.wal", "2.wal"))),
        ]
        appliance.start(timeout_s=60)
        writer = HttpWriter(appliance, lines)
        messages = [lines.payload("mqtt") for _ in range(20)]
        for payload in messages:
            broker.publish("crash/d1/lp", payload)
            writer.step()
        broker.wait_drained()
        appliance.kill()

        syncs = SYNC.findall(trace.read_text())
        failed = [path for path, result in syncs if "EIO" in result]
        assert [Path(path).name for path in failed] == [FIRST_LOG], "the fault was injected once"
        behind = syncs[[result.startswith("-1") for _, result in syncs].index(True) + 1 :]
        assert behind, "what failed was written to another file and synced there"
        assert failed[0] not in {path for path, _ in behind}, "a failed file is never synced again"

        appliance.wrapper = []
        appliance.start()
        mqtt = {number for payload in messages for number in numbers_in(payload)}
        must = writer.books.acked | mqtt
        assert len(must) > len(mqtt)
        check(appliance, lambda: must, lambda: writer.books.sent | mqtt)
        assert appliance.stop() == 0


def test_full_disk_under_a_log_larger_than_memory_is_read_only_and_back(tmp_path: Path, small_disk: Path) -> None:
    """Replay that can neither hold nor persist its rows is no reason to end: queries see what is loaded, then the rest.

    Nothing is acknowledged meanwhile, and no further start is needed.
    """
    lines = Lines(400)
    data_dir = small_disk / "data"
    payloads = [lines.payload("http").splitlines()[:-1] for _ in range(4_000)]  # without those that state no time
    bodies = [b"\n".join(itertools.chain(*payloads[n : n + 200])) for n in range(0, len(payloads), 200)]
    sent = numbers_of(bodies)
    large: dict[str, dict[str, object]] = {
        "memory": {"buffer_limit": "256MiB"},
        "segment": {"max_bytes": "64MiB"},
        "wal": {"max_bytes": "1GiB"},
    }
    with (
        FakeBroker() as broker,
        ApplianceProcess(tmp_path / "1", mqtt_port=broker.port, settings=large, data_dir=data_dir) as appliance,
    ):
        appliance.start()
        for body in bodies:
            appliance.write(body)
        assert appliance.metric("parts") == 0
        appliance.kill()
    filler = fill(small_disk, 40 * 4_096)
    small: dict[str, dict[str, object]] = {
        "memory": {"buffer_limit": "4MiB"},
        "segment": {"max_bytes": "2MiB"},
        "wal": {"min_free": "0B"},
    }
    with (
        FakeBroker() as broker,
        ApplianceProcess(tmp_path / "2", mqtt_port=broker.port, settings=small, data_dir=data_dir) as appliance,
    ):
        appliance.start()
        loaded = check(appliance, set, lambda: sent)
        assert 1_000 < len(loaded) < len(sent)
        assert "cannot be persisted" in json.loads(appliance.get("/api/v1/status"))["held"]
        with pytest.raises(RefusedError):
            appliance.write(b"timed id=1i 1", timeout_s=8)
        filler.unlink()
        wait_until(lambda: check(appliance, set, lambda: sent) == sent, "the rest is replayed", timeout_s=40)
        wait_until(HttpWriter(appliance, lines).step, "writes are taken again", timeout_s=20)
        assert appliance.stop() == 0
