"""What a table must look like, kept beside the storing half: the last value of each field of each key, exactly once."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from core_harness import Core

from edge_appliance.core.parts import part_name
from edge_appliance.metrics import Metrics
from edge_appliance.sql import SqlEngine

DEADLINE_S = 20.0


@dataclass(frozen=True)
class QueryLimits:
    """Enough for every test."""

    memory_limit_bytes: int = 2**28
    timeout_s: float = DEADLINE_S
    max_rows: int = 1_000_000


class Spool:
    """Finds parts where the persister leaves them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open_path(self, part) -> Path:
        """The file of a part."""
        return self._directory / part_name(part)

    @contextlib.contextmanager
    def reading(self):
        """No file is deleted."""
        yield

    @contextlib.contextmanager
    def held(self, parts, until_s, check):
        """Nothing is fetched and nothing goes."""
        yield


def engine_of(core: Core, directory: Path) -> SqlEngine:
    """SQL over a core; parts are where the persister leaves them."""
    directory.mkdir(exist_ok=True)
    return SqlEngine(core.buffer, Spool(core.paths.spool), directory / "view", QueryLimits(), Metrics())


class Model:
    """Rows by table, tag `host` and time, as lines were written to them in order."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], dict[str, float]] = {}

    def write(self, core: Core, *lines: tuple[str, str, int, dict[str, float]]) -> None:
        """Write lines (table, host, time, fields) as one group, here and there."""
        text = []
        for table, host, time_ns, fields in lines:
            values = ",".join(f"{name}={value}" for name, value in fields.items())
            text.append(f"{table},host={host} {values} {time_ns}")
            self.rows.setdefault((table, host, time_ns), {}).update(fields)
        core.write("\n".join(text).encode())

    def copy(self) -> Model:
        """The same, to be gone on with on its own."""
        copied = Model()
        copied.rows = {key: dict(fields) for key, fields in self.rows.items()}
        return copied

    def check(self, engine: SqlEngine, tables=("a", "b"), *, has_all_shapes=True) -> None:
        """Assert that all rows, and other shapes of queries, show exactly these."""
        for table in tables:
            mine = {key[1:]: fields for key, fields in self.rows.items() if key[0] == table}
            if not mine:
                continue
            answer = engine.run("edge", f"SELECT * FROM {table}")
            rows = pa.Table.from_batches(answer.batches, answer.schema)
            rows = rows.set_column(rows.schema.get_field_index("time"), "time", rows["time"].cast(pa.int64()))
            found = {}
            for row in rows.to_pylist():
                key = row.pop("host"), row.pop("time")
                assert key not in found, f"{table} {key} is there twice"
                found[key] = {name: value for name, value in row.items() if value is not None}
            assert found == mine
            if not has_all_shapes:
                continue
            (count,) = values(engine, f"SELECT count(*) FROM {table}")
            assert count == len(mine)
            (total,) = values(engine, f"SELECT sum(v) FROM {table}")
            assert (total or 0) == sum(fields.get("v", 0) for fields in mine.values())
            newest = values(engine, f"SELECT time FROM {table} ORDER BY time DESC LIMIT 3", as_ns=True)
            assert newest == sorted((time_ns for _, time_ns in mine), reverse=True)[:3]
            by_host = dict(zip(*columns(engine, f"SELECT host, count(v) FROM {table} GROUP BY host"), strict=True))
            hosts = {host for host, _ in mine}
            assert by_host == {h: sum(host == h and "v" in f for (host, _), f in mine.items()) for h in hosts}


def columns(engine: SqlEngine, sql: str) -> list[list]:
    """Columns of an answer."""
    answer = engine.run("edge", sql)
    return [column.to_pylist() for column in pa.Table.from_batches(answer.batches, answer.schema).columns]


def values(engine: SqlEngine, sql: str, *, as_ns: bool = False) -> list:
    """The only column of an answer."""
    answer = engine.run("edge", sql)
    column = pa.Table.from_batches(answer.batches, answer.schema).column(0)
    return (column.cast(pa.int64()) if as_ns else column).to_pylist()


@contextlib.contextmanager
def closing_all(*things):
    """Close or abandon, whatever each thing has."""
    try:
        yield
    finally:
        for thing in things:
            (getattr(thing, "abandon", None) or thing.close)()
