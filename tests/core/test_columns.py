"""Tails and chunks: what was appended is what a reader gets, and a copy never changes."""

import pyarrow as pa

from edge_appliance.core.columns import OPEN_RANK, RowSet, SeriesTags, SparseColumn, Tail, TailColumn
from edge_appliance.core.delivery import ColumnDefinition, Kind


def tail_of(rows, kinds):
    """Build a tail from dicts of field values."""
    tail = Tail()
    for number, fields in enumerate(rows):
        tail.series.append(number % 2)
        tail.time.append(number * 10)
        for name, value in fields.items():
            column = tail.columns.setdefault(name, TailColumn(kinds[name]))
            column.rows.append(number)
            if column.is_string:
                column.append_string(value)
            else:
                column.values.append(value)
    return tail


KINDS = {"f": Kind.FLOAT, "i": Kind.INT, "u": Kind.UINT, "b": Kind.BOOL, "s": Kind.STRING}
ROWS = [
    {"f": 1.5, "i": -(2**63), "u": 2**64 - 1, "b": True, "s": "köln"},
    {"f": -0.0, "i": 2**63 - 1, "u": 0, "b": False, "s": ""},
]


def test_frozen_values_are_exact():
    """Every kind comes back to the bit, extremes included."""
    chunk = tail_of(ROWS, KINDS).freeze()
    for name, kind in KINDS.items():
        assert chunk.field(name, kind).to_pylist() == [row[name] for row in ROWS]
    assert chunk.time.to_pylist() == [0, 10]
    assert chunk.series.to_pylist() == [0, 1]


def test_missing_values_are_null_in_dense_and_sparse_columns():
    """A column with few values is kept as pairs, and reads like any other."""
    rows = [{"f": float(n)} if n % 3 else {} for n in range(40)]
    rows[7] = {"i": 5}
    chunk = tail_of(rows, KINDS).freeze()
    assert isinstance(chunk.fields["i"], SparseColumn)
    assert not isinstance(chunk.fields["f"], SparseColumn)
    assert chunk.field("f", Kind.FLOAT).to_pylist() == [row.get("f") for row in rows]
    assert chunk.field("i", Kind.INT).to_pylist() == [row.get("i") for row in rows]
    assert chunk.field("absent", Kind.STRING).to_pylist() == [None] * 40


def test_a_thousand_columns_with_one_value_a_row_stay_small():
    """A wide, sparse table costs what its values cost, not columns times rows."""
    kinds = {f"f{n}": Kind.FLOAT for n in range(1000)}
    chunk = tail_of([{f"f{n % 1000}": 1.0} for n in range(4000)], kinds).freeze()
    assert chunk.size_bytes < 4000 * 40


def test_copy_does_not_see_later_rows_or_truncation():
    """A reader's copy is a picture: appending and rolling back do not change it."""
    tail = tail_of(ROWS * 3, KINDS)
    copied = tail.copy(3)
    tail.truncate(1)
    tail.time.append(99)
    tail.series.append(0)
    chunk = copied.freeze()
    assert chunk.time.to_pylist() == [0, 10, 20]
    assert chunk.field("f", Kind.FLOAT).to_pylist() == [1.5, -0.0, 1.5]


def test_copy_ends_at_the_mark_in_every_column():
    """Rows beyond the mark are not in a copy, also where a column lacks values before it."""
    tail = tail_of([{"f": 1.0}, {"i": 1}, {"f": 2.0, "i": 2}], KINDS)
    chunk = tail.copy(2).freeze()
    assert chunk.field("f", Kind.FLOAT).to_pylist() == [1.0, None]
    assert chunk.field("i", Kind.INT).to_pylist() == [None, 1]


def test_truncate_then_append_writes_the_right_rows():
    """After a rollback the next row takes the place of the dropped one."""
    tail = tail_of([{"f": 1.0}, {"f": 2.0, "s": "gone"}], KINDS)
    tail.truncate(1)
    tail.series.append(0)
    tail.time.append(50)
    tail.columns["f"].rows.append(1)
    tail.columns["f"].values.append(3.0)
    chunk = tail.freeze()
    assert chunk.field("f", Kind.FLOAT).to_pylist() == [1.0, 3.0]
    assert chunk.field("s", Kind.STRING).to_pylist() == [None, None]


def test_row_set_batches_join_tags_by_series():
    """Tags live once a series and appear on every row; a series without the tag shows null."""
    columns = (ColumnDefinition("site", Kind.TAG), ColumnDefinition("f", Kind.FLOAT))
    chunk = tail_of([{"f": 1.0}, {"f": 2.0}, {}], KINDS).freeze()
    series = SeriesTags([(("site", "a"),), ()], 2)
    rows = RowSet("edge", "pump", OPEN_RANK, columns, series, (chunk,), 0, 20, 0)
    (batch,) = rows.batches(columns)
    assert batch.schema.field("time").type == pa.timestamp("ns", tz="UTC")
    assert batch.column("time").cast(pa.int64()).to_pylist() == [0, 10, 20]
    assert batch.column("site").to_pylist() == ["a", None, "a"]
    assert batch.column("f").to_pylist() == [1.0, 2.0, None]
