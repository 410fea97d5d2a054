"""What stands in for the log with `wal.enabled = false`: it numbers groups and keeps nothing.

Rows live in memory until they are persisted, and a crash loses them; health shows that as degraded.
"""

from __future__ import annotations

from edge_appliance.core.wal_frame import FrameType


class NoWal:
    """Numbers groups and segments like the log, without a file."""

    def __init__(self, segment_id: int, first_sequence: int) -> None:
        self.segment_id = segment_id
        self.first_sequence = first_sequence
        self.next_sequence = first_sequence
        self.file_bytes = 0
        self.total_bytes = 0
        self.file_count = 0

    @property
    def durable_sequence(self) -> int:
        """Sequence of the last group; nothing of it is on the disk."""
        return self.next_sequence - 1

    def append(self, kind: FrameType, payload: bytes) -> int:
        """Give the group its sequence."""
        del kind, payload
        self.next_sequence += 1
        return self.next_sequence - 1

    def sync(self) -> float:
        """Take no time and make nothing durable."""
        return 0.0

    def cut(self, generation: int, first_sequence: int | None = None) -> None:
        """Go on with the next segment id."""
        del generation
        self.segment_id += 1
        self.first_sequence = self.next_sequence = max(first_sequence or 0, self.next_sequence)

    def replace(self, generation: int, first_sequence: int) -> None:
        """Go on with the next segment id; nothing here can fail, so nothing is to be replaced."""
        self.cut(generation, first_sequence)

    def drop(self, segment_id: int) -> None:
        """Have nothing to drop."""

    def close(self) -> None:
        """Have nothing to close."""
