"""The HTTP peers from Debian's packages, each as a process with a directory of its own."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from ports import free_port, is_listening, wait_until

WRITE = "/write?db=bench&precision=ns"


@dataclass(frozen=True)
class Peer:
    """How a peer is started and what is said about it."""

    name: str
    package: str
    programs: Sequence[str]
    command: Callable[[str, Path, int], list[str]]
    setup_path: str = ""
    """Asked once before the first write."""
    dropped_metric: str = ""
    """Name of its metric that counts what it was sent and did not keep."""


def _victoria_metrics(program: str, directory: Path, port: int) -> list[str]:
    return [program, f"-storageDataPath={directory / 'data'}", f"-httpListenAddr=127.0.0.1:{port}"]


def _influxdb(program: str, directory: Path, port: int) -> list[str]:
    config = directory / "influxdb.conf"
    config.write_text(
        f'reporting-disabled = true\nbind-address = "127.0.0.1:{free_port()}"\n'
        f'[meta]\ndir = "{directory}/meta"\n'
        f'[data]\ndir = "{directory}/data"\nwal-dir = "{directory}/wal"\nwal-fsync-delay = "0s"\n'
        # Its cache is given room: what is measured is writing, not waiting for its snapshots.
        "cache-max-memory-size = 1073741824\n"
        f'[http]\nbind-address = "127.0.0.1:{port}"\nlog-enabled = false\n'
        "[monitor]\nstore-enabled = false\n"
    )
    return [program, "-config", str(config)]


PEERS = (
    Peer(
        "VictoriaMetrics, no fsync",
        "victoria-metrics",
        ("victoria-metrics", "victoria-metrics-prod"),
        _victoria_metrics,
        dropped_metric="vm_rows_ignored_total",
    ),
    Peer("InfluxDB 1.x, its fsync on", "influxdb", ("influxd",), _influxdb, "/query?q=CREATE+DATABASE+bench"),
)


class Server:
    """A running peer."""

    def __init__(self, peer: Peer, directory: Path) -> None:
        program = next(filter(None, map(shutil.which, peer.programs)), None)
        assert program is not None, "ask `is_installed` first"
        directory.mkdir(parents=True)
        self.port = free_port()
        self._log = (directory / "server.log").open("wb")
        self._process = subprocess.Popen(
            peer.command(program, directory, self.port), stdout=self._log, stderr=self._log, start_new_session=True
        )
        self._peer = peer

    def __enter__(self) -> Server:
        wait_until(lambda: is_listening(self.port), f"{self._peer.name} listens", timeout_s=30)
        if self._peer.setup_path:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}{self._peer.setup_path}", method="POST")
            urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - a server of ours
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._log.close()

    def check_kept(self) -> None:
        """Raise AssertionError when it says that it dropped something."""
        if self._peer.dropped_metric:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            found = [line for line in lines if line.startswith(self._peer.dropped_metric)]
            assert found, f"{self._peer.name} has no metric {self._peer.dropped_metric}"
            assert all(float(line.split()[-1]) == 0 for line in found), found

    @property
    def process(self) -> psutil.Process:
        """The process, for its CPU time."""
        return psutil.Process(self._process.pid)


def is_installed(peer: Peer) -> bool:
    """Whether its program is there."""
    return any(shutil.which(program) for program in peer.programs)
