"""A catalog made anew from what the parts say about themselves, when the old one is damaged, lost or too old.

Bad metadata never deletes data: damaged files are kept in quarantine, and every complete part set found counts, unless
a merged set covers it. Definitions come from the footers; what only the log knows comes back by its replay.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from edge_appliance import durable
from edge_appliance.catalog_file import catalog_files, copy_path, new_incarnation, read_catalog, write_catalog
from edge_appliance.core.catalog_state import CatalogState, part_identity, with_definitions
from edge_appliance.core.delivery import TableDefinition
from edge_appliance.core.parts import encode_name, replaced_by, surviving
from edge_appliance.errors import CatalogError, DiskError, FormatError
from edge_appliance.parquet_file import PartFooter, read_footer
from edge_appliance.quarantine import Quarantine
from edge_appliance.remote_parts import RemoteParts
from edge_appliance.store_port import Store

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FoundParts:
    """Footers of the parts on disk; `unreadable` are files whose footer is damaged."""

    spooled: tuple[PartFooter, ...] = ()
    stored: tuple[PartFooter, ...] = ()
    unreadable: tuple[Path, ...] = ()


def adopt(base: CatalogState, found: FoundParts, incarnations: Collection[str] = ()) -> CatalogState:
    """What is known when the parts in `found` are added to `base`.

    Ranks mean something only among parts and log files of one history. So a part in the store counts when its
    incarnation is that of `base`, of a spooled part, or one of `incarnations` (those the log's files name); when none
    is known, nothing else can be mixed up with it, and every part counts.
    """
    known = {part.incarnation for part in base.parts} | {footer.part.incarnation for footer in found.spooled}
    known |= {base.incarnation, *incarnations} - {""}
    is_history_known = bool(base.generation or found.spooled or incarnations)
    stored = [footer for footer in found.stored if not is_history_known or footer.part.incarnation in known]
    parts = {part_identity(part): part for part in base.parts}
    parts |= {part_identity(footer.part): footer.part for footer in found.spooled}
    parts |= {part_identity(footer.part): replace(footer.part, is_stored=True) for footer in stored}
    parts = {key: part for key, part in parts.items() if key not in base.gone_by_key}
    kept = surviving(parts.values())
    # What a merge replaced and a kill left in the store goes there, too: outsiders would see its rows twice.
    listed = set(map(part_identity, kept))
    left = [part for key, part in parts.items() if part.is_stored and key not in listed]
    merged = [p for p in left if replaced_by((k for k in kept if k.incarnation == p.incarnation), [p])]
    footers = [*found.spooled, *stored]
    definitions = [TableDefinition(f.part.database, f.part.table, f.columns) for f in footers]
    return replace(
        base,
        generation=max([base.generation, *(footer.generation for footer in footers)]) + 1,
        tables=with_definitions(base.tables, definitions),
        parts_by_key={part_identity(part): part for part in kept},
        gone_by_key={**base.gone_by_key, **{part_identity(part): part for part in merged}},
        max_segment_id=max([base.max_segment_id, *(footer.segments[1] for footer in footers)]),
        max_sequence=max([base.max_sequence, *(footer.part.rank_hi for footer in footers)]),
    )


def rebuild_catalog(
    path: Path,
    *,
    node: str,
    spool_dir: Path,
    store: Store | None,
    quarantine_dir: Path,
    incarnations: Collection[str] = (),
    remote: RemoteParts | None = None,
) -> CatalogState:
    """Replace the catalog at `path`, which nobody may have open, by one that lists the parts found on disk.

    The old one is the base while it is readable, else its last copy, else nothing. Its files and the spool's
    unreadable parts are kept in `quarantine_dir`. `remote` is what was found in object storage. Repeating it after a
    crash in the middle ends the same.
    """
    base = _readable(path) or _readable(copy_path(path)) or CatalogState(node, new_incarnation())
    if base.node != node:
        base = replace(base, node=node, incarnation=new_incarnation())
    found = find_parts(spool_dir, store, node)
    if remote is not None:
        found = replace(found, stored=remote.footers)
        base = replace(
            base,
            tables=with_definitions(base.tables, remote.definitions),
            max_segment_id=max(base.max_segment_id, remote.max_segment_id),
            max_sequence=max(base.max_sequence, remote.max_sequence),
        )
    state = adopt(base, found, incarnations)
    durable.make_directory(quarantine_dir)
    for file in [file for file in catalog_files(path) if file.exists()]:
        # Linked, not moved: a crash must not leave a place where an empty catalog would be made.
        durable.link_or_copy(file, _free_name(quarantine_dir, file))
    for file in found.unreadable:
        if file.parent == spool_dir:
            Quarantine(quarantine_dir).take(file)
    write_catalog(path, state)
    _log.warning(
        "catalog made anew from %d parts in spool and store (%d unreadable); the old one is kept in %s",
        len(state.parts),
        len(found.unreadable),
        quarantine_dir,
    )
    return state


def find_parts(spool_dir: Path, store: Store | None, node: str) -> FoundParts:
    """Read the footers of all parts in the spool, and of this node's in the store."""
    unreadable: list[Path] = []
    spooled = _footers(spool_dir.glob("*.parquet"), unreadable)
    named = part_paths(store.directory) if store is not None and store.directory is not None else ()
    prefix = f"{encode_name(node)}-"
    stored = _footers((path for path in named if path.name.startswith(prefix)), unreadable)
    return FoundParts(tuple(spooled), tuple(f for f in stored if f.part.node == node), tuple(unreadable))


def part_paths(directory: Path) -> Iterator[Path]:
    """All files in a store's directory that are named like parts, in no order."""
    return directory.glob("*/*/date=*/*.parquet")


def _footers(paths: Iterable[Path], unreadable: list[Path]) -> list[PartFooter]:
    footers = []
    for path in sorted(paths):
        try:
            footers.append(read_footer(path))
        except (FormatError, DiskError) as error:
            _log.warning("part is not adopted: %s", error)
            unreadable.append(path)
    return footers


def _readable(path: Path) -> CatalogState | None:
    if not path.exists():
        return None
    try:
        return read_catalog(path)
    except CatalogError:
        return None


def _free_name(directory: Path, file: Path) -> Path:
    """Name in quarantine that is the same after a crash and free otherwise."""
    stat = file.stat()
    return directory / f"{file.name}.{stat.st_ino}-{stat.st_mtime_ns}"
