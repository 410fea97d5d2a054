"""What the appliance wrote, read by others: the snippets of the README, word for word, against known rows.

DuckDB is always there. `make readers` brings Polars and pandas, and with SPARK=1 PySpark, and then none may be missing.
"""

from __future__ import annotations

import datetime as dt
import glob
import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from appliance_process import ApplianceProcess
from ports import free_port, wait_until

ROOT = Path(__file__).parent.parent.parent
REQUIRED = frozenset(os.environ.get("EDGE_READERS", "").split())
BASE_NS = 1_767_225_600_000_000_000
ROWS = 300

pytestmark = [pytest.mark.integration, pytest.mark.slow]

Row = tuple[int, str | None, str | None, int | None, float | None, int | None, bool | None, str | None]


def expected() -> list[Row]:
    """(ns, site, date tag, i, f, u, b, note) of all rows: times that need ns, and columns that came later."""
    rows: list[Row] = []
    for n in range(ROWS):
        time_ns = BASE_NS + n * 3_600 * 10**9 // 10 + n * 7 + 1
        is_late = n >= ROWS // 2
        rows.append(
            (
                time_ns,
                None if n % 5 == 0 else f"k{n % 3}",
                "x" if n % 2 else None,
                n - 100,
                n / 8,
                2**64 - 1 - n,
                n % 2 == 0,
                f"nöte {n}" if is_late else None,
            )
        )
    return rows


def line(row: Row) -> str:
    """The row in line protocol."""
    time_ns, site, date, i, f, u, b, note = row
    tags = "".join(f",{k}={v}" for k, v in (("site", site), ("date", date)) if v is not None)
    later = f',note="{note}"' if note is not None else ""
    return f"press{tags} i={i}i,f={f},u={u}u,b={str(b).lower()}{later} {time_ns}"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of an appliance: parts before and after a column came, some merged and some not."""
    settings: dict[str, dict[str, object]] = {"segment": {"max_age": "1s"}, "maintain": {"period": "100ms"}}
    with ApplianceProcess(tmp_path_factory.mktemp("readers"), mqtt_port=free_port(), settings=settings) as appliance:
        appliance.start()
        rows = expected()
        for start in range(0, ROWS, 50):
            appliance.write("\n".join(map(line, rows[start : start + 50])).encode())
            wait_until(lambda: appliance.metric("buffer_bytes") == 0, "the rows are persisted", pause_s=0.05)
        wait_until(lambda: appliance.metrics()['parts{state="spooled"}'] == 0, "the store has all parts")
        appliance.stop()
        yield appliance.data_dir


@pytest.fixture
def here(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snippets name the store relative to the data directory."""
    monkeypatch.chdir(data_dir)
    return data_dir


def reader(name: str) -> Any:
    """A library, or a skip where it was not asked for."""
    if name in REQUIRED:
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"make readers brings {name}")


def snippet(language: str, word: str) -> str:
    """The README's block in `language` that holds `word`."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (found,) = [block for block in blocks if word in block]
    return str(found)


def same(found: list[Row]) -> None:
    """Equal to what was written, in order of time."""
    assert sorted(found, key=lambda row: row[0]) == expected()


def test_duckdb_reads_everything(here: Path) -> None:
    """By name, exact to the nanosecond, with a column that came later, and the partition's date."""
    answer = duckdb.sql(snippet("sql", "read_parquet"))
    names = [name for name, *_ in answer.description]
    assert len(names) == len(set(names)), "no name is there twice"
    wanted = "exact_ns, site, date_, i, f, u::HUGEINT, b, note"
    same(duckdb.sql(f"SELECT {wanted} FROM answer").fetchall())
    dates = duckdb.sql('SELECT DISTINCT "date" FROM answer ORDER BY 1').fetchall()
    assert dates == [(dt.date(2026, 1, 1),), (dt.date(2026, 1, 2),)]


def test_pyarrow_reads_everything(here: Path) -> None:
    """As a data set with the schema of the newest file."""
    scope: dict[str, Any] = {"glob": glob, "ds": ds, "pa": pa}
    exec(snippet("python", "ds.dataset"), scope)  # noqa: S102 - the document under test
    table = scope["table"]
    times = [
        us * 1_000 + ns
        for us, ns in zip(table["time"].cast("int64").to_pylist(), table["time_ns"].to_pylist(), strict=True)
    ]
    columns = [table[name].to_pylist() for name in ("site", "date_", "i", "f", "u", "b", "note")]
    same(list(zip(times, *columns, strict=True)))


def test_pandas_reads_everything(here: Path) -> None:
    """Exact times, and integers that stay integers beside nulls."""
    pandas = reader("pandas")
    scope: dict[str, Any] = {"glob": glob, "pd": pandas}
    exec(snippet("python", "pd.read_parquet"), scope)  # noqa: S102 - the document under test
    frame = scope["df"].astype(object).where(scope["df"].notna(), None)
    times = [int(time.value) for time in scope["df"]["time"]]
    columns = [frame[name].tolist() for name in ("site", "date_", "i", "f", "u", "b", "note")]
    same(list(zip(times, *columns, strict=True)))


def test_polars_reads_everything(here: Path) -> None:
    """Exact times, and a column that only newer files have."""
    polars = reader("polars")
    scope: dict[str, Any] = {"glob": glob, "pl": polars}
    exec(snippet("python", "pl.read_parquet"), scope)  # noqa: S102 - the document under test
    frame = scope["df"]
    times = frame["time"].dt.timestamp("ns").to_list()
    columns = [frame[name].to_list() for name in ("site", "date_", "i", "f", "u", "b", "note")]
    same(list(zip(times, *columns, strict=True)))


def test_spark_reads_everything(here: Path) -> None:
    """With default settings but mergeSchema; the date of the directory is a column."""
    reader("pyspark")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    try:
        scope: dict[str, Any] = {"spark": spark}
        exec(snippet("python", "spark.read"), scope)  # noqa: S102 - the document under test
        wanted = ("exact_ns", "site", "date_", "i", "f", "u", "b", "note")
        same([tuple(row) for row in scope["press"].select(*wanted).collect()])
        assert {str(row["date"]) for row in scope["press"].select("date").distinct().collect()} == {
            "2026-01-01",
            "2026-01-02",
        }
    finally:
        spark.stop()
