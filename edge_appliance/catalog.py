"""The catalog: what is known for ever. Definitions, parts, persisted segments, numbers never to be used again.

The only importer of sqlite3. One thread owns the connection; every method hands it a change and returns a future.
While the process runs, the state in memory decides. The database follows, one synchronous transaction a change,
and each one raises the generation. After any SQLite error the outcome on disk is unknown: the state is then
written whole to a new file, and only when that fails too does the caller get a CatalogError. In that case the state
in memory has not changed, whoever asked keeps its rows and asks again, and the next change begins with a new file.

    catalog.db        the database        catalog.db.next   a complete new one that has yet to take its place
    catalog.db-wal    belongs to it       catalog.db.copy   a good copy, made once a day
"""

from __future__ import annotations

import datetime as dt
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from edge_appliance import durable
from edge_appliance.core.catalog_state import CatalogState, Change, LoggedDelivery, apply, part_identity
from edge_appliance.core.delivery import DeliveryKey, Kind, TableDefinition, TableKey
from edge_appliance.core.parts import Part
from edge_appliance.errors import CatalogError, DiskError, NewerFormatError

_log = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
COPY_PERIOD_S: Final = 86_400.0

_SCHEMA: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE columns (
    database TEXT, measurement TEXT, name TEXT, position INTEGER, kind INTEGER,
    PRIMARY KEY (database, measurement, name)
) WITHOUT ROWID;
CREATE TABLE parts (
    database TEXT, measurement TEXT, date TEXT, node TEXT, incarnation TEXT, rank_lo INTEGER, rank_hi INTEGER,
    slice INTEGER, slices INTEGER, rows INTEGER, size_bytes INTEGER, min_time_ns INTEGER, max_time_ns INTEGER,
    is_stored INTEGER,
    PRIMARY KEY (database, measurement, date, node, incarnation, rank_lo, rank_hi, slice)
) WITHOUT ROWID;
CREATE TABLE persisted_segments (id INTEGER PRIMARY KEY);
CREATE TABLE filters (position INTEGER PRIMARY KEY, filter TEXT);
CREATE TABLE deliveries (packet_id INTEGER PRIMARY KEY, digest BLOB, rank INTEGER);
"""
_PART_COLUMNS: Final = 14


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

    def forget_segment(self, segment_id: int) -> Future[int]:
        """Drop the row of a persisted segment: its file is gone and the directory synced."""
        return self._submit(Change(forgotten=(segment_id,)))

    def mark_stored(self, parts: Iterable[Part]) -> Future[int]:
        """Note that the store has `parts`."""
        return self._submit(Change(parts=[replace(part, is_stored=True) for part in parts]))

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
            _finish_replacement(self._path)
            if not self._path.exists():
                self.was_created = True
                write_catalog(self._path, CatalogState(node, new_incarnation()))
            self._state = read_catalog(self._path)
            self._connection = _connect(self._path)
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
                with closing(_Transaction(self._connection)) as transaction:
                    _write_change(self._connection, self._state, after, change)
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
            self._connection = _connect(self._path)
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


class _Transaction:
    """A transaction that is rolled back unless it was committed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make it durable."""
        self._connection.execute("COMMIT")

    def close(self) -> None:
        """Roll back what was not committed."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


# Files ---------------------------------------------------------------------------------------------------------


def new_incarnation() -> str:
    """8 hex digits that no other state directory has, as far as chance goes."""
    return secrets.token_hex(4)


def copy_path(path: Path) -> Path:
    """Where the daily copy of the catalog at `path` is."""
    return path.with_name(path.name + ".copy")


def catalog_files(path: Path) -> list[Path]:
    """All files that make up the catalog at `path`, its copy not included; some may not exist."""
    return [path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal", ".next"))]


def write_catalog(path: Path, state: CatalogState) -> None:
    """Make a new catalog of `state` at `path`, in place of any other, which nobody may have open."""
    try:
        _write_new(path, state)
    except (sqlite3.Error, OSError) as error:
        raise CatalogError(f"{path}: {error}") from error


def _write_new(path: Path, state: CatalogState) -> None:
    ready = path.with_name(path.name + ".next")
    temporary = ready.with_name(ready.name + durable.TEMPORARY_SUFFIX)
    temporary.unlink(missing_ok=True)
    with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
        # Nobody looks at the file before it is complete and synced.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.executescript(_SCHEMA)
        keys = [logged.key for logged in state.logged.values()]
        everything = Change(state.definitions, state.parts, state.persisted_segments, filters=state.filters, keys=keys)
        with closing(_Transaction(connection)) as transaction:
            _write_change(connection, CatalogState("", ""), state, everything)
            transaction.commit()
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    durable.publish(temporary, ready)
    _finish_replacement(path)


def _finish_replacement(path: Path) -> None:
    """Put a complete new catalog in place of the old one; also after a crash in the middle of it."""
    ready = path.with_name(path.name + ".next")
    if not ready.exists():
        return
    # The log of the old database must go first: SQLite would play it into the new one.
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    durable.sync_directory(path.parent)
    durable.publish(ready, path)


def read_catalog(path: Path) -> CatalogState:
    """Check and read the catalog at `path`; raises CatalogError when it is damaged, NewerFormatError when newer."""
    try:
        with closing(_open_existing(path)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version > FORMAT_VERSION:
                raise NewerFormatError(str(path), 0, f"catalog format {version} is newer than {FORMAT_VERSION}")
            (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok" or version < 1:
                raise CatalogError(f"{path}: damaged: {verdict if version else 'not a catalog'}")
            return _read_state(connection)
    except (sqlite3.Error, KeyError, ValueError, TypeError) as error:
        raise CatalogError(f"{path}: damaged: {error}") from error


def _open_existing(path: Path) -> sqlite3.Connection:
    # Read and write, never create: a missing file is not an empty catalog.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)


def _connect(path: Path) -> sqlite3.Connection:
    """Open a catalog that was found good, to change it."""
    connection = _open_existing(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


# Rows ----------------------------------------------------------------------------------------------------------


def _write_change(connection: sqlite3.Connection, before: CatalogState, after: CatalogState, change: Change) -> None:
    for definition in change.definitions:
        key = (definition.database, definition.table)
        known = before.tables.get(key, {})
        connection.executemany(
            "INSERT INTO columns VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [
                (*key, name, position, int(kind))
                for position, (name, kind) in enumerate(after.tables[key].items())
                if name not in known
            ],
        )
    connection.executemany(
        f"INSERT OR REPLACE INTO parts VALUES ({', '.join('?' * _PART_COLUMNS)})", map(_part_row, change.parts)
    )
    connection.executemany("INSERT OR IGNORE INTO persisted_segments VALUES (?)", [(id_,) for id_ in change.persisted])
    connection.executemany("DELETE FROM persisted_segments WHERE id = ?", [(id_,) for id_ in change.forgotten])
    if change.filters is not None:
        connection.execute("DELETE FROM filters")
        connection.executemany("INSERT INTO filters VALUES (?, ?)", list(enumerate(change.filters)))
    logged = [after.logged[packet_id] for packet_id in {key.packet_id for key in change.keys}]
    connection.executemany(
        "INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?)",
        [(key.packet_id, key.digest, rank) for key, rank in logged],
    )
    facts = (
        ("node", after.node),
        ("incarnation", after.incarnation),
        ("generation", after.generation),
        ("max_segment_id", after.max_segment_id),
        ("max_sequence", after.max_sequence),
    )
    connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts)


def _part_row(part: Part) -> tuple[object, ...]:
    return (
        part.database,
        part.table,
        part.date.isoformat(),
        part.node,
        part.incarnation,
        part.rank_lo,
        part.rank_hi,
        part.slice,
        part.slices,
        part.rows,
        part.size_bytes,
        part.min_time_ns,
        part.max_time_ns,
        int(part.is_stored),
    )


def _part(row: Sequence[Any]) -> Part:
    values = list(row)
    values[2] = dt.date.fromisoformat(values[2])
    values[-1] = bool(values[-1])
    return Part(*values)


def _read_state(connection: sqlite3.Connection) -> CatalogState:
    facts: Mapping[str, object] = dict(connection.execute("SELECT name, value FROM facts"))
    tables: dict[TableKey, dict[str, Kind]] = {}
    for database, table, name, kind in connection.execute(
        "SELECT database, measurement, name, kind FROM columns ORDER BY database, measurement, position"
    ):
        tables.setdefault((database, table), {})[name] = Kind(kind)
    parts = [_part(row) for row in connection.execute("SELECT * FROM parts")]
    return CatalogState(
        str(facts["node"]),
        str(facts["incarnation"]),
        _integer(facts["generation"]),
        tables,
        {part_identity(part): part for part in parts},
        frozenset(id_ for (id_,) in connection.execute("SELECT id FROM persisted_segments")),
        tuple(filter_ for (filter_,) in connection.execute("SELECT filter FROM filters ORDER BY position")),
        _integer(facts["max_segment_id"]),
        _integer(facts["max_sequence"]),
        {
            packet_id: LoggedDelivery(DeliveryKey(packet_id, digest), rank)
            for packet_id, digest, rank in connection.execute("SELECT packet_id, digest, rank FROM deliveries")
        },
    )


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value
