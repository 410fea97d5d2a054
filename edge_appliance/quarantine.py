"""The quarantine: where files without records and damaged byte ranges are kept for a person to look at.

Its rule: nothing is deleted for being damaged, and nothing that fails here keeps the appliance from starting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from edge_appliance import durable
from edge_appliance.errors import DiskError, EdgeError

_log = logging.getLogger(__name__)

_COPY_BYTES: Final = 1 << 20
_SECTOR_BYTES: Final = 4096


class Quarantine:
    """One directory, made anew when it is missing and something has to go there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def take(self, path: Path) -> None:
        """Move a whole file here under its own name; when that fails it stays where it is."""
        try:
            durable.make_directory(self.directory)
            durable.link_or_copy(path, _free_name(self.directory / path.name))
            durable.remove(path)
        except EdgeError as error:
            _log.warning("%s; %s is ignored where it is", error, path)

    def keep_range(self, name: str, read_at: Callable[[int, int], bytes | None], start: int, end: int) -> None:
        """Copy bytes here as `<name>.<start>`, replacing an earlier copy; sectors that cannot be read become zeros."""
        target = self.directory / f"{name}.{start}"
        temporary = target.with_name(target.name + durable.TEMPORARY_SUFFIX)
        try:
            durable.make_directory(self.directory)
            try:
                with temporary.open("wb") as file:
                    file.writelines(_pieces(read_at, start, end))
            except OSError as error:
                raise DiskError("write", str(temporary), error) from error
            durable.publish(temporary, target)
        except EdgeError as error:
            _log.warning("%s; the damaged bytes %d to %d of %s are not kept", error, start, end, name)


def count_files(directory: Path) -> int:
    """Files in the quarantine, for people to notice; 0 when it cannot be read."""
    try:
        return sum(1 for _ in directory.iterdir())
    except OSError:
        return 0


def _free_name(path: Path) -> Path:
    count, candidate = 0, path
    while candidate.exists():
        count += 1
        candidate = path.with_name(f"{path.name}-{count}")
    return candidate


def _pieces(read_at: Callable[[int, int], bytes | None], start: int, end: int) -> Iterator[bytes]:
    for offset in range(start, end, _COPY_BYTES):
        length = min(_COPY_BYTES, end - offset)
        data = read_at(offset, length)
        if data is not None:
            yield data
            continue
        for sector in range(offset, offset + length, _SECTOR_BYTES):
            size = min(_SECTOR_BYTES, offset + length - sector)
            yield read_at(sector, size) or bytes(size)
