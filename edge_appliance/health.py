"""The appliance's state in one place: what phase it is in, what is degraded, and the sentence for systemd STATUS=.

Whoever finds a condition reports it here under a key and clears it when it is over; whoever shows it
(HTTP, systemd, `status`) reads it here. Thread-safe; knows nothing of either side.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


class Phase(enum.StrEnum):
    """The life of the process, in order."""

    STARTING = "starting"
    REPLAYING = "replaying"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far the replay of the log has come."""

    done_bytes: int = 0
    total_bytes: int = 0
    lines: int = 0
    seconds: float = 0.0

    @property
    def percent(self) -> int:
        """Whole percent of the bytes read."""
        return 100 if not self.total_bytes else min(100, 100 * self.done_bytes // self.total_bytes)

    def __str__(self) -> str:
        rate = self.done_bytes / self.seconds if self.seconds > 0 else 0.0
        left = f", {(self.total_bytes - self.done_bytes) / rate:.0f} s left" if rate > 0 else ""
        return f"replaying the log: {self.percent} % of {self.total_bytes / 2**20:.1f} MiB, {self.lines:,} lines{left}"


class Health:
    """Phase, replay progress, the reason intake is held, and all degraded reasons."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._progress = ReplayProgress()
        self._degraded: dict[str, str] = {}
        self._since_s: dict[str, float] = {}
        self._held: dict[str, str] = {}
        self._facts: dict[str, str] = {}

    @property
    def phase(self) -> Phase:
        """Current phase."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Move to `phase`."""
        with self._lock:
            self._phase = phase

    @property
    def is_ready(self) -> bool:
        """Whether replay has finished and writes and queries are served."""
        return self._phase is Phase.RUNNING

    @property
    def progress(self) -> ReplayProgress:
        """Progress of the replay."""
        return self._progress

    def replayed(self, progress: ReplayProgress) -> None:
        """Report progress of the replay."""
        self._progress = progress

    def degrade(self, key: str, reason: str, since_s: float | None = None) -> None:
        """Something works with less than what was promised, until `restore(key)`.

        With `since_s`, by the monotonic clock, the reason is shown with how long it has lasted.
        """
        with self._lock:
            self._degraded[key] = reason
            self._since_s.pop(key, None)
            if since_s is not None:
                self._since_s[key] = since_s

    def restore(self, key: str) -> None:
        """The condition `key` is over; unknown keys are fine."""
        with self._lock:
            self._degraded.pop(key, None)
            self._since_s.pop(key, None)

    @property
    def degraded(self) -> dict[str, str]:
        """Degraded reasons by key, those that hold intake among them."""
        with self._lock:
            return {**self._timed(), **self._held}

    def _timed(self) -> dict[str, str]:
        now_s = self._clock_s()
        lasting = {key: f" (for {duration_text(now_s - since_s)})" for key, since_s in self._since_s.items()}
        return {key: reason + lasting.get(key, "") for key, reason in self._degraded.items()}

    def hold(self, key: str, reason: str) -> None:
        """Nothing is acknowledged for this reason (disk full, disk failing, buffer full), until `release(key)`."""
        with self._lock:
            self._held[key] = reason

    def release(self, key: str) -> None:
        """Intake is no longer held for `key`; unknown keys are fine."""
        with self._lock:
            self._held.pop(key, None)

    @property
    def held(self) -> str:
        """Why nothing is acknowledged right now; empty when intake runs."""
        with self._lock:
            return "; ".join(self._held.values())

    def note(self, key: str, fact: str) -> None:
        """Keep a short fact for the status line, such as the broker's state; an empty fact removes it."""
        with self._lock:
            if fact:
                self._facts[key] = fact
            else:
                self._facts.pop(key, None)

    def status_line(self) -> str:
        """One sentence for systemd STATUS= and `status`."""
        phase = self._phase
        if phase is Phase.REPLAYING:
            return str(self._progress)
        if phase is not Phase.RUNNING:
            return phase.value
        with self._lock:
            held = [f"not acknowledging: {reason}" for reason in self._held.values()]
            facts = (fact for key, fact in self._facts.items() if key not in self._degraded)
            return "; ".join([*held, *self._timed().values(), *facts]) or "running"


def duration_text(seconds: float) -> str:
    """A duration for people, in its two largest units: `45 s`, `4 min`, `3 h 12 min`, `2 d 5 h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole // 60 % 60} min"
    return f"{whole // 86_400} d {whole // 3_600 % 24} h"
