"""SQL over rows in memory and parts on disk, against an oracle in plain dictionaries."""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge_appliance.core.columns import OPEN_RANK, Chunk, RowSet, SeriesTags, SparseColumn
from edge_appliance.core.delivery import ColumnDefinition, Kind
from edge_appliance.core.parts import DAY_NS, Part, file_column, part_name, utc_date
from edge_appliance.core.view import TableView
from edge_appliance.errors import QueryError, StoreError
from edge_appliance.metrics import Metrics
from edge_appliance.sql import SqlEngine

T0 = 1_767_225_600 * 1_000_000_000  # 2026-01-01
MIB = 2**20

TYPES = {
    Kind.TAG: pa.utf8(),
    Kind.FLOAT: pa.float64(),
    Kind.INT: pa.int64(),
    Kind.UINT: pa.uint64(),
    Kind.BOOL: pa.bool_(),
    Kind.STRING: pa.utf8(),
}
COLUMNS = (
    ColumnDefinition("dev", Kind.TAG),
    ColumnDefinition("Site", Kind.TAG),
    ColumnDefinition("f", Kind.FLOAT),
    ColumnDefinition("i", Kind.INT),
    ColumnDefinition("u", Kind.UINT),
    ColumnDefinition("b", Kind.BOOL),
    ColumnDefinition("s", Kind.STRING),
)


@dataclass(frozen=True)
class Write:
    """One written line."""

    tags: tuple[tuple[str, str], ...]
    time_ns: int
    fields: dict


def merged(writes: Sequence[Write]) -> dict:
    """The oracle: rows by (tags, time), of each field the value written last."""
    rows: dict = defaultdict(dict)
    for write in writes:
        rows[write.tags, write.time_ns].update(write.fields)
    return dict(rows)


def row_set(writes: Sequence[Write], columns, rank=OPEN_RANK, chunk_rows=4096, table="pump") -> RowSet:
    """Rows in memory, repeated keys and all."""
    series: list = []
    chunks = []
    for start in range(0, len(writes), chunk_rows):
        slice_ = writes[start : start + chunk_rows]
        refs = []
        for write in slice_:
            if write.tags not in series:
                series.append(write.tags)
            refs.append(series.index(write.tags))
        fields: dict = {}
        for name, kind in columns:
            values = [write.fields.get(name) for write in slice_]
            present = [n for n, value in enumerate(values) if value is not None]
            if kind is Kind.TAG or not present:
                continue
            if len(present) * 4 < len(values):
                few = pa.array([values[n] for n in present], TYPES[kind])
                fields[name] = SparseColumn(pa.array(present, pa.uint32()), few)
            else:
                fields[name] = pa.array(values, TYPES[kind])
        times = pa.array([write.time_ns for write in slice_], pa.int64())
        chunks.append(Chunk(pa.array(refs, pa.uint32()), times, fields, 0))
    times_ns = [write.time_ns for write in writes]
    return RowSet(
        "plant", table, rank, tuple(columns), SeriesTags(series, len(series)), tuple(chunks),
        min(times_ns), max(times_ns), 0,
    )  # fmt: skip


@dataclass
class World:
    """Part files in a directory, rows in memory, and the engine over both."""

    directory: Path
    tables: dict = field(default_factory=dict)
    opened: list = field(default_factory=list)
    settings: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(memory_limit_bytes=64 * MIB, timeout_s=20.0, max_rows=1_000_000)
    )

    # The two protocols of the engine

    def view(self, database, tables):
        """The named tables that exist."""
        return {name: self.tables[name] for name in tables if name in self.tables and database == "plant"}

    def databases(self):
        """One database."""
        return ["plant"]

    def table_names(self, database):
        """All tables."""
        return list(self.tables) if database == "plant" else []

    def columns(self, database, table):
        """Columns in order of definition."""
        return self.tables[table].columns if database == "plant" and table in self.tables else None

    def open_path(self, part: Part) -> Path:
        """Path in the store, noted as opened."""
        self.opened.append(part)
        path = self.directory / "store" / part_name(part)
        if not path.exists():
            raise StoreError("open", part_name(part), "no whole local copy")
        return path

    def reading(self):
        """Nothing is deleted here."""
        return nullcontext()

    def held(self, parts, until_s, check):
        """All parts are local."""
        return nullcontext()

    # Building

    def define(self, table, columns=COLUMNS, hot=(), parts=()):
        """Set what a table consists of."""
        self.tables[table] = TableView("plant", table, tuple(columns), tuple(hot), tuple(parts))

    def write_parts(self, writes, columns, lo, hi=None, slices=1, table="pump") -> list[Part]:
        """One set of writes as parts: merged, sorted by tags and time, split by date and into slices of rows."""
        by_date: dict = defaultdict(list)
        for (tags, time_ns), fields in merged(writes).items():
            by_date[utc_date(time_ns)].append((dict(tags), time_ns, fields))
        parts = []
        for date, rows in sorted(by_date.items()):
            names = [name for name, kind in columns if kind is Kind.TAG]
            rows.sort(key=lambda row: ([(row[0].get(n) is not None, row[0].get(n) or "") for n in names], row[1]))
            count = min(slices, len(rows))
            for number in range(count):
                share = rows[number * len(rows) // count : (number + 1) * len(rows) // count]
                parts.append(self._write_part(share, columns, date, lo, hi or lo, number, count, table))
        return parts

    def _write_part(self, rows, columns, date, lo, hi, number, count, table) -> Part:
        times = [row[1] for row in rows]
        arrays = {
            "time": pa.array([t // 1000 for t in times], pa.timestamp("us", tz="UTC")),
            "time_ns": pa.array([t % 1000 for t in times], pa.int16()),
        }
        for name, kind in columns:
            values = [row[0].get(name) if kind is Kind.TAG else row[2].get(name) for row in rows]
            array = pa.array(values, TYPES[kind])
            arrays[file_column(name)] = array.cast(pa.decimal128(20)) if kind is Kind.UINT else array
        part = Part(
            "plant", table, date, "gw", "00000001", lo, hi, number, count, len(rows), 1, min(times), max(times), True
        )
        path = self.directory / "store" / part_name(part)
        path.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(arrays), path, compression="zstd", row_group_size=64)
        return part

    def engine(self, **options) -> SqlEngine:
        """A new engine."""
        return SqlEngine(self, self, self.directory / "view", self.settings, Metrics(), **options)

    def query(self, sql, **params):
        """Rows of one statement."""
        return rows_of(self.engine().run("plant", sql, params))


def rows_of(answer) -> list[tuple]:
    """Rows as tuples, timestamps as ns."""
    table = pa.Table.from_batches(answer.batches, answer.schema)
    assert table.num_rows == answer.rows
    columns = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in table.columns
    ]
    return list(zip(*columns, strict=True)) if columns else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An empty database `plant`."""
    return World(tmp_path)


def fault(world: World, sql: str, **options) -> str:
    """The fault that a statement is refused with, and its message behind a colon."""
    with pytest.raises(QueryError) as caught:
        world.engine(**options).run("plant", sql)
    return f"{caught.value.fault}: {caught.value}"


# The oracle over random workloads ------------------------------------------------------------------------------


def random_writes(rng: random.Random, count: int, columns) -> list[Write]:
    """Writes with few series and few times, so that keys repeat, over three days and the epoch."""
    starts = [T0 - 5, T0 + DAY_NS - 3000, T0 + DAY_NS + 3600 * 10**9, -1500, -DAY_NS - 7]
    values = {
        Kind.FLOAT: lambda: rng.choice([0.0, -1.5, 2.25, 1e300]),
        Kind.INT: lambda: rng.choice([-(2**63), 2**63 - 1, 0, 7]),
        Kind.UINT: lambda: rng.choice([0, 2**63, 2**64 - 1, 5]),
        Kind.BOOL: lambda: rng.random() < 0.5,
        Kind.STRING: lambda: rng.choice(["", "on", "über", "a'b"]),
    }
    fields = [c for c in columns if c.kind is not Kind.TAG]
    writes = []
    for _ in range(count):
        tags = [("Site", rng.choice("xy"))] * (rng.random() < 0.7) + [("dev", rng.choice("abc"))] * (rng.random() < 0.8)
        chosen = rng.sample(fields, rng.randint(1, len(fields)))
        time_ns = rng.choice(starts) + rng.choice([0, 1, 999, 1000, 1001, 10**9, 60 * 10**9]) * rng.randint(0, 4)
        writes.append(Write(tuple(sorted(tags)), time_ns, {c.name: values[c.kind]() for c in chosen}))
    return writes


def random_world(world: World, seed: int) -> dict:
    """Fill table `pump` from random sets: the older ones as parts, some merged or sliced, the newer ones in memory."""
    rng = random.Random(seed)
    early = COLUMNS[:-1]
    everything: list[Write] = []
    parts: list[Part] = []
    hot: list[RowSet] = []
    stored, kept = rng.randint(0, 5), rng.randint(0, 3)
    rank = 10
    for number in range(stored):
        columns = early if number < 2 else COLUMNS
        writes = random_writes(rng, rng.randint(1, 60), columns)
        everything += writes
        width = rng.choice([0, 0, 5])
        parts += world.write_parts(writes, columns, rank, rank + width, slices=rng.choice([1, 1, 3]))
        rank += 10
    for number in range(kept):
        writes = random_writes(rng, rng.randint(1, 80), COLUMNS)
        everything += writes
        last = number == kept - 1
        hot.append(row_set(writes, COLUMNS, OPEN_RANK if last else rank, rng.choice([1, 7, 4096])))
        rank += 10
    rng.shuffle(parts)
    world.define("pump", COLUMNS, hot, parts)
    return merged(everything)


def expected_rows(oracle: dict) -> list[tuple]:
    """The oracle's rows in column order."""
    return [
        (time_ns, *(dict(tags).get(n) if k is Kind.TAG else fields.get(n) for n, k in COLUMNS))
        for (tags, time_ns), fields in oracle.items()
    ]


def unordered(rows) -> list:
    """Rows in an order of their own, for comparing."""
    return sorted(rows, key=repr)


def test_rows_beyond_retention_are_not_shown(world: World) -> None:
    """What has had its time is not seen, in parts and in memory, contested or not; one ns later it is."""
    random_world(world, 3)
    engine = world.engine()
    times = sorted(row[0] for row in rows_of(engine.run("plant", "SELECT time FROM pump")))
    for cut_ns in (times[len(times) // 2], times[-1], times[-1] + 1):
        world.tables["pump"] = replace(world.tables["pump"], visible_from_ns=cut_ns)
        shown = sorted(row[0] for row in rows_of(engine.run("plant", "SELECT time FROM pump")))
        assert shown == [time for time in times if time >= cut_ns]
        assert rows_of(engine.run("plant", "SELECT count(*) FROM pump")) == [(len(shown),)]


SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_query_shape_equals_the_oracle(world: World, seed: int) -> None:
    """Whatever lies in memory and in parts, each shape of query sees each key once with its last values."""
    oracle = random_world(world, seed)
    rows = expected_rows(oracle)
    engine = world.engine()

    def ask(sql: str) -> list[tuple]:
        return rows_of(engine.run("plant", sql))

    time, dev, site, f, i, u, b, s = range(8)
    assert unordered(ask("SELECT * FROM pump")) == unordered(rows)
    assert ask("SELECT count(*) FROM pump") == [(len(rows),)]
    for name, place in (("f", f), ("u", u), ("s", s), ("b", b), ("dev", dev), ('"Site"', site)):
        assert ask(f"SELECT count({name}) FROM pump") == [(sum(r[place] is not None for r in rows),)]
    for name, place in (("time", time), ("f", f), ("i", i), ("u", u), ("dev", dev)):
        values = [r[place] for r in rows if r[place] is not None]
        assert ask(f"SELECT min({name}), max({name}) FROM pump") == [
            (min(values, default=None), max(values, default=None))
        ]
    assert unordered(ask("SELECT s, time FROM pump")) == unordered((r[s], r[time]) for r in rows)
    assert unordered(ask("SELECT u FROM pump WHERE u > 9223372036854775807")) == unordered(
        (r[u],) for r in rows if r[u] is not None and r[u] > 2**63 - 1
    )
    assert unordered(ask("SELECT time, f FROM pump WHERE dev = 'a'")) == unordered(
        (r[time], r[f]) for r in rows if r[dev] == "a"
    )
    assert ask("SELECT count(*) FROM pump WHERE dev IS NULL") == [(sum(r[dev] is None for r in rows),)]
    assert ask("SELECT count(*) FROM pump WHERE i = 7 AND NOT b") == [(sum(r[i] == 7 and r[b] is False for r in rows),)]

    groups: dict = defaultdict(int)
    for r in rows:
        groups[r[dev], r[site]] += 1
    assert unordered(ask('SELECT dev, "Site", count(*) FROM pump GROUP BY dev, "Site"')) == unordered(
        (*key, count) for key, count in groups.items()
    )
    hours: dict = defaultdict(int)
    for r in rows:
        hours[r[time] // 3_600_000_000_000 * 3_600_000_000_000] += 1
    binned = "SELECT date_bin(interval '1 hour', time) AS t, count(*) FROM pump GROUP BY t ORDER BY t"
    assert ask(binned) == sorted(hours.items())
    newest = sorted((r[time] for r in rows), reverse=True)[:10]
    assert [r[0] for r in ask("SELECT time, s FROM pump ORDER BY time DESC LIMIT 10")] == newest

    for name, place in (("f", f), ("i", i), ("u", u), ("s", s)):
        for order, is_reversed in (("ASC", False), ("DESC", True)):
            ranked = sorted((r[place] for r in rows if r[place] is not None), reverse=is_reversed)[:3]
            sql = f"SELECT {name}, dev FROM pump ORDER BY {name} {order} NULLS LAST LIMIT 3"
            assert [r[0] for r in ask(sql) if r[0] is not None] == ranked
    equal = sum(x[i] == y[i] and x[i] is not None for x in rows for y in rows if y[f] == 2.25)
    assert ask("SELECT count(*) FROM pump a JOIN pump b ON a.i = b.i WHERE b.f = 2.25") == [(equal,)]
    same = {r[s] for r in rows if r[b]}
    semi = "SELECT count(*) FROM pump WHERE s IN (SELECT s FROM pump WHERE b)"
    assert ask(semi) == [(sum(r[s] in same and r[s] is not None for r in rows),)]
    least: dict = {}
    for r in rows:
        if r[f] is not None:
            least[r[dev]] = min(least.get(r[dev], r[f]), r[f])
    grouped = "SELECT dev, min(f) FROM pump WHERE f IS NOT NULL GROUP BY dev"
    assert unordered(ask(grouped)) == unordered(least.items())

    for lo, hi in ((T0 - 2, T0 + 1001), (-2000, 0), (T0 + DAY_NS, T0 + 2 * DAY_NS), (T0 - 5, T0 - 5)):
        where = f"time >= arrow_cast({lo}, 'Timestamp(ns)') AND time <= arrow_cast({hi}, 'Timestamp(ns)')"
        assert unordered(ask(f"SELECT * FROM pump WHERE {where}")) == unordered(r for r in rows if lo <= r[time] <= hi)
    latest = max((r[time] for r in rows), default=None)
    assert unordered(ask("SELECT * FROM pump WHERE time = (SELECT max(time) FROM pump)")) == unordered(
        r for r in rows if r[time] == latest
    )
    pairs = sum(x[time] == y[time] and x[dev] == y[dev] and x[dev] is not None for x in rows for y in rows)
    assert ask("SELECT count(*) FROM pump a JOIN pump b ON a.time = b.time AND a.dev = b.dev") == [(pairs,)]
    early = sum(r[time] < T0 for r in rows)
    assert ask("SELECT count(*) FROM (SELECT * FROM pump WHERE time < '2026-01-01T00:00:00Z') q") == [(early,)]
    assert not [path for path in (world.directory / "view").iterdir() if path.name != "spill"]


# Exactly one case each -----------------------------------------------------------------------------------------


def one(time_ns: int, tags=(("dev", "a"),), **fields) -> Write:
    """One write."""
    return Write(tuple(tags), time_ns, fields)


def test_last_write_wins_per_field_over_parts_and_memory(world: World) -> None:
    """Of each field the value of the highest rank counts; a field that a later write lacks keeps its value."""
    parts = world.write_parts([one(T0, f=1.0, i=1, s="old")], COLUMNS, 5)
    parts += world.write_parts([one(T0, f=2.0, u=2**64 - 1)], COLUMNS, 6, 9)
    sealed = row_set([one(T0, i=3), one(T0, i=4, b=True)], COLUMNS, 20)
    world.define("pump", hot=[sealed, row_set([one(T0, b=False)], COLUMNS)], parts=reversed(parts))
    assert world.query("SELECT * FROM pump") == [(T0, "a", None, 2.0, 4, 2**64 - 1, False, "old")]


def test_order_of_writing_is_numeric_beyond_ten_parts(world: World) -> None:
    """The twelfth part beats the third: positions are numbers, not text."""
    parts = [p for rank in range(1, 13) for p in world.write_parts([one(T0, i=rank)], COLUMNS, rank)]
    world.define("pump", parts=parts)
    assert world.query("SELECT i FROM pump") == [(12,)]


def test_column_added_later_is_null_in_older_parts(world: World) -> None:
    """A part that was written before a column existed shows nulls for it."""
    parts = world.write_parts([one(T0, f=1.0)], COLUMNS[:3], 1) + world.write_parts([one(T0 + 9, s="x")], COLUMNS, 2)
    world.define("pump", parts=parts)
    assert world.query("SELECT f, s FROM pump ORDER BY time") == [(1.0, None), (None, "x")]


def test_columns_named_like_the_files_own_show_their_names(world: World) -> None:
    """`date` and `date_` are renamed in the file, never in SQL; odd names are columns like others."""
    columns = tuple(
        ColumnDefinition(name, kind)
        for name, kind in (
            ("date", Kind.TAG), ("date_", Kind.FLOAT), ("Time", Kind.INT), ('a"b', Kind.INT), ("a.b", Kind.INT),
            ("rank", Kind.INT), ("größe", Kind.UINT),
        )
    )  # fmt: skip
    fields = {"date_": 1.5, "Time": 1, 'a"b': 2, "a.b": 3, "rank": 4, "größe": 2**63}
    write = Write((("date", "tomorrow"),), T0 + 1, fields)
    newer = Write((("date", "tomorrow"),), T0 + 1, {"a.b": 30})
    world.define("pump", columns, [row_set([newer], columns)], world.write_parts([write], columns, 1))
    assert world.query("SELECT * FROM pump") == [(T0 + 1, "tomorrow", 1.5, 1, 2, 30, 4, 2**63)]
    assert world.query('SELECT "a""b", "date" FROM pump WHERE "a.b" = 30') == [(2, "tomorrow")]


def test_times_are_exact_to_the_nanosecond(world: World) -> None:
    """One nanosecond apart, before and after the epoch and at both ends of time, in files and in memory."""
    times = [-(2**63), -(2**63) + 999, -1001, -1000, -1, 0, 1, T0 + 999, T0 + 1000, 2**63 - 1]
    writes = [one(t, i=n) for n, t in enumerate(times)]
    parts = world.write_parts(writes[::2], COLUMNS, 1)
    world.define("pump", hot=[row_set(writes[1::2], COLUMNS)], parts=parts)
    assert world.query("SELECT time FROM pump ORDER BY time") == [(t,) for t in times]
    assert world.query("SELECT i FROM pump WHERE time = '1969-12-31T23:59:59.999998999Z'") == [(2,)]
    assert world.query("SELECT i FROM pump WHERE time > '2026-01-01T00:00:00.000000999Z' ORDER BY i") == [(8,), (9,)]


def test_table_without_tags(world: World) -> None:
    """Rows without any tag have a key too: their time."""
    columns = (ColumnDefinition("f", Kind.FLOAT),)
    writes = [Write((), T0, {"f": 1.0}), Write((), T0, {"f": 2.0})]
    world.define("pump", columns, [row_set(writes, columns)])
    assert world.query("SELECT * FROM pump") == [(T0, 2.0)]


def test_defined_table_without_rows(world: World) -> None:
    """A table with columns and no rows answers with its schema."""
    world.define("pump")
    answer = world.engine().run("plant", "SELECT * FROM pump")
    assert answer.rows == 0
    assert answer.schema.names == ["time", *(name for name, _ in COLUMNS)]
    assert answer.schema.field("u").type == pa.uint64()
    assert answer.schema.field("time").type == pa.timestamp("ns", tz="UTC")


def test_sparse_columns_that_are_not_needed_are_not_made_dense(world: World, mocker) -> None:
    """A query over one column touches no other."""
    world.define("pump", hot=[row_set([one(T0 + n, f=1.0, i=n) for n in range(3)], COLUMNS)])
    batches = mocker.spy(RowSet, "batches")
    assert world.query('SELECT sum(f) FROM pump WHERE "Site" IS NULL') == [(3.0,)]
    assert [[c.name for c in call.args[1]] for call in batches.call_args_list] == [["Site", "f"]]


# Pruning -------------------------------------------------------------------------------------------------------


def test_parts_outside_the_time_bounds_are_never_opened(world: World) -> None:
    """A part that cannot have a wanted time is not looked for: its file may be gone."""
    inside = world.write_parts([one(T0 + DAY_NS, f=1.0)], COLUMNS, 1)
    outside = world.write_parts([one(T0, f=2.0), one(T0 + 3 * DAY_NS, f=3.0)], COLUMNS, 2)
    for path in (world.directory / "store").iterdir():
        if path.name != part_name(inside[0]):
            path.unlink()
    world.define("pump", parts=[*outside, *inside])
    wheres = [
        "time >= '2026-01-02' AND time < '2026-01-03'",
        "time BETWEEN '2026-01-02' AND '2026-01-02T01:00:00Z' AND dev = 'a'",
        "time = '2026-01-02'",
        "'2026-01-02' <= time AND NOT time > '2026-01-03'",
        "time IN ('2026-01-02', '2026-01-02T02:00:00Z')",
        "(time = '2026-01-02' AND dev = 'a') OR (time = '2026-01-02T02:00:00Z' AND f > 1)",
        "time IN ('2026-01-02', '2026-01-02 01:00:00', '2026-01-02 02:00:00', '2026-01-02 03:00:00')",
    ]
    for where in wheres:
        assert world.query(f"SELECT f FROM pump WHERE {where}") == [(1.0,)], where
    assert world.query("SELECT f FROM pump WHERE time >= $lo AND time < '2026-01-03'", lo="2026-01-02") == [(1.0,)]
    assert world.query(
        "SELECT count(*) FROM pump a JOIN pump b USING (dev) WHERE a.time = '2026-01-02' AND b.time = a.time"
    ) == [(1,)]
    assert set(world.opened) == set(inside)
    assert fault(world, "SELECT f FROM pump").startswith("unavailable: pump: the part of 2026-01-01 has no local copy")


def test_subquery_in_an_expression_sees_parts_that_the_outer_query_does_not(world: World) -> None:
    """Bounds of one reading of a table never prune another reading of it."""
    parts = world.write_parts([one(T0, f=9.0), one(T0 + DAY_NS, f=1.0)], COLUMNS, 1)
    world.define("pump", parts=parts)
    sql = "SELECT f FROM pump WHERE time >= '2026-01-02' AND f < (SELECT max(f) FROM pump)"
    assert world.query(sql) == [(1.0,)]
    exists = "EXISTS (SELECT 1 FROM pump b WHERE b.f = 9 AND b.dev = a.dev)"
    sql = f"SELECT a.f FROM pump a WHERE a.time >= '2026-01-02' AND {exists}"
    assert world.query(sql) == [(1.0,)]


def test_now_bounds_do_not_cut_rows_that_arrive_while_planning(world: World, monkeypatch) -> None:
    """`time <= now()` finds a row that came after the bounds were taken; a part of the far future is not opened."""
    future = world.write_parts([one(time.time_ns() + 2 * DAY_NS, f=2.0)], COLUMNS, 1)
    world.define("pump", parts=future)

    def view_with_a_new_row(_database, _tables):
        world.define("pump", parts=future, hot=[row_set([one(time.time_ns(), f=1.0)], COLUMNS)])
        return dict(world.tables)

    monkeypatch.setattr(world, "view", view_with_a_new_row)
    assert world.query("SELECT f FROM pump WHERE time > now() - interval '1 hour' AND time <= now()") == [(1.0,)]
    assert world.opened == []


def test_only_contested_rows_pay_for_the_aggregate(world: World) -> None:
    """Sets with times of their own are read without an aggregate, overlapping ones with it."""
    parts = world.write_parts([one(T0, f=1.0)], COLUMNS, 1) + world.write_parts([one(T0 + DAY_NS, f=1.0)], COLUMNS, 2)
    world.define("pump", parts=parts, hot=[row_set([one(T0 + 2 * DAY_NS, f=1.0)], COLUMNS)])
    plan = "\n".join(row[1] for row in world.query("EXPLAIN SELECT f FROM pump"))
    assert "Aggregate" not in plan
    world.define("pump", parts=parts, hot=[row_set([one(T0 + DAY_NS, f=1.0)], COLUMNS)])
    plan = "\n".join(row[1] for row in world.query("EXPLAIN SELECT f FROM pump"))
    assert "Aggregate" in plan


# Names ---------------------------------------------------------------------------------------------------------


def test_names_are_case_sensitive_and_hinted(world: World) -> None:
    """`Pump` is reached by quoting; asking for it unquoted says so."""
    world.define("Pump", hot=[row_set([one(T0, f=1.0)], COLUMNS, table="Pump")])
    assert world.query('SELECT f FROM "Pump"') == [(1.0,)]
    assert world.query('SELECT f FROM public.iox."Pump"') == [(1.0,)]
    assert fault(world, "SELECT f FROM Pump").startswith("not_found: ")
    assert '"Pump"' in fault(world, "SELECT f FROM PUMP")
    assert '"Site"' in fault(world, 'SELECT site FROM "Pump"')


def test_unknown_names(world: World) -> None:
    """An unknown table or database is not found, an unknown column is invalid."""
    world.define("pump")
    assert fault(world, "SELECT * FROM nope").startswith("not_found: ")
    assert fault(world, "SELECT nope FROM pump").startswith("invalid: ")
    with pytest.raises(QueryError, match="database 'other' does not exist") as caught:
        world.engine().run("other", "SELECT * FROM pump")
    assert caught.value.fault == "not_found"


def test_statements_without_tables(world: World) -> None:
    """What clients send before any table exists is answered, for a database that exists."""
    with pytest.raises(QueryError, match="database 'other' does not exist") as caught:
        world.engine().run("other", "select 1")
    assert caught.value.fault == "not_found"
    assert world.query("select 1") == [(1,)]
    assert world.query("SELECT database(), current_schema()") == [("iox", "iox")]
    assert world.query("SELECT count(*) FROM information_schema.tables WHERE table_schema = database()") == [(0,)]


def test_information_schema_lists_tables_and_columns(world: World) -> None:
    """Query editors find tables and columns under schema `iox`."""
    world.define("pump")
    world.define("Fan", COLUMNS[:3])
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = database() ORDER BY 1"
    assert world.query(tables) == [("Fan",), ("pump",)]
    columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'Fan'"
    assert unordered(world.query(columns)) == [("Site",), ("dev",), ("f",), ("time",)]
    assert world.query("DESCRIBE pump")[0][0] == "time"


def test_answers_use_types_that_every_client_takes(world: World) -> None:
    """Computed timestamps are ns too; dictionaries and views are plain utf8."""
    world.define("pump", hot=[row_set([one(T0, f=1.0)], COLUMNS)])
    sql = (
        "SELECT date_trunc('day', time) AS a, to_timestamp_seconds(1) AS b, arrow_cast(dev, 'Utf8View') AS c,"
        " arrow_cast(dev, 'Dictionary(Int32, Utf8)') AS d, dev || 'x' AS e FROM pump"
    )
    answer = world.engine().run("plant", sql)
    ns = pa.timestamp("ns", tz="UTC")
    assert answer.schema.types == [ns, pa.timestamp("ns"), pa.utf8(), pa.utf8(), pa.utf8()]
    assert rows_of(answer) == [(T0, 10**9, "a", "a", "ax")]


# Refusals ------------------------------------------------------------------------------------------------------

REFUSED = [
    "CREATE TABLE x AS SELECT 1",
    "CREATE VIEW x AS SELECT 1",
    "CREATE EXTERNAL TABLE x STORED AS CSV LOCATION '{path}'",
    "CREATE DATABASE x",
    "CREATE SCHEMA x",
    "CREATE FUNCTION f() RETURNS INT RETURN 1",
    "DROP TABLE pump",
    "INSERT INTO pump SELECT * FROM pump",
    "UPDATE pump SET f = 1",
    "DELETE FROM pump",
    "TRUNCATE TABLE pump",
    "COPY pump TO '{path}'",
    "COPY (SELECT 1) TO '{path}' STORED AS PARQUET",
    "EXPLAIN COPY pump TO '{path}'",
    "EXPLAIN ANALYZE COPY pump TO '{path}'",
    "EXPLAIN ANALYZE INSERT INTO pump SELECT * FROM pump",
    "SET datafusion.execution.batch_size = 1",
    "SET datafusion.runtime.memory_limit = '10G'",
    "RESET datafusion.execution.batch_size",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "BEGIN",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE pump",
    "SELECT * FROM read_csv('{path}')",
    "SELECT * FROM read_parquet('{path}')",
    "SELECT * FROM parquet_metadata('{path}')",
    "SELECT * FROM '{path}'",
    'SELECT * FROM "{path}"',
    "SELECT * FROM pump WHERE nonsense",
    "SELECT $missing",
    "SELECT",
    "",
]


@pytest.mark.parametrize("sql", REFUSED)
def test_anything_but_one_query_is_refused(world: World, sql: str) -> None:
    """Nothing writes, reads files, changes settings or brings a second statement."""
    world.define("pump", hot=[row_set([one(T0, f=1.0)], COLUMNS)])
    path = world.directory / "evil.csv"
    path.write_text("a\n1\n")
    said = fault(world, sql.format(path=path))
    assert said.startswith(("invalid: ", "not_found: "))
    assert path.read_text() == "a\n1\n"
    assert world.query("SELECT count(*) FROM pump") == [(1,)]


def test_zero_interval_is_explained(world: World) -> None:
    """A stride of zero, which a dashboard asks for below a second, is refused with a way out."""
    assert "minimum interval" in fault(world, "SELECT date_bin(interval '0 second', timestamp '2026-01-01T00:00:00Z')")


def test_endless_operator_chain_is_refused_and_the_process_lives(world: World) -> None:
    """A statement that would overflow the engine's stack never reaches it."""
    assert fault(world, "SELECT " + "+".join(["1"] * 100_000)).startswith("invalid: ")
    assert fault(world, "SELECT 1" + "::int" * 20_000).startswith("invalid: ")
    assert fault(world, "SELECT " + "(" * 1000 + "1" + ")" * 1000).startswith("invalid: ")
    values = ", ".join(f"'2026-01-01 00:{n // 60 % 60:02}:{n % 60:02}'" for n in range(3000))
    world.define("pump", hot=[row_set([one(T0, f=1.0)], COLUMNS)])
    assert world.query(f"SELECT count(*) FROM pump WHERE time IN ({values})") == [(1,)]


# Limits --------------------------------------------------------------------------------------------------------


def test_answer_with_too_many_rows(world: World) -> None:
    """One row more than the limit is an error, never a cut answer."""
    world.settings.max_rows = 10
    assert len(world.query("SELECT * FROM generate_series(1, 10)")) == 10
    assert fault(world, "SELECT * FROM generate_series(1, 11)").startswith("too_large: ")


def test_answer_with_too_many_bytes(world: World) -> None:
    """Few rows can be too much as well."""
    world.settings.memory_limit_bytes = MIB
    assert fault(world, "SELECT repeat('x', 100000) FROM generate_series(1, 100)").startswith("too_large: ")


def test_memory_limit_ends_the_query_alone(world: World) -> None:
    """A query that needs more than the pool fails as exhausted; the next one runs."""
    world.settings.memory_limit_bytes = 2 * MIB
    engine = world.engine()
    with pytest.raises(QueryError) as caught:
        engine.run("plant", "SELECT array_length(array_agg(value)) FROM generate_series(1, 3000000)")
    assert caught.value.fault == "exhausted"
    assert rows_of(engine.run("plant", "SELECT 1")) == [(1,)]


def test_memory_taken_outside_of_the_pool_ends_the_query(world: World, mocker) -> None:
    """The growth of the process counts, whoever took it; the turn is free again."""
    engine = world.engine(max_concurrent=1)
    mocker.patch.object(engine._memory, "_resident", side_effect=[0, *[10**12] * 1000])
    with pytest.raises(QueryError, match="MiB of memory") as caught:
        engine.run("plant", SLOW)
    assert caught.value.fault == "exhausted"
    mocker.stopall()
    assert rows_of(engine.run("plant", "SELECT 1")) == [(1,)]


def test_timeout_ends_the_query_and_frees_its_turn(world: World) -> None:
    """A query beyond its time is ended, and the only turn is free again."""
    world.settings.timeout_s = 0.3
    engine = world.engine(max_concurrent=1)
    with pytest.raises(QueryError) as caught:
        engine.run("plant", SLOW)
    assert caught.value.fault == "timeout"
    world.settings.timeout_s = 20
    assert rows_of(engine.run("plant", "SELECT 1")) == [(1,)]


SLOW = "SELECT sum(sin(value)) FROM generate_series(1, 1000000000000)"


@pytest.fixture
def busy(world: World) -> Iterator[SimpleNamespace]:
    """An engine whose only turn is taken by a query that runs until `cancel` is set."""
    engine = world.engine(max_concurrent=1)
    cancel, faults = threading.Event(), []

    def work() -> None:
        try:
            engine.run("plant", SLOW, cancel=cancel)
        except QueryError as error:
            faults.append(error.fault)

    worker = threading.Thread(target=work)
    worker.start()
    deadline = threading.Event()
    while engine._slots.acquire(blocking=False):
        engine._slots.release()
        deadline.wait(0.005)
    yield SimpleNamespace(engine=engine, cancel=cancel, worker=worker, faults=faults)
    cancel.set()
    worker.join(20)


def test_query_that_gets_no_turn_is_told_so(world: World, busy: SimpleNamespace) -> None:
    """With every turn taken for the whole timeout the answer is: try again later."""
    world.settings.timeout_s = 0.2
    with pytest.raises(QueryError, match="too many queries") as caught:
        busy.engine.run("plant", "SELECT 1")
    assert caught.value.fault == "unavailable"


def test_cancel_ends_a_running_query(busy: SimpleNamespace) -> None:
    """Setting the event ends the query well before its timeout."""
    busy.cancel.set()
    busy.worker.join(10)
    assert busy.faults == ["unavailable"]


def test_close_ends_running_and_new_queries(busy: SimpleNamespace) -> None:
    """Nothing runs on after close."""
    busy.engine.close()
    busy.worker.join(10)
    assert busy.faults == ["unavailable"]
    with pytest.raises(QueryError, match="stopping"):
        busy.engine.run("plant", SLOW)


def test_queries_share_one_memory_pool(world: World) -> None:
    """Sessions made from one engine reserve from the same pool, so that the limit holds for all together."""
    world.settings.memory_limit_bytes = 8 * MIB
    engine = world.engine()
    first, second = (engine._session("plant", {})[0] for _ in range(2))
    join = "SELECT a.value FROM generate_series(1, 300000) a JOIN generate_series(1, {}) b ON a.value = b.value"
    held = first.sql(join.format(10**12)).execute_stream()
    held.next()
    with pytest.raises(Exception, match="Resources exhausted"):
        second.sql(join.format(10)).collect()
    del held
    give_up_s = time.monotonic() + 10
    while time.monotonic() < give_up_s:
        try:
            assert second.sql(join.format(10)).count() == 10
        except Exception as error:  # what was dropped is freed when its tasks next yield
            assert "Resources exhausted" in str(error)
        else:
            return
    pytest.fail("the memory of a dropped query was not freed")


def test_metrics_count_outcomes(world: World) -> None:
    """Every query is counted once, by how it ended."""
    metrics = Metrics()
    engine = SqlEngine(world, world, world.directory / "view", world.settings, metrics)
    engine.run("plant", "SELECT 1")
    with pytest.raises(QueryError):
        engine.run("plant", "SELECT * FROM nope")
    assert metrics.queries.samples() == [(("not_found",), 1), (("ok",), 1)]
    assert metrics.query_seconds.count == 2


def test_params_fill_placeholders(world: World) -> None:
    """Values come in by name, with or without the sign."""
    assert rows_of(world.engine().run("plant", "SELECT $a + 1, $b", {"a": 1, "$b": "x"})) == [(2, "x")]
    assert fault(world, "SELECT $a").startswith("invalid: ")


def test_date_of_a_part_before_the_epoch(world: World) -> None:
    """The helper writes floor dates, as the appliance does."""
    assert [p.date for p in world.write_parts([one(-1, f=1.0)], COLUMNS, 1)] == [dt.date(1969, 12, 31)]
