"""One file of the write-ahead log, read from the disk: what it is, and its records in bounded memory.

Reading changes nothing: replay, `wal verify` and `wal inspect` share it. What the bytes mean is decided in
`core/wal_frame` and `core/wal_scan`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from edge_appliance.core.wal_frame import BLOCK_BYTES, FileHeader, Frame, Predecessor, decode_header
from edge_appliance.core.wal_scan import Damage, Walk, find_salt
from edge_appliance.errors import DiskError, FormatError, NewerFormatError

SUFFIX: Final = ".wal"
EMPTY_FILE: Final = "the file is empty"
"""Reason for moving a file to the quarantine that a crash cut off while it was made."""
_NAME: Final = re.compile(r"(\d{20})\.wal")
_WINDOW_BYTES: Final = 256 << 10
"""Read at once: many small records cost one call."""
_READ_TRIES: Final = 3
"""Attempts before a range counts as unreadable; a card often answers the second time."""


@dataclass(frozen=True, slots=True)
class WalFile:
    """A file that has records or may have some; `header` is None when its first block is damaged."""

    path: Path
    id: int
    size_bytes: int
    header: FileHeader | None
    salt: int


def file_name(segment_id: int) -> str:
    """Name of a segment's file; names sort like their ids."""
    return f"{segment_id:020d}{SUFFIX}"


def maybe_segment_id(name: str) -> int | None:
    """The segment id that a name begins with, also that of a copy in quarantine; None for other names."""
    match = _NAME.match(name)
    return int(match[1]) if match else None


def open_file(path: Path) -> WalFile:
    """Look at a file; raises FormatError when nothing in it can be read, NewerFormatError, or DiskError."""
    segment_id = maybe_segment_id(path.name)
    if segment_id is None:
        raise FormatError(path.name, 0, "the name is not that of a WAL file")
    with FileBytes(path) as file:
        if not file.size_bytes:
            raise FormatError(path.name, 0, EMPTY_FILE)
        if file.size_bytes < BLOCK_BYTES:
            raise FormatError(path.name, file.size_bytes, "shorter than a file header")
        try:
            header = decode_header(file.read_at(0, BLOCK_BYTES) or b"")
        except NewerFormatError:
            raise
        except FormatError:
            salt = find_salt(file.read_at, file.size_bytes)
            if salt is None:
                raise
            return WalFile(path, segment_id, file.size_bytes, None, salt)
        if header.segment_id != segment_id:
            raise FormatError(path.name, 24, f"the header is that of segment {header.segment_id}")
        return WalFile(path, segment_id, file.size_bytes, header, header.salt)


def list_directory(directory: Path) -> list[Path]:
    """Paths in a directory by name, which for log files is their order; none when it is missing. Raises DiskError."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DiskError("list", str(directory), error) from error


class FileWalk:
    """Iterates once over the frames and the damage of a file; afterwards `end` says where it ends.

    `next_header` is that of the next file there is: it seals this one when it names it as its predecessor.
    Raises DiskError when the file cannot be opened; ranges that cannot be read are damage.
    """

    def __init__(self, file: WalFile, next_header: FileHeader | None) -> None:
        self._file = file
        self._sealed: Predecessor | None = None
        self._durable_sequence = 0
        if next_header is not None:
            previous = next_header.previous
            if previous is not None and previous.segment_id == file.id:
                self._sealed = previous
            else:
                # The file between is missing; whatever its length was, it began after this one was durable.
                self._durable_sequence = next_header.first_sequence - 1
        self._end = Predecessor(file.id, 0, 0)

    @property
    def end(self) -> Predecessor:
        """How a successor's header names this file; valid once the walk is over."""
        return self._end

    def __iter__(self) -> Iterator[Frame | Damage]:
        file = self._file
        if file.header is None:
            yield Damage(0, BLOCK_BYTES, "file header")
        with FileBytes(file.path) as content:
            walk = Walk(
                content.read_at,
                file.size_bytes,
                salt=file.salt,
                first_sequence=None if file.header is None else file.header.first_sequence,
                sealed=self._sealed,
                durable_sequence=self._durable_sequence,
            )
            yield from walk
        self._end = Predecessor(file.id, walk.valid_end, walk.last_crc)


class FileBytes:
    """Random access to an open file through a window; the size is that at the time of opening."""

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size_bytes = os.fstat(self._fd).st_size
        except OSError as error:
            raise DiskError("open", str(path), error) from error
        self._window_start = 0
        self._window = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read_at(self, offset: int, length: int) -> bytes | None:
        """The bytes at `offset`, fewer at the end of the file; None when the disk cannot read them."""
        start = offset - self._window_start
        if start < 0 or start + length > len(self._window):
            wanted = max(length, _WINDOW_BYTES)
            window = self._pread(offset, wanted)
            if window is None:
                # One bad sector must not make its neighbours unreadable.
                return self._pread(offset, length) if wanted > length else None
            self._window_start, self._window, start = offset, window, 0
        return self._window[start : start + length]

    def _pread(self, offset: int, length: int) -> bytes | None:
        for _ in range(_READ_TRIES):
            try:
                return self._pread_all(offset, length)
            except OSError:
                continue
        return None

    def _pread_all(self, offset: int, length: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        while len(data) < length and (more := os.pread(self._fd, length - len(data), offset + len(data))):
            data += more
        return data
