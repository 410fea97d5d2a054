"""How large the values of a statement can become, as its text tells."""

from __future__ import annotations

import pytest

from edge_appliance.core.query_bounds import MAX_BATCH_ROWS, MAX_VALUE_BYTES, bounds_of, check_width
from edge_appliance.core.query_series import series_length
from edge_appliance.core.query_words import Word, words_of
from edge_appliance.errors import QueryError


def chain(first: str, step: str, levels: int) -> str:
    """Common table expressions that build on each other."""
    parts = [f"a0 AS ({first})", *(f"a{n} AS ({step.format(f'a{n - 1}')})" for n in range(1, levels))]
    return f"WITH {', '.join(parts)} SELECT * FROM a{levels - 1}"


REFUSED = {
    "length": "SELECT length(repeat('x', 2000000000))",
    "quoted": """SELECT "repeat"('x', 2000000000)""",
    "column": "SELECT repeat('x', i) FROM m",
    "pad": "SELECT lpad('x', 1500000000, 'y'), rpad('x', 1500000000)",
    "range": "SELECT array_length(range(0, 300000000))",
    "unnest": "SELECT count(*) FROM (SELECT unnest(range(0, 100000000)))",
    "column series": "SELECT generate_series(0, i) FROM m",
    "long series": "SELECT generate_series(timestamp '1970-01-01', timestamp '2026-01-01', interval '1 second')",
    "lists": "SELECT array_repeat(array_repeat(1, 10000), 10000), list_resize([1], 100000000)",
    "nested": "SELECT repeat(repeat(repeat('x', 1000), 1000), 1000)",
    "commented": "SELECT /* ' /* */ */ repeat('x', 2000000000) -- '",
    "escaped": r"SELECT E'\'', repeat('x', 2000000000), ''",
    "doubling": chain("SELECT 'xxxxxxxx' v", "SELECT v || v v FROM {0}", 40),
    "doubling with a function": chain("SELECT 'xxxxxxxx' v", "SELECT concat(v, v) v FROM {0}", 40),
    "doubling lists": chain("SELECT [1] v", "SELECT [v, v] v FROM {0}", 40),
    "doubling digits": "SELECT " + "encode(" * 25 + "s" + ", 'hex')" * 25 + " FROM m",
    "replacing": f"SELECT replace('{'x' * 5000}', 'x', '{'y' * 5000}')",
    "replacing by what comes later": "SELECT replace(v, 'x', w) FROM"
    " (SELECT repeat('x', 16000) v, repeat('y', 16000) w)",
    "joining a list": f"SELECT array_to_string([{'0, ' * 5000}0], '{'z' * 5000}')",
    "joins": "SELECT * FROM m m0, " + ", ".join(f"m m{n}" for n in range(1, 300)) + " LIMIT 1",
    "spelled joins": "SELECT * FROM m " + " ".join(f"CROSS JOIN m m{n}" for n in range(40)),
    "joins of joins": chain("SELECT * FROM m", "SELECT x.f FROM {0} x, {0} y", 12),
    "unions of unions": chain("SELECT f FROM m", "SELECT f FROM {0} UNION ALL SELECT f FROM {0}", 30),
    "unnest of unnest": "SELECT unnest([1, 2]) FROM (SELECT unnest([1, 2]))",
    "grouping sets": "SELECT count(*) FROM m GROUP BY cube(a, b, c, d), cube(e, f, g)",
    "collected": "SELECT length(repeat(string_agg(s, ''), 16000)) FROM m",
    "brackets": "SELECT " + "(" * 250_000,
    "dollar": "SELECT $a$ ' $a$, repeat('x', 2000000000)",
}  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED.values(), ids=REFUSED)
def test_statements_that_make_much_out_of_little_are_refused(sql: str) -> None:
    """Whatever way a value, a list or a plan grows, the text alone is enough to refuse it."""
    with pytest.raises(QueryError) as caught:
        bounds_of(sql, {})
    assert caught.value.fault == "invalid"


ALLOWED = {
    "panel": "SELECT date_bin(interval '1 hour', time) t, dev, avg(f) FROM m WHERE time >= now() - interval '6 hours'"
    " AND dev IN ('a', 'b', 'c') GROUP BY 1, 2 ORDER BY 1, 2",
    "long list": "SELECT f FROM m WHERE dev IN (" + ", ".join(f"'{n:030}'" for n in range(5000)) + ")",
    "list in a join": "SELECT a.f FROM m a JOIN m b ON a.time = b.time AND a.i IN (" + "1, " * 99 + "1), n",
    "text": "SELECT 'repeat(''x'', 2000000000)', \"range(0,300000000)\" FROM m -- lpad(x, 2000000000)",
    "from in calls": "SELECT extract(hour FROM time), trim(both ' ' FROM s), a IS DISTINCT FROM b, c FROM m",
    "padding": "SELECT lpad(dev, 10, '0'), rpad(dev, 20), repeat('-', 40) FROM m",
    "umlauts": "SELECT replace(replace(replace(dev, 'ä', 'ae'), 'ö', 'oe'), 'ü', 'ue') FROM m",
    "rows of values": "SELECT * FROM (VALUES " + "(1, 2), " * 99 + "(3, 4)) v(a, b)",
    "series as a table": "SELECT value FROM m, generate_series(1, 1000000000000), range(i)",
    "window": "SELECT sum(f) OVER w FROM m WINDOW w AS (PARTITION BY dev, s ORDER BY time, i)",
    "collecting": "SELECT dev, string_agg(s || ':' || dev, ', '), array_agg(f) FROM m GROUP BY dev",
    "sets": "SELECT count(*) FROM m GROUP BY GROUPING SETS ((dev), (s), ())",
}


@pytest.mark.parametrize("sql", ALLOWED.values(), ids=ALLOWED)
def test_usual_statements_pass_at_full_speed(sql: str) -> None:
    """What dashboards ask for is not refused, nor read in small batches."""
    assert bounds_of(sql, {}).batch_rows == MAX_BATCH_ROWS


def test_large_values_get_small_batches() -> None:
    """A batch of the largest values stays within the same bytes."""
    for sql in ("SELECT repeat('x', 100000) FROM m", f"SELECT s || '{'x' * 90000}' FROM m", "SELECT range(0, 100000)"):
        bounds = bounds_of(sql, {})
        assert bounds.batch_rows * bounds.value_bytes <= 16 * MAX_VALUE_BYTES
    assert bounds_of("SELECT $v FROM m", {"v": "x" * 100_000}).batch_rows < 100


def test_tables_are_counted_as_often_as_they_are_read() -> None:
    """Through common table expressions, brackets and schema names; a series as a table tells its rows."""
    sql = 'WITH a AS (SELECT * FROM m, "N") SELECT * FROM (a JOIN public.iox.m x USING (time)), a y, range(5, 10)'
    bounds = bounds_of(sql, {})
    assert bounds.relations["m"] == 3
    assert bounds.relations["N"] == 2
    assert bounds.joins == 5
    assert 5 <= bounds.series_rows <= 6


def test_joins_of_wide_tables_are_refused() -> None:
    """Columns of all joined tables count together; without a join any width is fine."""
    with pytest.raises(QueryError, match="columns"):
        check_width(bounds_of("SELECT * FROM m a JOIN m b USING (time)", {}), lambda _name: 3000)
    check_width(bounds_of("SELECT * FROM m", {}), lambda _name: 30_000)


@pytest.mark.parametrize(
    ("call", "length"),
    [
        ("5", 5),
        ("-5, 5", 10),
        ("0, 100, 10", 10),
        ("timestamp '2026-01-01', timestamp '2026-01-02', interval '1 minute'", 1440),
        ("date '2026-01-01', '2026-03-01', interval '1' month", 2),
        ("timestamp '2026-01-01', now(), interval '1 minute'", None),
        ("timestamp '2026-01-01', timestamp '2026-01-02', interval '0 minute'", None),
        ("1e9", None),
        ("1, i", None),
    ],
)
def test_length_of_a_series(call: str, length: int | None) -> None:
    """Constants tell at least as many elements as are made, and at most a few more; anything else tells nothing."""
    arguments: list[list[Word]] = [[]]
    for word in words_of(call):
        if word.value == ",":
            arguments.append([])
        else:
            arguments[-1].append(word)
    found = series_length(arguments)
    assert (found is None) is (length is None)
    assert found is None or length is None or length <= found <= length + 2


def test_words_are_those_of_the_engine() -> None:
    """Quotes, comments that nest, and escapes end where the engine ends them."""
    sql = """Select "A""b", 'it''s' /* x /* y */ ' */ || E'\\'z' -- end"""
    assert [tuple(word) for word in words_of(sql)] == [
        ("name", "select"), ("quoted", 'A""b'), ("sign", ","), ("text", "it''s"), ("sign", "||"), ("text", "\\'z"),
    ]  # fmt: skip
