"""Taking back one delivery of a group, with all it added beyond the mark."""

from __future__ import annotations

from edge_appliance.core.schema import Schema
from edge_appliance.core.segment import Segment, TableBuffer


class Undo:
    """Takes one delivery back, for `accept_partial=false`."""

    def __init__(self, schema: Schema, segment: Segment) -> None:
        self._schema = schema
        self._segment = segment
        self._names = segment.savepoint
        self._definitions = schema.savepoint
        self._before: dict[TableBuffer, tuple[int, int]] = {}

    def note(self, buffer: TableBuffer) -> None:
        """Remember how far `buffer` was before this delivery."""
        if buffer not in self._before:
            self._before[buffer] = (buffer.tail.rows, buffer.tail_bytes)

    def run(self) -> None:
        """Drop the delivery's rows, series and definitions."""
        for buffer, (rows, tail_bytes) in self._before.items():
            buffer.truncate(rows, tail_bytes)
        self._segment.rollback_names(self._names)
        self._schema.rollback(self._definitions)
        tables = self._segment.tables
        for buffer in [b for b in self._segment.touched if (b.schema.database, b.schema.name) not in tables]:
            del self._segment.touched[buffer]
