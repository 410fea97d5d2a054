"""Counts what is in a bucket the way an outsider would: every object, read by DuckDB."""

from __future__ import annotations

from pathlib import Path

import duckdb
import obstore
from obstore.store import S3Store


def download(client: S3Store, prefix: str, target: Path) -> list[str]:
    """Copy all parts below `prefix` into `target`; returns their keys."""
    keys = []
    for meta in client.list(prefix).collect():
        key = meta["path"].removeprefix(prefix).lstrip("/")
        if key.startswith("_"):
            continue  # our own files, which readers ignore
        keys.append(key)
        path = target / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(obstore.get(client, meta["path"]).bytes()))
    return keys


def numbers(target: Path, table: str, column: str = "id") -> list[int]:
    """Values of an integer column in all rows of a table of the database `edge`; empty without any file."""
    if not any((target / "edge" / table).rglob("*.parquet")):
        return []
    files = f"{target}/edge/{table}/*/*.parquet"
    query = f"SELECT {column} FROM read_parquet('{files}', hive_partitioning = true, union_by_name = true)"
    with duckdb.connect() as connection:
        return [int(number) for (number,) in connection.execute(query).fetchall()]
