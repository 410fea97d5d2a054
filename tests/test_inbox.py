"""The bounded hand-over: order, limits, and when a group closes."""

import threading
import time

import pytest

from edge_appliance.core.delivery import Delivery, Origin
from edge_appliance.inbox import ENTRY_OVERHEAD_BYTES, GROUP_BYTES, Inbox
from edge_appliance.metrics import Metrics

ORIGIN = Origin("edge", "ns", (), "mqtt", "a/b", "a/+")
DEADLINE_S = 5.0


def delivery(size: int = 10, *, qos: int = 1, on_done=None) -> Delivery:
    return Delivery(ORIGIN, b"x" * size, 1, qos=qos, on_done=on_done)


def test_take_returns_deliveries_in_receive_order():
    """A group holds what was put, in the order it was put."""
    inbox = Inbox(2**20, 0.0, Metrics())
    put = [delivery() for _ in range(5)]
    inbox.put(put[:2])
    inbox.put(put[2:])
    group = inbox.take(DEADLINE_S)
    assert group is not None
    assert list(group.deliveries) == put
    assert group.closed_by == "delay"


def test_take_returns_none_when_nothing_came():
    """A quiet inbox gives the thread its tick back."""
    assert Inbox(2**20, 0.0, Metrics()).take(0.0) is None


def test_take_returns_none_after_close():
    """A closed inbox hands out nothing more: the broker still has what waits."""
    inbox = Inbox(2**20, 0.0, Metrics())
    inbox.put([delivery()])
    inbox.close()
    assert inbox.take(DEADLINE_S) is None


def test_close_tells_writers_that_wait():
    """A write that was not taken before the stop is refused at once; the client must not wait for a time limit."""
    told = []
    inbox = Inbox(2**20, 60.0, Metrics())
    inbox.put([delivery(), delivery(qos=0, on_done=told.append), delivery(qos=0)])
    inbox.close()
    assert [result.refused for result in told] == ["stopping"]


def test_close_wakes_a_waiting_thread():
    """Stopping does not wait for the next message."""
    inbox = Inbox(2**20, 0.0, Metrics())
    done = threading.Event()
    threading.Thread(target=lambda: (inbox.take(60), done.set())).start()
    inbox.close()
    assert done.wait(DEADLINE_S)


def test_group_closes_at_its_byte_limit_before_the_delay():
    """A full group does not wait for the delay."""
    inbox = Inbox(2**24, 60.0, Metrics())
    inbox.put([delivery(GROUP_BYTES // 2) for _ in range(3)])
    group = inbox.take(DEADLINE_S)
    assert group is not None
    assert (len(group.deliveries), group.closed_by) == (2, "bytes")


def test_rest_of_a_large_backlog_is_due_at_once():
    """What a full group left behind has waited already and does not wait for another delay."""
    inbox = Inbox(2**24, 60.0, Metrics())
    inbox.put([delivery(GROUP_BYTES // 2) for _ in range(3)])
    inbox.take(DEADLINE_S)
    group = inbox.take(DEADLINE_S)
    assert group is not None
    assert len(group.deliveries) == 1


def test_group_closes_early_when_a_known_window_is_used_up():
    """When the broker may send no more, waiting brings nothing."""
    inbox = Inbox(2**20, 60.0, Metrics())
    inbox.know_window(lambda: 3)
    inbox.put([delivery() for _ in range(3)])
    group = inbox.take(DEADLINE_S)
    assert group is not None
    assert group.closed_by == "window"


def test_second_early_close_waits_a_quarter_of_the_delay():
    """A window of one message must not cost a sync for every message."""
    inbox = Inbox(2**20, 0.2, Metrics())
    inbox.know_window(lambda: 1)
    inbox.put([delivery()])
    inbox.take(DEADLINE_S)
    started_s = time.monotonic()
    inbox.put([delivery()])
    group = inbox.take(DEADLINE_S)
    assert group is not None
    assert group.closed_by == "window"
    assert time.monotonic() - started_s >= 0.04


def test_writer_waits_for_a_quarter_of_the_delay_at_most():
    """A client that waits for its answer sends nothing more before it; many clients still share their syncs."""
    inbox = Inbox(2**20, 0.2, Metrics())
    inbox.put([delivery(qos=0, on_done=lambda result: None)])
    assert inbox.take(DEADLINE_S).closed_by == "writers"
    started_s = time.monotonic()
    inbox.put([delivery(qos=0, on_done=lambda result: None)])
    assert inbox.take(DEADLINE_S).closed_by == "writers"
    assert time.monotonic() - started_s >= 0.04


def test_full_inbox_says_so_and_calls_back_when_it_has_room():
    """The reader pauses at the byte limit and is told when to go on, once."""
    limit_bytes = 4 * (100 + ENTRY_OVERHEAD_BYTES)
    inbox = Inbox(limit_bytes, 0.0, Metrics())
    calls: list[int] = []
    inbox.on_room(lambda: calls.append(1))
    inbox.put([delivery(100) for _ in range(4)])
    assert inbox.is_full
    inbox.take(DEADLINE_S)
    assert not inbox.is_full
    assert calls == [1]


def test_empty_messages_fill_the_inbox_too():
    """A flood of empty payloads is bounded like any other."""
    inbox = Inbox(10 * ENTRY_OVERHEAD_BYTES, 0.0, Metrics())
    inbox.put([delivery(0) for _ in range(10)])
    assert inbox.is_full


def test_qos0_beyond_its_quarter_is_dropped_and_counted_by_route():
    """Unprotected deliveries cannot crowd out acknowledged ones."""
    metrics = Metrics()
    inbox = Inbox(8 * ENTRY_OVERHEAD_BYTES, 0.0, metrics)
    inbox.put([delivery(0, qos=0) for _ in range(5)])
    inbox.put([delivery(0)])
    group = inbox.take(DEADLINE_S)
    assert group is not None
    assert [d.qos for d in group.deliveries] == [0, 0, 1]
    assert metrics.dropped_qos0.value("a/+") == 3


def test_withdrawn_delivery_is_not_taken():
    """A write that waited too long can be answered 503, because it will not be stored."""
    inbox = Inbox(2**20, 0.0, Metrics())
    first, second = delivery(qos=0, on_done=print), delivery(qos=0, on_done=print)
    inbox.put([first, second])
    assert inbox.withdraw(first)
    group = inbox.take(DEADLINE_S)
    assert group is not None
    assert list(group.deliveries) == [second]
    assert not inbox.withdraw(second)


def test_withdrawing_makes_room():
    """A full inbox whose writes were all withdrawn does not stay full."""
    inbox = Inbox(2 * ENTRY_OVERHEAD_BYTES, 0.0, Metrics())
    writes = [delivery(0, qos=0, on_done=print) for _ in range(2)]
    inbox.put(writes)
    for write in writes:
        inbox.withdraw(write)
    assert not inbox.is_full


@pytest.mark.parametrize("producers", [1, 4])
def test_nothing_is_lost_between_threads(producers):
    """Every delivery put by any thread is taken exactly once."""
    inbox = Inbox(2**30, 0.001, Metrics())
    sent = [[delivery() for _ in range(500)] for _ in range(producers)]
    threads = [threading.Thread(target=lambda part=part: [inbox.put([d]) for d in part]) for part in sent]
    for thread in threads:
        thread.start()
    taken: list[Delivery] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(taken) < 500 * producers and time.monotonic() < deadline_s:
        group = inbox.take(0.1)
        taken += group.deliveries if group else []
    assert {id(d) for d in taken} == {id(d) for part in sent for d in part}
    assert len(taken) == 500 * producers
