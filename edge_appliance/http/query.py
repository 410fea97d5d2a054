"""SQL over HTTP, and one sentence for the query languages that are not spoken here.

A query runs in a thread of its own; its result is encoded in a worker thread and sent piece by piece, so the event
loop only moves bytes. A client that leaves takes its query with it.
"""

from __future__ import annotations

import asyncio
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from aiohttp import web

from edge_appliance.errors import QueryError, QueryFault
from edge_appliance.http.answers import json_answer, one_line, refuse, refuse_unless_running
from edge_appliance.http.body import Held, read_body
from edge_appliance.http.dependencies import Answer, HttpDependencies
from edge_appliance.http.encode import Format, fill, formats
from edge_appliance.http.query_threads import start_query

_STATUS: Final[dict[QueryFault, int]] = {
    "invalid": 400,
    "not_found": 404,
    "too_large": 400,
    "exhausted": 503,
    "unavailable": 503,
    "timeout": 504,
}
_RETRY_S: Final = 2
_BODY_BYTES_MAX: Final = 2**20
"""Of a query's body; SQL text is small."""
_PIECE_BYTES: Final = 256 * 1024
_WAIT_S: Final = 10.0
"""How long a query waits for its turn."""
_LOOK_S: Final = 0.25
"""How often a running query is asked whether its client is still there."""
_SHOW_DATABASES: Final = re.compile(r"\s*SHOW\s+DATABASES\s*;?\s*", re.IGNORECASE)
_MEDIA_TYPES: Final = {
    "application/json": "json",
    "application/jsonl": "jsonl",
    "application/x-ndjson": "jsonl",
    "text/csv": "csv",
    "text/plain": "pretty",
    "application/vnd.apache.parquet": "parquet",
}
_USE_SQL: Final = "use SQL: GET or POST /api/v3/query_sql with db and q"


class _Asked(msgspec.Struct):
    """The parameters, as they may be stated."""

    q: Annotated[str, msgspec.Meta(min_length=1)]
    db: str = ""
    format: str = ""
    params: dict[str, str | int | float | bool | None] | None = None


@dataclass(frozen=True, slots=True)
class _Question:
    database: str
    sql: str
    format: Format
    params: Mapping[str, Any] | None


class Queries:
    """The handlers of the query paths."""

    def __init__(self, dependencies: HttpDependencies, workers: Executor) -> None:
        limits = dependencies.limits
        self._needs = dependencies
        self._workers = workers
        self._turns = asyncio.Semaphore(limits.max_queries)
        self._in_flight = 0
        """Queries that run or wait for their turn."""
        self._body_limits = replace(limits, max_body_bytes=min(_BODY_BYTES_MAX, limits.max_body_bytes))
        self._held = Held(self._body_limits.held_bytes)
        self._formats = formats(dependencies.encode_parquet)

    async def sql(self, request: web.Request) -> web.StreamResponse:
        """Run one SQL statement and send its result."""
        refusal = refuse_unless_running(request, self._needs.health)
        if refusal is not None:
            return refusal
        question = await self._question(request)
        if isinstance(question, web.Response):
            return question
        limits = self._needs.limits
        if self._in_flight >= limits.max_queries + limits.max_waiting_queries:
            return refuse(request, 503, "too many queries are waiting", retry_after_s=_RETRY_S)
        self._in_flight += 1
        try:
            return await self._in_turn(request, question)
        finally:
            self._in_flight -= 1

    async def influxql_v1(self, request: web.Request) -> web.StreamResponse:
        """`SHOW DATABASES`, which v1 clients ask to test a connection; nothing else."""
        refusal = refuse_unless_running(request, self._needs.health)
        if refusal is not None:
            return refusal
        fields = await self._fields(request)
        if isinstance(fields, web.Response):
            return fields
        if not _SHOW_DATABASES.fullmatch(str(fields.get("q", ""))):
            return await self.influxql(request)
        series: dict[str, object] = {"name": "databases", "columns": ["name"]}
        if names := sorted(self._needs.databases()):
            series["values"] = [[name] for name in names]
        return json_answer({"results": [{"statement_id": 0, "series": [series]}]})

    async def influxql(self, request: web.Request) -> web.StreamResponse:
        """Refuse InfluxQL."""
        return refuse(request, 501, f"InfluxQL is not supported; {_USE_SQL}")

    async def flux(self, request: web.Request) -> web.StreamResponse:
        """Refuse Flux."""
        return refuse(request, 501, f"Flux is not supported; {_USE_SQL}")

    async def _in_turn(self, request: web.Request, question: _Question) -> web.StreamResponse:
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._turns.acquire()
        except TimeoutError:
            return refuse(request, 503, f"no query ended within {_WAIT_S:g} s", retry_after_s=_RETRY_S)
        if request.transport is None:
            self._turns.release()
            raise ConnectionResetError("the client left before its turn")
        cancel = threading.Event()
        running = start_query(
            lambda: self._needs.sql.run(question.database, question.sql, question.params, cancel=cancel)
        )
        try:
            answer = await self._answer(request, running)
            return await self._send(request, question.format, answer)
        except QueryError as error:
            status = _STATUS[error.fault]
            return refuse(request, status, str(error), retry_after_s=_RETRY_S if status == 503 else 0)
        finally:
            # Held until the last byte is sent and the thread has ended: at most this many results are in memory.
            cancel.set()
            running.add_done_callback(lambda _: self._turns.release())

    async def _answer(self, request: web.Request, running: asyncio.Future[Answer]) -> Answer:
        """Wait for the engine, but not longer than its time limit or its client."""
        limit_s = self._needs.limits.query_s
        give_up_s = asyncio.get_running_loop().time() + limit_s
        while not (await asyncio.wait({running}, timeout=_LOOK_S))[0]:
            if request.transport is None:
                raise ConnectionResetError("the client left before its answer")
            if asyncio.get_running_loop().time() > give_up_s:
                raise QueryError("timeout", f"the query did not end within {limit_s:g} s; it is being cancelled")
        return running.result()

    async def _send(self, request: web.Request, result_format: Format, answer: Answer) -> web.StreamResponse:
        pieces = result_format.encode(answer.schema, answer.batches)
        try:
            piece, has_more = await self._encoded(pieces)
        except pa.ArrowNotImplementedError as error:
            return refuse(request, 400, f"{result_format.name} cannot hold this result: {one_line(str(error))}")
        headers = {"Content-Type": result_format.content_type}
        if not has_more:
            return web.Response(body=piece, headers=headers)
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        try:
            while piece:
                async with asyncio.timeout(self._needs.limits.send_timeout_s):
                    await response.write(piece)
                piece, has_more = await self._encoded(pieces) if has_more else (b"", False)
        except BaseException as error:
            # Cut off, not ended: what was sent so far must not look like a whole result.
            if request.transport is not None:
                request.transport.abort()
            if isinstance(error, TimeoutError):
                raise ConnectionResetError("the client stopped reading its result") from error
            raise
        return response

    async def _encoded(self, pieces: Iterator[bytes]) -> tuple[bytes, bool]:
        return await asyncio.get_running_loop().run_in_executor(self._workers, fill, pieces, _PIECE_BYTES)

    async def _question(self, request: web.Request) -> _Question | web.Response:
        fields = await self._fields(request)
        if isinstance(fields, web.Response):
            return fields
        try:
            if isinstance(fields.get("params"), str):
                fields["params"] = msgspec.json.decode(fields["params"])
            asked = msgspec.convert(fields, _Asked)
        except (ValueError, RecursionError) as error:
            return refuse(request, 400, f"bad parameters: {error}")
        result_format = self._formats.get(asked.format or _accepted(request.headers.get("Accept", "")))
        if result_format is None:
            return refuse(request, 400, f"the format must be one of {', '.join(self._formats)}")
        names = [asked.db] if asked.db else sorted(self._needs.databases())
        if len(names) != 1:
            return refuse(request, 400, f"the parameter db is missing; databases: {', '.join(names[:20]) or 'none'}")
        return _Question(names[0], asked.q, result_format, asked.params or None)

    async def _fields(self, request: web.Request) -> dict[str, Any] | web.Response:
        """Parameters of the URL, overridden by those of a JSON or form body."""
        fields: dict[str, Any] = dict(request.query)
        if request.method != "POST":
            return fields
        with self._held.share() as share:
            body = await read_body(request, self._body_limits, share, self._workers)
        if isinstance(body, web.Response):
            return body
        try:
            if body.lstrip().startswith(b"{"):
                fields.update(msgspec.json.decode(body, type=dict[str, Any]))
            else:
                fields.update(urllib.parse.parse_qsl(body.decode(), max_num_fields=20))
        except (ValueError, RecursionError) as error:
            return refuse(request, 400, f"the body is neither JSON nor a form: {error}")
        return fields


def _accepted(header: str) -> str:
    for media_range in header.split(","):
        name = _MEDIA_TYPES.get(media_range.partition(";")[0].strip().lower())
        if name:
            return name
    return "json"
