"""A real Mosquitto on a free port, with its own configuration and directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from ports import free_port, is_listening, wait_until

SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
"""Debian installs the broker where an ordinary user's PATH does not look."""


def find_mosquitto() -> str:
    """Path of the broker's program; skips the test where there is none."""
    program = shutil.which("mosquitto", path=SEARCH_PATH)
    if program is None:
        pytest.skip("mosquitto is not installed")
    return program


class Mosquitto:
    """A broker process. With persistence its state survives `stop` and `start`, as it does on a gateway."""

    def __init__(
        self, directory: Path, *, has_persistence: bool = False, settings: tuple[str, ...] = (), port: int = 0
    ) -> None:
        self.port = port or free_port()
        self._directory = directory
        self._program = find_mosquitto()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            # Started as root it would change to a user of its own, who may not write here.
            "user root",
            f"persistence {'true' if has_persistence else 'false'}",
            f"persistence_location {directory}/",
            f"log_dest file {directory}/mosquitto.log",
            *settings,
        ]
        self.config = directory / "mosquitto.conf"
        self.config.write_text("\n".join(lines) + "\n")

    def __enter__(self) -> Mosquitto:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Mosquitto:
        """Start it, and return when it accepts connections."""
        command = [self._program, "-c", str(self.config)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        wait_until(lambda: is_listening(self.port), "mosquitto accepts connections", timeout_s=10)
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it: by SIGTERM it saves its state, by SIGKILL it does not."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(10)
            self._process = None
