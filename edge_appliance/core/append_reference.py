"""Parse and append in Python: the specification that the compiled kernel equals, and what runs without it.

One call for a group of deliveries, one for a logged group at replay. Each good line goes to the tail of its table
beyond the mark, each bad one to the result with its reason; a bad line never costs a good one. Replay decides
nothing: it applies the definitions of the log and appends what was accepted.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from edge_appliance.core.appended import GroupAppend, ReplayAppend
from edge_appliance.core.columns import STRING_OVERHEAD_BYTES, TailColumn
from edge_appliance.core.delivery import (
    Delivery,
    DeliveryKey,
    DeliveryResult,
    Kind,
    LineError,
    Reason,
    TableDefinition,
    Tags,
    result_of,
)
from edge_appliance.core.line_dates import TOO_MANY_DATES, lines_beyond_dates
from edge_appliance.core.line_names import Limits
from edge_appliance.core.line_ordinary import Shape, Shapes
from edge_appliance.core.line_protocol import (
    PARSER_VERSION,
    Context,
    Line,
    locate_field,
    parse,
    parse_alike,
    parse_spans,
)
from edge_appliance.core.line_split import sample
from edge_appliance.core.parts import DAY_NS
from edge_appliance.core.schema import Schema, check_kind
from edge_appliance.core.segment import ROW_BYTES, VALUE_BYTES, Heads, Segment, SeriesHead, TableBuffer
from edge_appliance.core.undo import Undo
from edge_appliance.core.wal_record import GroupRecord, LoggedEntry, LoggedGroup, encode_group

MAX_TARGETS: Final = 64
"""Shapes of lines for which a tail remembers the columns; lines of further ones are judged each time."""
MAX_HEADS_PER_SERIES: Final = 4
"""Spellings of a series that are remembered on average; further ones are parsed each time."""

IsCovered = Callable[[str, str, int], bool]
"""Whether rows of (database, table, UTC day since 1970) are already in a listed part."""


class Appender:
    """Appends to the open segment under the definitions of one schema."""

    def __init__(self, schema: Schema, limits: Limits | None = None) -> None:
        self.schema = schema
        self.limits = limits or Limits()
        self._shapes = Shapes()
        self.find_definitions: Callable[[], None] = lambda: None
        """For replay: looks ahead for the definition of a column that the log uses and damage has hidden."""
        self._lost: list[str] | None = None
        """While a logged group is appended: columns without a definition, in words."""

    def append_group(
        self, segment: Segment, deliveries: Sequence[Delivery], keys: Sequence[DeliveryKey | None]
    ) -> GroupAppend:
        """Append all good lines of `deliveries` beyond the mark; `keys` are their delivery keys, one each."""
        group = GroupAppend()
        entries: list[LoggedEntry] = []
        segment.limit_origins()
        savepoint = self.schema.savepoint
        known = len(segment.tables)
        for delivery, key in zip(deliveries, keys, strict=True):
            if delivery.reject is not None:
                group.results.append(DeliveryResult(0, (delivery.reject,)))
            elif not self._append_alike(segment, group, entries, delivery, key):
                self._append_delivery(segment, group, entries, delivery, key)
        if entries:
            definitions = self._definitions(segment, known, savepoint)
            group.payload = encode_group(GroupRecord(PARSER_VERSION, definitions, entries))
        return group

    def _definitions(self, segment: Segment, known: int, savepoint: int) -> list[TableDefinition]:
        """Whole definitions of tables at their first use in this file, else the columns this group added.

        `known` is how many tables the segment had before.
        """
        if len(segment.tables) == known and self.schema.savepoint == savepoint:
            return []
        first_used = [buffer.schema.definition() for buffer in islice(segment.tables.values(), known, None)]
        before = set(islice(segment.tables, known))
        return first_used + [d for d in self.schema.added_since(savepoint) if (d.database, d.table) in before]

    def _context(self, segment: Segment, delivery: Delivery) -> tuple[Context, Heads]:
        """The parser's context for a delivery, and the heads it knows."""
        origin = delivery.origin
        found = segment.contexts.get(origin)
        if found is None:
            heads = self._heads(segment, origin.database, origin.tags)
            context = Context(
                origin.precision, 0, origin.tags, heads, self.limits, origin.min_time_ns, shapes=self._shapes
            )
            found = segment.keep_context(origin, context, heads)
            segment.origin_bytes += len(origin.label_prefix)
        context = found[0]
        context.arrival_ns = delivery.arrival_ns
        if origin.max_future_ns is not None:
            context.max_time_ns = None if delivery.clock_unset else delivery.arrival_ns + origin.max_future_ns
        return found

    def _heads(self, segment: Segment, database: str, route_tags: Tags) -> Heads:
        """The heads that are known in a database under these route tags."""
        heads = segment.heads.get((database, route_tags))
        if heads is None:
            heads = segment.heads[database, route_tags] = self._new_heads()
        return heads

    def _new_heads(self) -> Heads:
        return {}

    def _append_alike(
        self,
        segment: Segment,
        group: GroupAppend,
        entries: list[LoggedEntry],
        delivery: Delivery,
        key: DeliveryKey | None,
    ) -> bool:
        """Append a delivery that is one line of a known series with known columns; False when it is another one."""
        row = parse_alike(delivery.payload, self._context(segment, delivery)[0])
        if row is None:
            return False
        head, shape, values, time_ns = row
        if type(head) is not SeriesHead:
            return False
        buffer = head.buffer
        targets = buffer.tail.targets.get(shape)
        if targets is None:
            return False
        segment.touched[buffer] = None
        _append_row(buffer, head.ref, time_ns, targets, values)
        group.lines += 1
        group.tag_collisions += head.collisions
        entries.append(_entry(delivery, key, [time_ns], [delivery.payload]))
        group.results.append(_ONE_ROW)
        return True

    def _append_delivery(
        self,
        segment: Segment,
        group: GroupAppend,
        entries: list[LoggedEntry],
        delivery: Delivery,
        key: DeliveryKey | None,
    ) -> None:
        context, heads = self._context(segment, delivery)
        parsed = parse(delivery.payload, context)
        group.sanitised += parsed.sanitised
        group.non_finite += parsed.non_finite
        lines, errors = parsed.lines, parsed.errors
        if lines and (late := lines_beyond_dates(lines)):
            errors = errors + [_error(line, 0, Reason.TIME_OUT_OF_RANGE, TOO_MANY_DATES) for line in late]
            late_numbers = {line.number for line in late}
            lines = [line for line in lines if line.number not in late_numbers]
        undo = None if delivery.accept_partial else Undo(self.schema, segment)
        if undo is not None and errors:
            lines = []
        append_line = self._append_line
        database = delivery.origin.database
        spans: list[bytes] = []
        times: list[int] = []
        collisions = 0
        for line in lines:
            error = append_line(segment, database, heads, line, undo)
            if error is None:
                spans.append(line.span)
                times.append(line.time_ns)
                collisions += line.head.collisions
            else:
                errors = [*errors, error]
                if undo is not None:
                    undo.run()
                    spans.clear()
                    break
        if spans:
            group.lines += len(spans)
            group.tag_collisions += collisions
            entries.append(_entry(delivery, key, times, spans))
        if not errors and len(spans) == 1:
            group.results.append(_ONE_ROW)
        else:
            group.results.append(result_of(len(spans), errors))

    def _append_line(
        self, segment: Segment, database: str, heads: Heads, line: Line, undo: Undo | None
    ) -> LineError | None:
        """Check a line whole, then apply it; None when it was appended."""
        head = line.head
        if type(head) is not SeriesHead:
            found = heads.get(line.raw_head)
            if type(found) is not SeriesHead:
                return self._append_new_series(segment, database, heads, line, undo)
            head = found
        buffer = head.buffer
        targets = buffer.tail.targets.get(line.shape)
        if targets is None:
            if (error := self._judge(buffer, line)) is not None:
                return error
            targets = self._targets(buffer, line.shape)
        if undo is not None:
            undo.note(buffer)
        segment.touched[buffer] = None
        _append_row(buffer, head.ref, line.time_ns, targets, line.values)
        return None

    def _targets(self, buffer: TableBuffer, shape: Shape) -> list[TailColumn]:
        """Columns of the tail for a line that was judged, in the order of its fields; new ones are defined."""
        tail, kinds = buffer.tail, buffer.schema.kinds
        targets = []
        for name, kind in zip(shape.names, shape.kinds, strict=True):
            if name not in kinds:
                self.schema.add_column(buffer.schema, name, self._new_kind(buffer, name, kind))
            column = tail.columns.get(name)
            if column is None:
                column = tail.columns[name] = TailColumn(kinds[name])
            targets.append(column)
        # An int in a float column is judged by its value each time.
        if len(tail.targets) < MAX_TARGETS and all(c.kind is k for c, k in zip(targets, shape.kinds, strict=True)):
            tail.targets[shape] = targets
        return targets

    def _new_kind(self, buffer: TableBuffer, name: str, kind: Kind) -> Kind:
        """Kind of a column that is not defined yet: that of its first line, if this is it."""
        if self._lost is None:
            return kind
        self._lost.append(f"the definition of column {name} of table {buffer.schema.name} is lost")
        # The line that made the column is lost, too. A float column takes what an int column would have taken.
        return Kind.FLOAT if kind is Kind.INT else kind

    def _judge(self, buffer: TableBuffer, line: Line) -> LineError | None:
        """Check all columns of a line against its table: kinds first, then the limit."""
        kinds = buffer.schema.kinds
        if self._lost is not None and not line.shape.name_set <= kinds.keys():
            self.find_definitions()
        for tag in line.head.tag_names:
            if kinds.get(tag, Kind.TAG) is not Kind.TAG:
                return self._conflict(buffer, line, tag, check_kind(Kind.TAG, "", kinds[tag]), 0)
        new = sum(tag not in kinds for tag in line.head.tag_names)
        for name, kind, value in line.fields:
            stored = kinds.get(name)
            if stored is None:
                new += 1
            elif (verdict := check_kind(kind, value, stored)) is not None:
                return self._conflict(buffer, line, name, verdict, locate_field(line.span, name))
        if len(kinds) + new > self.schema.limits.columns:
            message = f"table {buffer.schema.name} would have {len(kinds) + new} columns"
            return _error(line, 0, Reason.TOO_MANY_COLUMNS, f"{message}, at most {self.schema.limits.columns}")
        return None

    def _conflict(
        self, buffer: TableBuffer, line: Line, name: str, verdict: tuple[Reason, str] | None, offset: int
    ) -> LineError:
        reason, text = verdict or (Reason.TYPE_CONFLICT, "is of another type")
        return _error(line, offset, reason, f"column {name} of table {buffer.schema.name} {text}")

    def _append_new_series(
        self, segment: Segment, database: str, heads: Heads, line: Line, undo: Undo | None
    ) -> LineError | None:
        """Find or add table, tag columns and series of a head seen for the first time, then append the line."""
        head = line.head
        names, definitions = segment.savepoint, self.schema.savepoint
        schema = self.schema.table(database, head.measurement) or self.schema.add_table(database, head.measurement)
        if schema is None:
            limits = self.schema.limits
            message = f"table {head.measurement} would be one too many: at most {limits.tables} a database"
            return _error(line, 0, Reason.TOO_MANY_TABLES, f"{message} and {limits.databases} databases")
        buffer = segment.table(schema)
        error = self._judge(buffer, line)
        if error is None:
            for tag, _ in head.tags:
                if tag not in schema.kinds:
                    self.schema.add_column(schema, tag, Kind.TAG)
            # Keys and their sets are the same for nearly all series: one copy of each is a third of the memory.
            tags = tuple((sys.intern(tag), value) for tag, value in head.tags)
            tag_names = buffer.tag_names.setdefault(head.tag_names, head.tag_names)
            count = segment.series_count
            ref = segment.add_series(buffer, tags)
            series_head = SeriesHead(schema.name, buffer.series[ref], head.collisions, tag_names, buffer, ref)
            if len(heads) < MAX_HEADS_PER_SERIES * (segment.series_count + 1_000):
                segment.add_head(heads, line.raw_head, series_head, is_alias=segment.series_count == count)
            error = self._append_line(segment, database, heads, line._replace(head=series_head), undo)
        if error is not None:
            segment.rollback_names(names)
            self.schema.rollback(definitions)
        return error

    def append_logged(self, segment: Segment, group: LoggedGroup, is_covered: IsCovered | None) -> ReplayAppend:
        """Append a logged group: grammar only, no limits, borders or decisions.

        Rows that `is_covered` names are in a part already and stay out.
        """
        done = ReplayAppend()
        for definition in group.definitions:
            if clashes := self.schema.define(definition):
                done.mismatches.append(f"columns {', '.join(clashes)} of {definition.table} changed their type")
        self._lost = done.mismatches
        try:
            self._append_entries(segment, group, is_covered, done)
        finally:
            self._lost = None
        return done

    def _append_entries(
        self, segment: Segment, group: LoggedGroup, is_covered: IsCovered | None, done: ReplayAppend
    ) -> None:
        for entry in group.entries():
            self._append_entry(segment, entry, is_covered, done)

    def _append_entry(
        self, segment: Segment, entry: LoggedEntry, is_covered: IsCovered | None, done: ReplayAppend
    ) -> None:
        context_key = (entry.database, entry.precision, entry.tags)
        found = segment.contexts.get(context_key)
        if found is None:
            heads = self._heads(segment, entry.database, entry.tags)
            context = Context(entry.precision, 0, entry.tags, heads, limits=None, shapes=self._shapes)
            found = segment.keep_context(context_key, context, heads)
        context, heads = found
        context.arrival_ns = entry.arrival_ns
        parsed = parse_spans(entry.spans, context)
        lines = parsed.lines
        times = array("q", [line.time_ns for line in lines])
        if parsed.errors or zlib.crc32(times) != entry.times_crc:
            done.mismatches.append(f"{len(entry.spans)} logged lines gave {len(lines)} rows or other times")
        database = entry.database
        for line in lines:
            if is_covered is not None and is_covered(database, line.head.measurement, line.time_ns // DAY_NS):
                done.covered += 1
            elif (error := self._append_line(segment, database, heads, line, None)) is not None:
                done.mismatches.append(f"{error.reason}: {error.message}")
            else:
                done.lines += 1


def _append_row(
    buffer: TableBuffer, ref: int, time_ns: int, targets: Sequence[TailColumn], values: Sequence[Any]
) -> None:
    tail = buffer.tail
    row = len(tail.time)
    size_bytes = ROW_BYTES + VALUE_BYTES * len(targets)
    tail.series.append(ref)
    tail.time.append(time_ns)
    for column, value in zip(targets, values):  # noqa: B905 - both follow the shape; once for each value there is
        column.rows.append(row)
        if column.is_string:
            size_bytes += STRING_OVERHEAD_BYTES + column.append_string(value)
        else:
            column.values.append(value)
    buffer.tail_bytes += size_bytes


_TIME: Final = struct.Struct("<q")
_ONE_ROW: Final = DeliveryResult(1)
"""What nearly every message gives: one object for all of them."""


def _entry(delivery: Delivery, key: DeliveryKey | None, times: list[int], spans: list[bytes]) -> LoggedEntry:
    origin = delivery.origin
    return LoggedEntry(
        delivery.arrival_ns,
        delivery.clock_unset,
        origin.database,
        origin.precision,
        origin.tags,
        origin.source,
        key,
        zlib.crc32(_TIME.pack(times[0]) if len(times) == 1 else array("q", times)),
        spans,
    )


def _error(line: Line, offset: int, reason: Reason, message: str) -> LineError:
    return LineError(line.number, line.column + offset, reason, message, sample(line.span))
