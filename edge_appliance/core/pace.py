"""A bandwidth limit, kept on average: a body is sent at once and pays for its time before the next one starts."""

from __future__ import annotations


class Pace:
    """When the next body may start; a limit of 0 is none."""

    def __init__(self, limit_bytes_s: int) -> None:
        self._limit_bytes_s = limit_bytes_s
        self._free_at_s = 0.0

    def start(self, size_bytes: int, now_s: float) -> None:
        """A body of this size starts now."""
        if self._limit_bytes_s:
            self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self._limit_bytes_s

    def wait_s(self, now_s: float) -> float:
        """How long the next body has to wait."""
        return max(0.0, self._free_at_s - now_s)
