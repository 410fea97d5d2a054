"""Restart: read every log file in order through the same append step, and leave nothing half done.

A segment that the catalog lists as persisted is dropped unread. Of the others, rows that a listed part covers stay
out, everything else is in memory again afterwards, sealed, with the rank it had. Replay decides nothing, and no
damage stops it: what cannot be read is kept in quarantine, counted, and named in health.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from edge_appliance import durable
from edge_appliance.buffer import Buffer
from edge_appliance.catalog import Catalog
from edge_appliance.core.append import Appender, IsCovered
from edge_appliance.core.delivery import CLOCK_UNSET_BEFORE_NS
from edge_appliance.core.parts import EPOCH_ORDINAL, cover_intervals
from edge_appliance.core.redelivery import RecentDeliveries
from edge_appliance.core.segment import Segment
from edge_appliance.core.wal_frame import KNOWN_TYPES, FileHeader, Frame, FrameType
from edge_appliance.core.wal_record import GroupRecord, LoggedGroup, decode_group, encode_group
from edge_appliance.core.wal_scan import Damage
from edge_appliance.errors import DiskError, EdgeError, FormatError
from edge_appliance.group_append import take_back
from edge_appliance.health import Health, ReplayProgress
from edge_appliance.metrics import Metrics
from edge_appliance.quarantine import count_files
from edge_appliance.wal import Wal
from edge_appliance.wal_file import WalFile

_log = logging.getLogger(__name__)

PROGRESS_EVERY_BYTES: Final = 2**20
WAIT_S: Final = 0.5


@dataclass(slots=True)
class Replayed:
    """What the log held, for whoever goes on from there."""

    recent: RecentDeliveries
    """The last logged QoS 1 deliveries."""
    last_arrival_ns: int = 0
    last_segment_id: int = 0
    last_sequence: int = 0
    lines: int = 0
    segments: list[Segment] = field(default_factory=list)
    """Segments with rows that still have to be persisted, in order."""


class Stopped(Exception):  # noqa: N818 - not an error: the process was asked to stop
    """Raised inside replay when the process is asked to stop."""


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
        persist: Callable[[Segment], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._wal = wal
        self._catalog = catalog
        self._buffer = buffer
        self._appender = appender
        self._health = health
        self._metrics = metrics
        self._quarantine_dir = quarantine_dir
        self._persist = persist
        self._is_stopping = is_stopping
        self._started_s = time.monotonic()
        self._progress = ReplayProgress()
        persisted = sorted(catalog.state.logged.values(), key=lambda logged: logged.rank)
        self._done = Replayed(RecentDeliveries(logged.key for logged in persisted))
        self._passed_bytes = 0
        """Bytes of the files before the one in work."""
        self._intervals = cover_intervals(buffer.parts())

    def run(self, files: Sequence[WalFile]) -> Replayed | None:
        """Replay `files` in order; None when the process is asked to stop meanwhile. Raises DiskError."""
        self._note_quarantined()
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
        self._metrics.replay_lines.set(self._done.lines)
        self._metrics.quarantine_files.set(count_files(self._quarantine_dir))
        if files:
            _log.info("replayed %d log files, %d lines in %.1f s", len(files), self._done.lines, seconds)
        return self._done

    def _replay_file(self, file: WalFile, successor: FileHeader | None) -> None:
        done = self._done
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
        segment = Segment(file.id, first_sequence, time.monotonic())
        rank, mismatches = self._read(file, successor, segment, self._cover(file, successor))
        if mismatches:
            self._keep_file(file, mismatches)
        self._finish(segment, rank)

    def _read(
        self, file: WalFile, successor: FileHeader | None, segment: Segment, is_covered: IsCovered | None
    ) -> tuple[int, int]:
        """Append all groups of a file; returns its rank and the number of entries that gave other rows than logged.

        The rank is the last sequence of the file itself: at a cut that was the one before the successor's first, but
        a successor that a restart opened may begin higher, behind numbers that were given out to others.
        """
        done = self._done
        rank, mismatches = segment.first_sequence - 1, 0
        for found in self._wal.read(file, successor):
            if self._is_stopping():
                raise Stopped
            if isinstance(found, Damage):
                self._note_damage(file, found)
                continue
            if found.type == FrameType.GROUP and found.sequence > done.last_sequence:
                mismatches += self._append(file, segment, found, is_covered)
            elif found.type not in KNOWN_TYPES:
                self._metrics.wal_skipped.add()
            if found.sequence > done.last_sequence:
                rank = done.last_sequence = found.sequence
            self._show(self._passed_bytes + found.offset + found.length)
        self._passed_bytes += file.size_bytes
        self._show(self._passed_bytes)
        return rank, mismatches

    def _append(self, file: WalFile, segment: Segment, frame: Frame, is_covered: IsCovered | None) -> int:
        """Append one group and publish it; returns the number of entries that gave other rows than logged."""
        try:
            group = decode_group(frame.payload)
        except FormatError as error:
            self._note_damage(file, Damage(frame.offset, frame.length, error.reason, frame.sequence, frame.sequence))
            return 1
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
        frozen = segment.freeze_large_tails()
        self._appender.schema.commit()
        segment.publish(frozen)
        self._done.lines += result.lines
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
        done = self._done
        done.last_arrival_ns = max([done.last_arrival_ns, *group.arrivals])
        keys = group.keys()
        done.recent.add(keys)
        segment.keep_keys(keys)

    def _cover(self, file: WalFile, successor: FileHeader | None) -> IsCovered | None:
        """Which rows of a file are in a listed part; None when none are, as nearly always."""
        first = file.header.first_sequence if file.header else 0
        if all(hi < first for intervals in self._intervals.values() for _, hi in intervals):
            return None
        rank = 0
        for found in self._wal.read(file, successor):
            if self._is_stopping():
                raise Stopped
            if isinstance(found, Frame):
                rank = max(rank, found.sequence)
        covered = {
            (database, table, date.toordinal() - EPOCH_ORDINAL)
            for (database, table, date), intervals in self._intervals.items()
            if any(lo <= rank <= hi for lo, hi in intervals)
        }
        return (lambda *row: row in covered) if covered else None

    def _finish(self, segment: Segment, rank: int) -> None:
        """Seal what a file gave, and make room before the next one is read."""
        if segment.is_empty:
            self._drop(segment.id)
            return
        segment.seal(rank)
        segment.drop_lookups()
        self._buffer.replace(lambda state: replace(state, sealed=(*state.sealed, segment)))
        self._done.segments.append(segment)
        while not self._buffer.has_room():
            if self._is_stopping():
                raise Stopped
            if self._done.segments:
                self._persist(self._done.segments.pop(0))
            self._buffer.wait_for_change(WAIT_S)

    def _drop(self, segment_id: int) -> None:
        """Remove a file without rows of its own; when the disk refuses, the next start tries again."""
        try:
            self._wal.drop(segment_id)
            if segment_id in self._catalog.state.persisted_segments:
                self._catalog.forget_segment(segment_id).result()
        except EdgeError as error:
            _log.warning("%s; log file %d goes at the next start", error, segment_id)

    def _show(self, done_bytes: int) -> None:
        """Report progress, about once a MiB."""
        progress = self._progress
        if done_bytes - progress.done_bytes < PROGRESS_EVERY_BYTES and done_bytes != progress.total_bytes:
            return
        seconds = time.monotonic() - self._started_s
        self._progress = ReplayProgress(done_bytes, progress.total_bytes, self._done.lines, seconds)
        self._health.replayed(self._progress)

    def _note_damage(self, file: WalFile, damage: Damage) -> None:
        if damage.is_torn:
            _log.info("%s: the last write was torn at byte %d and never acknowledged", file.path, damage.offset)
            return
        if damage.last_sequence is not None:
            self._done.last_sequence = max(self._done.last_sequence, damage.last_sequence)
        self._metrics.wal_damaged.add()
        lost = f"{damage.rows} rows" if damage.rows is not None else "an unknown number of rows"
        where = f"{file.path} at byte {damage.offset}, {damage.length} bytes ({damage.reason})"
        _log.error("damaged: %s: %s lost, the bytes are kept in %s", where, lost, self._quarantine_dir)
        self._health.degrade("wal_damage", f"the log was damaged: {where}: {lost} lost")

    def _check_link(self, predecessor: WalFile | None, file: WalFile) -> None:
        """Notice that a file between two others is gone: files are dropped from the oldest on, so that is a loss."""
        first, last = self._done.last_sequence + 1, (file.header.first_sequence if file.header else 0) - 1
        previous = file.header.previous if file.header else None
        if predecessor is None or previous is None or previous.segment_id == predecessor.id or last < first:
            return
        text = f"log records {first} to {last} before {file.path.name} are missing"
        _log.error("%s", text)
        self._metrics.wal_damaged.add()
        self._health.degrade("wal_hole", text)

    def _note_quarantined(self) -> None:
        for error in self._wal.quarantined:
            _log.warning("%s; it is kept in %s", error, self._quarantine_dir)
            self._metrics.wal_damaged.add()
            self._health.degrade("wal_quarantined", f"{error}; it is kept in {self._quarantine_dir}")

    def _keep_file(self, file: WalFile, mismatches: int) -> None:
        """Keep a file whose lines gave other rows than they did when they were accepted."""
        text = f"{file.path}: {mismatches} entries gave other rows than when they were accepted"
        kept = f"the file is kept in {self._quarantine_dir}"
        try:
            durable.make_directory(self._quarantine_dir)
            durable.link_or_copy(file.path, self._quarantine_dir / f"{file.path.name}.mismatch")
        except EdgeError as error:  # a full disk must not keep the appliance from starting
            kept = f"the file is not kept: {error}"
        self._health.degrade("wal_mismatch", f"{text}; {kept}")
        _log.error("%s; %s", text, kept)

    def _forget_dropped(self, present: set[int]) -> None:
        """Segments whose file is gone need no catalog row any more."""
        for segment_id in self._catalog.state.persisted_segments - present:
            self._drop(segment_id)


def settle(wal: Wal, files: Sequence[WalFile], health: Health) -> bool:
    """Make sure that what was replayed is on the disk and not just in its cache (a crash may have cut the sync).

    False when the disk refuses: then the rows must be persisted before anything is acknowledged.
    """
    try:
        wal.verify_durable(files)
    except DiskError as error:
        health.degrade("wal_unsynced", f"{error}: what was replayed is persisted before anything is acknowledged")
        return False
    return True
