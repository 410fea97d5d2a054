"""Retention: parts whose rows have had their time, or that no longer fit, leave the catalog; their files follow.

Only by a clock that is known to be right and steady, only whole dates, and never by metadata that contradicts itself:
what the catalog says about a part is compared with what its file says, where that is at hand.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from edge_appliance.catalog import Catalog
from edge_appliance.config_maintain import DatabaseSettings
from edge_appliance.core.interval import MIN_NS
from edge_appliance.core.maintenance import Retention, plan_eviction, plan_retention
from edge_appliance.core.parts import Part, part_key, set_key
from edge_appliance.errors import EdgeError, StoreError
from edge_appliance.health import Health
from edge_appliance.merger import Outgoing, PartOwner
from edge_appliance.metrics import Metrics
from edge_appliance.parquet_file import read_footer
from edge_appliance.part_trash import PartTrash
from edge_appliance.trusted_clock import TrustedClock

_log = logging.getLogger(__name__)


class PartPaths(Protocol):
    """Where local copies are."""

    def open_path(self, part: Part) -> Path:
        """Path of a whole local copy; raises StoreError when there is none."""


def visible_from(databases: Sequence[DatabaseSettings], clock: TrustedClock, database: str) -> int:
    """The oldest time of which rows are shown."""
    now_ns = clock.now_ns
    retention_ns = next((d.retention_ns for d in databases if d.name == database), None)
    return MIN_NS if now_ns is None or retention_ns is None else max(MIN_NS, now_ns - retention_ns)


class Retirer:
    """Applies retention. Used by one thread."""

    def __init__(
        self,
        databases: Sequence[DatabaseSettings],
        clock: TrustedClock,
        files: PartPaths,
        catalog: Catalog,
        buffer: PartOwner,
        outgoing: Outgoing,
        trash: PartTrash,
        health: Health,
        metrics: Metrics,
    ) -> None:
        self._databases = databases
        self._clock = clock
        self._files = files
        self._catalog = catalog
        self._buffer = buffer
        self._outgoing = outgoing
        self._trash = trash
        self._health = health
        self._metrics = metrics

    def run(self) -> None:
        """Let go what is due."""
        self._clock.look()
        self._tell_clock()
        self._retire(self._by_age(), "are older than the retention")
        self._retire(self._by_bytes(), "are beyond max_bytes of their database")

    def proposed(self) -> dict[str, object]:
        """What would go now, as plain data. Callable from any thread."""
        parts = [*self._by_age().parts, *self._by_bytes().parts]
        dates = Counter[tuple[str, str, str]]()
        for part in dict.fromkeys(parts):
            dates[part.database, part.table, part.date.isoformat()] += part.rows
        rules = any(d.retention_ns for d in self._databases)
        return {
            "clock": "right" if self._clock.is_steady else "not known to be right: nothing expires" if rules else "",
            "expired": [
                {"database": database, "table": table, "date": date, "rows": rows}
                for (database, table, date), rows in sorted(dates.items())
            ],
        }

    def _by_age(self) -> Retention:
        if not self._clock.is_steady:
            return Retention(())
        from_ns = {d.name: visible_from(self._databases, self._clock, d.name) for d in self._databases}
        below_rank = self._buffer.unpersisted_from
        return plan_retention(self._catalog.state.parts, from_ns, below_rank=below_rank)

    def _by_bytes(self) -> Retention:
        limits = {d.name: d.max_bytes for d in self._databases if d.max_bytes is not None}
        below_rank = self._buffer.unpersisted_from
        return plan_eviction(self._catalog.state.parts, limits, below_rank=below_rank) if limits else Retention(())

    def _retire(self, plan: Retention, reason: str) -> None:
        parts = self._trustworthy(plan)
        waiting = [part for part in parts if not part.is_stored]
        tried = self._outgoing.withdraw(waiting)
        if tried is None:  # some are on their way; those that the store has can go
            parts, tried = [part for part in parts if part.is_stored], []
            parts = _whole_sets(parts)
        if not parts:
            return
        gone = [part for part in parts if part.is_stored or part in tried]
        try:
            self._catalog.replace_parts(parts, [], gone).result()
        except EdgeError:
            self._outgoing.submit(waiting)
            raise
        self._buffer.swap_parts(parts, [])
        self._trash.throw(parts)
        rows = sum(part.rows for part in parts)
        self._metrics.expired_parts.add(len(parts))
        self._metrics.expired_rows.add(rows)
        dates = sorted({part.date for part in parts})
        _log.info("%d rows in %d parts from %s to %s %s and go", rows, len(parts), dates[0], dates[-1], reason)

    def _trustworthy(self, plan: Retention) -> list[Part]:
        """The parts of `plan` without the sets of those whose catalog row is contradicted."""
        bad = [*plan.contradictory, *(part for part in plan.parts if self._is_contradicted(part))]
        if bad:
            self._health.degrade(
                "retention", f"{len(bad)} parts say contradictory things and are kept, first: {part_key(bad[0])}"
            )
        sets = set(map(set_key, bad))
        return [part for part in plan.parts if set_key(part) not in sets]

    def _is_contradicted(self, part: Part) -> bool:
        try:
            own = read_footer(self._files.open_path(part)).part
        except StoreError:
            return False  # nowhere on this host
        except EdgeError:
            return True
        return (own.database, own.table, own.date, own.max_time_ns, own.rows) != (
            part.database,
            part.table,
            part.date,
            part.max_time_ns,
            part.rows,
        )

    def _tell_clock(self) -> None:
        if any(d.retention_ns for d in self._databases) and self._clock.now_ns is None:
            self._health.note("retention", "nothing expires while the clock is not known to be right")
        else:
            self._health.note("retention", "")


def _whole_sets(parts: Sequence[Part]) -> list[Part]:
    """Those of which every slice is among them."""
    numbers: dict[object, int] = {}
    for part in parts:
        numbers[set_key(part)] = numbers.get(set_key(part), 0) + 1
    return [part for part in parts if numbers[set_key(part)] == part.slices]
