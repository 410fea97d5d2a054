"""Who still reads: files that a view may name are deleted only after the queries that took one have let go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class ReadGate:
    """Counts readers by the epoch in which they began. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoch = 0
        self._reading = Counter[int]()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Whatever is visible now stays readable until the block ends."""
        with self._lock:
            epoch = self._epoch
            self._reading[epoch] += 1
        try:
            yield
        finally:
            with self._lock:
                self._reading[epoch] -= 1
                self._reading = +self._reading

    def next_epoch(self) -> int:
        """What was visible has just changed; returns the epoch that ended with it."""
        with self._lock:
            self._epoch += 1
            return self._epoch - 1

    def is_over(self, epoch: int) -> bool:
        """Whether nobody reads any more who began in `epoch` or before."""
        with self._lock:
            return all(began > epoch for began in self._reading)
