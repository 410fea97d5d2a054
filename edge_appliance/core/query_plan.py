"""Which rows of a table a query must read, and which of them were written more than once.

A table's rows come from *sources*: part sets on disk and row sets in memory. Inside a part set a key (tags, time)
occurs once. So a key can have been written twice only where the times of two sources overlap, or inside one row set
in memory. Those times are *contested*: only their rows pass the last-write-wins aggregate, all others bypass it.

    source      ├──── part set 1 ────┤
                             ├──── part set 2 ────┤      ├── row set ──┤
    contested                ├───────┤                        ├┤ (a key written twice)

Times are closed intervals in ns, rounded outward to whole microseconds because that is what the files hold.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from edge_appliance.core.columns import RowSet
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.interval import ALL_TIME, MAX_NS, MIN_NS, NO_TIME, Interval, coarsen, complement, runs
from edge_appliance.core.parts import Part, age, file_column, set_key
from edge_appliance.core.query_types import HI_COLUMN, LO_COLUMN, PART_COLUMN, SharedPart, no_rows
from edge_appliance.core.view import TableView

HOT_CONTESTED_LIMIT: Final = 32
"""Contested intervals of the rows in memory; near ones are joined, since each is a term of a predicate on every row."""
_WORTHWHILE_SHARE: Final = 4
"""A shared part is read twice only when a quarter of its time or more is its own."""

_BUCKET_BITS: Final = 33
"""Times of rows in memory are told apart by 2^33 ns = 8.6 s: one late row contests seconds, not two days."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What to read of one table."""

    alone: tuple[Part, ...]
    """Parts without any contested time."""
    shared: tuple[SharedPart, ...]
    """Parts with contested times, in the order of writing."""
    hot: tuple[RowSet, ...]
    """Row sets by ascending rank, each with the chunks that may have rows in the asked time."""
    hot_contested: tuple[Interval, ...]
    """Contested times of the rows in memory."""


def plan_table(view: TableView, bounds: Interval = ALL_TIME) -> TablePlan:
    """Choose the parts and rows that can have times in `bounds`, and find the contested times among them.

    A key in two sources is contested in both. A source may call more of its rows contested: that only costs time.
    """
    parts = sorted((p for p in view.parts if bounds.overlaps(p.min_time_ns, p.max_time_ns)), key=age)
    hot = tuple(kept for row_set in view.hot if (kept := _within(row_set, bounds)) is not None)
    spans: list[tuple[Interval, object]] = [(Interval(p.min_time_ns, p.max_time_ns), set_key(p)) for p in parts]
    found: list[Interval] = []
    for position, row_set in enumerate(hot):
        found += repeated_times(row_set)
        spans += [(interval, position) for interval in _occupied(_times(row_set))]
    contested = coarsen(_whole_microseconds(interval) for interval in [*found, *_overlaps(spans)])
    ranges = [(part, _longest_gap(Interval(part.min_time_ns, part.max_time_ns), contested)) for part in parts]
    hot_contested = [i for i in contested if any(i.overlaps(s.min_time_ns, s.max_time_ns) for s in hot)]
    return TablePlan(
        alone=tuple(part for part, gap in ranges if gap is None),
        shared=tuple(SharedPart(part, gap) for part, gap in ranges if gap is not None),
        hot=hot,
        hot_contested=coarsen(hot_contested, HOT_CONTESTED_LIMIT),
    )


def repeated_times(row_set: RowSet) -> list[Interval]:
    """Times at which a series of this row set was written more than once."""
    keys = pa.table(
        {
            "series": pa.chunked_array([chunk.series for chunk in row_set.chunks], pa.uint32()),
            "time": pa.chunked_array([chunk.time for chunk in row_set.chunks], pa.int64()),
        }
    )
    counts = keys.group_by(["series", "time"]).aggregate([([], "count_all")])
    if counts.num_rows == keys.num_rows:
        return []
    return _occupied(counts.filter(pc.greater(counts["count_all"], 1))["time"])


def _within(row_set: RowSet, bounds: Interval) -> RowSet | None:
    """The row set without the chunks whose times all lie outside of `bounds`; None when nothing is left."""
    if not bounds.overlaps(row_set.min_time_ns, row_set.max_time_ns):
        return None
    spans = [(chunk, pc.min_max(chunk.time)) for chunk in row_set.chunks if chunk.rows]
    kept = [(c, s["min"].as_py(), s["max"].as_py()) for c, s in spans]
    kept = [(c, lo, hi) for c, lo, hi in kept if bounds.overlaps(lo, hi)]
    if not kept:
        return None
    return dataclasses.replace(
        row_set,
        chunks=tuple(chunk for chunk, _, _ in kept),
        min_time_ns=min(lo for _, lo, _ in kept),
        max_time_ns=max(hi for _, _, hi in kept),
    )


def _times(row_set: RowSet) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.time for chunk in row_set.chunks], pa.int64())


def _occupied(times: pa.ChunkedArray) -> list[Interval]:
    """Intervals of whole buckets that hold all of `times`, neighbours joined."""
    buckets = sorted(pc.unique(pc.shift_right(times, _BUCKET_BITS)).to_pylist())
    return [Interval(first << _BUCKET_BITS, ((last + 1) << _BUCKET_BITS) - 1) for first, last in runs(buckets)]


def _overlaps(spans: Iterable[tuple[Interval, object]]) -> list[Interval]:
    """Times that lie in the intervals of two or more different owners."""
    events: list[tuple[int, int, object]] = []
    for interval, owner in spans:
        events += [(interval.lo, 1, owner), (interval.hi + 1, -1, owner)]
    events.sort(key=lambda event: event[:2])
    active: Counter[object] = Counter()
    found: list[Interval] = []
    begun: int | None = None
    for time_ns, step, owner in events:
        active[owner] += step
        if not active[owner]:
            del active[owner]
        if begun is None and len(active) > 1:
            begun = time_ns
        elif begun is not None and len(active) <= 1:
            if begun < time_ns:
                found.append(Interval(begun, time_ns - 1))
            begun = None
    return found


def _longest_gap(span: Interval, contested: Sequence[Interval]) -> Interval | None:
    """The longest uncontested stretch of `span`; None when all of it is, NO_TIME when none is worth reading apart."""
    first = bisect.bisect_left(contested, span.lo, key=lambda interval: interval.hi)
    inside = list(itertools.takewhile(lambda i: i.lo <= span.hi, itertools.islice(contested, first, None)))
    if not inside:
        return None
    gaps = [gap.common(span) for gap in complement(inside)]
    longest = max(gaps, key=lambda gap: gap.hi - gap.lo, default=NO_TIME)
    return longest if (longest.hi - longest.lo) * _WORTHWHILE_SHARE >= span.hi - span.lo > 0 else NO_TIME


def _whole_microseconds(interval: Interval) -> Interval:
    return Interval(max(MIN_NS, interval.lo // 1000 * 1000), min(MAX_NS, interval.hi // 1000 * 1000 + 999))


# SQL of one table ----------------------------------------------------------------------------------------------

ORDER_COLUMN: Final = "_edge_order"
"""Order of writing over all contested rows: the part's place, then one number for each row in memory."""

_SQL_TYPES: Final[Mapping[Kind, str]] = {
    Kind.TAG: "Utf8",
    Kind.FLOAT: "Float64",
    Kind.INT: "Int64",
    Kind.UINT: "UInt64",
    Kind.BOOL: "Boolean",
    Kind.STRING: "Utf8",
}
_TIME_NS: Final = 'Timestamp(ns, "UTC")'
_TIME_US: Final = 'Timestamp(us, "UTC")'


def quoted(name: str) -> str:
    """A name as an exact SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def hot_columns(plan: TablePlan, columns: Sequence[ColumnDefinition], needed: Container[str]) -> list[ColumnDefinition]:
    """Columns that rows in memory must bring: those needed, and all tags when some row is contested."""
    return [c for c in columns if c.name in needed or (plan.hot_contested and c.kind is Kind.TAG)]


def hot_partitions(
    plan: TablePlan, columns: Collection[ColumnDefinition], needed: Container[str], batch_rows: int
) -> list[list[pa.RecordBatch]]:
    """The rows in memory as two halves for two cores, each row with its place in the order of writing.

    Batches are cut to `batch_rows`: the engine takes those of memory as they are.
    """
    wanted = hot_columns(plan, tuple(columns), needed)
    batches: list[pa.RecordBatch] = []
    place = len(plan.shared)
    for batch in (batch for row_set in plan.hot for batch in row_set.batches(wanted)):
        order = pa.arange(place, place + batch.num_rows)
        ordered = batch.append_column(ORDER_COLUMN, order)
        batches += [ordered.slice(start, batch_rows) for start in range(0, batch.num_rows, batch_rows)]
        place += batch.num_rows
    if not batches:
        empty = no_rows(wanted)
        batches = [empty.append_column(ORDER_COLUMN, pa.array([], pa.int64()))]
    middle = (len(batches) + 1) // 2
    return [half for half in (batches[:middle], batches[middle:]) if half]


class Sources(NamedTuple):
    """Names under which the engine knows the sources of one table."""

    alone: str
    shared: str
    hot: str


def table_sql(
    plan: TablePlan,
    columns: Sequence[ColumnDefinition],
    needed: Container[str],
    bounds: Interval,
    sources: Sources,
    visible_from_ns: int = MIN_NS,
) -> str:
    """The table as a query over its sources, each key once, without rows before `visible_from_ns`.

    Columns that are not needed are there as nulls, so that they cost nothing.
    """
    shown = [c for c in columns if c.name in needed]
    carried = [c for c in columns if c.kind is Kind.TAG] + [c for c in shown if c.kind is not Kind.TAG]
    asked = f"({_range(bounds.lo // 1000, bounds.hi // 1000, _TIME_US)})"
    is_own = f"arrow_cast(\"time\", 'Int64') BETWEEN {LO_COLUMN} AND {HI_COLUMN}"
    branches: list[str] = []
    contested: list[str] = []
    if plan.alone:
        branches.append(_from_files(sources.alone, shown, asked))
    if any(part.alone != NO_TIME for part in plan.shared):
        branches.append(_from_files(sources.shared, shown, f"{asked} AND {is_own}"))
    if plan.shared:
        order = f", {PART_COLUMN} AS {ORDER_COLUMN}"
        contested.append(_from_files(sources.shared, carried, f"{asked} AND NOT ({is_own})", order))
    if plan.hot_contested:
        within, outside = _within_any(plan.hot_contested), _within_any(complement(plan.hot_contested))
        branches.append(f"SELECT {_names(shown)} FROM {sources.hot} WHERE {outside}")
        contested.append(f"SELECT {_names(carried)}, {ORDER_COLUMN} FROM {sources.hot} WHERE {within}")
    elif plan.hot or not branches:
        branches.append(f"SELECT {_names(shown)} FROM {sources.hot}")
    if contested:
        branches.append(f"SELECT {_names(shown)} FROM ({_last_write_wins(carried, ' UNION ALL '.join(contested))})")
    text = f"SELECT {_select_list(columns, needed)} FROM ({' UNION ALL '.join(branches)})"
    return text if visible_from_ns == MIN_NS else f"{text} WHERE {_range(visible_from_ns, MAX_NS, _TIME_NS)}"


def _last_write_wins(columns: Sequence[ColumnDefinition], rows: str) -> str:
    """One row per key: of each field the value written last. Null tags are equal to each other in GROUP BY."""
    keys = ", ".join(['"time"', *(quoted(c.name) for c in columns if c.kind is Kind.TAG)])
    fields = [quoted(c.name) for c in columns if c.kind is not Kind.TAG]
    last = "".join(f", last_value({f} ORDER BY {ORDER_COLUMN}) FILTER (WHERE {f} IS NOT NULL) AS {f}" for f in fields)
    return f"SELECT {keys}{last} FROM ({rows}) GROUP BY {keys}"


def _from_files(files: str, columns: Sequence[ColumnDefinition], where: str, more: str = "") -> str:
    exact_time = f'arrow_cast(arrow_cast("time", \'Int64\') * 1000 + "time_ns", \'{_TIME_NS}\') AS "time"'
    listed = "".join(f", {_file_value(c)} AS {quoted(c.name)}" for c in columns)
    return f"SELECT {exact_time}{listed}{more} FROM {files} WHERE {where}"


def _file_value(column: ColumnDefinition) -> str:
    name = quoted(file_column(column.name))
    return f"arrow_cast({name}, 'UInt64')" if column.kind is Kind.UINT else name


def _names(columns: Sequence[ColumnDefinition]) -> str:
    return ", ".join(['"time"', *(quoted(c.name) for c in columns)])


def _select_list(columns: Sequence[ColumnDefinition], needed: Container[str]) -> str:
    values = (
        quoted(c.name) if c.name in needed else f"arrow_cast(NULL, '{_SQL_TYPES[c.kind]}') AS {quoted(c.name)}"
        for c in columns
    )
    return ", ".join(['"time"', *values])


def _within_any(intervals: Sequence[Interval]) -> str:
    return "(" + " OR ".join(f"({_range(i.lo, i.hi, _TIME_NS)})" for i in intervals) + ")" if intervals else "false"


def _range(lo: int, hi: int, sql_type: str) -> str:
    return f'("time" >= {_literal(lo, sql_type)} AND "time" <= {_literal(hi, sql_type)})'


def _literal(number: int, sql_type: str) -> str:
    # The text of the smallest integer cannot be written with a minus sign: its absolute value does not fit.
    return f"arrow_cast(arrow_cast('{number}', 'Int64'), '{sql_type}')"
