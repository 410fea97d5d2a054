"""The two servers of the demo: a Mosquitto of its own and the appliance, both on free ports of the loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

DATABASE: Final = "edge"
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
_SEARCH_PATH: Final = "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"
_PREFIX: Final = "edge_appliance_"

_BROKER_CONFIG: Final = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
# Stock is 1000, beyond which messages for a client that is busy or away are dropped without a word.
max_queued_messages 100000
log_dest stderr
"""

_APPLIANCE_CONFIG: Final = """\
[node]
id = "demo"
data_dir = "{data_dir}"

[mqtt]
port = {mqtt_port}

[[mqtt.route]]
topic = "plants/{{site}}/+/{{device}}/lp"
database = "{database}"

[segment]
max_age = "5s"      # so that Parquet appears while you watch; an hour is usual

[wal]
min_free = "64MiB"

[store]
url = "file://{data_dir}/store"

[http]
listen = "127.0.0.1:{http_port}"
"""


class DemoError(Exception):
    """Raised when the demo cannot go on; the message is for the person who started it."""


class Server:
    """A child process with a log file. It has its own session, so that Ctrl-C reaches the demo alone."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def check(self) -> None:
        """Raise DemoError with the end of the log when the process has ended."""
        if self._process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise DemoError(f"{self.name} ended with exit code {self._process.returncode}:\n{tail}")

    def stop(self) -> int:
        """End it in good order, by force when it takes too long; returns its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Broker(Server):
    """Mosquitto without persistence."""

    def __init__(self, directory: Path) -> None:
        program = shutil.which("mosquitto") or shutil.which("mosquitto", path=_SEARCH_PATH)
        if program is None:
            raise DemoError("mosquitto is not installed")
        self.port = _free_port()
        config = directory / "mosquitto.conf"
        config.write_text(_BROKER_CONFIG.format(port=self.port))
        super().__init__("mosquitto", [program, "-c", str(config)], directory / "mosquitto.log")

    def wait(self) -> None:
        """Return when it accepts connections."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not _is_listening(self.port):
            self.check()
            _pause(deadline_s, "mosquitto does not accept connections")


class Appliance(Server):
    """`edge-appliance run`, and the questions the demo asks it."""

    def __init__(self, directory: Path, mqtt_port: int) -> None:
        self.http_port = _free_port()
        self.data_dir = directory / "data"
        self.config = directory / "edge-appliance.toml"
        self.config.write_text(
            _APPLIANCE_CONFIG.format(
                data_dir=self.data_dir, mqtt_port=mqtt_port, http_port=self.http_port, database=DATABASE
            )
        )
        self._command = [sys.executable, "-m", "edge_appliance"]
        command = [*self._command, "run", "--config", str(self.config)]
        super().__init__("edge-appliance", command, directory / "appliance.log")

    def wait(self) -> None:
        """Return when it is ready and subscribed."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_subscribed():
            self.check()
            _pause(deadline_s, "edge-appliance is not ready")

    def metrics(self) -> dict[str, float]:
        """All numbers by name, labels left out and summed."""
        sums: dict[str, float] = {}
        for line in self._get("/metrics").decode().splitlines():
            if not line.startswith("#"):
                name, _, number = line.rpartition(" ")
                name = name.partition("{")[0].removeprefix(_PREFIX)
                sums[name] = sums.get(name, 0) + float(number)
        return sums

    def query(self, sql: str, output: str = "table") -> str:
        """Ask a question in SQL by `edge-appliance query`, as anybody would."""
        command = [*self._command, "query", "--config", str(self.config), "-d", DATABASE, "-o", output, sql]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise DemoError(f"edge-appliance query failed: {result.stderr.strip()}")
        return result.stdout

    def count(self, table: str) -> int:
        """Rows of a table, by SQL; 0 while there is no such table."""
        known = json.loads(self.query("SELECT table_name FROM information_schema.tables", "json"))
        if table not in {row["table_name"] for row in known}:
            return 0
        rows = json.loads(self.query(f'SELECT count(*) AS n FROM "{table}"', "json"))
        return int(rows[0]["n"])

    def _is_subscribed(self) -> bool:
        try:
            self._get("/ready")
            return self.metrics()["broker_connected"] == 1
        except (OSError, http.client.HTTPException):
            return False

    def _get(self, path: str) -> bytes:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=5)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        if answer.status != 200:
            raise ConnectionError(f"{path} answered {answer.status}")
        return body


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _pause(deadline_s: float, fault: str) -> None:
    if time.monotonic() > deadline_s:
        raise DemoError(f"{fault} within {START_TIMEOUT_S:.0f} s")
    time.sleep(0.05)
