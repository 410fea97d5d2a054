"""Probes, status, tokens on all paths, unknown paths, and the server's own manners."""

from __future__ import annotations

import asyncio
import datetime as dt
import http.client
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from http_fakes import NoEngine, NoInbox, Reply

from edge_appliance.core.delivery import ArrivalClock
from edge_appliance.errors import PathError
from edge_appliance.health import Health, Phase, ReplayProgress
from edge_appliance.http.app import build_app, serve
from edge_appliance.http.dependencies import HttpDependencies
from edge_appliance.metrics import Metrics

pytestmark = pytest.mark.integration

DEADLINE_S = 10.0
STARTED_NS = 1_700_000_000 * 10**9
PATHS = ("/ping", "/health", "/ready", "/metrics", "/api/v1/status")


class Client:
    """The server under test in a thread with its own loop, and requests to it."""

    def __init__(self, dependencies: HttpDependencies) -> None:
        self.needs = dependencies
        self.health = dependencies.health
        self.metrics = dependencies.metrics
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._server = self.call(self._start("127.0.0.1", 0))
        self.port: int = self._server.port

    async def _start(self, host: str, port: int) -> Any:
        return await serve(build_app(self.needs), host, port, stop_s=1.0)

    def start_another(self, host: str, port: int) -> Any:
        """Start a second server of the same appliance."""
        return self.call(self._start(host, port))

    def call(self, coroutine: Any) -> Any:
        """Run on the server's loop and wait for the outcome."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_S)

    def stop(self) -> None:
        """Stop the server and its loop."""
        self.call(self._server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def ask(self, target: str, method: str = "GET", **headers: str) -> Reply:
        """Send one request and read its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        connection.request(method, target, headers=headers)
        response = connection.getresponse()
        content = response.read()
        reply = Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, content)
        connection.close()
        return reply

    def raw(self, request: bytes) -> bytes:
        """Send bytes as they are and read until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), DEADLINE_S) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))


@contextmanager
def serving(**changes: Any) -> Iterator[Client]:
    """Yield a running server of an appliance that runs."""
    health = Health()
    health.enter(Phase.RUNNING)
    dependencies = HttpDependencies(
        inbox=NoInbox(),
        clock=ArrivalClock(),
        sql=NoEngine(),
        databases=list,
        encode_parquet=lambda schema, batches: b"",
        health=health,
        metrics=Metrics(),
        version="0.1.0",
        node="gw-01",
        started_ns=STARTED_NS,
        status_details=lambda: {"buffer_limit_bytes": 64, "store": "file:///store"},
    )
    client = Client(replace(dependencies, **changes))
    try:
        yield client
    finally:
        client.stop()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_ping(method: str) -> None:
    """Clients read the version from the headers of an empty 204."""
    with serving() as client:
        reply = client.ask("/ping", method)
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["x-influxdb-version"] == "0.1.0"
    assert reply.headers["x-influxdb-build"] == "edge-appliance"


def test_health_pass() -> None:
    """A healthy appliance passes, in the shape that clients decode."""
    with serving() as client:
        reply = client.ask("/health")
    assert (reply.status, reply.json) == (
        200,
        {
            "name": "edge-appliance",
            "message": "ready for queries and writes",
            "status": "pass",
            "version": "0.1.0",
            "checks": [],
        },
    )


def test_health_degraded_still_passes() -> None:
    """What works with less than was promised passes and is named."""
    with serving() as client:
        client.health.degrade("wal", "2 damaged records in quarantine")
        reply = client.ask("/health")
    assert (reply.status, reply.json["status"]) == (200, "pass")
    assert reply.json["message"] == "2 damaged records in quarantine"
    assert reply.json["checks"] == [{"name": "wal", "message": "2 damaged records in quarantine", "status": "fail"}]


def test_health_held_fails() -> None:
    """While nothing is acknowledged health fails, and passes again by itself."""
    with serving() as client:
        client.health.hold("disk", "the disk is full")
        reply = client.ask("/health")
        assert (reply.status, reply.json["status"]) == (503, "fail")
        assert "the disk is full" in reply.json["message"]
        client.health.release("disk")
        assert client.ask("/health").status == 200


def test_probes_while_replaying() -> None:
    """During the replay /ready and /health are 503 with the progress, the other probes answer."""
    with serving() as client:
        client.health.enter(Phase.REPLAYING)
        assert client.ask("/ready").json["percent"] == 0
        client.health.replayed(ReplayProgress(42 * 2**20, 100 * 2**20, 12_345, 4.2))
        ready, health = client.ask("/ready"), client.ask("/health")
        assert [client.ask(path).status for path in PATHS] == [204, 503, 503, 200, 200]
    assert (ready.json["status"], ready.json["percent"]) == ("replaying", 42)
    assert ready.json["message"] == "replaying the log: 42 % of 100.0 MiB, 12,345 lines, 6 s left"
    assert ready.json["replay"]["lines"] == 12_345
    assert ready.headers["retry-after"] == "6"
    assert (health.json["status"], health.json["message"]) == ("fail", ready.json["message"])


def test_ready() -> None:
    """A ready appliance says since when, as clients parse it."""
    with serving() as client:
        reply = client.ask("/ready")
    assert (reply.status, reply.json["status"]) == (200, "ready")
    assert dt.datetime.fromisoformat(reply.json["started"]).timestamp() * 10**9 == STARTED_NS
    assert re.fullmatch(r"(\d+h)?(\d+m)?\d+s", reply.json["up"])


def test_metrics_text() -> None:
    """Metrics are Prometheus text, and requests are counted in them."""
    with serving() as client:
        client.ask("/ping")
        reply = client.ask("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'edge_appliance_http_requests_total{path="/ping",status="204"} 1\n' in reply.body


def test_status_has_the_same_numbers() -> None:
    """Status holds phase, reasons, progress, configuration and the numbers of /metrics."""
    with serving() as client:
        client.health.degrade("store", "no answer from the store")
        reply = client.ask("/api/v1/status")
    status = reply.json
    assert (status["phase"], status["ready"], status["held"]) == ("running", True, "")
    assert status["degraded"] == {"store": "no answer from the store"}
    assert status["status"] == "no answer from the store"
    assert status["replay"]["percent"] == 100
    assert status["config"] == {"buffer_limit_bytes": 64, "store": "file:///store"}
    assert status["metrics"].keys() == Metrics().snapshot().keys()
    assert (status["node"], status["version"]) == ("gw-01", "0.1.0")


def test_tokens_guard_all_but_ping_and_health() -> None:
    """With a token configured only /ping and /health are open; an unknown path does not say that it is unknown."""
    token = "shown"  # noqa: S105 - of the test server only
    with serving(token=token) as client:
        assert [client.ask(path).status for path in (*PATHS, "/nowhere")] == [204, 200, 401, 401, 401, 401]
        allowed = {"Authorization": f"Bearer {token}"}
        assert [client.ask(path, **allowed).status for path in (*PATHS, "/nowhere")] == [204, 200, 200, 200, 200, 404]


@pytest.mark.parametrize("target", ["/", "/nowhere", "/api/v2/buckets", "/ping/", "//ping", "/api/v3/write_lp/x"])
def test_unknown_paths_are_404_json(target: str) -> None:
    """What is not there is 404 in JSON, also for a browser."""
    with serving() as client:
        reply = client.ask(target, Accept="text/html")
    assert (reply.status, reply.headers["content-type"]) == (404, "application/json")
    assert "there is no GET" in reply.body.decode()
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_options_of_the_server_are_404_json() -> None:
    """`OPTIONS *` is JSON, too."""
    with serving() as client:
        answer = client.raw(b"OPTIONS * HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"\r\nContent-Type: application/json\r\n" in answer


def test_answers_do_not_name_the_software_below() -> None:
    """The Server header names us and nothing else."""
    with serving() as client:
        assert client.ask("/ping").headers["server"] == "edge-appliance/0.1.0"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: gw\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"p" * 100_000 + b" HTTP/1.1\r\nHost: gw\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n" + b"".join(b"H%d: x\r\n" % n for n in range(1000)) + b"\r\n",
        b"POST /write HTTP/1.1\r\nHost: gw\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["nonsense", "long header", "long target", "many headers", "two lengths"],
)
def test_malformed_requests(request_bytes: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """What is not HTTP, or too large a head, ends its connection without HTML, a traceback, or harm to others."""
    with serving() as client:
        answer = client.raw(request_bytes)
        assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
        assert b"<html" not in answer
        assert client.ask("/ping").status == 204
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []


@pytest.mark.parametrize(
    "start",
    [b"POST /write?db=edge HTTP/1.1\r\nHost: gw\r\nContent-Length: 50\r\n\r\nm v=1", b"GET /ping HTTP/1.1\r\nHo"],
    ids=["in the body", "in the head"],
)
def test_clients_that_leave_are_not_our_errors(start: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A request cut off by its client leaves no line in the journal: there are devices that do it all day."""
    with serving() as client:
        with socket.create_connection(("127.0.0.1", client.port), DEADLINE_S) as connection:
            connection.sendall(start)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(65536) == b""
        assert client.ask("/ping").status == 204
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


def test_serve_address_in_use() -> None:
    """An address that cannot be had is an error that names it."""
    with serving() as client:
        with pytest.raises(PathError, match=f"127.0.0.1:{client.port}: cannot listen here"):
            client.start_another("127.0.0.1", client.port)
        assert client.ask("/ping").status == 204


def test_stop_ends_idle_connections() -> None:
    """A stop does not wait for clients that keep their connection, and the port is free after it."""
    with serving() as client:
        other = client.start_another("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", other.port), DEADLINE_S) as connection:
            connection.sendall(b"GET /ping HTTP/1.1\r\nHost: gw\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 204 ")
            client.call(other.stop())
            assert connection.recv(65536) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", other.port), DEADLINE_S)
