"""The nouns that travel from the socket to the disk, and the closed list of reject reasons."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

Precision = Literal["auto", "ns", "us", "ms", "s"]
Source = Literal["mqtt", "http"]
Tags = tuple[tuple[str, str], ...]
"""Tag pairs sorted by key; a key occurs once."""

CLOCK_UNSET_BEFORE_NS = 1_735_689_600 * 1_000_000_000
"""2025-01-01, before the first release: a host clock below it has not been set yet."""

_BACKWARD_STEP_NS = 1_000_000_000


class Kind(enum.IntEnum):
    """What a column holds. The numbers are stored in the log and the catalog: never renumber."""

    TAG = 0
    FLOAT = 1
    INT = 2
    UINT = 3
    BOOL = 4
    STRING = 5


class ColumnDefinition(NamedTuple):
    """One column of a table, fixed for the life of the table."""

    name: str
    kind: Kind


class TableDefinition(NamedTuple):
    """Columns of one table: all of them, or those that a group added."""

    database: str
    table: str
    columns: tuple[ColumnDefinition, ...]


TableKey = tuple[str, str]
"""Database and table."""

RESERVED_COLUMNS = frozenset({"time", "time_ns"})
RESERVED_PREFIX = "_edge"
"""Names that the store keeps for itself, as tags and fields; the prefix also as measurements."""


class Reason(enum.StrEnum):
    """Why a line or a whole delivery was rejected: a closed list, stored and exported as text."""

    PAYLOAD_TOO_LARGE = "payload_too_large"
    INVALID_UTF8 = "invalid_utf8"
    NUL_BYTE = "nul_byte"
    UNEXPECTED_TAB = "unexpected_tab"
    UNEXPECTED_COMMA = "unexpected_comma"
    TRAILING_BACKSLASH = "trailing_backslash"
    MISSING_MEASUREMENT = "missing_measurement"
    MISSING_TAG_KEY = "missing_tag_key"
    MISSING_TAG_VALUE = "missing_tag_value"
    MISSING_FIELDS = "missing_fields"
    MISSING_FIELD_KEY = "missing_field_key"
    MISSING_FIELD_VALUE = "missing_field_value"
    BAD_FIELD_VALUE = "bad_field_value"
    UNTERMINATED_STRING = "unterminated_string"
    NUMBER_OUT_OF_RANGE = "number_out_of_range"
    NON_FINITE = "non_finite"
    BAD_TIMESTAMP = "bad_timestamp"
    TRAILING_TEXT = "trailing_text"
    RESERVED_NAME = "reserved_name"
    DUPLICATE_TAG = "duplicate_tag"
    DUPLICATE_FIELD = "duplicate_field"
    TAG_FIELD_COLLISION = "tag_field_collision"
    NAME_TOO_LONG = "name_too_long"
    VALUE_TOO_LONG = "value_too_long"
    TIME_OUT_OF_RANGE = "time_out_of_range"
    TYPE_CONFLICT = "type_conflict"
    TOO_MANY_COLUMNS = "too_many_columns"
    TOO_MANY_TABLES = "too_many_tables"
    # Of the transport, not of the line protocol:
    NO_ROUTE = "no_route"
    BAD_COMPRESSION = "bad_compression"
    # Of ours: a fault of the program that these bytes bring out.
    INTERNAL_ERROR = "internal_error"


class LineError(NamedTuple):
    """One rejected line: `line` is physical and counts from 1 (0: the payload as a whole)."""

    line: int
    column: int
    reason: Reason
    message: str
    sample: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """What is decided about a delivery before its bytes are read.

    Compared by identity: the same topic or HTTP target shares one object, so that per-origin work is done once.
    """

    database: str
    precision: Precision
    tags: Tags
    source: Source
    label: str
    """MQTT topic or client address, for dead letters and the journal."""
    route: str
    """Route template or request path, for counters."""
    min_time_ns: int | None = None
    max_future_ns: int | None = None
    label_prefix: bytes = field(init=False, repr=False)
    """The label with its length, as it goes before a payload in a delivery key."""

    def __post_init__(self) -> None:
        label = self.label.encode(errors="surrogatepass")
        object.__setattr__(self, "label_prefix", b"%d:%b" % (len(label), label))


DIGEST_BYTES = 16


class DeliveryKey(NamedTuple):
    """What tells a redelivered QoS 1 message from a new one: packet id, 128-bit hash of topic and payload."""

    packet_id: int
    digest: bytes


MAX_ERRORS: Final = 1_000
"""Rejected lines of a delivery that are kept one by one; further ones are counted by reason."""


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """What became of a delivery. `refused` is set when nothing of it was taken for a reason of ours."""

    rows: int
    errors: Sequence[LineError] = ()
    """By line; at most MAX_ERRORS, the first ones."""
    refused: str = ""
    further: Mapping[Reason, int] = field(default_factory=dict)
    """Number of rejected lines beyond those, by reason."""

    @property
    def rejected(self) -> int:
        """Number of rejected lines."""
        return len(self.errors) + sum(self.further.values())


def result_of(rows: int, errors: Sequence[LineError]) -> DeliveryResult:
    """The result of a delivery with all its rejected lines, in any order."""
    ordered = sorted(errors)
    return DeliveryResult(rows, ordered[:MAX_ERRORS], further=Counter(error.reason for error in ordered[MAX_ERRORS:]))


@dataclass(slots=True, eq=False)
class Delivery:
    """One MQTT message or HTTP write body on its way to the log."""

    origin: Origin
    payload: bytes
    arrival_ns: int
    clock_unset: bool = False
    qos: int = 0
    packet_id: int = 0
    epoch: int = 0
    """Connection that delivered it: a packet id means something only there."""
    is_dup: bool = False
    accept_partial: bool = True
    reject: LineError | None = None
    """Set when the transport already knows that nothing of it can be stored (no route, too large)."""
    on_done: Callable[[DeliveryResult], None] | None = field(default=None, repr=False)
    """HTTP only; called on the event loop."""


Acks = tuple[int, list[int]]
"""An epoch and packet ids in receive order whose PUBACKs may be sent: only on the connection with this epoch."""


class ArrivalClock:
    """Unique arrival times: max(clock, last + 1), following the clock after a step back of a second or more.

    While the host clock is unset, times continue from the last one seen and are flagged.
    """

    def __init__(self, last_ns: int = 0) -> None:
        self.last_ns = last_ns

    def stamp(self, now_ns: int, count: int = 1) -> tuple[int, bool]:
        """Give `count` deliveries their times for the host clock reading `now_ns`.

        Returns the time of the first, the others follow by a nanosecond each; and whether the clock is unset.
        """
        last_ns = self.last_ns
        is_unset = now_ns < CLOCK_UNSET_BEFORE_NS
        if is_unset or last_ns - _BACKWARD_STEP_NS < now_ns <= last_ns:
            arrival_ns = last_ns + 1 if last_ns else now_ns
        else:
            arrival_ns = now_ns
        self.last_ns = arrival_ns + count - 1
        return arrival_ns, is_unset
