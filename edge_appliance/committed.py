"""What may be told to the senders once a group is durable, or when it cannot become so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_appliance.core.delivery import Acks, Delivery, DeliveryKey, DeliveryResult


@dataclass(frozen=True, slots=True)
class Committed:
    """What may be told to the senders now that a group is durable, in receive order."""

    acks: Sequence[Acks]
    results: Sequence[tuple[Callable[[DeliveryResult], None], DeliveryResult]]


def refuse_http(deliveries: list[Delivery], keys: list[DeliveryKey | None], tell: Callable[[Committed], None]) -> None:
    """Take HTTP writes out of a group that no disk takes: their senders can try again elsewhere or later."""
    refused = [delivery for delivery in deliveries if delivery.on_done is not None]
    kept = [(delivery, key) for delivery, key in zip(deliveries, keys, strict=True) if delivery.on_done is None]
    deliveries[:] = [delivery for delivery, _ in kept]
    keys[:] = [key for _, key in kept]
    result = DeliveryResult(0, (), "the log cannot be written")
    tell(Committed((), [(delivery.on_done, result) for delivery in refused if delivery.on_done is not None]))
