"""The three write paths: one body becomes one delivery, answered when the log has it.

204 means: every line is in the synced log. 400 means: some lines are bad, and the good ones are in the synced log.
Everything temporary is 503 with Retry-After, so that the client keeps its batch. A client that goes away changes
nothing: the delivery goes its way.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Executor
from typing import Final, NamedTuple

from aiohttp import web

from edge_appliance.core.delivery import Delivery, DeliveryResult, LineError, Origin, Precision
from edge_appliance.core.line_split import SAMPLE_BYTES
from edge_appliance.http.answers import refuse, refuse_unless_running, refuse_with
from edge_appliance.http.body import Held, read_body
from edge_appliance.http.dependencies import HttpDependencies

V1_PATH: Final = "/write"
V2_PATH: Final = "/api/v2/write"
V3_PATH: Final = "/api/v3/write_lp"
WRITE_PATHS: Final = (V1_PATH, V2_PATH, V3_PATH)

_PRECISIONS: Final[dict[str, Precision]] = {
    "": "ns",
    "ns": "ns",
    "n": "ns",
    "nanosecond": "ns",
    "us": "us",
    "u": "us",
    "microsecond": "us",
    "ms": "ms",
    "millisecond": "ms",
    "s": "s",
    "second": "s",
}
_DATABASE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}(/[A-Za-z0-9][A-Za-z0-9_-]{0,63})?", re.ASCII)
_ORIGINS_MAX: Final = 1_000
"""Targets remembered; at the cap all are forgotten, which costs an object for each that comes back."""
_FULL_RETRY_S: Final = 2
_WITHDRAWN_RETRY_S: Final = 5


class _Target(NamedTuple):
    path: str
    database: str
    precision: Precision
    client: str


class Writes:
    """The handler of all write paths."""

    def __init__(self, dependencies: HttpDependencies, workers: Executor) -> None:
        self._needs = dependencies
        self._limits = dependencies.limits
        self._workers = workers
        self._held = Held(dependencies.limits.held_bytes)
        self._in_flight = 0
        self._origins: dict[_Target, Origin] = {}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one write."""
        refusal = self._refuse_now(request)
        if refusal is not None:
            return refusal
        target = _target(request)
        if isinstance(target, web.Response):
            return target
        with self._held.share() as share:
            body = await read_body(request, self._limits, share, self._workers)
            if isinstance(body, web.Response):
                return body
            if not body:
                return web.Response(status=204)
            # Asked again: reading the body may have taken a minute.
            refusal = self._refuse_now(request)
            if refusal is not None:
                return refusal
            # Counted from here: clients whose bodies never end must not take the places of those that write.
            self._in_flight += 1
            try:
                return _answer(request, await self._commit(request, target, body))
            finally:
                self._in_flight -= 1

    def _refuse_now(self, request: web.Request) -> web.Response | None:
        refusal = refuse_unless_running(request, self._needs.health)
        if refusal is None and self._needs.inbox.is_full:
            return refuse(request, 503, self._held_reason("the inbox is full"), retry_after_s=_FULL_RETRY_S)
        if refusal is None and self._in_flight >= self._limits.max_writes:
            return refuse(request, 503, "too many writes at once", retry_after_s=_FULL_RETRY_S)
        return refusal

    async def _commit(self, request: web.Request, target: _Target, body: bytes) -> DeliveryResult:
        """Put one delivery and wait until it is in the log, refused, or withdrawn."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[DeliveryResult] = loop.create_future()

        def resolve(result: DeliveryResult) -> None:
            if not done.done():
                done.set_result(result)

        arrival_ns, clock_unset = self._needs.clock.stamp(self._needs.now_ns())
        delivery = Delivery(
            self._origin(target),
            body,
            arrival_ns,
            clock_unset=clock_unset,
            accept_partial=_accepts_partial(request),
            on_done=resolve,
        )

        def withdraw() -> None:
            # Never one that was taken: it will be stored, and a 503 would make the client send it again.
            if not done.done() and self._needs.inbox.withdraw(delivery):
                resolve(DeliveryResult(0, refused=self._held_reason("the write was not taken in time")))

        self._count(delivery)
        self._needs.inbox.put((delivery,))
        timer = loop.call_later(self._limits.withdraw_after_s, withdraw)
        try:
            return await done
        finally:
            timer.cancel()

    def _count(self, delivery: Delivery) -> None:
        metrics = self._needs.metrics
        metrics.deliveries.add(1, "http")
        metrics.delivery_bytes.add(len(delivery.payload), "http")
        if delivery.clock_unset:
            metrics.clock_unset.add()

    def _origin(self, target: _Target) -> Origin:
        origin = self._origins.get(target)
        if origin is None:
            if len(self._origins) >= _ORIGINS_MAX:
                self._origins.clear()
            origin = Origin(target.database, target.precision, (), "http", target.client, target.path)
            self._origins[target] = origin
        return origin

    def _held_reason(self, otherwise: str) -> str:
        held = self._needs.health.held
        return f"{otherwise}: {held}" if held else otherwise


def _target(request: web.Request) -> _Target | web.Response:
    path, query = request.path, request.query
    database = query.get("bucket" if path == V2_PATH else "db", "")
    if path == V1_PATH and (policy := query.get("rp", "")):
        database = f"{database}/{policy}"
    if not _DATABASE_NAME.fullmatch(database):
        return refuse(request, 400, _bad_database(path, database))
    stated = query.get("precision", "")
    precision = "auto" if stated == "auto" and path == V3_PATH else _PRECISIONS.get(stated)
    if precision is None:
        return refuse(request, 400, _bad_precision(path, stated))
    return _Target(path, database, precision, request.remote or "")


def _accepts_partial(request: web.Request) -> bool:
    return request.path != V3_PATH or request.query.get("accept_partial", "").lower() != "false"


def _bad_database(path: str, database: str) -> str:
    name = "bucket" if path == V2_PATH else "db"
    if not database:
        return f"the parameter {name} is missing"
    return f"bad database name {database[:130]!r}: letters, digits, _ and -, a letter or digit first, at most 64"


def _bad_precision(path: str, stated: str) -> str:
    if path == V1_PATH and stated in ("m", "h"):
        return f"precision {stated} is not supported; send seconds with precision=s"
    return f"unknown precision {stated[:20]!r}: ns, us, ms or s"


def _answer(request: web.Request, result: DeliveryResult) -> web.Response:
    if result.refused:
        return refuse(request, 503, result.refused, retry_after_s=_WITHDRAWN_RETRY_S)
    if not result.errors:
        return web.Response(status=204)
    first = result.errors[0]
    if request.path != V3_PATH:
        return refuse(request, 400, _summary(result), line=first.line)
    reason = _place(first) + _error_text(first)
    # Both sentences are fixed: influxdb3-python compares the first one to tell a partial write.
    if not _accepts_partial(request):
        return refuse_with({"error": "line protocol parsing error", "data": _listed(first)}, 400, reason)
    listed = [_listed(error) for error in result.errors]
    return refuse_with({"error": "partial write of line protocol occurred", "data": listed}, 400, reason)


def _summary(result: DeliveryResult) -> str:
    first, more = result.errors[0], result.rejected - 1
    follow = f" (and {more} more)" if more else ""
    return f"{_place(first)}{_error_text(first)}{follow}"


def _place(error: LineError) -> str:
    return f"line {error.line}: " if error.line else ""


def _error_text(error: LineError) -> str:
    return f"{error.reason}: {error.message}" if error.message else str(error.reason)


def _listed(error: LineError) -> dict[str, object]:
    return {
        "error_message": _error_text(error),
        "line_number": error.line,
        "original_line": error.sample[:SAMPLE_BYTES].decode("utf-8", "replace"),
    }
