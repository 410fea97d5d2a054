"""What to upload next: the oldest part, but none whose own pause, or that of the whole store, is not over yet.

A part that fails waits for itself, so that one bad part does not hold up the others. Several failures in a row mean
the store: then everything waits, and the first success ends all pauses, so that parts leave in order of age again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from edge_appliance.core.catalog_state import PartKey, part_identity
from edge_appliance.core.parts import Part, PartSetKey, age, set_key

LONGEST_PAUSE_S: Final = 15.0
"""A try begins with a look, which costs next to nothing, and whoever waits longer drains later."""
FAILURES_MAX: Final = 3
"""Failures in a row after which the store itself is taken to be the reason."""
FIRST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """How parts leave, and what may wait for it."""

    uploads: int = 2
    max_bandwidth_bytes: int = 0
    spool_max_bytes: int = 4 * 2**30
    policy: Literal["stop-ack", "drop-oldest"] = "stop-ack"
    first_pause_s: float = FIRST_PAUSE_S


class UploadQueue:
    """Parts that wait for the store, and when they may be tried. Not thread-safe."""

    def __init__(self, first_pause_s: float) -> None:
        self._first_pause_s = first_pause_s
        self._waiting: dict[PartKey, Part] = {}
        self._attempts: dict[PartKey, int] = {}
        self._not_before_s: dict[PartKey, float] = {}
        self._failures = 0
        self._resume_s = 0.0
        self._order: list[Part] | None = None
        self.failing_since_s: float | None = None
        """Since when parts have failed without a success that ended it."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def parts(self) -> list[Part]:
        """All waiting parts, the oldest first."""
        if self._order is None:
            self._order = sorted(self._waiting.values(), key=age)
        return self._order

    def __contains__(self, part: Part) -> bool:
        return part_identity(part) in self._waiting

    def oldest(self, least_bytes: int, replaced: Iterable[Part]) -> list[Part]:
        """The oldest part sets of at least so many bytes, of which every slice waits.

        One that took the place of `replaced` parts is left out: the store still has these, and deletes them for it.
        """
        held = {(part.database, part.table, part.date) for part in replaced}
        slices: dict[PartSetKey, list[Part]] = {}
        for part in self.parts:
            slices.setdefault(set_key(part), []).append(part)
        found: list[Part] = []
        for key, parts in slices.items():
            if least_bytes <= 0:
                break
            if len(parts) == parts[0].slices and (key.database, key.table, key.date) not in held:
                found += parts
                least_bytes -= sum(part.size_bytes for part in parts)
        return found

    def add(self, parts: Iterable[Part]) -> None:
        """Let `parts` wait."""
        self._waiting.update((part_identity(part), part) for part in parts)
        self._order = None

    def remove(self, part: Part) -> None:
        """It goes, or is not to be uploaded any more."""
        key = part_identity(part)
        self._attempts.pop(key, None)
        self._not_before_s.pop(key, None)
        if self._waiting.pop(key, None) is not None:
            self._order = None

    def take(self, now_s: float) -> Part | None:
        """The oldest part that may be tried now, which does not wait any more; None when there is none."""
        if now_s < self._resume_s:
            return None
        found = next((p for p in self.parts if self._not_before_s.get(part_identity(p), 0.0) <= now_s), None)
        if found is not None:
            del self._waiting[part_identity(found)]
            self.parts.remove(found)
        return found

    def wait_s(self, now_s: float) -> float | None:
        """How long until a part may be tried; None when none waits."""
        if not self._waiting:
            return None
        pauses = self._not_before_s
        is_any_free = any(key not in pauses for key in self._waiting)
        earliest_s = 0.0 if is_any_free else min(pauses[key] for key in self._waiting)
        return max(0.0, earliest_s - now_s, self._resume_s - now_s)

    def was_tried(self, part: Part) -> bool:
        """Whether an earlier attempt failed: the store may have it all the same."""
        return part_identity(part) in self._attempts

    def failed(self, part: Part, now_s: float) -> None:
        """An attempt failed: the part waits again, for longer each time."""
        key = part_identity(part)
        attempts = self._attempts[key] = self._attempts.get(key, 0) + 1
        self._not_before_s[key] = now_s + self._pause_s(attempts)
        self._failures += 1
        if self._failures >= FAILURES_MAX:
            self._resume_s = now_s + self._pause_s(self._failures - FAILURES_MAX + 1)
        if self.failing_since_s is None:
            self.failing_since_s = now_s
        self.add([part])

    def succeeded(self, part: Part) -> None:
        """An attempt ended well: the store is there."""
        self.remove(part)
        if self._failures >= FAILURES_MAX:
            self._not_before_s.clear()
        self._failures = 0
        self._resume_s = 0.0
        if not self._attempts:
            self.failing_since_s = None

    def _pause_s(self, attempts: int) -> float:
        return float(min(self._first_pause_s * 2.0 ** min(attempts - 1, 30), LONGEST_PAUSE_S))
