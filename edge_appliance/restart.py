"""From a data directory to an appliance that takes rows: replay, make sure that it is durable, open the log behind it.

Replay has a thread of its own. When it has to wait for a disk that takes no parts, the appliance becomes ready without
it: queries see what is loaded, nothing is acknowledged, and once the disk has room replay and log go on by themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from edge_appliance.backlog import Backlog
from edge_appliance.buffer import Buffer
from edge_appliance.catalog import Catalog
from edge_appliance.core.append import Appender
from edge_appliance.core.delivery import ArrivalClock
from edge_appliance.errors import DiskError
from edge_appliance.health import Health
from edge_appliance.ingest import Ingest
from edge_appliance.metrics import Metrics
from edge_appliance.no_wal import NoWal
from edge_appliance.persist import Persister
from edge_appliance.recovery import Replay, Replayed
from edge_appliance.room import Log
from edge_appliance.wal import Wal
from edge_appliance.wal_file import WalFile

_log = logging.getLogger(__name__)

WAIT_S: Final = 0.1
SETTLE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How the log goes on."""

    enabled: bool
    sync: str
    quarantine_dir: Path


class Restart:
    """One start. `run` belongs in a worker thread."""

    def __init__(
        self,
        settings: LogSettings,
        wal: Wal,
        catalog: Catalog,
        buffer: Buffer,
        appender: Appender,
        persister: Persister,
        ingest: Ingest,
        clock: ArrivalClock,
        health: Health,
        metrics: Metrics,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._wal = wal
        self._catalog = catalog
        self._persister = persister
        self._ingest = ingest
        self._clock = clock
        self._health = health
        self._is_stopping = is_stopping
        self._files: Sequence[WalFile] = ()
        self._blocked = threading.Event()
        self._failure: BaseException | None = None
        self._replayed: Replayed | None = None
        self._backlog = Backlog(buffer, persister, is_stopping, self._note_blocked)
        self._replay = Replay(
            wal,
            catalog,
            buffer,
            appender,
            health,
            metrics,
            quarantine_dir=settings.quarantine_dir,
            backlog=self._backlog,
            is_stopping=is_stopping,
        )
        self._thread = threading.Thread(target=self._run_replay, name="replay", daemon=True)

    def run(self) -> bool:
        """Replay and hand the log to the ingest thread, or leave both to it; False when asked to stop."""
        self._files = self._wal.files()
        self._thread.start()
        while self._thread.is_alive() and not self._blocked.wait(WAIT_S):
            pass
        if not self._blocked.is_set() and not self._finish_replay():
            return False
        self._ingest.begin_when_open(self._open_log, self._replay.done.recent)
        return not self._is_stopping()

    def _run_replay(self) -> None:
        try:
            self._replayed = self._replay.run(self._files)
        except BaseException as error:  # raised again by whoever waits for the replay
            self._failure = error

    def _note_blocked(self, reason: str) -> None:
        if not reason:
            self._health.release("replay")
            return
        if not self._blocked.is_set():
            _log.error("replay waits for room, queries see what is loaded: %s", reason)
        self._health.hold("replay", f"read-only: the log is larger than memory and cannot be persisted: {reason}")
        self._blocked.set()

    def _finish_replay(self) -> bool:
        """Make what was replayed durable, and rows that were set aside parts; False when asked to stop."""
        if self._failure is not None:
            raise self._failure
        if self._replayed is None:
            return False
        is_durable = settle(self._wal, self._files, self._health)
        self._backlog.submit_all()
        if not is_durable:
            # Its rows must be in parts before anything is acknowledged.
            while not self._persister.drain(SETTLE_S) and not self._is_stopping():
                pass
        # A disk that takes no parts must not keep the appliance from starting.
        while not self._persister.drain_set_asides(SETTLE_S) and not self._persister.failure:
            if self._is_stopping():
                break
        return not self._is_stopping()

    def _open_log(self) -> Log | None:
        """Open the log behind everything that was replayed; None while that is not finished. Raises EdgeErrors."""
        if self._blocked.is_set():
            if self._thread.is_alive():
                return None
            if not self._finish_replay():
                return None
            self._blocked.clear()
        replayed, state = self._replay.done, self._catalog.state
        segment_id = max(state.max_segment_id, replayed.last_segment_id, self._wal.last_segment_id) + 1
        first_sequence = max(state.max_sequence, replayed.last_sequence) + 1
        self._clock.last_ns = max(self._clock.last_ns, replayed.last_arrival_ns)
        # Noted before the first record: these numbers never come back, even when the new file is deleted by hand.
        self._catalog.note_numbers(segment_id, first_sequence - 1).result()
        if self._settings.enabled:
            self._wal.start(segment_id, first_sequence, state.generation)
            if self._settings.sync != "group":
                self._health.degrade(
                    "wal_sync", f'wal.sync = "{self._settings.sync}": acknowledged before it is synced'
                )
            return self._wal
        self._health.degrade("wal_off", "wal.enabled = false: rows in memory are lost in a crash")
        return NoWal(segment_id, first_sequence)


def settle(wal: Wal, files: Sequence[WalFile], health: Health) -> bool:
    """Make sure that what was replayed is on the disk and not just in its cache (a crash may have cut the sync).

    False when the disk refuses: then the rows must be persisted before anything is acknowledged.
    """
    try:
        wal.verify_durable(files)
    except DiskError as error:
        health.degrade("wal_unsynced", f"{error}: what was replayed is persisted before anything is acknowledged")
        return False
    return True
