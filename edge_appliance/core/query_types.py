"""What crosses the border of the SQL engine: labelled parts, and the Arrow types of files, rows and answers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import pyarrow as pa

from edge_appliance.core.columns import STORED_TYPES, batch_schema
from edge_appliance.core.delivery import ColumnDefinition
from edge_appliance.core.interval import Interval
from edge_appliance.core.parts import Part, file_column

PART_COLUMN: Final = "_edge_part"
LO_COLUMN: Final = "_edge_lo"
HI_COLUMN: Final = "_edge_hi"
"""Partition columns of the directory of shared parts: place in the order of writing, and the first and last
microsecond of the stretch that is the part's own. Names with `_edge` are never data."""


class SharedPart(NamedTuple):
    """A part with contested times. The rows with times in `alone` bypass the aggregate all the same."""

    part: Part
    alone: Interval


def portable_schema(schema: pa.Schema) -> pa.Schema:
    """The schema in types that every client takes."""
    return pa.schema([pa.field(f.name, _portable_type(f.type)) for f in schema])


def portable(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the types of `schema`, which is `portable_schema` of its own."""
    arrays = [
        array if array.type == wanted.type else array.cast(wanted.type)
        for array, wanted in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _portable_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(data_type):
        return _portable_type(data_type.value_type)
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("ns", data_type.tz)
    if pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type):
        return pa.utf8()
    if pa.types.is_large_binary(data_type) or pa.types.is_binary_view(data_type):
        return pa.binary()
    return data_type


def no_rows(columns: Collection[ColumnDefinition]) -> pa.RecordBatch:
    """An empty batch of a table: `time`, then `columns`."""
    schema = batch_schema(columns)
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def file_schema(columns: Collection[ColumnDefinition]) -> pa.Schema:
    """Columns of any part of the table; those that an older part lacks are read as nulls."""
    return pa.schema(
        [
            ("time", pa.timestamp("us", tz="UTC")),
            ("time_ns", pa.int16()),
            *((file_column(c.name), STORED_TYPES[c.kind]) for c in columns),
        ]
    )
