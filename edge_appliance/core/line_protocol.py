"""Line protocol: from the bytes of a delivery to rows and reject records. It raises nothing on any bytes.

`line_grammar` and `_Reader` know every rule and say what is wrong and where. Before them `line_ordinary` takes what
nearly every line is: a head that was seen before, fields without escapes, a plain time. A line is accepted there only
if the full reader would give the same row; all others are left to it.

A rejected line has one reason, the first in this order: a NUL; syntax from left to right; names; no field left;
the time. What depends on tables, such as column types, is decided by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from edge_appliance.core.delivery import Kind, LineError, Precision, Reason, Tags
from edge_appliance.core.line_grammar import (
    Fault,
    FieldText,
    HeadText,
    read_fields,
    read_head,
    read_line,
    show,
)
from edge_appliance.core.line_names import DEFAULT_LIMITS, Limits, Reject, check_names
from edge_appliance.core.line_ordinary import Field, Shape, Shapes, Value
from edge_appliance.core.line_ordinary import read_fields as read_ordinary_fields
from edge_appliance.core.line_split import SAMPLE_BYTES, clean, invalid_at, mask, sample, split, trim
from edge_appliance.core.line_values import INT64_MAX, INT64_MIN, NS_PER_UNIT, ns_per_unit, time_meaning, time_ns

PARSER_VERSION: Final = 1
"""Noted in the log. A later parser reads every line that an earlier one accepted to the same row."""

_KINDS: Final[Mapping[str, Kind]] = {
    "float": Kind.FLOAT,
    "int": Kind.INT,
    "uint": Kind.UINT,
    "bool": Kind.BOOL,
    "string": Kind.STRING,
}

_Row = tuple[Shape, Sequence[Value], int]
"""Shape, values and time of an accepted line."""

_NO_LIMIT: Final = 1 << 62


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
    shape: Shape
    """Names and kinds of its fields."""
    values: Sequence[Value]
    """Their values, in the order of the shape."""
    time_ns: int
    number: int
    """Physical line on which it starts, from 1."""
    column: int
    """Where in that physical line it starts, in bytes from 1."""
    span: bytes
    """The line as it goes to the log: without blanks around it and without the CR at its end."""

    @property
    def fields(self) -> list[Field]:
        """Its fields as (name, kind, value)."""
        return list(zip(self.shape.names, self.shape.kinds, self.values, strict=True))


class Parsed(NamedTuple):
    """What became of a payload: each line that is neither blank nor a comment is in one of the two lists."""

    lines: list[Line]
    errors: list[LineError]
    sanitised: bool
    """A byte-order mark or NULs at the end were removed; lines and columns are counted without them."""
    non_finite: int
    """Fields that were nan or inf words, as far as lines were read."""


class KnownHeads(Protocol):
    """What finds a head by its raw bytes."""

    def get(self, key: bytes, /) -> Head | None:
        """The head, if it is known."""


@dataclass(slots=True)
class Context:
    """What the result depends on besides the bytes."""

    precision: Precision
    arrival_ns: int
    route_tags: Tags = ()
    heads: KnownHeads = field(default_factory=dict[bytes, Head])
    """Known heads under these route tags, from accepted lines; only read here."""
    limits: Limits | None = DEFAULT_LIMITS
    min_time_ns: int | None = None
    """The first stated time that is accepted."""
    max_time_ns: int | None = None
    """The last stated time that is accepted."""
    shapes: Shapes = field(default_factory=Shapes, repr=False, compare=False)
    """Shapes of lines that were read, shared by all contexts of a caller."""
    readers: dict[bool, _Reader] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What reads deliveries under this context, by whether they are replayed: made once, since most are one line."""


def parse(payload: bytes, context: Context) -> Parsed:
    """Read one delivery."""
    limits = context.limits
    if limits is not None and len(payload) > limits.payload_bytes:
        message = f"the payload has {len(payload)} bytes, the limit is {limits.payload_bytes}"
        return Parsed([], [LineError(0, 0, Reason.PAYLOAD_TOO_LARGE, message, sample(payload))], False, 0)
    text = clean(payload)
    bad_at = invalid_at(text)
    if bad_at >= 0:
        return Parsed([], [_invalid_utf8(text, bad_at)], len(text) != len(payload), 0)
    reader = _reader(context, is_replay=False)
    reader.read(split(text))
    return reader.finish(is_sanitised=len(text) != len(payload))


def parse_alike(payload: bytes, context: Context) -> tuple[Head, Shape, Sequence[Value], int] | None:
    """Head, shape, values and time of a delivery that is one line like one before it; None when `parse` must read it.

    Nearly every message of a device is that, and `parse` spends more on the delivery than on its line.
    """
    raw_head, _, rest = payload.partition(b" ")
    head = context.heads.get(raw_head)
    if head is None or not payload.isascii():
        return None
    reader = _reader(context, is_replay=False)
    if len(payload) > reader.harmless_bytes:
        return None
    row = reader.alike(head, rest.decode())
    return None if row is None else (head, *row)


def parse_spans(spans: Sequence[bytes], context: Context) -> Parsed:
    """Read lines that were accepted before, each as its `Line.span`: grammar only, whatever limits hold now.

    A line's number is its place among the spans.
    """
    reader = _reader(context, is_replay=True)
    if invalid_at(b"\n".join(spans)) < 0:
        reader.read(enumerate(spans, 1))
    else:
        for number, span in enumerate(spans, 1):
            bad_at = invalid_at(span)
            if bad_at < 0:
                reader.read([(number, span)])
            else:
                reader.errors.append(_invalid_utf8(span, bad_at)._replace(line=number, column=bad_at + 1))
    return reader.finish(is_sanitised=False)


def locate_field(span: bytes, name: str) -> int:
    """Offset of the value of the named field in an accepted line, or 0."""
    masked = mask(span)
    at = masked.find(b" ")
    texts: list[FieldText] = []
    if at >= 0 and invalid_at(span) < 0:
        read_fields(span, masked, at, texts)
    return next((text.value_at for text in texts if text.key == name), 0)


def _invalid_utf8(text: bytes, at: int) -> LineError:
    start = text.rfind(b"\n", 0, at) + 1
    message = f"byte 0x{text[at]:02x} is not valid UTF-8"
    line = text[start : start + SAMPLE_BYTES + 1].partition(b"\n")[0]
    return LineError(text.count(b"\n", 0, at) + 1, at - start + 1, Reason.INVALID_UTF8, message, sample(line))


def _reader(context: Context, *, is_replay: bool) -> _Reader:
    reader = context.readers.get(is_replay)
    if reader is None:
        reader = context.readers[is_replay] = _Reader(context, is_replay=is_replay)
    reader.begin()
    return reader


class _Reader:
    """Reads the lines of one delivery after the other, in their order."""

    def __init__(self, context: Context, *, is_replay: bool) -> None:
        self.context = context
        self.limits = None if is_replay else context.limits
        self.harmless_bytes = _NO_LIMIT if self.limits is None else self.limits.harmless_line_bytes
        self.is_replay = is_replay
        self.unit_ns = NS_PER_UNIT.get(context.precision, 0)
        """0: by magnitude."""
        self.heads: dict[bytes, Head] = {}
        """Heads that were new in this delivery."""
        self.lines: list[Line] = []
        self.errors: list[LineError] = []
        self.non_finite = 0
        self.begin()

    def finish(self, *, is_sanitised: bool) -> Parsed:
        """Give the delivery's result away: a reader that waits for the next one must not hold on to it."""
        parsed = Parsed(self.lines, self.errors, is_sanitised, self.non_finite)
        self.heads, self.lines, self.errors, self.non_finite = {}, [], [], 0
        return parsed

    def begin(self) -> None:
        """Begin with the next delivery, under the times that the context has now."""
        self.first_ns, self.last_ns = INT64_MIN, INT64_MAX
        context = self.context
        if not self.is_replay and context.min_time_ns is not None:
            self.first_ns = max(INT64_MIN, context.min_time_ns)
        if not self.is_replay and context.max_time_ns is not None:
            self.last_ns = min(INT64_MAX, context.max_time_ns)

    def read(self, numbered: Iterable[tuple[int, bytes]]) -> None:
        """Read lines, each with its number."""
        known, new = self.context.heads, self.heads
        accept = self.lines.append
        for number, raw in numbered:
            raw_head, _, rest = raw.partition(b" ")
            # No head ends in a backslash, so a head that is known does end here.
            head = known.get(raw_head) or new.get(raw_head)
            if head is not None and len(raw) <= self.harmless_bytes:
                text = rest.decode()
                row = self.alike(head, text) or self._ordinary(head, text)
                if row is not None:
                    accept(Line(head, raw_head, *row, number, 1, raw))
                    continue
            self._read_line(number, raw)

    def alike(self, head: Head, rest: str) -> _Row | None:
        """The row of a line that has the fields of an ordinary one before it, or None."""
        shape = self.context.shapes.latest.get((head.measurement, rest[: rest.find("=")]))
        if shape is None or shape.match is None:
            return None
        match = shape.match(rest)
        if match is None or not shape.name_set.isdisjoint(head.tag_names):
            return None
        words = match.groups()
        time_word = words[-1]
        stated_ns = self._stated_ns(time_word) if time_word is not None else self.context.arrival_ns
        if stated_ns is None:
            return None
        return shape, shape.read(words[:-1]), stated_ns

    def _ordinary(self, head: Head, rest: str) -> _Row | None:
        """Fields and time of a line behind a good head, or None when the full reader must look at it."""
        body, space, word = rest.rpartition(" ")
        stated_ns: int | None = self.context.arrival_ns
        if space and word.isdigit() and word.isascii() and len(word) <= 19:
            stated_ns = self._stated_ns(word)
        else:
            body = rest
        fields = read_ordinary_fields(body)
        if fields is None or stated_ns is None:
            return None
        names = {name for name, _, _ in fields}
        if len(names) < len(fields) or not names.isdisjoint(head.tag_names):
            return None
        return self.context.shapes.of_ordinary(head.measurement, fields), [value for _, _, value in fields], stated_ns

    def _stated_ns(self, digits: str) -> int | None:
        """The time that at most 19 digits state, or None when it is out of range."""
        stated = int(digits)
        stated_ns = stated * (self.unit_ns or ns_per_unit(stated, "auto"))
        return stated_ns if self.first_ns <= stated_ns <= self.last_ns else None

    def _read_line(self, number: int, raw: bytes) -> None:
        """Read one line in full."""
        line, lead = (raw, 0) if self.is_replay else trim(raw)
        if not self.is_replay and (not line or line.startswith(b"#")):
            return
        row = self._row(line)
        if isinstance(row, Line):
            self.lines.append(row._replace(number=number, column=lead + 1))
        else:
            reason, at, message = row
            self.errors.append(LineError(number, lead + at + 1, Reason(reason), message, sample(line)))

    def _row(self, line: bytes) -> Line | Reject:
        """The row of a trimmed line, its place left open; or the first reason against it."""
        nul_at = line.find(b"\0")
        if nul_at >= 0:
            return Reason.NUL_BYTE, nul_at, "a NUL byte stands inside the line"
        masked = mask(line)
        head_end = masked.find(b" ")
        head_end = len(line) if head_end < 0 else head_end
        head = self._good_head(line, masked, head_end)
        if head is not None and len(line) <= self.harmless_bytes:
            row = self._ordinary(head, line[head_end + 1 :].decode())
            if row is not None:
                return self._accept(line, head_end, head, row)
        return self._full_row(line, masked, head_end)

    def _full_row(self, line: bytes, masked: bytes, head_end: int) -> Line | Reject:
        """The row of a line without a NUL, read by all the rules; or the first reason against it."""
        texts: list[FieldText] = []
        parts = read_line(line, masked, head_end, texts)
        fields = [(text.key, _KINDS[text.form], text.value) for text in texts if text.form != "no_value"]
        self.non_finite += len(texts) - len(fields)
        if isinstance(parts, Fault):
            return parts
        head_text, time_text = parts
        head = self._head(line[:head_end], head_text)
        if not self.is_replay and (reject := check_names(head_text, head.tag_names, texts, self.limits)):
            return reject
        if not fields:
            return Reason.NON_FINITE, texts[0].value_at, "every field of the line is nan or inf"
        word = time_text.word
        stated_ns = time_ns(word, self.context.precision) if word else self.context.arrival_ns
        if stated_ns is None:
            message = f"the time {show(word)} does not fit into 64 bits of nanoseconds"
            return Reason.TIME_OUT_OF_RANGE, time_text.at, message
        if word and not self.first_ns <= stated_ns <= self.last_ns:
            border = "before min_time" if stated_ns < self.first_ns else "further ahead than max_future"
            meaning = time_meaning(stated_ns, self.context.precision)
            return Reason.TIME_OUT_OF_RANGE, time_text.at, f"the time {show(word)} {meaning}: {border} of the route"
        shape = self.context.shapes.of(fields)
        return self._accept(line, head_end, head, (shape, [value for _, _, value in fields], stated_ns))

    def _accept(self, line: bytes, head_end: int, head: Head, row: _Row) -> Line:
        """The accepted line, its place left open; its head counts as seen from now on."""
        raw_head = line[:head_end]
        self.heads[raw_head] = head
        return Line(head, raw_head, *row, 0, 0, line)

    def _good_head(self, line: bytes, masked: bytes, head_end: int) -> Head | None:
        """The head of a line when it was seen before or nothing can be said against it."""
        raw_head = line[:head_end]
        head = self._seen(raw_head)
        if head is not None:
            return head
        text = read_head(line, masked, head_end)
        if isinstance(text, Fault) or (not self.is_replay and check_names(text, frozenset(), (), self.limits)):
            return None
        return self._head(raw_head, text)

    def _seen(self, raw_head: bytes) -> Head | None:
        return self.context.heads.get(raw_head) or self.heads.get(raw_head)

    def _head(self, raw_head: bytes, text: HeadText) -> Head:
        head = self._seen(raw_head)
        if head is not None:
            return head
        own = {tag.key: tag.value for tag in text.tags}
        tags = {**dict(self.context.route_tags), **own}
        collisions = len(self.context.route_tags) + len(own) - len(tags)
        return Head(text.measurement, tuple(sorted(tags.items())), collisions, frozenset(tags))
