"""The catalog: what is known for ever. Definitions, parts, persisted segments, numbers never to be used again.

Imports sqlite3, with `catalog_file`. One thread owns the connection; every method hands it a change and returns a
future. While the process runs, the state in memory decides. The database follows, one synchronous transaction a change,
and each one raises the generation. After any SQLite error the outcome on disk is unknown: the state is then
written whole to a new file, and only when that fails too does the caller get a CatalogError. In that case the state
in memory has not changed, whoever asked keeps its rows and asks again, and the next change begins with a new file.

    catalog.db        the database        catalog.db.next   a complete new one that has yet to take its place
    catalog.db-wal    belongs to it       catalog.db.copy   a good copy, made once a day
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from edge_appliance import durable
from edge_appliance.catalog_file import (
    Transaction,
    connect,
    copy_path,
    finish_replacement,
    new_incarnation,
    read_catalog,
    write_catalog,
    write_change,
)
from edge_appliance.core.catalog_state import CatalogState, Change, DoneSetAside, apply, part_identity
from edge_appliance.core.delivery import DeliveryKey, TableDefinition
from edge_appliance.core.parts import Part
from edge_appliance.errors import CatalogError, DiskError

_log = logging.getLogger(__name__)

COPY_PERIOD_S: Final = 86_400.0


class Catalog:
    """The catalog of one state directory. Methods may be called from any thread."""

    def __init__(self, path: Path, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock_s = clock_s
        self._thread = ThreadPoolExecutor(1, "catalog")
        self._connection: sqlite3.Connection | None = None
        """None: the file cannot be relied on, the next change writes a new one."""
        self._copied_at_s: float | None = None
        self._state = CatalogState("", "")
        self.was_created = False
        """Whether there was no catalog before: then parts and log files found on disk are not its own."""

    @classmethod
    def open(cls, path: Path, *, node: str, clock_s: Callable[[], float] = time.monotonic) -> Catalog:
        """Open the catalog at `path`, or create it; raises CatalogError when it is damaged, and changes nothing then.

        A catalog of another node id was renamed or copied: it goes on under a new incarnation.
        """
        catalog = cls(path, clock_s)
        try:
            catalog._thread.submit(catalog._open, node).result()
        except BaseException:
            catalog._thread.shutdown()
            raise
        return catalog

    @property
    def state(self) -> CatalogState:
        """What is known now, which is what was committed last."""
        return self._state

    def commit_persist(
        self,
        segment_id: int,
        max_sequence: int,
        definitions: Sequence[TableDefinition],
        parts: Sequence[Part],
        keys: Sequence[DeliveryKey] = (),
    ) -> Future[int]:
        """List `parts` and mark the segment persisted, in one transaction: the only commit point of a persist."""
        return self._submit(
            Change(definitions=definitions, parts=parts, persisted=(segment_id,), sequence=max_sequence, keys=keys)
        )

    def commit_set_aside(
        self, done: DoneSetAside, definitions: Sequence[TableDefinition], parts: Sequence[Part]
    ) -> Future[int]:
        """List `parts` and note the set-aside they are made of, in one transaction: its only commit point."""
        change = Change(definitions=definitions, parts=parts, sequence=done.sequence, set_asides=(done,))
        return self._submit(change)

    def commit_prefix(
        self,
        segment_id: int,
        sequence: int,
        definitions: Sequence[TableDefinition],
        parts: Sequence[Part],
        keys: Sequence[DeliveryKey],
    ) -> Future[int]:
        """List `parts`, which hold all rows of a log file up to `sequence`: the next replay goes on behind it."""
        change = Change(
            definitions=definitions, parts=parts, sequence=sequence, keys=keys, prefixes={segment_id: sequence}
        )
        return self._submit(change)

    def forget_segment(self, segment_id: int) -> Future[int]:
        """Drop the row of a persisted segment: its file is gone and the directory synced."""
        return self._submit(Change(forgotten=(segment_id,)))

    def mark_stored(self, parts: Iterable[Part]) -> Future[int]:
        """Note that the store has `parts`; those that are not listed any more stay unlisted."""
        return self._submit(Change(stored=[part_identity(part) for part in parts]))

    def drop_parts(self, parts: Iterable[Part]) -> Future[int]:
        """Let `parts` go: their rows are elsewhere, or are given up."""
        return self._submit(Change(removed=[part_identity(part) for part in parts]))

    def replace_parts(self, removed: Iterable[Part], added: Sequence[Part], gone: Sequence[Part]) -> Future[int]:
        """List `added` instead of `removed` in one transaction: the only commit point of a merge, and of retention.

        `gone` are the removed ones that the store has or may have, to be deleted there.
        """
        return self._submit(Change(removed=[part_identity(part) for part in removed], parts=added, gone=gone))

    def forget_gone(self, parts: Iterable[Part]) -> Future[int]:
        """The store does not have these any more."""
        return self._submit(Change(deleted=[part_identity(part) for part in parts]))

    def save_filters(self, filters: Iterable[str]) -> Future[int]:
        """Keep the topic filters of the last subscription."""
        return self._submit(Change(filters=tuple(filters)))

    def note_numbers(self, segment_id: int, sequence: int) -> Future[int]:
        """Never use these numbers, or lower ones, again."""
        return self._submit(Change(segment_id=segment_id, sequence=sequence))

    def define(self, definitions: Sequence[TableDefinition]) -> Future[int]:
        """Add definitions without parts, such as those found by replay."""
        return self._submit(Change(definitions=definitions))

    def close(self) -> None:
        """Finish what was handed over and close the database."""
        with suppress(RuntimeError):
            self._thread.submit(self._disconnect)
        self._thread.shutdown()

    def _submit(self, change: Change) -> Future[int]:
        try:
            return self._thread.submit(self._commit, change)
        except RuntimeError as error:
            raise CatalogError(f"{self._path}: the catalog is closed") from error

    # On the catalog thread

    def _open(self, node: str) -> None:
        try:
            finish_replacement(self._path)
            if not self._path.exists():
                self.was_created = True
                write_catalog(self._path, CatalogState(node, new_incarnation()))
            self._state = read_catalog(self._path)
            self._connection = connect(self._path)
        except (sqlite3.Error, DiskError, OSError) as error:
            raise CatalogError(f"{self._path}: {error}") from error
        if self._state.node != node:
            _log.warning("%s belonged to node %s; new incarnation for %s", self._path, self._state.node, node)
            self._replace(replace(self._state, node=node, incarnation=new_incarnation()))

    def _commit(self, change: Change) -> int:
        after = apply(self._state, change)
        if self._connection is None:
            self._replace(after)
        else:
            try:
                with closing(Transaction(self._connection)) as transaction:
                    write_change(self._connection, self._state, after, change)
                    transaction.commit()
            except sqlite3.Error as error:
                _log.warning("%s: %s; writing the catalog to a new file", self._path, error)
                self._replace(after)
        self._state = after
        self._copy_if_due()
        return after.generation

    def _replace(self, state: CatalogState) -> None:
        """Write `state` whole to a new file and go on with that."""
        self._disconnect()
        try:
            write_catalog(self._path, state)
            if read_catalog(self._path) != state:
                raise CatalogError(f"{self._path}: what was written does not read back")
            self._connection = connect(self._path)
        except (sqlite3.Error, DiskError, OSError) as error:
            raise CatalogError(f"{self._path}: {error}") from error
        self._state = state

    def _disconnect(self) -> None:
        # Closed before the file is replaced: at its end SQLite removes the -wal file by name.
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _copy_if_due(self) -> None:
        if self._copied_at_s is not None and self._clock_s() - self._copied_at_s < COPY_PERIOD_S:
            return
        self._copied_at_s = self._clock_s()
        copy = copy_path(self._path)
        temporary = copy.with_name(copy.name + durable.TEMPORARY_SUFFIX)
        try:
            temporary.unlink(missing_ok=True)
            if self._connection is not None:
                self._connection.execute("VACUUM INTO ?", (str(temporary),))
                durable.publish(temporary, copy)
        except (sqlite3.Error, DiskError, OSError) as error:
            _log.warning("no copy of the catalog today: %s", error)
