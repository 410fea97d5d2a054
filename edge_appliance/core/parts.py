"""Parts: immutable Parquet files, their names, rank intervals, and which rows they cover."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file of one table and UTC date. Ranks and times are closed intervals."""

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
