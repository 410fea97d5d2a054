"""Line protocol: from the bytes of a delivery to rows and reject records. It raises nothing on any bytes.

Reading is done twice over. `line_grammar` and `_Reader` know every rule and say what is wrong and where. Before
them `_ordinary` takes what nearly every line is: a head that was seen before, fields without escapes, a plain time.
It accepts a line only if the full reader would give the same row, and leaves all others to it.

A rejected line has one reason, the first in this order: a NUL; syntax from left to right; names; no field left;
the time. What depends on tables, such as column types, is decided by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

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
from edge_appliance.core.line_split import SAMPLE_BYTES, clean, invalid_at, mask, sample, split, trim, unescape_string
from edge_appliance.core.line_values import INT64_MAX, INT64_MIN, ns_per_unit, time_meaning, time_ns

PARSER_VERSION: Final = 1
"""Noted in the log. A later parser reads every line that an earlier one accepted to the same row."""

RESERVED_PREFIX: Final = "_edge"
"""Of names the store keeps for itself: measurements, tags and fields."""

RESERVED_COLUMNS: Final = frozenset({"time", "time_ns"})

Field = tuple[str, Kind, float | int | bool | str]

_KINDS: Final[Mapping[str, Kind]] = {
    "float": Kind.FLOAT,
    "int": Kind.INT,
    "uint": Kind.UINT,
    "bool": Kind.BOOL,
    "string": Kind.STRING,
}

_Reject = tuple[str, int, str]
"""Why a line is rejected, at which of its bytes, and the message; a `Fault` is one."""

_NO_LIMIT: Final = 1 << 62

_FLOAT: Final = Kind.FLOAT
_INT: Final = Kind.INT
# One field of an ordinary line and the comma behind it. Digits are so few that no number can leave its range, names
# are not reserved. The look-behind lets a search that finds nothing pass over a long word once, not once per byte.
_find_ordinary: Final = re.compile(
    r"""(?:(?<=,)|\A)(
        (?!time=|time_ns=|_edge) ([^,=\ \t\0\\]+) =
        (?: (-?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,2})?)
        |   (-?[0-9]{1,18})i
        |   ([0-9]{1,18})u
        |   ([tTfF]|true|True|TRUE|false|False|FALSE)
        |   "([^"\\\0]*(?:\\[^\n\0][^"\\\0]*){0,100})"
        )
        (?:,(?!\Z)|\Z)
    )""",
    re.VERBOSE,
).findall


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
    return Parsed(reader.lines, reader.errors, len(text) != len(payload), reader.non_finite)


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
    return Parsed(reader.lines, reader.errors, False, reader.non_finite)


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
        self.begin()

    def begin(self) -> None:
        """Begin with the next delivery, under the times that the context has now."""
        self.heads: dict[bytes, Head] = {}
        """Heads that were new in this delivery."""
        self.lines: list[Line] = []
        self.errors: list[LineError] = []
        self.non_finite = 0
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
                row = self._ordinary(rest.decode(), head.tag_names)
                if row is not None:
                    accept(Line(head, raw_head, row[0], row[1], number, 1, raw))
                    continue
            self._read_line(number, raw)

    def _ordinary(self, rest: str, tag_names: frozenset[str]) -> tuple[list[Field], int] | None:
        """Fields and time of a line behind a good head, or None when the full reader must look at it."""
        body, space, word = rest.rpartition(" ")
        if space and word.isdigit() and word.isascii() and len(word) <= 19:
            stated = int(word)
            stated_ns = stated * ns_per_unit(stated, self.context.precision)
            if not self.first_ns <= stated_ns <= self.last_ns:
                return None
        else:
            body, stated_ns = rest, self.context.arrival_ns
        fields: list[Field] = []
        names: set[str] = set()
        length = 0
        for piece, name, number, whole, unsigned, word, text in _find_ordinary(body):
            length += len(piece)
            names.add(name)
            if number:
                fields.append((name, _FLOAT, float(number)))
            elif whole:
                fields.append((name, _INT, int(whole)))
            elif unsigned:
                fields.append((name, Kind.UINT, int(unsigned)))
            elif word:
                fields.append((name, Kind.BOOL, word[0] in "tT"))
            else:
                value = unescape_string(text.encode()) if "\\" in text else text
                fields.append((name, Kind.STRING, value))
        is_whole = fields and length == len(body) and len(names) == len(fields) and names.isdisjoint(tag_names)
        return (fields, stated_ns) if is_whole else None

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

    def _row(self, line: bytes) -> Line | _Reject:
        """The row of a trimmed line, its place left open; or the first reason against it."""
        nul_at = line.find(b"\0")
        if nul_at >= 0:
            return Reason.NUL_BYTE, nul_at, "a NUL byte stands inside the line"
        masked = mask(line)
        head_end = masked.find(b" ")
        head_end = len(line) if head_end < 0 else head_end
        head = self._good_head(line, masked, head_end)
        if head is not None and len(line) <= self.harmless_bytes:
            row = self._ordinary(line[head_end + 1 :].decode(), head.tag_names)
            if row is not None:
                return self._accept(line, head_end, head, row)
        return self._full_row(line, masked, head_end)

    def _full_row(self, line: bytes, masked: bytes, head_end: int) -> Line | _Reject:
        """The row of a line without a NUL, read by all the rules; or the first reason against it."""
        texts: list[FieldText] = []
        parts = read_line(line, masked, head_end, texts)
        fields = [(text.key, _KINDS[text.form], text.value) for text in texts if text.form != "no_value"]
        self.non_finite += len(texts) - len(fields)
        if isinstance(parts, Fault):
            return parts
        head_text, time_text = parts
        head = self._head(line[:head_end], head_text)
        if not self.is_replay and (reject := _check_names(head_text, head.tag_names, texts, self.limits)):
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
        return self._accept(line, head_end, head, (fields, stated_ns))

    def _accept(self, line: bytes, head_end: int, head: Head, row: tuple[list[Field], int]) -> Line:
        """The accepted line, its place left open; its head counts as seen from now on."""
        raw_head = line[:head_end]
        self.heads[raw_head] = head
        return Line(head, raw_head, row[0], row[1], 0, 0, line)

    def _good_head(self, line: bytes, masked: bytes, head_end: int) -> Head | None:
        """The head of a line when it was seen before or nothing can be said against it."""
        raw_head = line[:head_end]
        head = self._seen(raw_head)
        if head is not None:
            return head
        text = read_head(line, masked, head_end)
        if isinstance(text, Fault) or (not self.is_replay and _check_names(text, frozenset(), (), self.limits)):
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


def _check_names(
    head: HeadText, tag_names: frozenset[str], fields: Sequence[FieldText], limits: Limits | None
) -> _Reject | None:
    """The first reason against the names of a line, then against their lengths and those of its values."""
    tag_keys = [(tag.key, tag.key_at) for tag in head.tags]
    field_keys = [(text.key, text.key_at) for text in fields]
    if head.measurement.startswith(RESERVED_PREFIX):
        return Reason.RESERVED_NAME, 0, f"measurement {show(head.measurement)}: names in {RESERVED_PREFIX} are reserved"
    for key, at in tag_keys + field_keys:
        if key in RESERVED_COLUMNS or key.startswith(RESERVED_PREFIX):
            return Reason.RESERVED_NAME, at, f"the name {show(key)} is reserved"
    if (repeated := _repeated(tag_keys)) is not None:
        return Reason.DUPLICATE_TAG, repeated[1], f"tag {show(repeated[0])} occurs twice"
    if (repeated := _repeated(field_keys)) is not None:
        return Reason.DUPLICATE_FIELD, repeated[1], f"field {show(repeated[0])} occurs twice"
    for key, at in field_keys:
        if key in tag_names:
            return Reason.TAG_FIELD_COLLISION, at, f"{show(key)} is a tag and a field of the line"
    return None if limits is None else _check_lengths(head, fields, limits)


def _repeated(keys: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
    seen: set[str] = set()
    for key, at in keys:
        if key in seen:
            return key, at
        seen.add(key)
    return None


def _check_lengths(head: HeadText, fields: Sequence[FieldText], limits: Limits) -> _Reject | None:
    names = [(head.measurement, 0), *((tag.key, tag.key_at) for tag in head.tags)]
    names += [(text.key, text.key_at) for text in fields]
    for name, at in names:
        if len(name.encode()) > limits.name_bytes:
            return Reason.NAME_TOO_LONG, at, f"the name {show(name)} has more than {limits.name_bytes} bytes"
    for tag in head.tags:
        if len(tag.value.encode()) > limits.tag_value_bytes:
            message = f"the value of tag {show(tag.key)} has more than {limits.tag_value_bytes} bytes"
            return Reason.VALUE_TOO_LONG, tag.value_at, message
    for text in fields:
        if isinstance(text.value, str) and len(text.value.encode()) > limits.string_bytes:
            message = f"the string of field {show(text.key)} has more than {limits.string_bytes} bytes"
            return Reason.VALUE_TOO_LONG, text.value_at, message
    return None
