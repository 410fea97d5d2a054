"""What is decided about a message before its bytes are read."""

from __future__ import annotations

from edge_appliance.core.delivery import ArrivalClock, Delivery, Reason
from edge_appliance.core.route import Route, RouteSettings, RouteTable
from edge_appliance.metrics import Metrics
from edge_appliance.mqtt_intake import Intake
from edge_appliance.mqtt_packets import DUP, QOS1, RETAIN, Publish

NOW_NS = 1_800_000_000 * 10**9


class Intaken:
    """An intake with one route `dev/{device}`, and what it made of some packets."""

    def __init__(self, *publishes: Publish, skips_retained: bool = False, now_ns: int = NOW_NS) -> None:
        self.metrics = Metrics()
        routes = RouteTable([Route(RouteSettings("dev/{device}", "edge"))])
        intake = Intake(routes, ArrivalClock(), self.metrics, lambda: now_ns)
        self.deliveries: list[Delivery] = intake.deliveries(publishes, epoch=3, skips_retained=skips_retained)


def test_message_becomes_a_delivery() -> None:
    """Topic, payload, packet id, DUP and epoch arrive unchanged, with the route's origin."""
    (delivery,) = Intaken(Publish(QOS1 | DUP, b"dev/a", 9, b"x v=1", 0)).deliveries
    assert (delivery.origin.tags, delivery.origin.label) == ((("device", "a"),), "dev/a")
    assert (delivery.payload, delivery.packet_id, delivery.qos) == (b"x v=1", 9, 1)
    assert (delivery.epoch, delivery.is_dup, delivery.reject) == (3, True, None)


def test_messages_of_one_read_have_their_own_times() -> None:
    """Arrival times are unique: two lines without a time must not overwrite each other."""
    deliveries = Intaken(*[Publish(QOS1, b"dev/a", number, b"x v=1", 0) for number in range(1, 4)]).deliveries
    assert [delivery.arrival_ns for delivery in deliveries] == [NOW_NS, NOW_NS + 1, NOW_NS + 2]
    assert deliveries[0].origin is deliveries[1].origin


def test_unset_clock_is_flagged() -> None:
    """A message that arrives before the host clock is set says so, and is counted."""
    intaken = Intaken(*[Publish(QOS1, b"dev/a", number, b"x v=1", 0) for number in (1, 2)], now_ns=5)
    assert [delivery.clock_unset for delivery in intaken.deliveries] == [True, True]
    assert intaken.metrics.clock_unset.value() == 2
    assert Intaken(Publish(QOS1, b"dev/a", 1, b"x v=1", 0)).metrics.clock_unset.value() == 0


def test_topic_without_a_route_is_rejected() -> None:
    """It still becomes a delivery, so that it is dead-lettered and acknowledged in its place."""
    (delivery,) = Intaken(Publish(QOS1, b"other", 9, b"x" * 300, 0)).deliveries
    assert delivery.reject is not None
    assert (delivery.reject.reason, delivery.reject.sample) == (Reason.NO_ROUTE, b"x" * 200)
    assert (delivery.packet_id, delivery.origin.label) == (9, "other")


def test_topic_that_is_not_utf8_is_rejected() -> None:
    """Such a topic matches no route and is shown with its bytes escaped."""
    (delivery,) = Intaken(Publish(QOS1, b"dev/\xff", 9, b"x v=1", 0)).deliveries
    assert delivery.reject is not None
    assert (delivery.reject.reason, delivery.origin.label) == (Reason.INVALID_UTF8, "dev/\\xff")


def test_skipped_message_is_rejected_as_too_large() -> None:
    """Its beginning is the sample; as a payload there is nothing."""
    (delivery,) = Intaken(Publish(QOS1, b"dev/a", 9, b"begin", 2_000_000)).deliveries
    assert delivery.reject is not None
    assert (delivery.reject.reason, delivery.reject.sample) == (Reason.PAYLOAD_TOO_LARGE, b"begin")
    assert (delivery.payload, delivery.packet_id) == (b"", 9)
    assert "2000000 bytes" in delivery.reject.message


def test_retained_replay_is_skipped_in_its_place() -> None:
    """On 3.1.1 a retain flag marks a replay: no data, but at QoS 1 an ack in its turn; at QoS 0 nothing."""
    intaken = Intaken(
        Publish(QOS1, b"dev/a", 1, b"x v=1", 0),
        Publish(QOS1 | RETAIN, b"dev/a", 2, b"x v=2", 0),
        Publish(RETAIN, b"dev/a", 0, b"x v=3", 0),
        Publish(QOS1, b"dev/a", 4, b"x v=4", 0),
        skips_retained=True,
    )
    assert [(d.packet_id, d.payload) for d in intaken.deliveries] == [(1, b"x v=1"), (2, b""), (4, b"x v=4")]
    assert intaken.metrics.ignored.value() == 2


def test_retain_flag_is_data_when_replays_are_off() -> None:
    """On MQTT 5 with retain handling 2 the flag marks a live message that was published retained."""
    (delivery,) = Intaken(Publish(QOS1 | RETAIN, b"dev/a", 2, b"x v=2", 0)).deliveries
    assert delivery.payload == b"x v=2"


def test_messages_are_counted() -> None:
    """All are counted with their bytes on the wire; QoS 0 by route, because nothing protects it."""
    metrics = Intaken(
        Publish(QOS1, b"dev/a", 1, b"12345", 0),
        Publish(0, b"dev/a", 0, b"123", 0),
        Publish(0, b"other", 0, b"1", 0),
        Publish(QOS1, b"dev/a", 2, b"begin", 1000),
    ).metrics
    assert (metrics.deliveries.value("mqtt"), metrics.delivery_bytes.value("mqtt")) == (4, 1009)
    assert metrics.unprotected.samples() == [(("(none)",), 1), (("dev/{device}",), 1)]
