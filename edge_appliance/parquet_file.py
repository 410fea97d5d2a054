"""Parquet files of parts: how they are written, and the footer that lets a lost catalog be built again.

The only module that imports pyarrow.parquet. It neither syncs nor renames: the persister does that for many files
at once. It also encodes answers of queries, which are no parts.

Footer key-values, all UTF-8 text:

    edge.format        version of these rules, now 1
    edge.database      name of the database             edge.measurement   name of the table
    edge.date          UTC date, YYYY-MM-DD             edge.time_unit     "us+ns": see time and time_ns
    edge.tags          JSON list of tag names           edge.fields        JSON object, name to type
    edge.renamed       JSON object, column name in the file to true name; only where they differ
    edge.node          node id                          edge.incarnation   of the node's state directory
    edge.ranks         JSON [lo, hi]                    edge.slice         JSON [number, count], from 0
    edge.segments      JSON [first, last]               edge.generation    newest catalog generation known
    edge.times         JSON [min, max] in ns            edge.written_by    program and version
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edge_appliance import __version__
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.parts import Part, file_column
from edge_appliance.errors import DiskError, FormatError, NewerFormatError

FORMAT_VERSION: Final = 1

_ROW_GROUP_ROWS: Final = 128 * 1024
_ROW_GROUP_BYTES: Final = 32 * 2**20
PAGE_BYTES: Final = 64 * 1024
"""Whoever reads many parts at once holds a page of each column of each of them."""
_READ_BYTES: Final = 64 * 1024
"""Of each column that is read at once."""
_SAMPLE_ROWS: Final = 4_096
_DICTIONARY_SHARE: Final = 0.7
"""Distinct share of a sample up to which a dictionary is smaller: rounded decimals repeat, noise does not."""
_NUMBER_ENCODINGS: Final[Mapping[Kind, str]] = {Kind.FLOAT: "BYTE_STREAM_SPLIT", Kind.INT: "DELTA_BINARY_PACKED"}


@dataclass(frozen=True, slots=True)
class PartFooter:
    """What a part says about itself."""

    part: Part
    """Rows and bytes are those of the file; `is_stored` is not known to it."""
    columns: tuple[ColumnDefinition, ...]
    """Tags in sort order, then fields, by their true names: those that the file has."""
    segments: tuple[int, int]
    """First and last segment whose rows are in it."""
    generation: int
    """Newest generation of the catalog when it was written."""


def write_part(path: Path, table: pa.Table, footer: PartFooter) -> Part:
    """Write sorted rows under a temporary name and return the part with its rows and bytes.

    Of `footer.columns` only those that `table` has are noted.
    """
    with PartWriter(path, table, footer.columns) as writer:
        writer.write(table)
        return writer.finish(footer)


class PartWriter:
    """Writes one part in sorted pieces. Leaving its block without `finish` leaves half a file behind."""

    def __init__(self, path: Path, sample: pa.Table, columns: Sequence[ColumnDefinition]) -> None:
        """`sample` has the columns of all pieces; its values decide how they are encoded."""
        self._path = path
        names = sample.column_names
        self._columns = tuple(column for column in columns if file_column(column.name) in names)
        self._rows = 0
        options = {
            "version": "2.6",
            "compression": "zstd",
            "compression_level": 3,
            "write_statistics": True,
            "write_page_index": True,
            "data_page_size": PAGE_BYTES,
            # Readers take the types from Parquet itself; a copy of the Arrow schema only costs bytes.
            "store_schema": False,
            "sorting_columns": _sorting(names, self._columns),
            **_encodings(sample, self._columns),
        }
        with self._translated():
            self._sink = pa.OSFile(str(path), "wb")
            self._writer = pq.ParquetWriter(self._sink, sample.schema, **options)

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self._translated():
            try:
                self._writer.close()
            finally:
                self._sink.close()

    @property
    def size_bytes(self) -> int:
        """Bytes so far."""
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        """Append rows, as row groups of their own."""
        with self._translated():
            self._writer.write_table(table, row_group_size=_row_group_rows(table))
        self._rows += table.num_rows

    def finish(self, footer: PartFooter) -> Part:
        """Write the footer; returns the part with its rows and bytes."""
        with self._translated():
            self._writer.add_key_value_metadata(_to_text(replace(footer, columns=self._columns)))
            self._writer.close()
            self._sink.close()
            size_bytes = self._path.stat().st_size
        return replace(footer.part, rows=self._rows, size_bytes=size_bytes)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DiskError("write", str(self._path), error) from error


class PartReader:
    """Reads one part in batches, without ever holding a whole row group of it decoded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.footer = read_footer(path)
        with _damage_told(path):
            self._file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the file."""
        return self._file.schema_arrow

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All rows, at most `rows` at a time; raises FormatError when the file is damaged."""
        with _damage_told(self.path):
            yield from self._file.iter_batches(batch_size=rows, use_threads=False)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


def read_footer(path: Path) -> PartFooter:
    """Read what the part at `path` says about itself; raises FormatError when it is damaged or not a part."""
    with _damage_told(path):
        size_bytes = path.stat().st_size
        metadata = pq.read_metadata(path)
    text = {key.decode(errors="replace"): value for key, value in (metadata.metadata or {}).items()}
    try:
        return _from_text(text, metadata.num_rows, size_bytes)
    except NewerFormatError as error:
        raise NewerFormatError(str(path), 0, error.reason) from None
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise FormatError(str(path), 0, f"footer entry {error} is missing or wrong") from error


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Damage comes as OSError without a number, too.
        if error.errno is not None:
            raise DiskError("read", str(path), error) from error
        raise FormatError(str(path), 0, str(error)) from error
    except pa.ArrowException as error:
        raise FormatError(str(path), 0, str(error)) from error


def encode_parquet(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """Encode the answer of a query as one Parquet file in memory; an empty one keeps its schema."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches(batches, schema), sink, version="2.6", compression="zstd")
    return bytes(sink.getvalue())


def decode_parquet(data: bytes) -> pa.Table:
    """The rows of an answer that `encode_parquet` made."""
    return pq.read_table(pa.BufferReader(data))


class ParquetRows:
    """A Parquet file of answers, one after the other: for people, no part."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        """Append rows; all tables have the same columns."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._sink, rows.schema, version="2.6", compression="zstd")
        self._writer.write_table(rows)

    def close(self) -> None:
        """Write the footer."""
        if self._writer is not None:
            self._writer.close()


def _row_group_rows(table: pa.Table) -> int:
    if not table.num_rows:
        return _ROW_GROUP_ROWS
    by_bytes: int = _ROW_GROUP_BYTES * table.num_rows // max(table.nbytes, 1)
    return max(1, min(_ROW_GROUP_ROWS, by_bytes))


def _sorting(names: Sequence[str], columns: Sequence[ColumnDefinition]) -> list[pq.SortingColumn]:
    tags = [file_column(column.name) for column in columns if column.kind is Kind.TAG]
    return [pq.SortingColumn(names.index(name), nulls_first=True) for name in (*tags, "time", "time_ns")]


def _encodings(table: pa.Table, columns: Sequence[ColumnDefinition]) -> dict[str, Any]:
    """Dictionary for whatever repeats, else the encoding that suits the type."""
    chosen = {"time": "DELTA_BINARY_PACKED"}
    for column in columns:
        encoding = _NUMBER_ENCODINGS.get(column.kind)
        if encoding and not _repeats(table.column(file_column(column.name))):
            chosen[file_column(column.name)] = encoding
    return {
        "use_dictionary": [name for name in table.column_names if name not in chosen],
        "column_encoding": chosen,
    }


def _repeats(values: pa.ChunkedArray) -> bool:
    step = max(1, len(values) // _SAMPLE_ROWS)
    sample = values.take(pa.array(range(0, len(values), step), pa.int64())).drop_null()
    return bool(pc.count_distinct(sample).as_py() <= _DICTIONARY_SHARE * len(sample))


def _to_text(footer: PartFooter) -> dict[str, str]:
    part = footer.part
    fields = {column.name: column.kind.name.lower() for column in footer.columns if column.kind is not Kind.TAG}
    renamed = {file_column(c.name): c.name for c in footer.columns if file_column(c.name) != c.name}
    text = {
        "edge.format": str(FORMAT_VERSION),
        "edge.database": part.database,
        "edge.measurement": part.table,
        "edge.date": part.date.isoformat(),
        "edge.time_unit": "us+ns",
        "edge.tags": _json([column.name for column in footer.columns if column.kind is Kind.TAG]),
        "edge.fields": _json(fields),
        "edge.node": part.node,
        "edge.incarnation": part.incarnation,
        "edge.ranks": _json([part.rank_lo, part.rank_hi]),
        "edge.slice": _json([part.slice, part.slices]),
        "edge.segments": _json(list(footer.segments)),
        "edge.generation": str(footer.generation),
        "edge.times": _json([part.min_time_ns, part.max_time_ns]),
        "edge.written_by": f"edge-appliance {__version__}",
    }
    return text | ({"edge.renamed": _json(renamed)} if renamed else {})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _from_text(text: Mapping[str, bytes], rows: int, size_bytes: int) -> PartFooter:
    version = int(text["edge.format"])
    if version > FORMAT_VERSION:
        raise NewerFormatError("part", 0, f"format {version} is newer than this release knows ({FORMAT_VERSION})")
    tags = [ColumnDefinition(str(name), Kind.TAG) for name in json.loads(text["edge.tags"])]
    fields = json.loads(text["edge.fields"]).items()
    rank_lo, rank_hi = _two_integers(text["edge.ranks"])
    number, count = _two_integers(text["edge.slice"])
    min_time_ns, max_time_ns = _two_integers(text["edge.times"])
    part = Part(
        text["edge.database"].decode(),
        text["edge.measurement"].decode(),
        dt.date.fromisoformat(text["edge.date"].decode()),
        text["edge.node"].decode(),
        text["edge.incarnation"].decode(),
        rank_lo,
        rank_hi,
        number,
        count,
        rows,
        size_bytes,
        min_time_ns,
        max_time_ns,
    )
    columns = (*tags, *(ColumnDefinition(str(name), Kind[kind.upper()]) for name, kind in fields))
    return PartFooter(part, columns, _two_integers(text["edge.segments"]), int(text["edge.generation"]))


def _two_integers(text: bytes) -> tuple[int, int]:
    first, second = json.loads(text)
    if type(first) is not int or type(second) is not int:
        raise ValueError(text.decode(errors="replace"))
    return first, second
