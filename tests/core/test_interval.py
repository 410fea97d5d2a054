"""Intervals of time, against sets of small integers."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from edge_appliance.core.interval import ALL_TIME, MAX_NS, MIN_NS, NO_TIME, Interval, coarsen, complement, runs

SMALL = st.integers(-40, 40)
INTERVALS = st.lists(st.tuples(SMALL, st.integers(0, 9)).map(lambda p: Interval(p[0], p[0] + p[1])), max_size=12)


def points(intervals) -> set[int]:
    """All integers from -60 to 60 inside."""
    return {n for n in range(-60, 61) if any(i.lo <= n <= i.hi for i in intervals)}


@given(INTERVALS)
def test_coarsen_without_limit_keeps_the_times(intervals) -> None:
    """Joined intervals hold the same times, ascending and with gaps between them."""
    joined = coarsen(intervals)
    assert points(joined) == points(intervals)
    assert all(a.hi + 1 < b.lo for a, b in itertools.pairwise(joined))


@given(INTERVALS, st.integers(1, 5))
def test_coarsen_to_a_limit_only_adds_times(intervals, limit) -> None:
    """At most `limit` intervals, none of the times lost, and no time beyond the ends gained."""
    joined = coarsen(intervals, limit)
    assert len(joined) <= limit
    assert points(joined) >= points(intervals)
    if intervals:
        assert (joined[0].lo, joined[-1].hi) == (min(intervals).lo, max(i.hi for i in intervals))


def test_coarsen_fills_the_smallest_gaps() -> None:
    """What is joined beyond the limit is what lies nearest."""
    near = [Interval(0, 1), Interval(3, 4), Interval(100, 101)]
    assert coarsen(near, 2) == (Interval(0, 4), Interval(100, 101))


@given(INTERVALS)
def test_complement_is_everything_else(intervals) -> None:
    """Each time is in exactly one of both."""
    joined = coarsen(intervals)
    assert points(complement(joined)) == set(range(-60, 61)) - points(joined)


def test_complement_at_the_ends_of_time() -> None:
    """Nothing is left of all time, and everything of none."""
    assert complement([ALL_TIME]) == ()
    assert complement([]) == (ALL_TIME,)
    assert complement([Interval(MIN_NS, 5)]) == (Interval(6, MAX_NS),)


def test_empty_interval_is_neutral() -> None:
    """NO_TIME adds nothing to a hull and leaves nothing in common."""
    day = Interval(1, 2)
    assert day.hull(NO_TIME) == day == NO_TIME.hull(day)
    assert points([day.common(NO_TIME)]) == set()
    assert not day.overlaps(NO_TIME.lo, NO_TIME.hi)


def test_runs_of_consecutive_numbers() -> None:
    """Unbroken runs become one pair."""
    assert runs([0, 1, 2, 5, 7, 8]) == [(0, 2), (5, 5), (7, 8)]
    assert runs([]) == []
