"""What the HTTP side needs from the rest of the appliance, and its limits. Nothing here knows a socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from edge_appliance.core.delivery import ArrivalClock, ColumnDefinition, Delivery
from edge_appliance.core.parts import Part
from edge_appliance.health import Health
from edge_appliance.metrics import Metrics


class WriterInbox(Protocol):
    """The inbox, as a writer sees it."""

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be put."""

    def put(self, deliveries: Sequence[Delivery], /) -> None:
        """Hand deliveries over; never blocks."""

    def withdraw(self, delivery: Delivery, /) -> bool:
        """Take a delivery back; False when the ingest thread already has it."""


class Answer(Protocol):
    """The result of one query."""

    @property
    def schema(self) -> pa.Schema:
        """Columns, also of an empty result."""

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """Rows in order."""


class Engine(Protocol):
    """Runs SQL; blocking, so only ever called in a worker thread."""

    def run(
        self, database: str, sql: str, params: Mapping[str, Any] | None = None, /, *, cancel: threading.Event
    ) -> Answer:
        """Run one statement; raises QueryError. Setting `cancel` ends it soon, where the engine can be interrupted."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a client can cost at most. Durations in seconds, sizes in bytes."""

    max_body_bytes: int = 16 * 2**20
    """Of one body, as sent and inflated. Above it a client gets 413 and halves its batch."""
    max_held_bytes: int = 0
    """Of all bodies that are being read, inflated or written; 0: four bodies of the largest size."""
    max_writes: int = 256
    """Writes with the log. A writer waits for one sync, so this is far above what a gateway's devices need at once."""
    max_queries: int = 2
    """Queries running at once: each holds a thread and a share of the query memory."""
    max_waiting_queries: int = 16
    """Queries waiting for one of those threads; beyond it a client is told to come back."""
    query_s: float = 35.0
    """For one running query. Above the engine's own limit: it is for a step of the engine that nothing interrupts."""
    withdraw_after_s: float = 5.0
    """A write not taken by then is taken back: above it, clients with a 10 s timeout would have sent it twice."""
    body_timeout_s: float = 60.0
    """For one whole body. Lower cuts off slow uplinks, higher lets silent clients hold memory."""
    send_timeout_s: float = 30.0
    """For one piece of an answer: a reader that stalls longer is cut off, its result takes memory."""

    @property
    def held_bytes(self) -> int:
        """The limit that `max_held_bytes` stands for."""
        return self.max_held_bytes or 4 * self.max_body_bytes


def _no_details() -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True)
class HttpDependencies:
    """The parts of the appliance that the HTTP side reads or calls, all of them on the event loop but `sql`."""

    inbox: WriterInbox
    clock: ArrivalClock
    sql: Engine
    databases: Callable[[], Sequence[str]]
    encode_parquet: Callable[[pa.Schema, Sequence[pa.RecordBatch]], bytes]
    """One Parquet file of a whole result; called in a worker thread."""
    health: Health
    metrics: Metrics
    version: str
    node: str
    started_ns: int
    token: str | None = field(default=None, repr=False)
    """What clients must show; None switches authentication off."""
    status_details: Callable[[], Mapping[str, object]] = _no_details
    """Further facts for `status`, such as the budgets; plain values only."""
    table_names: Callable[[str], Sequence[str]] = lambda database: ()
    columns: Callable[[str, str], Sequence[ColumnDefinition] | None] = lambda database, table: None
    parts: Callable[[], Sequence[Part]] = tuple
    maintenance: Callable[[], Mapping[str, object]] = _no_details
    """What the next run would do, as plain data; called in a worker thread, as `parts` is."""
    limits: HttpLimits = HttpLimits()
    now_ns: Callable[[], int] = time.time_ns
