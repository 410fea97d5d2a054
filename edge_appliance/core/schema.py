"""Definitions: which tables and columns exist. A column keeps one kind for the life of its table.

The ingest thread adds definitions while it appends a group. They are provisional until `commit`, which makes
them visible to readers; `rollback` takes them back, so that a rejected line or a failed group leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from edge_appliance.core.delivery import ColumnDefinition, Kind, Reason, TableDefinition

EXACT_FLOAT_INT: Final = 2**53
"""Largest magnitude up to which every integer is a float64: an int in a float column beyond it is refused."""


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """How far input may grow the definitions; the limit itself is still accepted."""

    databases: int = 100
    tables: int = 2_000
    """Per database."""
    columns: int = 1_000
    """Per table: tags and fields, without `time`."""


class TableSchema:
    """Columns of one table by name, in order of definition; the last ones may be provisional."""

    __slots__ = ("columns", "database", "kinds", "name")

    def __init__(self, database: str, name: str) -> None:
        self.database = database
        self.name = name
        self.kinds: dict[str, Kind] = {}
        self.columns: tuple[ColumnDefinition, ...] = ()
        """Committed columns: what readers see."""

    def publish(self) -> None:
        """Make all columns visible to readers."""
        self.columns = self.definition().columns

    def definition(self) -> TableDefinition:
        """All columns, provisional ones included."""
        columns = tuple(ColumnDefinition(name, kind) for name, kind in self.kinds.items())
        return TableDefinition(self.database, self.name, columns)


class Schema:
    """All databases, tables and columns. Changed by the ingest thread (and by replay before it starts)."""

    def __init__(self, limits: SchemaLimits | None = None) -> None:
        self.limits = limits or SchemaLimits()
        self._databases: dict[str, dict[str, TableSchema]] = {}
        self.added: list[tuple[TableSchema, str]] = []
        """Provisional additions in order; an empty column name stands for the table itself."""

    def table(self, database: str, name: str) -> TableSchema | None:
        """Find a table, provisional ones included; None when there is none."""
        tables = self._databases.get(database)
        return tables.get(name) if tables is not None else None

    def databases(self) -> list[str]:
        """Names of databases with at least one visible table, sorted."""
        return sorted(name for name in list(self._databases) if self.table_names(name))

    def table_names(self, database: str) -> list[str]:
        """Names of the visible tables of `database`, sorted; empty when it is unknown."""
        tables = self._databases.get(database, {}).copy()
        return sorted(name for name, table in tables.items() if table.columns)

    def columns(self, database: str, name: str) -> tuple[ColumnDefinition, ...] | None:
        """Visible columns of a table; None when it is not visible."""
        table = self.table(database, name)
        return table.columns or None if table is not None else None

    def definitions(self) -> list[TableDefinition]:
        """All visible definitions."""
        return [
            TableDefinition(database, table.name, table.columns)
            for database, tables in self._databases.items()
            for table in tables.values()
            if table.columns
        ]

    def add_table(self, database: str, name: str) -> TableSchema | None:
        """Add a provisional table; None when a limit forbids it."""
        tables = self._databases.get(database)
        if tables is None and len(self._databases) >= self.limits.databases:
            return None
        if tables is not None and len(tables) >= self.limits.tables:
            return None
        return self._add_table(database, name)

    def _add_table(self, database: str, name: str) -> TableSchema:
        table = TableSchema(database, name)
        # Noted before it is added, as columns are: if memory ends in between, it can be taken back all the same.
        self.added.append((table, ""))
        self._databases.setdefault(database, {})[name] = table
        return table

    def add_column(self, table: TableSchema, name: str, kind: Kind) -> None:
        """Add a provisional column."""
        self.added.append((table, name))
        table.kinds[name] = kind

    def define(self, definition: TableDefinition) -> list[str]:
        """Apply a stored definition; returns the columns whose kind contradicts the one known here."""
        database, name, columns = definition
        table = self.table(database, name)
        if table is None:
            table = self._add_table(database, name)
        clashes = []
        for column in columns:
            known = table.kinds.get(column.name)
            if known is None:
                self.add_column(table, column.name, column.kind)
            elif known is not column.kind:
                clashes.append(column.name)
        return clashes

    @property
    def savepoint(self) -> int:
        """Where `rollback` can return to."""
        return len(self.added)

    def added_since(self, savepoint: int) -> list[TableDefinition]:
        """Columns added since `savepoint`, grouped by table in order of addition."""
        grouped: dict[TableSchema, list[ColumnDefinition]] = {}
        for table, column in self.added[savepoint:]:
            columns = grouped.setdefault(table, [])
            if column:
                columns.append(ColumnDefinition(column, table.kinds[column]))
        return [TableDefinition(table.database, table.name, tuple(columns)) for table, columns in grouped.items()]

    def rollback(self, savepoint: int = 0) -> None:
        """Take back all additions since `savepoint`."""
        while len(self.added) > savepoint:
            table, column = self.added.pop()
            if column:
                table.kinds.pop(column, None)
                continue
            tables = self._databases.get(table.database, {})
            tables.pop(table.name, None)
            if not tables:
                self._databases.pop(table.database, None)

    def commit(self) -> None:
        """Make all provisional additions visible and permanent."""
        for table in {table for table, _ in self.added}:
            table.publish()
        self.added.clear()


def check_kind(kind: Kind, value: object, stored: Kind) -> tuple[Reason, str] | None:
    """Judge a value of `kind` against a column of `stored` kind: None when it fits, widened where needed."""
    if kind is stored:
        return None
    if Kind.TAG in (kind, stored):
        return Reason.TAG_FIELD_COLLISION, f"is a {stored.name.lower()}, used as {kind.name.lower()}"
    if stored is Kind.FLOAT and kind is Kind.INT:
        if isinstance(value, int) and -EXACT_FLOAT_INT <= value <= EXACT_FLOAT_INT:
            return None
        return Reason.TYPE_CONFLICT, f"is float, and the int {value} has no exact float"
    return Reason.TYPE_CONFLICT, f"is {stored.name.lower()}, offered {kind.name.lower()}"


def load_schema(definitions: Iterable[TableDefinition], limits: SchemaLimits | None = None) -> Schema:
    """Build a schema from stored definitions, all of them visible."""
    schema = Schema(limits)
    for definition in definitions:
        schema.define(definition)
    schema.commit()
    return schema
