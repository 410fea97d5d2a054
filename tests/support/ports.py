"""Ports and waiting: what every helper that starts a server needs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


def free_port() -> int:
    """A TCP port on the loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(port: int) -> bool:
    """Whether somebody accepts connections on `port`."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 30.0, pause_s: float = 0.02) -> None:
    """Ask `condition` until it is true; raises AssertionError naming `what` when it is not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:g} s")
        time.sleep(pause_s)
