"""The HTTP side: its routes, what every request passes, and the server that listens.

    /ping /health                                   open
    /ready /metrics /api/v1/status                  probes.py
    /write /api/v2/write /api/v3/write_lp           write.py
    /api/v1/tables /parts /maintenance              inventory.py
    /api/v3/query_sql /query /api/v2/query          query.py

Every request is counted, every rejected one is one line in the journal, without its query string: it may hold a
token. What is unknown is 404 in JSON, never 405 and never HTML.
"""

from __future__ import annotations

import logging
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from edge_appliance.errors import PathError
from edge_appliance.http.answers import REFUSAL, one_line, refuse
from edge_appliance.http.dependencies import HttpDependencies
from edge_appliance.http.inventory import Inventory
from edge_appliance.http.probes import Probes
from edge_appliance.http.query import Queries
from edge_appliance.http.tokens import is_allowed
from edge_appliance.http.write import WRITE_PATHS, Writes

_log = logging.getLogger(__name__)

_WORKERS: Final = 2
"""Threads that inflate bodies and encode results."""
_IDLE_S: Final = 75.0
"""For a connection between requests and for a whole request head; longer than what proxies keep."""
_LINGER_S: Final = 5.0
"""How long the rest of a refused body is read, so that the client sees the answer and not a reset."""


def build_app(dependencies: HttpDependencies) -> web.Application:
    """The application, with its own worker threads; they end with it."""
    workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="http")
    probes, writes, queries = Probes(dependencies), Writes(dependencies, workers), Queries(dependencies, workers)
    app = web.Application(middlewares=[_guard(dependencies)])
    router = app.router
    router.add_get("/ping", probes.ping)
    router.add_get("/health", probes.health)
    router.add_get("/ready", probes.ready)
    router.add_get("/metrics", probes.metrics)
    router.add_get("/api/v1/status", probes.status)
    inventory = Inventory(dependencies, workers)
    router.add_get("/api/v1/tables", inventory.tables)
    router.add_get("/api/v1/parts", inventory.parts)
    router.add_get("/api/v1/maintenance", inventory.maintenance)
    for path in WRITE_PATHS:
        router.add_post(path, writes.handle)
    for method in ("GET", "POST"):
        router.add_route(method, "/api/v3/query_sql", queries.sql)
        router.add_route(method, "/api/v3/query_influxql", queries.influxql)
        router.add_route(method, "/query", queries.influxql_v1)
    router.add_post("/api/v2/query", queries.flux)

    async def name_server(_: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = f"edge-appliance/{dependencies.version}"
        response.headers["X-Content-Type-Options"] = "nosniff"

    async def end_threads(_: web.Application) -> None:
        workers.shutdown(wait=False, cancel_futures=True)

    app.on_response_prepare.append(name_server)
    app.on_cleanup.append(end_threads)
    return app


def _guard(dependencies: HttpDependencies) -> Middleware:
    requests, token = dependencies.metrics.http_requests, dependencies.token

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "other"
        status = 499
        """The client went away."""
        try:
            answer = await _answered(request, handler, token)
            status = answer.status
        finally:
            requests.add(1, path, str(status))
        reason = answer.get(REFUSAL)
        if reason is not None:
            shown = path if resource is not None else one_line(request.path, 100)
            _log.warning(
                "%s %s from %s answered %d: %s", request.method, shown, request.remote, status, one_line(reason)
            )
        return answer

    return guard


async def _answered(request: web.Request, handler: Handler, token: str | None) -> web.StreamResponse:
    if not is_allowed(request, token):
        message = "the request was not authenticated"
        answer = refuse(request, 401, message)
        answer.headers["WWW-Authenticate"] = 'Token realm="edge-appliance"'
        return answer
    try:
        return await handler(request)
    except web.HTTPException:
        # The router's: neither path nor method is known.
        return refuse(request, 404, f"there is no {request.method} {one_line(request.path, 100)}")
    except web.RequestPayloadError as error:
        return refuse(request, 400, f"the body is not valid HTTP: {one_line(str(error))}")
    except ConnectionError:
        raise
    except Exception:
        # The protocol border: the client gets an id, never our paths; the journal gets the traceback under it.
        fault = uuid.uuid4().hex[:8]
        _log.exception("internal error %s at %s", fault, request.match_info.route.resource)
        return refuse(request, 500, f"internal error, id {fault}")


class _PlainFaults(logging.Filter):
    """What clients do wrong: a malformed request is one line without a traceback, one that left is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop the traceback of a request that is not HTTP, and all of one whose client is gone (counted as 499)."""
        fault = record.exc_info[1] if record.exc_info else None
        if isinstance(fault, ConnectionError):
            return False
        if isinstance(fault, HttpProcessingError):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg = "request from %s is not valid HTTP"
            record.exc_info = record.exc_text = None
        return True


class HttpServer:
    """A running server; `port` is the one it listens on."""

    def __init__(self, runner: web.AppRunner, port: int) -> None:
        self._runner = runner
        self.port = port

    async def stop(self) -> None:
        """Stop listening, let requests in work finish for a few seconds, close the connections."""
        await self._runner.cleanup()


async def serve(app: web.Application, host: str, port: int, *, stop_s: float = 5.0) -> HttpServer:
    """Listen on `host` and `port` (0: a free one); raises PathError when that address cannot be had."""
    wire_log = logging.getLogger(f"{__name__}.wire")
    if not wire_log.filters:
        wire_log.addFilter(_PlainFaults())
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=wire_log,
        auto_decompress=False,
        keepalive_timeout=_IDLE_S,
        lingering_time=_LINGER_S,
        shutdown_timeout=stop_s,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise PathError(f"{host}:{port}", f"cannot listen here: {error.strerror or error}") from error
    return HttpServer(runner, runner.addresses[0][1])
