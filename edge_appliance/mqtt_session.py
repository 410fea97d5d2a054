"""What one connection has been granted and still owes, and how long to wait for the next. No client, no clock."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, zip_longest
from typing import Final

MAX_DELAY_S: Final = 30.0
_FIRST_DELAY_S: Final = 0.5
_STEADY_S: Final = 5.0
"""A link that was up this long counts as good: the next attempt starts from the first delay."""

REFUSED: Final = 0x80
"""Codes of SUBACK and UNSUBACK from here on are refusals, in 3.1.1 and 5."""


class Backoff:
    """Delays between attempts: doubling, capped, with jitter so that a fleet does not come back in one second."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._jitter = jitter
        self._attempts = 0

    def delay_s(self, lived_s: float) -> float:
        """Seconds to wait after a link that was up for `lived_s` (0: it never was)."""
        if lived_s >= _STEADY_S:
            self._attempts = 0
        longest_s = min(MAX_DELAY_S, _FIRST_DELAY_S * (1 << min(self._attempts, 10)))
        self._attempts += 1
        return longest_s * (0.5 + 0.5 * self._jitter())


class Subscriptions:
    """Filters of one connection: asked for, granted, refused."""

    def __init__(self, wanted: Sequence[tuple[str, int]]) -> None:
        self.wanted = dict(wanted)
        self.granted: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        """Filters with the code of their refusal."""
        self._asked: dict[int, tuple[str, ...]] = {}

    def want(self, wanted: Sequence[tuple[str, int]]) -> tuple[list[str], list[str]]:
        """Want these from now on; returns the filters to ask for and those to let go."""
        before, self.wanted = self.wanted, dict(wanted)
        gone = [name for name in before if name not in self.wanted]
        for name in gone:
            self.granted.pop(name, None)
            self.refused.pop(name, None)
        return [name for name, qos in wanted if before.get(name) != qos], gone

    def asked(self, packet_id: int, filters: Sequence[str]) -> None:
        """A SUBSCRIBE for these filters was sent."""
        self._asked[packet_id] = tuple(filters)

    def answered(self, packet_id: int, codes: Sequence[int]) -> None:
        """A SUBACK came, with one code a filter; a missing code is a refusal, an unknown id is nothing."""
        for name, code in zip_longest(self._asked.pop(packet_id, ()), codes, fillvalue=REFUSED):
            if not isinstance(name, str):  # more codes than filters
                break
            self.granted.pop(name, None)
            self.refused.pop(name, None)
            if name not in self.wanted:  # let go meanwhile
                continue
            (self.refused if int(code) >= REFUSED else self.granted)[name] = int(code)

    @property
    def is_answered(self) -> bool:
        """Whether no SUBACK is due."""
        return not self._asked

    @property
    def is_complete(self) -> bool:
        """Whether every filter was granted."""
        return self.granted.keys() == self.wanted.keys()

    @property
    def unprotected(self) -> list[str]:
        """Filters granted with a lower QoS than asked for."""
        return [name for name, qos in self.granted.items() if qos < self.wanted[name]]


class AckOrder:
    """Packet ids of one connection that are not acknowledged yet, in receive order.

    The standard wants PUBACKs in the order of the PUBLISHes: a delivery that is not finished holds back the
    ones behind it. An id may be open more than once: Mosquitto 2.0.11 runs past our Receive Maximum while it drains
    a long queue, and then uses ids again that we have not acknowledged.
    """

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._finished: Counter[int] = Counter()
        """Finished ones that wait for others; of an id that is open more than once, they are the first."""

    def __len__(self) -> int:
        return len(self._order)

    def took(self, packet_ids: Iterable[int]) -> None:
        """Remember deliveries that will need an acknowledgement."""
        self._order.extend(packet_ids)

    def finish(self, packet_ids: Sequence[int]) -> list[int]:
        """Note finished deliveries; return the ids that may be acknowledged now. Unknown ids are ignored."""
        order, finished = self._order, self._finished
        ready = list(islice(order, len(packet_ids)))
        if not finished and ready == list(packet_ids):  # as nearly always
            for _ in ready:
                order.popleft()
            return ready
        count = Counter(order)
        for packet_id in packet_ids:
            if finished[packet_id] < count[packet_id]:
                finished[packet_id] += 1
        ready = []
        while order and finished[order[0]]:
            packet_id = order.popleft()
            finished[packet_id] -= 1
            ready.append(packet_id)
        self._finished = +finished
        return ready
