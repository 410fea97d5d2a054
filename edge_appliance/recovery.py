"""Restart: read every log file in order through the same append step, and leave nothing half done.

A segment that the catalog lists as persisted is dropped unread. Of the others, rows that a listed part covers stay
out, and so do those that were set aside or went with an earlier, cut-off replay. Everything else is in memory again
afterwards, sealed, with the rank it had, or in parts when memory does not reach. Replay decides nothing, and no damage
stops it: what cannot be read is kept in quarantine, counted, and named in health.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.compute as pc

from edge_appliance.backlog import Backlog, Stopped
from edge_appliance.buffer import Buffer
from edge_appliance.catalog import Catalog
from edge_appliance.core.append import Appender, IsCovered
from edge_appliance.core.delivery import CLOCK_UNSET_BEFORE_NS
from edge_appliance.core.interval import MIN_NS, Interval
from edge_appliance.core.parts import DAY_NS, EPOCH_ORDINAL, cover_intervals
from edge_appliance.core.redelivery import RecentDeliveries
from edge_appliance.core.segment import Segment, TableBuffer
from edge_appliance.core.set_aside import set_aside, without_times
from edge_appliance.core.wal_frame import KNOWN_TYPES, FileHeader, Frame, FrameType
from edge_appliance.core.wal_record import (
    GroupRecord,
    LoggedGroup,
    PersistBegin,
    decode_begin,
    decode_group,
    encode_group,
)
from edge_appliance.core.wal_scan import Damage
from edge_appliance.errors import EdgeError, FormatError
from edge_appliance.group_append import take_back
from edge_appliance.health import Health, ReplayProgress
from edge_appliance.metrics import Metrics
from edge_appliance.quarantine import count_files
from edge_appliance.replay_notes import ReplayNotes
from edge_appliance.wal import Wal
from edge_appliance.wal_file import WalFile

_log = logging.getLogger(__name__)

PROGRESS_EVERY_BYTES: Final = 2**20


@dataclass(slots=True)
class Replayed:
    """What the log held, for whoever goes on from there."""

    recent: RecentDeliveries
    """The last logged QoS 1 deliveries."""
    last_arrival_ns: int = 0
    last_segment_id: int = 0
    last_sequence: int = 0
    lines: int = 0


class _Last:
    """The rank of what is left of a file: its last sequence.

    At a cut that was the one before the successor's first, but a successor that a restart opened may begin higher,
    behind numbers that were given out to others. A file that ends in a PERSIST_BEGIN has given that rank away.
    """

    def __init__(self, sequence: int) -> None:
        self.rank = sequence

    def note(self, frame: Frame) -> None:
        """Take a frame that was not met before."""
        self.rank = max(self.rank, frame.sequence + (frame.type == FrameType.PERSIST_BEGIN))


class Replay:
    """One pass over the log."""

    def __init__(
        self,
        wal: Wal,
        catalog: Catalog,
        buffer: Buffer,
        appender: Appender,
        health: Health,
        metrics: Metrics,
        *,
        quarantine_dir: Path,
        backlog: Backlog,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._wal = wal
        self._catalog = catalog
        self._buffer = buffer
        self._appender = appender
        self._health = health
        self._metrics = metrics
        self._quarantine_dir = quarantine_dir
        self._notes = ReplayNotes(health, metrics, quarantine_dir)
        self._backlog = backlog
        self._is_stopping = is_stopping
        self._started_s = time.monotonic()
        self._progress = ReplayProgress()
        persisted = sorted(catalog.state.logged.values(), key=lambda logged: logged.rank)
        self.done = Replayed(RecentDeliveries(logged.key for logged in persisted))
        self._passed_bytes = 0
        """Bytes of the files before the one in work."""
        self._intervals = cover_intervals(buffer.parts())
        self._has_prefix = False
        """Whether rows of the file in work were persisted for want of memory."""

    def run(self, files: Sequence[WalFile]) -> Replayed | None:
        """Replay `files` in order; None when the process is asked to stop meanwhile. Raises DiskError."""
        self._notes.quarantined(self._wal.quarantined)
        self._progress = ReplayProgress(total_bytes=sum(file.size_bytes for file in files))
        self._health.replayed(self._progress)
        if files:
            _log.info("replaying %d log files, %.1f MiB", len(files), self._progress.total_bytes / 2**20)
        successors = [*(file.header for file in files[1:]), None]
        self._appender.find_definitions = lambda: self._find_definitions(files)
        try:
            for predecessor, file, successor in zip([None, *files], files, successors, strict=False):
                self._check_link(predecessor, file)
                self._replay_file(file, successor)
        except Stopped:
            return None
        finally:
            self._appender.find_definitions = lambda: None
        self._forget_dropped({file.id for file in files})
        seconds = time.monotonic() - self._started_s
        self._metrics.replay_seconds.set(round(seconds, 3))
        self._metrics.replay_lines.set(self.done.lines)
        self._metrics.quarantine_files.set(count_files(self._quarantine_dir))
        if files:
            _log.info("replayed %d log files, %d lines in %.1f s", len(files), self.done.lines, seconds)
        return self.done

    def _replay_file(self, file: WalFile, successor: FileHeader | None) -> None:
        done = self.done
        done.last_segment_id = max(done.last_segment_id, file.id)
        if file.header is not None and file.header.created_ns >= CLOCK_UNSET_BEFORE_NS:
            # Also when its rows are in parts or it never had any: an unset clock goes on from the last time seen.
            done.last_arrival_ns = max(done.last_arrival_ns, file.header.created_ns)
        if file.id in self._catalog.state.persisted_segments:
            # Unlinking may have been undone by a power cut; its rows are in parts.
            self._drop(file.id)
            done.last_sequence = max(done.last_sequence, successor.first_sequence - 1 if successor else 0)
            return
        first_sequence = file.header.first_sequence if file.header else 0
        done.last_sequence = max(done.last_sequence, first_sequence - 1)
        self._has_prefix = False
        self._buffer.start(Segment(file.id, first_sequence, time.monotonic()))
        rank, mismatches = self._read(file, successor, self._cover(file, successor))
        if mismatches:
            self._notes.keep_file(file, mismatches)
        self._finish(rank)

    def _read(self, file: WalFile, successor: FileHeader | None, is_covered: IsCovered | None) -> tuple[int, int]:
        """Append all groups of a file; returns its rank and the number of entries that gave other rows than logged."""
        done, last, mismatches = self.done, _Last(self._buffer.state.open.first_sequence - 1), 0
        prefix = self._catalog.state.prefixes.get(file.id, 0)
        for found in self._wal.read(file, successor):
            if self._is_stopping():
                raise Stopped
            if isinstance(found, Damage):
                self._note_damage(file, found)
                continue
            is_new = found.sequence > done.last_sequence
            if found.type == FrameType.GROUP and is_new:
                mismatches += self._append(file, found, is_covered, is_known=found.sequence <= prefix)
            elif found.type == FrameType.PERSIST_BEGIN and is_new and found.sequence > prefix:
                self._begin(file, found)
            elif found.type not in KNOWN_TYPES:
                self._metrics.wal_skipped.add()
            if is_new:
                done.last_sequence = found.sequence
                last.note(found)
            if found.type == FrameType.GROUP:
                self._backlog.make_room(self._cut_prefix)
            self._show(self._passed_bytes + found.offset + found.length)
        self._passed_bytes += file.size_bytes
        self._show(self._passed_bytes)
        done.last_sequence = max(done.last_sequence, last.rank)
        return last.rank, mismatches

    def _append(self, file: WalFile, frame: Frame, is_covered: IsCovered | None, *, is_known: bool) -> int:
        """Append one group and publish it; returns the number of entries that gave other rows than logged.

        The rows of a group that `is_known` are in parts: of it only the deliveries are remembered.
        """
        segment = self._buffer.state.open
        try:
            group = decode_group(frame.payload)
        except FormatError as error:
            self._note_damage(file, Damage(frame.offset, frame.length, error.reason, frame.sequence, frame.sequence))
            return 1
        if is_known:
            self._remember(segment, group)
            return 0
        try:
            mismatches = self._append_group(segment, group, is_covered)
        except MemoryError:
            raise  # says nothing about the lines: left out, they would be lost
        except Exception:  # whatever these lines bring out, it would bring it out at every start
            _log.exception("%s at byte %d", file.path, frame.offset)
            take_back(self._appender, segment)
            mismatches = self._append_each(segment, group, is_covered)
        self._remember(segment, group)
        for mismatch in mismatches:
            _log.warning("%s at byte %d: %s", file.path, frame.offset, mismatch)
        return len(mismatches)

    def _find_definitions(self, files: Sequence[WalFile]) -> None:
        """Define what any record defines, once: each file repeats the definitions of the tables it uses."""
        self._appender.find_definitions = lambda: None
        for file in files:
            for found in self._wal.read(file, None):
                if isinstance(found, Frame) and found.type == FrameType.GROUP:
                    with suppress(FormatError):
                        for definition in decode_group(found.payload).definitions:
                            self._appender.schema.define(definition)

    def _append_group(self, segment: Segment, group: LoggedGroup, is_covered: IsCovered | None) -> list[str]:
        """Append and publish; returns what gave other rows than logged."""
        result = self._appender.append_logged(segment, group, is_covered)
        self._buffer.publish()
        self.done.lines += result.lines
        return result.mismatches

    def _append_each(self, segment: Segment, group: LoggedGroup, is_covered: IsCovered | None) -> list[str]:
        """Append entry by entry, and leave out those that fail."""
        mismatches: list[str] = []
        for entry in group.entries():
            alone = decode_group(encode_group(GroupRecord(group.parser_version, group.definitions, [entry])))
            try:
                mismatches += self._append_group(segment, alone, is_covered)
            except MemoryError:
                raise
            except Exception as error:  # as above; the file is kept, so nothing is lost for good
                take_back(self._appender, segment)
                mismatches.append(f"{len(entry.spans)} lines are left out: {type(error).__name__}: {error}")
        return mismatches

    def _remember(self, segment: Segment, group: LoggedGroup) -> None:
        done = self.done
        done.last_arrival_ns = max([done.last_arrival_ns, *group.arrivals])
        keys = group.keys()
        done.recent.add(keys)
        segment.keep_keys(keys)

    def _cover(self, file: WalFile, successor: FileHeader | None) -> IsCovered | None:
        """Which rows of a file are in a listed part; None when none are, as nearly always.

        Parts of set-asides, and those of a replay that was cut off, are told apart by the sequence of each row.
        """
        state = self._catalog.state
        first = max(file.header.first_sequence if file.header else 0, state.prefixes.get(file.id, 0) + 1)
        if all(hi < first or lo in state.set_asides for known in self._intervals.values() for lo, hi in known):
            return None
        last = _Last(0)
        for found in self._wal.read(file, successor):
            if self._is_stopping():
                raise Stopped
            if isinstance(found, Frame):
                last.note(found)
        covered = {
            (database, table, date.toordinal() - EPOCH_ORDINAL)
            for (database, table, date), intervals in self._intervals.items()
            if any(lo <= last.rank <= hi for lo, hi in intervals)
        }
        return (lambda *row: row in covered) if covered else None

    # Rows that were set aside, and rows that memory does not reach for

    def _begin(self, file: WalFile, frame: Frame) -> None:
        """Take rows out that were set aside here: drop them when they are in parts, else persist them on their own."""
        try:
            begin = decode_begin(frame.payload)
        except FormatError as error:
            self._note_damage(file, Damage(frame.offset, frame.length, error.reason, frame.sequence, frame.sequence))
            return
        segment = self._buffer.state.open
        table = segment.tables.get((begin.database, begin.table))
        if table is None:
            return
        self._wait_for_earlier(table)
        self._buffer.freeze(table)
        if frame.sequence in self._catalog.state.set_asides:
            self._drop_times(table, [Interval(MIN_NS, begin.time_ns)])
        else:
            self._drop_times(table, self._covered_times(begin, frame.sequence))
            if any(pc.min(chunk.time).as_py() <= begin.time_ns for chunk in table.chunks):
                aside = set_aside(segment, table, frame.sequence, begin.time_ns, table.frozen_bytes)
                self._buffer.set_aside(aside)
                self._backlog.add_set_aside(aside)

    def _wait_for_earlier(self, table: TableBuffer) -> None:
        """Of a table one set-aside is in work at a time; two are only found when the catalog was lost."""
        buffer = self._buffer
        if any(aside.buffer is table for aside in buffer.state.set_asides):
            self._backlog.submit_all()
            self._backlog.wait_until(lambda: all(aside.buffer is not table for aside in buffer.state.set_asides))

    def _covered_times(self, begin: PersistBegin, rank: int) -> list[Interval]:
        """Times of a set-aside whose dates have a listed part: the catalog was lost, its parts were not."""
        days = (
            date.toordinal() - EPOCH_ORDINAL
            for (database, table, date), intervals in self._intervals.items()
            if (database, table) == begin[:2] and any(lo <= rank <= hi for lo, hi in intervals)
        )
        starts = (max(MIN_NS, day * DAY_NS) for day in days)
        return [Interval(start, min(start + DAY_NS - 1, begin.time_ns)) for start in starts if start <= begin.time_ns]

    def _drop_times(self, table: TableBuffer, times: Sequence[Interval]) -> None:
        rest = without_times(table.chunks, times)
        if rest != table.chunks:
            self._buffer.drop_rows(table, rest)

    def _cut_prefix(self) -> bool:
        """Persist all rows of the file read so far; False when there are none."""
        segment, sequence = self._buffer.state.open, self.done.last_sequence
        if not any(table.size_bytes for table in segment.tables.values()):
            return False
        for early in self._catalog.state.set_asides.values():
            table = segment.tables.get((early.database, early.table))
            if early.segment_id == segment.id and early.sequence > sequence and table is not None:
                # In parts, although the record that says so lies further ahead.
                self._buffer.freeze(table)
                self._drop_times(table, [Interval(MIN_NS, early.time_ns)])
        self._backlog.add_prefix(self._buffer.cut(Segment(segment.id, sequence + 1, time.monotonic()), sequence))
        self._has_prefix = True
        return True

    def _finish(self, rank: int) -> None:
        """Seal what a file gave."""
        segment = self._buffer.state.open
        if segment.is_empty and not self._has_prefix:
            self._drop(segment.id)
            return
        if segment.is_empty:
            # Nothing behind the prefix, which may be in work: the file goes after it, in its turn.
            rank = self.done.last_sequence = rank + 1
        self._backlog.add(self._buffer.cut(Segment(0, 0, 0.0), rank))
        self._backlog.make_room(lambda: False)

    def _drop(self, segment_id: int) -> None:
        """Remove a file without rows of its own; when the disk refuses, the next start tries again."""
        try:
            self._wal.drop(segment_id)
            state = self._catalog.state
            early = {done.segment_id for done in state.set_asides.values()}.union(state.prefixes)
            if segment_id in state.persisted_segments.union(early):
                self._catalog.forget_segment(segment_id).result()
        except EdgeError as error:
            _log.warning("%s; log file %d goes at the next start", error, segment_id)

    def _show(self, done_bytes: int) -> None:
        """Report progress, about once a MiB."""
        progress = self._progress
        if done_bytes - progress.done_bytes < PROGRESS_EVERY_BYTES and done_bytes != progress.total_bytes:
            return
        seconds = time.monotonic() - self._started_s
        self._progress = ReplayProgress(done_bytes, progress.total_bytes, self.done.lines, seconds)
        self._health.replayed(self._progress)

    def _note_damage(self, file: WalFile, damage: Damage) -> None:
        if damage.last_sequence is not None and not damage.is_torn:
            self.done.last_sequence = max(self.done.last_sequence, damage.last_sequence)
        self._notes.damage(file, damage)

    def _check_link(self, predecessor: WalFile | None, file: WalFile) -> None:
        """Notice that a file between two others is gone: files are dropped from the oldest on, so that is a loss."""
        first, last = self.done.last_sequence + 1, (file.header.first_sequence if file.header else 0) - 1
        previous = file.header.previous if file.header else None
        if predecessor is None or previous is None or previous.segment_id == predecessor.id or last < first:
            return
        self._notes.hole(file, first, last)

    def _forget_dropped(self, present: set[int]) -> None:
        """Segments whose file is gone need no catalog row any more."""
        state = self._catalog.state
        early = {done.segment_id for done in state.set_asides.values()}.union(state.prefixes)
        for segment_id in state.persisted_segments.union(early) - present:
            self._drop(segment_id)
