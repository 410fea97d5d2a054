"""The catalog's files: their schema, how a state is written whole, changed and read.

Shares the import of sqlite3 with `catalog`, which owns the connection and decides what to do when something fails.
"""

from __future__ import annotations

import datetime as dt
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from edge_appliance import durable
from edge_appliance.core.catalog_state import CatalogState, Change, DoneSetAside, LoggedDelivery, PartKey, part_identity
from edge_appliance.core.delivery import DeliveryKey, Kind, TableKey
from edge_appliance.core.parts import Part
from edge_appliance.errors import CatalogError, NewerFormatError

FORMAT_VERSION: Final = 3

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
_SINCE_2: Final = """
CREATE TABLE IF NOT EXISTS set_asides (
    segment INTEGER, sequence INTEGER PRIMARY KEY, database TEXT, measurement TEXT, time_ns INTEGER
);
CREATE TABLE IF NOT EXISTS prefixes (segment INTEGER PRIMARY KEY, sequence INTEGER);
"""
_SINCE_3: Final = """
CREATE TABLE IF NOT EXISTS gone_parts (
    database TEXT, measurement TEXT, date TEXT, node TEXT, incarnation TEXT, rank_lo INTEGER, rank_hi INTEGER,
    slice INTEGER, slices INTEGER, rows INTEGER, size_bytes INTEGER, min_time_ns INTEGER, max_time_ns INTEGER,
    is_stored INTEGER,
    PRIMARY KEY (database, measurement, date, node, incarnation, rank_lo, rank_hi, slice)
) WITHOUT ROWID;
"""
_PART_SLOTS: Final = ", ".join("?" * 14)
_THIS_PART: Final = (
    "WHERE database = ? AND measurement = ? AND date = ? AND node = ? AND incarnation = ? "
    "AND rank_lo = ? AND rank_hi = ? AND slice = ?"
)


class Transaction:
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
        connection.executescript(_SCHEMA + _SINCE_2 + _SINCE_3)
        keys = [logged.key for logged in state.logged.values()]
        everything = Change(
            state.definitions,
            state.parts,
            gone=state.gone,
            persisted=state.persisted_segments,
            filters=state.filters,
            keys=keys,
            set_asides=state.set_asides.values(),
            prefixes=state.prefixes,
        )
        with closing(Transaction(connection)) as transaction:
            write_change(connection, CatalogState("", ""), state, everything)
            transaction.commit()
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    durable.publish(temporary, ready)
    finish_replacement(path)


def finish_replacement(path: Path) -> None:
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
            if version < FORMAT_VERSION:
                added = _SINCE_2 + _SINCE_3
                connection.executescript(f"BEGIN; {added} PRAGMA user_version = {FORMAT_VERSION}; COMMIT;")
            return _read_state(connection)
    except (sqlite3.Error, KeyError, ValueError, TypeError) as error:
        raise CatalogError(f"{path}: damaged: {error}") from error


def _open_existing(path: Path) -> sqlite3.Connection:
    # Read and write, never create: a missing file is not an empty catalog.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None)


def connect(path: Path) -> sqlite3.Connection:
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


def write_change(connection: sqlite3.Connection, before: CatalogState, after: CatalogState, change: Change) -> None:
    """Carry `change`, which leads from `before` to `after`, to the database."""
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
    connection.executemany(f"DELETE FROM parts {_THIS_PART}", map(_key_row, change.removed))
    connection.executemany(f"INSERT OR REPLACE INTO parts VALUES ({_PART_SLOTS})", map(_part_row, change.parts))
    connection.executemany(f"INSERT OR REPLACE INTO gone_parts VALUES ({_PART_SLOTS})", map(_part_row, change.gone))
    connection.executemany(f"DELETE FROM gone_parts {_THIS_PART}", map(_key_row, change.deleted))
    connection.executemany(f"UPDATE parts SET is_stored = 1 {_THIS_PART}", map(_key_row, change.stored))
    connection.executemany("INSERT OR IGNORE INTO persisted_segments VALUES (?)", [(id_,) for id_ in change.persisted])
    connection.executemany("DELETE FROM persisted_segments WHERE id = ?", [(id_,) for id_ in change.forgotten])
    connection.executemany("INSERT OR REPLACE INTO set_asides VALUES (?, ?, ?, ?, ?)", list(change.set_asides))
    connection.executemany("INSERT OR REPLACE INTO prefixes VALUES (?, ?)", list(change.prefixes.items()))
    for table in ("set_asides", "prefixes"):
        connection.executemany(f"DELETE FROM {table} WHERE segment = ?", [(id_,) for id_ in change.forgotten])
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


def _key_row(key: PartKey) -> tuple[object, ...]:
    return (*key[:2], key[2].isoformat(), *key[3:])


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
    gone = [_part(row) for row in connection.execute("SELECT * FROM gone_parts")]
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
        {done.sequence: done for done in map(DoneSetAside._make, connection.execute("SELECT * FROM set_asides"))},
        dict(connection.execute("SELECT segment, sequence FROM prefixes")),
        {part_identity(part): part for part in gone},
    )


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value
