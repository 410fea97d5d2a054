"""What appending did: for the log, for the dead letters, for whoever waits, and for the counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_appliance.core.delivery import DeliveryResult


@dataclass(slots=True)
class GroupAppend:
    """What one group did: for the log, for the dead letters, for whoever waits, and for the counters."""

    payload: bytes = b""
    """What the log has to keep, as `wal_record` draws it; empty when no line was accepted."""
    results: list[DeliveryResult] = field(default_factory=list)
    """One for each delivery, in order."""
    lines: int = 0
    sanitised: int = 0
    non_finite: int = 0
    tag_collisions: int = 0


@dataclass(slots=True)
class ReplayAppend:
    """What replaying one group did."""

    lines: int = 0
    covered: int = 0
    """Lines left out because a listed part already has them."""
    mismatches: list[str] = field(default_factory=list)
    """Entries whose rows differ from what was logged, in words."""
