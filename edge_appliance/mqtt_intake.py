"""From PUBLISH packets to deliveries.

Owns what is decided about a message on the event loop: its arrival time, its route, whether it is skipped
or rejected before its bytes are read. Knows no connection beyond its epoch. Event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from edge_appliance.core.delivery import ArrivalClock, Delivery, LineError, Origin, Reason
from edge_appliance.core.route import RouteTable
from edge_appliance.metrics import Metrics
from edge_appliance.mqtt_packets import DUP, KEPT_BYTES, QOS1, RETAIN, Publish

_NO_ROUTE: Final = "(none)"
"""Route label of messages that no route matches."""


class Intake:
    """Makes deliveries of PUBLISH packets, and counts them."""

    def __init__(self, routes: RouteTable, clock: ArrivalClock, metrics: Metrics, clock_ns: Callable[[], int]) -> None:
        self._routes = routes
        self._clock = clock
        self._metrics = metrics
        self._clock_ns = clock_ns

    def use(self, routes: RouteTable) -> None:
        """Route what comes from now on by these."""
        self._routes = routes

    def deliveries(self, publishes: Sequence[Publish], *, epoch: int, skips_retained: bool) -> list[Delivery]:
        """One delivery a packet, in order; only a skipped QoS 0 packet gives none.

        `skips_retained`: a set retain flag marks a replayed value (MQTT 3.1.1), not a live message. At QoS 1
        it becomes an empty delivery, because it must be acknowledged in its place.
        """
        deliveries: list[Delivery] = []
        unprotected: dict[str, int] = {}
        ignored = size_bytes = 0
        match = self._routes.match
        # One reading for all that came in one read; the clock keeps them apart by a nanosecond.
        arrival_ns, clock_unset = self._clock.stamp(self._clock_ns(), len(publishes))
        for flags, topic, packet_id, payload, skipped_bytes in publishes:
            size_bytes += skipped_bytes or len(payload)
            if flags & RETAIN and skips_retained:
                ignored += 1
                if not flags & QOS1:
                    continue
                payload, skipped_bytes = b"", 0  # noqa: PLW2901  the packet's place is kept, its value is not
            try:
                origin = match(topic.decode())
            except UnicodeDecodeError:
                origin = None
            reject = None
            if origin is None or skipped_bytes:
                reject = _rejection(topic, payload, skipped_bytes, has_route=origin is not None)
                payload = b"" if skipped_bytes else payload  # noqa: PLW2901
                origin = origin or _unrouted(topic)
            qos = 1 if flags & QOS1 else 0
            if not qos:
                unprotected[origin.route] = unprotected.get(origin.route, 0) + 1
            deliveries.append(
                Delivery(
                    origin, payload, arrival_ns, clock_unset, qos, packet_id, epoch, flags & DUP != 0, True, reject
                )
            )
            arrival_ns += 1
        self._count(len(publishes), size_bytes, ignored, unprotected)
        if clock_unset:
            self._metrics.clock_unset.add(len(publishes))
        return deliveries

    def _count(self, messages: int, size_bytes: int, ignored: int, unprotected: dict[str, int]) -> None:
        metrics = self._metrics
        metrics.deliveries.add(messages, "mqtt")
        metrics.delivery_bytes.add(size_bytes, "mqtt")
        if ignored:
            metrics.ignored.add(ignored)
        for route, count in unprotected.items():
            metrics.unprotected.add(count, route)


def _rejection(topic: bytes, payload: bytes, skipped_bytes: int, *, has_route: bool) -> LineError | None:
    sample = payload[:KEPT_BYTES]
    if skipped_bytes:
        message = f"the message of {skipped_bytes} bytes is above the packet limit and was skipped"
        return LineError(0, 0, Reason.PAYLOAD_TOO_LARGE, message, sample)
    if has_route:
        return None
    try:
        topic.decode()
    except UnicodeDecodeError:
        return LineError(0, 0, Reason.INVALID_UTF8, "the topic is not valid UTF-8", sample)
    return LineError(0, 0, Reason.NO_ROUTE, "no route matches the topic", sample)


def _unrouted(topic: bytes) -> Origin:
    return Origin(
        database="",
        precision="auto",
        tags=(),
        source="mqtt",
        label=topic.decode(errors="backslashreplace"),
        route=_NO_ROUTE,
    )
