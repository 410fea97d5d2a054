"""What is in memory and on disk right now: the open segment, sealed segments, set-asides, and the list of parts.

`Buffer.replace` is the only way to change the picture: it applies a function to the current state under one
lock. Readers take the visible rows of the tables they ask for under the same lock; after that they hold none,
and what they hold never changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from edge_appliance.core.catalog_state import part_identity
from edge_appliance.core.columns import Chunk
from edge_appliance.core.delivery import ColumnDefinition, TableKey
from edge_appliance.core.interval import MIN_NS
from edge_appliance.core.parts import Part
from edge_appliance.core.schema import Schema
from edge_appliance.core.segment import Segment, TableBuffer
from edge_appliance.core.set_aside import SetAside
from edge_appliance.core.view import TableView, View
from edge_appliance.memory import Lease, Memory, Reservation

ROOM_SHARE: Final = 0.9
"""Share of the limit below which a full buffer takes rows again."""


@dataclass(frozen=True, slots=True)
class State:
    """One consistent picture: a row is in exactly one of `open`, `sealed` (by ascending rank) and `parts`."""

    open: Segment
    sealed: tuple[Segment, ...]
    parts: Mapping[TableKey, tuple[Part, ...]]
    set_asides: tuple[SetAside, ...] = ()
    """In work: their rows are still those of their segment."""

    @property
    def in_jobs_bytes(self) -> int:
        """About what the jobs that were handed to the workers will free."""
        sealed_bytes = sum(segment.size_bytes for segment in self.sealed)
        return sealed_bytes + sum(a.freeable_bytes for a in self.set_asides if a.segment is self.open)

    @property
    def jobs(self) -> int:
        """Number of jobs that were handed to the workers."""
        return len(self.sealed) + len(self.set_asides)


class Buffer:
    """Owner of the current state, of the memory it takes, and of the definitions that readers see."""

    def __init__(
        self, schema: Schema, parts: Iterable[Part], limit_bytes: int, databases: Collection[str] = ()
    ) -> None:
        self.schema = schema
        self.memory = Memory(limit_bytes)
        self._configured = frozenset(databases)
        """Databases that exist before their first row."""
        self.visible_from: Callable[[str], int] = lambda database: MIN_NS
        """The oldest time of which rows of a database are shown."""
        self._was_full = False
        self._changed = threading.Condition()
        self._state = State(Segment(0, 0, 0.0), (), _grouped({}, parts))
        self._held: dict[Segment, Reservation] = {}
        """Memory of each segment in the state."""

    def configure(self, databases: Iterable[str]) -> None:
        """Say which databases exist before their first row."""
        self._configured = frozenset(databases)

    @property
    def state(self) -> State:
        """The current picture."""
        return self._state

    @property
    def limit_bytes(self) -> int:
        """The configured limit."""
        return self.memory.configured_bytes

    @property
    def size_bytes(self) -> int:
        """Memory of all rows and series, those included that only queries still read."""
        return self.memory.used_bytes

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

    @property
    def unpersisted_from(self) -> int:
        """The lowest rank that a row in memory has or will get."""
        state = self._state
        return min(segment.first_sequence for segment in (*state.sealed, state.open))

    def wait_for_change(self, timeout_s: float) -> None:
        """Wait until a worker or the ingest thread changed something."""
        with self._changed:
            self._changed.wait(timeout_s)

    # Changes by the ingest thread and by recovery

    def start(self, segment: Segment) -> None:
        """Make `segment` the open one; the one before it must be empty or sealed."""

        def change(state: State) -> State:
            self._release(state.open)
            return replace(state, open=segment)

        self.replace(change)

    def publish(self) -> int:
        """Move the mark of the open segment over all appended rows, and show the definitions they added.

        Returns the bytes that the buffer grew by.
        """
        segment = self._state.open
        frozen = segment.freeze_large_tails()
        before_bytes = self._held[segment].size_bytes if segment in self._held else 0

        def change(state: State) -> State:
            self.schema.commit()
            state.open.publish(frozen)
            self._account(state.open)
            return state

        self.replace(change)
        return segment.size_bytes - before_bytes

    def cut(self, successor: Segment, rank: int | None = None) -> Segment:
        """Seal the open segment with the rank its rows get, open `successor`; returns the sealed one.

        The rank is one below the successor's first sequence, unless it is stated.
        """
        sealed = self._state.open

        def change(state: State) -> State:
            sealed.seal(successor.first_sequence - 1 if rank is None else rank)
            self._account(sealed).move("sealed")
            return replace(state, open=successor, sealed=(*state.sealed, sealed))

        self.replace(change)
        sealed.drop_lookups()
        return sealed

    def freeze(self, buffer: TableBuffer) -> None:
        """Make a chunk of the tail of a table of the open segment."""

        def change(state: State) -> State:
            state.open.freeze(buffer)
            self._account(state.open)
            return state

        self.replace(change)

    def drop_rows(self, buffer: TableBuffer, rest: Sequence[Chunk]) -> None:
        """Let rows of the open segment go that are in parts: `rest` is what is left of all chunks of the table."""

        def change(state: State) -> State:
            state.open.replace_chunks(buffer, len(buffer.chunks), rest)
            self._account(state.open)
            return state

        self.replace(change)

    def set_aside(self, aside: SetAside) -> None:
        """Note that a set-aside of the open segment is in work: its PERSIST_BEGIN is durable."""
        self.replace(lambda state: replace(state, set_asides=(*state.set_asides, aside)))

    # Changes by the workers

    def persisted(self, segment_id: int, parts: Sequence[Part]) -> None:
        """The catalog lists `parts` for a sealed segment: show them instead of its rows, and let these go."""
        self._show_parts(lambda segment: segment.id == segment_id, parts)

    def prefix_persisted(self, prefix: Segment, parts: Sequence[Part]) -> None:
        """The same for the first rows of a log file, which are a segment of their own while it is replayed."""
        self._show_parts(lambda segment: segment is prefix, parts)

    def _show_parts(self, is_done: Callable[[Segment], bool], parts: Sequence[Part]) -> None:
        def change(state: State) -> State:
            for segment in filter(is_done, state.sealed):
                for buffer in segment.tables.values():
                    self._pin(buffer, buffer.size_bytes)
                self._release(segment)
            sealed = tuple(segment for segment in state.sealed if not is_done(segment))
            return replace(state, sealed=sealed, parts=_grouped(state.parts, parts))

        self.replace(change)

    def set_aside_persisted(self, aside: SetAside, rest: Sequence[Chunk], parts: Sequence[Part]) -> None:
        """The catalog lists `parts` for a set-aside: show them, and of its chunks only `rest`."""

        def change(state: State) -> State:
            freed = aside.segment.replace_chunks(aside.buffer, len(aside.rows.chunks), rest)
            self._pin(aside.buffer, freed)
            self._account(aside.segment)
            asides = tuple(other for other in state.set_asides if other is not aside)
            return replace(state, set_asides=asides, parts=_grouped(state.parts, parts))

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

    def swap_parts(self, old: Sequence[Part], new: Sequence[Part]) -> None:
        """Show `new` instead of `old` in one step: a merge has the same rows, retention none."""
        gone = frozenset(map(part_identity, old))

        def change(state: State) -> State:
            keys = {(part.database, part.table) for part in old}
            kept = {k: tuple(p for p in state.parts.get(k, ()) if part_identity(p) not in gone) for k in keys}
            return replace(state, parts=_grouped({**state.parts, **kept}, new))

        self.replace(change)

    # Reading

    def view(self, database: str, tables: Collection[str] | None = None) -> View:
        """Take the named tables of `database` at one instant, or all of them; unknown names are absent."""
        with self._changed:
            state = self._state
            names = self.schema.table_names(database) if tables is None else tables
            views: dict[str, TableView] = {}
            from_ns = self.visible_from(database)
            for name in names:
                columns = self.schema.columns(database, name)
                if columns is None:
                    continue
                key = (database, name)
                segments = (*state.sealed, state.open)
                buffers = [(found, segment.rank) for segment in segments if (found := segment.tables.get(key))]
                sets = (buffer.row_set(rank) for buffer, rank in buffers)
                hot = tuple(row_set for row_set in sets if row_set is not None)
                leases = tuple(_lease(buffer) for buffer, _ in buffers)
                parts = state.parts.get(key, ())
                views[name] = TableView(database, name, columns, hot, parts, leases, from_ns)
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

    # Memory, under the lock

    def _account(self, segment: Segment) -> Reservation:
        """Bring the memory of a segment up to date."""
        reservation = self._held.get(segment)
        if reservation is None:
            reservation = self._held[segment] = self.memory.reserve("open", 0)
        reservation.resize(segment.size_bytes)
        return reservation

    def _release(self, segment: Segment) -> None:
        reservation = self._held.pop(segment, None)
        if reservation is not None:
            reservation.release()

    def _pin(self, buffer: TableBuffer, size_bytes: int) -> None:
        """Count what a table lets go as long as somebody reads it."""
        lease, buffer.lease = buffer.lease, None
        if isinstance(lease, Lease):
            self.memory.pin(lease, size_bytes)


def _lease(buffer: TableBuffer) -> object:
    """What a reader of the table holds."""
    if buffer.lease is None:
        buffer.lease = Lease()
    return buffer.lease


def _grouped(known: Mapping[TableKey, tuple[Part, ...]], added: Iterable[Part]) -> dict[TableKey, tuple[Part, ...]]:
    grouped = dict(known)
    for part in added:
        key = (part.database, part.table)
        grouped[key] = (*grouped.get(key, ()), part)
    return grouped
