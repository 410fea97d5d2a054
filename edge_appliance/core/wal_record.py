"""WAL records: what a group, and the begin and the end of a persist, say. Pure bytes in, values out.

The frames around these payloads, and the file around the frames, are drawn in `wal_frame`. A payload reaches a decoder
only after its checksum was compared; the decoders still raise nothing but FormatError on any bytes. Numbers are
little-endian; `text` is a u32 length and UTF-8.

    GROUP    u16 parser version, u16 0, u32 D definitions, u32 C contexts, u32 N entries, u32 K keys, u32 L lines
             D x definition   text database, text table, u32 columns, columns x u8 kind, columns x text name
             C x context      text database, u8 precision, u8 source, u32 tags, tags x (text key, text value)
             N x i64          arrival time in ns
             N x u8           flags: 1 the clock was unset, 2 has a delivery key
             N x u32          context, by its place above
             N x u32          CRC-32 of the rows' times
             N x u32          number of lines, each of which is one row
             K x u16          packet ids of the entries that have a key, in their order
             K x 16 bytes     digests of the same
             L x u32          length of each line
             the lines, joined with nothing between them
    PERSIST_BEGIN    text database, text table, i64 time in ns: the rows at or before it are set aside
    PERSIST_END      u64 sequence of its PERSIST_BEGIN

Columns of numbers instead of one struct an entry: a thousand entries are packed by a handful of calls.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from typing import Final, NamedTuple

from edge_appliance.core.delivery import (
    DIGEST_BYTES,
    ColumnDefinition,
    DeliveryKey,
    Kind,
    Precision,
    Source,
    TableDefinition,
    Tags,
)
from edge_appliance.errors import FormatError

PRECISIONS: Final[tuple[Precision, ...]] = ("auto", "ns", "us", "ms", "s")
SOURCES: Final[tuple[Source, ...]] = ("mqtt", "http")
"""Stored by their place in these tuples: append, never reorder."""

_GROUP: Final = struct.Struct("<HHIIIII")
_LENGTH: Final = struct.Struct("<I")
_CONTEXT: Final = struct.Struct("<BBI")
_TIME: Final = struct.Struct("<q")
_SEQUENCE: Final = struct.Struct("<Q")
_CLOCK_UNSET: Final = 1
_HAS_KEY: Final = 2
_KEY_OF_FLAGS: Final = bytes(flags >> 1 & 1 for flags in range(256))
"""For each value of the flags, whether the entry has a key."""


LoggedContext = tuple[str, Precision, Tags, Source]
"""Database, precision, route tags and source: what many entries of a record share."""


@dataclass(slots=True)
class LoggedEntry:
    """One delivery as it is logged: the settings in effect and its accepted lines, each as its cleaned span."""

    arrival_ns: int
    clock_unset: bool
    database: str
    precision: Precision
    tags: Tags
    source: Source
    key: DeliveryKey | None
    times_crc: int
    """CRC-32 of the rows' times: shows at replay whether a later parser reads the same rows."""
    spans: Sequence[bytes]


@dataclass(slots=True)
class GroupRecord:
    """Everything one fdatasync makes durable: new definitions as decided, then the deliveries in order of arrival."""

    parser_version: int
    definitions: Sequence[TableDefinition]
    entries: Sequence[LoggedEntry]

    @property
    def rows(self) -> int:
        """Number of rows: each line is one."""
        return sum(len(entry.spans) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class LoggedGroup:
    """A GROUP payload as it was read: columns of numbers, as drawn above; consistent with each other."""

    parser_version: int
    definitions: Sequence[TableDefinition]
    contexts: Sequence[LoggedContext]
    arrivals: array[int]
    flags: bytes
    places: array[int]
    times_crcs: array[int]
    counts: array[int]
    packet_ids: array[int]
    digests: bytes
    lengths: array[int]
    text: bytes

    @property
    def rows(self) -> int:
        """Number of rows: each line is one."""
        return len(self.lengths)

    def keys(self) -> list[DeliveryKey | None]:
        """The delivery keys of the entries, in their order."""
        digests, size = self.digests, DIGEST_BYTES
        known = iter(
            [DeliveryKey(id_, digests[size * n : size * (n + 1)]) for n, id_ in enumerate(self.packet_ids)],
        )
        return [next(known) if flags & _HAS_KEY else None for flags in self.flags]

    def entries(self) -> list[LoggedEntry]:
        """The deliveries, one object each."""
        lines = iter([self.text[start:end] for start, end in pairwise(accumulate(self.lengths, initial=0))])
        columns = zip(self.arrivals, self.flags, self.places, self.times_crcs, self.counts, self.keys(), strict=True)
        return [
            LoggedEntry(
                arrival_ns,
                bool(flags & _CLOCK_UNSET),
                database,
                precision,
                tags,
                source,
                key,
                times_crc,
                list(islice(lines, count)),
            )
            for arrival_ns, flags, place, times_crc, count, key in columns
            for database, precision, tags, source in (self.contexts[place],)
        ]


class PersistBegin(NamedTuple):
    """A set-aside: of this table, the rows before this record whose time is at or before `time_ns`."""

    database: str
    table: str
    time_ns: int


def encode_group(record: GroupRecord) -> bytes:
    """The payload of a GROUP record, not compressed."""
    entries = record.entries
    contexts: dict[LoggedContext, int] = {}
    places = [contexts.setdefault((e.database, e.precision, e.tags, e.source), len(contexts)) for e in entries]
    keys = [entry.key for entry in entries if entry.key is not None]
    digests = b"".join([key.digest for key in keys])
    if len(digests) != DIGEST_BYTES * len(keys):
        raise ValueError(f"a delivery key's digest is not {DIGEST_BYTES} bytes long")
    spans = list(chain.from_iterable([entry.spans for entry in entries]))
    count, lines = len(entries), len(spans)
    return b"".join(
        (
            _GROUP.pack(record.parser_version, 0, len(record.definitions), len(contexts), count, len(keys), lines),
            *map(encode_definition, record.definitions),
            *map(encode_context, contexts),
            struct.pack(f"<{count}q", *[entry.arrival_ns for entry in entries]),
            bytes([entry.clock_unset | (entry.key is not None) << 1 for entry in entries]),
            struct.pack(f"<{count}I", *places),
            struct.pack(f"<{count}I", *[entry.times_crc for entry in entries]),
            struct.pack(f"<{count}I", *[len(entry.spans) for entry in entries]),
            struct.pack(f"<{len(keys)}H", *[key.packet_id for key in keys]),
            digests,
            struct.pack(f"<{lines}I", *map(len, spans)),
            *spans,
        )
    )


def group_rows(payload: bytes) -> int:
    """Number of rows that a GROUP payload states, read without decoding it; 0 when it is too short for one."""
    return int(_GROUP.unpack_from(payload)[-1]) if len(payload) >= _GROUP.size else 0


def decode_group(payload: bytes) -> LoggedGroup:
    """Read a GROUP payload; raises FormatError."""
    cursor = _Cursor("group record", payload)
    parser_version, _, definition_count, context_count, count, key_count, line_count = cursor.unpack(_GROUP)
    definitions = [_decode_definition(cursor) for _ in range(definition_count)]
    contexts = [_decode_context(cursor) for _ in range(context_count)]
    group = LoggedGroup(
        parser_version,
        definitions,
        contexts,
        arrivals=cursor.numbers("q", 8, count),
        flags=cursor.take(count),
        places=cursor.numbers("I", 4, count),
        times_crcs=cursor.numbers("I", 4, count),
        counts=cursor.numbers("I", 4, count),
        packet_ids=cursor.numbers("H", 2, key_count),
        digests=cursor.take(DIGEST_BYTES * key_count),
        lengths=cursor.numbers("I", 4, line_count),
        text=cursor.rest(),
    )
    if sum(group.counts) != line_count:
        raise cursor.fault("line counts of the entries do not add up")
    if sum(group.lengths) != len(group.text):
        raise cursor.fault("line lengths do not add up")
    if count and max(group.places) >= context_count:
        raise cursor.fault("an entry names a context that is not there")
    if group.flags.translate(_KEY_OF_FLAGS).count(1) != key_count:
        raise cursor.fault("delivery keys do not match the entries")
    return group


def encode_begin(database: str, table: str, time_ns: int) -> bytes:
    """The payload of a PERSIST_BEGIN record."""
    return _text(database) + _text(table) + _TIME.pack(time_ns)


def decode_begin(payload: bytes) -> PersistBegin:
    """Read a PERSIST_BEGIN payload; raises FormatError."""
    cursor = _Cursor("begin record", payload)
    database, table = cursor.text(), cursor.text()
    (time_ns,) = cursor.unpack(_TIME)
    cursor.finish()
    return PersistBegin(database, table, time_ns)


def encode_end(begin_sequence: int) -> bytes:
    """The payload of a PERSIST_END record."""
    return _SEQUENCE.pack(begin_sequence)


def decode_end(payload: bytes) -> int:
    """Read a PERSIST_END payload: the sequence of its PERSIST_BEGIN; raises FormatError."""
    cursor = _Cursor("end record", payload)
    (begin_sequence,) = cursor.unpack(_SEQUENCE)
    cursor.finish()
    return int(begin_sequence)


class _Cursor:
    """Takes values from the front of a payload and checks every length against what is left, before it allocates."""

    def __init__(self, what: str, payload: bytes) -> None:
        self._what = what
        self._payload = payload
        self._offset = 0

    def fault(self, reason: str) -> FormatError:
        return FormatError(self._what, self._offset, reason)

    def take(self, length: int) -> bytes:
        start = self._offset
        if length > len(self._payload) - start:
            raise self.fault("ends too early")
        self._offset = start + length
        return self._payload[start : self._offset]

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def numbers(self, code: str, width: int, count: int) -> array[int]:
        values = array(code, self.take(width * count))
        if sys.byteorder == "big":
            values.byteswap()
        return values

    def text(self) -> str:
        (length,) = self.unpack(_LENGTH)
        raw = self.take(length)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.fault("text is not UTF-8") from error

    def rest(self) -> bytes:
        return self.take(len(self._payload) - self._offset)

    def finish(self) -> None:
        if self._offset != len(self._payload):
            raise self.fault("bytes are left over")


def _text(value: str) -> bytes:
    raw = value.encode()
    return _LENGTH.pack(len(raw)) + raw


def encode_definition(definition: TableDefinition) -> bytes:
    """A definition as it stands in a GROUP payload."""
    columns = definition.columns
    return b"".join(
        (
            _text(definition.database),
            _text(definition.table),
            _LENGTH.pack(len(columns)),
            bytes([column.kind for column in columns]),
            *[_text(column.name) for column in columns],
        )
    )


def _decode_definition(cursor: _Cursor) -> TableDefinition:
    database, table = cursor.text(), cursor.text()
    (count,) = cursor.unpack(_LENGTH)
    kinds = cursor.take(count)
    try:
        columns = tuple([ColumnDefinition(cursor.text(), Kind(kind)) for kind in kinds])
    except ValueError as error:
        raise cursor.fault("unknown kind of column") from error
    return TableDefinition(database, table, columns)


def encode_context(context: LoggedContext) -> bytes:
    """A context as it stands in a GROUP payload."""
    database, precision, tags, source = context
    return b"".join(
        (
            _text(database),
            _CONTEXT.pack(PRECISIONS.index(precision), SOURCES.index(source), len(tags)),
            *map(_text, chain.from_iterable(tags)),
        )
    )


def _decode_context(cursor: _Cursor) -> LoggedContext:
    database = cursor.text()
    precision, source, tag_count = cursor.unpack(_CONTEXT)
    if precision >= len(PRECISIONS) or source >= len(SOURCES):
        raise cursor.fault("unknown precision or source")
    tags = tuple([(cursor.text(), cursor.text()) for _ in range(tag_count)])
    return database, PRECISIONS[precision], tags, SOURCES[source]
