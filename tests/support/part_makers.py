"""Small parts on disk, with rows that say which write was the last."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from edge_appliance.core.columns import STORED_TYPES
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.maintenance import date_end_ns
from edge_appliance.core.parts import Part, file_column, part_name
from edge_appliance.parquet_file import PartFooter, write_part

DAY = dt.date(2026, 1, 2)
DAY_NS = date_end_ns(DAY) - 86_400 * 10**9
SITE = ColumnDefinition("site", Kind.TAG)
VALUE = ColumnDefinition("v", Kind.INT)


def write_rows(
    directory: Path,
    rank: int,
    rows: Iterable[Mapping[str, Any]],
    columns: tuple[ColumnDefinition, ...] = (SITE, VALUE),
    *,
    number: int = 0,
    count: int = 1,
    incarnation: str = "0123abcd",
    table: str = "cpu",
    date: dt.date = DAY,
) -> Part:
    """A part in `directory` under its spool name. A row: `at` (ns within the date), tags and fields."""
    first_ns = date_end_ns(date) - 86_400 * 10**9
    tags = [column.name for column in columns if column.kind is Kind.TAG]
    ordered = sorted(rows, key=lambda row: ([(row.get(t) is not None, row.get(t) or "") for t in tags], row["at"]))
    times = [first_ns + row["at"] for row in ordered]
    arrays: list[pa.Array] = [
        pa.array([time // 1_000 for time in times], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array([time % 1_000 for time in times], pa.int16()),
    ]
    arrays += [pa.array([row.get(c.name) for row in ordered], STORED_TYPES[c.kind]) for c in columns]
    content = pa.table(arrays, names=["time", "time_ns", *(file_column(column.name) for column in columns)])
    part = Part("edge", table, date, "gw-01", incarnation, rank, rank, number, count, 0, 0, min(times), max(times))
    return write_part(directory / part_name(part), content, PartFooter(part, columns, (rank, rank), 1))
