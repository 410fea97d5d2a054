"""The words of durability: write, sync, publish, link, remove, lock. The only module that calls fsync and fdatasync.

Its rule: a name counts only when its directory is synced, and content only when its file is synced before that.
Every function returns after the disk has confirmed, or raises; none of them tries a failed sync again, since the
kernel reports a lost write only once. It knows nothing of what the files mean.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from edge_appliance.errors import DiskError, PathError

TEMPORARY_SUFFIX: Final = ".tmp"
"""Names that end like this were never published; whoever owns the directory may delete them at start."""

NO_HARD_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})
"""Why link() may refuse although a copy works: another file system, one without hard links, or too many of them."""

_COMPARE_BYTES: Final = 1 << 20
FILE_MODE: Final = 0o640
"""Rows and topics are nobody's business but the service's user and group."""


def write_at(fd: int, data: bytes, offset: int, path: str | os.PathLike[str]) -> None:
    """Write all of `data` at `offset`, not yet durable; after a short write the rest tells why it was."""
    view = memoryview(data)
    with _disk("write", path):
        while view:
            written = os.pwrite(fd, view, offset)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            view, offset = view[written:], offset + written


def sync_data(fd: int, path: str) -> None:
    """Make the data of an open file durable, with its size; `path` only names it in the error."""
    with _disk("fdatasync", path):
        os.fdatasync(fd)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make a closed file durable through a fresh descriptor."""
    _sync_path(path, os.O_RDONLY)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable: those created, renamed and removed."""
    _sync_path(path, os.O_RDONLY | os.O_DIRECTORY)


def publish(temporary: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    """Give a finished file its final name, durably; a file of that name is replaced."""
    # Synced before the rename: an empty file under the final name looks valid.
    sync_file(temporary)
    with _disk("rename", final):
        os.replace(temporary, final)  # noqa: PTH105 - paths may be plain strings
    target, source = Path(final).parent, Path(temporary).parent
    sync_directory(target)
    if source != target:
        sync_directory(source)


def remove(path: str | os.PathLike[str]) -> bool:
    """Unlink a file, durably; False when it was gone already."""
    with _disk("unlink", path):
        try:
            os.unlink(path)  # noqa: PTH108 - paths may be plain strings
            was_there = True
        except FileNotFoundError:
            was_there = False
    # Also when it was gone: the sync behind an earlier unlink may have failed.
    sync_directory(Path(path).parent)
    return was_there


def make_directory(path: str | os.PathLike[str], mode: int = 0o750) -> None:
    """Create a directory and its missing parents, durably; an existing directory is fine."""
    directory = Path(path)
    missing: list[Path] = []
    try:
        while not directory.is_dir() and directory != directory.parent:
            missing.append(directory)
            directory = directory.parent
        for child in reversed(missing):
            # Another thread may create the same parent at the same moment.
            with suppress(FileExistsError):
                child.mkdir(mode)
            if not child.is_dir():
                raise PathError(str(child), "exists and is not a directory")
            sync_directory(child.parent)
    except OSError as error:
        raise PathError(str(path), error.strerror or str(error)) from error
    except DiskError as error:
        raise PathError(str(path), str(error)) from error


class LockHandle:
    """An exclusive lock on a directory, held until it is released or the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Give the directory free; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def lock_directory(path: str | os.PathLike[str]) -> LockHandle:
    """Lock an existing directory against other processes, without waiting."""
    lock = Path(path) / "lock"
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise PathError(str(lock), error.strerror or str(error)) from error
    try:
        # The file is never unlinked: a lock on a removed inode would keep nobody out.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        is_held = error.errno in {errno.EWOULDBLOCK, errno.EACCES}
        reason = "in use by another process" if is_held else error.strerror or str(error)
        raise PathError(str(path), reason) from error
    return LockHandle(fd)


def link_or_copy(source: str | os.PathLike[str], final: str | os.PathLike[str]) -> None:
    """Give a durable file a second name, durably: a hard link, or a copy where links do not reach.

    A file of that name with the same bytes is fine; one with other bytes raises DiskError with EEXIST.
    """
    target = Path(final)
    try:
        os.link(source, target)
    except FileExistsError as error:
        if not _is_equal(Path(source), target):
            raise DiskError("link", str(target), error) from error
        # It may be the work of a run that was cut before its syncs.
        sync_file(target)
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise DiskError("link", str(target), error) from error
        _copy(Path(source), target)
    sync_directory(target.parent)


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes that this process may still write to the file system of `path`."""
    with _disk("statvfs", path):
        stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


@contextmanager
def _disk(operation: str, path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskError(operation, os.fspath(path), error) from error


def _sync_path(path: str | os.PathLike[str], flags: int) -> None:
    with _disk("fsync", path):
        fd = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _temporary(path: str | os.PathLike[str]) -> Path:
    final = Path(path)
    return final.with_name(final.name + TEMPORARY_SUFFIX)


def _discard(temporary: Path) -> None:
    # Only tidies up after an error that is already on its way; a leftover is recognised by its suffix.
    with suppress(OSError):
        temporary.unlink()


def _copy(source: Path, target: Path) -> None:
    temporary = _temporary(target)
    try:
        with _disk("copy", target):
            shutil.copyfile(source, temporary)
        publish(temporary, target)
    except DiskError:
        _discard(temporary)
        raise


def _is_equal(left: Path, right: Path) -> bool:
    with _disk("read", right):
        if left.stat().st_size != right.stat().st_size:
            return False
        if left.samefile(right):
            return True
        with left.open("rb") as a, right.open("rb") as b:
            while block := a.read(_COMPARE_BYTES):
                if block != b.read(_COMPARE_BYTES):
                    return False
    return True
