"""What replay has to tell: damage, holes, files that are kept. Each is logged, counted, and named in health."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from edge_appliance import durable
from edge_appliance.core.wal_scan import Damage
from edge_appliance.errors import EdgeError, FormatError
from edge_appliance.health import Health
from edge_appliance.metrics import Metrics
from edge_appliance.wal_file import WalFile

_log = logging.getLogger(__name__)


class ReplayNotes:
    """Where the findings of one replay go."""

    def __init__(self, health: Health, metrics: Metrics, quarantine_dir: Path) -> None:
        self._health = health
        self._metrics = metrics
        self._quarantine_dir = quarantine_dir

    def damage(self, file: WalFile, damage: Damage) -> None:
        """Some bytes of a file are no records; the last ones may just be a write that a crash tore."""
        if damage.is_torn:
            _log.info("%s: the last write was torn at byte %d and never acknowledged", file.path, damage.offset)
            return
        self._metrics.wal_damaged.add()
        lost = f"{damage.rows} rows" if damage.rows is not None else "an unknown number of rows"
        where = f"{file.path} at byte {damage.offset}, {damage.length} bytes ({damage.reason})"
        _log.error("damaged: %s: %s lost, the bytes are kept in %s", where, lost, self._quarantine_dir)
        self._health.degrade("wal_damage", f"the log was damaged: {where}: {lost} lost")

    def hole(self, file: WalFile, first: int, last: int) -> None:
        """A file before `file` is gone, and with it these records."""
        text = f"log records {first} to {last} before {file.path.name} are missing"
        _log.error("%s", text)
        self._metrics.wal_damaged.add()
        self._health.degrade("wal_hole", text)

    def quarantined(self, errors: Iterable[FormatError]) -> None:
        """Files that have nothing to replay were moved to quarantine."""
        for error in errors:
            _log.warning("%s; it is kept in %s", error, self._quarantine_dir)
            self._metrics.wal_damaged.add()
            self._health.degrade("wal_quarantined", f"{error}; it is kept in {self._quarantine_dir}")

    def keep_file(self, file: WalFile, mismatches: int) -> None:
        """Keep a file whose lines gave other rows than they did when they were accepted."""
        text = f"{file.path}: {mismatches} entries gave other rows than when they were accepted"
        kept = f"the file is kept in {self._quarantine_dir}"
        try:
            durable.make_directory(self._quarantine_dir)
            durable.link_or_copy(file.path, self._quarantine_dir / f"{file.path.name}.mismatch")
        except EdgeError as error:  # a full disk must not keep the appliance from starting
            kept = f"the file is not kept: {error}"
        self._health.degrade("wal_mismatch", f"{text}; {kept}")
        _log.error("%s; %s", text, kept)
