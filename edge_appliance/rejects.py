"""What happens to rejected lines: counted, kept in the dead letters, and told in the journal.

A disk that refuses the dead letters costs them, counted, but never a good line and never an acknowledgement.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from edge_appliance.core.delivery import Delivery, DeliveryResult, LineError
from edge_appliance.dead_letters import DeadLetters
from edge_appliance.errors import DiskError
from edge_appliance.health import Health
from edge_appliance.metrics import Metrics

_log = logging.getLogger(__name__)


class Rejects:
    """The ingest thread's side of the dead letters."""

    def __init__(self, dead_letters: DeadLetters, health: Health, metrics: Metrics) -> None:
        self._dead_letters = dead_letters
        self._health = health
        self._metrics = metrics

    def keep(self, deliveries: Sequence[Delivery], results: Sequence[DeliveryResult]) -> None:
        """Write the rejected lines of a group, before anything of it is acknowledged."""
        counts: Counter[str] = Counter()
        rejected = [(d, result) for d, result in zip(deliveries, results, strict=True) if result.errors]
        for delivery, result in rejected:
            counts.update([error.reason for error in result.errors])
            counts.update(result.further)
            self._write(delivery, result)
        for reason, count in counts.items():
            self._metrics.rejected.add(count, reason)
        if rejected:
            self._tell(*rejected[0], len(rejected), counts.total())

    def _tell(self, delivery: Delivery, result: DeliveryResult, deliveries: int, lines: int) -> None:
        """One line in the journal a group, however much of it is bad."""
        first = result.errors[0]
        others = f" and {deliveries - 1} more" if deliveries > 1 else ""
        _log.warning(
            "%d rejected from %s%s, first: line %d column %d: %s: %s",
            lines,
            delivery.origin.label,
            others,
            first.line,
            first.column,
            first.reason,
            first.message,
        )

    def sync_if_due(self) -> None:
        """Make them durable, at most once a second."""
        self._sync(lambda: self._dead_letters.sync_if_due(time.monotonic()))

    def sync(self) -> None:
        """Make them durable now."""
        self._sync(self._dead_letters.sync)

    def _sync(self, sync: Callable[[], None]) -> None:
        try:
            sync()
        except DiskError as error:
            self._health.degrade("dead_letters", f"rejected lines may be lost in a power cut: {error}")

    def _write(self, delivery: Delivery, result: DeliveryResult) -> None:
        origin = delivery.origin
        errors = list(result.errors)
        last = errors[-1]
        for reason, count in result.further.items():
            errors.append(LineError(last.line, 0, reason, f"and {count:,} more lines of this reason behind it", b""))
        try:
            self._dead_letters.append(delivery.arrival_ns, origin.source, origin.label, errors)
        except (DiskError, ValueError) as error:  # or a topic that is no text
            self._metrics.dead_letters_dropped.add(len(errors))
            self._health.degrade("dead_letters", f"rejected lines are not kept: {error}")
        else:
            self._health.restore("dead_letters")
