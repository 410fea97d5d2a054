"""Parts as files: settings that every reader takes, and a footer that says all the catalog needs."""

from __future__ import annotations

import datetime as dt
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge_appliance import parquet_file
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.parts import Part
from edge_appliance.errors import DiskError, FormatError, NewerFormatError
from edge_appliance.parquet_file import PartFooter, encode_parquet, read_footer, write_part

PART = Part("ed ge", "cpu", dt.date(2026, 1, 2), "gw-01", "0123abcd", 7, 9, 1, 3, 0, 0, -5, 2**63 - 1)
COLUMNS = (
    ColumnDefinition("date", Kind.TAG),
    ColumnDefinition("host.name", Kind.TAG),
    ColumnDefinition("flöat", Kind.FLOAT),
    ColumnDefinition("int", Kind.INT),
    ColumnDefinition("u", Kind.UINT),
    ColumnDefinition("bool", Kind.BOOL),
    ColumnDefinition("text", Kind.STRING),
)
FOOTER = PartFooter(PART, COLUMNS, (3, 4), 12)


def make_table(rows: int = 100, seed: int = 1) -> pa.Table:
    """A sorted table as merging makes it, with noise in the numbers."""
    rng = random.Random(seed)
    return pa.table(
        {
            "time": pa.array(range(rows), pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "time_ns": pa.array([0] * rows, pa.int16()),
            "date_": pa.array([None] * (rows // 2) + ["x"] * (rows - rows // 2), pa.utf8()),
            "host.name": pa.array(["a"] * rows, pa.utf8()),
            "flöat": pa.array([rng.random() for _ in range(rows)]),
            "int": pa.array([rng.randrange(2**60) for _ in range(rows)], pa.int64()),
            "u": pa.array([2**64 - 1] * rows, pa.uint64()).cast(pa.decimal128(20, 0)),
            "bool": pa.array([True] * rows),
            "text": pa.array(["t"] * rows),
        }
    )


def test_part_reads_back_equal(tmp_path: Path) -> None:
    """Rows, names and types come back as written, also without an Arrow schema in the file."""
    table = make_table()
    write_part(tmp_path / "part", table, FOOTER)
    assert pq.read_table(tmp_path / "part").replace_schema_metadata(None).equals(table)


def test_footer_reads_back_equal(tmp_path: Path) -> None:
    """The footer gives the part as written, with rows and bytes of the file, and its columns by true names."""
    path = tmp_path / "part"
    part = write_part(path, make_table(), FOOTER)
    assert part == replace(PART, rows=100, size_bytes=path.stat().st_size)
    assert read_footer(path) == replace(FOOTER, part=part)


def test_footer_notes_only_columns_of_the_file(tmp_path: Path) -> None:
    """A column of the table that this part has no value of is not in its footer."""
    write_part(tmp_path / "part", make_table().drop_columns(["u", "date_"]), FOOTER)
    names = [column.name for column in read_footer(tmp_path / "part").columns]
    assert names == ["host.name", "flöat", "int", "bool", "text"]


def test_file_has_the_settings_that_readers_rely_on(tmp_path: Path) -> None:
    """Microseconds with zone, zstd, page index, statistics, and the sort order declared with nulls first."""
    write_part(tmp_path / "part", make_table(), FOOTER)
    metadata = pq.read_metadata(tmp_path / "part")
    group = metadata.row_group(0)
    columns: dict[str, Any] = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert str(metadata.schema.column(0).logical_type) == (
        "Timestamp(isAdjustedToUTC=true, timeUnit=microseconds, is_from_converted_type=false, "
        "force_set_converted_type=false)"
    )
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert all(
        column.is_stats_set and column.has_offset_index and column.has_column_index for column in columns.values()
    )
    assert "DELTA_BINARY_PACKED" in columns["time"].encodings
    assert "RLE_DICTIONARY" in columns["date_"].encodings
    assert "RLE_DICTIONARY" in columns["time_ns"].encodings
    order = [(sorting.column_index, sorting.descending, sorting.nulls_first) for sorting in group.sorting_columns]
    assert order == [(2, False, True), (3, False, True), (0, False, True), (1, False, True)]


@pytest.mark.parametrize(
    ("column", "repeated", "noisy"),
    [("flöat", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"), ("int", "RLE_DICTIONARY", "DELTA_BINARY_PACKED")],
)
def test_encoding_follows_a_sample(tmp_path: Path, column: str, repeated: str, noisy: str) -> None:
    """Numbers that repeat get a dictionary, noise gets the encoding of its type."""
    noise = make_table(20_000)
    position = noise.column_names.index(column)
    values = pa.concat_arrays([noise.column(column).chunk(0).slice(0, 100)] * 200)
    for table, expected in ((noise, noisy), (noise.set_column(position, column, values), repeated)):
        write_part(tmp_path / "part", table, FOOTER)
        assert expected in pq.read_metadata(tmp_path / "part").row_group(0).column(position).encodings


def test_row_groups_are_cut_by_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row group passes its rows or its bytes."""
    table = make_table(1_000)
    monkeypatch.setattr(parquet_file, "_ROW_GROUP_ROWS", 400)
    write_part(tmp_path / "part", table, FOOTER)
    assert pq.read_metadata(tmp_path / "part").num_row_groups == 3
    monkeypatch.setattr(parquet_file, "_ROW_GROUP_BYTES", table.nbytes // 10)
    write_part(tmp_path / "part", table, FOOTER)
    assert pq.read_metadata(tmp_path / "part").num_row_groups >= 10


def test_every_prefix_of_a_part_is_a_format_error(tmp_path: Path) -> None:
    """A short or empty file is recognised, whatever is left of it."""
    path = tmp_path / "part"
    write_part(path, make_table(), FOOTER)
    data = path.read_bytes()
    for length in [*range(0, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(FormatError):
            read_footer(path)


def test_flipped_footer_bytes_never_escape_the_error_tree(tmp_path: Path) -> None:
    """Whatever a damaged footer says, reading it gives a footer or a FormatError; the disk is not blamed."""
    path = tmp_path / "part"
    write_part(path, make_table(), FOOTER)
    data = path.read_bytes()
    rng = random.Random(7)
    for _ in range(400):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data) * 2 // 3, len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with suppress(FormatError):
            read_footer(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("edge.format", None),
        ("edge.format", "x"),
        ("edge.ranks", "[1]"),
        ("edge.ranks", '["1",2]'),
        ("edge.tags", "{"),
        ("edge.fields", "[]"),
        ("edge.fields", '{"a":"complex"}'),
        ("edge.date", "yesterday"),
    ],
)
def test_footer_with_a_wrong_entry_is_a_format_error(tmp_path: Path, key: str, value: str | None) -> None:
    """A part of somebody else, or with a damaged entry, is told from ours."""
    path = tmp_path / "part"
    write_part(path, make_table(), FOOTER)
    text = {k.decode(): v.decode() for k, v in pq.read_metadata(path).metadata.items()}
    text.pop(key) if value is None else text.update({key: value})
    pq.write_table(make_table().replace_schema_metadata(text), path)
    with pytest.raises(FormatError):
        read_footer(path)


def test_footer_of_a_later_release_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer format is its own error, with the file in it."""
    monkeypatch.setattr(parquet_file, "FORMAT_VERSION", 2)
    write_part(tmp_path / "part", make_table(), FOOTER)
    monkeypatch.undo()
    with pytest.raises(NewerFormatError, match="part"):
        read_footer(tmp_path / "part")


def test_disk_errors_keep_their_number(tmp_path: Path) -> None:
    """A path that cannot be written or read is a DiskError with its errno."""
    with pytest.raises(DiskError) as refused:
        write_part(tmp_path / "missing" / "part", make_table(), FOOTER)
    assert refused.value.errno == 2
    with pytest.raises(DiskError) as gone:
        read_footer(tmp_path / "missing")
    assert gone.value.errno == 2


def test_full_disk_is_a_disk_error_with_enospc() -> None:
    """A write that finds no space says so: the persister must tell it from a bad table."""
    with pytest.raises(DiskError) as full:
        write_part(Path("/dev/full"), make_table(200_000), FOOTER)
    assert full.value.errno == 28


def test_answer_of_a_query_is_encoded_with_its_schema() -> None:
    """An empty answer keeps its columns."""
    schema = pa.schema([("time", pa.timestamp("ns", tz="UTC")), ("x", pa.int64())])
    assert pq.read_table(pa.BufferReader(encode_parquet(schema, []))).schema.names == ["time", "x"]
