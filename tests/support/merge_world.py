"""Everything a merge touches, real but for the uploader: spool, store, cache, catalog, buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from part_makers import DAY_NS, write_rows

from edge_appliance.buffer import Buffer
from edge_appliance.catalog import Catalog
from edge_appliance.config_maintain import DatabaseSettings
from edge_appliance.core.catalog_state import part_identity
from edge_appliance.core.maintenance import MergePolicy
from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.core.schema import load_schema
from edge_appliance.core.segment import Segment
from edge_appliance.health import Health
from edge_appliance.merger import Merger
from edge_appliance.metrics import Metrics
from edge_appliance.part_cache import PartCache
from edge_appliance.part_files import PartFiles
from edge_appliance.part_trash import PartTrash
from edge_appliance.read_gate import ReadGate
from edge_appliance.retire import Retirer
from edge_appliance.store_directory import DirectoryStore
from edge_appliance.trusted_clock import TrustedClock

CLOSED_NS = DAY_NS + 5 * 86_400 * 10**9
OPEN_NS = DAY_NS + 3_600 * 10**9
OPEN_RANK = 1_000


class Outgoing:
    """The uploader's side: what waits, and what was sent before."""

    def __init__(self) -> None:
        self.waiting: list[Part] = []
        self.tried: list[Part] = []
        self.is_store_away = False

    def withdraw(self, parts: Sequence[Part]) -> list[Part] | None:
        """All or none."""
        if not all(part in self.waiting for part in parts):
            return None
        self.waiting = [part for part in self.waiting if part not in parts]
        return [part for part in parts if part in self.tried]

    def submit(self, parts: Iterable[Part]) -> None:
        """They wait."""
        self.waiting += parts


class MergeWorld:
    """Everything a merge touches, real but for the uploader."""

    def __init__(self, directory: Path) -> None:
        self.spool = directory / "spool"
        self.spool.mkdir(exist_ok=True)
        self.catalog = Catalog.open(directory / "catalog.db", node="gw-01")
        self.store = DirectoryStore(directory / "store")
        self.health, self.metrics = Health(), Metrics()
        self.buffer = Buffer(load_schema([]), [], 2**20)
        self.buffer.start(Segment(9, OPEN_RANK, 0.0))
        self.outgoing = Outgoing()
        self.gate = ReadGate()
        cache = PartCache(directory / "cache", 2**20, self.metrics)
        self.files = PartFiles(self.spool, self.store, cache, self.gate)
        self.trash = PartTrash(self.store, self.spool, cache, self.catalog, self.gate, self.metrics)
        self.wall_ns = CLOSED_NS
        self.monotonic_ns = 0
        self.clock = TrustedClock(lambda: True, lambda: self.wall_ns, lambda: self.monotonic_ns)

    def add(self, *parts: Part, is_stored: bool = False) -> list[Part]:
        """Commit parts of the spool; stored ones move to the store."""
        made = [replace(part, is_stored=is_stored) for part in parts]
        for part in made:
            if is_stored:
                self.store.put(self.spool / part_name(part), part_key(part))
                (self.spool / part_name(part)).unlink()
        self.catalog.commit_persist(made[0].rank_lo, made[0].rank_hi, [], made).result(10)
        self.buffer.persisted(0, made)
        self.outgoing.waiting += [part for part in made if not is_stored]
        return made

    def add_many(self, ranks: Iterable[int], *, is_stored: bool = False) -> list[Part]:
        """One part of one row for each rank."""
        return [
            self.add(write_rows(self.spool, r, [{"at": r, "site": "a", "v": r}]), is_stored=is_stored)[0] for r in ranks
        ]

    def close(self) -> None:
        """The end of this life."""
        self.catalog.close()

    def look_twice(self, retirer: Retirer) -> None:
        """Retention runs with a clock that counts: two looks agree."""
        for _ in range(2):
            retirer.run()
            self.monotonic_ns += 60 * 10**9
            self.wall_ns += 60 * 10**9

    def merger(self, **policy: Any) -> Merger:
        """A merger that does not wait long."""
        return Merger(
            MergePolicy(**policy),
            self.spool,
            self.files,
            self.catalog,
            self.buffer,
            self.outgoing,
            self.trash,
            self.health,
            self.metrics,
            first_pause_s=0.0,
        )

    def retirer(self, *databases: DatabaseSettings) -> Retirer:
        """Retention by the clock of the test."""
        return Retirer(
            databases,
            self.clock,
            self.files,
            self.catalog,
            self.buffer,
            self.outgoing,
            self.trash,
            self.health,
            self.metrics,
        )

    def values(self) -> list[int]:
        """Values of all rows that the catalog lists, read from the files."""
        return sorted(
            value
            for part in self.catalog.state.parts
            for value in pq.read_table(self.files.open_path(part)).column("v").to_pylist()
        )

    @property
    def ranks(self) -> list[tuple[int, int]]:
        """Intervals of the listed parts; the buffer must show the same parts."""
        listed = self.catalog.state.parts
        assert set(map(part_identity, listed)) == set(map(part_identity, self.buffer.parts()))
        return sorted((part.rank_lo, part.rank_hi) for part in listed)
