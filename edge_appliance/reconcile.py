"""Open the catalog, or make it anew when it is lost, damaged or older than what lies beside it.

Only a catalog that knows everything on the disk may decide that a file is garbage. Whenever one does not, nothing is
deleted, the parts found are adopted by their footers, and health says that the history may be incomplete.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edge_appliance.adopt import part_paths, rebuild_catalog
from edge_appliance.catalog import Catalog
from edge_appliance.core.parts import encode_name, part_key, part_name
from edge_appliance.core.wal_frame import FileHeader
from edge_appliance.errors import CatalogError, FormatError
from edge_appliance.health import Health
from edge_appliance.paths import Paths
from edge_appliance.spool import clean_spool, has_size
from edge_appliance.store_port import Store
from edge_appliance.wal_file import SUFFIX, open_file

_log = logging.getLogger(__name__)


def open_catalog(paths: Paths, store: Store, node: str, health: Health) -> Catalog:
    """Open or rebuild the catalog and tidy the spool by it; raises CatalogError, DiskError when neither is possible."""
    headers = _log_headers(paths)
    catalog, reason = _try_open(paths, store, node, headers)
    if catalog is None:
        _log.error("%s; it is made anew from the parts", reason)
        rebuild_catalog(
            paths.catalog,
            node=node,
            spool_dir=paths.spool,
            store=store,
            quarantine_dir=paths.quarantine,
            incarnations={header.incarnation for header in headers},
        )
        health.degrade("catalog", f"{reason}; made anew from the parts on disk, history may be incomplete")
        if store.directory is None:
            paths.incomplete.write_text(" ".join(incarnations_known(paths)))
        catalog = Catalog.open(paths.catalog, node=node)
    if paths.incomplete.exists():
        health.degrade(
            "catalog", "made anew without a look at the store: nothing is merged or deleted until 'catalog rebuild'"
        )
    for name in clean_spool(paths.spool, catalog.state.parts, is_trusted=not reason):
        _log.info("%s in the spool was left by a crash and is deleted: its rows are in the log", name)
    _report_missing(catalog, paths, store, health)
    return catalog


def incarnations_known(paths: Paths) -> set[str]:
    """Incarnations that the log's files name, or did when the catalog was lost: their parts are of one history."""
    noted = paths.incomplete.read_text().split() if paths.incomplete.exists() else ()
    return {header.incarnation for header in _log_headers(paths)}.union(noted)


def _try_open(paths: Paths, store: Store, node: str, headers: Sequence[FileHeader]) -> tuple[Catalog | None, str]:
    """Open the catalog when it can be trusted; else why it cannot."""
    try:
        catalog = Catalog.open(paths.catalog, node=node)
    except CatalogError as error:
        return None, str(error)
    newest = max((header.generation for header in headers), default=0)
    if catalog.was_created and (headers or _has_parts(paths, store, node)):
        reason = f"{paths.catalog} was missing beside existing data"
    elif newest > catalog.state.generation:
        reason = f"{paths.catalog} (generation {catalog.state.generation}) is older than the log ({newest})"
    else:
        return catalog, ""
    catalog.close()
    return None, reason


def _log_headers(paths: Paths) -> list[FileHeader]:
    headers = []
    for path in sorted(paths.wal.glob(f"*{SUFFIX}")):
        try:
            file = open_file(path)
        except FormatError:
            continue  # replay moves it to the quarantine, and a newer format is refused there
        if file.header is not None:
            headers.append(file.header)
    return headers


def _has_parts(paths: Paths, store: Store, node: str) -> bool:
    spooled = any(path.suffix == ".parquet" for path in paths.spool.iterdir())
    if spooled or store.directory is None:
        # What an earlier state directory left in object storage has names of its own, and no start waits for a network.
        return spooled
    # A node's name may begin with that of another: what follows it are incarnation, two ranks and slice.
    return any(path.name.rsplit("-", 4)[0] == encode_name(node) for path in part_paths(store.directory))


def _report_missing(catalog: Catalog, paths: Paths, store: Store, health: Health) -> None:
    """A listed part without a file is rows that a query cannot see: say so, and delete nothing for it."""
    missing = []
    for part in catalog.state.parts:
        places = [paths.spool / part_name(part), paths.cache / part_name(part)]
        if store.directory is not None:
            places.append(store.directory / part_key(part))
        is_elsewhere = part.is_stored and store.directory is None
        if not is_elsewhere and not any(has_size(place, part.size_bytes) for place in places):
            missing.append(part_key(part))
    if missing:
        _log.error("%d listed parts have no whole file, first: %s", len(missing), missing[0])
        health.degrade("missing_parts", f"{len(missing)} listed parts have no whole file, first: {missing[0]}")
