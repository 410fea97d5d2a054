"""The service manager's side of the process: notifications and the watchdog.

Outside systemd everything here is a no-op. The watchdog rule: a ping means that every
station made progress or waits on purpose, never merely that a timer thread is alive. This module must not know what
the stations are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import sdnotify

log = logging.getLogger(__name__)

_STDERR: Final = 2

# A full notification socket must never stop the thread that reports; a lost report is replaced by the next one.
_NOTIFY_TIMEOUT_S: Final = 1.0

_PINGS_PER_INTERVAL: Final = 3
"""Two pings may be late or lost before systemd acts."""


class Notifier:
    """Sends the state of the process to systemd; does nothing without NOTIFY_SOCKET. Any thread may call it."""

    def __init__(self) -> None:
        # Without the variable the library would open a socket and leave it to the garbage collector (0.3.2).
        self._systemd = sdnotify.SystemdNotifier() if os.environ.get("NOTIFY_SOCKET") else None
        if self._systemd is not None and self._systemd.socket is not None:
            self._systemd.socket.settimeout(_NOTIFY_TIMEOUT_S)

    def ready(self, status: str = "running") -> None:
        """Say that the service is up; the start timer ends and the watchdog begins to count."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def status(self, text: str) -> None:
        """Set the one line that `systemctl status` shows."""
        self._send(f"STATUS={_one_line(text)}")

    def reloading(self) -> None:
        """Say that the configuration is being read again; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}\nSTATUS=reloading")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for `seconds` more before a start or stop counts as hung; send it on real progress only."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def stopping(self, status: str = "stopping") -> None:
        """Say that the service has begun to stop."""
        self._send(f"STOPPING=1\nSTATUS={_one_line(status)}")

    def watchdog(self) -> None:
        """Ping the watchdog."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket; later calls do nothing."""
        systemd, self._systemd = self._systemd, None
        if systemd is not None and systemd.socket is not None:
            systemd.socket.close()

    def _send(self, state: str) -> None:
        if self._systemd is not None:
            # The library encodes Latin-1 and drops what does not fit (0.3.2); systemd reads UTF-8.
            self._systemd.notify(state.encode("utf-8", "replace").decode("latin-1"))


def _one_line(text: str) -> str:
    return " ".join(text.split())


class Station:
    """One thread's or loop's sign of life. Its owner reports, the watchdog's pinger reads.

    All state is one deadline, written by the owner in one assignment, so no lock is needed.
    """

    def __init__(self, name: str, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.limit_s = limit_s
        self._step = ("", limit_s)
        """Name and limit of the step in work; without a name, of the station as such."""
        self._clock = clock
        self._fresh_until = clock() + limit_s

    def beat(self) -> None:
        """Report progress: the station is fresh for `limit_s` from now."""
        self._fresh_until = self._clock() + self.limit_s

    def rest(self) -> None:
        """Wait for work from now on: alive until the next beat, however long that takes."""
        self._fresh_until = math.inf

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """While inside, the owner waits for work and counts as alive however long it takes."""
        self.rest()
        try:
            yield
        finally:
            self.beat()

    @contextlib.contextmanager
    def within(self, limit_s: float, step: str) -> Iterator[None]:
        """While inside, one step known to be long (an fsync on a slow card) may take up to `limit_s`."""
        outer, self._step = self._step, (step, limit_s)
        self._fresh_until = self._clock() + limit_s
        try:
            yield
        finally:
            self._step = outer
            self.beat()

    def __str__(self) -> str:
        step, limit_s = self._step
        name = f"{self.name}, {step}" if step else self.name
        return f"{name} (limit {limit_s:g} s, overdue {self.overdue_s:.1f} s)"

    @property
    def is_fresh(self) -> bool:
        """Whether the owner made progress within its limit, or waits on purpose."""
        return self._clock() <= self._fresh_until

    @property
    def overdue_s(self) -> float:
        """How long the deadline has passed; 0 while fresh."""
        return max(0.0, self._clock() - self._fresh_until)


class Watchdog:
    """One thread that pings systemd while every station is fresh.

    On the first stale station it dumps all stacks, logs one critical line, and falls silent for good: systemd then
    aborts and restarts the process. Start it together with READY=1, since systemd counts from there.
    """

    def __init__(
        self,
        notifier: Notifier,
        stations: Iterable[Station] = (),
        environ: Mapping[str, str] = os.environ,
        dump: Callable[[], None] | None = None,
    ) -> None:
        self._notifier = notifier
        self._stations = tuple(stations)
        self._dump = dump or _dump_stacks
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.period_s = _ping_period_s(environ)
        """Seconds between pings; 0 when systemd asked this process for none."""

    def watch(self, station: Station) -> None:
        """Require `station` to be fresh from now on."""
        self._stations = (*self._stations, station)

    def start(self) -> None:
        """Send the first ping and keep on; does nothing when systemd wants no pings."""
        for station in self._stations:
            if not station.is_fresh:  # made before a long replay, and its owner has only been started
                station.beat()
        if self.period_s and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; safe to call at any time."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def ping(self) -> bool:
        """Ping when all stations are fresh; else dump, log, and return False."""
        stale = [station for station in self._stations if not station.is_fresh]
        if not stale:
            self._notifier.watchdog()
            return True
        # The dump goes first: it takes no lock, while the log line may wait for one that a hung thread holds.
        self._dump()
        log.critical(
            "no progress: %s; the watchdog is not pinged any more, systemd will restart the service",
            ", ".join(map(str, stale)),
            extra={"event": "hang"},
        )
        return False

    def _run(self) -> None:
        while self.ping() and not self._stop.wait(self.period_s):
            pass


def _ping_period_s(environ: Mapping[str, str]) -> float:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    try:
        return max(0, int(environ.get("WATCHDOG_USEC", "0"))) / 1_000_000 / _PINGS_PER_INTERVAL
    except ValueError:
        return 0.0


def dump_stacks_when_killed() -> None:
    """Have a fatal signal show all stacks first: a hang that holds the interpreter's lock leaves no other trace."""
    faulthandler.enable(file=_STDERR, all_threads=True)


def _dump_stacks() -> None:
    faulthandler.dump_traceback(file=_STDERR, all_threads=True)
