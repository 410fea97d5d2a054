"""Set-asides: rows are split at a time, none is lost, and what stays keeps its order and values."""

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_appliance.core.columns import Chunk, RowSet, SeriesTags, SparseColumn
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.interval import MAX_NS, MIN_NS, Interval
from edge_appliance.core.merge import sort_and_merge
from edge_appliance.core.schema import Schema
from edge_appliance.core.segment import FREEZE_ROWS, Segment, chunk_bytes
from edge_appliance.core.set_aside import set_aside, split_time, up_to, without_times

COLUMNS = (
    ColumnDefinition("f", Kind.FLOAT),
    ColumnDefinition("s", Kind.STRING),
    ColumnDefinition("b", Kind.BOOL),
)


def chunk_of(times, series=None, **fields) -> Chunk:
    """A chunk; fields are lists with None, or SparseColumns."""
    kinds = {"f": pa.float64(), "s": pa.utf8(), "b": pa.bool_()}
    columns = {
        name: values if isinstance(values, SparseColumn) else pa.array(values, kinds[name])
        for name, values in fields.items()
    }
    refs = pa.array(series or [0] * len(times), pa.uint32())
    return Chunk(refs, pa.array(times, pa.int64()), columns, 100 * len(times))


def rows_of(chunks):
    """Rows as (series, time, f, s, b)."""
    rows = []
    for chunk in chunks:
        fields = [chunk.field(c.name, c.kind).to_pylist() for c in COLUMNS]
        rows += list(zip(chunk.series.to_pylist(), chunk.time.to_pylist(), *fields, strict=True))
    return rows


def row_set(chunks, rank=7) -> RowSet:
    times = [t for chunk in chunks for t in chunk.time.to_pylist()]
    tags = SeriesTags([(("host", "a"),), (("host", "b"),)], 2)
    return RowSet("edge", "cpu", rank, COLUMNS, tags, tuple(chunks), min(times), max(times), 100)


def test_split_takes_about_ninety_percent():
    """The oldest nine of ten, judged by time and not by arrival."""
    times = [(n * 7_919) % 100_000 for n in range(100_000)]
    chunks = [chunk_of(times[n : n + 4_096]) for n in range(0, len(times), 4_096)]
    split = split_time(chunks)
    assert split.share == pytest.approx(0.9, abs=0.01)
    assert split.time_ns == pytest.approx(90_000, abs=1_000)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param([5] * 50, 5, id="all equal: all of them"),
        pytest.param([1] * 95 + [2] * 5, 1, id="ties at the split stay together"),
        pytest.param([1] * 50 + [2] * 50, 2, id="never between equal times"),
        pytest.param([-(2**63)], -(2**63), id="one row"),
        pytest.param([2**63 - 1] * 3, 2**63 - 1, id="the last time there is"),
    ],
)
def test_split_never_parts_equal_times(times, expected):
    """Rows of equal time are on one side."""
    split = split_time([chunk_of(times)])
    assert split.time_ns == expected
    assert split.share == sum(t <= expected for t in times) / len(times)


TIMES = st.integers(-5, 5)
PAIRS = st.lists(
    st.tuples(st.integers(0, 1), TIMES, st.none() | st.floats(0, 1), st.none() | st.text(max_size=3), st.none()),
    min_size=1,
    max_size=30,
)


@given(st.lists(PAIRS, min_size=1, max_size=5), TIMES)
def test_both_sides_together_are_all_rows(pieces, time_ns):
    """Each row is on exactly one side, with its values, in order of arrival."""
    chunks = []
    for piece in pieces:
        series, times, floats, texts, flags = zip(*piece, strict=True)
        chunks.append(chunk_of(list(times), list(series), f=list(floats), s=list(texts), b=list(flags)))
    before = rows_of(chunks)
    later = rows_of(without_times(chunks, [Interval(MIN_NS, time_ns)]))
    taken = rows_of(without_times(chunks, up_to(time_ns)))
    assert later == [row for row in before if row[1] > time_ns]
    assert taken == [row for row in before if row[1] <= time_ns]


def test_sparse_columns_stay_sparse():
    """A wide table whose lines have one value each does not become dense when it is split."""
    rows = 400
    fields = {"f": SparseColumn(pa.array([3, 399], pa.uint32()), pa.array([0.5, 1.5]))}
    chunk = chunk_of(list(range(rows)), **fields)
    (rest,) = without_times([chunk], [Interval(MIN_NS, 99)])
    assert isinstance(rest.fields["f"], SparseColumn)
    assert rest.fields["f"].rows.to_pylist() == [299]
    assert rest.field("f", Kind.FLOAT)[299].as_py() == 1.5
    (first,) = without_times([chunk], [Interval(100, MAX_NS)])
    assert first.field("f", Kind.FLOAT).to_pylist()[:5] == [None, None, None, 0.5, None]


def test_column_without_values_goes():
    """A chunk holds only columns that have a value."""
    (rest,) = without_times([chunk_of([1, 2], f=[0.5, None], s=["a", "b"])], [Interval(1, 1)])
    assert set(rest.fields) == {"s"}


def test_untouched_chunks_are_shared_and_crumbs_are_put_together():
    """Chunks that lose nothing are kept as they are; what is left of many becomes few."""
    late = chunk_of([100, 101])
    assert without_times([late], [Interval(0, 50)]) == (late,)
    scattered = [chunk_of([(n * 31 + k * 7) % 100 for n in range(200)]) for k in range(50)]
    rest = without_times(scattered, [Interval(0, 89)])
    assert sum(chunk.rows for chunk in rest) == sum(t >= 90 for c in scattered for t in c.time.to_pylist())
    assert len(rest) <= 1 + 50 * 20 // FREEZE_ROWS + 1


def test_several_intervals_are_dropped_at_once():
    """Dates that are in parts already go, the others stay."""
    rest = without_times([chunk_of(list(range(10)))], [Interval(0, 2), Interval(5, 6)])
    assert [row[1] for row in rows_of(rest)] == [3, 4, 7, 8, 9]


@given(PAIRS, TIMES, st.sampled_from([10, 300, 2**20]))
def test_merge_up_to_a_time_is_the_merge_of_what_is_taken(piece, time_ns, slice_bytes):
    """Persisting a set-aside leaves out the later rows, in slices of any size, without a copy of the set."""
    series, times, floats, texts, flags = zip(*piece, strict=True)
    chunks = [chunk_of(list(times), list(series), f=list(floats), s=list(texts), b=list(flags))]
    taken = without_times(chunks, up_to(time_ns))

    def merged(slices):
        return [row for piece in slices for row in piece.table.to_pylist()]

    got = merged(sort_and_merge(row_set(chunks), slice_bytes, time_ns))
    # Columns that only the later rows have are absent or null.
    want = merged(sort_and_merge(row_set(taken), slice_bytes)) if taken else []
    strip = [{k: v for k, v in row.items() if v is not None} for row in got]
    assert sorted(map(repr, strip)) == sorted(repr({k: v for k, v in row.items() if v is not None}) for row in want)


def test_swap_keeps_later_rows_and_gives_the_bytes_back():
    """The rest takes the place of the split chunks; what came meanwhile stays behind it."""
    segment = Segment(1, 1, 0.0)
    buffer = segment.table(Schema().add_table("edge", "cpu"))
    for times in ([1, 2, 3], [10, 4]):
        segment._put_frozen(buffer, chunk_of(times))
    buffer.series_mark = 0
    aside = set_aside(segment, buffer, 9, 4, 400)
    segment._put_frozen(buffer, chunk_of([0, 11]))
    before = segment.size_bytes
    rest = aside.rest()
    freed = segment.replace_chunks(buffer, len(aside.rows.chunks), rest)
    assert [t for chunk in buffer.chunks for t in chunk.time.to_pylist()] == [10, 0, 11]
    assert freed == before - segment.size_bytes > 0
    assert segment.size_bytes == buffer.frozen_bytes == sum(map(chunk_bytes, buffer.chunks))
    assert aside.rank == 9
    assert list(itertools.chain(*[c.time.to_pylist() for c in aside.row_sets()[0].chunks])) == [1, 2, 3, 10, 4]
