"""The log file that is appended to: how far it reaches, how much of that is durable, and whether it may be used."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edge_appliance.core.wal_frame import BLOCK_BYTES, Predecessor
from edge_appliance.errors import DiskError


@dataclass(slots=True)
class ActiveFile:
    """The file that is appended to."""

    id: int
    path: Path
    fd: int
    salt: int
    first_sequence: int
    previous: Predecessor | None
    next_sequence: int
    durable_sequence: int
    end: int = BLOCK_BYTES
    """Behind the last whole frame; nothing else is ever written over."""
    durable_length: int = 0
    """0 until the first sync: the header is synced with the first group."""
    last_crc: int = 0
    durable_crc: int = 0
    is_poisoned: bool = False
    """Set for good by a failed sync, or a failed write that could not be cut back."""

    def check(self, operation: str) -> None:
        """Raise DiskError when nothing may be done to this file any more."""
        if self.is_poisoned:
            cause = OSError(errno.EIO, "an earlier write or sync of this file failed")
            raise DiskError(operation, str(self.path), cause)

    def give_up(self) -> None:
        """Never touch the file again, after taking away what was not durable."""
        self.is_poisoned = True
        # The page cache may show records that the disk never took; a restart would believe them. The successor's
        # header says the same for good, so it does not matter whether this succeeds.
        with suppress(OSError):
            os.ftruncate(self.fd, self.durable_length)
        self.end = self.durable_length
