"""Parts: immutable Parquet files, their names, rank intervals, and which rows they cover.

A persist writes for each table and UTC date one *part set*: the slices 0 … n-1 that share node, incarnation and
rank interval. A set counts only when all of its slices are there.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

DAY_NS: Final = 86_400 * 1_000_000_000
EPOCH_ORDINAL: Final = dt.date(1970, 1, 1).toordinal()

_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_NAME_LIMIT: Final = 180
"""Bytes of an encoded name: with ranks and slice the file name stays below the 255 of a directory entry."""
_NAME_KEPT: Final = 150
"""What is kept of a longer one. With "-" and 32 hex digits it is above the limit, so no uncut name can equal it."""

_OWN_COLUMNS: Final = frozenset(("date", "time", "time_ns"))
"""The partition key and the file's own columns, compared without case because Spark and DuckDB do."""


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of one table and UTC date. Ranks and times are closed intervals; slices count from 0."""

    database: str
    table: str
    date: dt.date
    node: str
    incarnation: str
    rank_lo: int
    rank_hi: int
    slice: int
    slices: int
    rows: int
    size_bytes: int
    min_time_ns: int
    max_time_ns: int
    is_stored: bool = False
    """Whether the store has it; until then the spool's copy is the only one."""


class PartSetKey(NamedTuple):
    """What the slices of one part set have in common."""

    database: str
    table: str
    date: dt.date
    node: str
    incarnation: str
    rank_lo: int
    rank_hi: int


DateKey = tuple[str, str, dt.date]
"""Database, table and UTC date."""


def utc_date(time_ns: int) -> dt.date:
    """UTC day of a time, by floor division: -1 ns is still 1969-12-31."""
    return dt.date.fromordinal(EPOCH_ORDINAL + time_ns // DAY_NS)


def set_key(part: Part) -> PartSetKey:
    """The part set that `part` is a slice of."""
    return PartSetKey(part.database, part.table, part.date, part.node, part.incarnation, part.rank_lo, part.rank_hi)


def age(part: Part) -> tuple[int, int, str, str, dt.date, int]:
    """Sort key: the oldest written first, in a fixed order among equals."""
    return part.rank_hi, part.rank_lo, part.database, part.table, part.date, part.slice


# Names ---------------------------------------------------------------------------------------------------------


def encode_name(name: str) -> str:
    """A name as one path segment: percent-encoded, capped in length, different for different names.

    A leading `_` or `.` is encoded too, because Spark and Hive skip such names.
    """
    data = name.encode()
    encoded = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)
    if encoded[:1] in {"_", "."}:
        encoded = f"%{data[0]:02X}{encoded[1:]}"
    if len(encoded) <= _NAME_LIMIT:
        return encoded
    return f"{encoded[:_NAME_KEPT]}-{hashlib.sha256(data).hexdigest()[:32]}"


def part_key(part: Part) -> str:
    """Path in the store: `<database>/<table>/date=YYYY-MM-DD/<node>-<incarnation>-<lo>-<hi>-<slice>.parquet`."""
    return (
        f"{encode_name(part.database)}/{encode_name(part.table)}/date={part.date.isoformat()}/"
        f"{encode_name(part.node)}-{part.incarnation}-{part.rank_lo:020}-{part.rank_hi:020}-{part.slice:04}.parquet"
    )


def part_name(part: Part) -> str:
    """Flat file name of a part in the spool, the cache and a view: ranks first, then a hash of its whole key."""
    digest = hashlib.sha256(part_key(part).encode()).hexdigest()[:32]
    return f"{part.rank_lo:020}-{part.rank_hi:020}-{part.date.isoformat()}-{digest}-{part.slice:04}.parquet"


def file_column(name: str) -> str:
    """Name in the file of the tag or field `name`: one more `_` when it would collide with the file's own columns.

    `date` becomes `date_` and `date_` becomes `date__`, whatever other columns there are: the name in the file
    never depends on when a column was added.
    """
    return f"{name}_" if name.rstrip("_").lower() in _OWN_COLUMNS else name


# Sets and cover ------------------------------------------------------------------------------------------------


def complete_sets(parts: Iterable[Part]) -> dict[PartSetKey, list[Part]]:
    """Part sets of which every slice is there, each in order of its slices."""
    sets: dict[PartSetKey, dict[int, Part]] = defaultdict(dict)
    for part in parts:
        sets[set_key(part)][part.slice] = part
    return {
        key: [slices[number] for number in sorted(slices)]
        for key, slices in sets.items()
        if len(slices) == next(iter(slices.values())).slices
    }


def cover_intervals(parts: Iterable[Part]) -> Mapping[DateKey, Sequence[tuple[int, int]]]:
    """Closed rank intervals of the complete part sets of each table and date: rows of such a rank are in them."""
    intervals: dict[DateKey, list[tuple[int, int]]] = defaultdict(list)
    for key in complete_sets(parts):
        intervals[key.database, key.table, key.date].append((key.rank_lo, key.rank_hi))
    return dict(intervals)


def surviving(parts: Iterable[Part]) -> list[Part]:
    """What counts of parts found on disk: complete sets whose interval no other set of the same date contains.

    A merged set carries the whole interval of its inputs, so inputs that came back lose against it.
    """
    sets = complete_sets(parts)
    by_date: dict[DateKey, list[PartSetKey]] = defaultdict(list)
    for key in sets:
        by_date[key.database, key.table, key.date].append(key)
    kept: list[Part] = []
    for keys in by_date.values():
        for key in keys:
            if not any(_contains(other, key) for other in keys):
                kept.extend(sets[key])
    return sorted(kept, key=age)


def replaced_by(parts: Iterable[Part], old: Iterable[Part]) -> list[Part]:
    """Of `old` parts those whose ranks one of `parts` carries: they were merged into it."""
    outer: dict[DateKey, list[Part]] = defaultdict(list)
    for part in parts:
        outer[part.database, part.table, part.date].append(part)
    return [
        part
        for part in old
        if any(
            other.rank_lo <= part.rank_lo and part.rank_hi <= other.rank_hi
            for other in outer[part.database, part.table, part.date]
        )
    ]


def _contains(outer: PartSetKey, inner: PartSetKey) -> bool:
    """Whether `outer` is a wider set of the same writer: ranks of another incarnation say nothing."""
    if (outer.node, outer.incarnation) != (inner.node, inner.incarnation) or outer == inner:
        return False
    return outer.rank_lo <= inner.rank_lo and inner.rank_hi <= outer.rank_hi
