"""The wall clock, as far as something may be deleted by it.

It counts once the kernel calls it synchronised, and from one look to the next it went as the monotonic clock did:
then neither a first guess after the start nor a step is taken for time that has passed. Since then the monotonic clock
carries it on, so a gateway that loses its time server keeps its sense of time until the next restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

STEP_NS: Final = 5 * 10**9
"""The clocks may differ by this much, and by a thousandth, between two looks."""
_CLOCK_UNSET_BEFORE_NS: Final = 1_577_836_800 * 10**9


class TrustedClock:
    """Looks at the wall clock now and then."""

    def __init__(
        self,
        is_synchronised: Callable[[], bool],
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._is_synchronised = is_synchronised
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._last: tuple[int, int] | None = None
        self._offset_ns: int | None = None
        self.is_steady = False
        """Whether the last two looks agree: only then may anything be deleted."""

    def look(self) -> None:
        """Compare the clocks; called by one thread, once in a period."""
        wall_ns, monotonic_ns = self._wall_ns(), self._monotonic_ns()
        previous, self._last, self.is_steady = self._last, None, False
        if not self._is_synchronised() or wall_ns < _CLOCK_UNSET_BEFORE_NS:
            return
        self._last = wall_ns, monotonic_ns
        if previous is None:
            return
        passed_ns = monotonic_ns - previous[1]
        self.is_steady = abs(wall_ns - previous[0] - passed_ns) <= STEP_NS + passed_ns // 1000
        if self.is_steady:
            self._offset_ns = wall_ns - monotonic_ns

    @property
    def now_ns(self) -> int | None:
        """The time; None until it was known once."""
        offset_ns = self._offset_ns
        return None if offset_ns is None else self._monotonic_ns() + offset_ns
