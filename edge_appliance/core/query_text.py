"""What may be asked in SQL text, and what an engine's message means for the one who asked. Pure.

The engine walks a chain of operators by recursion: thousands of them overflow the stack and end the process.
So the text is measured before the engine sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from edge_appliance.errors import QueryError, QueryFault

MAX_SQL_BYTES: Final = 256 * 1024
MAX_OPERATORS: Final = 1_000
"""Operators of one statement. The engine died at about 12,000 and needed seconds at 3,000; lists do not count."""

_TEXT: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*")
_UNCLEAR: Final = re.compile(r"\\|/\*|`|\$\w*\$")
"""Where quotes may mean something else than they seem to, so that nothing is taken for text."""
_OPERATORS: Final = re.compile(
    r"::|[<>=!~|&@#^]+|[-+*/%?\[]"
    r"|\b(?:and|or|not|is|in|between|like|ilike|similar|rlike|regexp|collate|at|xor|div"
    r"|union|except|intersect|join|case|when|escape|operator)\b",
    re.IGNORECASE,
)
_USES_NOW: Final = re.compile(r"now|current_|today|localtime", re.IGNORECASE)

_MEANINGS: Final[tuple[tuple[re.Pattern[str], QueryFault, str], ...]] = (
    (
        re.compile(r"(?:DDL|DML|Statement) not supported|Unsupported SQL statement"),
        "invalid",
        "only queries are allowed",
    ),
    (re.compile(r"only supports a single SQL statement"), "invalid", "one statement at a time"),
    (re.compile(r"stride must be non-zero"), "invalid", "raise the minimum interval of the panel to one second"),
    (re.compile(r"Resources exhausted"), "exhausted", "narrow the time range, or raise query.memory_limit"),
    (re.compile(r"disk space during the spilling"), "exhausted", "narrow the time range"),
    (re.compile(r"table '[^']*(?:'[^']*)*' not found"), "not_found", ""),
    (re.compile(r"Object Store error|No such file|Parquet error"), "unavailable", "a part could not be read"),
)
_WRAPPED: Final = re.compile(r'(?:SQL error: )?(?:Parser|Tokenizer)Error\("(.*)"\)', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)")
_PLAIN: Final[tuple[QueryFault, str]] = ("invalid", "")


def check_text(sql: str) -> None:
    """Refuse text that the engine could not bear."""
    if len(sql) > MAX_SQL_BYTES or len(sql.encode(errors="replace")) > MAX_SQL_BYTES:
        raise QueryError("invalid", f"the statement is longer than {MAX_SQL_BYTES // 1024} KiB")
    code = sql if _UNCLEAR.search(sql) else _TEXT.sub(" ", sql)
    operators = sum(1 for _ in _OPERATORS.finditer(code))
    if operators > MAX_OPERATORS:
        text = f"the statement has {operators:,} operators, {MAX_OPERATORS:,} are allowed; IN (…) takes long lists"
        raise QueryError("invalid", text)


def uses_now(sql: str) -> bool:
    """Whether the statement may ask for the current time, which differs each time it is planned."""
    return bool(_USES_NOW.search(sql))


def explain(message: str, names: Iterable[str]) -> QueryError:
    """The engine's message as our error, with a hint where a name of `names` differs only by case."""
    # Only the innermost cause says something to the one who asked; the rest names parts of the engine.
    text = message.removeprefix("DataFusion error: ").rsplit("\ncaused by\n", 1)[-1]
    if wrapped := _WRAPPED.fullmatch(text.strip()):
        text = _ESCAPED.sub(lambda escape: {"n": "\n", "t": "\t"}.get(escape[1], escape[1]), wrapped[1])
    if "RecursionLimitExceeded" in text:
        text = "the statement is nested too deeply"
    known = ((fault, hint) for pattern, fault, hint in _MEANINGS if pattern.search(text))
    fault, hint = next(known, _PLAIN)
    if not hint and (missing := _missing_name(text)) is not None:
        hint = _case_hint(missing, names)
    return QueryError(fault, f"{text} ({hint})" if hint else text)


def _missing_name(text: str) -> str | None:
    table = re.search(r"table '[^.]*\.[^.]*\.(.*?)' not found", text, re.DOTALL)
    if table:
        return table[1]
    column = re.search(r"No field named (.*?)\.(?: |$)", text, re.DOTALL)
    return column[1].split(".")[-1].strip('"') if column else None


def _case_hint(missing: str, names: Iterable[str]) -> str:
    same = sorted(name for name in names if name != missing and name.casefold() == missing.casefold())
    if not same:
        return ""
    return "names are case-sensitive, and lower-cased unless quoted: write " + " or ".join(f'"{n}"' for n in same)
