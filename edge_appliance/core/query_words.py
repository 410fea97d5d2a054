"""SQL text as words: names, literals, brackets and commas where the engine sees them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from edge_appliance.errors import QueryError

WordKind = Literal["name", "quoted", "text", "number", "sign"]


class Word(NamedTuple):
    """One word; names are lower-cased unless quoted, as the engine reads them."""

    kind: WordKind
    value: str


_WORD: Final = re.compile(
    r"(?P<space>\s+|--[^\n]*)"
    r"|(?P<comment>/\*)"
    r"|[eE](?P<escaped>'(?:[^'\\]|\\.|'')*')"
    r"|(?:[nNbBrRxX]|[uU]&)?(?P<text>'(?:[^']|'')*')"
    r'|(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)'
    r"|(?P<dollar>\$\w*\$)"
    r"|(?P<number>\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<sign>\|\||.)",
    re.DOTALL,
)
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")


def words_of(sql: str) -> Iterator[Word]:
    """The words of a statement, without spaces and comments."""
    position = 0
    while position < len(sql):
        match = _WORD.match(sql, position)
        if match is None:  # the last alternative takes any character
            return
        position, kind, value = match.end(), match.lastgroup, match[match.lastgroup or 0]
        if kind == "comment":
            position = _comment_end(sql, position)
        elif kind == "dollar":
            raise QueryError("invalid", "write text between single quotes, not between dollar signs")
        elif kind in ("text", "escaped"):
            yield Word("text", value[1:-1])
        elif kind == "quoted":
            yield Word("quoted", value[1:-1])
        elif kind == "name":
            yield Word("name", value.lower())
        elif kind == "number":
            yield Word("number", value)
        elif kind == "sign":
            yield Word("sign", value)


def _comment_end(sql: str, position: int) -> int:
    """Behind the comment that is open at `position`; comments nest."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(sql, position)
        if edge is None:
            return len(sql)
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position
