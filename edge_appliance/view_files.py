"""Directories of links to the parts that queries read: `<directory>/<n>/_edge_part=<position>/<part name>`.

The SQL engine reads a directory, never a list of files. A hard link shows exactly the parts of one plan, costs no
copy, and keeps the file's bytes for the query when the part is moved or merged away meanwhile. Queries that read
the same parts share a directory; it goes with the last of them. Nothing here outlives the process.
"""

from __future__ import annotations

import errno
import itertools
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from edge_appliance.core.parts import Part, part_name
from edge_appliance.core.query_plan import PART_COLUMN
from edge_appliance.errors import PathError, QueryError, StoreError

_LOOKS: Final = 3
"""A part moves from the spool to the store while we look: its path is asked for again."""
_NO_HARD_LINK: Final = frozenset((errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK))


class PartLocator(Protocol):
    """Where the local copy of a part is."""

    def open_path(self, part: Part) -> Path:
        """Path of an existing local copy; raises StoreError when there is none."""


@dataclass(slots=True)
class _Shared:
    path: Path
    users: int


class ViewFiles:
    """Makes, shares and removes the link directories. Thread-safe."""

    def __init__(self, directory: Path, locator: PartLocator) -> None:
        self._directory = directory
        self._locator = locator
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._shared: dict[tuple[Part, ...], _Shared] = {}
        try:
            # Whatever is here was left by a process that was killed; no query can hold it any more.
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PathError(str(directory), error.strerror or str(error)) from error

    @contextmanager
    def linked(self, parts: Sequence[Part]) -> Iterator[Path]:
        """A directory that shows exactly `parts`, each under its position; it is there until the block ends."""
        key = tuple(parts)
        with self._lock:
            shared = self._shared.get(key)
            if shared is None:
                shared = self._shared[key] = _Shared(self._link_all(key), 0)
            shared.users += 1
        try:
            yield shared.path
        finally:
            with self._lock:
                shared.users -= 1
                if not shared.users:
                    del self._shared[key]
                    shutil.rmtree(shared.path, ignore_errors=True)

    def _link_all(self, parts: tuple[Part, ...]) -> Path:
        path = self._directory / str(next(self._numbers))
        try:
            for position, part in enumerate(parts):
                place = path / f"{PART_COLUMN}={position}"
                place.mkdir(parents=True)
                self._link(part, place / part_name(part))
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise QueryError("unavailable", f"the parts cannot be linked for reading: {error.strerror}") from error
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return path

    def _link(self, part: Part, link: Path) -> None:
        for look in range(_LOOKS):
            try:
                source = self._locator.open_path(part)
                try:
                    link.hardlink_to(source)
                except OSError as error:
                    if error.errno not in _NO_HARD_LINK:
                        raise
                    # Another file system, or one without hard links. This does not pin the bytes, but reads them.
                    link.symlink_to(source.absolute())
            except (FileNotFoundError, StoreError) as error:
                if look == _LOOKS - 1:
                    text = f"{part.table}: the part of {part.date} has no local copy ({part_name(part)})"
                    raise QueryError("unavailable", text) from error
            else:
                return
