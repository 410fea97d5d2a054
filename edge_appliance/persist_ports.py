"""What the persister asks of others: rows to persist, and who holds them until then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edge_appliance.core.columns import Chunk, RowSet
from edge_appliance.core.delivery import DeliveryKey, TableDefinition
from edge_appliance.core.parts import Part
from edge_appliance.core.segment import Segment
from edge_appliance.core.set_aside import SetAside


class Rows(Protocol):
    """Rows that do not change any more and become parts together."""

    @property
    def rank(self) -> int:
        """Of all their parts."""
        ...

    def row_sets(self) -> list[RowSet]:
        """Rows of each table."""
        ...

    def definitions(self) -> list[TableDefinition]:
        """Definitions of those tables."""
        ...

    def delivery_keys(self) -> list[DeliveryKey]:
        """Keys of the QoS 1 deliveries that brought them."""
        ...


class SealedSegment(Rows, Protocol):
    """A segment that does not change any more."""

    id: int


class RowOwner(Protocol):
    """Who holds the rows until they are persisted: the buffer."""

    def persisted(self, segment_id: int, parts: Sequence[Part]) -> None:
        """Show parts instead of the segment's rows."""
        ...

    def prefix_persisted(self, prefix: Segment, parts: Sequence[Part]) -> None:
        """Show parts instead of the first rows of a log file."""
        ...

    def set_aside_persisted(self, aside: SetAside, rest: Sequence[Chunk], parts: Sequence[Part]) -> None:
        """Show parts instead of the rows that were set aside."""
        ...


class LogFiles(Protocol):
    """Who holds the log files: the WAL directory."""

    def drop(self, segment_id: int) -> None:
        """Unlink a file and sync the directory; a missing file is fine."""
        ...
