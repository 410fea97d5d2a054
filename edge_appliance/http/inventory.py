"""What there is: tables, parts, and what maintenance would do next. For the commands that show it."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Executor
from typing import Final

from aiohttp import web

from edge_appliance.config_values import time_text
from edge_appliance.core.parts import Part, age, part_key
from edge_appliance.http.answers import json_answer, refuse, refuse_unless_running
from edge_appliance.http.dependencies import HttpDependencies

MAX_PARTS: Final = 100_000
"""Of one answer, which is made in memory: some 30 MB."""


class Inventory:
    """The handlers."""

    def __init__(self, dependencies: HttpDependencies, workers: Executor) -> None:
        self._needs = dependencies
        self._workers = workers

    async def tables(self, request: web.Request) -> web.Response:
        """Tables of the database `db`: {table: {column: kind}}."""
        database = request.query.get("db", "")
        if (refusal := refuse_unless_running(request, self._needs.health)) is not None:
            return refusal
        if database not in self._needs.databases():
            return refuse(request, 404, f"database {database!r} does not exist")
        names = self._needs.table_names(database)
        columns = {name: self._needs.columns(database, name) or () for name in names}
        return json_answer({name: {c.name: c.kind.name.lower() for c in found} for name, found in columns.items()})

    async def parts(self, request: web.Request) -> web.Response:
        """Live parts, the oldest first, one JSON object a line; `db` and `table` select."""
        if (refusal := refuse_unless_running(request, self._needs.health)) is not None:
            return refusal
        body = await asyncio.get_running_loop().run_in_executor(
            self._workers, self._listed, request.query.get("db"), request.query.get("table")
        )
        return web.Response(body=body, content_type="application/x-ndjson")

    async def maintenance(self, request: web.Request) -> web.Response:
        """What the next run of maintenance would do."""
        if (refusal := refuse_unless_running(request, self._needs.health)) is not None:
            return refusal
        plan = await asyncio.get_running_loop().run_in_executor(self._workers, self._needs.maintenance)
        return json_answer(plan)

    def _listed(self, database: str | None, table: str | None) -> bytes:
        chosen = [
            part for part in self._needs.parts() if database in (None, part.database) and table in (None, part.table)
        ]
        chosen.sort(key=age)
        return "".join(json.dumps(describe(part), ensure_ascii=False) + "\n" for part in chosen[:MAX_PARTS]).encode()


def describe(part: Part) -> dict[str, object]:
    """A part as plain data."""
    return {
        "database": part.database,
        "table": part.table,
        "date": part.date.isoformat(),
        "rows": part.rows,
        "bytes": part.size_bytes,
        "min_time": time_text(part.min_time_ns),
        "max_time": time_text(part.max_time_ns),
        "ranks": [part.rank_lo, part.rank_hi],
        "slice": [part.slice, part.slices],
        "stored": part.is_stored,
        "key": part_key(part),
    }
