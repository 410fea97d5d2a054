"""The real daemon as a process: start, wait, ask, kill. One object is one data directory through many restarts."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ports import free_port, wait_until

PREFIX = "edge_appliance_"


class RefusedError(Exception):
    """Raised when the daemon answers with an error status."""

    def __init__(self, status: int, body: str, retry_after_s: str | None) -> None:
        super().__init__(f"HTTP {status}: {body[:500]}")
        self.status = status
        self.retry_after_s = retry_after_s


class ApplianceProcess:
    """`edge-appliance run` with a configuration of its own; `settings` is TOML by section: {"wal": {...}}."""

    def __init__(
        self,
        directory: Path,
        *,
        mqtt_port: int,
        settings: dict[str, dict[str, object]] | None = None,
        routes: Sequence[dict[str, object]] = (),
        data_dir: Path | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.data_dir = data_dir or directory / "data"
        self.http_port = free_port()
        self.config = directory / "edge-appliance.toml"
        self.log = directory / "appliance.log"
        self.wrapper = wrapper
        """Command to run the daemon under, such as strace."""
        self._process: subprocess.Popen[bytes] | None = None
        sections: dict[str, dict[str, object]] = {
            "node": {"id": "test", "data_dir": str(self.data_dir)},
            "mqtt": {"host": "127.0.0.1", "port": mqtt_port},
            "store": {"url": (self.data_dir / "store").as_uri()},
            "http": {"listen": f"127.0.0.1:{self.http_port}"},
            "wal": {"min_free": "1MiB"},
            "memory": {"buffer_limit": "64MiB"},
        }
        for name, keys in (settings or {}).items():
            sections.setdefault(name, {}).update(keys)
        self.config.write_text(_toml(sections, routes))

    def __enter__(self) -> ApplianceProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # Life

    def launch(self) -> ApplianceProcess:
        """Start the process and return at once."""
        assert self._process is None, "it is running already"
        command = [*self.wrapper, sys.executable, "-m", "edge_appliance", "run", "--config", str(self.config)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NOTIFY_")}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        return self

    def start(self, timeout_s: float = 30.0) -> ApplianceProcess:
        """Start the process and wait until it is ready."""
        self.launch()
        self.wait_ready(timeout_s)
        return self

    def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until replay has finished and queries are answered."""
        wait_until(self.is_ready, "the appliance is ready", timeout_s)

    def is_ready(self) -> bool:
        """Ask whether it is ready; raises AssertionError with its log when it has ended instead."""
        if not self.is_running:
            raise AssertionError(f"the appliance has ended:\n{self.log_tail()}")
        try:
            self.get("/ready", timeout_s=2)
        except (OSError, RefusedError):
            return False
        return True

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id (of the wrapper, where there is one)."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it by SIGKILL, as a power cut would; nothing happens when it has ended already."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    def stop(self, timeout_s: float = 20.0) -> int:
        """End it by SIGTERM and return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(timeout_s)
        self._process = None
        return code

    def log_tail(self, lines: int = 40) -> str:
        """The last lines it logged."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    # Asking

    def get(self, path: str, timeout_s: float = 30.0) -> bytes:
        """Body of a GET; raises RefusedError for an error status and OSError when nobody answers."""
        return self._ask("GET", path, None, timeout_s)

    def write(self, lines: bytes, *, database: str = "edge", timeout_s: float = 30.0, precision: str = "ns") -> None:
        """Write line protocol; returning means that it was acknowledged."""
        query = urllib.parse.urlencode({"bucket": database, "precision": precision})
        self._ask("POST", f"/api/v2/write?{query}", lines, timeout_s)

    def query(self, sql: str, *, database: str = "edge") -> list[dict[str, Any]]:
        """Rows of a SQL answer."""
        query = urllib.parse.urlencode({"db": database, "q": sql, "format": "json"})
        rows: list[dict[str, Any]] = json.loads(self.get(f"/api/v3/query_sql?{query}"))
        return rows

    def query_table(self, sql: str, *, database: str = "edge") -> pa.Table:
        """A SQL answer as an Arrow table, for large ones."""
        query = urllib.parse.urlencode({"db": database, "q": sql, "format": "parquet"})
        return pq.read_table(io.BytesIO(self.get(f"/api/v3/query_sql?{query}")))

    def metrics(self) -> dict[str, float]:
        """All numbers by name without the prefix, labels as in the text: `rejected_lines_total{reason="nul_byte"}`."""
        return parse_metrics(self.get("/metrics").decode())

    def metric(self, name: str) -> float:
        """One number, summed over its labels; 0 when it was never counted."""
        return sum(value for key, value in self.metrics().items() if key.partition("{")[0] == name)

    def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout_s)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body)
                answer = connection.getresponse()
                text = answer.read()
            except http.client.HTTPException as error:  # it was killed in the middle of its answer
                raise ConnectionError(f"{path}: {error!r}") from error
        if answer.status >= 300:
            raise RefusedError(answer.status, text.decode(errors="replace"), answer.headers.get("Retry-After"))
        return text


def parse_metrics(text: str) -> dict[str, float]:
    """Numbers of a Prometheus text by name and labels, without our prefix."""
    numbers = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, number = line.rpartition(" ")
            numbers[name.removeprefix(PREFIX)] = float(number)
    return numbers


def _toml(sections: dict[str, dict[str, object]], routes: Sequence[dict[str, object]]) -> str:
    """The sections as TOML. JSON writes strings, numbers and booleans the way TOML does."""
    lines = []
    for name, keys in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    for route in routes:
        lines += ["[[mqtt.route]]", *(f"{key} = {json.dumps(value)}" for key, value in route.items())]
    return "\n".join(lines) + "\n"
