r"""The grammar of one line of line protocol: its parts with their places, or the first fault from the left.

    measurement[,tag=value …] SP+ key=value[,key=value …] [SP+ time]

A line is read as a pair of equally long texts: the bytes, and their mask (`line_split.mask`) in which each separator
is a free one. A word is judged when it has been read to its end, so a TAB or an open string met on the way is
reported before what is wrong with the word. This module knows no limits, no reserved names and no tables.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from edge_appliance.core.line_split import MAX_PARTS, unescape_key, unescape_measurement, unescape_string
from edge_appliance.core.line_values import Form, is_time, read_word

SyntaxReason = Literal[
    "unexpected_tab",
    "unexpected_comma",
    "trailing_backslash",
    "missing_measurement",
    "missing_tag_key",
    "missing_tag_value",
    "missing_fields",
    "missing_field_key",
    "missing_field_value",
    "bad_field_value",
    "unterminated_string",
    "number_out_of_range",
    "bad_timestamp",
    "trailing_text",
    "too_many_columns",
]

TOO_MANY_PARTS: Final = f"the line has more than {MAX_PARTS} {{}}"

# What a measurement or tag value, a tag key, a field key or value, and a time run through. The last two stop at `=`
# even where it ends nothing, because a string may open behind it.
_TAG_VALUE: Final = re.compile(rb"[^,\t]*")
_TAG_KEY: Final = re.compile(rb"[^,=\t]*")
_FIELD_PART: Final = re.compile(rb"[^,= \t]*")
_TIME: Final = re.compile(rb"[^= \t]*")
_SPACES: Final = re.compile(rb" *")

_SHOWN_BYTES: Final = 48
"""Of a name or value in a message."""


_Value = tuple[Form, float | int | bool | str, int]
"""Form and value of a field, and where it ends."""


class Fault(NamedTuple):
    """Why a line is rejected, and at which of its bytes."""

    reason: SyntaxReason
    at: int
    message: str


class Tag(NamedTuple):
    """One tag as written in the line."""

    key: str
    value: str
    key_at: int
    value_at: int


class FieldText(NamedTuple):
    """One field as written in the line; of the form "no_value" (nan, inf) it has a name only."""

    key: str
    form: Form
    value: float | int | bool | str
    key_at: int
    value_at: int


class HeadText(NamedTuple):
    """Measurement and tags in the order of the line."""

    measurement: str
    tags: list[Tag]


class TimeText(NamedTuple):
    """The word in the place of the time, empty when there is none."""

    word: bytes
    at: int


def show(raw: bytes | str) -> str:
    """A name or value as a message shows it: quoted, on one line, and not at length."""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    return repr(text if len(text) <= _SHOWN_BYTES else text[:_SHOWN_BYTES] + "…")


def read_line(line: bytes, masked: bytes, head_end: int, fields: list[FieldText]) -> tuple[HeadText, TimeText] | Fault:
    """Read a whole line whose head ends at `head_end`; its fields go into `fields`, as far as they are read."""
    head = read_head(line, masked, head_end)
    if isinstance(head, Fault):
        return head
    fields_end = read_fields(line, masked, head_end, fields)
    if isinstance(fields_end, Fault):
        return fields_end
    time = read_time(line, masked, fields_end)
    return time if isinstance(time, Fault) else (head, time)


def read_head(line: bytes, masked: bytes, end: int) -> HeadText | Fault:
    """Read the measurement and the tags, which fill the line up to `end`, its first free space or its own end."""
    at = _run(_TAG_VALUE, masked, 0, end)
    if fault := _tab_or_backslash(line, 0, at, end):
        return fault
    if at == 0:
        return Fault("missing_measurement", 0, "the line has no measurement before its first comma")
    head = HeadText(unescape_measurement(line[:at]), [])
    while at < end:
        if len(head.tags) == MAX_PARTS:
            return Fault("too_many_columns", at, TOO_MANY_PARTS.format("tags"))
        tag = _read_tag(line, masked, at + 1, end)
        if isinstance(tag, Fault):
            return tag
        head.tags.append(tag[0])
        at = tag[1]
    return head


def _read_tag(line: bytes, masked: bytes, start: int, end: int) -> tuple[Tag, int] | Fault:
    """Read the tag behind a comma; and say where it ends."""
    at = _run(_TAG_KEY, masked, start, end)
    if fault := _key_fault(line, masked, start, at, end):
        return fault
    key = line[start:at]
    if at == end:
        return Fault("missing_tag_value", at, f"tag {show(key)} has no '=' and no value")
    if at == start:
        return Fault("missing_tag_key", at, "a tag has no key before its '='")
    value_at = at + 1
    at = _run(_TAG_VALUE, masked, value_at, end)
    if fault := _tab_or_backslash(line, value_at, at, end):
        return fault
    if at == value_at:
        return Fault("missing_tag_value", at, f"tag {show(key)} has no value")
    return Tag(unescape_key(key), unescape_key(line[value_at:at]), start, value_at), at


def read_fields(line: bytes, masked: bytes, head_end: int, fields: list[FieldText]) -> int | Fault:
    """Read the field list behind the head into `fields`, and say where it ends; before a fault stand those read."""
    at = _run(_SPACES, masked, head_end)
    if at == len(line):
        return Fault("missing_fields", at, "the line ends before any field")
    while True:
        if len(fields) == MAX_PARTS:
            return Fault("too_many_columns", at, TOO_MANY_PARTS.format("fields"))
        field = _read_field(line, masked, at)
        if isinstance(field, Fault):
            return field
        fields.append(field[0])
        at = field[1]
        if masked[at : at + 1] != b",":
            return at
        at += 1


def _read_field(line: bytes, masked: bytes, start: int) -> tuple[FieldText, int] | Fault:
    at = _run(_FIELD_PART, masked, start)
    if fault := _key_fault(line, masked, start, at, len(line)):
        return fault
    key = line[start:at]
    if masked[at : at + 1] != b"=":
        return Fault("missing_field_value", at, f"field {show(key)} has no '=' and no value")
    if at == start:
        return Fault("missing_field_key", at, "a field has no key before its '='")
    value_at = at + 1
    if masked[value_at : value_at + 1] == b'"':
        value = _read_string(line, masked, value_at, key)
    else:
        value = _read_number_or_bool(line, masked, value_at, key)
    if isinstance(value, Fault):
        return value
    return FieldText(unescape_key(key), value[0], value[1], start, value_at), value[2]


def _read_string(line: bytes, masked: bytes, start: int, key: bytes) -> _Value | Fault:
    close = masked.find(b'"', start + 1)
    if close < 0:
        return _open_string(start, f"the string of field {show(key)}")
    at = close + 1
    if masked[at : at + 1] == b"\t":
        return _tab(at)
    if masked[at : at + 1] not in (b"", b",", b" "):
        return Fault("bad_field_value", at, f"the string of field {show(key)} is followed by {show(line[at : at + 9])}")
    return "string", unescape_string(line[start + 1 : close]), at


def _read_number_or_bool(line: bytes, masked: bytes, start: int, key: bytes) -> _Value | Fault:
    at = _word_end(_FIELD_PART, masked, start)
    if isinstance(at, Fault):
        return at
    if at == start:
        return Fault("missing_field_value", at, f"field {show(key)} has no value")
    word = line[start:at]
    form, value = read_word(word)
    if form == "bad":
        message = f"field {show(key)}: {show(word)} is not a number, a boolean or a quoted string"
        return Fault("bad_field_value", start, message)
    if form == "out_of_range":
        return Fault("number_out_of_range", start, f"field {show(key)}: {show(word)} does not fit into 64 bits")
    return form, value, at


def read_time(line: bytes, masked: bytes, fields_end: int) -> TimeText | Fault:
    """Read the word behind the field list, and see that it is the last one."""
    start = _run(_SPACES, masked, fields_end)
    if start == len(line):
        return TimeText(b"", start)
    at = _word_end(_TIME, masked, start)
    if isinstance(at, Fault):
        return at
    word = line[start:at]
    if not is_time(word):
        return Fault("bad_timestamp", start, f"{show(word)} stands in the place of the time and is not an integer")
    at = _run(_SPACES, masked, at)
    if at == len(line):
        return TimeText(word, start)
    if masked[at : at + 1] == b"\t":
        return _tab(at)
    return Fault("trailing_text", at, f"{show(line[at : at + 2 * _SHOWN_BYTES])} follows the time")


def _word_end(pattern: re.Pattern[bytes], masked: bytes, at: int) -> int | Fault:
    """Where an unquoted word behind the head ends. No such word may hold a string, yet strings are passed over.

    A quote behind a free `=` opens a string even where none is allowed, so that a rejected line ends where the
    device meant it to end; what stands inside is neither a separator nor a stray TAB.
    """
    while True:
        at = _run(pattern, masked, at)
        if masked[at : at + 1] == b"\t":
            return _tab(at)
        if masked[at : at + 1] != b"=":
            return at
        at += 1
        if masked[at : at + 1] == b'"':
            close = masked.find(b'"', at + 1)
            if close < 0:
                return _open_string(at, "a string")
            at = close + 1


def _key_fault(line: bytes, masked: bytes, start: int, at: int, end: int) -> Fault | None:
    """What is wrong where the key of a tag or field ends, if it is not what is missing behind it."""
    stop = masked[at : at + 1] if at < end else b""
    if stop == b",":
        return Fault("unexpected_comma", at, "a comma stands where a key and '=' are expected")
    if at == start and stop in (b"", b" "):
        return Fault("unexpected_comma", start - 1, "no key follows the comma")
    return _tab_or_backslash(line, start, at, end)


def _tab_or_backslash(line: bytes, start: int, at: int, end: int) -> Fault | None:
    """What no name and no tag value may run into or end in."""
    if at < end and line[at : at + 1] == b"\t":
        return _tab(at)
    # Whether taken or not: unescaped, the text would end in a backslash, which no query could tell from an escape.
    if at > start and line[at - 1 : at] == b"\\":
        return Fault("trailing_backslash", at - 1, f"{show(line[start:at])} ends in a backslash")
    return None


def _tab(at: int) -> Fault:
    return Fault("unexpected_tab", at, "a TAB stands outside a quoted string; only spaces separate")


def _open_string(at: int, what: str) -> Fault:
    return Fault("unterminated_string", at, f"{what} is not closed before the payload ends")


def _run(pattern: re.Pattern[bytes], text: bytes, start: int, end: int | None = None) -> int:
    """Where the run that `pattern` describes ends; such a pattern matches everywhere, if only nothing."""
    match = pattern.match(text, start, len(text) if end is None else end)
    return start if match is None else match.end()
