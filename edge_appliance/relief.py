"""Watches memory for the ingest thread: how fast it fills, what the host allows, and what to persist before it is full.

The decisions are those of `core/pressure`; here are the clock's and the host's readings that they are made from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from edge_appliance import host
from edge_appliance.buffer import Buffer
from edge_appliance.core.pressure import (
    DECISION_PERIOD_S,
    SET_ASIDE_SHARE,
    Action,
    HostLimit,
    Largest,
    Policy,
    Rate,
    Situation,
    Wait,
    choose,
)
from edge_appliance.health import Health
from edge_appliance.memory import PINNED_SHARE
from edge_appliance.metrics import Metrics

PINNED_GRACE_S: Final = 1.0
"""How long intake stands still before a query has to end for it: most end by themselves sooner."""
FOREVER_S: Final = 1e9
"""What the gauge shows when the limit is never reached: it must be a number."""


class Relief:
    """One object for the ingest thread; its readings may be looked at from any thread."""

    def __init__(
        self,
        buffer: Buffer,
        policy: Policy,
        host_reserve_bytes: int,
        metrics: Metrics,
        health: Health,
        now_s: float,
        *,
        available_bytes: Callable[[], int] = host.available_memory_bytes,
        end_oldest_query: Callable[[], None] = lambda: None,
    ) -> None:
        self._buffer = buffer
        self._memory = buffer.memory
        self._policy = policy
        self._limit = HostLimit(buffer.limit_bytes, host_reserve_bytes)
        self._available_bytes = available_bytes
        self._end_oldest_query = end_oldest_query
        self._rate = Rate(now_s)
        self._written_s = now_s
        self._decided_s = -math.inf
        self._cool_since_s: float | None = None
        self._metrics = metrics
        self._health = health
        metrics.buffer_effective_limit.read_from(lambda: self._memory.effective_bytes)
        metrics.buffer_pinned.read_from(lambda: self._memory.account_bytes("pinned"))

    def appended(self, now_s: float, size_bytes: int) -> None:
        """Note by how much a group made the buffer grow."""
        self._rate.add(now_s, size_bytes)
        self._written_s = now_s

    def decide(self, now_s: float) -> Action:
        """What to persist now; looks at the host, and decides at most once a second."""
        if now_s - self._decided_s < DECISION_PERIOD_S:
            return Wait("far")
        self._decided_s = now_s
        memory = self._memory
        memory.effective_bytes = self._limit.sample(now_s, memory.used_bytes, self._available_bytes())
        situation = self._situation(now_s)
        self._metrics.buffer_rate.set(round(situation.rate))
        self._health.note("memory", self._cause())
        self._metrics.buffer_seconds_left.set(min(round(situation.seconds_left, 1), FOREVER_S))
        return choose(self._policy, situation)

    def _situation(self, now_s: float) -> Situation:
        state, memory = self._buffer.state, self._memory
        aside_bytes = sum(aside.freeable_bytes for aside in state.set_asides if aside.segment is state.open)
        situation = Situation(
            limit_bytes=memory.effective_bytes,
            used_bytes=memory.used_bytes,
            in_jobs_bytes=state.in_jobs_bytes,
            jobs=state.jobs,
            rate=self._rate.per_second(now_s),
            open_bytes=0 if state.open.is_empty else max(0, state.open.size_bytes - aside_bytes),
            idle_s=now_s - self._written_s,
        )
        if situation.seconds_left >= self._policy.horizon_s:
            return situation
        busy = {aside.key for aside in state.set_asides}
        free = (
            Largest(key, self._freeable_bytes(buffer.size_bytes, is_one_time=buffer.min_time_ns == buffer.max_time_ns))
            for key, buffer in state.open.tables.items()
            if key not in busy and buffer.size_bytes
        )
        largest = max(free, default=None, key=lambda candidate: candidate.freeable_bytes)
        return replace(situation, largest=largest)

    @staticmethod
    def _freeable_bytes(size_bytes: int, *, is_one_time: bool) -> int:
        return size_bytes if is_one_time else int(size_bytes * SET_ASIDE_SHARE)

    # At the limit

    def cool_down(self, now_s: float, failure: str) -> str:
        """Why there is no memory for a group, in words; empty when there is some. `failure` is that of the workers."""
        buffer, memory = self._buffer, self._memory
        if buffer.has_room():
            if self._cool_since_s is not None:
                self._metrics.cool_down_seconds.add(now_s - self._cool_since_s)
                self._cool_since_s = None
            return ""
        if self._cool_since_s is None:
            self._cool_since_s = now_s
            self._metrics.cool_downs.add()
        is_pinned = memory.account_bytes("pinned") > PINNED_SHARE * memory.configured_bytes
        if is_pinned and now_s - self._cool_since_s >= PINNED_GRACE_S:
            self._end_oldest_query()
        full = f"the buffer is full ({memory.used_bytes >> 20} of {memory.configured_bytes >> 20} MiB)"
        return f"read-only: {full} and cannot be persisted: {failure}" if failure else f"cool-down: {full}"

    def _cause(self) -> str:
        """Why less than the configured limit is in effect; empty when it is not."""
        if not self._limit.is_shrunk:
            return ""
        effective, configured = self._memory.effective_bytes >> 20, self._memory.configured_bytes >> 20
        return f"buffer limit {effective} of {configured} MiB: the host is short of memory"
