"""Whether a group can be taken: memory, log and disk. Nothing is taken that could not be stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_appliance.buffer import Buffer
from edge_appliance.config import Config
from edge_appliance.durable import free_bytes
from edge_appliance.errors import DiskError
from edge_appliance.no_wal import NoWal
from edge_appliance.relief import Relief
from edge_appliance.wal import Wal

BACK_SHARE: Final = 1.25
"""Free space over `wal.min_free` at which a read-only appliance takes rows again."""

Log = Wal | NoWal


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """When segments are cut, and what the log may take of the disk."""

    segment_max_bytes: int
    segment_max_age_s: float
    wal_max_bytes: int
    min_free_bytes: int
    sync: str
    """`group`, `interval` or `never`."""
    data_dir: Path


def settings_of(config: Config) -> IngestSettings:
    """The part of the configuration that concerns ingest."""
    segment, wal = config.segment, config.wal
    return IngestSettings(
        segment.max_bytes, segment.max_age_s, wal.max_bytes, wal.min_free_bytes, wal.sync, config.node.data_dir
    )


class Room:
    """Looks at all that a group needs, for the ingest thread."""

    def __init__(
        self,
        settings: IngestSettings,
        buffer: Buffer,
        relief: Relief,
        persist_failure: Callable[[], str],
        spool_lack: Callable[[], str] = lambda: "",
    ) -> None:
        self.settings = settings
        """May be replaced while it is used: each decision reads it anew."""
        self._buffer = buffer
        self.relief = relief
        self._persist_failure = persist_failure
        self._spool_lack = spool_lack
        """Why the spool has no room; empty while it has."""
        self._is_read_only = False

    def lack(self, now_s: float, log: Log) -> str:
        """What there is no room in, in words for STATUS=; empty when a group can be taken."""
        if full := self.relief.cool_down(now_s, self._persist_failure()):
            return full
        if reason := self._spool_lack():
            return reason
        settings = self.settings
        if log.total_bytes >= settings.wal_max_bytes:
            oldest = self._buffer.state.sealed[:1]
            pinned = f", pinned by segment {oldest[0].id}" if oldest else ""
            return f"the log is at wal.max_bytes ({settings.wal_max_bytes >> 20} MiB{pinned})"
        try:
            free = free_bytes(settings.data_dir)
        except DiskError as error:
            return f"read-only: {error}"
        wanted = settings.min_free_bytes * (BACK_SHARE if self._is_read_only else 1)
        self._is_read_only = free < wanted
        if self._is_read_only:
            return f"read-only: {free >> 20} MiB free in {settings.data_dir}, {int(wanted) >> 20} MiB needed"
        return ""
