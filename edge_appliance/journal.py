"""The journal: log lines with their fields, limited, so that no storm of bad input floods it.

What an operator may wait for is an event with a name and a MESSAGE_ID, which stay the same when the words change:
`journalctl MESSAGE_ID=…`. A log call states it as `extra={"event": "ready"}`.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

MAX_MESSAGE: Final = 16_384
"""Characters. A datagram that is too large would be refused as a whole."""

EVENTS: Final = {
    "ready": "The log was replayed, and rows are taken and answered.",
    "stopped": "The service has ended in good order.",
    "configuration_faults": "It cannot start: the configuration has faults, all of which are named.",
    "reloaded": "A changed configuration was taken over; what needs a restart is named.",
    "reload_refused": "A changed configuration has faults; the old one stays in effect.",
    "broker_connected": "The broker has accepted us and granted the subscriptions.",
    "broker_lost": "There is no connection to the broker; it is tried again for ever.",
    "hang": "A part made no progress in time. All stacks stand before it; systemd restarts the service.",
}

_NAMESPACE: Final = uuid.UUID("a1ad36a6-0d3a-4a1e-9f0e-0c4d3d3c8f52")


def message_id(event: str) -> str:
    """Return the MESSAGE_ID of an event: 128 bits in hex, the same in every release."""
    return uuid.uuid5(_NAMESPACE, event).hex


class JournalSocket:
    """The journal's own socket, which takes fields. What it does not take at once is the caller's to write."""

    def __init__(self, path: str = "/run/systemd/journal/socket") -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, fields: Mapping[str, str]) -> bool:
        """Send one entry; False when it was not taken, because the journal is restarted, full or not there."""
        try:
            # By path each time: a connection would not survive a new socket.
            self._socket.sendto(b"".join(_field(name, value) for name, value in fields.items()), self._path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close it; nothing is taken any more."""
        self._socket.close()


def _field(name: str, value: str) -> bytes:
    """One field: its length states its end, so that no text from outside can begin another one."""
    data = value.encode("utf-8", "replace")
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


class JournalHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Log lines to the journal with their fields; on stderr with `<N>` priorities when that fails, plain elsewhere.

    Lines of one logger and message template are limited, so that a storm of bad input cannot flood the journal:
    `BURST` at once, then one a minute, which says how many were withheld. Debug and critical lines are never withheld.
    """

    BURST: Final = 8
    REFILL_S: Final = 60.0
    MAX_TEMPLATES: Final = 1_000
    """Templates come from the code and are few; a caller that formats its own text must not grow the table."""

    def __init__(
        self,
        *,
        is_journal: bool,
        native: JournalSocket | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()  # looks up sys.stderr
        self._native = native
        self._message = _PlainMessage()
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
        if self._native is None or not self._native.send(self._fields(record)):
            super().emit(record)

    def close(self) -> None:
        """Close the journal's socket, too."""
        if self._native is not None:
            self._native.close()
        super().close()

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        fields = {
            "MESSAGE": self._message.format(record)[:MAX_MESSAGE],
            "PRIORITY": str(_syslog_priority(record.levelno)),
            "SYSLOG_IDENTIFIER": "edge-appliance",
            "EA_LOGGER": record.name.removeprefix("edge_appliance."),
        }
        if withheld := getattr(record, "withheld", 0):
            fields["EA_WITHHELD"] = str(withheld)
        if event := getattr(record, "event", ""):
            fields |= {"EA_EVENT": event, "MESSAGE_ID": message_id(event)}
        return fields

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


class _PlainMessage(_Formatter):
    def __init__(self) -> None:
        super().__init__("%(short_name)s: %(message)s")


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
    is_journal = _is_journal(environ.get("JOURNAL_STREAM", ""))
    return JournalHandler(is_journal=is_journal, native=JournalSocket() if is_journal else None)


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
