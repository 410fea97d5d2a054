"""Carries out one merge: reads sorted parts in batches, writes their rows as new parts into the spool, durably.

Nothing but new files comes of it. Who asked for it commits them, or deletes them when it does not.
Memory: a share of `READ_BYTES` for the batches at hand, one row group that is gathered, and one that is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from edge_appliance import durable
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.maintenance import Merge
from edge_appliance.core.merge_sorted import SortedPart, merge_sorted
from edge_appliance.core.parts import Part, file_column, part_name
from edge_appliance.errors import DiskError, FormatError
from edge_appliance.parquet_file import PartFooter, PartReader, PartWriter

READ_BYTES: Final = 4 * 2**20
"""Decoded bytes of all batches at hand, as far as the first rows of a part foretell the others."""
GROUP_ROWS: Final = 32 * 1024
GROUP_BYTES: Final = 8 * 2**20
_SAMPLE_ROWS: Final = 64
_MIN_ROWS: Final = 64
_MAX_ROWS: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class MergeJob:
    """What to merge, and what the outcome is to be called."""

    merge: Merge
    paths: Sequence[Path]
    """Local copies, in the order of `merge.parts`."""
    incarnation: str
    generation: int
    target_bytes: int


def write_merged(job: MergeJob, spool_dir: Path, check: Callable[[], None] = lambda: None) -> list[Part]:
    """Write the outcome of `job` under its final names, synced; returns the new parts.

    `check` is called now and then and may raise. Raises FormatError, which names the path, when a part is damaged,
    and DiskError; nothing is left behind then.
    """
    written = _Written(job, spool_dir)
    try:
        with ExitStack() as opened:
            readers = [_open(path, part) for path, part in zip(job.paths, job.merge.parts, strict=True)]
            for reader in readers:
                opened.callback(reader.close)
            columns = merged_columns(readers)
            schema = _schema(readers, columns)
            rows = max(_MIN_ROWS, min(_MAX_ROWS, READ_BYTES // len(readers) // _row_bytes(readers)))
            tags = [file_column(column.name) for column in columns if column.kind is Kind.TAG]
            inputs = [
                SortedPart(str(path), _aligned(reader, schema, rows))
                for path, reader in zip(job.paths, readers, strict=True)
            ]
            segments = [reader.footer.segments for reader in readers]
            span = min(first for first, _ in segments), max(last for _, last in segments)
            for group in _gathered(merge_sorted(inputs, tags)):
                check()
                written.add(group, columns)
            return written.publish(columns, span)
    except BaseException:
        written.discard()
        raise
    finally:
        pa.default_memory_pool().release_unused()


def merged_columns(readers: Sequence[PartReader]) -> tuple[ColumnDefinition, ...]:
    """Tags and fields of all parts; tags in an order that agrees with each part's, since rows are sorted by it."""
    kinds: dict[str, Kind] = {}
    for reader in readers:
        for column in reader.footer.columns:
            if kinds.setdefault(column.name, column.kind) is not column.kind:
                raise FormatError(str(reader.path), 0, f"column {column.name!r} has another kind than in older parts")
    orders = [[column.name for column in r.footer.columns if column.kind is Kind.TAG] for r in readers]
    tags: list[str] = []
    while waiting := [order for order in orders if order]:
        heads = dict.fromkeys(order[0] for order in waiting)
        free = next((name for name in heads if not any(name in order[1:] for order in waiting)), None)
        if free is None:
            raise FormatError(str(readers[-1].path), 0, "its rows are sorted by its tags in another order")
        tags.append(free)
        orders = [order[1:] if order[0] == free else order for order in waiting]
    fields = [name for name, kind in kinds.items() if kind is not Kind.TAG]
    return tuple(ColumnDefinition(name, kinds[name]) for name in (*tags, *fields))


def _open(path: Path, part: Part) -> PartReader:
    reader = PartReader(path)
    own = reader.footer.part
    if (own.database, own.table, own.date, own.rank_lo, own.rank_hi, own.slice, own.rows) != (
        part.database,
        part.table,
        part.date,
        part.rank_lo,
        part.rank_hi,
        part.slice,
        part.rows,
    ):
        reader.close()
        raise FormatError(str(path), 0, "its footer is that of another part")
    return reader


def _schema(readers: Sequence[PartReader], columns: Sequence[ColumnDefinition]) -> pa.Schema:
    known: dict[str, pa.Field] = {}
    for reader in readers:
        for column in reader.schema:
            if known.setdefault(column.name, column).type != column.type:
                raise FormatError(str(reader.path), 0, f"column {column.name!r} has another type than in older parts")
    names = ["time", "time_ns", *(file_column(column.name) for column in columns)]
    return pa.schema([pa.field(name, known[name].type) for name in names])


def _row_bytes(readers: Sequence[PartReader]) -> int:
    """Bytes of the widest of the first rows, decoded."""
    widest = 1
    for reader in readers:
        first = next(reader.batches(_SAMPLE_ROWS), None)
        if first is not None and first.num_rows:
            widest = max(widest, first.nbytes // first.num_rows)
    return widest


def _aligned(reader: PartReader, schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    """Batches with all columns of `schema`; those that the part lacks are null."""
    for batch in reader.batches(rows):
        columns = [
            batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        yield pa.Table.from_arrays(columns, schema=schema)


def _gathered(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of the size of a row group."""
    waiting: list[pa.Table] = []
    rows = size_bytes = 0
    for piece in pieces:
        waiting.append(piece)
        rows += piece.num_rows
        size_bytes += piece.nbytes
        if rows >= GROUP_ROWS or size_bytes >= GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)


class _Written:
    """The parts of the outcome: all but the last one have the target's size. Their number is known at the end."""

    def __init__(self, job: MergeJob, spool_dir: Path) -> None:
        self._job = job
        self._spool_dir = spool_dir
        self._writers: list[tuple[PartWriter, Path, int, int]] = []
        """With its path and the smallest and largest time in it."""

    def add(self, rows: pa.Table, columns: Sequence[ColumnDefinition]) -> None:
        """Append sorted rows to the last part, or begin the next one."""
        if not self._writers or self._writers[-1][0].size_bytes >= self._job.target_bytes:
            name = part_name(self._part(len(self._writers), 0))
            path = self._spool_dir / f"{name}{durable.TEMPORARY_SUFFIX}"
            with suppress(OSError):
                path.unlink()
            self._writers.append((PartWriter(path, rows, columns), path, 2**63 - 1, -(2**63)))
        writer, path, first_ns, last_ns = self._writers[-1]
        writer.write(rows)
        low_ns, high_ns = _times(rows)
        self._writers[-1] = writer, path, min(first_ns, low_ns), max(last_ns, high_ns)

    def publish(self, columns: tuple[ColumnDefinition, ...], segments: tuple[int, int]) -> list[Part]:
        """Finish all files, sync them, give them their names and sync these."""
        parts = []
        for number, (writer, _, first_ns, last_ns) in enumerate(self._writers):
            part = replace(self._part(number, len(self._writers)), min_time_ns=first_ns, max_time_ns=last_ns)
            parts.append(writer.finish(PartFooter(part, columns, segments, self._job.generation)))
        for _, path, _, _ in self._writers:
            durable.sync_file(path)
        for (_, path, _, _), part in zip(self._writers, parts, strict=True):
            try:
                path.replace(self._spool_dir / part_name(part))
            except OSError as error:
                raise DiskError("rename", str(path), error) from error
        durable.sync_directory(self._spool_dir)
        return parts

    def discard(self) -> None:
        """Remove all files, whatever state they are in."""
        for number, (writer, path, _, _) in enumerate(self._writers):
            with suppress(DiskError, ValueError, OSError):
                writer.__exit__()
            for name in (path, self._spool_dir / part_name(self._part(number, 0))):
                with suppress(OSError):
                    name.unlink()

    def _part(self, number: int, count: int) -> Part:
        merge, first = self._job.merge, self._job.merge.parts[0]
        return replace(
            first,
            incarnation=self._job.incarnation,
            rank_lo=merge.rank_lo,
            rank_hi=merge.rank_hi,
            slice=number,
            slices=count,
            rows=0,
            size_bytes=0,
            is_stored=False,
        )


def _times(rows: pa.Table) -> tuple[int, int]:
    """Smallest and largest time in ns."""
    micros = rows.column("time").cast(pa.int64())
    nanos = pc.add(pc.multiply(micros, 1_000), rows.column("time_ns").cast(pa.int64()))
    low_high = pc.min_max(nanos)
    return low_high["min"].as_py(), low_high["max"].as_py()
