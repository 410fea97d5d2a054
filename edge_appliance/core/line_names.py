"""What names and values of a line may be: reserved words, repetitions, lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from edge_appliance.core.delivery import RESERVED_COLUMNS, RESERVED_PREFIX, Reason
from edge_appliance.core.line_grammar import FieldText, HeadText, show

Reject = tuple[str, int, str]
"""Why a line is rejected, at which of its bytes, and the message; a `Fault` is one."""


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


DEFAULT_LIMITS: Final = Limits()


def check_names(
    head: HeadText, tag_names: frozenset[str], fields: Sequence[FieldText], limits: Limits | None
) -> Reject | None:
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


def _check_lengths(head: HeadText, fields: Sequence[FieldText], limits: Limits) -> Reject | None:
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
