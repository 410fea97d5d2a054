"""The spool: parts on the local disk that the store does not have yet, and what a crash leaves there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from edge_appliance import durable
from edge_appliance.core.parts import Part, part_name
from edge_appliance.errors import DiskError
from edge_appliance.metrics import Metrics


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


def count_parts(metrics: Metrics, parts: Iterable[Part]) -> int:
    """Show number and bytes of the live parts; returns the bytes that the store does not have yet."""
    numbers, sizes = Counter[bool](), Counter[bool]()
    for part in parts:
        numbers[part.is_stored] += 1
        sizes[part.is_stored] += part.size_bytes
    metrics.parts.replace([(("spooled",), numbers[False]), (("stored",), numbers[True])])
    metrics.spool_bytes.set(sizes[False])
    metrics.part_bytes.set(sizes.total())
    return sizes[False]
