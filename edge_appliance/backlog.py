"""What a replay finds that has to be persisted, in the order of ranks, and how it stays within the budget meanwhile.

Nothing is persisted before the budget demands it: a log that fits into memory is replayed without a write. When the
buffer is full, everything found so far is handed to the workers; when that is not enough, the rows of the file in work
go as a set of their own, and the catalog notes how far it reaches. So a log of any size gets on, over any number of
kills. A disk that takes no parts is no reason to give up: replay waits, says why, and goes on when it does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from edge_appliance.buffer import ROOM_SHARE, Buffer
from edge_appliance.core.segment import Segment
from edge_appliance.core.set_aside import SetAside

WAIT_S: Final = 0.5
BLOCKED_S: Final = 3.0
"""How long workers may fail before replay says that it cannot go on by itself."""


class Workers(Protocol):
    """Who persists: jobs come in ascending order of their ranks."""

    def submit(self, segment: Segment) -> None:
        """Persist a sealed segment; its log file goes."""
        ...

    def submit_set_aside(self, aside: SetAside) -> None:
        """Persist what is set aside of a segment."""
        ...

    def submit_prefix(self, segment: Segment) -> None:
        """Persist the first rows of a log file, which stays."""
        ...

    @property
    def failure(self) -> str:
        """Why they do not get on; empty while they do."""
        ...


class Stopped(Exception):  # noqa: N818 - not an error: the process was asked to stop
    """Raised inside replay when the process is asked to stop."""


class Backlog:
    """Jobs that are not submitted yet. Used by the thread that replays."""

    def __init__(
        self,
        buffer: Buffer,
        workers: Workers,
        is_stopping: Callable[[], bool],
        on_blocked: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._buffer = buffer
        self._workers = workers
        self._is_stopping = is_stopping
        self._on_blocked = on_blocked
        """Told, over and over, why replay waits for a disk; an empty reason when it goes on."""
        self._jobs = deque[Callable[[], None]]()

    def add(self, segment: Segment) -> None:
        """Have a sealed segment persisted some time."""
        self._jobs.append(partial(self._workers.submit, segment))

    def add_set_aside(self, aside: SetAside) -> None:
        """Have a set-aside persisted some time, which must be before its segment."""
        self._jobs.append(partial(self._workers.submit_set_aside, aside))

    def add_prefix(self, segment: Segment) -> None:
        """Have the first rows of a log file persisted."""
        self._jobs.append(partial(self._workers.submit_prefix, segment))

    def submit_all(self) -> None:
        """Hand over everything found so far."""
        while self._jobs:
            self._jobs.popleft()()

    def make_room(self, cut_prefix: Callable[[], bool]) -> None:
        """Wait until the buffer has room. `cut_prefix` adds the rows of the file in work; False when there are none."""
        if self._buffer.size_bytes < self._buffer.limit_bytes:
            return
        self.submit_all()

        def has_room() -> bool:
            if self._buffer.size_bytes < self._buffer.limit_bytes * ROOM_SHARE:
                return True
            if self._buffer.state.jobs:
                return False
            if not cut_prefix():
                return True
            self.submit_all()
            return False

        self.wait_until(has_room)

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        """Wait for the workers; raises Stopped."""
        failing_since_s: float | None = None
        while not is_done():
            if self._is_stopping():
                raise Stopped
            now_s, failure = time.monotonic(), self._workers.failure
            if not failure:
                failing_since_s = None
            elif failing_since_s is None:
                failing_since_s = now_s
            elif now_s - failing_since_s >= BLOCKED_S:
                self._on_blocked(failure)
            self._buffer.wait_for_change(WAIT_S)
        self._on_blocked("")
