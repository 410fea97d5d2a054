"""The write-ahead log: a directory of files, one a segment, of which the newest is open for appending.

Its rule: what `sync` has confirmed is durable, and nothing else is; a file on which a sync has failed is never synced
or appended to again, and its successor's header says how much of it counts. One thread uses it; it has no thread of
its own and never waits for anything but the disk. It does not know what the records mean.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_appliance import durable
from edge_appliance.core.wal_frame import (
    FORMAT_VERSION,
    FileHeader,
    Frame,
    FrameType,
    Predecessor,
    encode_frame,
    encode_header,
    frame_crc,
)
from edge_appliance.core.wal_record import group_rows
from edge_appliance.core.wal_scan import Damage
from edge_appliance.errors import DiskError, FormatError, NewerFormatError
from edge_appliance.quarantine import Quarantine
from edge_appliance.wal_active import ActiveFile
from edge_appliance.wal_file import (
    EMPTY_FILE,
    SUFFIX,
    FileBytes,
    FileWalk,
    WalFile,
    file_name,
    list_directory,
    maybe_segment_id,
    open_file,
)

_SALT_BYTES: Final = 4


class Wal:
    """The log of one data directory; the directory is locked by whoever owns it.

    Order of use: `files` and `read` for replay, `verify_durable`, `start`, then `append`, `sync`, `cut`, and after
    a DiskError `replace`. With `sync` False nothing is ever synced, and what was written counts as durable.
    `drop` and the sizes may be called from any thread.
    """

    def __init__(
        self,
        directory: Path,
        *,
        node: str,
        incarnation: str,
        sync: bool,
        clock_ns: Callable[[], int],
        compress: bool = True,
    ) -> None:
        self._directory = directory
        self._quarantine = Quarantine(directory.parent / "quarantine")
        self._node = node
        self._incarnation = incarnation
        self._is_synced = sync
        self._clock_ns = clock_ns
        self._compress = compress
        self._active: ActiveFile | None = None
        self._sizes: dict[int, int] = {}
        self._ends: dict[int, Predecessor] = {}
        self._last_id = 0
        self.quarantined: list[FormatError] = []
        """What `files` moved to quarantine, with the reason, for whoever counts and tells."""

    # Before the start: what is there

    def files(self) -> list[WalFile]:
        """Existing files in order of their ids; files without anything to replay are moved to quarantine.

        An empty newest one is removed: a header is synced with its first group, so there was none. Raises
        NewerFormatError when a later release wrote a file, since skipping it would lose its rows.
        """
        found: list[WalFile] = []
        listed = list_directory(self._directory)
        for path in listed:
            self._last_id = max(self._last_id, maybe_segment_id(path.name) or 0)
            if path.suffix != SUFFIX:
                continue
            try:
                found.append(open_file(path))
            except NewerFormatError:
                raise
            except FormatError as error:
                if error.reason == EMPTY_FILE and path == listed[-1]:
                    with suppress(DiskError):
                        durable.remove(path)
                    continue
                self.quarantined.append(error)
                self._quarantine.take(path)
            except DiskError as error:
                if error.errno != errno.ENOENT:  # dropped meanwhile
                    raise
        for path in list_directory(self._quarantine.directory):
            self._last_id = max(self._last_id, maybe_segment_id(path.name) or 0)
        self._sizes = {file.id: file.size_bytes for file in found}
        for file in found:
            if not file.path.exists():
                self._sizes.pop(file.id, None)
        return found

    def read(self, file: WalFile, next_header: FileHeader | None) -> Iterator[Frame | Damage]:
        """The records of a file in order, and what is damaged; holds one record in memory.

        The bytes of damage that is not merely torn are copied to quarantine before it is yielded. Frames of types
        this release does not know are yielded with their bare number, for the reader to skip and count.
        """
        walk = FileWalk(file, next_header)
        for found in walk:
            if isinstance(found, Damage) and found.length and not found.is_torn:
                with FileBytes(file.path) as content:
                    end = min(found.offset + found.length, content.size_bytes)
                    self._quarantine.keep_range(file.path.name, content.read_at, found.offset, end)
            yield found
        self._ends[file.id] = walk.end

    def verify_durable(self, files: Sequence[WalFile]) -> None:
        """Sync files that were replayed, and their names, through fresh descriptors: a crash may have cut their sync.

        Raises DiskError; the rows of that file must then be written again before anything is acknowledged.
        """
        if not self._is_synced:
            return
        for file in files:
            try:
                durable.sync_file(file.path)
            except DiskError as error:
                if error.errno != errno.ENOENT:  # dropped meanwhile
                    raise
        durable.sync_directory(self._directory)

    # The active file

    def start(self, segment_id: int, first_sequence: int, generation: int) -> None:
        """Open a new file; its header seals the newest file there is at the end of its last valid record.

        The id is raised above every name seen in the log and in quarantine: ids never come back.
        """
        if self._active is not None:
            raise ValueError("the log has been started already")
        durable.make_directory(self._directory)
        files = self.files()
        previous = None
        if files:
            newest = files[-1]
            if newest.id not in self._ends:
                for _ in self.read(newest, None):
                    pass
            previous = self._ends[newest.id]
        self._active = self._create(max(segment_id, self._last_id + 1), first_sequence, generation, previous)
        self._ends.clear()

    def append(self, kind: FrameType, payload: bytes) -> int:
        """Write one record behind the last one, in one call and not yet durable; returns its sequence.

        A failed or short write is cut back and takes no sequence; raises DiskError.
        """
        active = self._current
        sequence = active.next_sequence
        self._write(active, kind, payload, sequence)
        active.next_sequence = sequence + 1
        return sequence

    def sync(self) -> float:
        """Make all appended records durable with one fdatasync; returns the seconds it took.

        Raises DiskError; after that this file takes nothing any more, and `replace` is the way on.
        """
        active = self._current
        active.check("fdatasync")
        seconds = 0.0
        if active.end != active.durable_length:
            started_s = time.perf_counter()
            if self._is_synced:
                try:
                    durable.sync_data(active.fd, str(active.path))
                except DiskError:
                    # The kernel reports a lost write once: a second sync would succeed without the data.
                    active.give_up()
                    raise
                seconds = time.perf_counter() - started_s
            active.durable_length = active.end
            active.durable_crc = active.last_crc
            active.durable_sequence = active.next_sequence - 1
        return seconds

    def cut(self, generation: int, first_sequence: int | None = None) -> None:
        """Go on in the next file, whose first sequence is the next one; all records of the old file are durable then.

        A later first sequence leaves a gap: the rank of what is cut is then one above its last record. Raises
        DiskError; the old file takes nothing any more after that, and `replace` is the way on.
        """
        active = self._current
        self.sync()
        previous = Predecessor(active.id, active.durable_length, active.durable_crc)
        first_sequence = max(first_sequence or 0, active.next_sequence)
        try:
            successor = self._create(self._last_id + 1, first_sequence, generation, previous)
        except DiskError:
            # A header that ends this file here may come back after a crash: records behind it would not count.
            active.is_poisoned = True
            raise
        # The seal only helps when the successor is lost, so it is neither synced nor missed.
        with suppress(DiskError):
            self._write(active, FrameType.SEAL, b"", active.next_sequence - 1)
        self._close(active)
        self._active = successor

    def replace(self, generation: int, first_sequence: int | None = None) -> None:
        """After a failed write or sync: go on in a new file that caps the old one at its durable length.

        Records from `first_sequence` on are appended again, under their sequences; None: all that are not durable.
        Raises DiskError when no new file can be made; it may be called again then.
        """
        active = self._current
        if not active.is_poisoned:
            # Only a write failed: what was written before it may be acknowledged already, or be waiting for a sync.
            with suppress(DiskError):
                self.sync()
        is_empty = not active.durable_length
        previous = active.previous if is_empty else Predecessor(active.id, active.durable_length, active.durable_crc)
        active.is_poisoned = True
        if first_sequence is None:
            first_sequence = active.durable_sequence + 1
        self._active = self._create(self._last_id + 1, first_sequence, generation, previous)
        self._close(active)
        if is_empty:
            with suppress(DiskError):
                self.drop(active.id)

    def drop(self, segment_id: int) -> None:
        """Unlink the file of a segment, durably; one that is gone already is fine."""
        if self._active is not None and segment_id == self._active.id:
            raise ValueError("the open segment's file cannot be dropped")
        path = self._directory / file_name(segment_id)
        durable.remove(path)
        self._sizes.pop(segment_id, None)

    def close(self) -> None:
        """Close the active file as it is; nothing special is written, a stop is like a crash."""
        if self._active is not None:
            self._close(self._active)
            self._active = None

    @property
    def segment_id(self) -> int:
        """Id of the open segment."""
        return self._current.id

    @property
    def first_sequence(self) -> int:
        """Sequence of the active file's first record."""
        return self._current.first_sequence

    @property
    def next_sequence(self) -> int:
        """Sequence that the next record will get."""
        return self._current.next_sequence

    @property
    def durable_sequence(self) -> int:
        """Highest sequence that is durable together with all below it."""
        return self._current.durable_sequence

    @property
    def file_bytes(self) -> int:
        """Size of the active file."""
        return self._current.end

    @property
    def total_bytes(self) -> int:
        """Size of all files."""
        active = self._active
        return sum(list(self._sizes.values())) + (active.end if active else 0)

    @property
    def file_count(self) -> int:
        """Number of files."""
        return len(self._sizes) + (self._active is not None)

    @property
    def last_segment_id(self) -> int:
        """Highest id that any name in the log or in quarantine has, or had since the start: the next is above it."""
        return self._last_id

    @property
    def _current(self) -> ActiveFile:
        if self._active is None:
            raise ValueError("the log has not been started")
        return self._active

    def _create(
        self, segment_id: int, first_sequence: int, generation: int, previous: Predecessor | None
    ) -> ActiveFile:
        # Used up whatever happens: a name that failed half-way must not come back with other content.
        self._last_id = max(self._last_id, segment_id)
        path = self._directory / file_name(segment_id)
        salt = int.from_bytes(os.urandom(_SALT_BYTES))
        header = FileHeader(
            format_version=FORMAT_VERSION,
            node=self._node,
            incarnation=self._incarnation,
            segment_id=segment_id,
            first_sequence=first_sequence,
            salt=salt,
            created_ns=self._clock_ns(),
            generation=generation,
            previous=previous,
        )
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, durable.FILE_MODE)
        except OSError as error:
            raise DiskError("create", str(path), error) from error
        try:
            durable.write_at(fd, encode_header(header), 0, path)
            if self._is_synced:
                durable.sync_directory(self._directory)
        except DiskError:
            with suppress(OSError):
                os.close(fd)
            with suppress(OSError):
                path.unlink()
            raise
        durable_sequence = first_sequence - 1
        return ActiveFile(segment_id, path, fd, salt, first_sequence, previous, first_sequence, durable_sequence)

    def _write(self, active: ActiveFile, kind: FrameType, payload: bytes, sequence: int) -> None:
        active.check("write")
        frame = encode_frame(
            kind,
            sequence,
            active.durable_sequence,
            active.salt,
            payload,
            compress=self._compress,
            rows=group_rows(payload) if kind is FrameType.GROUP else 0,
        )
        try:
            durable.write_at(active.fd, frame, active.end, active.path)
        except DiskError:
            try:
                os.ftruncate(active.fd, active.end)
            except OSError:
                active.give_up()
            raise
        active.end += len(frame)
        active.last_crc = frame_crc(frame)

    def _close(self, active: ActiveFile) -> None:
        with suppress(OSError):
            os.close(active.fd)
        self._sizes[active.id] = active.end
