"""The workers that turn sealed segments, and what is set aside of the open one, into parts.

One transaction of the catalog is the only commit point. Before it the rows count in memory and in the log, behind it
in the parts; a crash anywhere leads to the same end. In order:

    write all tables      into the spool, under temporary names, in parallel
    publish               sync all, rename all, sync the directory once
    commit                parts in, and the segment, set-aside or replayed prefix noted as persisted
    show                  the view gets the parts instead of the rows, whose memory goes
    release               of a segment: unlink the log file, sync its directory, forget the segment

Jobs are committed in the order of their ranks. What fails is tried again for ever with a growing pause, from the step
that failed; until then rows and log stay. One table never pins the log: after five failures of its own its rows go to
the quarantine as line protocol, in the same transaction. A full or failing disk is no failure of a table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from edge_appliance.catalog import Catalog
from edge_appliance.core.catalog_state import DoneSetAside
from edge_appliance.core.columns import RowSet
from edge_appliance.core.delivery import TableKey
from edge_appliance.core.interval import MAX_NS
from edge_appliance.core.memory_plan import SLICE_BYTES
from edge_appliance.core.parts import Part
from edge_appliance.core.segment import Segment
from edge_appliance.core.set_aside import SetAside
from edge_appliance.errors import DiskError, EdgeError
from edge_appliance.health import Health
from edge_appliance.host import release_free_memory
from edge_appliance.metrics import Metrics
from edge_appliance.part_writer import PartWriter
from edge_appliance.persist_ports import LogFiles, RowOwner, Rows, SealedSegment
from edge_appliance.quarantine import count_files
from edge_appliance.spool import count_parts
from edge_appliance.systemd import Station

_log = logging.getLogger(__name__)

TABLE_FAILURES_MAX: Final = 5
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 10.0
"""Intake may wait for memory that a full disk holds up: it shall go on soon after there is room again."""


class _Place(NamedTuple):
    """Of a job among all others: the order of ranks."""

    segment_id: int
    rank: int


@dataclass(slots=True, eq=False)
class _Job:
    """Some rows on their way, with what is done already."""

    place: _Place
    rows: Rows
    list_parts: Callable[[Sequence[Part]], None]
    """Commits the parts and shows them."""
    until_ns: int = MAX_NS
    """Rows after this time stay where they are."""
    is_set_aside: bool = False
    started_s: float = field(default_factory=time.monotonic)
    waiting: dict[TableKey, RowSet] | None = None
    """Tables that are not written yet; None: all of them."""
    written: dict[TableKey, list[Part]] = field(default_factory=dict)
    failures: Counter[TableKey] = field(default_factory=Counter)
    is_published: bool = False

    @property
    def parts(self) -> list[Part]:
        return [part for parts in self.written.values() for part in parts]


class Persister:
    """Persists what it is given, with at most `workers` tables in work at once."""

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
        self._quarantine_dir = quarantine_dir
        self._catalog = catalog
        self._buffer = buffer
        self._wal = wal
        self._health = health
        self._metrics = metrics
        self._on_parts = on_parts
        """Told of parts that are committed and shown: the uploader."""
        self._first_pause_s = first_pause_s
        self._stop = threading.Event()
        self._writer = PartWriter(
            spool_dir, quarantine_dir, catalog, self._stop, stations=stations, slice_bytes=slice_bytes
        )
        self._tables = ThreadPoolExecutor(workers, "persist-table")
        # These only wait for tables, disk and catalog: one for each job that could keep a worker busy.
        self._jobs = ThreadPoolExecutor(workers, "persist")
        self._releasing = threading.Lock()
        self._changed = threading.Condition()
        self._pending: dict[_Place, bool] = {}
        """Jobs that are not committed yet, and whether they are set-asides."""
        self._committed: set[int] = set()
        """Committed segments whose log file is still there."""
        self._failing: dict[_Place, str] = {}

    # Jobs are submitted in ascending order of their ranks. After `close` they stay in the log.

    def submit(self, segment: SealedSegment) -> None:
        """Persist a sealed segment; then its log file goes."""
        self._submit(_Job(_Place(segment.id, segment.rank), segment, lambda parts: self._list_segment(segment, parts)))

    def submit_set_aside(self, aside: SetAside) -> None:
        """Persist what is set aside of a segment, whose own turn comes after that."""
        place = _Place(aside.segment_id, aside.rank)
        self._submit(
            _Job(
                place,
                aside,
                lambda parts: self._list_set_aside(aside, parts),
                until_ns=aside.time_ns,
                is_set_aside=True,
            )
        )

    def submit_prefix(self, segment: Segment) -> None:
        """Persist the first rows of a log file that is being replayed; the file stays."""
        self._submit(_Job(_Place(segment.id, segment.rank), segment, lambda parts: self._list_prefix(segment, parts)))

    def _submit(self, job: _Job) -> None:
        with self._changed:
            self._pending[job.place] = job.is_set_aside
        with suppress(RuntimeError):
            self._jobs.submit(self._persist, job)

    @property
    def failure(self) -> str:
        """Why a job is not done yet and is tried again; empty while all goes well."""
        with self._changed:
            return next(iter(self._failing.values()), "")

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything submitted is persisted; False when it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending and not self._committed, timeout_s)

    def drain_set_asides(self, timeout_s: float) -> bool:
        """Wait until no set-aside waits; False when it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: True not in self._pending.values(), timeout_s)

    def close(self) -> None:
        """Stop: what is not committed stays in the log. Waits for the slices being written, not for retries."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._jobs.shutdown(cancel_futures=True)
        self._tables.shutdown(cancel_futures=True)

    def _persist(self, job: _Job) -> None:
        place = job.place
        if self._until_done(place, lambda: self._try(job)):
            # On its own, because this call holds on to the segment's rows until it returns.
            with suppress(RuntimeError):
                self._jobs.submit(self._until_done, place, self._release)

    def _until_done(self, place: _Place, step: Callable[[], str]) -> bool:
        """Repeat `step` until it gives no reason to try again; False when the persister was stopped before."""
        pause_s = self._first_pause_s
        while not self._stop.is_set():
            try:
                reason = step()
            except EdgeError as error:
                reason = str(error)
            except Exception as error:  # top of a worker thread: whatever it was, the rows stay and it is tried again
                _log.exception("persist of segment %d", place.segment_id)
                reason = f"{type(error).__name__}: {error}"
            self._report(place, reason)
            if not reason:
                return True
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return False

    def _report(self, place: _Place, reason: str) -> None:
        with self._changed:
            self._failing.pop(place, None)
            if reason:
                self._failing[place] = reason
            shown = next(iter(self._failing.values()), "")
        if reason:
            self._metrics.persist_failures.add()
            _log.warning("segment %d is not persisted yet: %s", place.segment_id, reason)
        if shown:
            self._health.degrade("persist", f"rows wait for their persist: {shown}")
        else:
            self._health.restore("persist")

    def _try(self, job: _Job) -> str:
        """Go on from the step that failed; returns why it is not committed, or nothing."""
        if not job.is_published:
            if not self._has_own_rows_only(job.place):
                return "stopping"
            reason = self._write_all(job)
            if reason:
                return reason
            try:
                self._writer.publish(job.parts)
            except DiskError:
                job.waiting = None
                job.written.clear()
                raise
            job.is_published = True
        return self._commit(job)

    def _has_own_rows_only(self, place: _Place) -> bool:
        """Wait until nothing of the same segment is being set aside any more; False when stopped before."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._stop.is_set()
                    or not any(other.segment_id == place.segment_id and other < place for other in self._pending)
                )
            )
        return not self._stop.is_set()

    def _write_all(self, job: _Job) -> str:
        """Write the waiting tables; returns why some still wait, or nothing."""
        if job.waiting is None:
            job.waiting = {(row_set.database, row_set.table): row_set for row_set in job.rows.row_sets()}
        futures: dict[TableKey, Future[list[Part]]] = {
            key: self._tables.submit(self._writer.write, job.place.segment_id, row_set, job.until_ns)
            for key, row_set in job.waiting.items()
        }
        wait(futures.values())
        if self._stop.is_set():
            return "stopping"  # a table may have ended between two slices
        reason = ""
        for key, future in futures.items():
            error = future.exception()
            if error is None:
                job.written[key] = future.result()
            elif not self._gave_up(job, key, error):
                reason = f"{key[0]}.{key[1]}: {error}"
                continue
            del job.waiting[key]
        return reason

    def _gave_up(self, job: _Job, key: TableKey, error: BaseException) -> bool:
        """Count a failure that is the table's own; with the last one, write it to the quarantine and say True."""
        if not isinstance(error, Exception):
            raise error
        if isinstance(error, DiskError | MemoryError):  # not of this table's making; Arrow's is one, too
            return False
        job.failures[key] += 1
        _log.error("table %s.%s: persist failed (%d)", *key, job.failures[key], exc_info=error)
        if job.failures[key] < TABLE_FAILURES_MAX or job.waiting is None:
            return False
        path = self._writer.quarantine(job.waiting[key], job.until_ns)
        self._health.degrade("quarantine", f"table {key[0]}.{key[1]} could not be written as Parquet: see {path}")
        self._metrics.quarantine_files.set(count_files(self._quarantine_dir))
        return True

    # Commit, show, release

    def _commit(self, job: _Job) -> str:
        if not self._is_next(job.place):
            return "stopping"
        parts = job.parts
        job.list_parts(parts)
        with self._changed:
            self._pending.pop(job.place, None)
            self._changed.notify_all()
        self._on_parts(parts)
        self._metrics.persisted_rows.add(sum(part.rows for part in parts))
        self._metrics.persist_seconds.observe(time.monotonic() - job.started_s)
        count_parts(self._metrics, self._catalog.state.parts)
        return ""

    def _list_segment(self, segment: SealedSegment, parts: Sequence[Part]) -> None:
        self._catalog.commit_persist(
            segment.id, segment.rank, segment.definitions(), parts, segment.delivery_keys()
        ).result()
        self._buffer.persisted(segment.id, parts)
        with self._changed:
            self._committed.add(segment.id)

    def _list_set_aside(self, aside: SetAside, parts: Sequence[Part]) -> None:
        rest = aside.rest()
        done = DoneSetAside(aside.segment_id, aside.rank, *aside.key, aside.time_ns)
        self._catalog.commit_set_aside(done, aside.definitions(), parts).result()
        self._buffer.set_aside_persisted(aside, rest, parts)
        self._metrics.set_asides.add()

    def _list_prefix(self, segment: Segment, parts: Sequence[Part]) -> None:
        self._catalog.commit_prefix(
            segment.id, segment.rank, segment.definitions(), parts, segment.delivery_keys()
        ).result()
        self._buffer.prefix_persisted(segment, parts)

    def _is_next(self, place: _Place) -> bool:
        """Wait until all lower ranks are committed; False when the persister was stopped before.

        Parts must rank below all rows in memory: readers let these win. And a log file that still has rows must not
        lie behind ranks that are given out.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or place <= min(self._pending, default=place))
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
            if oldest is None or any(place.segment_id < oldest for place in self._pending):
                return None
            return oldest
