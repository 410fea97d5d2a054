"""The table of memory budgets: what the usable RAM is given to, so that all of it adds up to at most 60 %.

    buffer    rows, series, and what queries still read of rows that are persisted
    inbox     payloads that wait for the log
    queries   the pool of the SQL engine
    workers   what is left of the 60 %: a job takes three times its slice. Never part of the buffer, so that
              making room never waits for memory

The interpreter, its libraries and the page cache have the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PLANNED_SHARE: Final = 0.6
"""Of usable RAM."""
SLICE_BYTES: Final = 32 * 2**20
"""Raw bytes that a job has in work at a time, at most."""
JOB_FACTOR: Final = 3
"""Memory of a job as a multiple of its slice: measured 2.6 for sorting, merging and encoding."""
LEAST_SLICE_BYTES: Final = 4 * 2**20
QUERY_SHARE: Final = 0.15
INBOX_SHARE: Final = 0.04
"""Of usable RAM, for budgets that nobody stated: on a small machine less than the usual sizes."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Who may take how much."""

    usable_bytes: int
    buffer_bytes: int
    inbox_bytes: int
    query_bytes: int
    slice_bytes: int
    jobs: int

    @property
    def worker_bytes(self) -> int:
        """What all jobs at once take."""
        return JOB_FACTOR * self.slice_bytes * self.jobs

    @property
    def total_bytes(self) -> int:
        """Everything that is planned."""
        return self.buffer_bytes + self.inbox_bytes + self.query_bytes + self.worker_bytes

    @property
    def most_bytes(self) -> int:
        """What may be planned."""
        return int(self.usable_bytes * PLANNED_SHARE)

    @property
    def fits(self) -> bool:
        """Whether the budgets leave enough for one job with the smallest slice."""
        return self.total_bytes <= self.most_bytes

    def __str__(self) -> str:
        return (
            f"buffer {_mib(self.buffer_bytes)}, inbox {_mib(self.inbox_bytes)}, queries {_mib(self.query_bytes)}, "
            f"workers {_mib(self.worker_bytes)} ({self.jobs} x {JOB_FACTOR} x {_mib(self.slice_bytes)}), "
            f"together {_mib(self.total_bytes)} of {_mib(self.usable_bytes)} usable"
        )


def plan_memory(usable_bytes: int, buffer_bytes: int, inbox_bytes: int, query_bytes: int, cores: int) -> MemoryPlan:
    """Give the workers what the others leave of the 60 %: full slices for as many cores as possible."""
    left = int(usable_bytes * PLANNED_SHARE) - buffer_bytes - inbox_bytes - query_bytes
    slice_bytes = max(LEAST_SLICE_BYTES, min(SLICE_BYTES, left // JOB_FACTOR))
    jobs = max(1, min(cores, left // (JOB_FACTOR * slice_bytes)))
    return MemoryPlan(usable_bytes, buffer_bytes, inbox_bytes, query_bytes, slice_bytes, jobs)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
