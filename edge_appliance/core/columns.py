"""Rows of one table in memory: frozen chunks of Arrow arrays, and the growing tail before them.

A chunk never changes, so views share it. A tail belongs to the ingest thread; a view gets a copy of it
up to the visible mark. A chunk holds only columns that have a value, as (row, value) pairs when few rows do.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from edge_appliance.core.delivery import ColumnDefinition, Kind, Tags
from edge_appliance.core.line_ordinary import Shape

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
STORED_TYPES: Final[Mapping[Kind, pa.DataType]] = {**ARROW_TYPES, Kind.UINT: pa.decimal128(20, 0)}
"""Types in the file: unsigned 64-bit integers overflow in half of the readers, decimals in none."""
_TYPE_CODES: Final[Mapping[Kind, str]] = {
    Kind.FLOAT: "d",
    Kind.INT: "q",
    Kind.UINT: "Q",
    Kind.BOOL: "b",
    Kind.STRING: "B",
}
SPARSE_BELOW: Final = 0.25
"""Share of rows with a value below which a frozen column keeps (row, value) pairs."""
STRING_OVERHEAD_BYTES: Final = 4
"""What a string costs in a tail beyond its own bytes and its row number: an offset."""
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
        """One record batch a chunk, in the types of `batch_schema`."""
        schema = batch_schema(columns)
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


def batch_schema(columns: Iterable[ColumnDefinition]) -> pa.Schema:
    """Rows of a table as a query reads them: `time` (timestamp ns, UTC), then `columns` (tags utf8, fields by kind)."""
    return pa.schema([("time", TIME_TYPE), *((c.name, ARROW_TYPES[c.kind]) for c in columns)])


class TailColumn:
    """Values of one field in a tail, as parallel (row, value) arrays.

    Strings are one text of UTF-8, and for each the offset in it at which it ends, behind a first offset of 0.
    """

    __slots__ = ("is_string", "kind", "offsets", "rows", "values")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.is_string = kind is Kind.STRING
        self.rows = array("I")
        self.values: array[Any] = array(_TYPE_CODES[kind])
        self.offsets = array("i", [0] if self.is_string else [])

    def append_string(self, value: str) -> int:
        """Add the value of a string column, without its row; returns its length in bytes."""
        raw = value.encode()
        self.values.frombytes(raw)
        self.offsets.append(len(self.values))
        return len(raw)

    def truncate(self, rows: int) -> None:
        """Drop the values of rows at and beyond `rows`."""
        count = bisect_left(self.rows, rows)
        del self.rows[count:]
        if self.is_string:
            del self.offsets[count + 1 :]
        del self.values[self.offsets[count] if self.is_string else count :]

    def copy(self, rows: int) -> TailColumn:
        """Copy the values of the first `rows` rows."""
        count = bisect_left(self.rows, rows)
        copied = TailColumn(self.kind)
        copied.rows = self.rows[:count]
        if self.is_string:
            copied.offsets = self.offsets[: count + 1]
        copied.values = self.values[: copied.offsets[-1] if self.is_string else count]
        return copied

    def freeze(self, rows: int) -> pa.Array | SparseColumn | None:
        """All values as Arrow, among `rows` rows; None when there are none.

        The arrays become Arrow's buffers: the column must not grow again.
        """
        count = len(self.rows)
        if not count:
            return None
        frozen = self._to_arrow(count)
        if count == rows:
            return frozen
        sparse = SparseColumn(_from_array(pa.uint32(), self.rows, count), frozen)
        return sparse if count < rows * SPARSE_BELOW else sparse.dense(rows)

    def _to_arrow(self, count: int) -> pa.Array:
        if self.is_string:
            buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.values)]
            return pa.Array.from_buffers(pa.utf8(), count, buffers)
        if self.kind is Kind.BOOL:
            return _from_array(pa.int8(), self.values, count).cast(pa.bool_())
        return _from_array(ARROW_TYPES[self.kind], self.values, count)


class Tail:
    """Rows that are not frozen yet; the last ones may lie beyond the visible mark."""

    __slots__ = ("columns", "series", "targets", "time")

    def __init__(self) -> None:
        self.series = array("I")
        self.time = array("q")
        self.columns: dict[str, TailColumn] = {}
        self.targets: dict[Shape, list[TailColumn]] = {}
        """Columns of the lines of a shape, where all of them have the line's own kinds: kept by the appender."""

    @property
    def rows(self) -> int:
        """Number of rows, those beyond the mark included."""
        return len(self.time)

    def truncate(self, rows: int) -> None:
        """Drop the rows at and beyond `rows`."""
        self.targets.clear()
        del self.series[rows:]
        del self.time[rows:]
        for name, column in list(self.columns.items()):
            column.truncate(rows)
            if not column.rows:
                # Its definition may be taken back, too: the next value has to ask the schema again.
                del self.columns[name]

    def copy(self, rows: int) -> Tail:
        """Copy the first `rows` rows; safe while the ingest thread appends behind them."""
        copied = Tail()
        copied.series = self.series[:rows]
        copied.time = self.time[:rows]
        copied.columns = {name: column.copy(rows) for name, column in self.columns.copy().items()}
        return copied

    def freeze(self) -> Chunk:
        """All rows as a chunk. The tail's arrays become the chunk's buffers: it must not be used again."""
        rows = self.rows
        series = _from_array(pa.uint32(), self.series, rows)
        time = _from_array(pa.int64(), self.time, rows)
        fields = {name: frozen for name, c in self.columns.items() if (frozen := c.freeze(rows)) is not None}
        size_bytes = series.nbytes + time.nbytes
        for frozen in fields.values():
            if isinstance(frozen, SparseColumn):
                size_bytes += frozen.rows.nbytes + frozen.values.nbytes
            else:
                size_bytes += frozen.nbytes
        return Chunk(series, time, fields, size_bytes)


def _from_array(kind: pa.DataType, values: array[Any], count: int) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])
