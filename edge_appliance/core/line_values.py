"""Forms and ranges of the values and times in a line.

Each word is checked against its form before Python converts it: `float` and `int` take much that line protocol
does not (`1_000`, `nan`, ` 7`, digits of other scripts). No form can be read in two ways, so a mismatch at the
end of a long word costs time linear in its length.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Final, Literal

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1

BOOLS: Final[Mapping[bytes, bool]] = {
    **dict.fromkeys((b"t", b"T", b"true", b"True", b"TRUE"), True),
    **dict.fromkeys((b"f", b"F", b"false", b"False", b"FALSE"), False),
}
"""The words that are booleans."""

NS_PER_UNIT: Final[Mapping[str, int]] = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}

Form = Literal["float", "int", "uint", "bool", "string", "no_value", "out_of_range", "bad"]

_FLOAT: Final = re.compile(rb"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INT: Final = re.compile(rb"-?[0-9]+i")
_UINT: Final = re.compile(rb"[0-9]+u")
_NO_VALUE: Final = re.compile(rb"[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_TIME: Final = re.compile(rb"-?[0-9]+")

_MOST_DIGITS: Final = 20
"""Of a 64-bit number. Python refuses to convert text of more than 4,300 digits, so longer words are judged unread."""


def read_word(word: bytes) -> tuple[Form, float | int | bool]:
    """Form and value of an unquoted field value; the value means nothing for the last three forms."""
    if _FLOAT.fullmatch(word):
        number = float(word)
        return ("out_of_range", 0) if number in (float("inf"), float("-inf")) else ("float", number)
    if _INT.fullmatch(word):
        return _ranged("int", word[:-1], INT64_MIN, INT64_MAX)
    if _UINT.fullmatch(word):
        return _ranged("uint", word[:-1], 0, UINT64_MAX)
    if word in BOOLS:
        return "bool", BOOLS[word]
    return ("no_value", 0) if _NO_VALUE.fullmatch(word) else ("bad", 0)


def is_time(word: bytes) -> bool:
    """Whether the word has the form of a time."""
    return _TIME.fullmatch(word) is not None


def time_ns(word: bytes, precision: str) -> int | None:
    """The time in ns that a word of the right form states, or None beyond signed 64 bits."""
    form, value = _ranged("int", word, INT64_MIN, INT64_MAX)
    if form == "out_of_range":
        return None
    scaled_ns = int(value) * ns_per_unit(int(value), precision)
    return scaled_ns if INT64_MIN <= scaled_ns <= INT64_MAX else None


def ns_per_unit(value: int, precision: str) -> int:
    """Nanoseconds per unit of a stated time; `auto` goes by its magnitude, whatever its sign."""
    if precision != "auto":
        return NS_PER_UNIT[precision]
    magnitude = abs(value)
    if magnitude < 5_000_000_000:
        return 1_000_000_000
    if magnitude < 5_000_000_000_000:
        return 1_000_000
    return 1_000 if magnitude < 5_000_000_000_000_000 else 1


def time_meaning(stated_ns: int, precision: str) -> str:
    """How a stated time was read, for people: most that are out of range are in another unit than the sender thinks."""
    how = "by its magnitude" if precision == "auto" else f"as {precision}"
    moment = dt.datetime.fromtimestamp(stated_ns // 1_000_000_000, dt.UTC)
    return f"read {how} is {moment:%Y-%m-%dT%H:%M:%SZ}"


def _ranged(form: Form, word: bytes, low: int, high: int) -> tuple[Form, int]:
    digits = word.removeprefix(b"-").lstrip(b"0")
    if len(digits) > _MOST_DIGITS:
        return "out_of_range", 0
    number = int(digits or b"0")
    if word.startswith(b"-"):
        number = -number
    return (form, number) if low <= number <= high else ("out_of_range", 0)
