"""What the joins of a planned statement cost, before any of them runs.

A join whose pairs are only counted or sorted never lets go of its core: the engine looks for a cancelled query when it
reads its next batch of rows, and one batch can have billions of partners. So pairs are bounded before. Row counts of
tables are known; where their product is too much, the rows that really meet are counted, which needs no join of rows.

Works on the optimized logical plan by the methods its objects have; it never imports the engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from edge_appliance.core.query_needs import variant_of
from edge_appliance.errors import QueryError

MAX_PAIRS: Final = 100_000_000
"""Pairs of rows that all joins of a statement may compare: seconds of one core."""
_UNNEST_ROWS: Final = 1_000
_OTHER_ROWS: Final = 50_000
"""Of VALUES, and of tables about tables."""
_KEEPS_LEFT: Final = re.compile(r"Left(?:Semi|Anti|Mark)")
"""These compare all pairs too: the engine does not stop at the first."""
_COLLECTED: Final = re.compile(r"\b(?:array_agg|string_agg)\(")
_SPREADS: Final = re.compile(r"^\s*(?:\w+ )?(?:Join|Subquery|WindowAggr):|^\s*Cross Join:", re.MULTILINE)

CountRows = Callable[[Any], int]
"""Rows that a plan has."""
CountPairs = Callable[[Any], int]
"""Pairs of rows with equal keys that a join has."""


def refuse_spread_lists(plan: Any) -> None:
    """Refuse a list made of a whole table that would be repeated in many rows: each copy lies outside of the pool."""
    shown = plan.display_indent()
    if _COLLECTED.search(shown) and _SPREADS.search(shown):
        text = "array_agg and string_agg cannot be combined with joins, windows and subqueries in expressions"
        raise QueryError("invalid", text)


class JoinCosts:
    """Pairs of all joins of one statement."""

    def __init__(self, rows: Mapping[str, int], count_rows: CountRows, count_pairs: CountPairs) -> None:
        self._rows = rows
        self._count_rows = count_rows
        self._count_pairs = count_pairs
        self._pairs = 0

    def check(self, plan: Any) -> int:
        """Rows of `plan` at most; refuses joins with too many pairs."""
        variant = variant_of(plan)
        below = [self.check(child) for child in plan.inputs()]
        if type(variant).__name__ == "Join":
            return self._join(plan, variant, below)
        return self._rows_of(plan, variant, below)

    def _rows_of(self, plan: Any, variant: Any, below: list[int]) -> int:
        kind = type(variant).__name__
        if kind == "TableScan":
            return self._rows.get(variant.fqn()[2], _OTHER_ROWS)
        if kind == "Union":
            return sum(below)
        if kind == "Aggregate" and not variant.group_by_exprs():
            return 1
        if not below:
            return _OTHER_ROWS if kind == "Values" else 1
        is_unnest = plan.display().lstrip().startswith("Unnest")
        return math.prod(below) * (_UNNEST_ROWS if is_unnest else 1)

    def _join(self, plan: Any, join: Any, below: list[int]) -> int:
        left, right = below
        pairs = left * right
        if self._pairs + pairs > MAX_PAIRS:
            if join.on():
                pairs = self._count_pairs(plan)
            else:
                left, right = (self._count_rows(child) for child in plan.inputs())
                pairs = left * right
        self._pairs += pairs
        if self._pairs > MAX_PAIRS:
            way_out = "join on tags and time, or narrow the time range" if join.on() else "join on equal columns"
            if join.on() and _KEEPS_LEFT.search(str(join.join_type())):
                way_out = "write SELECT DISTINCT in the subquery, or narrow the time range"
            text = f"the joins compare {self._pairs:,} pairs of rows, {MAX_PAIRS:,} are allowed ({way_out})"
            raise QueryError("too_large", text)
        kind = str(join.join_type())
        if _KEEPS_LEFT.search(kind):
            return left
        return pairs if kind.endswith("Inner") else pairs + left + right


def pairs_of(plan: Any, frame_of: Callable[[Any], Any], engine: Any) -> Any:
    """A frame with the pairs of rows that have equal keys in a join: rows are counted by key on both sides."""
    functions = engine.functions
    keys = plan.to_variant().on()
    frames = []
    for side, below in enumerate(plan.inputs()):
        named = [engine.Expr(pair[side]).alias(_key(side, place)) for place, pair in enumerate(keys)]
        grouped = [functions.col(_key(side, place)) for place in range(len(keys))]
        frames.append(frame_of(below).select(*named).aggregate(grouped, [functions.count_star().alias(f"n{side}")]))
    left_on, right_on = ([_key(side, place) for place in range(len(keys))] for side in (0, 1))
    met = frames[0].join(frames[1], left_on=left_on, right_on=right_on, how="inner")
    product = functions.col("n0").cast(float) * functions.col("n1").cast(float)
    return met.aggregate([], [functions.sum(product).alias("pairs")])


def _key(side: int, place: int) -> str:
    return f"key{side}_{place}"
