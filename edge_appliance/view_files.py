"""Directories of links to the parts that queries read.

    <directory>/<n>/alone/<part name>
    <directory>/<n>/shared/_edge_part=<place>/_edge_lo=<µs>/_edge_hi=<µs>/<part name>

The SQL engine reads a directory, never a list of files. A hard link shows exactly the parts of one plan, costs no
copy, and keeps the file's bytes for the query when the part is moved or merged away meanwhile. Queries that read
the same parts share a directory; it goes with the last of them. Nothing here outlives the process.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from edge_appliance.core.parts import Part, part_name
from edge_appliance.core.query_types import HI_COLUMN, LO_COLUMN, PART_COLUMN, SharedPart
from edge_appliance.durable import NO_HARD_LINKS
from edge_appliance.errors import PathError, QueryError, StoreError

_LOOKS: Final = 3
"""A part moves from the spool to the store while we look: its path is asked for again."""


class PartLocator(Protocol):
    """Where the local copy of a part is."""

    def open_path(self, part: Part) -> Path:
        """Path of an existing local copy; raises StoreError when there is none."""

    def reading(self) -> AbstractContextManager[None]:
        """Whatever a view taken inside the block names is not deleted before its end."""

    def held(self, parts: Collection[Part], until_s: float, check: Callable[[], None]) -> AbstractContextManager[None]:
        """Local copies of `parts` until the block ends; raises QueryError when some cannot be had until `until_s`.

        Whatever `check` raises ends the wait for them.
        """


_Key = tuple[tuple[Part, ...], tuple[SharedPart, ...]]


@dataclass(slots=True)
class _Linked:
    path: Path
    users: int = 0


class ViewFiles:
    """Makes, shares and removes the link directories. Thread-safe."""

    def __init__(self, directory: Path, locator: PartLocator) -> None:
        self._directory = directory
        self._locator = locator
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._linked: dict[_Key, _Linked] = {}
        try:
            # Whatever is here was left by a process that was killed; no query can hold it any more.
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PathError(str(directory), error.strerror or str(error)) from error

    @contextmanager
    def linked(self, alone: tuple[Part, ...], shared: tuple[SharedPart, ...]) -> Iterator[tuple[Path, Path]]:
        """Two directories that show exactly these parts; they are there until the block ends."""
        key = (alone, shared)
        with self._lock:
            linked = self._linked.get(key)
            if linked is None:
                linked = self._linked[key] = _Linked(self._link_all(alone, shared))
            linked.users += 1
        try:
            yield linked.path / "alone", linked.path / "shared"
        finally:
            with self._lock:
                linked.users -= 1
                if not linked.users:
                    del self._linked[key]
                    shutil.rmtree(linked.path, ignore_errors=True)

    def _link_all(self, alone: tuple[Part, ...], shared: tuple[SharedPart, ...]) -> Path:
        path = self._directory / str(next(self._numbers))
        try:
            for place, (part, own) in enumerate(shared):
                labels = f"{PART_COLUMN}={place}", f"{LO_COLUMN}={own.lo // 1000}", f"{HI_COLUMN}={own.hi // 1000}"
                labelled = path.joinpath("shared", *labels)
                labelled.mkdir(parents=True)
                self._link(part, labelled / part_name(part))
            (path / "alone").mkdir(parents=True)
            for part in alone:
                self._link(part, path / "alone" / part_name(part))
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise QueryError("unavailable", f"the parts cannot be linked for reading: {error.strerror}") from error
        except QueryError:
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
                    if error.errno not in NO_HARD_LINKS:
                        raise
                    # Another file system, or one without hard links. This does not pin the bytes, but reads them.
                    link.symlink_to(source.absolute())
            except (FileNotFoundError, StoreError) as error:
                if look == _LOOKS - 1:
                    text = f"{part.table}: the part of {part.date} has no local copy ({part_name(part)})"
                    raise QueryError("unavailable", text) from error
            else:
                return
