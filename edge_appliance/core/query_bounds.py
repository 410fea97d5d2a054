"""How much a statement can make out of little, judged by its text before the engine sees it. Pure.

The engine computes what is constant while it plans, outside of its memory pool and deaf to its deadline: one call of
`repeat` takes all memory, forty levels of `v || v` do the same, and three hundred joined tables plan for minutes. So
the text must say how large a value can become: each function that grows values has a factor, each SELECT multiplies
what lies below it, and a common table expression counts as often as it is named.

The estimate bounds one value. Values are made in batches of rows, so large ones get small batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edge_appliance.core.query_series import series_length
from edge_appliance.core.query_words import Word, words_of
from edge_appliance.errors import QueryError

MAX_VALUE_BYTES: Final = 2**20
"""Of one value that a statement can build."""
MAX_JOINS: Final = 32
MAX_JOINED_COLUMNS: Final = 4_000
"""Of the tables of a statement that joins, each as often as it is read."""
MAX_NESTING: Final = 200
"""Open brackets; the engine takes about 50."""
MAX_RELATIONS: Final = 256
"""Tables that a statement reads, each as often as it is read."""
MAX_SERIES: Final = 100_000
"""Elements of a series made as a list; as a table it is made row by row and may be of any length."""
MAX_BATCH_ROWS: Final = 8192
_BATCH_BYTES: Final = 16 * 2**20
_COLUMN_BYTES: Final = 64
"""Taken as the length of a column's value."""

MAKERS: Final = frozenset(
    {"repeat", "lpad", "rpad", "array_repeat", "list_repeat", "array_resize", "list_resize", "range", "generate_series"}
)
"""Functions whose result is as large as a number says. The engine has them only where that number was seen."""
_SERIES: Final = frozenset({"range", "generate_series"})
_JOINING: Final = frozenset(
    {f"{kind}_{name}" for kind in ("array", "list") for name in ("append", "prepend", "concat", "cat", "union", "zip")}
    | {f"{kind}_push_{end}" for kind in ("array", "list") for end in ("back", "front")}
    | {"concat", "concat_ws", "make_array", "make_list", "arrays_zip", "struct", "named_struct", "row", "map"}
    | {"overlay", "["}
)
"""Functions whose result is as large as all their arguments together."""
_REPLACING: Final = frozenset({"replace", "regexp_replace"})
_BY_TEXT: Final = frozenset(
    {f"{kind}_{name}" for kind in ("array", "list") for name in ("to_string", "join", "replace", "replace_n")}
    | {"array_replace_all", "list_replace_all", "levenshtein"}
)
"""Functions whose result, or work, is their argument times a text."""
MAX_GROUPING_SETS: Final = 64
"""Ways in which one SELECT groups its rows; each batch is copied for each of them."""
_FACTORS: Final[Mapping[str, int]] = {
    "encode": 2, "to_char": 16, "date_format": 16, "string_to_array": 16, "string_to_list": 16,
}  # fmt: skip
_COLLECTING: Final = frozenset({"array_agg", "string_agg"})
_MAX_COLLECTED_GROWTH: Final = 8
"""Of what is collected from whole tables: it may fill the pool already, and its copies lie outside."""
_GROUPING: Final = frozenset({"cube", "rollup", "sets"})
_ENDS_FROM: Final = frozenset(
    {"where", "group", "order", "having", "limit", "offset", "window", "qualify", "union", "except", "intersect"}
)
_BEFORE_RELATION: Final = frozenset({"from", "join", "lateral"})
_BEFORE_TABLES: Final = _BEFORE_RELATION | {"", "as", "materialized", "union", "all", "except", "intersect", "exists"}
_NO_RELATION: Final = frozenset({"select", "with", "values", "unnest"}) | _SERIES
_INERT: Final = "()"
"""Owner of a bracket that is neither a call nor a place for tables."""
_COMMA: Final = Word("sign", ",")
_UNKNOWN_SERIES: Final = 1_000_000
_NO_CALL: Final = frozenset(
    {"select", "from", "join", "where", "and", "or", "not", "in", "on", "as", "exists", "values", "all", "any", "by"}
    | {"union", "except", "intersect", "materialized", "lateral", "over", "filter", "then", "else", "when", "case"}
    | {"using", "limit", "having", "with", "distinct", "between", "like", "is", "some"}
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the text says about the cost of a statement."""

    value_bytes: int
    joins: int
    relations: Mapping[str, int]
    """How often each name is read as a table."""
    makers: frozenset[str]
    """Functions of `MAKERS` that are called, all within bounds."""
    series_rows: int
    """Rows of the longest series that is read as a table, 0 without one."""

    @property
    def batch_rows(self) -> int:
        """Rows at once, so that a batch of the largest values stays small."""
        return max(16, min(MAX_BATCH_ROWS, _BATCH_BYTES // self.value_bytes))


PLAIN: Final = Bounds(_COLUMN_BYTES, 0, {}, frozenset(), 0)
"""Of a statement that makes nothing large."""


@dataclass(slots=True)
class _Weight:
    """Of a SELECT and all below it."""

    growth: int = 1
    unnests: int = 0
    joins: int = 0
    relations: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Select:
    """One SELECT while it is read."""

    terms: int = 1
    factor: int = 1
    unnests: int = 0
    sets: int = 1
    below: int = 1
    unnests_below: int = 0
    in_from: bool = False


@dataclass(slots=True)
class _Bracket:
    """An open bracket: whose it is, the SELECT that its words belong to, what common table it defines."""

    function: str
    select: _Select
    defines: str = ""
    total: _Weight = field(default_factory=_Weight)
    arguments: list[list[Word]] = field(default_factory=lambda: [[]])
    is_table: bool = False


def bounds_of(sql: str, params: Mapping[str, Any]) -> Bounds:
    """Bounds of a statement, or QueryError with the one that it passes."""
    words = list(words_of(sql))
    longest_bytes = max((len(str(value)) * 4 for value in params.values()), default=0)
    texts = (len(word.value.encode(errors="replace")) for word in words if word.kind == "text")
    longest_bytes = max(_COLUMN_BYTES, longest_bytes, *texts)
    while True:
        reader = _Reader(longest_bytes)
        for word in words:
            reader.take(word)
        if reader.longest_bytes == longest_bytes:
            return reader.bounds()
        # Once more: a text that is made may multiply another one that stands before it.
        longest_bytes = reader.longest_bytes


def check_width(bounds: Bounds, columns_of: Callable[[str], int]) -> None:
    """Refuse joins of very wide tables, which are planned for minutes."""
    if bounds.joins:
        width = sum(times * columns_of(name) for name, times in bounds.relations.items())
        if width > MAX_JOINED_COLUMNS:
            text = f"the joined tables have {width:,} columns together, {MAX_JOINED_COLUMNS:,} are allowed"
            raise QueryError("too_large", text)


class _Reader:
    """Reads a statement word by word."""

    def __init__(self, longest_bytes: int) -> None:
        self.longest_bytes = longest_bytes
        self._stack = [_Bracket("", _Select())]
        self._common: dict[str, _Weight] = {}
        self._makers: set[str] = set()
        self._before: list[Word] = [Word("sign", "")] * 4
        self._owner = ""
        self._wants_relation = False
        self._series_rows = 0
        self._collects = False
        self._named: str | None = None

    def take(self, word: Word) -> None:
        """One more word."""
        top = self._stack[-1]
        if word != _COMMA:
            top.arguments[-1].append(word)
        if word.kind == "sign":
            self._sign(top, word.value)
        elif word.kind == "name":
            self._named = None
            self._name(top, word.value)
        if self._wants_relation and word.kind in ("name", "quoted") and word.value not in _BEFORE_RELATION:
            self._wants_relation = False
            if word.value not in _NO_RELATION:
                self._relation(top, word.value)
        self._before = [*self._before[1:], word]

    def bounds(self) -> Bounds:
        """The bounds of what was read."""
        while len(self._stack) > 1:
            self._close()
        total = self._finished(self._stack[0])
        value_bytes = self.longest_bytes * total.growth
        _check(total, value_bytes)
        if self._collects and total.growth > _MAX_COLLECTED_GROWTH:
            raise QueryError("invalid", "what array_agg and string_agg collect cannot be multiplied")
        return Bounds(value_bytes, total.joins, total.relations, frozenset(self._makers), self._series_rows)

    def _name(self, top: _Bracket, name: str) -> None:
        if name == "select":
            self._end_select(top)
            top.select = _Select()
            top.function = ""
        elif name == "values":
            top.function = _INERT
        elif name == "from" and not top.function and self._before[-1].value != "distinct":
            top.select.in_from = self._wants_relation = True
        elif name == "join":
            top.total.joins += 1
            self._wants_relation = True
        elif name in _ENDS_FROM and not top.function:
            top.select.in_from = False

    def _sign(self, top: _Bracket, sign: str) -> None:
        if sign in "([":
            self._open(top, sign)
        elif sign in ")]" and len(self._stack) > 1:
            self._close()
        elif sign == "||" or (sign == "," and top.function in _JOINING):
            top.select.terms += 1
        if sign == "." and self._named is not None and self._before[-1].kind in ("name", "quoted"):
            # What was taken for a table is the schema of one.
            top.total.relations[self._named] -= 1
            self._wants_relation = True
        self._named = None
        if sign == ",":
            top.arguments.append([])
            if top.select.in_from and not top.function:
                top.total.joins += 1
                self._wants_relation = True
                if top.total.joins > MAX_JOINS:
                    _check(top.total, 0)

    def _open(self, top: _Bracket, sign: str) -> None:
        if len(self._stack) > MAX_NESTING:
            raise QueryError("invalid", "the statement is nested too deeply")
        before = self._before[-1]
        is_call = before.kind == "quoted" or (before.kind == "name" and before.value not in _NO_CALL)
        function = self._function(top, sign, before.value.lower() if is_call else "")
        defines = ""
        if before.value in ("as", "materialized") and sign == "(":
            at = {"as": -2, "materialized": -3}[before.value]
            if before.value == "materialized" and self._before[-2].value == "not":
                at = -4
            name = self._before[at]
            defines = self._owner if name.value == ")" else name.value
        in_list = self._before[-2] == _COMMA and top.select.in_from and not top.function
        is_table = is_call and (in_list or self._before[-2].value in _BEFORE_RELATION)
        if function == "unnest":
            top.select.unnests = 1
        # A bracket that follows FROM directly continues its list: FROM (a JOIN b), or holds a SELECT of its own.
        self._wants_relation = self._wants_relation and not function
        self._stack.append(_Bracket(function, top.select, defines, is_table=is_table))

    def _function(self, top: _Bracket, sign: str, called: str) -> str:
        """What a bracket belongs to; empty where it may hold tables."""
        if sign == "[":
            return sign
        before = self._before[-1].value
        if called:
            return called
        inside_of_one = before in ("(", ",") and not top.function
        return "" if before in _BEFORE_TABLES or inside_of_one else _INERT

    def _close(self) -> None:
        closed = self._stack.pop()
        top = self._stack[-1]
        self._owner = closed.function
        if closed.function:
            self._called(closed)
        total = self._finished(closed) if closed.select is not top.select else closed.total
        if closed.defines:
            older = self._common.get(closed.defines)
            if older is None or total.growth * len(total.relations) >= older.growth * len(older.relations):
                self._common[closed.defines] = total
            return
        _add(top.total, total)
        top.select.below = max(top.select.below, total.growth)
        top.select.unnests_below = max(top.select.unnests_below, total.unnests)

    def _called(self, call: _Bracket) -> None:
        function, select = call.function, call.select
        if function in _SERIES and call.is_table:
            length = series_length(_arguments(call))
            self._series_rows = max(self._series_rows, _UNKNOWN_SERIES if length is None else length)
        elif function in MAKERS:
            self._makers.add(function)
            self.longest_bytes = max(self.longest_bytes, self._made(call))
        elif function in _COLLECTING:
            self._collects = True
        elif function in _GROUPING:
            count = len(call.arguments)
            select.sets *= 2 ** min(count, 64) if function == "cube" else count + 1
            if select.sets > MAX_GROUPING_SETS:
                raise QueryError("invalid", f"a SELECT groups its rows in more than {MAX_GROUPING_SETS} ways")
        elif function in _REPLACING:
            replacement = [*_arguments(call), [], [], []][2]
            is_text = len(replacement) == 1 and replacement[0].kind == "text"
            select.factor *= max(1, len(replacement[0].value)) if is_text else self.longest_bytes
        elif function in _BY_TEXT:
            select.factor *= self.longest_bytes
        else:
            select.factor *= _FACTORS.get(function, 1)

    def _made(self, call: _Bracket) -> int:
        """Bytes of the value that a call of a maker makes; a maker of something unknown grows it as well."""
        arguments = _arguments(call)
        if call.function in _SERIES:
            length = series_length(arguments)
            if length is None or length > MAX_SERIES + 1:
                text = f"{call.function} as a list takes constants and makes at most {MAX_SERIES:,} elements"
                raise QueryError("invalid", f"{text}; SELECT value FROM {call.function}(…) makes any number of rows")
            return 8 * length
        count = _literal_int(arguments[1]) if len(arguments) > 1 else None
        if count is None or count > MAX_VALUE_BYTES:
            text = f"the length in {call.function} must be a constant of at most {MAX_VALUE_BYTES:,}"
            raise QueryError("invalid", text)
        first = arguments[0]
        if call.function in ("lpad", "rpad"):
            return 4 * count
        if len(first) == 1 and first[0].kind in ("text", "number"):
            return max(1, len(first[0].value.encode(errors="replace"))) * count
        call.select.factor *= max(1, count)
        return 0

    def _relation(self, top: _Bracket, name: str) -> None:
        common = self._common.get(name)
        top.total.relations[name] += 1
        self._named = name
        if common is not None:
            _add(top.total, common)
            top.select.below = max(top.select.below, common.growth)
            top.select.unnests_below = max(top.select.unnests_below, common.unnests)
        if top.total.relations.total() > MAX_RELATIONS:
            _check(top.total, 0)

    def _end_select(self, bracket: _Bracket) -> None:
        """Add the SELECT that a bracket holds to what it weighs; those of a UNION do not multiply each other."""
        if len(self._stack) > 1 and self._stack[-1] is bracket and bracket.select is self._stack[-2].select:
            return  # it is the one around the bracket
        weight = bracket.select.terms * bracket.select.factor * bracket.select.below
        bracket.total.growth = max(bracket.total.growth, weight)
        bracket.total.unnests = max(bracket.total.unnests, bracket.select.unnests + bracket.select.unnests_below)
        _check(bracket.total, 0)

    def _finished(self, bracket: _Bracket) -> _Weight:
        self._end_select(bracket)
        return bracket.total


def _add(total: _Weight, below: _Weight) -> None:
    total.joins += below.joins
    total.relations.update(below.relations)
    _check(total, 0)


def _check(total: _Weight, value_bytes: int) -> None:
    if total.joins > MAX_JOINS:
        raise QueryError("invalid", f"the statement joins more than {MAX_JOINS + 1} tables")
    if total.relations.total() > MAX_RELATIONS:
        raise QueryError("invalid", f"the statement reads more than {MAX_RELATIONS} tables")
    if total.unnests > 1:
        raise QueryError("invalid", "unnest of rows that come from another unnest is not offered")
    if max(value_bytes, total.growth) > MAX_VALUE_BYTES:
        raise QueryError("invalid", f"the statement can make values of more than {MAX_VALUE_BYTES // 2**20} MiB")


def _arguments(call: _Bracket) -> list[list[Word]]:
    """The arguments, without the bracket behind them."""
    return [*call.arguments[:-1], [word for word in call.arguments[-1] if word != Word("sign", ")")]]


def _literal_int(words: list[Word]) -> int | None:
    if len(words) == 1 and words[0].kind == "number" and words[0].value.isdigit():
        return int(words[0].value)
    return None
