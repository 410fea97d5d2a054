"""One segment: the table buffers that belong to one WAL file, with the mark up to which rows are visible.

The ingest thread appends beyond the mark; `publish` moves the mark, `rollback` drops what lies beyond it.
Readers see rows, series and columns below the mark only. `publish`, `seal` and `row_set` are called
under the buffer's lock; everything else is the ingest thread's alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from edge_appliance.core.columns import OPEN_RANK, Chunk, RowSet, SeriesTags, SparseColumn, Tail
from edge_appliance.core.delivery import DeliveryKey, TableDefinition, Tags
from edge_appliance.core.interval import MAX_NS, MIN_NS
from edge_appliance.core.line_protocol import Context, Head
from edge_appliance.core.parts import DAY_NS
from edge_appliance.core.redelivery import MAX_KEYS, RecentDeliveries
from edge_appliance.core.schema import TableSchema

FREEZE_ROWS: Final = 4_096
FREEZE_ROWS_PER_COLUMN: Final = 32
"""A tail of many columns waits for more rows: each array of a chunk costs something, however few values it has."""
FREEZE_BYTES: Final = 8 * 2**20
SERIES_OVERHEAD_BYTES: Final = 300
TAG_OVERHEAD_BYTES: Final = 110
"""What a series, and each of its tags, cost beside their text: index entries, tuples and head (CPython 3.11)."""
ALIAS_OVERHEAD_BYTES: Final = 250
"""The same of a further spelling of a series."""
ARRAY_OVERHEAD_BYTES: Final = 600
"""What an Arrow array costs beside its values; measured, as the next one."""
NUMBERS_SLACK: Final = 0.3
TEXT_SLACK: Final = 0.06
"""Share by which the buffers of grown arrays are larger than their values, in chunks without and with text."""
MAX_ORIGINS: Final = 10_000
MAX_ORIGIN_BYTES: Final = 1 << 24
"""Origins that are remembered, and the length of their labels: a topic may have 64 KiB."""
ROW_BYTES: Final = 12
VALUE_BYTES: Final = 12
"""Tail cost of a row (ref and time) and of one value (row number and at most 8 bytes)."""


@dataclass(frozen=True, slots=True, eq=False)
class SeriesHead(Head):
    """The head of a known series, as the parser gets it back: where its rows go."""

    buffer: TableBuffer
    ref: int


class Heads(Protocol):
    """A mapping from the raw bytes of a head to the head; a plain dict is one."""

    def get(self, key: bytes, /) -> Head | None:
        """The head of these bytes, if it is known."""

    def __setitem__(self, key: bytes, value: Head, /) -> None: ...

    def __delitem__(self, key: bytes, /) -> None: ...

    def __len__(self) -> int: ...

    def clear(self) -> None:
        """Forget all."""


class TailWriter(Protocol):
    """Shortcuts into the arrays of a tail."""

    def forget(self) -> None:
        """The tail is another one, or shorter: look at it anew."""

    def publish(self) -> int:
        """Do what `TableBuffer.publish` does."""


class TableBuffer:
    """Rows of one table in one segment: frozen chunks, then the tail."""

    __slots__ = (
        "chunks",
        "days",
        "frozen_bytes",
        "lease",
        "mark",
        "max_time_ns",
        "min_time_ns",
        "refs",
        "schema",
        "series",
        "series_mark",
        "tag_names",
        "tail",
        "tail_bytes",
        "tail_bytes_mark",
        "writer",
    )

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.chunks: tuple[Chunk, ...] = ()
        self.tail = Tail()
        self.mark = 0
        """Rows of the tail that are visible."""
        self.series: list[Tags] = []
        self.refs: dict[Tags, int] = {}
        self.series_mark = 0
        self.tag_names: dict[frozenset[str], frozenset[str]] = {}
        """The sets of tag keys that occur, so that heads can share them."""
        self.tail_bytes = 0
        self.tail_bytes_mark = 0
        self.frozen_bytes = 0
        self.min_time_ns = MAX_NS
        self.max_time_ns = MIN_NS
        self.days: set[int] = set()
        self.writer: TailWriter | None = None
        """What an appender keeps in order to write to the tail."""
        self.lease: object = None
        """What readers of its chunks hold, for the accounts of memory; None while there was none."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the visible rows and values."""
        return self.frozen_bytes + self.tail_bytes_mark

    @property
    def is_tail_large(self) -> bool:
        """Whether it is time to make a chunk of the tail."""
        rows = max(FREEZE_ROWS, FREEZE_ROWS_PER_COLUMN * len(self.tail.columns))
        return len(self.tail.time) >= rows or self.tail_bytes >= FREEZE_BYTES

    def truncate(self, rows: int, tail_bytes: int) -> None:
        """Drop the rows of the tail at and beyond `rows`, which leaves `tail_bytes`."""
        self.tail.truncate(rows)
        self.tail_bytes = tail_bytes
        if self.writer is not None:
            self.writer.forget()

    def publish(self) -> int:
        """Move the mark over all rows; returns by how many bytes what is visible has grown."""
        times = self.tail.time[self.mark :]
        if times:
            lowest, highest = min(times), max(times)
            self.min_time_ns = min(self.min_time_ns, lowest)
            self.max_time_ns = max(self.max_time_ns, highest)
            if lowest // DAY_NS == highest // DAY_NS:
                self.days.add(lowest // DAY_NS)
            else:
                self.days.update(time_ns // DAY_NS for time_ns in times)
        self.mark = self.tail.rows
        self.series_mark = len(self.series)
        grown_bytes = self.tail_bytes - self.tail_bytes_mark
        self.tail_bytes_mark = self.tail_bytes
        return grown_bytes

    def take_chunk(self, chunk: Chunk) -> None:
        """Put the chunk that the tail was frozen to behind the others, and begin a new tail."""
        self.chunks = (*self.chunks, chunk)
        self.frozen_bytes += chunk_bytes(chunk)
        self.tail, self.mark, self.tail_bytes, self.tail_bytes_mark = Tail(), 0, 0, 0
        if self.writer is not None:
            self.writer.forget()

    def row_set(self, rank: int) -> RowSet | None:
        """Picture of the visible rows; None when there are none."""
        chunks = self.chunks
        if self.mark:
            chunks = (*chunks, self.tail.copy(self.mark).freeze())
        if not chunks:
            return None
        return RowSet(
            self.schema.database,
            self.schema.name,
            rank,
            self.schema.columns,
            SeriesTags(self.series, self.series_mark),
            chunks,
            self.min_time_ns,
            self.max_time_ns,
            self.size_bytes,
        )


class Segment:
    """What arrives between two cuts. `id` is that of its WAL file; `first_sequence` that of its first group."""

    def __init__(self, segment_id: int, first_sequence: int, opened_s: float) -> None:
        self.id = segment_id
        self.first_sequence = first_sequence
        self.opened_s = opened_s
        """Monotonic clock, for the cut by age."""
        self.rank = OPEN_RANK
        self.tables: dict[tuple[str, str], TableBuffer] = {}
        self.heads: dict[tuple[str, Tags], Heads] = {}
        """Known heads by raw bytes, for each database and set of route tags."""
        self.contexts: dict[Any, tuple[Context, Heads]] = {}
        """Parser contexts by origin with the heads they know, made by the appender."""
        self.readers: dict[Any, Any] = {}
        """The same of a compiled appender."""
        self.origin_bytes = 0
        """Length of the labels in both, and of what a log says of them."""
        self.touched: dict[TableBuffer, None] = {}
        """Buffers that got rows beyond their mark, in order."""
        self._keys: list[DeliveryKey | None] = []
        """Of its deliveries: whoever drops its log file must keep the last ones."""
        self._has_published = False
        self.series_bytes = 0
        self.series_count = 0
        """Of all tables, those beyond the mark included."""
        self._size_bytes = 0
        self._undo: list[tuple[Any, Any, list[Tags] | None, int, int]] = []
        """What was added in mappings, and lists of series, since the mark; each noted before it is added, with the
        bytes and number of series before it."""

    @property
    def is_empty(self) -> bool:
        """Whether no row was ever published. One whose rows were all set aside still owns its log file."""
        return not self._has_published

    @property
    def size_bytes(self) -> int:
        """Bytes of rows, values, strings and series, those beyond the mark not included."""
        return self._size_bytes + self.series_bytes

    @property
    def pairs(self) -> int:
        """Number of (table, date) pairs, which is the number of files it will become."""
        return sum(len(buffer.days) for buffer in self.tables.values())

    def table(self, schema: TableSchema) -> TableBuffer:
        """Find the buffer of a table, or add it."""
        key = (schema.database, schema.name)
        buffer = self.tables.get(key)
        if buffer is None:
            self._note(self.tables, key)
            buffer = self.tables[key] = TableBuffer(schema)
        return buffer

    def add_series(self, buffer: TableBuffer, tags: Tags) -> int:
        """Find the series ref of `tags`, or add one."""
        ref = buffer.refs.get(tags)
        if ref is None:
            ref = len(buffer.series)
            size_bytes = SERIES_OVERHEAD_BYTES + sum(TAG_OVERHEAD_BYTES + len(value) for _, value in tags)
            self._note(buffer.refs, tags, buffer.series)
            self.series_bytes += size_bytes
            self.series_count += 1
            buffer.series.append(tags)
            buffer.refs[tags] = ref
        return ref

    def add_head(self, heads: Heads, raw_head: bytes, head: SeriesHead, *, is_alias: bool) -> None:
        """Remember the bytes that spell a series, so that the next line needs no look at its tags."""
        size_bytes = len(raw_head) + (ALIAS_OVERHEAD_BYTES if is_alias else 0)
        self._note(heads, raw_head)
        self.series_bytes += size_bytes
        heads[raw_head] = head

    def _note(self, mapping: Any, key: Any, series: list[Tags] | None = None) -> None:
        self._undo.append((mapping, key, series, self.series_bytes, self.series_count))

    @property
    def savepoint(self) -> int:
        """Where `rollback_names` can return to."""
        return len(self._undo)

    def rollback_names(self, savepoint: int) -> None:
        """Take back tables, series and heads added since `savepoint`. Rows that use them must be gone."""
        while len(self._undo) > savepoint:
            mapping, key, series, self.series_bytes, self.series_count = self._undo.pop()
            # When memory ended between noting and adding, it is not there.
            if mapping.get(key) is not None:
                del mapping[key]
            if series and series[-1] is key:
                series.pop()

    def rollback(self) -> None:
        """Drop everything beyond the mark."""
        for buffer in self.touched:
            buffer.truncate(buffer.mark, buffer.tail_bytes_mark)
        self.touched.clear()
        self.rollback_names(0)

    def freeze_large_tails(self) -> list[tuple[TableBuffer, Chunk]]:
        """Chunks for the tails that have grown enough; `publish` puts them in place."""
        return [(buffer, buffer.tail.freeze()) for buffer in self.touched if buffer.is_tail_large]

    def publish(self, frozen: Iterable[tuple[TableBuffer, Chunk]]) -> None:
        """Move the mark over all rows; tails in `frozen` are replaced by their chunks."""
        for buffer in self.touched:
            writer = buffer.writer
            self._size_bytes += buffer.publish() if writer is None else writer.publish()
            self._has_published = True
        for buffer, chunk in frozen:
            self._put_frozen(buffer, chunk)
        self.touched.clear()
        self._undo.clear()

    def freeze(self, buffer: TableBuffer) -> None:
        """Make a chunk of all rows of the tail, which must be visible."""
        if buffer.mark:
            self._put_frozen(buffer, buffer.tail.freeze())

    def _put_frozen(self, buffer: TableBuffer, chunk: Chunk) -> None:
        self._size_bytes += chunk_bytes(chunk) - buffer.tail_bytes
        buffer.take_chunk(chunk)

    def replace_chunks(self, buffer: TableBuffer, count: int, rest: Sequence[Chunk]) -> int:
        """Put what is left of the first `count` chunks in their place; returns the bytes that this frees."""
        freed = sum(map(chunk_bytes, buffer.chunks[:count])) - sum(map(chunk_bytes, rest))
        buffer.chunks = (*rest, *buffer.chunks[count:])
        buffer.frozen_bytes -= freed
        self._size_bytes -= freed
        return freed

    def seal(self, rank: int) -> None:
        """End the segment: its rows have `rank` from now on."""
        self.rank = rank

    def keep_context(self, key: object, context: Context, heads: Heads) -> tuple[Context, Heads]:
        """Remember the context of an origin, with the heads it knows."""
        if len(self.contexts) >= MAX_ORIGINS:
            self.contexts.clear()
        self.contexts[key] = (context, heads)
        return context, heads

    def limit_origins(self) -> None:
        """When there are many, forget what is known about origins, but for heads that were found; between groups.

        Origins that never bring a good line would fill the memory: nothing else counts them.
        """
        if max(len(self.contexts), len(self.readers)) < MAX_ORIGINS and self.origin_bytes < MAX_ORIGIN_BYTES:
            return
        self.contexts.clear()
        self.readers.clear()
        self.origin_bytes = 0
        for key in [key for key, heads in self.heads.items() if not len(heads)]:
            del self.heads[key]

    def drop_lookups(self) -> None:
        """Let go of what only appending needs; it is a large part of a segment with many series.

        The tables of heads are emptied, not just left: parser contexts and their readers know each other, so they
        live on until the collector comes, and rows must not live on with them.
        """
        for heads in self.heads.values():
            heads.clear()
        self.heads.clear()
        self.contexts.clear()
        self.readers.clear()
        for buffer in self.tables.values():
            buffer.refs = {}
            buffer.tag_names = {}
            buffer.writer = None

    def row_sets(self) -> list[RowSet]:
        """All tables with visible rows."""
        sets = (buffer.row_set(self.rank) for buffer in self.tables.values())
        return [row_set for row_set in sets if row_set is not None]

    def delivery_keys(self) -> list[DeliveryKey]:
        """Keys of the last QoS 1 deliveries that brought its rows, the latest at the end."""
        return RecentDeliveries(self._keys).latest()

    def keep_keys(self, keys: Sequence[DeliveryKey | None]) -> None:
        """Add the keys of a published group's deliveries."""
        self._keys.extend(keys)
        if len(self._keys) > 4 * MAX_KEYS:
            del self._keys[: -2 * MAX_KEYS]

    def definitions(self) -> list[TableDefinition]:
        """Visible definitions of all tables that have rows here."""
        schemas = [buffer.schema for buffer in self.tables.values() if buffer.schema.columns]
        return [TableDefinition(schema.database, schema.name, schema.columns) for schema in schemas]


def chunk_bytes(chunk: Chunk) -> int:
    """Memory of a chunk: its values and what holds them."""
    columns = chunk.fields.values()
    arrays = 2 + sum(2 if isinstance(column, SparseColumn) else 1 for column in columns)
    has_text = any(isinstance(column, pa.StringArray) for column in columns)
    slack = TEXT_SLACK if has_text else NUMBERS_SLACK
    return chunk.size_bytes + int(chunk.size_bytes * slack) + ARRAY_OVERHEAD_BYTES * arrays
