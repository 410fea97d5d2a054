"""What a query sees: for each table an immutable picture of the rows in memory and the parts on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edge_appliance.core.columns import RowSet
from edge_appliance.core.delivery import ColumnDefinition
from edge_appliance.core.interval import MIN_NS
from edge_appliance.core.parts import Part


@dataclass(frozen=True, slots=True)
class TableView:
    """One table: its columns in order of definition, its sets in memory by ascending rank, its parts.

    A row is in exactly one of `hot` and `parts`. Every part's rank_hi is below every hot set's rank
    of the same table and date.
    """

    database: str
    table: str
    columns: tuple[ColumnDefinition, ...]
    hot: tuple[RowSet, ...]
    parts: tuple[Part, ...]
    leases: tuple[object, ...] = field(default=(), compare=False, repr=False)
    """Whoever holds the view holds these: its rows count as memory in use until then."""
    visible_from_ns: int = MIN_NS
    """Older rows have had their time: they are not shown, wherever they still are."""


View = Mapping[str, TableView]
"""Tables of one database by name, all taken at the same instant."""
