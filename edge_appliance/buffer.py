"""What is in memory and on disk right now: the open segment, sealed segments, and the list of parts.

`Buffer.replace` is the only way to change the picture: it applies a function to the current state under one
lock. Readers take the visible rows of the tables they ask for under the same lock; after that they hold none,
and what they hold never changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from edge_appliance.core.delivery import ColumnDefinition, TableKey
from edge_appliance.core.parts import Part
from edge_appliance.core.schema import Schema
from edge_appliance.core.segment import Segment
from edge_appliance.core.view import TableView, View

ROOM_SHARE: Final = 0.9
"""Share of the limit below which a full buffer takes rows again."""


@dataclass(frozen=True, slots=True)
class State:
    """One consistent picture: a row is in exactly one of `open`, `sealed` (by ascending rank) and `parts`."""

    open: Segment
    sealed: tuple[Segment, ...]
    parts: Mapping[TableKey, tuple[Part, ...]]

    @property
    def size_bytes(self) -> int:
        """Memory of all rows and series."""
        return self.open.size_bytes + sum(segment.size_bytes for segment in self.sealed)


class Buffer:
    """Owner of the current state and of the definitions that readers see."""

    def __init__(
        self, schema: Schema, parts: Iterable[Part], limit_bytes: int, databases: Collection[str] = ()
    ) -> None:
        self.schema = schema
        self.limit_bytes = limit_bytes
        self._configured = frozenset(databases)
        """Databases that exist before their first row."""
        self._was_full = False
        self._changed = threading.Condition()
        self._state = State(Segment(0, 0, 0.0), (), _grouped({}, parts))

    def configure(self, databases: Iterable[str]) -> None:
        """Say which databases exist before their first row."""
        self._configured = frozenset(databases)

    @property
    def state(self) -> State:
        """The current picture."""
        return self._state

    @property
    def size_bytes(self) -> int:
        """Memory of all rows and series."""
        return self._state.size_bytes

    def replace(self, change: Callable[[State], State]) -> None:
        """Apply `change`, which must be quick and must not wait, and wake whoever waits for room."""
        with self._changed:
            self._state = change(self._state)
            self._changed.notify_all()

    def has_room(self) -> bool:
        """Whether rows can be taken: below the limit, and after having been full below ROOM_SHARE of it."""
        limit_bytes = self.limit_bytes * ROOM_SHARE if self._was_full else self.limit_bytes
        self._was_full = self.size_bytes >= limit_bytes
        return not self._was_full

    def wait_for_change(self, timeout_s: float) -> None:
        """Wait until a worker or the ingest thread changed something."""
        with self._changed:
            self._changed.wait(timeout_s)

    # Changes by the ingest thread and by recovery

    def start(self, segment: Segment) -> None:
        """Make `segment` the open one; the one before it must be empty or sealed."""
        self.replace(lambda state: replace(state, open=segment))

    def publish(self) -> None:
        """Move the mark of the open segment over all appended rows, and show the definitions they added."""
        frozen = self._state.open.freeze_large_tails()

        def change(state: State) -> State:
            self.schema.commit()
            state.open.publish(frozen)
            return state

        self.replace(change)

    def cut(self, successor: Segment) -> Segment:
        """Seal the open segment with the rank its rows get, open `successor`; returns the sealed one."""
        sealed = self._state.open

        def change(state: State) -> State:
            sealed.seal(successor.first_sequence - 1)
            return State(successor, (*state.sealed, sealed), state.parts)

        self.replace(change)
        sealed.drop_lookups()
        return sealed

    # Changes by the workers

    def persisted(self, segment_id: int, parts: Sequence[Part]) -> None:
        """The catalog lists `parts` for a sealed segment: show them instead of its rows, and let these go."""

        def change(state: State) -> State:
            sealed = tuple(segment for segment in state.sealed if segment.id != segment_id)
            return State(state.open, sealed, _grouped(state.parts, parts))

        self.replace(change)

    def replace_part(self, old: Part, new: Part) -> None:
        """Show `new` where `old` is, such as when the store has it."""

        def change(state: State) -> State:
            key = (old.database, old.table)
            parts = tuple(new if part == old else part for part in state.parts.get(key, ()))
            return replace(state, parts={**state.parts, key: parts})

        self.replace(change)

    def drop_parts(self, parts: Sequence[Part]) -> None:
        """Show `parts` no more: their rows are elsewhere, or are given up."""
        gone = frozenset(parts)

        def change(state: State) -> State:
            keys = {(part.database, part.table) for part in gone}
            kept = {key: tuple(part for part in state.parts.get(key, ()) if part not in gone) for key in keys}
            return replace(state, parts={**state.parts, **kept})

        self.replace(change)

    # Reading

    def view(self, database: str, tables: Collection[str] | None = None) -> View:
        """Take the named tables of `database` at one instant, or all of them; unknown names are absent."""
        with self._changed:
            state = self._state
            names = self.schema.table_names(database) if tables is None else tables
            views: dict[str, TableView] = {}
            for name in names:
                columns = self.schema.columns(database, name)
                if columns is None:
                    continue
                key = (database, name)
                segments = (*state.sealed, state.open)
                buffers = ((segment.tables.get(key), segment.rank) for segment in segments)
                sets = (buffer.row_set(rank) for buffer, rank in buffers if buffer is not None)
                hot = tuple(row_set for row_set in sets if row_set is not None)
                views[name] = TableView(database, name, columns, hot, state.parts.get(key, ()))
            return views

    def databases(self) -> list[str]:
        """Names of all databases that hold a table or are configured, sorted."""
        with self._changed:
            return sorted(self._configured.union(self.schema.databases()))

    def table_names(self, database: str) -> list[str]:
        """Names of the tables of `database`."""
        with self._changed:
            return self.schema.table_names(database)

    def columns(self, database: str, table: str) -> tuple[ColumnDefinition, ...] | None:
        """Columns of a table in order of definition; None when it is unknown."""
        return self.schema.columns(database, table)

    def parts(self) -> list[Part]:
        """All live parts."""
        return [part for parts in self._state.parts.values() for part in parts]


def _grouped(known: Mapping[TableKey, tuple[Part, ...]], added: Iterable[Part]) -> dict[TableKey, tuple[Part, ...]]:
    grouped = dict(known)
    for part in added:
        key = (part.database, part.table)
        grouped[key] = (*grouped.get(key, ()), part)
    return grouped
