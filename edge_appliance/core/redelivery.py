"""Telling a redelivered QoS 1 message from a new one.

A line without a time gets the time it arrives. Stored again, such a line would be a second row, so a message that the
log already holds is only acknowledged. DUP alone is a hint: topic and payload must be the same, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from edge_appliance.core.delivery import DIGEST_BYTES, Acks, Delivery, DeliveryKey

MAX_KEYS: Final = 16_384
"""Keys that are remembered: four times the default window, and a whole group of the smallest messages, which is what a
broker that does not keep to its window has unacknowledged when the process ends."""


class RecentDeliveries:
    """Keys of the last logged QoS 1 deliveries, by packet id: at least `limit` of them, at most twice as many."""

    def __init__(self, keys: Iterable[DeliveryKey | None] = (), limit: int = MAX_KEYS) -> None:
        self._limit = limit
        self._digests: dict[int, bytes] = {}
        self.add(keys)

    def has(self, key: DeliveryKey) -> bool:
        """Whether the last logged delivery of this packet id had the same topic and payload."""
        return self._digests.get(key.packet_id) == key.digest

    def add(self, keys: Iterable[DeliveryKey | None]) -> None:
        """Remember logged deliveries as the latest ones; those without a key are passed over."""
        digests = self._digests
        for key in keys:
            if key is not None:
                digests.pop(key.packet_id, None)
                digests[key.packet_id] = key.digest
        if len(digests) > 2 * self._limit:
            # The oldest half goes at once: one by one, finding the oldest takes longer with each that is gone.
            self._digests = dict(islice(digests.items(), len(digests) - self._limit, None))

    def latest(self) -> list[DeliveryKey]:
        """The last remembered keys, the latest at the end."""
        latest = list(self._digests.items())[-self._limit :]
        return [DeliveryKey(packet_id, digest) for packet_id, digest in latest]


def delivery_key(delivery: Delivery) -> DeliveryKey | None:
    """Key of a QoS 1 delivery: packet id and 128-bit hash of topic and payload; None for other deliveries."""
    if not delivery.qos:
        return None
    digest = hashlib.blake2b(delivery.origin.label_prefix + delivery.payload, digest_size=DIGEST_BYTES).digest()
    return DeliveryKey(delivery.packet_id, digest)


def unknown_deliveries(
    deliveries: Sequence[Delivery], recent: RecentDeliveries
) -> tuple[list[Delivery], list[DeliveryKey | None], list[Acks]]:
    """Leave out what is logged or stands earlier in the group; returns the others, their keys, and the acks of all."""
    fresh: list[Delivery] = []
    keys: list[DeliveryKey | None] = []
    acks: list[Acks] = []
    # Deliveries of a dead connection stay in the inbox: the redelivery may come behind them in the same group.
    in_group: dict[int, DeliveryKey] = {}
    for delivery in deliveries:
        key = delivery_key(delivery)
        if key is not None:
            if not acks or acks[-1][0] != delivery.epoch:
                acks.append((delivery.epoch, []))
            acks[-1][1].append(delivery.packet_id)
            last = in_group.get(key.packet_id)
            if delivery.is_dup and (recent.has(key) if last is None else last == key):
                continue
            in_group[key.packet_id] = key
        fresh.append(delivery)
        keys.append(key)
    return fresh, keys, acks
