"""What a planned statement reads of each table: which columns, and which times at most.

Works on the optimized logical plan by the few methods that the engine's plan and expression objects have; it never
imports the engine. Whatever it does not understand counts as "everything": only a too narrow answer would be wrong.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_appliance.core.delivery import ColumnDefinition
from edge_appliance.core.interval import ALL_TIME, MAX_NS, MIN_NS, NO_TIME, Interval

_NS_LITERAL: Final = re.compile(r"TimestampNanosecond\((-?\d+), ")
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


@dataclass(slots=True)
class Need:
    """What a statement reads of one table."""

    columns: set[str] = field(default_factory=set)
    bounds: Interval = NO_TIME

    def add(self, columns: Collection[str], bounds: Interval) -> None:
        """One more reading of the same table."""
        self.columns.update(columns)
        self.bounds = self.bounds.hull(bounds)


def needs_of(plan: Any, tables: Mapping[str, tuple[ColumnDefinition, ...]]) -> dict[str, Need]:
    """Need of each of `tables`, which are all that the statement names."""
    needs = {name: Need() for name in tables}
    seen = 0
    for name, columns, bounds in _scans(plan):
        seen += 1
        if name in needs:
            needs[name].add(columns, bounds)
    if seen != plan.display_indent().count("TableScan:"):
        # Scalar subqueries sit inside expressions, where the walk does not come: their scans are unknown.
        for name, defined in tables.items():
            needs[name].add([column.name for column in defined], ALL_TIME)
    return needs


def _scans(plan: Any, predicate: Any = None) -> Iterator[tuple[str, list[str], Interval]]:
    """Each table scan below `plan` as (table, columns, bounds); `predicate` is the filter directly above."""
    variant = variant_of(plan)
    kind = type(variant).__name__
    if kind == "TableScan":
        filters = [*variant.filters(), *([] if predicate is None else [predicate])]
        bounds = ALL_TIME
        for expression in filters:
            bounds = bounds.common(time_bounds(expression))
        yield variant.fqn()[2], [name for _, name in variant.projection()], bounds
    below = variant.predicate() if kind == "Filter" else None
    for child in plan.inputs():
        yield from _scans(child, below)


def time_bounds(expression: Any) -> Interval:
    """The times that can satisfy a predicate."""
    variant = variant_of(expression)
    kind = type(variant).__name__
    if kind == "InList" and _is_time(variant.expr()) and not variant.negated():
        return functools.reduce(Interval.hull, (_compared("=", item) for item in variant.list()), NO_TIME)
    return _binary_bounds(variant) if kind == "BinaryExpr" else ALL_TIME


def _binary_bounds(variant: Any) -> Interval:
    left, operator, right = variant.left(), variant.op(), variant.right()
    if operator == "AND":
        return time_bounds(left).common(time_bounds(right))
    if operator == "OR":
        return time_bounds(left).hull(time_bounds(right))
    if operator not in _MIRRORED:
        return ALL_TIME
    if _is_time(left):
        return _compared(operator, right)
    return _compared(_MIRRORED[operator], left) if _is_time(right) else ALL_TIME


def _compared(operator: str, literal: Any) -> Interval:
    match = _NS_LITERAL.match(literal.canonical_name()) if literal.variant_name() == "Literal" else None
    if match is None:
        return ALL_TIME
    time_ns = int(match[1])
    return {
        "=": Interval(time_ns, time_ns),
        "<": Interval(MIN_NS, time_ns - 1),
        "<=": Interval(MIN_NS, time_ns),
        ">": Interval(time_ns + 1, MAX_NS),
        ">=": Interval(time_ns, MAX_NS),
    }[operator]


def _is_time(expression: Any) -> bool:
    variant = variant_of(expression)
    return type(variant).__name__ == "Column" and bool(variant.name() == "time")


def variant_of(node: Any) -> Any:
    """The node as its own type, None for the few that the binding cannot show."""
    try:
        return node.to_variant()
    except Exception:  # the binding raises different things for what it does not know
        return None
