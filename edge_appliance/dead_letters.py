"""Dead letters: rejected lines on disk, with where they came from and why, in a bounded number of bytes.

Files of JSON lines, numbered, of which the oldest goes when the limit is reached. A letter is written before its
delivery is acknowledged and synced at most once a second: a power cut may cost the last second of rejects, never
a row. Any thread may write; anybody may read at the same time.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from edge_appliance import durable
from edge_appliance.core.delivery import LineError, Source
from edge_appliance.errors import DiskError
from edge_appliance.metrics import Metrics

DEFAULT_MAX_BYTES: Final = 16 << 20
MAX_FILE_BYTES: Final = 1 << 20
SYNC_EVERY_S: Final = 1.0

_FILES_AT_LEAST: Final = 4
"""Of a small limit, so that dropping the oldest file never drops nearly everything."""
_NAME: Final = re.compile(r"rejects-(\d{10})\.jsonl")


class _Letter(msgspec.Struct, frozen=True):
    """One line of a file; `sample` becomes base64, since it may hold any bytes."""

    arrival_ns: int
    source: str
    topic: str
    line: int
    column: int
    reason: str
    message: str
    sample: bytes


class DeadLetters:
    """The writing side. Every method may raise DiskError; the letter is lost then, and later ones are not."""

    def __init__(self, directory: Path, max_bytes: int, metrics: Metrics) -> None:
        durable.make_directory(directory)
        self._directory = directory
        self._lock = threading.RLock()
        self._max_bytes = max_bytes
        self._file_bytes = max(1, min(MAX_FILE_BYTES, max_bytes // _FILES_AT_LEAST))
        self._metrics = metrics
        self._encoder = msgspec.json.Encoder()
        self._sizes = {path: size for path in _files(directory) if (size := _maybe_size(path)) is not None}
        """Size of each file, oldest first; the last one may be open."""
        self._fd = -1
        self._unsynced: set[Path] = set()
        self._has_new_names = False
        self._last_sync_s = float("-inf")
        metrics.dead_letter_bytes.set(self._total_bytes)

    def append(self, arrival_ns: int, source: Source, topic: str, errors: Sequence[LineError]) -> None:
        """Write the rejected lines of one delivery, dropping the oldest letters beyond the limit."""
        with self._lock:
            waiting: list[bytes] = []
            waiting_bytes = 0
            for error in errors:
                letter = _Letter(
                    arrival_ns, source, topic, error.line, error.column, error.reason.value, error.message, error.sample
                )
                line = self._encoder.encode(letter) + b"\n"
                if waiting and self._open_bytes + waiting_bytes + len(line) > self._file_bytes:
                    self._write(waiting)
                    waiting, waiting_bytes = [], 0
                waiting.append(line)
                waiting_bytes += len(line)
            if waiting:
                self._write(waiting)

    def sync_if_due(self, now_s: float) -> None:
        """Make the letters durable when the last sync was a second ago or longer, by the monotonic clock."""
        with self._lock:
            if self._unsynced and now_s - self._last_sync_s >= SYNC_EVERY_S:
                self._last_sync_s = now_s
                self.sync()

    def sync(self) -> None:
        """Make all letters durable; a file that cannot be synced is not appended to again."""
        with self._lock:
            unsynced, self._unsynced = self._unsynced, set()
            try:
                for path in sorted(unsynced & self._sizes.keys()):
                    durable.sync_file(path)
                if self._has_new_names:
                    durable.sync_directory(self._directory)
                    self._has_new_names = False
            except DiskError:
                self._close_file()
                self._begin_file()
                raise

    def close(self) -> None:
        """Make all letters durable and close the file."""
        with self._lock:
            try:
                self.sync()
            finally:
                self._close_file()

    def seal(self) -> list[Path]:
        """End the file that is written; returns all files with letters, oldest first, none of which grows any more."""
        with self._lock:
            if self._open_bytes:
                self.sync()
                self._close_file()
                self._begin_file()
            return [path for path, size in self._sizes.items() if size]

    def replace(self, path: Path, letters: Sequence[Mapping[str, Any]]) -> None:
        """Keep only these letters of a sealed file; what came since is durable before. Without any, the file goes."""
        data = b"".join(self._encoder.encode(letter) + b"\n" for letter in letters)
        with self._lock:
            self.sync()
            if path not in self._sizes:
                return  # the oldest, which had to make room
            if data:
                _replace_file(path, data)
                self._sizes[path] = len(data)
            else:
                durable.remove(path)
                del self._sizes[path]
            self._metrics.dead_letter_bytes.set(self._total_bytes)

    def purge(self) -> int:
        """Throw all letters away; returns how many."""
        with self._lock:
            letters = 0
            for path in self.seal():
                letters += _count_letters(path)
                self.replace(path, ())
            return letters

    @property
    def _total_bytes(self) -> int:
        return sum(self._sizes.values())

    @property
    def _newest(self) -> Path | None:
        return next(reversed(self._sizes), None)

    @property
    def _open_bytes(self) -> int:
        newest = self._newest
        return 0 if newest is None else self._sizes[newest]

    def _write(self, lines: Sequence[bytes]) -> None:
        """Write lines that fit in one file together, or a single one."""
        data = b"".join(lines)
        if len(data) > self._max_bytes:
            self._metrics.dead_letters_dropped.add(len(lines))
            return
        if self._newest is None or (self._open_bytes and self._open_bytes + len(data) > self._file_bytes):
            self._close_file()
            self._begin_file()
        self._make_room(len(data))
        path = self._open_file()
        start = self._sizes[path]
        try:
            _write_all(self._fd, data, path)
        except DiskError:
            with suppress(OSError):
                os.ftruncate(self._fd, start)
            self._close_file()
            raise
        self._sizes[path] = start + len(data)
        self._unsynced.add(path)
        self._metrics.dead_letters.add(len(lines))
        self._metrics.dead_letter_bytes.set(self._total_bytes)

    def _begin_file(self) -> None:
        """Name the next file; it is created when there is something to write."""
        newest = self._newest
        number = 1 if newest is None else _number(newest) + 1
        self._sizes[self._directory / f"rejects-{number:010d}.jsonl"] = 0

    def _open_file(self) -> Path:
        path = self._newest
        assert path is not None  # noqa: S101 - the caller has begun one
        if self._fd >= 0:
            return path
        try:
            self._has_new_names |= not path.exists()
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, durable.FILE_MODE)
            size = os.fstat(self._fd).st_size
            # A crash may have torn the last letter: the next one begins on a line of its own.
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                size += os.write(self._fd, b"\n")
        except OSError as error:
            self._close_file()
            raise DiskError("open", str(path), error) from error
        self._sizes[path] = size
        return path

    def _close_file(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _make_room(self, wanted_bytes: int) -> None:
        while self._total_bytes + wanted_bytes > self._max_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            letters = _count_letters(oldest)
            durable.remove(oldest)
            del self._sizes[oldest]
            self._unsynced.discard(oldest)
            self._metrics.dead_letters_dropped.add(letters)


def read_dead_letters(directory: Path, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The kept letters as they are stored, newest last: the last `limit`, or all of them.

    Works while the daemon writes; a torn line and a file that is dropped meanwhile are left out.
    """
    files = _files(directory)
    if limit is None:
        for path in files:
            yield from _letters(path)
        return
    newest: deque[dict[str, Any]] = deque()
    for path in reversed(files):
        missing = limit - len(newest)
        if missing <= 0:
            break
        newest.extendleft(reversed(deque(_letters(path), maxlen=missing)))
    yield from newest


def read_file(path: Path) -> list[dict[str, Any]]:
    """The letters of one file; none when it is gone."""
    return list(_letters(path))


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DiskError("list", str(directory), error) from error


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def _maybe_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise DiskError("read", str(path), error) from error


def _count_letters(path: Path) -> int:
    try:
        return _read(path).count(b"\n")
    except DiskError:
        return 0


def _letters(path: Path) -> Iterator[dict[str, Any]]:
    for line in _read(path).splitlines():
        with suppress(msgspec.DecodeError):
            letter = msgspec.json.decode(line)
            if isinstance(letter, dict):
                yield letter


def _replace_file(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + durable.TEMPORARY_SUFFIX)
    try:
        temporary.write_bytes(data)
    except OSError as error:
        raise DiskError("write", str(temporary), error) from error
    durable.publish(temporary, path)


def _write_all(fd: int, data: bytes, path: Path) -> None:
    view = memoryview(data)
    try:
        while view and (written := os.write(fd, view)):
            view = view[written:]
    except OSError as error:
        raise DiskError("write", str(path), error) from error
    if view:
        raise DiskError("write", str(path), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
