"""The service manager's side of the process: notifications, the watchdog, and the journal.

Outside systemd everything here is a no-op or falls back to plain stderr. The watchdog rule: a ping means that every
station made progress or waits on purpose, never merely that a timer thread is alive. This module must not know what
the stations are.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import math
import os
import sys
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
    def within(self, limit_s: float) -> Iterator[None]:
        """While inside, one step known to be long (an fsync on a slow card) may take up to `limit_s`."""
        self._fresh_until = self._clock() + limit_s
        try:
            yield
        finally:
            self.beat()

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
        names = ", ".join(f"{s.name} (limit {s.limit_s:g} s, overdue {s.overdue_s:.1f} s)" for s in stale)
        log.critical("no progress: %s; the watchdog is not pinged any more, systemd will restart the service", names)
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


class JournalHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Log lines on stderr: with `<N>` priorities when stderr is the journal, with time and level elsewhere.

    Lines of one logger and message template are limited, so that a storm of bad input cannot flood the journal:
    `BURST` at once, then one a minute, which says how many were withheld. Debug and critical lines are never withheld.
    """

    BURST: Final = 8
    REFILL_S: Final = 60.0
    MAX_TEMPLATES: Final = 1_000
    """Templates come from the code and are few; a caller that formats its own text must not grow the table."""

    def __init__(self, *, is_journal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()  # looks up sys.stderr
        self._is_journal = is_journal
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Bucket] = {}
        self.suppressed = 0
        """Lines withheld so far."""
        self.on_suppressed: Callable[[], None] | None = None
        """Called for each withheld line; it must not log."""
        self.setFormatter(_JournalFormatter() if is_journal else _PlainFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless its template has used up its share. Runs under the handler's lock."""
        withheld = 0
        if logging.DEBUG < record.levelno < logging.CRITICAL:
            bucket = self._bucket(record)
            if not bucket.take(self._clock()):
                self.suppressed += 1
                if self.on_suppressed is not None:
                    self.on_suppressed()
                return
            withheld, bucket.withheld = bucket.withheld, 0
        record.withheld = withheld
        super().emit(record)

    def _bucket(self, record: logging.LogRecord) -> _Bucket:
        key = (record.name, str(record.msg))
        if key not in self._buckets:
            if len(self._buckets) >= self.MAX_TEMPLATES:
                self._buckets.clear()
            self._buckets[key] = _Bucket(self.BURST, self.REFILL_S, self._clock())
        return self._buckets[key]


class _Bucket:
    """Tokens of one template: full at first, one more each `refill_s`."""

    def __init__(self, size: int, refill_s: float, now_s: float) -> None:
        self._size = size
        self._refill_s = refill_s
        self._tokens = float(size)
        self._at_s = now_s
        self.withheld = 0

    def take(self, now_s: float) -> bool:
        self._tokens = min(self._size, self._tokens + (now_s - self._at_s) / self._refill_s)
        self._at_s = now_s
        if self._tokens < 1:
            self.withheld += 1
            return False
        self._tokens -= 1
        return True


class _Formatter(logging.Formatter):
    """The message with its logger's short name and the number of lines withheld before it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        record.short_name = record.name.removeprefix("edge_appliance.")
        withheld = getattr(record, "withheld", 0)
        return super().formatMessage(record) + (f" ({withheld} similar lines withheld before)" if withheld else "")


class _PlainFormatter(_Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-8s %(short_name)s: %(message)s")


class _JournalFormatter(_Formatter):
    """Each line begins with its syslog priority in angle brackets; the journal takes it off again."""

    def __init__(self) -> None:
        super().__init__("%(short_name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_syslog_priority(record.levelno)}>"
        # Every line of a traceback needs the prefix, and text from outside must not smuggle one in.
        return "\n".join(prefix + line for line in super().format(record).splitlines())


def _syslog_priority(level: int) -> int:
    thresholds = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
    return next((priority for threshold, priority in thresholds if level >= threshold), 7)


def journal_handler(environ: Mapping[str, str] = os.environ) -> JournalHandler:
    """Return the handler for this process's stderr."""
    return JournalHandler(is_journal=_is_journal(environ.get("JOURNAL_STREAM", "")))


def report_suppressed(callback: Callable[[], None]) -> None:
    """Have every journal handler of the root logger call `callback` for each line it withholds."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, JournalHandler):
            handler.on_suppressed = callback


def _is_journal(stream: str) -> bool:
    """Whether stderr is the very stream the service manager connected: a redirect must not get prefixes."""
    try:
        stat = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return stream == f"{stat.st_dev}:{stat.st_ino}"
