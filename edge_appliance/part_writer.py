"""From the rows of one table to Parquet files in the spool, or to lines in quarantine: what a worker does with a table.

Files are written under temporary names; `publish` makes many of them durable at once. Nothing here is listed or shown.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from edge_appliance import durable
from edge_appliance.catalog import Catalog
from edge_appliance.core.columns import RowSet
from edge_appliance.core.interval import MAX_NS
from edge_appliance.core.line_text import row_lines
from edge_appliance.core.memory_plan import SLICE_BYTES
from edge_appliance.core.merge import sort_and_merge
from edge_appliance.core.parts import Part, encode_name, part_name
from edge_appliance.core.set_aside import up_to, without_times
from edge_appliance.errors import DiskError
from edge_appliance.parquet_file import PartFooter, write_part
from edge_appliance.systemd import Station


class PartWriter:
    """Writes tables, one slice in memory at a time for each call in work. Thread-safe."""

    def __init__(
        self,
        spool_dir: Path,
        quarantine_dir: Path,
        catalog: Catalog,
        stop: threading.Event,
        *,
        stations: Sequence[Station] = (),
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self._spool_dir = spool_dir
        self._quarantine_dir = quarantine_dir
        self._catalog = catalog
        self._stop = stop
        self._slice_bytes = slice_bytes
        self._idle = queue.SimpleQueue[Station]()
        """Stations of workers without a table; those with one must get on, slice by slice."""
        for station in stations:
            station.rest()
            self._idle.put(station)

    def write(self, segment_id: int, row_set: RowSet, until_ns: int = MAX_NS) -> list[Part]:
        """Write the rows at or before `until_ns`; ends early, between two slices, when asked to stop."""
        with self._watched() as beat:
            return self._write_slices(segment_id, row_set, until_ns, beat)

    @contextmanager
    def _watched(self) -> Iterator[Callable[[], None]]:
        """While inside, `beat` must be called again within the limit of a station."""
        try:
            station = self._idle.get_nowait()
        except queue.Empty:  # nobody watches, or all that watch do
            yield lambda: None
            return
        station.beat()
        try:
            yield station.beat
        finally:
            station.rest()
            self._idle.put(station)

    def _write_slices(self, segment_id: int, row_set: RowSet, until_ns: int, beat: Callable[[], None]) -> list[Part]:
        state = self._catalog.state
        parts: list[Part] = []
        try:
            for piece in sort_and_merge(row_set, self._slice_bytes, until_ns):
                if self._stop.is_set():
                    break
                beat()
                part = Part(
                    row_set.database,
                    row_set.table,
                    piece.date,
                    state.node,
                    state.incarnation,
                    rank_lo=row_set.rank,
                    rank_hi=row_set.rank,
                    slice=piece.number,
                    slices=piece.count,
                    rows=piece.table.num_rows,
                    size_bytes=0,
                    min_time_ns=piece.min_time_ns,
                    max_time_ns=piece.max_time_ns,
                )
                footer = PartFooter(part, row_set.columns, (segment_id, segment_id), state.generation)
                parts.append(self._write_slice(footer, piece.table))
        finally:
            pa.default_memory_pool().release_unused()
        return parts

    def _write_slice(self, footer: PartFooter, table: pa.Table) -> Part:
        temporary = self._temporary(footer.part)
        # Never over an older attempt: after a failed sync that file must not be used again.
        with suppress(OSError):
            temporary.unlink()
        try:
            return write_part(temporary, table, footer)
        except DiskError:
            with suppress(OSError):
                temporary.unlink()
            raise

    def _temporary(self, part: Part) -> Path:
        return self._spool_dir / (part_name(part) + durable.TEMPORARY_SUFFIX)

    def quarantine(self, row_set: RowSet, until_ns: int = MAX_NS) -> Path:
        """Write the rows at or before `until_ns` as line protocol, durably."""
        row_set = replace(row_set, chunks=without_times(row_set.chunks, up_to(until_ns)))
        durable.make_directory(self._quarantine_dir)
        database = hashlib.sha256(row_set.database.encode()).hexdigest()[:8]
        path = self._quarantine_dir / f"{row_set.rank:020}-{database}-{encode_name(row_set.table)}.lp"
        temporary = path.with_name(path.name + durable.TEMPORARY_SUFFIX)
        try:
            with temporary.open("wb") as file:
                file.write(f"# database {row_set.database!r}, {row_set.rows} rows\n".encode())
                file.writelines(row_lines(row_set))
        except OSError as error:
            raise DiskError("write", str(temporary), error) from error
        durable.publish(temporary, path)
        return path

    def publish(self, parts: Iterable[Part]) -> None:
        """Sync all, rename all, sync the directory. After a failure everything must be written anew, to new files."""
        finals = {self._temporary(part): self._spool_dir / part_name(part) for part in parts}
        with self._watched() as beat:
            for temporary in finals:
                beat()
                durable.sync_file(temporary)
            for temporary, final in finals.items():
                try:
                    temporary.replace(final)
                except OSError as error:
                    raise DiskError("rename", str(final), error) from error
            if finals:
                durable.sync_directory(self._spool_dir)
