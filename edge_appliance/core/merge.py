"""From the rows of one set to sorted tables, ready for Parquet: last write per field, by UTC date, in slices.

Rows of equal (series, time) become one: each field holds the last value written to it. A table is sorted by
(tags…, time), tags in column order with a missing tag before every value. A slice is a range of (time, series)
that holds at most a given number of raw bytes, so that memory follows the slice and not the set.

Everything heavy is an Arrow call, which lets other threads run; Python only plans.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from edge_appliance.core.columns import ARROW_TYPES, STORED_TYPES, Chunk, RowSet, SeriesTags
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.interval import MAX_NS
from edge_appliance.core.memory_plan import SLICE_BYTES
from edge_appliance.core.parts import DAY_NS, file_column, utc_date

_SERIES_PER_STEP: Final = 4_096
"""Series whose tags are handled between two Arrow calls: a millisecond of Python."""
_OFFSET_LIMIT: Final = 2**30
"""String bytes that one array with 32-bit offsets may hold; rows of a single key may exceed it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One sorted table: slice `number` of `count` of a date. Columns: time, time_ns, tags, fields."""

    date: dt.date
    number: int
    count: int
    table: pa.Table
    min_time_ns: int
    max_time_ns: int


class _Tags(NamedTuple):
    """Tag columns by series ref, in column order, and the place of each ref in the sort order."""

    columns: dict[str, pa.StringArray]
    place: pa.Int32Array


def sort_and_merge(row_set: RowSet, slice_bytes: int = SLICE_BYTES, until_ns: int = MAX_NS) -> Iterator[Slice]:
    """Yield the sorted slices of `row_set`, dates ascending, one at a time so that only one is in memory.

    Rows after `until_ns` are left out.
    """
    if not row_set.rows:
        return
    tags = _tags(row_set)
    fields = [column for column in row_set.columns if column.kind is not Kind.TAG]
    row_bytes = _row_bytes(row_set, fields, tags)
    first_date = utc_date(row_set.min_time_ns)
    is_whole = until_ns >= row_set.max_time_ns
    if is_whole and first_date == utc_date(row_set.max_time_ns) and pc.sum(row_bytes).as_py() <= slice_bytes:
        gathered = _gather(row_set.chunks, None, fields, slice_bytes)
        by_time = _order_by(_whole(gathered.column("t")))
        yield _slice(first_date, 0, 1, gathered, by_time, fields, tags)
        return
    order, plan = _plan(row_set, row_bytes, slice_bytes, until_ns)
    for date, cuts in plan:
        for number, (start, stop) in enumerate(pairwise(cuts)):
            rows = order.slice(start, stop - start)
            size_bytes = pc.sum(row_bytes.take(rows)).as_py()
            arrival = _order_by(rows)
            gathered = _gather(row_set.chunks, rows.take(arrival), fields, size_bytes)
            # Where each row, in order of time, is among those in order of arrival.
            by_time = pc.inverse_permutation(arrival.cast(pa.int32()))
            yield _slice(date, number, len(cuts) - 1, gathered, by_time, fields, tags)


# Planning ------------------------------------------------------------------------------------------------------


def _order_by(values: pa.Array) -> pa.UInt64Array:
    """Positions that sort `values`; equal values keep their order."""
    return pc.array_sort_indices(values)


DateCuts = tuple[dt.date, list[int]]
"""A date, the positions at which its slices begin, and its end."""


def _plan(
    row_set: RowSet, row_bytes: pa.Int64Array, slice_bytes: int, until_ns: int
) -> tuple[pa.UInt64Array, list[DateCuts]]:
    """Row numbers by time, or by (time, series) when too many rows share a time, and where to cut them."""
    time = pa.concat_arrays([chunk.time for chunk in row_set.chunks])
    order = _order_by(time)
    stop = bisect_right(_Values(time.take(order)), until_ns)
    if not stop:
        return order, []
    order = order.slice(0, stop)
    sums = _Values(pc.cumulative_sum(row_bytes.take(order)))
    plan = _cut_dates(_Values(time.take(order)), None, sums, slice_bytes)
    if _heaviest(plan, sums) <= 2 * slice_bytes:
        return order, plan
    series = pa.concat_arrays([chunk.series for chunk in row_set.chunks])
    order = _order_by(series)
    order = order.take(_order_by(time.take(order))).slice(0, stop)
    sums = _Values(pc.cumulative_sum(row_bytes.take(order)))
    return order, _cut_dates(_Values(time.take(order)), _Values(series.take(order)), sums, slice_bytes)


def _cut_dates(times: _Values, refs: _Values | None, sums: _Values, slice_bytes: int) -> list[DateCuts]:
    """Cut sorted rows into dates and slices; never between rows of one key, or of one time when `refs` is None."""
    plan: list[DateCuts] = []
    start = 0
    while start < len(times):
        day_end_ns = (times[start] // DAY_NS + 1) * DAY_NS
        stop = bisect_left(times, day_end_ns, start)
        cuts = [start]
        while cuts[-1] < stop:
            done_bytes = sums[cuts[-1] - 1] if cuts[-1] else 0
            cut = max(bisect_right(sums, done_bytes + slice_bytes, cuts[-1], stop), cuts[-1] + 1)
            cuts.append(_key_end(times, refs, cut - 1, stop))
        plan.append((utc_date(times[start]), cuts))
        start = stop
    return plan


def _heaviest(plan: Sequence[DateCuts], sums: _Values) -> int:
    """Bytes of the largest slice."""
    return max(sums[stop - 1] - (sums[start - 1] if start else 0) for _, cuts in plan for start, stop in pairwise(cuts))


class _Values:
    """An integer array without nulls, read one value at a time, as bisect does."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, position: int) -> int:
        return int(self._values[position].as_py())


def _key_end(times: _Values, refs: _Values | None, position: int, stop: int) -> int:
    """First position behind the rows that share the key, or the time, of the one at `position`."""
    run_end = bisect_right(times, times[position], position, stop)
    return run_end if refs is None else bisect_right(refs, refs[position], position, run_end)


def _row_bytes(row_set: RowSet, fields: Sequence[ColumnDefinition], tags: _Tags) -> pa.Int64Array:
    """Raw bytes of each row as dense columns, in order of arrival."""
    present = [column for column in fields if any(column.name in chunk.fields for chunk in row_set.chunks)]
    fixed = 12 + 8 * len(present)
    by_ref = pa.repeat(pa.scalar(fixed, pa.int64()), len(tags.place))
    for column in tags.columns.values():
        by_ref = pc.add(by_ref, _text_bytes(column))
    strings = [column for column in present if column.kind is Kind.STRING]
    pieces = []
    for chunk in row_set.chunks:
        total = by_ref.take(chunk.series)
        for column in strings:
            total = pc.add(total, _text_bytes(chunk.field(column.name, column.kind)))
        pieces.append(total)
    return pa.concat_arrays(pieces)


def _text_bytes(values: pa.StringArray) -> pa.Int64Array:
    return pc.fill_null(pc.binary_length(values), 0).cast(pa.int64())


def _tags(row_set: RowSet) -> _Tags:
    """Tag columns that have a value, and the sort order of the series: GIL held for short steps only."""
    names = [column.name for column in row_set.columns if column.kind is Kind.TAG]
    series = row_set.series
    columns = {name: values for name, values in _tag_columns(series, names).items() if values.null_count < len(values)}
    if not columns:
        return _Tags({}, pa.array(range(series.count), pa.int32()))
    table = pa.table(list(columns.values()), names=[str(number) for number in range(len(columns))])
    keys = [(name, "ascending", "at_start") for name in table.column_names]
    order = pc.sort_indices(table, sort_keys=keys)
    return _Tags(columns, pc.inverse_permutation(order.cast(pa.int32())))


def _tag_columns(series: SeriesTags, names: Sequence[str]) -> dict[str, pa.StringArray]:
    pieces: dict[str, list[pa.StringArray]] = {name: [pa.array([], pa.utf8())] for name in names}
    for start in range(0, series.count, _SERIES_PER_STEP):
        stop = min(start + _SERIES_PER_STEP, series.count)
        pairs = [dict(series.tags[ref]) for ref in range(start, stop)]
        for name, values in pieces.items():
            values.append(pa.array([tags.get(name) for tags in pairs], pa.utf8()))
    return {name: pa.concat_arrays(values) for name, values in pieces.items()}


# One slice -----------------------------------------------------------------------------------------------------


def _gather(
    chunks: Sequence[Chunk], rows: pa.UInt64Array | None, fields: Sequence[ColumnDefinition], size_bytes: int
) -> pa.Table:
    """Rows of a slice in order of arrival: `series`, `time` and the fields with a value. None: all rows."""
    touched = list(_touched(chunks, rows))
    present = [column for column in fields if any(column.name in chunk.fields for chunk, _ in touched)]
    text = pa.large_utf8() if size_bytes > _OFFSET_LIMIT else pa.utf8()
    types = [text if column.kind is Kind.STRING else ARROW_TYPES[column.kind] for column in present]
    # Numbered, because a field may be called anything.
    schema = pa.schema(
        [("s", pa.uint32()), ("t", pa.int64()), *((str(number), kind) for number, kind in enumerate(types))]
    )
    batches = []
    for chunk, local in touched:
        columns = [chunk.series, chunk.time, *(chunk.field(column.name, column.kind) for column in present)]
        if local is not None:
            columns = [column.take(local) for column in columns]
        columns = [column.cast(kind) for column, kind in zip(columns, schema.types, strict=True)]
        batches.append(pa.record_batch(columns, schema=schema))
    gathered = pa.Table.from_batches(batches, schema).combine_chunks()
    return gathered.rename_columns(["s", "t", *(f"f{column.name}" for column in present)])


def _touched(chunks: Sequence[Chunk], rows: pa.UInt64Array | None) -> Iterator[tuple[Chunk, pa.Array | None]]:
    """The chunks that hold some of `rows` (ascending), each with the rows' places in it; None: all of them."""
    if rows is None:
        yield from ((chunk, None) for chunk in chunks)
        return
    numbers, base, start = _Values(rows), 0, 0
    for chunk in chunks:
        stop = bisect_left(numbers, base + chunk.rows, start)
        if stop - start == chunk.rows:
            yield chunk, None
        elif stop > start:
            yield chunk, pc.subtract(rows.slice(start, stop - start), pa.scalar(base, pa.uint64()))
        base, start = base + chunk.rows, stop


def _slice(
    date: dt.date,
    number: int,
    count: int,
    gathered: pa.Table,
    by_time: pa.Array,
    fields: Sequence[ColumnDefinition],
    tags: _Tags,
) -> Slice:
    """Sort and merge the rows of one slice; `by_time` gives their positions by time, equal ones by arrival."""
    arrival = {name: _whole(gathered.column(name)) for name in gathered.column_names}
    place = tags.place.take(arrival["s"])
    order = by_time.take(_order_by(place.take(by_time)))
    series, time = arrival["s"].take(order), arrival["t"].take(order)
    ends = key_ends(place.take(order), time)
    if ends is not None:
        series, time = series.take(ends), time.take(ends)
    arrays, names = _time_columns(time), ["time", "time_ns"]
    for name, values in tags.columns.items():
        arrays.append(values.take(series))
        names.append(file_column(name))
    for column in fields:
        written = arrival.get(f"f{column.name}")
        if written is not None and written.null_count < len(written):
            arrays.append(last_written(written, order, ends).cast(STORED_TYPES[column.kind]))
            names.append(file_column(column.name))
    low_high = pc.min_max(time)
    return Slice(date, number, count, pa.table(arrays, names=names), low_high["min"].as_py(), low_high["max"].as_py())


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def key_ends(place: pa.Int32Array, time: pa.Int64Array) -> pa.UInt64Array | None:
    """Position of the last row of each key, over rows sorted by key; None when no key occurs twice."""
    later = pc.not_equal(place.slice(1), place.slice(0, len(place) - 1))
    later = pc.or_(later, pc.not_equal(time.slice(1), time.slice(0, len(time) - 1)))
    if pc.all(later, min_count=0).as_py():
        return None
    return pc.indices_nonzero(pa.concat_arrays([later, pa.array([True])]))


def last_written(written: pa.Array, order: pa.UInt64Array, ends: pa.UInt64Array | None) -> pa.Array:
    """A field by key: the value written last, over rows in order of arrival."""
    if ends is None:
        return written.take(order)
    if not written.null_count:
        return written.take(order.take(ends))
    # The last row up to each one that has a value; where that lies before the key's first row, it has none.
    valued = pc.if_else(pc.is_valid(written).take(order), _positions(len(order)), pa.scalar(None, pa.uint64()))
    last = pc.fill_null_forward(valued).take(ends)
    starts = pa.concat_arrays(
        [pa.array([0], pa.uint64()), pc.add(ends.slice(0, len(ends) - 1), pa.scalar(1, pa.uint64()))]
    )
    last = pc.if_else(pc.greater_equal(last, starts), last, pa.scalar(None, pa.uint64()))
    return written.take(order.take(last))


def _positions(count: int) -> pa.UInt64Array:
    """0 … count-1 without a Python loop."""
    return pc.indices_nonzero(pa.repeat(pa.scalar(value=True), count))


def _time_columns(time_ns: pa.Int64Array) -> list[pa.Array]:
    """Microseconds (floor) and the remaining 0 … 999 ns: exact, and every reader takes both."""
    micros = pc.divide(time_ns, 1_000)
    rest = pc.subtract(time_ns, pc.multiply(micros, 1_000))
    # Division truncates towards zero: before 1970 the floor is one lower.
    is_negative = pc.less(rest, 0)
    micros = pc.subtract(micros, is_negative.cast(pa.int64()))
    rest = pc.if_else(is_negative, pc.add(rest, 1_000), rest)
    return [micros.cast(pa.timestamp("us", tz="UTC")), rest.cast(pa.int16())]
