"""Closed intervals of time in ns, and what can be done with lists of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MIN_NS: Final = -(2**63)
MAX_NS: Final = 2**63 - 1


class Interval(NamedTuple):
    """Times from `lo` to `hi`, both included, in ns."""

    lo: int
    hi: int

    def overlaps(self, lo: int, hi: int) -> bool:
        """Whether any time lies in both."""
        return self.lo <= hi and lo <= self.hi

    def hull(self, other: Interval) -> Interval:
        """The shortest interval around both; an empty one adds nothing."""
        if self.lo > self.hi or other.lo > other.hi:
            return other if self.lo > self.hi else self
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi))

    def common(self, other: Interval) -> Interval:
        """Times in both; empty (lo above hi) when there are none."""
        return Interval(max(self.lo, other.lo), min(self.hi, other.hi))


ALL_TIME: Final = Interval(MIN_NS, MAX_NS)
NO_TIME: Final = Interval(MAX_NS, MIN_NS)


def coarsen(intervals: Iterable[Interval], limit: int | None = None) -> tuple[Interval, ...]:
    """The same times in ascending, disjoint intervals, at most `limit`: the smallest gaps are filled beyond that."""
    joined: list[Interval] = []
    for interval in sorted(intervals):
        if joined and interval.lo <= joined[-1].hi + 1:
            joined[-1] = Interval(joined[-1].lo, max(joined[-1].hi, interval.hi))
        else:
            joined.append(interval)
    if limit is None or len(joined) <= limit:
        return tuple(joined)
    by_gap = sorted(range(1, len(joined)), key=lambda i: joined[i].lo - joined[i - 1].hi, reverse=True)
    starts = [0, *sorted(by_gap[: limit - 1]), len(joined)]
    return tuple(Interval(joined[start].lo, joined[end - 1].hi) for start, end in itertools.pairwise(starts))


def complement(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """All times outside of `intervals`, which are ascending and disjoint."""
    gaps: list[Interval] = []
    start = MIN_NS
    for interval in intervals:
        if start < interval.lo:
            gaps.append(Interval(start, interval.lo - 1))
        start = interval.hi + 1
    return tuple(gaps if start > MAX_NS else [*gaps, Interval(start, MAX_NS)])


def runs(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as (first, last) of each unbroken run: a predicate on 300 parts stays short."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and position == found[-1][1] + 1:
            found[-1] = (found[-1][0], position)
        else:
            found.append((position, position))
    return found
