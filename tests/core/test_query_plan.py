"""Which parts and rows a query reads, and which of them are contested."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from edge_appliance.core.columns import Chunk, RowSet, SeriesTags
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.interval import MAX_NS, MIN_NS, NO_TIME, Interval
from edge_appliance.core.parts import Part
from edge_appliance.core.query_plan import HOT_CONTESTED_LIMIT, TablePlan, plan_table, repeated_times
from edge_appliance.core.view import TableView

S = 1_000_000_000
COLUMNS = (ColumnDefinition("dev", Kind.TAG), ColumnDefinition("f", Kind.FLOAT))


def part(lo_s: float, hi_s: float, rank: int, *, slice_: int = 0, slices: int = 1) -> Part:
    """A part with times from `lo_s` to `hi_s` seconds."""
    lo_ns, hi_ns = int(lo_s * S), int(hi_s * S)
    return Part("d", "t", dt.date(1970, 1, 1), "n", "i", rank, rank, slice_, slices, 1, 1, lo_ns, hi_ns)


def rows(*keys: tuple[int, float], rank: int = 100, chunk_rows: int = 100) -> RowSet:
    """A row set of (series, seconds)."""
    chunks = [
        Chunk(
            pa.array([s for s, _ in keys[n : n + chunk_rows]], pa.uint32()),
            pa.array([int(t * S) for _, t in keys[n : n + chunk_rows]], pa.int64()),
            {},
            0,
        )
        for n in range(0, len(keys), chunk_rows)
    ]
    tags = SeriesTags([(("dev", str(n)),) for n in range(9)], 9)
    times = [int(t * S) for _, t in keys]
    return RowSet("d", "t", rank, COLUMNS, tags, tuple(chunks), min(times), max(times), 0)


def plan(*parts: Part, hot: tuple[RowSet, ...] = (), bounds: Interval | None = None) -> TablePlan:
    """Plan of a table of these sources."""
    view = TableView("d", "t", COLUMNS, hot, parts)
    return plan_table(view, bounds) if bounds else plan_table(view)


def test_parts_without_common_times_bypass() -> None:
    """Neighbours that do not touch are alone."""
    made = plan(part(0, 10, 1), part(11, 20, 2))
    assert [p.rank_lo for p in made.alone] == [1, 2]
    assert made.shared == ()


def test_parts_that_share_one_instant_are_contested_there_only() -> None:
    """Of two overlapping parts each keeps the stretch that is its own, in whole microseconds."""
    made = plan(part(0, 10, 1), part(10, 20, 2))
    assert made.alone == ()
    first, second = (shared.alone for shared in made.shared)
    assert first == Interval(0, 10 * S - 1)
    assert second == Interval(10 * S + 1000, 20 * S)


def test_slices_of_one_set_do_not_contest_each_other() -> None:
    """Slices of one part set share times but never a key."""
    made = plan(part(0, 10, 1, slice_=0, slices=2), part(0, 10, 1, slice_=1, slices=2))
    assert len(made.alone) == 2


def test_part_that_is_mostly_contested_is_read_once() -> None:
    """A stretch of its own below a quarter is not worth a second reading."""
    made = plan(part(0, 100, 1), part(10, 300, 2))
    assert [shared.alone for shared in made.shared] == [NO_TIME, Interval(100 * S + 1000, 300 * S)]


def test_part_inside_another_is_wholly_contested() -> None:
    """Nothing of the inner part is its own."""
    made = plan(part(0, 100, 1), part(80, 81, 2))
    assert {s.part.rank_lo: s.alone for s in made.shared} == {1: Interval(0, 80 * S - 1), 2: NO_TIME}


def test_part_of_one_instant_is_contested_whole() -> None:
    """A part of a single time inside another has no stretch at all."""
    assert [s.alone for s in plan(part(5, 5, 1), part(5, 5, 2)).shared] == [NO_TIME, NO_TIME]


def test_shared_parts_come_in_the_order_of_writing() -> None:
    """Whatever order the view lists them in, the one written last comes last."""
    made = plan(part(0, 9, 12), part(0, 9, 3), part(0, 9, 7))
    assert [shared.part.rank_hi for shared in made.shared] == [3, 7, 12]


def test_parts_and_chunks_outside_the_bounds_are_left_out() -> None:
    """Only what can have a wanted time is read, and only that can contest."""
    hot = rows((0, 5), (0, 500), chunk_rows=1)
    made = plan(part(0, 10, 1), part(480, 520, 2), hot=(hot,), bounds=Interval(400 * S, 510 * S))
    assert [s.part.rank_lo for s in made.shared] == [2]
    assert [chunk.time.to_pylist() for chunk in made.hot[0].chunks] == [[500 * S]]
    assert plan(hot=(hot,), bounds=Interval(6 * S, 7 * S)).hot == ()


def test_one_late_row_contests_seconds_not_days() -> None:
    """A row in memory from yesterday leaves the parts of the time between alone."""
    day = 86_400
    made = plan(part(0, 3600, 1), part(7200, 9000, 2), hot=(rows((0, 60), (0, day)),))
    assert [p.rank_lo for p in made.alone] == [2]
    assert [s.part.rank_lo for s in made.shared] == [1]
    (contested,) = made.hot_contested
    assert contested.lo <= 60 * S <= contested.hi
    assert contested.hi - contested.lo < 20 * S


def test_repeated_keys_in_memory_are_contested() -> None:
    """The same series and time twice; the same time in two series is no repetition."""
    assert repeated_times(rows((0, 1), (1, 1), (0, 2), chunk_rows=2)) == []
    (found,) = repeated_times(rows((0, 1), (1, 1), (0, 2), (0, 1), chunk_rows=2))
    assert found.lo <= 1 * S <= found.hi
    assert plan(hot=(rows((0, 1), (1, 1)),)).hot_contested == ()
    assert plan(hot=(rows((0, 1), (0, 1)),)).hot_contested != ()


@pytest.mark.parametrize("time_ns", [MIN_NS, -1, 0, MAX_NS])
def test_contested_times_at_the_ends_of_time(time_ns: int) -> None:
    """Rounding never leaves the range of 64 bits."""
    chunk = Chunk(pa.array([0, 0], pa.uint32()), pa.array([time_ns] * 2, pa.int64()), {}, 0)
    hot = RowSet("d", "t", 1, COLUMNS, SeriesTags([()], 1), (chunk,), time_ns, time_ns, 0)
    (contested,) = plan(hot=(hot,)).hot_contested
    assert MIN_NS <= contested.lo <= time_ns <= contested.hi <= MAX_NS


def test_contested_times_in_memory_stay_few() -> None:
    """Many repeated keys far apart are joined to a bounded number of intervals, all of them inside."""
    times = [n * 1000 for n in range(200)]
    made = plan(hot=(rows(*[(0, t) for t in times for _ in range(2)]),))
    assert len(made.hot_contested) == HOT_CONTESTED_LIMIT
    assert all(any(i.lo <= t * S <= i.hi for i in made.hot_contested) for t in times)
