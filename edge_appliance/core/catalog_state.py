"""What the catalog knows, as a value, and `apply`, which says what it knows after a change.

Pure: the catalog keeps a state in memory and carries the same changes to its database.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edge_appliance.core.delivery import ColumnDefinition, DeliveryKey, Kind, TableDefinition, TableKey
from edge_appliance.core.parts import Part

PartKey = tuple[str, str, dt.date, str, str, int, int, int]
"""What makes a part itself: all but its size, its rows and where it lies."""


class LoggedDelivery(NamedTuple):
    """Key of a delivery whose rows are in parts, and the rank of the set it was in: the highest one counts."""

    key: DeliveryKey
    rank: int


class DoneSetAside(NamedTuple):
    """Rows that are in parts while their log file is still there: of a table, those before `sequence` up to a time."""

    segment_id: int
    sequence: int
    """Of its PERSIST_BEGIN, which is its rank."""
    database: str
    table: str
    time_ns: int


@dataclass(frozen=True, slots=True)
class CatalogState:
    """Everything in the catalog. Numbers are the highest ever seen; they and the generation never fall."""

    node: str
    incarnation: str
    """8 hex digits, new with each state directory: names of parts never repeat in the store."""
    generation: int = 0
    tables: Mapping[TableKey, Mapping[str, Kind]] = field(default_factory=dict)
    """Columns by name, in order of definition."""
    parts_by_key: Mapping[PartKey, Part] = field(default_factory=dict)
    persisted_segments: frozenset[int] = frozenset()
    """Segments whose parts are listed, until their file is gone and the directory synced: replay skips them."""
    filters: tuple[str, ...] = ()
    """Topic filters of the last subscription."""
    max_segment_id: int = 0
    max_sequence: int = 0
    logged: Mapping[int, LoggedDelivery] = field(default_factory=dict)
    """Last persisted QoS 1 delivery of each packet id: a log file takes its keys along when it goes."""
    set_asides: Mapping[int, DoneSetAside] = field(default_factory=dict)
    """By sequence: what replay leaves out of the files that are still there."""
    prefixes: Mapping[int, int] = field(default_factory=dict)
    """By segment: the sequence up to which a replay that ran out of memory has put everything into parts."""
    gone_by_key: Mapping[PartKey, Part] = field(default_factory=dict)
    """Parts that are not listed any more, and whose object in the store is still to be deleted."""

    @property
    def definitions(self) -> list[TableDefinition]:
        """All tables with their columns in order of definition."""
        return [
            TableDefinition(database, table, tuple(ColumnDefinition(name, kind) for name, kind in columns.items()))
            for (database, table), columns in self.tables.items()
        ]

    @property
    def parts(self) -> list[Part]:
        """All live parts."""
        return list(self.parts_by_key.values())

    @property
    def gone(self) -> list[Part]:
        """Parts whose object in the store is still to be deleted."""
        return list(self.gone_by_key.values())


@dataclass(frozen=True, slots=True)
class Change:
    """One transaction. Doing it twice is the same as doing it once, but for the generation."""

    definitions: Collection[TableDefinition] = ()
    parts: Collection[Part] = ()
    """Listed from now on, or listed already and changed."""
    removed: Collection[PartKey] = ()
    """Not listed any more; applied before `parts`."""
    stored: Collection[PartKey] = ()
    """The store has them; what is not listed stays unlisted."""
    gone: Collection[Part] = ()
    """Of the removed ones those that the store has, or may have."""
    deleted: Collection[PartKey] = ()
    """The store has them no more."""
    persisted: Collection[int] = ()
    forgotten: Collection[int] = ()
    filters: tuple[str, ...] | None = None
    segment_id: int = 0
    """A number that was given out; 0 says nothing."""
    sequence: int = 0
    keys: Collection[DeliveryKey] = ()
    """Of the deliveries in the persisted segment, whose rank is `sequence`."""
    set_asides: Collection[DoneSetAside] = ()
    """They go with their segment, as prefixes do."""
    prefixes: Mapping[int, int] = field(default_factory=dict)


def part_identity(part: Part) -> PartKey:
    """What makes `part` itself."""
    return (
        part.database,
        part.table,
        part.date,
        part.node,
        part.incarnation,
        part.rank_lo,
        part.rank_hi,
        part.slice,
    )


def apply(state: CatalogState, change: Change) -> CatalogState:
    """What is known after `change`, with the next generation. A column keeps the kind it had first."""
    parts = dict(state.parts_by_key)
    for key in change.removed:
        parts.pop(key, None)
    parts |= {part_identity(part): part for part in change.parts}
    parts |= {key: replace(parts[key], is_stored=True) for key in change.stored if key in parts}
    gone = {**state.gone_by_key, **{part_identity(part): part for part in change.gone}}
    for key in change.deleted:
        gone.pop(key, None)
    persisted = state.persisted_segments.union(change.persisted).difference(change.forgotten)
    return replace(
        state,
        generation=state.generation + 1,
        tables=with_definitions(state.tables, change.definitions),
        parts_by_key=parts,
        persisted_segments=persisted,
        filters=state.filters if change.filters is None else change.filters,
        max_segment_id=max(state.max_segment_id, change.segment_id, *change.persisted),
        max_sequence=max(state.max_sequence, change.sequence, *(part.rank_hi for part in change.parts)),
        logged={**state.logged, **newer_deliveries(state, change)},
        set_asides={
            done.sequence: done
            for done in (*state.set_asides.values(), *change.set_asides)
            if done.segment_id not in change.forgotten
        },
        prefixes={
            id_: end for id_, end in {**state.prefixes, **change.prefixes}.items() if id_ not in change.forgotten
        },
        gone_by_key=gone,
    )


def newer_deliveries(state: CatalogState, change: Change) -> dict[int, LoggedDelivery]:
    """Deliveries of `change` by packet id, without those that `state` knows a later one for."""
    offered = (LoggedDelivery(key, change.sequence) for key in change.keys)
    known = state.logged
    return {
        logged.key.packet_id: logged
        for logged in offered
        if (other := known.get(logged.key.packet_id)) is None or other.rank <= logged.rank
    }


def with_definitions(
    tables: Mapping[TableKey, Mapping[str, Kind]], definitions: Iterable[TableDefinition]
) -> Mapping[TableKey, Mapping[str, Kind]]:
    """`tables` and what `definitions` add to them: known columns keep their kind and place."""
    result = dict(tables)
    for database, table, columns in definitions:
        known = result.get((database, table), {})
        added = {column.name: column.kind for column in columns if column.name not in known}
        if added or not known:
            result[database, table] = {**known, **added}
    return result
