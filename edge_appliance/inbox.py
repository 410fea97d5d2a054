"""The bounded hand-over from the event loop to the ingest thread, and the rule that closes a group.

The loop puts deliveries in receive order and never waits; the ingest thread takes them in groups. The limit is
in payload bytes: whoever puts looks at `is_full` and stops reading until `on_room` calls back.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from edge_appliance.core.delivery import Delivery, DeliveryResult
from edge_appliance.metrics import Metrics

ENTRY_OVERHEAD_BYTES: Final = 300
"""What a waiting delivery costs beside its payload: a flood of empty messages must fill the inbox, too."""
GROUP_BYTES: Final = 2**20
QOS0_SHARE: Final = 0.25
ROOM_SHARE: Final = 0.75
"""Share of the limit below which a full inbox counts as having room again."""

ClosedBy = Literal["bytes", "delay", "window", "writers"]


@dataclass(frozen=True, slots=True)
class Group:
    """Deliveries to be made durable by one sync, in receive order, and what closed the group."""

    deliveries: Sequence[Delivery]
    closed_by: ClosedBy


class Inbox:
    """Deliveries on their way to the ingest thread."""

    def __init__(
        self,
        limit_bytes: int,
        group_delay_s: float,
        metrics: Metrics,
        post: Callable[[Callable[[], None]], object] = lambda callback: callback(),
    ) -> None:
        self._limit_bytes = limit_bytes
        self._group_delay_s = group_delay_s
        self._metrics = metrics
        self._post = post
        """Runs a callback on the event loop, from any thread."""
        self._changed = threading.Condition()
        self._waiting: deque[Delivery] = deque()
        self._bytes = 0
        self._qos0_bytes = 0
        self._acks_due = 0
        self._writers_due = 0
        """HTTP writes that wait."""
        self._oldest_s = 0.0
        """When the oldest waiting delivery came, on the monotonic clock."""
        self._last_early_close_s = 0.0
        self._was_full = False
        self._is_closed = False
        self._is_waited_for = False
        self._window: Callable[[], int | None] = lambda: None
        self._on_room: list[Callable[[], None]] = []
        metrics.inbox_bytes.read_from(lambda: self._bytes)

    def know_window(self, window: Callable[[], int | None]) -> None:
        """Ask `window` how many unacknowledged messages the broker allows; None when that is unknown."""
        self._window = window

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop whenever a full inbox has room again."""
        self._on_room.append(callback)

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached: stop reading and wait for room."""
        return self._was_full or self._bytes >= self._limit_bytes

    @property
    def waiting(self) -> int:
        """Number of deliveries that were not taken yet."""
        return len(self._waiting)

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Hand over deliveries in receive order. QoS 0 beyond its share of the limit is dropped and counted."""
        with self._changed:
            for delivery in deliveries:
                size_bytes = len(delivery.payload) + ENTRY_OVERHEAD_BYTES
                if delivery.qos == 0 and delivery.on_done is None:
                    if self._qos0_bytes + size_bytes > self._limit_bytes * QOS0_SHARE:
                        self._metrics.dropped_qos0.add(1, delivery.origin.route)
                        continue
                    self._qos0_bytes += size_bytes
                elif delivery.on_done is None:
                    self._acks_due += delivery.qos
                else:
                    self._writers_due += 1
                if not self._waiting:
                    self._oldest_s = time.monotonic()
                self._bytes += size_bytes
                self._waiting.append(delivery)
            self._was_full = self._was_full or self._bytes >= self._limit_bytes
            if self._is_waited_for:
                self._changed.notify()

    def withdraw(self, delivery: Delivery) -> bool:
        """Take a delivery back; False when the ingest thread already has it."""
        with self._changed:
            try:
                self._waiting.remove(delivery)
            except ValueError:
                return False
            self._forget(delivery)
            self._tell_room()
            return True

    def close(self) -> None:
        """Wake the ingest thread for the last time. What waits is forgotten: brokers have it, writers are told."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            writers = [delivery.on_done for delivery in self._waiting if delivery.on_done is not None]
        refusal = DeliveryResult(0, refused="stopping")
        for on_done in writers:
            self._post(functools.partial(on_done, refusal))

    def take(self, timeout_s: float) -> Group | None:
        """Wait for a group to close and take it; None when none did within `timeout_s`, or after `close`."""
        with self._changed:
            give_up_s = time.monotonic() + timeout_s
            while not self._is_closed:
                now_s = time.monotonic()
                if not self._waiting:
                    if now_s >= give_up_s:
                        return None
                    self._wait(give_up_s - now_s)
                elif (due_s := self._due_s(now_s)) <= now_s:
                    return self._take_group(self._closed_by(now_s), now_s)
                else:
                    self._wait(due_s - now_s)
            return None

    def _wait(self, seconds: float) -> None:
        self._is_waited_for = True
        self._changed.wait(seconds)
        self._is_waited_for = False

    def _due_s(self, now_s: float) -> float:
        """When the waiting deliveries become a group, on the monotonic clock."""
        if self._bytes >= GROUP_BYTES:
            return now_s
        due_s = self._oldest_s + self._group_delay_s
        if self._writers_due or self._is_window_used():
            # A writer waits for its answer, a broker for its window; the pause between such closes keeps syncs few.
            due_s = min(due_s, self._last_early_close_s + self._group_delay_s / 4)
        return due_s

    def _is_window_used(self) -> bool:
        window = self._window()
        return window is not None and self._acks_due >= window

    def _closed_by(self, now_s: float) -> ClosedBy:
        if self._bytes >= GROUP_BYTES:
            return "bytes"
        if now_s >= self._oldest_s + self._group_delay_s:
            return "delay"
        self._last_early_close_s = now_s
        return "window" if self._is_window_used() else "writers"

    def _take_group(self, closed_by: ClosedBy, now_s: float) -> Group:
        taken: list[Delivery] = []
        size_bytes = acks = qos0_bytes = writers = 0
        waiting = self._waiting
        while waiting and size_bytes < GROUP_BYTES:
            delivery = waiting.popleft()
            taken.append(delivery)
            size_bytes += len(delivery.payload)
            if delivery.qos:
                acks += 1
            elif delivery.on_done is not None:
                writers += 1
            else:
                qos0_bytes += len(delivery.payload) + ENTRY_OVERHEAD_BYTES
        self._bytes -= size_bytes + ENTRY_OVERHEAD_BYTES * len(taken)
        self._acks_due -= acks
        self._writers_due -= writers
        self._qos0_bytes -= qos0_bytes
        # What is left has waited already: it is due at once.
        self._oldest_s = now_s - self._group_delay_s
        self._tell_room()
        return Group(taken, closed_by)

    def _tell_room(self) -> None:
        if self._was_full and self._bytes <= self._limit_bytes * ROOM_SHARE:
            self._was_full = False
            for callback in self._on_room:
                self._post(callback)

    def _forget(self, delivery: Delivery) -> None:
        size_bytes = len(delivery.payload) + ENTRY_OVERHEAD_BYTES
        self._bytes -= size_bytes
        if delivery.qos:
            self._acks_due -= 1
        elif delivery.on_done is not None:
            self._writers_due -= 1
        else:
            self._qos0_bytes -= size_bytes
