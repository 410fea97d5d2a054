"""Hostile and clumsy statements on a real engine, in a process that cannot take more than its address space."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

MIB = 2**20
ROWS = 50_000
ADDRESS_SPACE = 4_000 * MIB
GROWTH_LIMIT = 400 * MIB

HOSTILE = {
    "repeat": ("invalid", "SELECT length(repeat('x', 2000000000))"),
    "lpad": ("invalid", "SELECT length(lpad('x', 1500000000, 'y'))"),
    "range": ("invalid", "SELECT array_length(range(0, 300000000))"),
    "unnest": ("invalid", "SELECT count(*) FROM (SELECT unnest(range(0, 100000000)))"),
    "array_repeat": ("invalid", "SELECT array_length(array_repeat(1, 500000000))"),
    "300 tables": ("invalid", "SELECT * FROM m m0, " + ", ".join(f"m m{n}" for n in range(1, 300)) + " LIMIT 1"),
    "20 tables": ("too_large", "SELECT count(*) FROM " + ", ".join(f"m m{n}" for n in range(20))),
    "endless recursion": (
        "invalid",
        "WITH RECURSIVE t AS (SELECT 1 n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
    ),
    "product": ("too_large", "SELECT count(*) FROM m a, m b WHERE a.f + b.f < 0"),
    "inequality": ("too_large", "SELECT sum(a.f) FROM m a JOIN m b ON a.time < b.time"),
    "join on few keys": ("too_large", "SELECT count(*) FROM m a JOIN m b ON a.dev = b.dev"),
    "analyzed": ("too_large", "EXPLAIN ANALYZE SELECT count(*) FROM m a JOIN m b ON a.dev = b.dev"),
    "exists": ("too_large", "SELECT 1 FROM m a WHERE EXISTS (SELECT 1 FROM m b WHERE b.dev = a.dev AND b.f < a.f)"),
    "in": ("too_large", "SELECT count(*) FROM m WHERE dev IN (SELECT dev FROM m)"),
    "in a scalar": ("too_large", "SELECT (SELECT count(*) FROM m a JOIN m b ON a.dev = b.dev) FROM m"),
    "series": ("too_large", "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b"),
    "list in every row": ("invalid", "SELECT array_length(x) FROM (SELECT array_agg(f) x FROM m) a, m"),
    "list over a window": ("invalid", "SELECT array_agg(f) OVER () FROM m"),
    "list in a scalar": ("invalid", "SELECT (SELECT array_agg(f) FROM m), f FROM m"),
    "cube": ("invalid", "SELECT count(*) FROM m GROUP BY cube(" + ", ".join(f"f + {n}" for n in range(14)) + ")"),
}  # fmt: skip
FINE = {
    "join on the key": "SELECT count(*) FROM m a JOIN m b ON a.dev = b.dev AND a.time = b.time",
    "join of three": "SELECT count(*) FROM m a LEFT JOIN m b ON a.time = b.time JOIN m c ON b.time = c.time",
    "join with a series": "SELECT count(*) FROM m JOIN generate_series(0, 1000000) g ON f = value",
    "join of groups": "SELECT count(*) FROM m a JOIN (SELECT dev, avg(f) v FROM m GROUP BY dev) b USING (dev)",
    "distinct in": "SELECT count(*) FROM m WHERE dev IN (SELECT DISTINCT dev FROM m)",
    "scalar": "SELECT count(*) FROM m WHERE f <= (SELECT max(f) FROM m)",
    "literal in every row": f"SELECT count(*) FROM m WHERE length(s || '{'x' * 200_000}') > 9",
    "series in every row": "SELECT count(*) FROM m WHERE array_length(range(0, 100000)) > 9",
    "text in every row": "SELECT count(*) FROM (SELECT repeat('x', 200000) v FROM m) WHERE length(v) > 9",
}


def run_all() -> dict[str, Any]:
    """In the bounded process: how each statement ended, how long it took, how far the process grew."""
    import psutil
    import pyarrow as pa
    from test_sql import T0, World, rows_of

    from edge_appliance.core.columns import OPEN_RANK, Chunk, RowSet, SeriesTags
    from edge_appliance.core.delivery import ColumnDefinition, Kind
    from edge_appliance.errors import QueryError

    kinds = (("dev", Kind.TAG), ("f", Kind.FLOAT), ("s", Kind.STRING))
    columns = tuple(ColumnDefinition(name, kind) for name, kind in kinds)
    fields = {"f": pa.array(range(ROWS)).cast(pa.float64()), "s": pa.array(["abc"] * ROWS)}
    refs = pa.array([n % 5 for n in range(ROWS)], pa.uint32())
    chunk = Chunk(refs, pa.array(range(T0, T0 + ROWS * 10**6, 10**6), pa.int64()), fields, 0)
    series = SeriesTags([(("dev", f"d{n}"),) for n in range(5)], 5)
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        world.settings.memory_limit_bytes = 128 * MIB
        world.define("m", columns, [RowSet("plant", "m", OPEN_RANK, columns, series, (chunk,), T0, T0 + 2**60, 0)])
        engine, process = world.engine(), psutil.Process()
        engine.run("plant", "SELECT count(*) FROM m")
        before, peak, done = process.memory_info().rss, [0], threading.Event()

        def sample() -> None:
            while not done.wait(0.01):
                peak[0] = max(peak[0], process.memory_info().rss - before)

        sampler = threading.Thread(target=sample)
        sampler.start()
        outcomes: dict[str, Any] = {}
        for name, sql in ({name: sql for name, (_, sql) in HOSTILE.items()} | FINE).items():
            started_s = time.monotonic()
            try:
                outcome = rows_of(engine.run("plant", sql))[0][0]
            except QueryError as error:
                outcome = error.fault
            outcomes[name] = [outcome, time.monotonic() - started_s]
        done.set()
        sampler.join()
    return {"outcomes": outcomes, "growth": peak[0]}


@pytest.fixture(scope="module")
def report() -> Any:
    """What the bounded process saw."""
    ended = subprocess.run(
        [sys.executable, __file__],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_statement_is_refused_at_once(report: Any, name: str) -> None:
    """It ends with its fault, before it took time or memory."""
    outcome, seconds = report["outcomes"][name]
    assert outcome == HOSTILE[name][0]
    assert seconds < 5


@pytest.mark.parametrize("name", FINE)
def test_useful_statement_next_to_it_is_answered(report: Any, name: str) -> None:
    """What looks like it and costs little runs, and finds every row."""
    outcome, _ = report["outcomes"][name]
    assert outcome == ROWS


def test_the_process_stayed_small(report: Any) -> None:
    """All of them together never took more than a few batches and the pool."""
    assert report["growth"] < GROWTH_LIMIT


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    print(json.dumps(run_all()))
