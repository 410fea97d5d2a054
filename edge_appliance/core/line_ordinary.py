"""Ordinary lines, read fast: field names without escapes, numbers that cannot leave their range, a plain time.

What is read here is what the full reader would read; whatever is not ordinary is left to it. A device sends the same
fields again and again, so the *shape* of a line, its field names and kinds, is kept with an expression that reads the
next such line in one step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from edge_appliance.core.delivery import Kind
from edge_appliance.core.line_split import MAX_PARTS, unescape_string

Value = float | int | bool | str
Field = tuple[str, Kind, Value]

MAX_SHAPES: Final = 1_000
MAX_SHAPES_BYTES: Final = 1 << 24
"""Shapes with an expression of their own, and what they may take. Beyond that lines are read field by field: slower,
and still bounded."""
_FIELD_BYTES: Final = 300
_CHARACTER_BYTES: Final = 4
"""What a field of a shape takes beside its name, and a character of that (CPython 3.11)."""

_TIME: Final = r"(?:\x20([0-9]{1,19}))?\Z"
_WORDS: Final[Mapping[Kind, str]] = {
    Kind.FLOAT: r"(-?[0-9]{1,40}(?:\.[0-9]{0,40})?)",
    Kind.INT: r"(-?[0-9]{1,18})i",
    Kind.UINT: r"([0-9]{1,18})u",
    Kind.BOOL: r"([tTfF]|true|True|TRUE|false|False|FALSE)",
    Kind.STRING: r'"([^"\\\0]*)"',
}
_READ: Final[Mapping[Kind, Callable[[str], Value]]] = {
    Kind.FLOAT: float,
    Kind.INT: int,
    Kind.UINT: int,
    Kind.BOOL: lambda word: word[0] in "tT",
    Kind.STRING: str,
}

# One field of an ordinary line and the comma behind it. Digits are so few that no number can leave its range, names
# are not reserved. The look-behind lets a search that finds nothing pass over a long word once, not once per byte.
_find_fields: Final = re.compile(
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


class Shape:
    """Names and kinds of a line's fields, in their order. Nearly always, lines alike share one object."""

    __slots__ = ("_hash", "kinds", "match", "name_set", "names", "read")

    def __init__(self, names: Sequence[str], kinds: Sequence[Kind]) -> None:
        self.names = tuple(names)
        self.kinds = tuple(kinds)
        self._hash = hash((self.names, self.kinds))
        self.name_set = frozenset(names)
        self.read = _reader(self.kinds)
        """Makes values of the words of a line."""
        self.match: Callable[[str], re.Match[str] | None] | None = None
        """Matches fields and time of the next line alike: a group for each value, and one for the time."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and (self.names, self.kinds) == (other.names, other.kinds)

    def __hash__(self) -> int:
        return self._hash

    def learn(self) -> None:
        """Make `match`; only for names that stand in a line as they are."""
        pairs = zip(self.names, self.kinds, strict=True)
        fields = (f"{re.escape(name)}={_WORDS[kind]}" for name, kind in pairs)
        self.match = re.compile(",".join(fields) + _TIME).match


def _reader(kinds: Sequence[Kind]) -> Callable[[Sequence[str]], Sequence[Value]]:
    """Reads one word for each of `kinds`; most lines are all floats."""
    readers = [_READ[kind] for kind in kinds]
    if set(readers) == {float}:
        return lambda words: list(map(float, words))
    return lambda words: [read(word) for read, word in zip(readers, words, strict=True)]


class Shapes:
    """All shapes seen so far, and for each table the last one that begins with a certain field."""

    def __init__(self) -> None:
        self._shapes: dict[tuple[tuple[str, ...], tuple[Kind, ...]], Shape] = {}
        self.size_bytes = 0
        """About what they take."""
        self.latest: dict[tuple[str, str], Shape] = {}
        """By measurement and first field key; these have an expression."""

    def of(self, fields: Sequence[Field]) -> Shape:
        """The shape of `fields`."""
        names, kinds, _ = zip(*fields, strict=True)
        shape = self._shapes.get((names, kinds))
        if shape is None:
            shape = Shape(names, kinds)
            size_bytes = sum(_FIELD_BYTES + _CHARACTER_BYTES * len(name) for name in names)
            # Also those of lines that are going to be rejected: without a limit, these could fill the memory.
            if len(self._shapes) < MAX_SHAPES and self.size_bytes + size_bytes <= MAX_SHAPES_BYTES:
                self._shapes[names, kinds] = shape
                self.size_bytes += size_bytes
        return shape

    def of_ordinary(self, measurement: str, fields: Sequence[Field]) -> Shape:
        """The shape of an ordinary line's fields, to be tried first on the table's next line."""
        shape = self.of(fields)
        if shape.match is None and self._shapes.get((shape.names, shape.kinds)) is shape:
            shape.learn()
        if shape.match is not None:
            if len(self.latest) >= MAX_SHAPES:
                self.latest.clear()
            self.latest[measurement, shape.names[0]] = shape
        return shape


def read_fields(body: str) -> list[Field] | None:
    """The fields of an ordinary line, or None when it is none. Names may repeat."""
    if body.count(",") >= MAX_PARTS:
        return None  # they may stand in strings: the full reader knows
    fields: list[Field] = []
    length = 0
    for piece, name, number, whole, unsigned, word, text in _find_fields(body):
        length += len(piece)
        if number:
            fields.append((name, Kind.FLOAT, float(number)))
        elif whole:
            fields.append((name, Kind.INT, int(whole)))
        elif unsigned:
            fields.append((name, Kind.UINT, int(unsigned)))
        elif word:
            fields.append((name, Kind.BOOL, word[0] in "tT"))
        else:
            value = unescape_string(text.encode()) if "\\" in text else text
            fields.append((name, Kind.STRING, value))
    return fields if fields and length == len(body) else None
