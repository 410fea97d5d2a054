"""Sorting and merging one set: compared with a plain dictionary, whatever the chunks and slices."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from edge_appliance.core import merge
from edge_appliance.core.columns import ARROW_TYPES, Chunk, RowSet, SeriesTags, SparseColumn
from edge_appliance.core.delivery import ColumnDefinition, Kind, Tags
from edge_appliance.core.merge import Slice, sort_and_merge
from edge_appliance.core.parts import utc_date

Row = tuple[Tags, int, dict[str, Any]]
COLUMNS = (
    ColumnDefinition("site", Kind.TAG),
    ColumnDefinition("f", Kind.FLOAT),
    ColumnDefinition("i", Kind.INT),
    ColumnDefinition("host", Kind.TAG),
    ColumnDefinition("u", Kind.UINT),
    ColumnDefinition("b", Kind.BOOL),
    ColumnDefinition("s", Kind.STRING),
)
DAY_NS = 86_400 * 10**9


def make_chunk(rows: Sequence[Row], refs: Mapping[Tags, int], columns: Sequence[ColumnDefinition]) -> Chunk:
    """A chunk as the buffer freezes it: absent columns left out, thin ones as pairs."""
    fields: dict[str, Any] = {}
    for name, kind in columns:
        values = [fields_.get(name) for _, _, fields_ in rows]
        present = [row for row, value in enumerate(values) if value is not None]
        if kind is Kind.TAG or not present:
            continue
        if len(present) * 4 < len(rows):
            kept = pa.array([values[row] for row in present], ARROW_TYPES[kind])
            fields[name] = SparseColumn(pa.array(present, pa.uint32()), kept)
        else:
            fields[name] = pa.array(values, ARROW_TYPES[kind])
    series = pa.array([refs[tags] for tags, _, _ in rows], pa.uint32())
    return Chunk(series, pa.array([time for _, time, _ in rows], pa.int64()), fields, 50 * len(rows))


def make_set(rows: Sequence[Row], chunk_rows: int = 3, columns: Sequence[ColumnDefinition] = COLUMNS) -> RowSet:
    """Rows in order of arrival as a row set."""
    refs: dict[Tags, int] = {}
    for tags, _, _ in rows:
        refs.setdefault(tags, len(refs))
    chunks = [make_chunk(rows[at : at + chunk_rows], refs, columns) for at in range(0, len(rows), chunk_rows)]
    times = [time for _, time, _ in rows]
    return RowSet(
        "edge",
        "cpu",
        7,
        tuple(columns),
        SeriesTags(list(refs), len(refs)),
        tuple(chunks),
        min(times, default=0),
        max(times, default=0),
        sum(chunk.size_bytes for chunk in chunks),
    )


def expected_rows(rows: Sequence[Row]) -> list[tuple[dt.date, dict[str, Any]]]:
    """What must come out: last write per field, by date, then sorted by tags with missing ones first, then time."""
    merged: dict[tuple[Tags, int], dict[str, Any]] = {}
    for tags, time, fields in rows:
        merged.setdefault((tags, time), {}).update({k: v for k, v in fields.items() if v is not None})
    result = [(utc_date(time), {**dict(tags), "t": time, **fields}) for (tags, time), fields in merged.items()]
    return sorted(result, key=lambda row: (row[0], *sort_key(row[1])))


def sort_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Tags in column order, a missing one before all values, then time."""
    return (*((row.get(tag) is not None, row.get(tag) or "") for tag in ("site", "host")), row["t"])


def actual_rows(slices: Sequence[Slice]) -> list[tuple[dt.date, dict[str, Any]]]:
    """Rows of all slices as plain values without nulls."""
    return [(piece.date, row) for piece in slices for row in table_rows(piece.table)]


def table_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows of one table, with `t` made from both time columns."""
    rows = []
    micros = table.column("time").cast(pa.int64()).to_pylist()
    for micro, row in zip(micros, table.drop_columns(["time"]).to_pylist(), strict=True):
        rest = row.pop("time_ns")
        assert 0 <= rest <= 999
        rows.append({"t": micro * 1000 + rest, **{k: v for k, v in row.items() if v is not None}})
    return rows


def random_rows(seed: int, count: int = 200) -> list[Row]:
    """Rows with many equal keys, missing tags and fields, over three dates around 1970."""
    rng = random.Random(seed)
    makers = {
        "f": lambda: rng.choice([0.5, -1.0, 2e300]),
        "i": lambda: rng.randrange(-(2**63), 2**63),
        "u": lambda: rng.randrange(2**64),
        "b": lambda: rng.random() < 0.5,
        "s": lambda: rng.choice(["", "ä", "x" * rng.randrange(40)]),
    }
    rows: list[Row] = []
    for _ in range(count):
        tags = tuple((k, rng.choice("ab")) for k in ("host", "site") if rng.random() < 0.7)
        time = rng.choice([-1, 0, 1]) * DAY_NS + rng.randrange(-3, 4)
        names = rng.sample(list(makers), rng.randrange(1, 4)) if rng.random() < 0.9 else ["i"]
        rows.append((tags, time, {name: makers[name]() for name in names}))
    return rows


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("slice_bytes", [1, 300, 2**20], ids=["a key a slice", "several slices", "one slice a date"])
def test_merge_agrees_with_a_dictionary(seed: int, slice_bytes: int) -> None:
    """The same rows come out as from a dictionary, whatever the sizes of chunks and slices."""
    rows = random_rows(seed)
    slices = list(sort_and_merge(make_set(rows, chunk_rows=1 + 7 * (seed % 5)), slice_bytes))
    key = lambda row: (row[0], *sort_key(row[1]))  # noqa: E731 - the order of slices is by time, of rows by tags
    assert sorted(actual_rows(slices), key=key) == expected_rows(rows)
    for piece in slices:
        found = table_rows(piece.table)
        assert found == sorted(found, key=sort_key)
        assert piece.min_time_ns == min(row["t"] for row in found)
        assert piece.max_time_ns == max(row["t"] for row in found)


@pytest.mark.parametrize("slice_bytes", [1, 300, 2**20])
def test_slices_are_numbered_and_never_part_a_key(slice_bytes: int) -> None:
    """Slices of a date count from 0 to n-1, and a key is in one of them only."""
    by_date: dict[dt.date, list[Slice]] = {}
    for piece in sort_and_merge(make_set(random_rows(1)), slice_bytes):
        by_date.setdefault(piece.date, []).append(piece)
    assert len(by_date) > 2
    assert list(by_date) == sorted(by_date)
    for pieces in by_date.values():
        assert [(piece.number, piece.count) for piece in pieces] == [(n, len(pieces)) for n in range(len(pieces))]
        keys = [tuple(map(str, sort_key(row))) for piece in pieces for row in table_rows(piece.table)]
        assert len(keys) == len(set(keys))


def test_last_value_wins_per_field() -> None:
    """A field not written again keeps its value, and a later row without it does not erase it."""
    tags = (("host", "a"),)
    rows: list[Row] = [(tags, 5, {"f": 1.0, "i": 1}), (tags, 5, {"f": 2.0}), (tags, 5, {"s": "x"})]
    (piece,) = sort_and_merge(make_set(rows))
    assert table_rows(piece.table) == [{"t": 5, "host": "a", "f": 2.0, "i": 1, "s": "x"}]


def test_value_of_another_key_is_not_carried_over() -> None:
    """A field that a key never got stays empty next to keys that have it."""
    rows: list[Row] = [
        ((("host", "a"),), 5, {"f": 1.0}),
        ((("host", "b"),), 5, {"i": 2}),
        ((("host", "b"),), 5, {"i": 3}),
    ]
    (piece,) = sort_and_merge(make_set(rows))
    assert piece.table.column("f").to_pylist() == [1.0, None]
    assert piece.table.column("i").to_pylist() == [None, 3]


def test_columns_without_a_value_are_left_out() -> None:
    """Only columns with a value are written: tags in column order, then fields in column order."""
    (piece,) = sort_and_merge(make_set([((("host", "a"),), 5, {"u": 2**64 - 1})]))
    assert piece.table.column_names == ["time", "time_ns", "host", "u"]
    assert piece.table.schema.field("u").type == pa.decimal128(20, 0)
    assert piece.table.schema.field("time").type == pa.timestamp("us", tz="UTC")
    assert int(piece.table.column("u")[0].as_py()) == 2**64 - 1


def test_names_of_own_columns_are_moved_aside() -> None:
    """A tag `date` and a field `t` do not collide with anything."""
    columns = (ColumnDefinition("date", Kind.TAG), ColumnDefinition("t", Kind.INT), ColumnDefinition("0", Kind.INT))
    row_set = make_set([((("date", "x"),), 5, {"t": 1, "0": 2})], columns=columns)
    (piece,) = sort_and_merge(row_set)
    assert piece.table.column_names == ["time", "time_ns", "date_", "t", "0"]
    assert piece.table.column("0").to_pylist() == [2]


def test_rows_without_tags() -> None:
    """A table without any tag is sorted by time."""
    (piece,) = sort_and_merge(make_set([((), 9, {"i": 1}), ((), 3, {"i": 2})]))
    assert table_rows(piece.table) == [{"t": 3, "i": 2}, {"t": 9, "i": 1}]


def test_empty_set_gives_no_slice() -> None:
    """No rows, no part."""
    assert list(sort_and_merge(make_set([]))) == []


def test_slices_hold_at_most_their_bytes() -> None:
    """Long strings count where they are: few rows with long ones make a slice, many with short ones another."""
    rows: list[Row] = [((), n, {"s": "x" * (5_000 if n < 10 else 5)}) for n in range(1_000)]
    slices = list(sort_and_merge(make_set(rows, chunk_rows=100), 20_000))
    assert all(piece.table.num_rows == 1 or piece.table.nbytes < 30_000 for piece in slices)
    assert 4 <= len(slices) <= 8


def test_equal_times_are_cut_between_series() -> None:
    """One time for many series is no reason for a slice above its bytes."""
    rows: list[Row] = [((("host", f"h{n:04}"),), 5, {"i": n}) for n in range(1_000)]
    slices = list(sort_and_merge(make_set(rows, chunk_rows=100), 5_000))
    assert len(slices) > 3
    assert sorted(row["i"] for piece in slices for row in table_rows(piece.table)) == list(range(1_000))


def test_strings_beyond_32_bit_offsets_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """One key rewritten with more string bytes than an array may hold is gathered with wide offsets."""
    monkeypatch.setattr(merge, "_OFFSET_LIMIT", 1_000)
    rows: list[Row] = [((), 5, {"s": "x" * 400 + str(n)}) for n in range(10)]
    (piece,) = sort_and_merge(make_set(rows), 2_000)
    assert piece.table.column("s").to_pylist() == ["x" * 400 + "9"]
    assert piece.table.schema.field("s").type == pa.utf8()


def test_extreme_times_keep_their_date_and_value() -> None:
    """The lowest and highest int64 times are exact and on their dates."""
    rows: list[Row] = [((), -(2**63), {"i": 1}), ((), 2**63 - 1, {"i": 2}), ((), -1, {"i": 3})]
    slices = list(sort_and_merge(make_set(rows)))
    assert [piece.date for piece in slices] == [dt.date(1677, 9, 21), dt.date(1969, 12, 31), dt.date(2262, 4, 11)]
    assert [row["t"] for piece in slices for row in table_rows(piece.table)] == [-(2**63), -1, 2**63 - 1]


def test_many_series_are_taken_in_steps() -> None:
    """More series than one Python step handles keep their tags."""
    rows: list[Row] = [((("host", f"h{n}"),), 5, {"i": n}) for n in range(9_000)]
    (piece,) = sort_and_merge(make_set(rows, chunk_rows=4_096))
    assert all(row["host"] == f"h{row['i']}" for row in table_rows(piece.table))


def test_series_added_behind_the_mark_are_not_seen() -> None:
    """The list of series may grow while a set is persisted: only its first `count` belong to it."""
    row_set = make_set([((("host", "a"),), 5, {"i": 1})])
    row_set.series.tags.append((("site", "later"),))  # type: ignore[attr-defined]
    (piece,) = sort_and_merge(row_set)
    assert "site" not in piece.table.column_names
