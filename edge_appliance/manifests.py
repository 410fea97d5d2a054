"""What a node leaves in the store about its parts, for whoever reads many nodes, and for its own recovery.

    _edge/manifests/<node>/<generation>-<random>.json     the parts of one round of uploads, and what they replace
    _edge/catalog/<node>.json                             tables with their columns, and the highest numbers given out
    _edge/schema/<database>/<table>/<node>.json           the columns of one table as this node knows them

A manifest is there before its parts are marked as stored, so each stored part is in one at least; in two after a kill
in between. Names never repeat. Spark and Hive do not look below names that begin with `_`.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from edge_appliance.catalog import Catalog
from edge_appliance.core.catalog_state import CatalogState
from edge_appliance.core.delivery import ColumnDefinition, Kind, TableDefinition
from edge_appliance.core.parts import Part, encode_name, part_key, part_name, replaced_by
from edge_appliance.errors import FormatError
from edge_appliance.store_port import Store

FORMAT_VERSION: Final = 1
MAX_BYTES: Final = 64 * 2**20
"""Of one object that is read back."""


def manifest_prefix(node: str) -> str:
    """Where a node's manifests are."""
    return f"_edge/manifests/{encode_name(node)}"


def catalog_key(node: str) -> str:
    """Where the snapshot of a node's catalog is."""
    return f"_edge/catalog/{encode_name(node)}.json"


class Manifests:
    """Writes them. Used by the uploader's thread, and `snapshot` by that of maintenance."""

    def __init__(self, store: Store, spool_dir: Path, catalog: Catalog) -> None:
        self._store = store
        self._spool_dir = spool_dir
        self._catalog = catalog
        self._written: Mapping[str, Any] | None = None
        """The snapshot that the store has; None: it was not looked at yet."""

    def write(self, parts: Sequence[Part]) -> None:
        """Note that the store has `parts`; raises StoreError."""
        state = self._catalog.state
        body = {
            "format": FORMAT_VERSION,
            "node": state.node,
            "incarnation": state.incarnation,
            "generation": state.generation,
            "parts": [self._described(part) for part in parts],
            "replaced": [part_key(old) for old in replaced_by(parts, state.gone)],
        }
        name = f"{state.generation:020}-{secrets.token_hex(4)}.json"
        self._store.create(f"{manifest_prefix(state.node)}/{name}", _encoded(body))

    def snapshot(self) -> None:
        """Bring schemas and numbers in the store up to date when tables have changed; raises StoreError."""
        state = self._catalog.state
        tables = _tables(state)
        if self._written is None:
            self._written = read_json(self._store, catalog_key(state.node)) or {}
        known = self._written.get("tables", {})
        if known == tables and self._written.get("incarnation") == state.incarnation:
            return
        for database, of_database in tables.items():
            for table, columns in of_database.items():
                if known.get(database, {}).get(table) != columns:
                    body = {"format": FORMAT_VERSION, "database": database, "table": table, "columns": columns}
                    self._store.write(
                        f"_edge/schema/{encode_name(database)}/{encode_name(table)}/{encode_name(state.node)}.json",
                        _encoded(body),
                    )
        snapshot = {
            "format": FORMAT_VERSION,
            "node": state.node,
            "incarnation": state.incarnation,
            "generation": state.generation,
            "max_segment_id": state.max_segment_id,
            "max_sequence": state.max_sequence,
            "tables": tables,
        }
        self._store.write(catalog_key(state.node), _encoded(snapshot))
        self._written = snapshot

    def _described(self, part: Part) -> dict[str, object]:
        try:
            with (self._spool_dir / part_name(part)).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:  # it was sent before a restart, and went
            digest = None
        return {
            "key": part_key(part),
            "database": part.database,
            "table": part.table,
            "date": part.date.isoformat(),
            "incarnation": part.incarnation,
            "ranks": [part.rank_lo, part.rank_hi],
            "slice": [part.slice, part.slices],
            "rows": part.rows,
            "bytes": part.size_bytes,
            "times": [part.min_time_ns, part.max_time_ns],
            "sha256": digest,
        }


def read_json(store: Store, key: str) -> dict[str, Any] | None:
    """An object of ours; None when there is none. Raises StoreError, and FormatError when it is not ours."""
    found = store.stat(key)
    if found is None:
        return None
    if found.size_bytes > MAX_BYTES:
        raise FormatError(key, 0, f"has {found.size_bytes:,} bytes")
    try:
        body = json.loads(store.read(key, 0, found.size_bytes))
    except ValueError as error:
        raise FormatError(key, 0, "is not JSON") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT_VERSION:
        raise FormatError(key, 0, "is of another format")
    return body


def definitions_of(snapshot: Mapping[str, Any]) -> Iterator[TableDefinition]:
    """The tables of a snapshot."""
    for database, tables in snapshot["tables"].items():
        for table, columns in tables.items():
            kinds = (ColumnDefinition(name, Kind[kind.upper()]) for name, kind in columns)
            yield TableDefinition(database, table, tuple(kinds))


def _tables(state: CatalogState) -> dict[str, dict[str, list[list[str]]]]:
    tables: dict[str, dict[str, list[list[str]]]] = {}
    for (database, table), columns in sorted(state.tables.items()):
        tables.setdefault(database, {})[table] = [[name, kind.name.lower()] for name, kind in columns.items()]
    return tables


def _encoded(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
