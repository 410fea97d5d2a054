"""What a node has in object storage, found again without its catalog: by manifests, listing and footers.

A part counts when it is listed with the bytes that its manifest states. One that no manifest names is fetched for its
footer. Nothing is changed in the store.
"""

from __future__ import annotations

import datetime as dt
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edge_appliance.core.delivery import TableDefinition
from edge_appliance.core.parts import Part, encode_name
from edge_appliance.errors import EdgeError, FormatError
from edge_appliance.manifests import catalog_key, definitions_of, manifest_prefix, read_json
from edge_appliance.parquet_file import PartFooter, read_footer
from edge_appliance.store_port import Store

_log = logging.getLogger(__name__)

FETCH_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class RemoteParts:
    """What was found."""

    footers: tuple[PartFooter, ...]
    definitions: tuple[TableDefinition, ...] = ()
    max_segment_id: int = 0
    max_sequence: int = 0


def find_remote_parts(
    store: Store, node: str, scratch_dir: Path, tell: Callable[[str], None] = lambda text: None
) -> RemoteParts:
    """Look through the whole store; raises StoreError when it cannot be read."""
    prefix = f"{encode_name(node)}-"
    sizes = {
        item.key: item.size_bytes
        for item in store.objects("")
        if item.key.endswith(".parquet") and item.key.rsplit("/", 1)[-1].startswith(prefix)
    }
    tell(f"{len(sizes):,} parts of {node} in {store.name}")
    footers: dict[str, PartFooter] = {}
    for key, footer in _in_manifests(store, node):
        if sizes.get(key) == footer.part.size_bytes:
            footers[key] = footer
    for key in sorted(sizes.keys() - footers.keys()):
        tell(f"{key} is in no manifest: its footer is read")
        try:
            footer = _fetched(store, key, sizes[key], scratch_dir)
        except FormatError as error:
            _log.warning("part is not adopted: %s", error)
            continue
        if footer.part.node == node:
            footers[key] = footer
    snapshot = read_json(store, catalog_key(node)) or {"tables": {}}
    return RemoteParts(
        tuple(footers.values()),
        tuple(definitions_of(snapshot)),
        int(snapshot.get("max_segment_id", 0)),
        int(snapshot.get("max_sequence", 0)),
    )


def _in_manifests(store: Store, node: str) -> Iterator[tuple[str, PartFooter]]:
    for item in sorted(store.objects(manifest_prefix(node)), key=lambda item: item.key):
        try:
            body = read_json(store, item.key) or {"parts": []}
            for entry in body["parts"]:
                yield entry["key"], PartFooter(_part(node, entry), (), (0, 0), int(body["generation"]))
        except (FormatError, KeyError, ValueError, TypeError) as error:
            _log.warning("manifest %s is passed over: %s", item.key, error)


def _part(node: str, entry: Mapping[str, Any]) -> Part:
    rank_lo, rank_hi = map(int, entry["ranks"])
    number, count = map(int, entry["slice"])
    min_time_ns, max_time_ns = map(int, entry["times"])
    return Part(
        str(entry["database"]),
        str(entry["table"]),
        dt.date.fromisoformat(entry["date"]),
        node,
        str(entry["incarnation"]),
        rank_lo,
        rank_hi,
        number,
        count,
        int(entry["rows"]),
        int(entry["bytes"]),
        min_time_ns,
        max_time_ns,
    )


def _fetched(store: Store, key: str, size_bytes: int, scratch_dir: Path) -> PartFooter:
    with tempfile.TemporaryDirectory(dir=scratch_dir) as directory:
        path = Path(directory) / "part"
        store.fetch(key, path, size_bytes, FETCH_S)
        try:
            return read_footer(path)
        except EdgeError as error:
            raise FormatError(key, 0, str(error)) from error
