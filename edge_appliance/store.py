"""The store: where parts go in the end. In this release a directory; and where to find a part on local disk.

Names in the store never repeat, so sending a part twice is harmless.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from edge_appliance import durable
from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.errors import DiskError, PathError, StoreError
from edge_appliance.metrics import Metrics

_LOOKS: Final = 2
"""A part moves from spool to store once in its life: who misses it on both sides looks again."""


class DirectoryStore:
    """A store in a local or mounted directory (`file://`)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, key: str) -> Path:
        """Where the object `key` is, or would be."""
        return self.root / key

    def put(self, source: Path, key: str) -> bool:
        """Store the durable file `source` as `key`, create-only; False when another content has that name.

        The same content under that name is success: it is what a crash behind an earlier put leaves.
        """
        final = self.path(key)
        try:
            durable.make_directory(final.parent)
            durable.link_or_copy(source, final)
        except DiskError as error:
            if error.errno == errno.EEXIST:
                return False
            raise StoreError("put", key, str(error)) from error
        except PathError as error:
            raise StoreError("put", key, str(error)) from error
        return True

    def size_bytes(self, key: str) -> int | None:
        """Size of the object `key`; None when there is none."""
        try:
            return self.path(key).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError("stat", key, error.strerror or str(error)) from error

    def part_paths(self) -> Iterator[Path]:
        """All files that are named like parts, in no order."""
        return self.root.glob("*/*/date=*/*.parquet")


class PartFiles:
    """Finds the local file of a part: in the store's directory, the spool or the cache."""

    def __init__(self, spool_dir: Path, store_dir: Path | None, cache_dir: Path) -> None:
        self._spool_dir = spool_dir
        self._store_dir = store_dir
        self._cache_dir = cache_dir

    def open_path(self, part: Part) -> Path:
        """Path of a whole local copy; raises StoreError when there is none.

        A copy of another size than the catalog says is damaged and passed over. The path may be gone a moment later,
        when the part moves; ask again then.
        """
        candidates = [self._spool_dir / part_name(part), self._cache_dir / part_name(part)]
        if self._store_dir is not None:
            candidates.insert(0 if part.is_stored else 1, self._store_dir / part_key(part))
        for path in candidates * _LOOKS:
            if has_size(path, part.size_bytes):
                return path
        raise StoreError("open", part_key(part), "no whole local copy")


def has_size(path: Path, size_bytes: int) -> bool:
    """Whether there is a file of this size."""
    try:
        return path.stat().st_size == size_bytes
    except OSError:
        return False


def clean_spool(spool_dir: Path, listed: Iterable[Part], *, is_trusted: bool) -> list[str]:
    """Delete what a crash left in the spool, at start; returns the names.

    Unfinished files go always. Finished ones that the catalog does not list go only when it is trusted, which is when
    no file on the disk knows a newer generation: their rows are in the log or were let go. Else they may be all there
    is of their rows, and adoption decides.
    """
    names = {part_name(part) for part in listed}
    deleted = []
    try:
        for path in sorted(spool_dir.iterdir()):
            is_unfinished = path.name.endswith(durable.TEMPORARY_SUFFIX)
            is_unlisted = path.name.endswith(".parquet") and path.name not in names
            if is_unfinished or (is_trusted and is_unlisted):
                path.unlink(missing_ok=True)
                deleted.append(path.name)
    except OSError as error:
        raise DiskError("clean", str(spool_dir), error) from error
    if deleted:
        durable.sync_directory(spool_dir)
    return deleted


def count_parts(metrics: Metrics, parts: Iterable[Part]) -> None:
    """Show number and bytes of the live parts, and how much of it the store does not have yet."""
    numbers, sizes = Counter[bool](), Counter[bool]()
    for part in parts:
        numbers[part.is_stored] += 1
        sizes[part.is_stored] += part.size_bytes
    metrics.parts.replace([(("spooled",), numbers[False]), (("stored",), numbers[True])])
    metrics.spool_bytes.set(sizes[False])
    metrics.part_bytes.set(sizes.total())
