"""Merging sorted parts: equal to a dictionary, whatever the batches; bounded; and unsorted input is found out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from edge_appliance.core import merge_sorted as module
from edge_appliance.core.merge_sorted import SortedPart, merge_sorted
from edge_appliance.errors import FormatError

TAGS = ("site", "host")
SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        ("time_ns", pa.int16()),
        ("site", pa.utf8()),
        ("host", pa.utf8()),
        ("f", pa.float64()),
        ("u", pa.decimal128(20, 0)),
        ("s", pa.utf8()),
    ]
)
Row = dict[str, Any]


def key_of(row: Row) -> tuple[Any, ...]:
    """A key that sorts as rows do: a missing tag first."""
    return (*((row[tag] is not None, row[tag] or "") for tag in TAGS), row["time"], row["time_ns"])


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Rows as a part has them."""
    return pa.Table.from_pylist(list(rows), SCHEMA)


def random_part(rng: random.Random, rows: int) -> list[Row]:
    """Sorted rows with each key once; few keys, so that parts share them."""
    found: dict[tuple[Any, ...], Row] = {}
    for _ in range(rows):
        row = {
            "time": rng.randrange(-5, 6),
            "time_ns": rng.choice((0, 999)),
            "site": rng.choice((None, "", "a", "ä", "b")),
            "host": rng.choice((None, "x", "y")),
            "f": rng.choice((None, rng.random())),
            "u": rng.choice((None, rng.randrange(2**60))),
            "s": rng.choice((None, "text")),
        }
        found[key_of(row)] = row
    return [found[key] for key in sorted(found)]


def expected(parts: Sequence[Sequence[Row]]) -> list[Row]:
    """The last value of each field by key, in key order."""
    merged: dict[tuple[Any, ...], Row] = {}
    for rows in parts:
        for row in rows:
            written = {name: value for name, value in row.items() if value is not None}
            merged[key_of(row)] = {**merged.get(key_of(row), row), **written}
    return [merged[key] for key in sorted(merged)]


def batches(rows: Sequence[Row], size: int) -> Iterator[pa.Table]:
    """The rows in batches, with an empty one before them."""
    yield SCHEMA.empty_table()
    for start in range(0, len(rows), size):
        yield table_of(rows[start : start + size])


def inputs(parts: Sequence[Sequence[Row]], size: int) -> list[SortedPart]:
    """What is merged."""
    return [SortedPart(f"part {number}", batches(rows, size)) for number, rows in enumerate(parts)]


@pytest.mark.parametrize("seed", range(12))
def test_merge_equals_a_dictionary(seed: int) -> None:
    """Whatever parts share keys and wherever batches end, each key is there once with its last values, in order."""
    rng = random.Random(seed)
    parts = [random_part(rng, rng.choice((0, 1, 30, 120))) for _ in range(rng.randrange(1, 6))]
    merged = list(merge_sorted(inputs(parts, rng.choice((1, 3, 50))), TAGS))
    assert pa.concat_tables([SCHEMA.empty_table(), *merged]).to_pylist() == table_of(expected(parts)).to_pylist()


def test_places_that_would_overflow_are_numbered_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many tags with many values keep their order."""
    monkeypatch.setattr(module, "_PLACES_MAX", 3)
    rng = random.Random(7)
    parts = [random_part(rng, 100), random_part(rng, 100)]
    merged = pa.concat_tables(merge_sorted(inputs(parts, 7), TAGS))
    assert merged.to_pylist() == table_of(expected(parts)).to_pylist()


def test_rows_without_tags_are_merged_by_time() -> None:
    """A table may have no tags at all."""
    schema = pa.schema([("time", pa.timestamp("us", tz="UTC")), ("time_ns", pa.int16()), ("f", pa.int64())])
    old = pa.Table.from_pylist([{"time": 1, "time_ns": 0, "f": 1}, {"time": 3, "time_ns": 0, "f": 1}], schema)
    new = pa.Table.from_pylist([{"time": 2, "time_ns": 0, "f": 2}, {"time": 3, "time_ns": 0, "f": 2}], schema)
    merged = pa.concat_tables(merge_sorted([SortedPart("old", iter([old])), SortedPart("new", iter([new]))], ()))
    assert merged.column("f").to_pylist() == [1, 2, 2]


def test_only_one_batch_of_each_part_is_at_hand() -> None:
    """A batch is asked for when the one before it is used up, so memory follows batches and not parts."""
    rng = random.Random(3)
    parts = [random_part(rng, 200) for _ in range(3)]
    taken = [0, 0, 0]

    def counted(number: int) -> Iterator[pa.Table]:
        for batch in batches(parts[number], 5):
            taken[number] += batch.num_rows
            yield batch

    sources = [SortedPart(str(number), counted(number)) for number in range(3)]
    done = 0
    for merged in merge_sorted(sources, TAGS):
        done += merged.num_rows
        assert sum(taken) <= 3 * done + 3 * 2 * 5


@pytest.mark.parametrize("size", [2, 100])
def test_unsorted_part_is_found_out(size: int) -> None:
    """A part whose rows are not in the order it declares is named, be it inside a batch or between two."""
    rows = random_part(random.Random(1), 60)
    rows[10], rows[40] = rows[40], rows[10]
    with pytest.raises(FormatError, match="part 1"):
        list(merge_sorted(inputs([random_part(random.Random(2), 60), rows], size), TAGS))
