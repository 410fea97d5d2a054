"""Back-off, subscriptions and the order of acks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from edge_appliance.mqtt_session import AckOrder, Backoff, Subscriptions


def test_delays_double_up_to_the_cap() -> None:
    """Each attempt waits longer, and none longer than 30 s."""
    backoff = Backoff(jitter=lambda: 1.0)
    assert [backoff.delay_s(0) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_delays_stay_capped_for_ever() -> None:
    """Thousands of attempts change nothing: the broker may be away for a month."""
    backoff = Backoff(jitter=lambda: 1.0)
    assert max(backoff.delay_s(0) for _ in range(5000)) == 30


def test_jitter_takes_up_to_half() -> None:
    """A fleet spreads over half of the delay."""
    assert Backoff(jitter=lambda: 0.0).delay_s(0) == 0.25


def test_delay_starts_anew_after_a_link_that_held() -> None:
    """A link that broke early keeps the delay growing, one that held for 5 s resets it."""
    backoff = Backoff(jitter=lambda: 1.0)
    assert [backoff.delay_s(lived_s) for lived_s in (0, 0, 4.9, 5, 0)] == [0.5, 1, 2, 0.5, 1]


def test_subscriptions_are_complete_with_the_last_answer() -> None:
    """Only when each filter was granted is the list complete, in whatever order answers come."""
    subscriptions = Subscriptions([("a", 1), ("b", 1), ("c", 0)])
    subscriptions.asked(1, ["a", "b"])
    subscriptions.asked(2, ["c"])
    subscriptions.answered(2, [0])
    assert (subscriptions.is_answered, subscriptions.is_complete) == (False, False)
    subscriptions.answered(1, [1, 1])
    assert (subscriptions.is_answered, subscriptions.is_complete) == (True, True)
    assert subscriptions.granted == {"a": 1, "b": 1, "c": 0}


def test_refused_filter_keeps_the_list_incomplete_until_granted() -> None:
    """A refusal is kept with its code, and goes when a later SUBSCRIBE succeeds."""
    subscriptions = Subscriptions([("a", 1), ("b", 1)])
    subscriptions.asked(1, ["a", "b"])
    subscriptions.answered(1, [0x87, 1])
    assert (subscriptions.refused, subscriptions.is_complete) == ({"a": 0x87}, False)
    subscriptions.asked(2, ["a"])
    subscriptions.answered(2, [1])
    assert (subscriptions.refused, subscriptions.is_complete) == ({}, True)


def test_lower_qos_is_noticed() -> None:
    """A filter granted below what was asked for is unprotected."""
    subscriptions = Subscriptions([("a", 1), ("b", 0)])
    subscriptions.asked(1, ["a", "b"])
    subscriptions.answered(1, [0, 0])
    assert subscriptions.unprotected == ["a"]


def test_odd_answers_are_harmless() -> None:
    """Too few codes are refusals, too many and unknown ids are nothing."""
    subscriptions = Subscriptions([("a", 1), ("b", 1)])
    subscriptions.answered(9, [1, 1])
    subscriptions.asked(1, ["a", "b"])
    subscriptions.answered(1, [1])
    assert (subscriptions.granted, subscriptions.refused) == ({"a": 1}, {"b": 0x80})
    subscriptions.asked(2, ["b"])
    subscriptions.answered(2, [1, 1, 1])
    assert subscriptions.is_complete


def test_acks_leave_as_a_prefix() -> None:
    """An unfinished delivery holds back those behind it; its own ack lets them go, in receive order."""
    order = AckOrder()
    order.took([5, 3, 9, 1])
    assert order.finish([9, 3]) == []
    assert order.finish([5]) == [5, 3, 9]
    assert order.finish([1]) == [1]
    assert len(order) == 0


def test_unknown_ids_are_ignored() -> None:
    """An ack for what was never taken, or twice, must not acknowledge a later message with that id."""
    order = AckOrder()
    order.took([1])
    assert order.finish([7]) == []
    assert order.finish([1, 1]) == [1]
    order.took([7, 1])
    assert order.finish([1]) == []
    assert order.finish([7]) == [7, 1]


def test_id_that_is_open_twice_is_acknowledged_twice() -> None:
    """A broker that uses an id again before its ack came gets both acks, each in its place."""
    order = AckOrder()
    order.took([1, 2, 1, 3])
    assert order.finish([1]) == [1]
    assert order.finish([3, 2]) == [2]
    assert order.finish([1]) == [1, 3]
    assert order.finish([1, 2]) == []
    assert len(order) == 0


@given(st.permutations(list(range(1, 13))), st.lists(st.integers(0, 12), max_size=4))
def test_any_order_of_finishing_gives_the_receive_order(finished: list[int], cuts: list[int]) -> None:
    """However deliveries are finished, all acks leave once, in receive order."""
    order = AckOrder()
    order.took(range(1, 13))
    edges = [0, *sorted(cuts), 12]
    sent = [ready for start, stop in itertools.pairwise(edges) for ready in order.finish(finished[start:stop])]
    assert sent == list(range(1, 13))
