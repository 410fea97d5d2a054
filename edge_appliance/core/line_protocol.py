r"""Line protocol: from the bytes of a delivery to rows and reject records. It raises nothing on any bytes.

    measurement[,tag=value …] SP+ key=value[,key=value …] [SP+ time]

Reading is done twice over. `_read_line` and what it calls is the specification: it knows every rule and says what
is wrong and where. `_ordinary` reads what nearly every line is: a head that was seen before, fields without
escapes, a plain time. It accepts a line only when the full reader would give the same row, and leaves all others to it.

A rejected line has one reason, the first in this order: a NUL; syntax from left to right, where a word is judged
when it has been read to its end; names; no field left; the time. Types and limits of tables are the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from edge_appliance.core.delivery import Kind, LineError, Precision, Reason, Tags
from edge_appliance.core.line_split import (
    clean,
    invalid_at,
    mask,
    sample,
    split,
    trim,
    unescape_key,
    unescape_measurement,
    unescape_string,
)
from edge_appliance.core.line_values import (
    INT64_MAX,
    INT64_MIN,
    NS_PER_UNIT,
    Form,
    is_time,
    ns_per_unit,
    read_word,
    time_ns,
)

PARSER_VERSION: Final = 1
"""Noted in the log. A later parser reads every line that an earlier one accepted to the same row."""

Field = tuple[str, Kind, float | int | bool | str]


@dataclass(frozen=True, slots=True)
class Limits:
    """The longest names, values and payloads that are accepted, in bytes of UTF-8 after unescaping."""

    name_bytes: int = 1 << 16
    tag_value_bytes: int = 1 << 16
    string_bytes: int = 1 << 20
    payload_bytes: int = 1 << 24

    @property
    def harmless_line_bytes(self) -> int:
        """Length up to which a line cannot break a limit."""
        return min(self.name_bytes, self.tag_value_bytes, self.string_bytes)


@dataclass(frozen=True, slots=True)
class Head:
    """Measurement and tags of a line, the route's tags among them; a tag of the line beats one of the route."""

    measurement: str
    tags: Tags
    collisions: int
    """Tags of the line that beat one of the route."""
    tag_names: frozenset[str]


class Line(NamedTuple):
    """An accepted line."""

    head: Head
    raw_head: bytes
    """The line up to its first free space: the key of `Context.heads`."""
    fields: list[Field]
    time_ns: int
    number: int
    """Physical line on which it starts, from 1."""
    column: int
    """Where in that physical line it starts, in bytes from 1."""
    span: bytes
    """The line as it goes to the log: without blanks around it and without the CR at its end."""


class Parsed(NamedTuple):
    """What became of a payload: each line that is neither blank nor a comment is in one of the two lists."""

    lines: list[Line]
    errors: list[LineError]
    sanitised: bool
    """A byte-order mark or NULs at the end were removed; lines and columns are counted without them."""
    non_finite: int
    """Fields that were nan or inf words, as far as lines were read."""


@dataclass(slots=True)
class Context:
    """What the result depends on besides the bytes."""

    precision: Precision
    arrival_ns: int
    route_tags: Tags = ()
    heads: Mapping[bytes, Head] = field(default_factory=dict)
    """Known heads under these route tags, from accepted lines; only read here."""
    limits: Limits | None = Limits()
    min_time_ns: int | None = None
    """The first stated time that is accepted."""
    max_time_ns: int | None = None
    """The last stated time that is accepted."""


class _Fault(NamedTuple):
    """Why a line is rejected, and at which of its bytes."""

    reason: Reason
    at: int
    message: str


class _Tag(NamedTuple):
    key: str
    value: str
    key_at: int
    value_at: int


class _Field(NamedTuple):
    key: str
    kind: Kind | None
    """None: no value (nan, inf); the key takes part in all checks of names, then the field is dropped."""
    value: float | int | bool | str
    key_at: int
    value_at: int


class _HeadText(NamedTuple):
    measurement: str
    tags: list[_Tag]


class _FieldList(NamedTuple):
    fields: list[_Field]
    end: int
