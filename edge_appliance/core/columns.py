"""Rows of one table in memory: frozen chunks of Arrow arrays, and the growing tail before them.

A chunk never changes, so views share it. A tail belongs to the ingest thread; a view gets a copy of it
up to the visible mark. A chunk holds only columns that have a value, as (row, value) pairs when few rows do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from edge_appliance.core.delivery import ColumnDefinition, Kind, Tags

OPEN_RANK: Final = 2**63 - 1
"""Rank of the rows of the open segment: above every sequence."""

ARROW_TYPES: Final[Mapping[Kind, pa.DataType]] = {
    Kind.TAG: pa.utf8(),
    Kind.FLOAT: pa.float64(),
    Kind.INT: pa.int64(),
    Kind.UINT: pa.uint64(),
    Kind.BOOL: pa.bool_(),
    Kind.STRING: pa.utf8(),
}
TIME_TYPE: Final = pa.timestamp("ns", tz="UTC")


@dataclass(frozen=True, slots=True)
class SparseColumn:
    """Values of the few rows that have one: `rows` (uint32, ascending) and `values` of equal length."""

    rows: pa.UInt32Array
    values: pa.Array

    def dense(self, length: int) -> pa.Array:
        """The column as `length` values with nulls."""
        slots: list[int | None] = [None] * length
        for position, row in enumerate(self.rows.to_pylist()):
            slots[row] = position
        return self.values.take(pa.array(slots, pa.uint32()))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frozen rows: series refs (uint32), times (int64 ns) and the columns that have a value."""

    series: pa.UInt32Array
    time: pa.Int64Array
    fields: Mapping[str, pa.Array | SparseColumn]
    size_bytes: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.time)

    def field(self, name: str, kind: Kind) -> pa.Array:
        """One field column of `rows` values, null where a row has none."""
        column = self.fields.get(name)
        if column is None:
            return pa.nulls(self.rows, ARROW_TYPES[kind])
        return column.dense(self.rows) if isinstance(column, SparseColumn) else column


@dataclass(frozen=True, slots=True)
class SeriesTags:
    """Tags of the series refs 0 … count-1 of one table; the list behind it only grows."""

    tags: Sequence[Tags]
    count: int

    def values(self, tag: str) -> pa.StringArray:
        """Value of `tag` for each series ref, null where the series lacks it."""
        return pa.array([dict(self.tags[ref]).get(tag) for ref in range(self.count)], pa.utf8())


@dataclass(frozen=True, slots=True)
class RowSet:
    """All visible rows of one table of one set, immutable. Later rows were written later."""

    database: str
    table: str
    rank: int
    columns: tuple[ColumnDefinition, ...]
    series: SeriesTags
    chunks: tuple[Chunk, ...]
    min_time_ns: int
    max_time_ns: int
    size_bytes: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(chunk.rows for chunk in self.chunks)

    def batches(self, columns: Sequence[ColumnDefinition]) -> list[pa.RecordBatch]:
        """One record batch a chunk: `time` (timestamp ns, UTC), then `columns` (tags utf8, fields by kind)."""
        schema = pa.schema([("time", TIME_TYPE), *((c.name, ARROW_TYPES[c.kind]) for c in columns)])
        tags = {c.name: self.series.values(c.name) for c in columns if c.kind is Kind.TAG}
        return [
            pa.record_batch(
                [
                    chunk.time.cast(TIME_TYPE),
                    *(
                        tags[c.name].take(chunk.series) if c.kind is Kind.TAG else chunk.field(c.name, c.kind)
                        for c in columns
                    ),
                ],
                schema=schema,
            )
            for chunk in self.chunks
        ]
