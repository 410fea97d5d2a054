"""Part names are safe and unique; cover and adoption count complete sets only."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from edge_appliance.core.parts import (
    Part,
    complete_sets,
    cover_intervals,
    encode_name,
    file_column,
    part_key,
    part_name,
    surviving,
    utc_date,
)

DAY = dt.date(2026, 1, 2)


def make_part(lo: int = 7, hi: int | None = None, number: int = 0, count: int = 1, **changes: object) -> Part:
    """A part of edge.cpu with ranks lo … hi."""
    part = Part("edge", "cpu", DAY, "gw-01", "0123abcd", lo, lo if hi is None else hi, number, count, 10, 1000, 0, 9)
    return replace(part, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("time_ns", "date"),
    [
        pytest.param(0, dt.date(1970, 1, 1), id="epoch"),
        pytest.param(-1, dt.date(1969, 12, 31), id="one ns before it: floor, not truncation"),
        pytest.param(-86_400 * 10**9, dt.date(1969, 12, 31), id="whole day before"),
        pytest.param(86_400 * 10**9 - 1, dt.date(1970, 1, 1), id="last ns of a day"),
        pytest.param(-(2**63), dt.date(1677, 9, 21), id="lowest time"),
        pytest.param(2**63 - 1, dt.date(2262, 4, 11), id="highest time"),
    ],
)
def test_utc_date_floors(time_ns: int, date: dt.date) -> None:
    """A date is the floor of the time, also before 1970."""
    assert utc_date(time_ns) == date


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("cpu.load-1_a", "cpu.load-1_a"),
        ("_hidden", "%5Fhidden"),
        (".", "%2E"),
        ("..", "%2E."),
        ("a/b c", "a%2Fb%20c"),
        ("100%", "100%25"),
        ("Müller", "M%C3%BCller"),
    ],
)
def test_encode_name_escapes(name: str, encoded: str) -> None:
    """Only plain characters stay; a leading `_` or `.` is encoded."""
    assert encode_name(name) == encoded


def test_encode_name_long_names_stay_different() -> None:
    """Long names are capped, and neither each other nor a name that spells a capped one share a path."""
    long, other = "x" * 70_000, "x" * 69_999 + "y"
    names = [encode_name(long), encode_name(other), encode_name(encode_name(long))]
    assert len(set(names)) == 3
    assert max(map(len, names)) < 200


def test_part_key_has_the_documented_form() -> None:
    """The path in the store sorts by rank and names node and incarnation."""
    assert part_key(make_part(7, 12, 3, 9, table="a b")) == (
        "edge/a%20b/date=2026-01-02/gw-01-0123abcd-00000000000000000007-00000000000000000012-0003.parquet"
    )


def test_names_fit_a_directory_and_an_object_key() -> None:
    """With the longest names every path segment has at most 255 bytes and the key at most 1,024."""
    part = make_part(2**63 - 1, number=9999, database="ä" * 40_000, table="ö" * 40_000, node="ü" * 40_000)
    assert max(len(piece) for piece in [*part_key(part).split("/"), part_name(part)]) <= 255
    assert len(part_key(part)) <= 1024


def test_part_name_differs_with_everything_that_makes_a_part() -> None:
    """Flat names never collide."""
    part = make_part()
    others = [
        replace(part, database="x"),
        replace(part, table="x"),
        replace(part, date=dt.date(2026, 1, 3)),
        replace(part, node="x"),
        replace(part, incarnation="00000000"),
        replace(part, rank_lo=1),
        replace(part, rank_hi=9),
        replace(part, slice=1),
    ]
    assert len({part_name(other) for other in [part, *others]}) == len(others) + 1
    assert part_name(replace(part, is_stored=True, size_bytes=5)) == part_name(part)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("usage", "usage"),
        ("date", "date_"),
        ("date_", "date__"),
        ("Date", "Date_"),
        ("Time", "Time_"),
        ("time_ns", "time_ns_"),
        ("dated", "dated"),
        ("_", "_"),
    ],
)
def test_file_column_avoids_own_columns(name: str, column: str) -> None:
    """A colliding name gets one more underscore, whatever other columns there are."""
    assert file_column(name) == column


def test_cover_needs_all_slices() -> None:
    """A set with a missing slice covers nothing."""
    first, second = make_part(5, number=0, count=2), make_part(5, number=1, count=2)
    assert cover_intervals([first]) == {}
    assert cover_intervals([first, second]) == {("edge", "cpu", DAY): [(5, 5)]}


def test_cover_is_the_whole_interval_of_each_set() -> None:
    """A merged part covers every rank from lo to hi; sets beside it count on their own."""
    parts = [make_part(5, 9), make_part(12), make_part(20, number=0, count=2)]
    assert cover_intervals(parts) == {("edge", "cpu", DAY): [(5, 9), (12, 12)]}


def test_cover_is_per_table_and_date() -> None:
    """A part says nothing about other tables, databases and dates."""
    parts = [make_part(5), replace(make_part(6), table="mem"), replace(make_part(7), date=dt.date(2026, 1, 3))]
    assert cover_intervals(parts) == {
        ("edge", "cpu", DAY): [(5, 5)],
        ("edge", "mem", DAY): [(6, 6)],
        ("edge", "cpu", dt.date(2026, 1, 3)): [(7, 7)],
    }


def test_complete_sets_keeps_slices_in_order() -> None:
    """Slices come in order, whatever order they were listed in."""
    parts = [make_part(5, number=n, count=3) for n in (2, 0, 1)]
    (slices,) = complete_sets(parts).values()
    assert [part.slice for part in slices] == [0, 1, 2]


def test_surviving_covered_interval_loses() -> None:
    """Inputs of a merge that came back lose against its output, and parts outside stay."""
    merged, inputs, outside = make_part(5, 9), [make_part(5), make_part(7, 8)], make_part(12)
    assert surviving([*inputs, outside, merged]) == [merged, outside]


def test_surviving_incomplete_merge_does_not_win() -> None:
    """An incomplete output covers nothing: its inputs stay."""
    inputs = [make_part(5), make_part(7)]
    assert surviving([*inputs, make_part(5, 9, 0, 2)]) == inputs


def test_surviving_other_incarnation_does_not_cover() -> None:
    """Ranks of another incarnation are other numbers."""
    parts = [make_part(5, 9, incarnation="ffffffff"), make_part(7)]
    assert set(surviving(parts)) == set(parts)
