"""What systemd and the gauges are told while the appliance lives."""

import asyncio
from dataclasses import dataclass, field

from edge_appliance.buffer import Buffer
from edge_appliance.core.schema import Schema
from edge_appliance.health import Health, Phase, ReplayProgress
from edge_appliance.metrics import Metrics
from edge_appliance.reporter import REPLAY_STEP_S, Reporter
from edge_appliance.systemd import Station


@dataclass
class NotedNotifier:
    """Notes what would be sent to systemd."""

    statuses: list[str] = field(default_factory=list)
    extended_s: list[float] = field(default_factory=list)

    def status(self, text: str) -> None:
        self.statuses.append(text)

    def extend_timeout(self, seconds: float) -> None:
        self.extended_s.append(seconds)


def report(health: Health, metrics: Metrics, reports: list[ReplayProgress]) -> NotedNotifier:
    """Let the reporter report once for each progress."""
    notifier = NotedNotifier()
    reporter = Reporter(notifier, health, metrics, Buffer(Schema(), [], 2**20), Station("loop", 60.0))
    for progress in reports:
        health.replayed(progress)
        reporter._report()
    return notifier


def test_only_progress_buys_time():
    """A replay that stands still is left to systemd's start timeout; one that moves is not cut off."""
    health = Health()
    health.enter(Phase.REPLAYING)
    notifier = report(health, Metrics(), [ReplayProgress(n, 10) for n in (0, 4, 4, 4, 9)])
    assert notifier.extended_s == [REPLAY_STEP_S] * 3
    assert len(notifier.statuses) == 5


def test_no_time_is_asked_for_once_it_runs():
    """After READY the start timeout is over."""
    health = Health()
    health.enter(Phase.RUNNING)
    assert report(health, Metrics(), [ReplayProgress(1, 1), ReplayProgress(2, 2)]).extended_s == []


def test_gauges_follow_the_state():
    """Degraded reasons appear and go; segments are counted by state."""
    health, metrics = Health(), Metrics()
    health.enter(Phase.RUNNING)
    health.degrade("store", "away")
    report(health, metrics, [ReplayProgress()])
    assert metrics.degraded.samples() == [(("store",), 1)]
    assert metrics.segments.value("sealed") == 0
    health.restore("store")
    report(health, metrics, [ReplayProgress()])
    assert metrics.degraded.samples() == []


def test_task_beats_its_station_and_measures_the_loop():
    """While the loop turns, the watchdog sees it turn."""
    now_s = [0.0]
    station = Station("loop", 1.0, clock=lambda: now_s[0])
    metrics = Metrics()
    reporter = Reporter(NotedNotifier(), Health(), metrics, Buffer(Schema(), [], 2**20), station)

    async def scenario() -> None:
        task = asyncio.create_task(reporter.run())
        now_s[0] = 10.0
        assert not station.is_fresh
        async with asyncio.timeout(10):
            while not station.is_fresh:
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(scenario())
    assert metrics.loop_lag.count > 0
