"""The ingest thread: take a group, append it, make it durable, show it, acknowledge it; cut when a segment is due.

It is the only writer of the open segment and of the log. It waits for room (memory, log, disk) before it takes a
group, so that what it cannot store stays in the inbox, where a broker's window or HTTP's 503 hold the sender back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from edge_appliance.buffer import Buffer
from edge_appliance.committed import Committed, refuse_http
from edge_appliance.core.append import Appender
from edge_appliance.core.appended import GroupAppend
from edge_appliance.core.delivery import Delivery, DeliveryKey, TableKey
from edge_appliance.core.pressure import Cut
from edge_appliance.core.pressure import SetAside as SetAsideTable
from edge_appliance.core.redelivery import RecentDeliveries, unknown_deliveries
from edge_appliance.core.segment import Segment
from edge_appliance.core.set_aside import SetAside, set_aside, split_time
from edge_appliance.core.wal_frame import FrameType
from edge_appliance.core.wal_record import encode_begin, encode_end
from edge_appliance.dead_letters import DeadLetters
from edge_appliance.errors import DiskError, EdgeError
from edge_appliance.group_append import append_group, take_back
from edge_appliance.health import Health
from edge_appliance.inbox import ENTRY_OVERHEAD_BYTES, Group, Inbox
from edge_appliance.metrics import Metrics
from edge_appliance.rejects import Rejects
from edge_appliance.room import Log, Room
from edge_appliance.systemd import Station

_log = logging.getLogger(__name__)

MAX_PAIRS: Final = 2_000
"""(table, date) pairs at which a segment is cut: each becomes a file."""
INTERVAL_SYNC_S: Final = 1.0
FSYNC_LIMIT_S: Final = 120.0
"""How long one sync may hang before the watchdog calls the thread dead: a worn card has taken 40 s."""
APPEND_LIMIT_S: Final = 300.0
"""The same for one group: a hostile body of 16 MiB takes a small board this long to refuse line by line."""
TICK_S: Final = 0.5
"""How often a quiet thread looks at the age of the segment and at what holds it."""
RETRY_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
"""Waits between attempts to open a new log file on a failing disk; the last one repeats."""


class Ingest:
    """Group commit. `run` is the thread's body; `stop` ends it after the group in work."""

    def __init__(
        self,
        inbox: Inbox,
        buffer: Buffer,
        appender: Appender,
        dead_letters: DeadLetters,
        health: Health,
        metrics: Metrics,
        station: Station,
        room: Room,
        *,
        on_committed: Callable[[Committed], None],
        on_sealed: Callable[[Segment], None],
        on_set_aside: Callable[[SetAside], None],
        generation: Callable[[], int],
    ) -> None:
        self._inbox = inbox
        self._buffer = buffer
        self._appender = appender
        self._rejects = Rejects(dead_letters, health, metrics)
        self._health = health
        self._metrics = metrics
        self._station = station
        self._on_committed = on_committed
        self._on_sealed = on_sealed
        self._on_set_aside = on_set_aside
        self._room = room
        self._generation = generation
        self._stopping = threading.Event()
        self._last_sync_s = 0.0
        self._shown_sequence = 0
        """Sequence of the last group that is visible: in modes weaker than `group` it may not be durable yet."""
        self._begin_sequence = 0
        """Sequence of the last PERSIST_BEGIN."""
        self._asides: list[SetAside] = []
        """Whose end the log does not mention yet."""
        self._open_log: Callable[[], Log | None] | None = None
        """Set while there is no log."""
        self._wal: Log
        self._recent: RecentDeliveries

    def begin(self, wal: Log, recent: RecentDeliveries) -> None:
        """Take over the log after replay, and open the segment that belongs to its file."""
        self._wal = wal
        self._recent = recent
        self._shown_sequence = wal.next_sequence - 1
        self._buffer.start(Segment(wal.segment_id, wal.first_sequence, time.monotonic()))
        self._metrics.wal_bytes.read_from(lambda: wal.total_bytes)
        self._metrics.wal_files.read_from(lambda: wal.file_count)

    def begin_when_open(self, open_log: Callable[[], Log | None], recent: RecentDeliveries) -> None:
        """Like `begin`, with a log that a full disk may not open yet: `run` tries until it does, queries go on.

        `open_log` returns None while replay is still at work.
        """
        self._recent = recent
        self._open_log = open_log
        self._has_log()

    def _has_log(self) -> bool:
        if self._open_log is None:
            return True
        try:
            with self._station.waiting():
                wal = self._open_log()
        except EdgeError as error:
            _log.error("%s; nothing is acknowledged before there is a log", error)
            self._hold_for_log(error)
            return False
        if wal is None:
            return False
        self._open_log = None
        self._health.release("log")
        self.begin(wal, self._recent)
        return True

    def stop(self) -> None:
        """End `run` after the group in work; safe from any thread."""
        self._stopping.set()
        self._inbox.close()

    def seal(self) -> None:
        """Cut the open segment, after `run` has ended: what has no log is only safe in parts."""
        if self._open_log is None and not self._buffer.state.open.is_empty:
            self.cut()

    def run(self) -> None:
        """Commit groups until `stop`."""
        while not self._stopping.is_set():
            self._station.beat()
            if not self._has_log():
                self._stopping.wait(RETRY_S[-1])
                continue
            self.cut_if_due(time.monotonic())
            self.relieve(time.monotonic())
            with self._commits():
                self._rejects.sync_if_due()
            if self._has_room():
                group = self._inbox.take(TICK_S)
                if group is not None:
                    self.commit(group)
            if self._sync_interval_passed(time.monotonic()):
                self.sync_late()

    def _has_room(self) -> bool:
        """Whether memory, log and disk have room for a group; makes some, and waits a tick, when they have not."""
        reason = self._room.lack(time.monotonic(), self._wal)
        if not reason:
            self._health.release("room")
            return True
        self._health.hold("room", reason)
        if not self._buffer.state.jobs and not self._buffer.state.open.is_empty:
            self.cut()  # the only thing that can free memory and log is to persist what is open
        self._buffer.wait_for_change(TICK_S)
        return False

    # One group

    def commit(self, group: Group) -> None:
        """Durable, then visible, then acknowledged; on a disk that takes nothing, none of it."""
        started_s = time.monotonic()
        fresh, keys, acks = unknown_deliveries(group.deliveries, self._recent)
        if len(fresh) < len(group.deliveries):
            self._metrics.redelivered.add(len(group.deliveries) - len(fresh))
        held = self._buffer.memory.reserve("group", _group_bytes(fresh))
        try:
            with self._station.within(APPEND_LIMIT_S, "append"):
                appended = append_group(self._appender, self._buffer.state.open, fresh, keys)
            self._rejects.keep(fresh, appended.results)
            if appended.payload:
                durable = self._log_group(fresh, keys, appended)
                if durable is None:
                    return
                appended = durable
            self._room.relief.appended(time.monotonic(), self._buffer.publish())
        finally:
            held.release()
        self._shown_sequence = self._wal.next_sequence - 1
        self._recent.add(keys)
        self._buffer.state.open.keep_keys(keys)
        self._count(group, appended)
        results = [
            (delivery.on_done, result)
            for delivery, result in zip(fresh, appended.results, strict=True)
            if delivery.on_done is not None
        ]
        self._on_committed(Committed(acks, results))
        self._metrics.commit_seconds.observe(time.monotonic() - started_s)

    def _log_group(
        self, deliveries: list[Delivery], keys: list[DeliveryKey | None], appended: GroupAppend
    ) -> GroupAppend | None:
        """Make a group durable; after a failure in a new file, with its rows in the new segment.

        Returns what was appended in the end; None when the appliance stops before a disk takes it.
        """
        refuse = partial(refuse_http, deliveries, keys, self._on_committed)
        attempt = 0
        while appended.payload:  # until it is written, or all of it was refused
            try:
                self._write(appended.payload)
                break
            except DiskError as error:
                self._metrics.wal_failures.add()
                _log.error("%s; the group is written to a new log file", error)
                if attempt:
                    self._hold_for_log(error)
                    refuse()
                if not self._replace_log(attempt, refuse):
                    refuse()
                    return None
                attempt += 1
                appended = append_group(self._appender, self._buffer.state.open, deliveries, keys)
        self._health.release("log")
        return appended

    def _write(self, payload: bytes) -> None:
        written = self._wal.file_bytes
        if self._asides:
            self._note_ends()
        self._wal.append(FrameType.GROUP, payload)
        self._metrics.wal_frames.add()
        self._metrics.wal_written.add(self._wal.file_bytes - written)
        if self._room.settings.sync == "group" or self._sync_interval_passed(time.monotonic()):
            self._sync()

    def _sync_interval_passed(self, now_s: float) -> bool:
        return self._room.settings.sync == "interval" and now_s - self._last_sync_s >= INTERVAL_SYNC_S

    def sync_late(self) -> None:
        """Sync groups that were acknowledged before, in `interval` mode."""
        try:
            self._sync()
        except DiskError as error:
            self._go_on_in_new_file(error)

    def _go_on_in_new_file(self, error: DiskError) -> None:
        """Outside of a group: what is visible stays, and the segment ends here."""
        self._metrics.wal_failures.add()
        _log.error("%s; the log goes on in a new file", error)
        if self._replace_log(0):
            self._health.release("log")

    def _sync(self) -> None:
        with self._commits():
            seconds = self._wal.sync()
        self._last_sync_s = time.monotonic()
        if seconds:  # else there was nothing to sync, or no log
            self._metrics.wal_fsyncs.add()
            self._metrics.fsync_seconds.observe(seconds)

    def _commits(self) -> AbstractContextManager[None]:
        """While inside, the thread waits for the disk."""
        return self._station.within(FSYNC_LIMIT_S, "commit")

    def _replace_log(self, attempt: int, refuse: Callable[[], None] = lambda: None) -> bool:
        """Take back the rows beyond the mark and go on in a new file; False when the appliance stops first."""
        take_back(self._appender, self._buffer.state.open)
        while not self._stopping.is_set():
            self._station.beat()
            if attempt:
                self._stopping.wait(RETRY_S[min(attempt, len(RETRY_S)) - 1])
            try:
                with self._commits():
                    self._wal.replace(self._generation(), self._next_file_sequence)
            except DiskError as error:
                self._metrics.wal_failures.add()
                self._hold_for_log(error)
                refuse()
                attempt += 1
                continue
            self._follow_log()
            return True
        return False

    def _hold_for_log(self, error: EdgeError) -> None:
        self._health.hold("log", f"read-only: the log cannot be written ({error})")

    def _follow_log(self) -> None:
        """Open the segment of the log's new file; what was open is sealed."""
        successor = Segment(self._wal.segment_id, self._wal.first_sequence, time.monotonic())
        if not self._buffer.state.open.is_empty:
            self._on_sealed(self._buffer.cut(successor))
            return
        empty = self._buffer.state.open
        self._buffer.start(successor)
        try:
            self._wal.drop(empty.id)
        except DiskError as error:
            _log.warning("%s; the empty file goes at the next start", error)

    # The cut

    def cut_if_due(self, now_s: float) -> None:
        """Cut the open segment when it is due by size, age or number of files; `now_s` is the monotonic clock's."""
        segment = self._buffer.state.open
        if segment.is_empty:
            segment.opened_s = now_s
            return
        settings = self._room.settings
        if (
            max(segment.size_bytes, self._wal.file_bytes) >= settings.segment_max_bytes
            or now_s - segment.opened_s >= settings.segment_max_age_s
            or segment.pairs >= MAX_PAIRS
        ):
            self.cut()

    def cut(self) -> None:
        """Seal the open segment and go on in the next log file."""
        with self._commits():
            self._rejects.sync()
        try:
            with self._commits():
                self._wal.cut(self._generation(), self._next_file_sequence)
        except DiskError as error:
            self._go_on_in_new_file(error)
            return
        self._follow_log()

    @property
    def _next_file_sequence(self) -> int:
        """First sequence of the next log file: the rank of what is cut is one below it.

        It must not be that of a set-aside, whose parts would have the names of those of the rest.
        """
        return self._shown_sequence + 1 + (self._shown_sequence == self._begin_sequence)

    # Relief: rows are persisted before memory is full

    def relieve(self, now_s: float) -> None:
        """Cut the segment or set rows aside, if memory is going to be short."""
        action = self._room.relief.decide(now_s)
        if isinstance(action, Cut):
            self.cut()
        elif isinstance(action, SetAsideTable):
            self.set_aside(action.table)

    def set_aside(self, table: TableKey) -> None:
        """Hand the oldest rows of a table of the open segment to the workers. Their PERSIST_BEGIN is durable before."""
        segment = self._buffer.state.open
        buffer = segment.tables[table]
        self._buffer.freeze(buffer)
        split = split_time(buffer.chunks)
        try:
            sequence = self._wal.append(FrameType.PERSIST_BEGIN, encode_begin(*table, split.time_ns))
            self._sync()
        except DiskError as error:
            self._go_on_in_new_file(error)
            return
        self._shown_sequence = self._begin_sequence = sequence
        aside = set_aside(segment, buffer, sequence, split.time_ns, int(buffer.frozen_bytes * split.share))
        self._buffer.set_aside(aside)
        self._asides.append(aside)
        self._on_set_aside(aside)

    def _note_ends(self) -> None:
        """Tell the log which set-asides are in parts by now: a hint, which goes along with a group."""
        in_work = self._buffer.state.set_asides
        for aside in [aside for aside in self._asides if aside not in in_work]:
            self._asides.remove(aside)
            if aside.segment_id == self._wal.segment_id:
                self._wal.append(FrameType.PERSIST_END, encode_end(aside.rank))

    # Telling

    def _count(self, group: Group, appended: GroupAppend) -> None:
        metrics = self._metrics
        metrics.groups.add(1, group.closed_by)
        metrics.lines.add(appended.lines)
        if appended.sanitised:
            metrics.sanitised.add(appended.sanitised)
        if appended.non_finite:
            metrics.non_finite.add(appended.non_finite)
        if appended.tag_collisions:
            metrics.tag_collisions.add(appended.tag_collisions)


def _group_bytes(deliveries: Sequence[Delivery]) -> int:
    """Memory that a group takes until it is in the log: payloads, spans, the record; its rows come on top."""
    return sum(3 * len(delivery.payload) + ENTRY_OVERHEAD_BYTES for delivery in deliveries)
