"""The storing half of the appliance without its network: inbox, ingest, log, buffer, catalog, workers. All real."""

from __future__ import annotations

import time
from pathlib import Path

from edge_appliance.backlog import Backlog
from edge_appliance.buffer import Buffer
from edge_appliance.catalog import Catalog
from edge_appliance.committed import Committed
from edge_appliance.core.append import Appender
from edge_appliance.core.delivery import Delivery, DeliveryResult, Kind, Origin
from edge_appliance.core.pressure import Policy
from edge_appliance.core.schema import load_schema
from edge_appliance.dead_letters import DeadLetters
from edge_appliance.health import Health
from edge_appliance.inbox import Group, Inbox
from edge_appliance.ingest import Ingest
from edge_appliance.metrics import Metrics
from edge_appliance.paths import Paths
from edge_appliance.persist import Persister
from edge_appliance.recovery import Replay
from edge_appliance.relief import Relief
from edge_appliance.restart import settle
from edge_appliance.room import IngestSettings, Room
from edge_appliance.systemd import Station
from edge_appliance.wal import Wal

ORIGIN = Origin("edge", "ns", (), "mqtt", "devices/d1/lp", "devices/+/lp")
ARRIVAL_NS = 1_700_000_000_000_000_000
NODE = "gw-test"
DEADLINE_S = 10.0


class Core:
    """One life of the storing half over a data directory; `restart` begins the next one, as after SIGKILL."""

    def __init__(self, root: Path, *, persists: bool = False, **settings) -> None:
        self.root = root
        self.settings = settings
        self.persists = persists
        self.paths = Paths(root)
        self.paths.create()
        self.health = Health()
        self.metrics = Metrics()
        self.catalog = Catalog.open(self.paths.catalog, node=NODE)
        state = self.catalog.state
        self.schema = load_schema(state.definitions)
        self.buffer = Buffer(self.schema, state.parts, settings.get("buffer_limit_bytes", 2**30))
        self.appender = Appender(self.schema)
        self.inbox = Inbox(2**24, 0.0, self.metrics)
        self.dead_letters = DeadLetters(self.paths.dead_letters, 2**20, self.metrics)
        self.wal = Wal(
            self.paths.wal,
            node=NODE,
            incarnation=state.incarnation,
            sync=settings.get("sync", "group") != "never",
            clock_ns=time.time_ns,
        )
        self.persister = Persister(
            settings.get("workers", 1),
            self.paths.spool,
            self.paths.quarantine,
            self.catalog,
            self.buffer,
            self.wal,
            self.health,
            self.metrics,
            first_pause_s=0.01,
        )
        self.committed: list[Committed] = []
        self.sealed = []
        self.asides = []
        ingest_settings = IngestSettings(
            settings.get("segment_max_bytes", 2**26),
            settings.get("segment_max_age_s", 3600.0),
            settings.get("wal_max_bytes", 2**30),
            settings.get("min_free_bytes", 0),
            settings.get("sync", "group"),
            root,
        )
        relief = Relief(
            self.buffer,
            Policy(settings.get("horizon_s", 300.0), ingest_settings.segment_max_age_s, 1),
            0,
            self.metrics,
            self.health,
            time.monotonic(),
            available_bytes=lambda: 2**40,
        )
        self.ingest = Ingest(
            self.inbox,
            self.buffer,
            self.appender,
            self.dead_letters,
            self.health,
            self.metrics,
            Station("ingest", 60.0),
            Room(ingest_settings, self.buffer, relief, lambda: self.persister.failure),
            on_committed=self.committed.append,
            on_sealed=self._on_sealed,
            on_set_aside=self._on_set_aside,
            generation=lambda: self.catalog.state.generation,
        )
        self.arrival_ns = ARRIVAL_NS
        self.replayed = self._recover()

    def _on_sealed(self, segment) -> None:
        self.sealed.append(segment)
        if self.persists:
            self.persister.submit(segment)

    def _on_set_aside(self, aside) -> None:
        self.asides.append(aside)
        if self.persists:
            self.persister.submit_set_aside(aside)

    def _recover(self):
        files = self.wal.files()
        self.backlog = Backlog(self.buffer, self.persister, lambda: False)
        replay = Replay(
            self.wal,
            self.catalog,
            self.buffer,
            self.appender,
            self.health,
            self.metrics,
            quarantine_dir=self.paths.quarantine,
            backlog=self.backlog,
            is_stopping=lambda: False,
        )
        replayed = replay.run(files)
        assert replayed is not None
        self.is_settled = settle(self.wal, files, self.health)
        if self.persists:
            self.backlog.submit_all()
        state = self.catalog.state
        segment_id = max(state.max_segment_id, replayed.last_segment_id, self.wal.last_segment_id) + 1
        self.wal.start(segment_id, max(state.max_sequence, replayed.last_sequence) + 1, state.generation)
        self.ingest.begin(self.wal, replayed.recent)
        self.arrival_ns = max(self.arrival_ns, replayed.last_arrival_ns)
        return replayed

    def delivery(self, payload: bytes, *, origin=ORIGIN, packet_id=0, is_dup=False, on_done=None, **more) -> Delivery:
        """A QoS 1 delivery when it has a packet id."""
        self.arrival_ns += 1
        return Delivery(
            origin,
            payload,
            self.arrival_ns,
            qos=int(packet_id > 0),
            packet_id=packet_id,
            epoch=1,
            is_dup=is_dup,
            on_done=on_done,
            **more,
        )

    def commit(self, *deliveries: Delivery) -> None:
        """Commit one group, in this thread."""
        self.ingest.commit(Group(deliveries, "delay"))

    def write(self, *payloads: bytes) -> None:
        """Commit one group of QoS 1 deliveries."""
        self.commit(*(self.delivery(payload, packet_id=n + 1) for n, payload in enumerate(payloads)))

    def write_http(self, payload: bytes) -> list[DeliveryResult]:
        """Commit one HTTP write; the list gets its result."""
        results: list[DeliveryResult] = []
        self.commit(self.delivery(payload, on_done=results.append))
        for committed in self.committed:
            for on_done, result in committed.results:
                on_done(result)
        self.committed.clear()
        return results

    @property
    def acked(self) -> list[int]:
        """Packet ids acknowledged so far, in order."""
        return [packet_id for committed in self.committed for _, ids in committed.acks for packet_id in ids]

    def rows(self, database: str = "edge"):
        """All rows in memory as (table, tags, time, fields), in order of rank and position."""
        rows = []
        for view in self.buffer.view(database).values():
            for row_set in view.hot:
                rows += rows_of(row_set)
        return rows

    def abandon(self) -> None:
        """Leave everything as a SIGKILL would, but for the threads and file descriptors of this process."""
        self.persister.close()
        self.wal.close()
        self.dead_letters.close()
        self.catalog.close()

    def restart(self, **settings) -> Core:
        """Begin the next life over the same directory."""
        self.abandon()
        return Core(self.root, persists=settings.pop("persists", self.persists), **{**self.settings, **settings})


def rows_of(row_set):
    """Rows of one set as (table, tags, time, fields without nulls)."""
    rows = []
    for chunk in row_set.chunks:
        fields = {c.name: chunk.field(c.name, c.kind).to_pylist() for c in row_set.columns if c.kind is not Kind.TAG}
        for n, (ref, time_ns) in enumerate(zip(chunk.series.to_pylist(), chunk.time.to_pylist(), strict=True)):
            values = {name: column[n] for name, column in fields.items() if column[n] is not None}
            rows.append((row_set.table, dict(row_set.series.tags[ref]), time_ns, values))
    return rows
