"""What SQL text is let through, and what the engine's messages become."""

from __future__ import annotations

import pytest

from edge_appliance.core.query_text import MAX_OPERATORS, MAX_SQL_BYTES, check_text, explain, uses_now
from edge_appliance.errors import QueryError

MANY = MAX_OPERATORS + 1


@pytest.mark.parametrize(
    "sql",
    [
        "+".join(["1"] * (MANY + 1)),
        "1" + "::int" * MANY,
        " or ".join(["a"] * (MANY + 1)),
        "AND ".join(["a "] * (MANY + 1)),
        "a" + "[1]" * MANY,
        "1" + " is null" * MANY,
        "E'\\'' " + "+1" * MANY + " ''",
        "/* ' */ 1" + "+1" * MANY + " /* ' */",
        "$a$ ' $a$ " + "+1" * MANY + " ''",
        "-- '\n 1" + "+1" * MANY + " -- '",
        "`'` " + "+1" * MANY + " ''",
    ],
    ids=["plus", "cast", "or", "and", "index", "is", "escape", "comment", "dollar", "line-comment", "backtick"],
)
def test_long_chains_of_operators_are_refused(sql: str) -> None:
    """No spelling of quotes hides a chain."""
    with pytest.raises(QueryError, match="operators"):
        check_text("SELECT " + sql)


def test_long_lists_and_texts_are_let_through() -> None:
    """Quoted text, names and list items are no operators."""
    check_text("SELECT * FROM t WHERE time IN (" + ", ".join(["'2026-01-01T00:00:00+01:00'"] * 5000) + ")")
    check_text("SELECT " + ", ".join([f'"a-b-{n}"' for n in range(5000)]) + " FROM t -- " + "-" * 5000)


def test_too_long_text_is_refused() -> None:
    """The limit counts bytes, not characters."""
    check_text("x" * MAX_SQL_BYTES)
    for text in ("x" * (MAX_SQL_BYTES + 1), "ü" * (MAX_SQL_BYTES // 2 + 1)):
        with pytest.raises(QueryError, match="longer"):
            check_text(text)


def test_text_with_half_a_character_is_measured() -> None:
    """A lone surrogate, as JSON can bring, is counted like any other."""
    check_text("SELECT '\ud800'")


@pytest.mark.parametrize(
    ("message", "fault", "hint"),
    [
        ("Error during planning: DDL not supported: DropTable", "invalid", "only queries"),
        ("The context currently only supports a single SQL statement", "invalid", "one"),
        ("Execution error: DATE_BIN stride must be non-zero", "invalid", "minimum interval"),
        ("Resources exhausted: Failed to allocate additional 1 MB", "exhausted", "query.memory_limit"),
        ("Error during planning: table 'public.iox.pump' not found", "not_found", 'write "Pump"'),
        ("Error during planning: table 'public.iox.it's a.b' not found", "not_found", ""),
        ("Error during planning: table function 'read_csv' not found", "invalid", ""),
        ("Schema error: No field named temp. Valid fields are pump.\"Temp\".", "invalid", 'write "Temp"'),
        ("Schema error: No field named p.temp. Did you mean 'p.time'?", "invalid", 'write "Temp"'),
        ("Object Store error: Object at location x not found", "unavailable", "could not be read"),
        ("Execution error: Placeholder '$h' was not provided", "invalid", "Placeholder"),
        ("Optimizer rule 'simplify' failed\ncaused by\nArrow error: bad", "invalid", "Arrow error"),
    ],
)  # fmt: skip
def test_messages_become_faults_with_hints(message: str, fault: str, hint: str) -> None:
    """Each fault that has a status code of its own is recognised, with a way out where there is one."""
    error = explain("DataFusion error: " + message, ["Pump", "Temp", "time"])
    assert error.fault == fault
    assert hint in str(error)
    assert not str(error).startswith(("DataFusion", "Optimizer"))


def test_statements_that_depend_on_the_current_time() -> None:
    """All spellings of now are seen."""
    assert uses_now("SELECT * FROM t WHERE time > NOW() - interval '1 hour'")
    assert uses_now("SELECT current_timestamp")
    assert not uses_now("SELECT * FROM t WHERE time > '2026-01-01'")


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ('SQL error: ParserError("Expected: \\"x\\", found: EOF")', 'Expected: "x", found: EOF'),
        (
            'SQL error: TokenizerError("Unterminated string literal at Line: 1")',
            "Unterminated string literal at Line: 1",
        ),
        ("SQL error: RecursionLimitExceeded (current limit: 50)", "the statement is nested too deeply"),
    ],
)
def test_wrappers_of_the_parser_are_taken_off(message: str, plain: str) -> None:
    """The one who asked reads a sentence, not names of the parser's errors."""
    assert str(explain(message, [])) == plain
