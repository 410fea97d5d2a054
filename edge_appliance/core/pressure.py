"""When memory runs short: how fast it fills, how long it lasts, and what to persist first. Pure; time is an argument.

    rate        bytes appended a second, averaged over about 30 s; what is persisted does not count against it
    time left   (limit - used + bytes already in jobs) / rate

Below the horizon there is one decision a second, in this order:

    1.  an open segment that nobody writes to is cut
    2.  else the oldest 90 % of its largest table are set aside, if that frees at least half of the segment
    3.  else the segment is cut

Sealed segments are always in jobs: they are handed to the workers when they are cut. There are never more jobs than
workers, and nothing is done while what is not in jobs is less than a quarter of the limit: a fast sender is inside
any horizon from the first byte on, and would be persisted in crumbs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from edge_appliance.core.delivery import TableKey

RATE_PERIOD_S: Final = 30.0
RATE_LEAST_S: Final = 5.0
"""Time a rate is based on at least: the first burst after a start is not yet a trend."""
DECISION_PERIOD_S: Final = 1.0
FULL_ENOUGH: Final = 0.25
"""Share of the limit that must be outside of jobs before anything is persisted early."""
SET_ASIDE_SHARE: Final = 0.9
"""Share of a table's rows, the oldest by their times, that a set-aside takes."""
LEAST_BYTES: Final = 2**20
LEAST_SHARE: Final = 0.01
"""A set-aside that frees less than these (1 MiB, 1 % of the limit) is not worth its files."""
IDLE_LONGEST_S: Final = 300.0
IDLE_AGE_SHARE: Final = 0.1
"""An open segment without a write for this share of its greatest age, at most 300 s, is idle."""


class Rate:
    """Exponential average of the bytes appended a second, weighted by time, on a monotonic clock."""

    def __init__(self, now_s: float) -> None:
        self._started_s = now_s
        self._seen_s = now_s
        self._weighted = 0.0
        """Bytes, each worth less the older it is."""

    def add(self, now_s: float, size_bytes: int) -> None:
        """Note that `size_bytes` were appended since the last call."""
        self._fade(now_s)
        self._weighted += size_bytes

    def per_second(self, now_s: float) -> float:
        """Bytes a second; a quiet sender fades to nothing."""
        self._fade(now_s)
        # The weights of a steady stream add up to this much: less than the whole period soon after the start.
        lived_s = max(now_s - self._started_s, RATE_LEAST_S)
        return max(0.0, self._weighted) / (RATE_PERIOD_S * (1 - math.exp(-lived_s / RATE_PERIOD_S)))

    def _fade(self, now_s: float) -> None:
        if now_s > self._seen_s:
            self._weighted *= math.exp((self._seen_s - now_s) / RATE_PERIOD_S)
            self._seen_s = now_s


@dataclass(frozen=True, slots=True)
class Policy:
    """What does not change while the process runs."""

    horizon_s: float
    segment_max_age_s: float
    workers: int

    @property
    def idle_s(self) -> float:
        """Time without a write after which a segment is idle."""
        return min(self.segment_max_age_s * IDLE_AGE_SHARE, IDLE_LONGEST_S)


class Largest(NamedTuple):
    """The table of the open segment that a set-aside would free most of, and how much."""

    table: TableKey
    freeable_bytes: int


@dataclass(frozen=True, slots=True)
class Situation:
    """How memory is used at one moment."""

    limit_bytes: int
    """The limit in effect."""
    used_bytes: int
    in_jobs_bytes: int
    """Of these, what jobs that are submitted already will free."""
    jobs: int
    rate: float
    open_bytes: int
    """Of the open segment, what is not being set aside."""
    idle_s: float
    """Since the last write to the open segment."""
    largest: Largest | None = None
    """None when no table has rows, or each is being set aside."""

    @property
    def seconds_left(self) -> float:
        """Until the limit is reached, if nothing more is done; infinite when nothing comes."""
        room = self.limit_bytes - self.used_bytes + self.in_jobs_bytes
        if room <= 0:
            return 0.0
        return room / self.rate if self.rate > 0 else math.inf


class Wait(NamedTuple):
    """Do nothing now."""

    why: Literal["far", "in jobs", "workers busy", "too small"]


class Cut(NamedTuple):
    """Seal the open segment, which makes it a job."""

    why: Literal["idle", "many tables"]


class SetAside(NamedTuple):
    """Persist the oldest rows of this table."""

    table: TableKey


Action = Wait | Cut | SetAside


def choose(policy: Policy, now: Situation) -> Action:
    """Decide what to persist; a pure function, so that a table of cases and a simulation can show what it does."""
    if now.seconds_left >= policy.horizon_s:
        return Wait("far")
    if now.used_bytes - now.in_jobs_bytes < FULL_ENOUGH * now.limit_bytes:
        return Wait("in jobs")
    if now.jobs >= policy.workers:
        return Wait("workers busy")
    least_bytes = max(LEAST_BYTES, LEAST_SHARE * now.limit_bytes)
    if not now.open_bytes or (now.jobs and now.open_bytes < least_bytes):
        return Wait("too small")
    return _relieve(policy, now, least_bytes)


def _relieve(policy: Policy, now: Situation, least_bytes: float) -> Action:
    """What to do with the open segment."""
    if now.idle_s >= policy.idle_s:
        return Cut("idle")
    largest = now.largest
    if largest is not None and largest.freeable_bytes >= max(least_bytes, now.open_bytes / 2):
        return SetAside(largest.table)
    return Cut("many tables")


# The limit in effect -------------------------------------------------------------------------------------------

FLOOR_SHARE: Final = 0.25
"""Of the configured limit: a foreign leak must not stop intake altogether."""
GROWTH_PER_MINUTE: Final = 0.1
"""Of the configured limit: how fast a shrunk limit grows back."""


class HostLimit:
    """The buffer's limit in effect: shrinks at once when the host is short of memory, grows back slowly."""

    def __init__(self, configured_bytes: int, reserve_bytes: int) -> None:
        self.configured_bytes = configured_bytes
        self.effective_bytes = configured_bytes
        self._reserve_bytes = reserve_bytes
        self._sampled_s: float | None = None

    @property
    def is_shrunk(self) -> bool:
        """Whether the host allows less than what is configured."""
        return self.effective_bytes < self.configured_bytes

    def sample(self, now_s: float, used_bytes: int, available_bytes: int) -> int:
        """Take a look at the host; returns the limit in effect from now on.

        What the host could give without touching its reserve is a fixed point: rows that are added take as much from
        what is available as they add to what is used.
        """
        elapsed_s = 0.0 if self._sampled_s is None else max(0.0, now_s - self._sampled_s)
        self._sampled_s = now_s
        floor_bytes = int(self.configured_bytes * FLOOR_SHARE)
        possible_bytes = max(floor_bytes, used_bytes + available_bytes - self._reserve_bytes)
        if available_bytes < self._reserve_bytes:
            self.effective_bytes = min(self.effective_bytes, possible_bytes)
        elif self.is_shrunk:
            grown_bytes = self.effective_bytes + int(self.configured_bytes * GROWTH_PER_MINUTE * elapsed_s / 60)
            allowed_bytes = min(self.configured_bytes, possible_bytes)
            self.effective_bytes = max(self.effective_bytes, min(grown_bytes, allowed_bytes))
        return self.effective_bytes
