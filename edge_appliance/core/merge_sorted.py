"""From several sorted parts to one sorted stream of rows in which each key occurs once: last write per field wins.

Memory follows the batches, not the parts. Of each part one batch is at hand; all rows up to the smallest of the last
keys at hand are complete, so they are merged and handed on, and whichever batch ran out is followed by the next.

    part 1   ├──── batch ────┤·········          rows up to ▼ go: no part can bring another one below it
    part 2   ├── batch ──┤▼············
    part 3   ├─── batch ────┤··········

A key is (tags in column order, a missing tag before every value, time). Parts come in the order of writing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from edge_appliance.core.merge import key_ends, last_written
from edge_appliance.errors import FormatError

_PLACES_MAX = 2**62
"""Places of tag tuples are numbered anew when their product would pass this."""

Key = tuple[tuple[tuple[bool, str], ...], int, int]
"""Tags, then the time in µs and its remaining ns."""


@dataclass(slots=True)
class SortedPart:
    """One part that is merged: batches of rows in key order, all with the same columns in the same order."""

    name: str
    batches: Iterator[pa.Table]
    rows: pa.Table | None = field(default=None, init=False)
    """Those at hand; None when the part is at its end."""
    last: Key | None = field(default=None, init=False)
    """Key of the last row at hand, or of the last one that went."""


def merge_sorted(parts: Sequence[SortedPart], tags: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the merged rows in key order, batch by batch; raises FormatError when a part is not sorted."""
    for part in parts:
        _fill(part, tags)
    while live := [part for part in parts if part.rows is not None]:
        bound = min(part.last for part in live if part.last is not None)
        pieces = []
        for part in live:
            rows = part.rows
            assert rows is not None  # noqa: S101 - chosen so above
            count = rows.num_rows if part.last == bound else _count_up_to(rows, tags, bound)
            if count:
                pieces.append(rows.slice(0, count))
                part.rows = rows.slice(count) if count < rows.num_rows else None
            if part.rows is None:
                _fill(part, tags)
        yield pieces[0] if len(pieces) == 1 else _merged(pieces, tags)


def _fill(part: SortedPart, tags: Sequence[str]) -> None:
    """Take the next batch that has rows, and check that it is sorted."""
    rows = next((batch for batch in part.batches if batch.num_rows), None)
    if rows is not None:
        rows = rows.combine_chunks()
        if part.last is not None and not part.last < _key(rows, tags, 0):
            raise FormatError(part.name, 0, "its rows are not sorted, or a key is there twice")
        if not _is_sorted(rows, tags):
            raise FormatError(part.name, 0, "its rows are not sorted, or a key is there twice")
        part.last = _key(rows, tags, rows.num_rows - 1)
    part.rows = rows


def _key(rows: pa.Table, tags: Sequence[str], position: int) -> Key:
    values = (rows.column(tag)[position].as_py() for tag in tags)
    time_us, time_ns = rows.column("time")[position].value, rows.column("time_ns")[position].as_py()
    return tuple((value is not None, value or "") for value in values), time_us, time_ns


def _count_up_to(rows: pa.Table, tags: Sequence[str], bound: Key) -> int:
    """How many of the sorted rows have a key of at most `bound`."""
    low, high = 0, rows.num_rows
    while low < high:
        middle = (low + high) // 2
        if _key(rows, tags, middle) <= bound:
            low = middle + 1
        else:
            high = middle
    return low


def _is_sorted(rows: pa.Table, tags: Sequence[str]) -> bool:
    place, time = _places(rows, tags), _times(rows)
    later = pc.greater(time.slice(1), time.slice(0, len(time) - 1))
    before, behind = place.slice(0, len(place) - 1), place.slice(1)
    return bool(
        pc.all(pc.or_(pc.greater(behind, before), pc.and_(pc.equal(behind, before), later)), min_count=0).as_py()
    )


def _merged(pieces: Sequence[pa.Table], tags: Sequence[str]) -> pa.Table:
    """Rows of all pieces in key order; of a key in several, the last value of each field that is not null."""
    rows = pa.concat_tables(pieces).combine_chunks()
    place, time = _places(rows, tags), _times(rows)
    order = pc.array_sort_indices(time)
    order = order.take(pc.array_sort_indices(place.take(order)))
    ends = key_ends(place.take(order), time.take(order))
    if ends is None:
        return rows.take(order)
    keys = {"time", "time_ns", *tags}
    at_end = order.take(ends)
    arrays = []
    for name in rows.column_names:
        column = _whole(rows.column(name))
        arrays.append(column.take(at_end) if name in keys else last_written(column, order, ends))
    return pa.table(arrays, schema=rows.schema)


def _places(rows: pa.Table, tags: Sequence[str]) -> pa.Int64Array:
    """For each row a number that sorts as its tags do."""
    place = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    places = 1
    for tag in tags:
        encoded = _whole(rows.column(tag)).dictionary_encode()
        values = encoded.dictionary
        ranks = pc.inverse_permutation(pc.array_sort_indices(values).cast(pa.int32())).cast(pa.int64())
        codes = pc.fill_null(pc.add(ranks.take(encoded.indices), 1), 0)
        if places * (len(values) + 1) > _PLACES_MAX:
            place, places = _renumbered(place)
        place = pc.add(pc.multiply(place, len(values) + 1), codes)
        places *= len(values) + 1
    return place


def _renumbered(place: pa.Int64Array) -> tuple[pa.Int64Array, int]:
    encoded = place.dictionary_encode()
    ranks = pc.inverse_permutation(pc.array_sort_indices(encoded.dictionary).cast(pa.int32())).cast(pa.int64())
    return ranks.take(encoded.indices), len(encoded.dictionary)


def _times(rows: pa.Table) -> pa.Int64Array:
    micros = _whole(rows.column("time")).cast(pa.int64())
    return pc.add(pc.multiply(micros, 1_000), _whole(rows.column("time_ns")).cast(pa.int64()))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
