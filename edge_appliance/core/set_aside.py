"""A set-aside: rows of one table of a segment, up to a time, that are persisted before the rest of their segment.

It is a description. Its chunks stay where they are, and queries go on reading them, until the rows up to the time are
in parts; then one change puts the later rows of these chunks in their place. The time is never between equal ones: of
two writes of a key the older one would come back, since what is set aside ranks below what stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from edge_appliance.core.columns import SPARSE_BELOW, Chunk, RowSet, SparseColumn
from edge_appliance.core.delivery import DeliveryKey, TableDefinition, TableKey
from edge_appliance.core.interval import MAX_NS, MIN_NS, Interval
from edge_appliance.core.pressure import SET_ASIDE_SHARE
from edge_appliance.core.segment import FREEZE_BYTES, FREEZE_ROWS, Segment, TableBuffer

_SAMPLE_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class SetAside:
    """Rows of `rows` at or before `time_ns`, with the rank of their PERSIST_BEGIN."""

    segment: Segment
    buffer: TableBuffer
    rows: RowSet
    """All rows that its chunks hold, also the later ones."""
    time_ns: int
    freeable_bytes: int
    """About what memory it will give back."""

    @property
    def segment_id(self) -> int:
        """Whose log file holds the rows."""
        return self.segment.id

    @property
    def rank(self) -> int:
        """Sequence of its PERSIST_BEGIN."""
        return self.rows.rank

    @property
    def key(self) -> TableKey:
        """Its table."""
        return self.rows.database, self.rows.table

    def row_sets(self) -> list[RowSet]:
        """The rows, of which those at or before `time_ns` count."""
        return [self.rows]

    def definitions(self) -> list[TableDefinition]:
        """Columns of its table."""
        return [TableDefinition(self.rows.database, self.rows.table, self.rows.columns)]

    def delivery_keys(self) -> list[DeliveryKey]:
        """None: the log file stays, and keeps them."""
        return []

    def rest(self) -> tuple[Chunk, ...]:
        """The rows that stay in memory, in order of arrival."""
        return without_times(self.rows.chunks, [Interval(MIN_NS, self.time_ns)])


def set_aside(segment: Segment, buffer: TableBuffer, sequence: int, time_ns: int, freeable_bytes: int) -> SetAside:
    """Describe the rows that a PERSIST_BEGIN of `sequence` takes; the tail must be frozen and there must be rows."""
    rows = buffer.row_set(sequence)
    if rows is None or buffer.mark:
        raise ValueError("nothing frozen to set aside")
    return SetAside(segment, buffer, rows, time_ns, freeable_bytes)


class Split(NamedTuple):
    """Where a table is split, and the share of its rows at or before that."""

    time_ns: int
    share: float


def split_time(chunks: Sequence[Chunk], share: float = SET_ASIDE_SHARE) -> Split:
    """A time that about `share` of the rows are at or before, judged by a sample; all of them when times are equal."""
    total = sum(chunk.rows for chunk in chunks)
    step = max(1, total // _SAMPLE_ROWS)
    pieces = [chunk.time.take(pa.array(range(0, chunk.rows, step), pa.int64())) for chunk in chunks]
    times = pa.concat_arrays(pieces)
    times = times.take(pc.array_sort_indices(times))
    count = len(times)
    split_ns = int(times[max(0, int(count * share) - 1)].as_py())
    taken = pc.sum(pc.less_equal(times, split_ns)).as_py() or 0
    return Split(split_ns, taken / count)


# Rows without some times ---------------------------------------------------------------------------------------


def without_times(chunks: Sequence[Chunk], drop: Sequence[Interval]) -> tuple[Chunk, ...]:
    """The rows whose times are in none of `drop`, in their order; what is left of several chunks is put together.

    A chunk that loses nothing is kept as it is. Works on one chunk at a time, so that memory follows what is kept.
    """
    kept: list[Chunk] = []
    pieces: list[_Piece] = []
    for chunk in chunks:
        positions = _kept_rows(chunk.time, drop)
        if positions is None:
            kept += _joined(pieces)
            pieces = []
            kept.append(chunk)
        elif len(positions):
            pieces.append(_piece(chunk, positions))
            if sum(len(p.time) for p in pieces) >= FREEZE_ROWS or sum(p.size_bytes for p in pieces) >= FREEZE_BYTES:
                kept += _joined(pieces)
                pieces = []
    kept += _joined(pieces)
    return tuple(kept)


def _kept_rows(time: pa.Int64Array, drop: Sequence[Interval]) -> pa.UInt64Array | None:
    """Positions of the rows outside of `drop`; None: all of them."""
    span = pc.min_max(time)
    lo, hi = span["min"].as_py(), span["max"].as_py()
    dropped = None
    for interval in drop:
        if not interval.overlaps(lo, hi):
            continue
        inside = pc.and_(pc.greater_equal(time, interval.lo), pc.less_equal(time, interval.hi))
        dropped = inside if dropped is None else pc.or_(dropped, inside)
    if dropped is None or not pc.any(dropped).as_py():
        return None
    return pc.indices_nonzero(pc.invert(dropped))


class _Piece(NamedTuple):
    """Rows of one chunk: each field as the rows that have a value, counted from the first of the piece, and these."""

    series: pa.UInt32Array
    time: pa.Int64Array
    fields: dict[str, tuple[pa.UInt32Array, pa.Array]]

    @property
    def size_bytes(self) -> int:
        return sum(int(rows.nbytes + values.nbytes) for rows, values in self.fields.values())


def _piece(chunk: Chunk, positions: pa.UInt64Array) -> _Piece:
    fields = {}
    for name, column in chunk.fields.items():
        rows, values = _pairs(column, chunk.rows, positions)
        if len(rows):
            fields[name] = rows, values
    return _Piece(chunk.series.take(positions), chunk.time.take(positions), fields)


def _pairs(column: pa.Array | SparseColumn, length: int, positions: pa.UInt64Array) -> tuple[pa.UInt32Array, pa.Array]:
    """Values of the rows at `positions` that have one, each with its place among them."""
    if not isinstance(column, SparseColumn):
        values = column.take(positions)
        rows = pc.indices_nonzero(pc.is_valid(values)).cast(pa.uint32())
        return rows, values.drop_null()
    # Where each row of the chunk goes; null for those that go away.
    places = pc.scatter(pa.arange(0, len(positions)), positions.cast(pa.int64()), max_index=length - 1)
    rows = places.take(column.rows)
    is_kept = pc.is_valid(rows)
    return rows.filter(is_kept).cast(pa.uint32()), column.values.filter(is_kept)


def _joined(pieces: Sequence[_Piece]) -> Iterator[Chunk]:
    """One chunk of all pieces, if there are any."""
    if not pieces:
        return
    series = pa.concat_arrays([piece.series for piece in pieces])
    time = pa.concat_arrays([piece.time for piece in pieces])
    fields: dict[str, pa.Array | SparseColumn] = {}
    size_bytes = series.nbytes + time.nbytes
    for name in dict.fromkeys(name for piece in pieces for name in piece.fields):
        rows, values, first = [], [], 0
        for piece in pieces:
            if name in piece.fields:
                own_rows, own_values = piece.fields[name]
                rows.append(pc.add(own_rows, pa.scalar(first, pa.uint32())))
                values.append(own_values)
            first += len(piece.time)
        column = _column(pa.concat_arrays(rows), pa.concat_arrays(values), len(time))
        fields[name] = column
        size_bytes += column.rows.nbytes + column.values.nbytes if isinstance(column, SparseColumn) else column.nbytes
    yield Chunk(series, time, fields, size_bytes)


def _column(rows: pa.UInt32Array, values: pa.Array, length: int) -> pa.Array | SparseColumn:
    """A column in the form in which a chunk holds it."""
    if len(rows) == length:
        return values
    sparse = SparseColumn(rows, values)
    return sparse if len(rows) < length * SPARSE_BELOW else sparse.dense(length)


def up_to(time_ns: int) -> list[Interval]:
    """All times after `time_ns`: what to drop so that the rows of a set-aside are left."""
    return [Interval(time_ns + 1, MAX_NS)] if time_ns < MAX_NS else []
