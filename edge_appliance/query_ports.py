"""What the SQL engine asks of others, and what it answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from edge_appliance.core.delivery import ColumnDefinition
from edge_appliance.core.view import View


class ViewSource(Protocol):
    """Where tables and their rows come from."""

    def view(self, database: str, tables: Collection[str] | None) -> View:
        """The named tables, all at the same instant; unknown ones are absent."""

    def databases(self) -> list[str]:
        """Names of all databases."""

    def table_names(self, database: str) -> list[str]:
        """Names of the tables of a database; none when it is unknown."""

    def columns(self, database: str, table: str) -> tuple[ColumnDefinition, ...] | None:
        """Columns of a table in order of definition, None when it is unknown."""


class QuerySettings(Protocol):
    """Limits of one query."""

    @property
    def memory_limit_bytes(self) -> int:
        """Memory of all running queries together, and of one answer."""

    @property
    def timeout_s(self) -> float:
        """Time for one query, waiting for its turn included."""

    @property
    def max_rows(self) -> int:
        """Rows of one answer; a longer one is an error, not cut."""


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Rows of an answer in types that every client takes: ns timestamps, plain utf8."""

    schema: pa.Schema
    batches: list[pa.RecordBatch]
    rows: int
