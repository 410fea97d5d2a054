"""Parts leave in order of age; one bad part holds up nobody, a store that is away holds up all, and then none."""

from __future__ import annotations

import datetime as dt

from edge_appliance.core.parts import Part
from edge_appliance.core.upload_queue import LONGEST_PAUSE_S, UploadQueue


def make_part(rank: int) -> Part:
    """A part of one rank."""
    return Part("edge", "cpu", dt.date(2026, 1, 2), "gw-01", "0123abcd", rank, rank, 0, 1, 1, 4, 0, 9)


def queue_of(*ranks: int) -> UploadQueue:
    """A queue with one part of each rank."""
    queue = UploadQueue(1.0)
    queue.add(map(make_part, ranks))
    return queue


def take(queue: UploadQueue, now_s: float) -> int | None:
    """Rank of the part that is taken."""
    part = queue.take(now_s)
    return None if part is None else part.rank_hi


def test_oldest_first_also_when_they_come_later() -> None:
    """Age decides, not the order of arrival."""
    queue = queue_of(30, 10)
    assert take(queue, 0) == 10
    queue.add([make_part(20)])
    assert [take(queue, 0), take(queue, 0), take(queue, 0)] == [20, 30, None]
    assert queue.wait_s(0) is None


def test_bad_part_waits_for_itself() -> None:
    """After a failure a part waits, longer each time up to a limit, while the others go."""
    queue = queue_of(1, 2)
    first = queue.take(0)
    assert first is not None
    now_s, pauses = 0.0, []
    for _ in range(9):
        queue.failed(first, now_s)
        other = queue.take(now_s)
        if other is not None:
            queue.succeeded(other)
        queue.succeeded(make_part(99))
        wait_s = queue.wait_s(now_s)
        assert wait_s is not None
        pauses.append(wait_s)
        now_s += wait_s
        assert queue.take(now_s) == first
        assert queue.was_tried(first)
    assert pauses == [1, 2, 4, 8, 15, 15, 15, 15, 15]
    assert queue.failing_since_s == 0


def test_failures_in_a_row_hold_up_all_until_the_first_success() -> None:
    """Three failures pause everything; when one part gets through, the others follow at once, the oldest first."""
    queue = queue_of(1, 2, 3, 4, 5)
    for _ in range(3):
        part = queue.take(10)
        assert part is not None
        queue.failed(part, 10)
    assert take(queue, 10.5) is None
    assert queue.wait_s(10) == 1
    assert queue.failing_since_s == 10
    for _ in range(20):
        now_s = 10 + 1000.0
        part = queue.take(now_s)
        assert part is not None
        queue.failed(part, now_s)
        wait_s = queue.wait_s(now_s)
        assert wait_s is not None
        assert wait_s <= LONGEST_PAUSE_S
        queue.succeeded(make_part(99))  # only to end the pause
        queue.failed(part, now_s)
        queue.failed(part, now_s)
        queue.failed(part, now_s)
        queue.succeeded(make_part(98))
    got = queue.take(2000)
    assert got == make_part(1)
    queue.succeeded(got)
    assert [take(queue, 2000) for _ in range(4)] == [2, 3, 4, 5]


def test_end_of_an_outage_is_known() -> None:
    """Failing lasts from the first failure until no failed part is left."""
    queue = queue_of(1, 2)
    first, second = queue.take(5), queue.take(5)
    assert first is not None
    assert second is not None
    queue.failed(first, 5)
    queue.failed(second, 6)
    queue.succeeded(first)
    assert queue.failing_since_s == 5
    queue.succeeded(second)
    assert queue.failing_since_s is None
