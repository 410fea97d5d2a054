"""The appliance's state in one place: what phase it is in, what is degraded, and the sentence for systemd STATUS=.

Whoever finds a condition reports it here under a key and clears it when it is over; whoever shows it
(HTTP, systemd, `status`) reads it here. Thread-safe; knows nothing of either side.
"""

from __future__ import annotations

import enum
import threading
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

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._progress = ReplayProgress()
        self._degraded: dict[str, str] = {}
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

    def degrade(self, key: str, reason: str) -> None:
        """Something works with less than what was promised, until `restore(key)`."""
        with self._lock:
            self._degraded[key] = reason

    def restore(self, key: str) -> None:
        """The condition `key` is over; unknown keys are fine."""
        with self._lock:
            self._degraded.pop(key, None)

    @property
    def degraded(self) -> dict[str, str]:
        """Degraded reasons by key, those that hold intake among them."""
        with self._lock:
            return {**self._degraded, **self._held}

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
            return "; ".join([*held, *self._degraded.values(), *facts]) or "running"
