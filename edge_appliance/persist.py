"""The workers that turn sealed segments into parts.

One transaction of the catalog is the only commit point. Before it the rows count in memory and in the log, behind it
in the parts; a crash anywhere leads to the same end. In order:

    write all tables      into the spool, under temporary names, in parallel
    publish               sync all, rename all, sync the directory once
    commit                parts in, segment persisted: catalog.commit_persist
    show                  the view gets the parts instead of the rows, whose memory goes
    release               unlink the log file, sync its directory, forget the segment

What fails is tried again for ever with a growing pause, from the step that failed; until then rows and log stay. One
table never pins the log: after five failures of its own its rows go to the quarantine as line protocol, in the same
transaction. A full or failing disk is no failure of a table.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from edge_appliance import durable
from edge_appliance.catalog import Catalog
from edge_appliance.core.columns import RowSet
from edge_appliance.core.delivery import DeliveryKey, TableDefinition, TableKey
from edge_appliance.core.line_text import row_lines
from edge_appliance.core.merge import SLICE_BYTES, sort_and_merge
from edge_appliance.core.parts import Part, encode_name, part_name
from edge_appliance.errors import DiskError, EdgeError
from edge_appliance.health import Health
from edge_appliance.host import release_free_memory
from edge_appliance.metrics import Metrics
from edge_appliance.parquet_file import PartFooter, write_part
from edge_appliance.quarantine import count_files
from edge_appliance.spool import count_parts
from edge_appliance.systemd import Station

_log = logging.getLogger(__name__)

TABLE_FAILURES_MAX: Final = 5
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class SealedSegment(Protocol):
    """A segment that does not change any more."""

    id: int
    rank: int

    def row_sets(self) -> list[RowSet]:
        """Rows of each table."""
        ...

    def definitions(self) -> list[TableDefinition]:
        """Definitions of those tables."""
        ...

    def delivery_keys(self) -> list[DeliveryKey]:
        """Keys of the QoS 1 deliveries that brought them."""
        ...


class RowOwner(Protocol):
    """Who holds the rows until they are persisted: the buffer."""

    def persisted(self, segment_id: int, parts: Sequence[Part]) -> None:
        """Show parts instead of the segment's rows."""
        ...


class LogFiles(Protocol):
    """Who holds the log files: the WAL directory."""

    def drop(self, segment_id: int) -> None:
        """Unlink a file and sync the directory; a missing file is fine."""
        ...


@dataclass(slots=True, eq=False)
class _Job:
    """One segment on its way, with what is done already."""

    segment: SealedSegment
    started_s: float
    waiting: dict[TableKey, RowSet] | None = None
    """Tables that are not written yet; None: all of them."""
    written: dict[TableKey, list[Part]] = field(default_factory=dict)
    failures: Counter[TableKey] = field(default_factory=Counter)
    is_published: bool = False

    @property
    def parts(self) -> list[Part]:
        return [part for parts in self.written.values() for part in parts]


class Persister:
    """Persists sealed segments, with at most `workers` tables in work at once."""

    def __init__(
        self,
        workers: int,
        spool_dir: Path,
        quarantine_dir: Path,
        catalog: Catalog,
        buffer: RowOwner,
        wal: LogFiles,
        health: Health,
        metrics: Metrics,
        *,
        stations: Sequence[Station] = (),
        on_parts: Callable[[Sequence[Part]], None] = lambda parts: None,
        slice_bytes: int = SLICE_BYTES,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._spool_dir = spool_dir
        self._quarantine_dir = quarantine_dir
        self._catalog = catalog
        self._buffer = buffer
        self._wal = wal
        self._health = health
        self._metrics = metrics
        self._on_parts = on_parts
        """Told of parts that are committed and shown: the uploader."""
        self._slice_bytes = slice_bytes
        self._first_pause_s = first_pause_s
        self._idle = queue.SimpleQueue[Station]()
        """Stations of workers without a table; those with one must get on, slice by slice."""
        for station in stations:
            station.rest()
            self._idle.put(station)
        self._tables = ThreadPoolExecutor(workers, "persist-table")
        # These only wait for tables, disk and catalog: one for each segment that could keep a worker busy.
        self._segments = ThreadPoolExecutor(workers, "persist")
        self._stop = threading.Event()
        self._releasing = threading.Lock()
        self._changed = threading.Condition()
        self._pending: set[int] = set()
        """Segments that are not committed yet."""
        self._committed: set[int] = set()
        """Committed segments whose log file is still there."""
        self._failing: dict[int, str] = {}

    def submit(self, segment: SealedSegment) -> None:
        """Persist `segment`; segments come in ascending order of their ids. After `close` it stays in the log."""
        with self._changed:
            self._pending.add(segment.id)
        with suppress(RuntimeError):
            self._segments.submit(self._persist, segment)

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything submitted is persisted; False when it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending and not self._committed, timeout_s)

    def close(self) -> None:
        """Stop: what is not committed stays in the log. Waits for the slices being written, not for retries."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._segments.shutdown(cancel_futures=True)
        self._tables.shutdown(cancel_futures=True)

    def _persist(self, segment: SealedSegment) -> None:
        job = _Job(segment, time.monotonic())
        if self._until_done(segment.id, lambda: self._try(job)):
            # On its own, because this call holds on to the segment's rows until it returns.
            with suppress(RuntimeError):
                self._segments.submit(self._until_done, segment.id, self._release)

    def _until_done(self, segment_id: int, step: Callable[[], str]) -> bool:
        """Repeat `step` until it gives no reason to try again; False when the persister was stopped before."""
        pause_s = self._first_pause_s
        while not self._stop.is_set():
            try:
                reason = step()
            except EdgeError as error:
                reason = str(error)
            except Exception as error:  # top of a worker thread: whatever it was, the rows stay and it is tried again
                _log.exception("persist of segment %d", segment_id)
                reason = f"{type(error).__name__}: {error}"
            self._report(segment_id, reason)
            if not reason:
                return True
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return False

    def _report(self, segment_id: int, reason: str) -> None:
        with self._changed:
            self._failing.pop(segment_id, None)
            if reason:
                self._failing[segment_id] = reason
            shown = next(iter(self._failing.values()), "")
        if reason:
            self._metrics.persist_failures.add()
            _log.warning("segment %d is not persisted yet: %s", segment_id, reason)
        if shown:
            self._health.degrade("persist", f"rows wait for their persist: {shown}")
        else:
            self._health.restore("persist")

    def _try(self, job: _Job) -> str:
        """Go on from the step that failed; returns why it is not committed, or nothing."""
        if not job.is_published:
            reason = self._write_all(job)
            if reason:
                return reason
            self._publish(job)
        return self._commit(job)

    # Write

    def _write_all(self, job: _Job) -> str:
        """Write the waiting tables; returns why some still wait, or nothing."""
        if job.waiting is None:
            job.waiting = {(row_set.database, row_set.table): row_set for row_set in job.segment.row_sets()}
        futures: dict[TableKey, Future[list[Part]]] = {
            key: self._tables.submit(self._write_table, job.segment, row_set) for key, row_set in job.waiting.items()
        }
        wait(futures.values())
        if self._stop.is_set():
            return "stopping"  # a table may have ended between two slices
        reason = ""
        for key, future in futures.items():
            error = future.exception()
            if error is None:
                job.written[key] = future.result()
            elif not self._gave_up(job, key, job.waiting[key], error):
                reason = f"{key[0]}.{key[1]}: {error}"
                continue
            del job.waiting[key]
        return reason

    def _write_table(self, segment: SealedSegment, row_set: RowSet) -> list[Part]:
        try:
            station = self._idle.get_nowait()
        except queue.Empty:  # nobody watches
            return self._write_slices(segment, row_set, lambda: None)
        try:
            return self._write_slices(segment, row_set, station.beat)
        finally:
            station.rest()
            self._idle.put(station)

    def _write_slices(self, segment: SealedSegment, row_set: RowSet, beat: Callable[[], None]) -> list[Part]:
        state = self._catalog.state
        parts: list[Part] = []
        try:
            beat()
            for piece in sort_and_merge(row_set, self._slice_bytes):
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
                footer = PartFooter(part, row_set.columns, (segment.id, segment.id), state.generation)
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

    def _gave_up(self, job: _Job, key: TableKey, row_set: RowSet, error: BaseException) -> bool:
        """Count a failure that is the table's own; with the last one, write it to the quarantine and say True."""
        if not isinstance(error, Exception):
            raise error
        if isinstance(error, DiskError | MemoryError):  # not of this table's making; Arrow's is one, too
            return False
        job.failures[key] += 1
        _log.error("table %s.%s: persist failed (%d)", *key, job.failures[key], exc_info=error)
        if job.failures[key] < TABLE_FAILURES_MAX:
            return False
        path = self._quarantine(row_set)
        self._health.degrade("quarantine", f"table {key[0]}.{key[1]} could not be written as Parquet: see {path}")
        self._metrics.quarantine_files.set(count_files(self._quarantine_dir))
        return True

    def _quarantine(self, row_set: RowSet) -> Path:
        """Write all rows of a table as line protocol, durably."""
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

    # Publish, commit, release

    def _publish(self, job: _Job) -> None:
        """Sync all, rename all, sync the directory. After a failure everything is written anew, to new files."""
        finals = {self._temporary(part): self._spool_dir / part_name(part) for part in job.parts}
        try:
            for temporary in finals:
                durable.sync_file(temporary)
            for temporary, final in finals.items():
                try:
                    temporary.replace(final)
                except OSError as error:
                    raise DiskError("rename", str(final), error) from error
            if finals:
                durable.sync_directory(self._spool_dir)
        except DiskError:
            job.waiting = None
            job.written.clear()
            raise
        job.is_published = True

    def _commit(self, job: _Job) -> str:
        segment, parts = job.segment, job.parts
        if not self._is_next(segment.id):
            return "stopping"
        self._catalog.commit_persist(
            segment.id, segment.rank, segment.definitions(), parts, segment.delivery_keys()
        ).result()
        self._buffer.persisted(segment.id, parts)
        with self._changed:
            self._pending.discard(segment.id)
            self._committed.add(segment.id)
            self._changed.notify_all()
        self._on_parts(parts)
        self._metrics.persisted_rows.add(sum(part.rows for part in parts))
        self._metrics.persist_seconds.observe(time.monotonic() - job.started_s)
        count_parts(self._metrics, self._catalog.state.parts)
        return ""

    def _is_next(self, segment_id: int) -> bool:
        """Wait until all older segments are committed; False when the persister was stopped before.

        Parts must rank below all rows in memory: readers let these win. And a log file that still has rows must not
        lie behind ranks that are given out.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or segment_id <= min(self._pending, default=segment_id))
        return not self._stop.is_set()

    def _release(self) -> str:
        """Drop log files from the oldest on, since the header of each file seals the one before it."""
        with self._releasing:
            while (segment_id := self._droppable()) is not None:
                self._wal.drop(segment_id)
                self._catalog.forget_segment(segment_id).result()
                with self._changed:
                    self._committed.discard(segment_id)
                    self._changed.notify_all()
        release_free_memory()
        return ""

    def _droppable(self) -> int | None:
        with self._changed:
            oldest = min(self._committed, default=None)
            if oldest is None or any(segment_id < oldest for segment_id in self._pending):
                return None
            return oldest
