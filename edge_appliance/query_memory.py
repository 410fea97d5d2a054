"""The last line of defence against a query that takes memory outside of the engine's pool.

Nothing tells which query took it, so each watches how much the process has grown since it began, and the one that sees
too much of it is ended. One at a time: the others go on while its memory comes back. Growth is measured anew for each
query, since over hours ingest may fill its buffer, but within one query's time it takes little.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final

from edge_appliance import host
from edge_appliance.errors import QueryError

_POOL_FACTOR: Final = 3
_SLACK_BYTES: Final = 64 * 2**20
"""Growth beyond the pool that is usual: decoded pages, batches on their way, and what ingest takes meanwhile."""
_LOW_BYTES: Final = 32 * 2**20
"""With less than this available to the whole process, growth by one pool is too much already."""
_RELIEF_S: Final = 2.0


class MemoryGuard:
    """Says which query has to end when the process grows too much. Thread-safe."""

    def __init__(
        self,
        pool_bytes: int,
        *,
        resident: Callable[[], int] = host.rss_bytes,
        available: Callable[[], int] = host.available_memory_bytes,
    ) -> None:
        self._pool_bytes = pool_bytes
        self._resident = resident
        self._available = available
        self._lock = threading.Lock()
        self._quiet_until_s = 0.0
        self._numbers = itertools.count()
        self._running = weakref.WeakValueDictionary[int, Watch]()

    def watch(self) -> Watch:
        """A watch for one query."""
        return Watch(self)

    def began(self, watch: Watch) -> None:
        """Note a query that has begun; it is forgotten with its watch."""
        with self._lock:
            self._running[next(self._numbers)] = watch

    def end_oldest(self) -> None:
        """End the query that began first: rows that only it still reads keep others from being stored."""
        with self._lock:
            running = dict(self._running)
        if running:
            running[min(running)].end("rows it reads are persisted, and hold memory that new rows need")

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        return self._resident()

    def is_too_much(self, grown_bytes: int) -> bool:
        """Whether the query that saw this growth has to end."""
        if grown_bytes <= self._pool_bytes:
            return False
        if grown_bytes <= _POOL_FACTOR * self._pool_bytes + _SLACK_BYTES and self._available() >= _LOW_BYTES:
            return False
        with self._lock:
            now_s = time.monotonic()
            is_first = now_s >= self._quiet_until_s
            if is_first:
                self._quiet_until_s = now_s + _RELIEF_S
        return is_first


class Watch:
    """Growth of the process since one query began."""

    def __init__(self, guard: MemoryGuard) -> None:
        self._guard = guard
        self._before_bytes: int | None = None
        self._reason = ""

    def end(self, reason: str) -> None:
        """Let the query end at its next check. Safe from any thread."""
        self._reason = reason

    def begin(self) -> None:
        """From here on growth counts."""
        self._before_bytes = self._guard.resident_bytes()
        self._guard.began(self)

    def check(self) -> None:
        """Raise QueryError when the process has grown too much; nothing counts before `begin`."""
        if self._reason:
            raise QueryError("exhausted", f"the query was ended: {self._reason}")
        if self._before_bytes is None:
            return
        grown_bytes = self._guard.resident_bytes() - self._before_bytes
        if self._guard.is_too_much(grown_bytes):
            text = f"queries took {grown_bytes // 2**20} MiB of memory; narrow the time range, or ask for fewer columns"
            raise QueryError("exhausted", text)
