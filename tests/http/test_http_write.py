"""Writes over HTTP: recorded requests in, status, headers and body out, through a real server on a loopback port."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import http.client
import io
import json
import logging
import os
import queue
import socket
import statistics
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import uvloop
from http_fakes import NoEngine, Reply

from edge_appliance.core.delivery import ArrivalClock, Delivery, DeliveryResult, LineError, Reason, result_of
from edge_appliance.health import Health, Phase, ReplayProgress
from edge_appliance.http.app import HttpServer, build_app, serve
from edge_appliance.http.body import Held, Inflater
from edge_appliance.http.dependencies import HttpDependencies, HttpLimits
from edge_appliance.metrics import Metrics

pytestmark = pytest.mark.integration

TOKEN = "apiv3_shown-in-the-test"  # noqa: S105 - of the test server only
DEADLINE_S = 10.0
LINE = b"cpu,host=gw-01 user=12.5 1700000000000000000\n"


class FakeInbox:
    """Takes deliveries in a thread of its own and answers each on the event loop, as the ingest thread does."""

    def __init__(self, answer: Callable[[Delivery], DeliveryResult]) -> None:
        self.answer = answer
        self.is_full = False
        self.put_deliveries: list[Delivery] = []
        self.taken: queue.Queue[Delivery] = queue.Queue()
        self.was_put = threading.Event()
        self.may_take = threading.Event()
        self.may_answer = threading.Event()
        self.may_take.set()
        self.may_answer.set()
        self.delay_s = 0.0
        self.loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[Delivery] = []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ingest")
        self._thread.start()

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries and note them."""
        with self._changed:
            self._waiting += deliveries
            self.put_deliveries += deliveries
            self._changed.notify()
        self.was_put.set()

    def withdraw(self, delivery: Delivery) -> bool:
        """Take a delivery back unless the thread has it."""
        with self._changed:
            if delivery in self._waiting:
                self._waiting.remove(delivery)
                return True
            return False

    def close(self) -> None:
        """End the thread."""
        self.may_take.set()
        self.may_answer.set()
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
            self.may_take.wait()
            with self._changed:
                group, self._waiting = self._waiting, []
            for delivery in group:
                self.taken.put(delivery)
            if self.delay_s:
                time.sleep(self.delay_s)  # stands for the group delay and the sync
            self.may_answer.wait()
            for delivery in group:
                assert self.loop is not None
                assert delivery.on_done is not None
                self.loop.call_soon_threadsafe(delivery.on_done, self.answer(delivery))


class Client:
    """The server under test, in a thread with its own uvloop loop, and raw requests to it."""

    def __init__(self, dependencies: HttpDependencies, inbox: FakeInbox) -> None:
        self.inbox = inbox
        self.health = dependencies.health
        self.metrics = dependencies.metrics
        self.loop = inbox.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop")
        self._thread.start()
        self._server: HttpServer = self._call(self._start(dependencies))
        self.port = self._server.port

    async def _start(self, dependencies: HttpDependencies) -> HttpServer:
        return await serve(build_app(dependencies), "127.0.0.1", 0, stop_s=1.0)

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_S)

    def stop(self) -> None:
        """Stop the server and its loop."""
        self._call(self._server.stop())
        self.inbox.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def connect(self) -> socket.socket:
        """A new connection to the server."""
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)

    def raw(self, request: bytes) -> Reply:
        """Send the bytes as they are and read one answer."""
        with self.connect() as connection:
            connection.sendall(request)
            return read_reply(connection)

    def post(self, target: str, body: bytes = LINE, headers: Mapping[str, str] | None = None) -> Reply:
        """Post one body."""
        head = {"Authorization": f"Token {TOKEN}", "Content-Length": str(len(body)), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items() if value)
        return self.raw(f"POST {target} HTTP/1.1\r\nHost: gw\r\n{lines}\r\n".encode() + body)


def read_reply(connection: socket.socket) -> Reply:
    """Read one HTTP answer."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    body = response.read()
    reply = Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)
    response.close()
    return reply


@contextmanager
def serving(answer: DeliveryResult | None = None, **changes: Any) -> Iterator[Client]:
    """Yield a running server whose inbox answers each delivery with `answer`, by default one stored row."""
    inbox = changes.pop("inbox", None) or FakeInbox(lambda _: answer or DeliveryResult(1))
    health = Health()
    health.enter(Phase.RUNNING)
    dependencies = HttpDependencies(
        inbox=inbox,
        clock=ArrivalClock(),
        sql=NoEngine(),
        databases=lambda: ["edge"],
        encode_parquet=lambda schema, batches: b"",
        health=health,
        metrics=Metrics(),
        version="0.1.0",
        node="gw-01",
        started_ns=0,
        token=TOKEN,
    )
    client = Client(replace(dependencies, **changes), inbox)
    try:
        yield client
    finally:
        client.stop()


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Client]:
    """One server for all tests that leave it as it is."""
    with serving() as client:
        yield client


@pytest.fixture
def stock(shared_server: Client) -> Client:
    """That server, with nothing of an earlier test in its inbox."""
    shared_server.inbox.taken.queue.clear()
    return shared_server


def bad_line(line: int, message: str = "field `user` has no value", sample: bytes = b"cpu user=") -> LineError:
    """A rejected line."""
    return LineError(line, 10, Reason.MISSING_FIELD_VALUE, message, sample)


# --- Recorded requests -------------------------------------------------------------------------------------------

GZIPPED = gzip.compress(LINE, mtime=0)


class Recorded(NamedTuple):
    """A stock client's request and what it means."""

    head: str
    body: bytes
    database: str
    precision: str


RECORDED = {
    "influxdb3-python default": Recorded(
        "POST /api/v2/write?org=default&bucket=edge&precision=ns HTTP/1.1\n"
        "Host: 127.0.0.1:8181\nAccept-Encoding: identity\n"
        f"Content-Length: {len(LINE)}\nContent-Type: text/plain; charset=utf-8\n"
        f"Accept: application/json\nAuthorization: Token {TOKEN}\nUser-Agent: influxdb3-python/0.21.0\n",
        LINE,
        "edge",
        "ns",
    ),
    "influxdb3-python v3": Recorded(
        "POST /api/v3/write_lp?org=default&db=edge&precision=millisecond HTTP/1.1\n"
        "Host: 127.0.0.1:8181\nAccept-Encoding: identity\n"
        f"Content-Length: {len(LINE)}\nContent-Type: text/plain; charset=utf-8\n"
        f"Accept: application/json\nAuthorization: Bearer {TOKEN}\nUser-Agent: influxdb3-python/0.21.0\n",
        LINE,
        "edge",
        "ms",
    ),
    "influxdb3-python v3, gzip, no_sync": Recorded(
        "POST /api/v3/write_lp?org=default&db=edge&precision=second&no_sync=true HTTP/1.1\n"
        "Host: 127.0.0.1:8181\nAccept-Encoding: identity\n"
        f"Content-Length: {len(GZIPPED)}\nContent-Encoding: gzip\nContent-Type: text/plain; charset=utf-8\n"
        f"Accept: application/json\nAuthorization: Token {TOKEN}\nUser-Agent: influxdb3-python/0.21.0\n",
        GZIPPED,
        "edge",
        "s",
    ),
    "influxdb-client": Recorded(
        "POST /api/v2/write?org=&bucket=edge&precision=ns HTTP/1.1\n"
        "Host: 127.0.0.1:8181\nAccept-Encoding: identity\n"
        f"Content-Length: {len(GZIPPED)}\nContent-Encoding: gzip\nContent-Type: text/plain\nAccept: application/json\n"
        f"Authorization: Token {TOKEN}\nUser-Agent: influxdb-client-python/1.50.0\n",
        GZIPPED,
        "edge",
        "ns",
    ),
    "telegraf influxdb_v2": Recorded(
        "POST /api/v2/write?bucket=edge&org=home HTTP/1.1\n"
        "Host: 127.0.0.1:8181\nUser-Agent: Telegraf/1.34.0 Go/1.24.1\nTransfer-Encoding: chunked\n"
        f"Authorization: Token {TOKEN}\nContent-Encoding: gzip\nContent-Type: text/plain; charset=utf-8\n"
        "Accept-Encoding: gzip\n",
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(GZIPPED), GZIPPED),
        "edge",
        "ns",
    ),
    "telegraf influxdb_v3": Recorded(
        "POST /api/v3/write_lp?db=edge HTTP/1.1\n"
        "Host: 127.0.0.1:8181\nUser-Agent: Telegraf/1.38.0 Go/1.24.1\nTransfer-Encoding: chunked\n"
        f"Authorization: Bearer {TOKEN}\nContent-Encoding: gzip\nContent-Type: text/plain; charset=utf-8\n"
        "Accept-Encoding: gzip\n",
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(GZIPPED), GZIPPED),
        "edge",
        "ns",
    ),
    "v1 microcontroller": Recorded(
        f"POST /write?db=edge&precision=s&u=dev&p={TOKEN} HTTP/1.1\n"
        f"Host: gw\nUser-Agent: ESP8266HTTPClient\nConnection: close\nContent-Length: {len(LINE)}\n",
        LINE,
        "edge",
        "s",
    ),
    "home assistant v1": Recorded(
        "POST /write?db=home_assistant&rp=year HTTP/1.1\n"
        "Host: gw:8181\nUser-Agent: python-requests/2.32.3\nAccept-Encoding: gzip, deflate\nAccept: text/plain\n"
        "Connection: keep-alive\nContent-Type: application/octet-stream\n"
        f"Authorization: Basic {base64.b64encode(f'ha:{TOKEN}'.encode()).decode()}\nContent-Length: {len(LINE)}\n",
        LINE,
        "home_assistant/year",
        "ns",
    ),
}


def as_sent(recorded: Recorded) -> bytes:
    """The request's bytes."""
    return recorded.head.replace("\n", "\r\n").encode() + b"\r\n" + recorded.body


@pytest.mark.parametrize("name", RECORDED)
def test_write_recorded_requests(stock: Client, name: str) -> None:
    """A stock client's write is one delivery with its lines, and answered 204 without a body."""
    recorded = RECORDED[name]
    reply = stock.raw(as_sent(recorded))
    assert (reply.status, reply.body) == (204, b"")
    assert "content-type" not in reply.headers
    delivery = stock.inbox.taken.get(timeout=DEADLINE_S)
    assert delivery.payload == LINE
    assert delivery.origin.database == recorded.database
    assert delivery.origin.precision == recorded.precision
    assert delivery.origin.source == "http"
    assert delivery.origin.label == "127.0.0.1"
    assert delivery.accept_partial


@pytest.mark.parametrize("name", RECORDED)
def test_write_recorded_requests_byte_by_byte(stock: Client, name: str) -> None:
    """How the network cuts a request into packets changes nothing."""
    recorded = RECORDED[name]
    with stock.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in as_sent(recorded):
            connection.sendall(bytes((byte,)))
        assert read_reply(connection).status == 204
    assert stock.inbox.taken.get(timeout=DEADLINE_S).payload == LINE


def test_write_home_assistant_starts_with_an_empty_body(stock: Client) -> None:
    """Home Assistant's first write has no body: 204, and nothing is put into the inbox."""
    before = len(stock.inbox.put_deliveries)
    assert stock.post("/api/v2/write?org=&bucket=home&precision=ns", b"").status == 204
    assert stock.post("/api/v2/write?bucket=home", gzip.compress(b""), {"Content-Encoding": "gzip"}).status == 204
    assert len(stock.inbox.put_deliveries) == before


def test_write_keeps_the_connection(stock: Client) -> None:
    """Two writes on one connection are two deliveries, so the first body is read to its end."""
    recorded = as_sent(RECORDED["telegraf influxdb_v2"])
    with stock.connect() as connection:
        for _ in range(2):
            connection.sendall(recorded)
            assert read_reply(connection).status == 204
            assert stock.inbox.taken.get(timeout=DEADLINE_S).payload == LINE


# --- Parameters --------------------------------------------------------------------------------------------------

PRECISIONS = {
    ("v1", "n"): "ns",
    ("v1", "u"): "us",
    ("v1", "ms"): "ms",
    ("v1", "s"): "s",
    ("v1", ""): "ns",
    ("v2", "us"): "us",
    ("v2", "nanosecond"): "ns",
    ("v3", "auto"): "auto",
    ("v3", "microsecond"): "us",
    ("v3", "n"): "ns",
    ("v2", "auto"): None,
    ("v1", "m"): None,
    ("v1", "h"): None,
    ("v2", "m"): None,
    ("v3", "minute"): None,
    ("v3", "NS"): None,
}
TARGETS = {"v1": "/write?db=edge", "v2": "/api/v2/write?bucket=edge", "v3": "/api/v3/write_lp?db=edge"}


@pytest.mark.parametrize(("family", "stated"), PRECISIONS)
def test_write_precision_names(stock: Client, family: str, stated: str) -> None:
    """Each precision name means one precision; an unknown one is 400 and nothing is stored."""
    expected = PRECISIONS[family, stated]
    before = len(stock.inbox.put_deliveries)
    reply = stock.post(f"{TARGETS[family]}&precision={stated}")
    if expected is None:
        assert reply.status == 400
        assert b"precision" in reply.body
        assert len(stock.inbox.put_deliveries) == before
    else:
        assert reply.status == 204
        assert stock.inbox.taken.get(timeout=DEADLINE_S).origin.precision == expected


DATABASES = {
    "edge": True,
    "0-a_B": True,
    "edge/rp": True,
    "a" * 64: True,
    "": False,
    "_edge": False,
    "-edge": False,
    "a" * 65: False,
    "edge/": False,
    "edge/a/b": False,
    "..": False,
    "edge%2F..": False,
    "edge%00": False,
    "edge%0A": False,
    "%C3%A4": False,
    "e.g": False,
}


@pytest.mark.parametrize("name", DATABASES)
def test_write_database_names(stock: Client, name: str) -> None:
    """A database name that could not be a directory is 400."""
    reply = stock.post(f"/api/v2/write?bucket={name}")
    assert reply.status == (204 if DATABASES[name] else 400)
    if not DATABASES[name]:
        assert reply.json["code"] == "invalid"


def test_write_targets_share_an_origin(stock: Client) -> None:
    """The same target and client share one origin object, which makes per-origin work happen once."""
    origins = []
    for _ in range(2):
        assert stock.post(TARGETS["v2"]).status == 204
        origins.append(stock.inbox.taken.get(timeout=DEADLINE_S).origin)
    assert origins[0] is origins[1]
    assert origins[0].route == "/api/v2/write"


# --- Tokens ------------------------------------------------------------------------------------------------------


def basic(user: str, password: str) -> str:
    """A Basic authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


AUTHORIZATIONS = {
    f"Token {TOKEN}": 204,
    f"token {TOKEN}": 204,
    f"BEARER {TOKEN}": 204,
    f"Bearer   {TOKEN}": 204,
    basic("any", TOKEN): 204,
    basic("", TOKEN): 204,
    "": 401,
    "Token": 401,
    "Token wrong": 401,
    f"Token {TOKEN}x": 401,
    f"Digest {TOKEN}": 401,
    TOKEN: 401,
    basic(TOKEN, ""): 401,
    "Basic %%%": 401,
    "Basic " + base64.b64encode(b"\xff\xfe").decode(): 401,
    "Token \xe4\xf6": 401,
}


@pytest.mark.parametrize("header", AUTHORIZATIONS)
def test_write_token_schemes(stock: Client, header: str) -> None:
    """Token, Bearer and Basic show the same token; anything else is 401 and stores nothing."""
    before = len(stock.inbox.put_deliveries)
    reply = stock.post(TARGETS["v2"], headers={"Authorization": header})
    assert reply.status == AUTHORIZATIONS[header]
    assert len(stock.inbox.put_deliveries) == before + (reply.status == 204)


def test_write_token_error_bodies(stock: Client) -> None:
    """401 has the body that each API family decodes."""
    no_token = {"Authorization": ""}
    sentence = "the request was not authenticated"
    assert stock.post(TARGETS["v3"], headers=no_token).json == {"error": sentence}
    for family in ("v1", "v2"):
        assert stock.post(TARGETS[family], headers=no_token).json == {"code": "unauthorized", "message": sentence}


def test_write_token_in_query_string_is_v1_only(stock: Client) -> None:
    """`p` in the query string is a token on /write, and nothing on the later paths."""
    no_header = {"Authorization": ""}
    assert stock.post(f"/write?db=edge&u=x&p={TOKEN}", headers=no_header).status == 204
    assert stock.post("/write?db=edge&u=x&p=wrong", headers=no_header).status == 401
    assert stock.post(f"/api/v2/write?bucket=edge&p={TOKEN}", headers=no_header).status == 401
    assert stock.post(f"/write?db=edge&p={TOKEN}", headers={"Authorization": "Token wrong"}).status == 401


def test_write_without_authentication() -> None:
    """With no token configured nobody needs one."""
    with serving(token=None) as client:
        assert client.post(TARGETS["v2"], headers={"Authorization": ""}).status == 204


# --- Bad lines ---------------------------------------------------------------------------------------------------

ERRORS = (bad_line(2), bad_line(5, "column `user` is float, the value is a string", b"\xff" * 300))
FIRST = "missing_field_value: field `user` has no value"


@pytest.mark.parametrize("family", ["v1", "v2"])
def test_write_partial_v2_body(family: str) -> None:
    """The older paths name the first bad line and say how many follow."""
    with serving(DeliveryResult(3, ERRORS)) as client:
        reply = client.post(TARGETS[family])
    assert reply.status == 400
    assert reply.headers["content-type"] == "application/json"
    expected = {"code": "invalid", "message": f"line 2: {FIRST} (and 1 more)", "line": 2}
    assert reply.body == json.dumps(expected, separators=(",", ":")).encode()


def test_write_partial_v3_body() -> None:
    """The v3 path lists each bad line under the sentence by which clients know a partial write."""
    with serving(DeliveryResult(3, ERRORS)) as client:
        reply = client.post(TARGETS["v3"])
    assert reply.status == 400
    assert reply.json["error"] == "partial write of line protocol occurred"
    first, second = reply.json["data"]
    assert first == {"error_message": FIRST, "line_number": 2, "original_line": "cpu user="}
    assert second["line_number"] == 5
    assert second["original_line"] == "\ufffd" * 200


def test_write_not_partial_v3_body() -> None:
    """With accept_partial=false the answer holds one object, and the delivery says to keep nothing."""
    with serving(DeliveryResult(0, ERRORS)) as client:
        reply = client.post(f"{TARGETS['v3']}&accept_partial=false")
        assert client.inbox.taken.get(timeout=DEADLINE_S).accept_partial is False
    assert reply.status == 400
    assert reply.json == {
        "error": "line protocol parsing error",
        "data": {"error_message": FIRST, "line_number": 2, "original_line": "cpu user="},
    }


def test_write_whole_payload_rejected() -> None:
    """An error of the payload as a whole has no line number in the sentence."""
    error = LineError(0, 0, Reason.PAYLOAD_TOO_LARGE, "", b"")
    with serving(DeliveryResult(0, [error])) as client:
        assert client.post(TARGETS["v2"]).json == {"code": "invalid", "message": "payload_too_large"}


def test_write_many_bad_lines_bounded_answer() -> None:
    """A body of bad lines does not make an answer without bound."""
    with serving(result_of(0, [bad_line(n) for n in range(1, 5001)])) as client:
        assert len(client.post(TARGETS["v3"]).json["data"]) == 1000
        assert "(and 4999 more)" in client.post(TARGETS["v2"]).json["message"]


# --- When the answer is sent -------------------------------------------------------------------------------------


def in_background(client: Client, *args: Any, **kwargs: Any) -> Future[Reply]:
    """Post from another thread."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(client.post, *args, **kwargs)
    pool.shutdown(wait=False)
    return future


@pytest.mark.parametrize("result", [DeliveryResult(1), DeliveryResult(1, ERRORS)], ids=["204", "400"])
@pytest.mark.parametrize("extra", ["", "&no_sync=true"])
def test_write_answer_waits_for_the_log(result: DeliveryResult, extra: str) -> None:
    """No status is sent before the log has the good lines: neither 204 nor 400, nor with no_sync."""
    with serving(result) as client:
        client.inbox.may_answer.clear()
        future = in_background(client, TARGETS["v3"] + extra)
        client.inbox.taken.get(timeout=DEADLINE_S)
        # A whole round trip behind it: an early answer would be here by now.
        assert client.raw(b"GET /ping HTTP/1.1\r\nHost: gw\r\n\r\n").status == 204
        assert not future.done()
        client.inbox.may_answer.set()
        assert future.result(DEADLINE_S).status == (400 if result.errors else 204)


def test_write_not_taken_is_withdrawn() -> None:
    """A write that nobody took in time is taken back and answered 503, so a retry stores it once."""
    with serving(limits=HttpLimits(withdraw_after_s=0.05)) as client:
        client.inbox.may_take.clear()
        client.health.hold("memory", "the buffer is full")
        reply = client.post(TARGETS["v2"])
        assert reply.status == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json == {
            "code": "unavailable",
            "message": "the write was not taken in time: the buffer is full",
        }
        client.inbox.may_take.set()
        assert client.post(TARGETS["v2"]).status == 204
        assert client.inbox.taken.qsize() == 1


def test_write_taken_is_never_withdrawn() -> None:
    """A write that was taken is waited for, however long: a 503 would store it twice."""
    with serving(limits=HttpLimits(withdraw_after_s=0.02)) as client:
        client.inbox.may_answer.clear()
        expired = threading.Event()
        withdraw = client.inbox.withdraw

        def noted(delivery: Delivery) -> bool:
            try:
                return withdraw(delivery)
            finally:
                expired.set()

        client.inbox.withdraw = noted  # type: ignore[method-assign]
        future = in_background(client, TARGETS["v2"])
        assert expired.wait(DEADLINE_S)
        client.inbox.may_answer.set()
        assert future.result(DEADLINE_S).status == 204


def test_write_completes_without_its_client() -> None:
    """A client that goes away while it waits changes nothing: the delivery is answered, the server goes on."""
    with serving() as client:
        client.inbox.may_answer.clear()
        with client.connect() as connection:
            connection.sendall(as_sent(RECORDED["influxdb-client"]))
            client.inbox.taken.get(timeout=DEADLINE_S)
        client.inbox.may_answer.set()
        assert client.post(TARGETS["v2"]).status == 204
        assert len(client.inbox.put_deliveries) == 2


def test_write_cut_body_stores_nothing() -> None:
    """A body whose connection breaks before its end is not half a write."""
    with serving() as client:
        for request in (as_sent(RECORDED["influxdb3-python default"]), as_sent(RECORDED["telegraf influxdb_v3"])):
            with client.connect() as connection:
                connection.sendall(request[:-3])
        assert client.post(TARGETS["v2"]).status == 204
        assert len(client.inbox.put_deliveries) == 1


# --- Temporary refusals ------------------------------------------------------------------------------------------


def test_write_inbox_full() -> None:
    """A full inbox is 503 with Retry-After at once, and writes go on when it has room."""
    with serving() as client:
        client.inbox.is_full = True
        reply = client.post(TARGETS["v3"])
        assert (reply.status, reply.json) == (503, {"error": "the inbox is full"})
        assert int(reply.headers["retry-after"]) >= 1
        client.inbox.is_full = False
        assert client.post(TARGETS["v3"]).status == 204


def test_write_refused_by_ingest() -> None:
    """What the ingest thread refuses for a reason of ours is 503 with that reason."""
    with serving(DeliveryResult(0, refused="the disk is full")) as client:
        reply = client.post(TARGETS["v2"])
    assert (reply.status, reply.json["message"]) == (503, "the disk is full")
    assert "retry-after" in reply.headers


def test_write_while_replaying() -> None:
    """During replay a write is 503 with the progress, and Retry-After is what the replay still needs."""
    with serving() as client:
        client.health.enter(Phase.REPLAYING)
        client.health.replayed(ReplayProgress(25 * 2**20, 100 * 2**20, 1000, 4.0))
        reply = client.post(TARGETS["v2"])
    assert (reply.status, reply.headers["retry-after"]) == (503, "12")
    assert "25 % of 100.0 MiB" in reply.json["message"]


def test_write_while_stopping() -> None:
    """While stopping a write is 503, so that the client keeps its batch."""
    with serving() as client:
        client.health.enter(Phase.STOPPING)
        reply = client.post(TARGETS["v2"])
    assert (reply.status, reply.json) == (503, {"code": "unavailable", "message": "stopping"})
    assert "retry-after" in reply.headers


def test_write_too_many_at_once() -> None:
    """Writes in flight are bounded; those in work are not touched."""
    with serving(limits=HttpLimits(max_writes=1)) as client:
        client.inbox.may_answer.clear()
        future = in_background(client, TARGETS["v2"])
        client.inbox.taken.get(timeout=DEADLINE_S)
        assert client.post(TARGETS["v2"]).status == 503
        client.inbox.may_answer.set()
        assert future.result(DEADLINE_S).status == 204
        assert client.post(TARGETS["v2"]).status == 204


def test_write_beside_bodies_that_never_end() -> None:
    """Clients that begin bodies and do not go on take no places from those that write."""
    head = b"POST /api/v2/write?bucket=edge HTTP/1.1\r\nHost: gw\r\nAuthorization: Token %b\r\n" % TOKEN.encode()
    with serving(limits=HttpLimits(max_writes=1)) as client, contextlib.ExitStack() as open_ones:
        for _ in range(3):
            connection = open_ones.enter_context(client.connect())
            # The interim answer says that the handler waits for the body.
            connection.sendall(head + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\ncpu")
            assert connection.recv(1024).startswith(b"HTTP/1.1 100 ")
        assert client.post(TARGETS["v2"]).status == 204


def test_write_held_bodies_bounded() -> None:
    """Bodies of all requests together stay within their bound, inflated size included, and room comes back."""
    body = LINE * 100
    limits = HttpLimits(max_body_bytes=8000, max_held_bytes=8000)
    with serving(limits=limits) as client:
        client.inbox.may_answer.clear()
        future = in_background(client, TARGETS["v2"], body)
        client.inbox.taken.get(timeout=DEADLINE_S)
        assert client.post(TARGETS["v2"], body).status == 503
        zipped = client.post(TARGETS["v2"], gzip.compress(body), {"Content-Encoding": "gzip"})
        assert (zipped.status, zipped.json["message"]) == (503, "too many request bodies in memory")
        client.inbox.may_answer.set()
        assert future.result(DEADLINE_S).status == 204
        assert client.post(TARGETS["v2"], body).status == 204


def test_write_slow_body_is_cut_off() -> None:
    """A client that never sends its body holds nothing for ever."""
    with serving(limits=HttpLimits(body_timeout_s=0.05)) as client, client.connect() as connection:
        connection.sendall(as_sent(RECORDED["influxdb3-python default"])[:-3])
        reply = read_reply(connection)
        assert (reply.status, reply.headers["connection"]) == (503, "close")
        assert client.inbox.put_deliveries == []


# --- Bodies ------------------------------------------------------------------------------------------------------


def zipped(body: bytes) -> dict[str, Any]:
    """Arguments of a gzip post."""
    return {"body": gzip.compress(body), "headers": {"Content-Encoding": "gzip"}}


def test_write_gzip_large_is_inflated_once() -> None:
    """A body beyond what the event loop inflates arrives whole."""
    body = b"".join(b"cpu user=%di %d\n" % (n, n) for n in range(40_000))
    with serving() as client:
        assert client.post(TARGETS["v2"], **zipped(body)).status == 204
        assert client.inbox.taken.get(timeout=DEADLINE_S).payload == body
        assert client.metrics.delivery_bytes.value("http") == len(body)


def test_write_body_limit_is_of_the_inflated_size() -> None:
    """A body of just the limit is taken; one byte more is 413, sent plain, chunked or as gzip."""
    limits = HttpLimits(max_body_bytes=200_000)
    full, over = b"#" * 200_000, b"#" * 200_001
    with serving(limits=limits) as client:
        assert client.post(TARGETS["v2"], full).status == 204
        assert client.post(TARGETS["v2"], **zipped(full)).status == 204
        chunked = {"Transfer-Encoding": "chunked", "Content-Length": ""}
        replies = [
            client.post(TARGETS["v2"], over),
            client.post(TARGETS["v2"], b"%x\r\n%b\r\n0\r\n\r\n" % (len(over), over), chunked),
            client.post(TARGETS["v2"], **zipped(over)),
            client.post(TARGETS["v2"], **zipped(b"\0" * 50_000_000)),
        ]
        assert [reply.status for reply in replies] == [413] * 4
        assert {reply.json["code"] for reply in replies} == {"request too large"}
        assert len(client.inbox.put_deliveries) == 2


BROKEN = {
    "plain text": LINE,
    "cut": gzip.compress(LINE)[:-1],
    "cut in the head": gzip.compress(LINE)[:4],
    "trailing text": gzip.compress(LINE) + b"more",
    "flipped": gzip.compress(LINE)[:-6] + b"\0" + gzip.compress(LINE)[-5:],
    "zlib": zlib.compress(LINE),
}


@pytest.mark.parametrize("name", BROKEN)
def test_write_broken_gzip(stock: Client, name: str) -> None:
    """A body that is not gzip although it says so is 400 and stores nothing."""
    before = len(stock.inbox.put_deliveries)
    reply = stock.post(TARGETS["v2"], BROKEN[name], {"Content-Encoding": "gzip"})
    assert reply.status == 400
    assert reply.json["message"].startswith("bad_compression: ")
    assert len(stock.inbox.put_deliveries) == before


def test_write_unknown_encoding(stock: Client) -> None:
    """A compression that we lack is 415 with a sentence."""
    reply = stock.post(TARGETS["v2"], LINE, {"Content-Encoding": "br"})
    assert (reply.status, reply.json["message"]) == (415, "Content-Encoding can only be gzip or identity")
    assert stock.post(TARGETS["v2"], LINE, {"Content-Encoding": "identity"}).status == 204


def test_inflater_steps_do_not_change_the_result() -> None:
    """A body of several members inflates the same at any step size, and padding behind it is ignored."""
    body = os.urandom(3000) + b"0" * 3000
    data = gzip.compress(body) + gzip.compress(b"") + gzip.compress(LINE) + b"\0" * 7
    for size_bytes in (1, 7, 1000, 100_000):
        inflater = Inflater(data, 100_000)
        while not inflater.is_done:
            inflater.step(size_bytes)
        assert inflater.result() == body + LINE


def test_inflater_never_passes_its_limit() -> None:
    """A bomb inflates to one byte more than the limit, no further; a chain of members ends early."""
    inflater = Inflater(gzip.compress(b"\0" * 10_000_000), 1000)
    inflater.finish()
    assert inflater.is_too_large
    assert len(inflater.result()) == 1001
    with pytest.raises(ValueError, match="more than 16 gzip members"):
        Inflater(gzip.compress(b"") * 1000, 1000).finish()


def test_held_shares_add_up() -> None:
    """What a share gives back is free for others; a share may always shrink."""
    held = Held(10)
    with held.share() as first, held.share() as second:
        assert first.resize(8)
        assert not second.resize(3)
        assert second.resize(2)
        assert first.resize(7)
        assert held.bytes == 9
    assert held.bytes == 0


# --- Statuses and the journal ------------------------------------------------------------------------------------


def telegraf_keeps(status: int) -> bool:
    """Whether Telegraf sends the batch again, by the table of what it does with each status."""
    return status in (401, 403, 413, 429) or status >= 500


@pytest.mark.parametrize(
    ("situation", "keeps"),
    [("bad line", False), ("no token", True), ("too large", True), ("full", True), ("replaying", True), ("disk", True)],
)
def test_write_status_makes_telegraf_keep_or_drop(situation: str, keeps: bool) -> None:
    """Only a body that can never succeed gets a status that makes Telegraf drop it."""
    results = {"bad line": DeliveryResult(1, ERRORS), "disk": DeliveryResult(0, refused="the disk is full")}
    with serving(results.get(situation), limits=HttpLimits(max_body_bytes=100)) as client:
        client.inbox.is_full = situation == "full"
        if situation == "replaying":
            client.health.enter(Phase.REPLAYING)
        headers = {"Authorization": ""} if situation == "no token" else {}
        body = LINE * 50 if situation == "too large" else LINE
        assert telegraf_keeps(client.post(TARGETS["v2"], body, headers).status) is keeps


def test_write_rejection_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Each rejected request leaves one line with client, route and first reason, and no query string."""
    with serving(DeliveryResult(0, ERRORS)) as client, caplog.at_level(logging.INFO):
        client.post(f"/write?db=edge&u=x&p={TOKEN}", headers={"Authorization": ""})
        client.post("/nowhere%0Aforged?p=secret")
    # Not asyncio's: when connections of earlier tests are collected is a matter of chance.
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("edge_appliance")]
    assert messages == [
        f"POST /write from 127.0.0.1 answered 400: line 2: {FIRST} (and 1 more)",
        "POST /nowhere\\nforged from 127.0.0.1 answered 404: there is no POST /nowhere\\nforged",
    ]
    assert len({record.msg for record in caplog.records}) == 1


def test_write_success_is_silent_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A write that succeeds is counted by path and status, and not logged."""
    with serving() as client, caplog.at_level(logging.DEBUG, logger="edge_appliance"):
        client.post(TARGETS["v2"])
        client.post("/one/of/many")
        client.post("/another")
        requests = client.metrics.http_requests
        assert requests.value("/api/v2/write", "204") == 1
        assert requests.value("other", "404") == 2
        assert client.metrics.deliveries.value("http") == 1
    assert [record for record in caplog.records if "204" in record.getMessage()] == []


@pytest.mark.parametrize(("now_ns", "count"), [(5, 1), (1_800_000_000 * 10**9, 0)], ids=["unset", "set"])
def test_write_before_the_clock_is_set_is_counted(now_ns: int, count: int) -> None:
    """How many deliveries got a time that is only a continuation can be read off."""
    with serving(now_ns=lambda: now_ns) as client:
        client.post(TARGETS["v2"])
        assert client.metrics.clock_unset.value() == count
        assert client.inbox.taken.get().clock_unset == bool(count)


def test_write_fault_of_ours_is_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours reaches the client as one sentence and an id; the traceback is in the journal under it."""

    class Broken(FakeInbox):
        def put(self, deliveries: Sequence[Delivery]) -> None:
            raise RuntimeError("/secret/path")

    with serving(inbox=Broken(lambda _: DeliveryResult(1))) as client, caplog.at_level(logging.ERROR):
        reply = client.post(TARGETS["v2"])
    assert reply.status == 500
    sentence, _, fault = reply.json["message"].rpartition(" ")
    assert sentence == "internal error, id"
    assert any(fault in record.getMessage() and record.exc_info for record in caplog.records)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_write_other_methods_are_404(stock: Client, method: str) -> None:
    """A path asked with another method does not exist: 404 in JSON, never 405."""
    head = f"{method} /api/v2/write?bucket=edge HTTP/1.1\r\nHost: gw\r\nAuthorization: Token {TOKEN}\r\n"
    with stock.connect() as connection:
        connection.sendall(f"{head}Accept: text/html\r\nConnection: close\r\n\r\n".encode())
        answer = io.BytesIO(b"".join(iter(lambda: connection.recv(65536), b""))).read()
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"Content-Type: application/json" in answer
    assert b"<html" not in answer


@pytest.mark.slow
def test_write_waiting_client_is_not_delayed() -> None:
    """A single client that waits for each answer pays the group delay and little more."""
    with serving() as client, client.connect() as connection:
        client.inbox.delay_s = 0.02
        seconds = []
        for _ in range(25):
            start = time.perf_counter()
            connection.sendall(as_sent(RECORDED["influxdb-client"]))
            assert read_reply(connection).status == 204
            seconds.append(time.perf_counter() - start)
    assert statistics.median(seconds) < client.inbox.delay_s + 0.02
