"""Query results as bytes: JSON, JSON lines, CSV, a table for people, Parquet.

Everything here runs in a worker thread, a slice of rows at a time, so that a large result never holds the
interpreter for long and is never in memory twice. Times are RFC 3339 with nine digits in every text format, also
inside lists; integers keep all their digits; nan and inf, which JSON lacks, become null.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

Batches = Sequence[pa.RecordBatch]
Encoder = Callable[[pa.Schema, Batches], Iterator[bytes]]

_SLICE_VALUES: Final = 16_384
"""Values turned into Python objects at once: a few milliseconds of work."""
_TIME_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
_NS: Final = pa.timestamp("ns")

_json: Final = msgspec.json.Encoder(decimal_format="number", enc_hook=str)


class Format(NamedTuple):
    """A result format: what clients ask for, what the answer is called, and how it is made."""

    name: str
    content_type: str
    encode: Encoder


def json_array(schema: pa.Schema, batches: Batches) -> Iterator[bytes]:
    """One array of objects."""
    opening = b"["
    for rows in _row_slices(schema, batches):
        yield opening + _json.encode(rows)[1:-1]
        opening = b","
    yield b"]" if opening == b"," else b"[]"


def json_lines(schema: pa.Schema, batches: Batches) -> Iterator[bytes]:
    """One object a line."""
    for rows in _row_slices(schema, batches):
        yield _json.encode_lines(rows)


def csv(schema: pa.Schema, batches: Batches) -> Iterator[bytes]:
    """A header and a line for each row. Text is quoted, so that an empty string differs from no value."""
    names = [_flat_name(name) for name in schema.names]
    yield _csv_bytes(pa.RecordBatch.from_arrays([pa.array([], pa.string())] * len(names), names), has_header=True)
    for batch in _slices(batches):
        columns = [_flat(column) for column in batch.columns]
        if columns:
            yield _csv_bytes(pa.RecordBatch.from_arrays(columns, names), has_header=False)


def pretty(schema: pa.Schema, batches: Batches) -> Iterator[bytes]:
    """A table with borders for terminals; control characters are blanked out."""
    names = [_flat_name(name) for name in schema.names]
    if not names:
        return
    widths = [len(name) for name in names]
    for columns in map(_text_columns, _slices(batches)):
        longest = (pc.max(pc.utf8_length(column)).as_py() or 0 for column in columns)
        widths = [max(pair) for pair in zip(widths, longest, strict=True)]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+\n"
    header = "|" + "|".join(f" {name:<{width}} " for name, width in zip(names, widths, strict=True)) + "|\n"
    yield (border + header + border).encode()
    for columns in map(_text_columns, _slices(batches)):
        padded = [pc.utf8_rpad(column, width) for column, width in zip(columns, widths, strict=True)]
        lines = pc.binary_join_element_wise(*padded, " | ")
        yield "".join(f"| {line} |\n" for line in lines.to_pylist()).encode()
    yield border.encode()


def in_pieces(data: bytes, size_bytes: int = 256 * 1024) -> Iterator[bytes]:
    """`data` cut into pieces, for a format that only exists whole."""
    for start in range(0, len(data), size_bytes):
        yield data[start : start + size_bytes]


def formats(encode_parquet: Callable[[pa.Schema, Batches], bytes]) -> dict[str, Format]:
    """All formats by name; the first is the default. Parquet is written by its own module."""

    def parquet(schema: pa.Schema, batches: Batches) -> Iterator[bytes]:
        # A generator like the others: nothing may be encoded by who only asks for the pieces, the event loop.
        yield from in_pieces(encode_parquet(schema, batches))

    known = (
        Format("json", "application/json", json_array),
        Format("jsonl", "application/jsonl", json_lines),
        Format("csv", "text/csv; charset=utf-8", csv),
        Format("pretty", "text/plain; charset=utf-8", pretty),
        Format("parquet", "application/vnd.apache.parquet", parquet),
    )
    return {known_format.name: known_format for known_format in known}


def fill(pieces: Iterator[bytes], size_bytes: int) -> tuple[bytes, bool]:
    """Join pieces up to about `size_bytes`; the second value says whether there may be more."""
    taken: list[bytes] = []
    total_bytes = 0
    for piece in pieces:
        taken.append(piece)
        total_bytes += len(piece)
        if total_bytes >= size_bytes:
            return b"".join(taken), True
    return b"".join(taken), False


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = max(1, _SLICE_VALUES // max(1, batch.num_columns))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _row_slices(schema: pa.Schema, batches: Batches) -> Iterator[list[dict[str, Any]]]:
    names = schema.names
    for batch in _slices(batches):
        columns = [_values(column) for column in batch.columns]
        yield [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    """The column as Python values that JSON knows."""
    if pa.types.is_nested(column.type):
        return [_nested_value(value, column.type) for value in column.cast(_plain_type(column.type)).to_pylist()]
    values: list[Any] = _scalars(column).to_pylist()
    return values


def _scalars(column: pa.Array) -> pa.Array:
    """A column that is not nested, with times as text and durations as integer nanoseconds."""
    if pa.types.is_timestamp(column.type):
        # Without its zone: the values are UTC, and a zone would need the host's time zone files.
        return pc.strftime(column.cast(pa.timestamp(column.type.unit)).cast(_NS), format=_TIME_FORMAT)
    if pa.types.is_duration(column.type):
        return column.cast(pa.duration("ns")).cast(pa.int64())
    return column.cast(_plain_type(column.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type to cast to before values are taken: no dictionaries, no views, nanosecond types as text."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(member.name, _plain_type(member.type)) for member in kind])
    if types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    return kind


def _nested_value(value: Any, kind: pa.DataType) -> Any:
    types = pa.types
    if value is None:
        return None
    if types.is_timestamp(kind):
        return value.replace(" ", "T", 1).removesuffix("Z") + "Z"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_nested_value(item, kind.value_type) for item in value]
    if types.is_struct(kind):
        return {member.name: _nested_value(value[member.name], member.type) for member in kind}
    return value


def _flat(column: pa.Array) -> pa.Array:
    """The column as CSV knows it: what is nested, or an interval, becomes its JSON."""
    kind = column.type
    if pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_nested(kind) or pa.types.is_interval(kind):
        texts = [None if value is None else _json.encode(value).decode() for value in _values(column)]
        return pa.array(texts, pa.string())
    return _scalars(column)


def _flat_name(name: str) -> str:
    return name.replace("\n", " ")


def _csv_bytes(batch: pa.RecordBatch, *, has_header: bool) -> bytes:
    sink = io.BytesIO()
    pa_csv.write_csv(batch, sink, pa_csv.WriteOptions(include_header=has_header))
    return sink.getvalue()


def _text_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    texts = []
    for column in map(_flat, batch.columns):
        text = column if pa.types.is_string(column.type) else _to_text(column)
        text = pc.replace_substring_regex(text, pattern=r"[\x00-\x1f\x7f]", replacement=" ")
        texts.append(pc.fill_null(text, ""))
    return texts


def _to_text(column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pa.array([None if value is None else value.hex() for value in column.to_pylist()], pa.string())
    return column.cast(pa.string())
