"""Tells systemd, the journal and the gauges how things are, and measures how late the event loop is."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from edge_appliance.buffer import Buffer
from edge_appliance.health import Health, Phase
from edge_appliance.metrics import Metrics
from edge_appliance.systemd import Notifier, Station

_log = logging.getLogger(__name__)

TICK_S: Final = 0.25
STATUS_EVERY_TICKS: Final = 4
PROGRESS_EVERY_TICKS: Final = 20
"""Five seconds between journal lines of a long replay."""
REPLAY_STEP_S: Final = 120.0
"""Start time asked of systemd whenever replay has got further; far above the longest single step on a slow card."""


class Reporter:
    """One task on the event loop, from start to stop."""

    def __init__(
        self, notifier: Notifier, health: Health, metrics: Metrics, buffer: Buffer, loop_station: Station
    ) -> None:
        self._notifier = notifier
        self._health = health
        self._metrics = metrics
        self._buffer = buffer
        self._station = loop_station
        self._seen_bytes = -1

    async def run(self) -> None:
        """Report until cancelled."""
        loop = asyncio.get_running_loop()
        tick = 0
        while True:
            due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self._metrics.loop_lag.observe(max(0.0, loop.time() - due_s))
            self._station.beat()
            if tick % STATUS_EVERY_TICKS == 0:  # the first one soon, since a replay may be short
                self._report()
            tick += 1
            if tick % PROGRESS_EVERY_TICKS == 0 and self._health.phase is Phase.REPLAYING:
                _log.info("%s", self._health.progress)

    def _report(self) -> None:
        health = self._health
        self._notifier.status(health.status_line())
        # Only real progress buys time: a replay that stands still is systemd's to end.
        if health.phase is Phase.REPLAYING and health.progress.done_bytes > self._seen_bytes:
            self._seen_bytes = health.progress.done_bytes
            self._notifier.extend_timeout(REPLAY_STEP_S)
        sealed = len(self._buffer.state.sealed)
        self._metrics.segments.replace([(("open",), 1), (("sealed",), sealed)])
        self._metrics.degraded.replace([((key,), 1) for key in health.degraded])
