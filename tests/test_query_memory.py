"""The guard over the memory of the process while queries run."""

from __future__ import annotations

import pytest

from edge_appliance.errors import QueryError
from edge_appliance.query_memory import MemoryGuard

MIB = 2**20


def guard(resident: list[int], available_mib: int = 1000) -> MemoryGuard:
    """A guard over a process of `resident` MiB."""
    return MemoryGuard(100 * MIB, resident=lambda: resident[0] * MIB, available=lambda: available_mib * MIB)


def test_growth_beyond_the_limit_ends_one_query() -> None:
    """The query that notices is ended as exhausted; the next one that looks goes on while memory comes back."""
    resident = [500]
    both = guard(resident)
    first, second = both.watch(), both.watch()
    first.begin()
    second.begin()
    resident[0] = 500 + 364
    first.check()
    resident[0] += 1
    with pytest.raises(QueryError) as caught:
        first.check()
    assert caught.value.fault == "exhausted"
    second.check()


def test_growth_before_a_query_does_not_count() -> None:
    """What ingest took before, or while the query waited for its turn, is not its fault."""
    resident = [500]
    watch = guard(resident).watch()
    resident[0] = 5000
    watch.check()
    watch.begin()
    watch.check()


def test_less_growth_is_too_much_where_nothing_is_left() -> None:
    """With hardly any memory available, growth by more than the pool ends a query."""
    resident = [500]
    watch = guard(resident, available_mib=10).watch()
    watch.begin()
    resident[0] = 600
    watch.check()
    resident[0] = 601
    with pytest.raises(QueryError, match="101 MiB"):
        watch.check()
