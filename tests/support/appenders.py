"""Both appenders side by side: everything that can be seen of what each did, so that it can be compared."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_appliance.core import append_reference
from edge_appliance.core.append import KERNEL, Appender
from edge_appliance.core.delivery import Delivery, Origin
from edge_appliance.core.line_names import Limits
from edge_appliance.core.schema import Schema, SchemaLimits
from edge_appliance.core.segment import Segment
from edge_appliance.core.wal_record import decode_group

ARRIVAL_NS = 1_700_000_000_000_000_000
IS_COMPILED = KERNEL == "compiled"


@dataclass
class Write:
    """One delivery of a group."""

    payload: bytes
    origin: Origin
    accept_partial: bool = True
    clock_unset: bool = False
    key: tuple[int, bytes] | None = None


@dataclass
class Script:
    """Groups under the same limits; a group is rolled back when its number is in `failing`."""

    groups: list[list[Write]]
    limits: Limits | None = None
    schema_limits: SchemaLimits | None = None
    failing: set[int] = field(default_factory=set)


class Side:
    """One appender with its segment."""

    def __init__(self, appender: type[append_reference.Appender], script: Script) -> None:
        self.schema = Schema(script.schema_limits)
        self.appender = appender(self.schema, script.limits)
        self.segment = Segment(1, 1, 0.0)
        self.records: list[bytes] = []

    def write(self, group: list[Write], *, fails: bool) -> tuple:
        """Append a group, and publish it or take it back."""
        deliveries = [
            Delivery(w.origin, w.payload, ARRIVAL_NS + n, w.clock_unset, accept_partial=w.accept_partial)
            for n, w in enumerate(group)
        ]
        done = self.appender.append_group(self.segment, deliveries, [w.key for w in group])
        grown = {buffer.schema.name: buffer.tail_bytes for buffer in self.segment.touched}
        if fails:
            self.segment.rollback()
            self.schema.rollback()
        else:
            self.records += [done.payload] if done.payload else []
            self.publish()
        results = [(r.rows, list(r.errors), r.refused, sorted(r.further.items())) for r in done.results]
        return results, done.payload, done.lines, done.sanitised, done.non_finite, done.tag_collisions, grown

    def publish(self) -> None:
        """Move the mark."""
        frozen = self.segment.freeze_large_tails()
        self.schema.commit()
        self.segment.publish(frozen)

    def replay(self, records: list[bytes], is_covered=None) -> tuple:
        """Append logged groups to a segment of their own."""
        done = []
        for record in records:
            done.append(self.appender.append_logged(self.segment, decode_group(record), is_covered))
            self.publish()
        return [(d.lines, d.covered, d.mismatches) for d in done], self.picture()

    def picture(self) -> tuple:
        """Rows, series, sizes and definitions that are visible now, bit for bit."""
        sets = []
        for row_set in self.segment.row_sets():
            batches = row_set.batches(row_set.columns)
            columns = [(batch.schema.names, [c.cast(_bits(c.type)).to_pylist() for c in batch]) for batch in batches]
            tags = list(row_set.series.tags[: row_set.series.count])
            sets.append((row_set.table, row_set.columns, columns, tags, row_set.size_bytes, row_set.min_time_ns))
        return sets, self.schema.definitions(), self.segment.size_bytes, self.segment.pairs


def _bits(kind):
    """A type whose Python values compare exactly."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.int64()
    return kind


def differences(script: Script) -> list[tuple]:
    """Where kernel and reference differ over a script, step by step, its replay included; empty when nowhere."""
    sides = [Side(append_reference.Appender, script), Side(Appender, script)]
    found = []
    for number, group in enumerate(script.groups):
        seen = [(*side.write(group, fails=number in script.failing), side.picture()) for side in sides]
        if _text(seen[0]) != _text(seen[1]):
            found.append((number, *seen))
    seen = [Side(a, script).replay(sides[0].records) for a in (append_reference.Appender, Appender)]
    if _text(seen[0]) != _text(seen[1]):
        found.append(("replay", *seen))
    covered = [
        Side(a, script).replay(sides[0].records, lambda _database, table, day: (len(table) + day) % 2 == 0)
        for a in (append_reference.Appender, Appender)
    ]
    if _text(covered[0]) != _text(covered[1]):
        found.append(("covered replay", *covered))
    return found


def _text(seen: tuple) -> str:
    """A form in which nan equals nan and 0.0 differs from -0.0."""
    return repr(seen)
