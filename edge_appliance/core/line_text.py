"""Rows back to line protocol: what is kept of a table that cannot become Parquet. The parser reads the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from edge_appliance.core.columns import Chunk, RowSet
from edge_appliance.core.delivery import ColumnDefinition, Kind, Tags

_MEASUREMENT: Final = str.maketrans({"\\": r"\\", ",": r"\,", " ": r"\ "})
_NAME: Final = str.maketrans({"\\": r"\\", ",": r"\,", "=": r"\=", " ": r"\ "})
_STRING: Final = str.maketrans({"\\": r"\\", '"': r"\""})


def row_lines(row_set: RowSet) -> Iterator[bytes]:
    """Yield the lines of `row_set` in order of arrival, each with its LF, one piece of text a chunk."""
    fields = [column for column in row_set.columns if column.kind is not Kind.TAG]
    heads: dict[int, str] = {}
    for chunk in row_set.chunks:
        yield "".join(_chunk_lines(row_set, chunk, fields, heads)).encode()


def head_text(table: str, tags: Tags) -> str:
    """Measurement and tags of a line."""
    pairs = (f",{key.translate(_NAME)}={value.translate(_NAME)}" for key, value in tags)
    return table.translate(_MEASUREMENT) + "".join(pairs)


def field_text(name: str, kind: Kind, value: float | int | bool | str) -> str:
    """A field of a line."""
    return f"{name.translate(_NAME)}={value_text(kind, value)}"


def value_text(kind: Kind, value: float | int | bool | str) -> str:
    """A field value as a line states it."""
    match kind:
        case Kind.INT:
            return f"{value}i"
        case Kind.UINT:
            return f"{value}u"
        case Kind.BOOL:
            return "true" if value else "false"
        case Kind.STRING:
            return f'"{str(value).translate(_STRING)}"'
        case _:
            # The shortest text that reads back as the same float.
            return repr(value)


def _chunk_lines(
    row_set: RowSet, chunk: Chunk, fields: Sequence[ColumnDefinition], heads: dict[int, str]
) -> Iterator[str]:
    present = [column for column in fields if column.name in chunk.fields]
    names = [column.name.translate(_NAME) for column in present]
    kinds = [column.kind for column in present]
    values = [chunk.field(column.name, column.kind).to_pylist() for column in present]
    for row, (ref, time_ns) in enumerate(zip(chunk.series.to_pylist(), chunk.time.to_pylist(), strict=True)):
        head = heads.get(ref)
        if head is None:
            head = heads[ref] = head_text(row_set.table, row_set.series.tags[ref])
        pairs = [
            f"{name}={value_text(kind, column[row])}"
            for name, kind, column in zip(names, kinds, values, strict=True)
            if column[row] is not None
        ]
        yield f"{head} {','.join(pairs)} {time_ns}\n"
