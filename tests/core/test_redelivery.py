"""Telling a redelivered message from a new one."""

from edge_appliance.core.delivery import Delivery, DeliveryKey, Origin
from edge_appliance.core.redelivery import RecentDeliveries, delivery_key


def key_of(topic: str, payload: bytes, packet_id: int = 1, qos: int = 1) -> DeliveryKey | None:
    return delivery_key(
        Delivery(Origin("edge", "ns", (), "mqtt", topic, "#"), payload, 1, qos=qos, packet_id=packet_id)
    )


def test_key_covers_topic_and_payload():
    """Equal bytes on another topic are another message, also where topic and payload only move their border."""
    assert key_of("a/b", b"x v=1") == key_of("a/b", b"x v=1")
    assert key_of("a/b", b"x v=1") != key_of("a/c", b"x v=1")
    assert key_of("a/b", b"cx") != key_of("a/bc", b"x")
    assert key_of("a" * 100 + "b", b"x") != key_of("a" * 100 + "c", b"x")


def test_qos_0_has_no_key():
    """What is not acknowledged is not redelivered."""
    assert key_of("a", b"x", qos=0) is None


def test_later_delivery_takes_the_place_of_an_earlier_one_with_its_packet_id():
    """Packet ids are used again and again; only the last message of each counts."""
    recent = RecentDeliveries([DeliveryKey(1, b"a"), DeliveryKey(1, b"b")])
    assert not recent.has(DeliveryKey(1, b"a"))
    assert recent.has(DeliveryKey(1, b"b"))


def test_oldest_keys_are_forgotten_beyond_the_limit():
    """Memory is bounded, and what was added last is what stays."""
    recent = RecentDeliveries((DeliveryKey(n, b"a") for n in range(10)), limit=3)
    assert not recent.has(DeliveryKey(0, b"a"))
    recent.add([DeliveryKey(8, b"b"), None, DeliveryKey(1, b"c")])
    assert recent.latest() == [DeliveryKey(9, b"a"), DeliveryKey(8, b"b"), DeliveryKey(1, b"c")]
    assert all(recent.has(key) for key in recent.latest())
