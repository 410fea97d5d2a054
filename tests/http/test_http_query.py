"""SQL over HTTP: formats to the byte, parameters, refusals, and results too large for one piece."""

from __future__ import annotations

import asyncio
import csv as stdlib_csv
import datetime as dt
import decimal
import http.client
import io
import json
import socket
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from http_fakes import NoInbox, Reply

from edge_appliance.core.delivery import ArrivalClock
from edge_appliance.errors import QueryError, QueryFault
from edge_appliance.health import Health, Phase
from edge_appliance.http.app import build_app, serve
from edge_appliance.http.dependencies import HttpDependencies, HttpLimits
from edge_appliance.http.encode import csv, fill, in_pieces, json_array, json_lines, pretty
from edge_appliance.metrics import Metrics

pytestmark = pytest.mark.integration

DEADLINE_S = 10.0
TIME = pa.timestamp("ns", tz="UTC")


@dataclass
class Result:
    """What an engine answers."""

    schema: pa.Schema
    batches: list[pa.RecordBatch]
    rows: int = 0


def result(columns: Mapping[str, pa.Array], chunk_rows: int = 10**9) -> Result:
    """A result of these columns, in batches of at most `chunk_rows`."""
    table = pa.table(dict(columns))
    return Result(table.schema, table.to_batches(max_chunksize=chunk_rows), table.num_rows)


def text(pieces: Iterator[bytes]) -> str:
    """All pieces as one text."""
    return b"".join(pieces).decode()


class FakeEngine:
    """Remembers what it was asked and answers from `answer`."""

    def __init__(self, answer: Callable[[], Result]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, Any]] = []
        self.threads: list[threading.Thread] = []
        self.cancels: list[threading.Event] = []

    def run(
        self, database: str, sql: str, params: Mapping[str, Any] | None = None, *, cancel: threading.Event
    ) -> Result:
        """Note the question and answer it."""
        self.asked.append((database, sql, params))
        self.threads.append(threading.current_thread())
        self.cancels.append(cancel)
        return self.answer()


class Client:
    """The server under test in a thread with its own loop, and requests to it."""

    def __init__(self, dependencies: HttpDependencies) -> None:
        self.needs = dependencies
        self.health = dependencies.health
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self._server = self._call(self._start())
        self.port: int = self._server.port

    async def _start(self) -> Any:
        return await serve(build_app(self.needs), "127.0.0.1", 0, stop_s=1.0)

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(DEADLINE_S)

    def stop(self) -> None:
        """Stop the server and its loop."""
        self._call(self._server.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def ask(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Send one request and read its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        connection.request(method, target, body, dict(headers or {}))
        response = connection.getresponse()
        content = response.read()
        reply = Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, content)
        connection.close()
        return reply

    def sql(self, sql: str = "select 1", headers: Mapping[str, str] | None = None, **fields: str) -> Reply:
        """Ask one SQL statement."""
        query = urllib.parse.urlencode({"db": "edge", "q": sql, **fields})
        return self.ask("GET", f"/api/v3/query_sql?{query}", headers=headers)


def parquet_bytes(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """One Parquet file of a result."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


@contextmanager
def serving(answer: Callable[[], Result], **changes: Any) -> Iterator[tuple[Client, FakeEngine]]:
    """Yield a running server whose engine answers with `answer`."""
    engine = FakeEngine(answer)
    health = Health()
    health.enter(Phase.RUNNING)
    dependencies = HttpDependencies(
        inbox=NoInbox(),
        clock=ArrivalClock(),
        sql=engine,
        databases=lambda: ["edge"],
        encode_parquet=parquet_bytes,
        health=health,
        metrics=Metrics(),
        version="0.1.0",
        node="gw-01",
        started_ns=0,
    )
    client = Client(replace(dependencies, **changes))
    try:
        yield client, engine
    finally:
        client.stop()


def cpu_rows() -> Result:
    """Two rows of a table as a gateway has it."""
    return result(
        {
            "time": pa.array([1_700_000_000_000_000_001, -1], TIME),
            "host": pa.array(["gw-01", None]),
            "user": pa.array([12.5, float("nan")]),
            "count": pa.array([2**63 - 1, -(2**63)], pa.int64()),
            "total": pa.array([2**64 - 1, None], pa.uint64()),
            "up": pa.array([True, False]),
        }
    )


# --- Encoders ----------------------------------------------------------------------------------------------------


def test_json_values_are_exact() -> None:
    """Times have nine digits and Z, integers all digits, nan and NULL are null."""
    rows = cpu_rows()
    assert text(json_array(rows.schema, rows.batches)) == (
        '[{"time":"2023-11-14T22:13:20.000000001Z","host":"gw-01","user":12.5,'
        '"count":9223372036854775807,"total":18446744073709551615,"up":true},'
        '{"time":"1969-12-31T23:59:59.999999999Z","host":null,"user":null,'
        '"count":-9223372036854775808,"total":null,"up":false}]'
    )


def test_json_extreme_times() -> None:
    """The ends of the time range keep their nanoseconds, and any unit or zone gives nine digits and Z."""
    ends = pa.array([-(2**63), 2**63 - 1], pa.timestamp("ns"))
    rows = result({"time": ends, "s": pa.array([0, 1], pa.timestamp("s", tz="Europe/Berlin"))})
    assert [list(row.values()) for row in json.loads(text(json_array(rows.schema, rows.batches)))] == [
        ["1677-09-21T00:12:43.145224192Z", "1970-01-01T00:00:00.000000000Z"],
        ["2262-04-11T23:47:16.854775807Z", "1970-01-01T00:00:01.000000000Z"],
    ]


def test_json_types_that_sql_makes() -> None:
    """Every type that a query can make has a JSON value, nanoseconds inside lists and structs included."""
    rows = result(
        {
            "dictionary": pa.array(["a"]).dictionary_encode(),
            "view": pa.array(["b"], pa.string_view()),
            "decimal": pa.array([decimal.Decimal(2**64 - 1)], pa.decimal128(20, 0)),
            "date": pa.array([dt.date(2024, 2, 29)]),
            "clock": pa.array([1], pa.time64("ns")),
            "span": pa.array([1_000_000_001], pa.duration("ns")),
            "times": pa.array([[1, None]], pa.list_(TIME)),
            "pair": pa.array([{"at": 1, "n": 2}], pa.struct([("at", pa.timestamp("ns")), ("n", pa.int64())])),
            "nothing": pa.nulls(1),
            "bytes": pa.array([b"ab"]),
        }
    )
    assert json.loads(text(json_array(rows.schema, rows.batches))) == [
        {
            "dictionary": "a",
            "view": "b",
            "decimal": 2**64 - 1,
            "date": "2024-02-29",
            "clock": "00:00:00.000000001",
            "span": 1_000_000_001,
            "times": ["1970-01-01T00:00:00.000000001Z", None],
            "pair": {"at": "1970-01-01T00:00:00.000000001Z", "n": 2},
            "nothing": None,
            "bytes": "YWI=",
        }
    ]
    assert '"[""1970-01-01T00:00:00.000000001Z"",null]"' in text(csv(rows.schema, rows.batches))
    assert '["1970-01-01T00:00:00.000000001Z",null]' in text(pretty(rows.schema, rows.batches))


@pytest.mark.parametrize("chunk_rows", [1, 7, 5000, 10**9])
def test_json_slices_join_to_one_array(chunk_rows: int) -> None:
    """How a result is cut into batches and slices changes no byte."""
    count = 20_001
    rows = result({"n": pa.array(range(count)), "s": pa.array(["x"] * count)}, chunk_rows)
    expected = [{"n": n, "s": "x"} for n in range(count)]
    assert json.loads(text(json_array(rows.schema, rows.batches))) == expected
    assert [json.loads(line) for line in text(json_lines(rows.schema, rows.batches)).splitlines()] == expected


def test_csv_reads_back() -> None:
    """A CSV of every stored type, read again, has the same values; an empty string is not NULL."""
    rows = result(
        {
            "time": pa.array([1_700_000_000_000_000_001, 0, 1], TIME),
            'na"me': pa.array(['a,"b"\nc', "", None]),
            "n": pa.array([2**63 - 1, None, 0]),
            "f": pa.array([0.1, 1e300, None]),
        }
    )
    written = b"".join(csv(rows.schema, rows.batches))
    types = {"time": TIME, 'na"me': pa.string(), "n": pa.int64(), "f": pa.float64()}
    options = pa_csv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False)
    again = pa_csv.read_csv(
        io.BytesIO(written), pa_csv.ReadOptions(), pa_csv.ParseOptions(newlines_in_values=True), options
    )
    assert again.equals(pa.Table.from_batches(rows.batches))


def test_csv_is_plain_text() -> None:
    """A CSV has one header for all batches and a line for each row."""
    rows = result({"time": pa.array([0, 1], TIME), "host": pa.array(["a", "b"]), "n": pa.array([1, 2])}, 1)
    assert text(csv(rows.schema, rows.batches)) == (
        '"time","host","n"\n"1970-01-01T00:00:00.000000000Z","a",1\n"1970-01-01T00:00:00.000000001Z","b",2\n'
    )


def test_pretty_table() -> None:
    """The table fits its widest value, counts characters and not bytes, and shows no control character."""
    rows = result({"name": pa.array(["ä", None, "a\x1b[31m"]), "n": pa.array([1, 22222, 3])}, 1)
    assert text(pretty(rows.schema, rows.batches)) == (
        "+--------+-------+\n"
        "| name   | n     |\n"
        "+--------+-------+\n"
        "| ä      | 1     |\n"
        "|        | 22222 |\n"
        "| a [31m | 3     |\n"
        "+--------+-------+\n"
    )


def test_empty_results_keep_their_columns() -> None:
    """A result without rows is a valid document of each format, with its columns where the format has them."""
    schema = pa.schema([("time", TIME), ("user", pa.float64())])
    for batches in ([], [pa.RecordBatch.from_pylist([], schema)]):
        assert text(json_array(schema, batches)) == "[]"
        assert text(json_lines(schema, batches)) == ""
        assert text(csv(schema, batches)) == '"time","user"\n'
        assert "| time | user |" in text(pretty(schema, batches))


def test_fill_joins_pieces() -> None:
    """Pieces are joined up to the size asked for, and none is lost."""
    data = bytes(range(256)) * 10
    pieces = in_pieces(data, 100)
    joined = b""
    has_more = True
    while has_more:
        piece, has_more = fill(pieces, 250)
        assert len(piece) <= 300
        joined += piece
    assert joined == data


# --- Over HTTP ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stock() -> Iterator[tuple[Client, FakeEngine]]:
    """One server for the tests that leave it as it is."""
    with serving(cpu_rows) as pair:
        yield pair


FORMATS = {
    "json": "application/json",
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8",
    "pretty": "text/plain; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}


@pytest.mark.parametrize("name", FORMATS)
def test_query_formats(stock: tuple[Client, FakeEngine], name: str) -> None:
    """Each format answers 200 with its content type and the two rows."""
    reply = stock[0].sql(format=name)
    assert (reply.status, reply.headers["content-type"]) == (200, FORMATS[name])
    assert int(reply.headers["content-length"]) == len(reply.body)
    rows = {
        "json": lambda body: len(json.loads(body)),
        "jsonl": lambda body: len(body.splitlines()),
        "csv": lambda body: len(list(stdlib_csv.DictReader(io.StringIO(body.decode())))),
        "pretty": lambda body: len(body.splitlines()) - 4,
        "parquet": lambda body: pq.read_table(io.BytesIO(body)).num_rows,
    }
    assert rows[name](reply.body) == 2


@pytest.mark.parametrize("name", FORMATS)
def test_query_empty_result_over_http(name: str) -> None:
    """A result without rows is 200 in every format; Parquet and CSV keep the schema."""
    with serving(lambda: Result(cpu_rows().schema, [])) as (client, _):
        reply = client.sql(format=name)
    assert reply.status == 200
    if name == "parquet":
        assert pq.read_schema(io.BytesIO(reply.body)).names == cpu_rows().schema.names
    if name == "csv":
        assert reply.body.startswith(b'"time","host"')


ACCEPTS = {
    "": "json",
    "*/*": "json",
    "text/html,application/xhtml+xml,*/*;q=0.8": "json",
    "text/csv": "csv",
    "application/json, text/csv": "json",
    "APPLICATION/X-NDJSON;q=0.9": "jsonl",
    "application/vnd.apache.parquet": "parquet",
    "text/plain": "pretty",
}


@pytest.mark.parametrize("accept", ACCEPTS)
def test_query_accept_decides_without_format(stock: tuple[Client, FakeEngine], accept: str) -> None:
    """Without a format the Accept header decides; a stated format wins."""
    client, _ = stock
    assert client.sql(headers={"Accept": accept}).headers["content-type"] == FORMATS[ACCEPTS[accept]]
    assert client.sql(headers={"Accept": accept}, format="jsonl").headers["content-type"] == FORMATS["jsonl"]


def test_query_runs_off_the_loop(stock: tuple[Client, FakeEngine]) -> None:
    """The engine is called in a thread that no exit waits for, with database, text and parameters as sent."""
    client, engine = stock
    client.sql("select $h", params='{"h":"gw-01","n":1.5,"x":null}')
    assert engine.asked[-1] == ("edge", "select $h", {"h": "gw-01", "n": 1.5, "x": None})
    assert (engine.threads[-1].name, engine.threads[-1].daemon) == ("query", True)


def test_query_post_json(stock: tuple[Client, FakeEngine]) -> None:
    """POST takes the same names as JSON, and parameters keep their types."""
    client, engine = stock
    body = {"db": "edge", "q": "select $a, $b", "format": "csv", "params": {"a": 9007199254740993, "b": True}}
    reply = client.ask("POST", "/api/v3/query_sql", json.dumps(body).encode(), {"Content-Type": "application/json"})
    assert (reply.status, reply.headers["content-type"]) == (200, FORMATS["csv"])
    assert engine.asked[-1] == ("edge", "select $a, $b", {"a": 9007199254740993, "b": True})


def test_query_post_form(stock: tuple[Client, FakeEngine]) -> None:
    """POST takes a form, too, and names of the URL when the body lacks them."""
    client, engine = stock
    reply = client.ask("POST", "/api/v3/query_sql?db=edge", urllib.parse.urlencode({"q": "select 'ä'"}).encode())
    assert reply.status == 200
    assert engine.asked[-1] == ("edge", "select 'ä'", None)


BAD = {
    "no q": {"q": ""},
    "unknown format": {"format": "xml"},
    "params not JSON": {"params": "{"},
    "params a list": {"params": "[1]"},
    "params nested": {"params": '{"a":[1]}'},
}


@pytest.mark.parametrize("name", BAD)
def test_query_bad_parameters(stock: tuple[Client, FakeEngine], name: str) -> None:
    """A request that cannot be a query is 400 with a sentence, and the engine is not asked."""
    client, engine = stock
    before = len(engine.asked)
    query = urllib.parse.urlencode({"db": "edge", "q": "select 1"} | BAD[name])
    reply = client.ask("GET", f"/api/v3/query_sql?{query}")
    assert reply.status == 400
    assert list(reply.json) == ["error"]
    assert len(engine.asked) == before


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"q":1,"db":"edge"}', b"\xff\xfe", b"null"])
def test_query_bad_post_bodies(stock: tuple[Client, FakeEngine], body: bytes) -> None:
    """A POST body that is neither an object nor a form with q is 400."""
    assert stock[0].ask("POST", "/api/v3/query_sql", body).status == 400


def test_query_without_database() -> None:
    """Without db the only database is meant; with several the answer names them."""
    names = ["edge"]
    with serving(cpu_rows, databases=lambda: names) as (client, engine):
        assert client.ask("GET", "/api/v3/query_sql?q=select%201").status == 200
        assert engine.asked[-1][0] == "edge"
        names.append("home")
        reply = client.ask("GET", "/api/v3/query_sql?q=select%201")
        assert (reply.status, reply.json) == (400, {"error": "the parameter db is missing; databases: edge, home"})


FAULTS: dict[QueryFault, int] = {
    "invalid": 400,
    "not_found": 404,
    "too_large": 400,
    "exhausted": 503,
    "unavailable": 503,
    "timeout": 504,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_query_faults(fault: QueryFault) -> None:
    """Each fault of a query has its status, with the engine's sentence; a temporary one says when to come back."""

    def refuse() -> Result:
        raise QueryError(fault, "Placeholder '$h' was not provided")

    with serving(refuse) as (client, _):
        reply = client.sql()
    assert (reply.status, reply.json) == (FAULTS[fault], {"error": "Placeholder '$h' was not provided"})
    assert ("retry-after" in reply.headers) == (reply.status == 503)


def test_query_not_ready() -> None:
    """Before the end of the replay and while stopping a query is 503."""
    with serving(cpu_rows) as (client, engine):
        for phase in (Phase.STARTING, Phase.REPLAYING, Phase.STOPPING):
            client.health.enter(phase)
            assert client.sql().status == 503
        assert engine.asked == []


def test_query_too_many_at_once() -> None:
    """Queries beyond those that run and wait are 503 at once; the others are answered."""
    entered = threading.Semaphore(0)
    may_end = threading.Event()

    def wait() -> Result:
        entered.release()
        assert may_end.wait(DEADLINE_S)
        return cpu_rows()

    with serving(wait, limits=HttpLimits(max_queries=1, max_waiting_queries=0)) as (client, _):
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(client.sql)
            assert entered.acquire(timeout=DEADLINE_S)
            reply = client.sql()
            assert (reply.status, reply.json) == (503, {"error": "too many queries are waiting"})
            may_end.set()
            assert first.result(DEADLINE_S).status == 200
        assert client.sql().status == 200


def test_query_ends_with_its_client() -> None:
    """A client that leaves takes its query along: the engine is told, and the next one has its turn."""
    entered = threading.Semaphore(0)

    def wait() -> Result:
        entered.release()
        if len(engine.cancels) == 1:
            assert engine.cancels[0].wait(DEADLINE_S)
        return cpu_rows()

    with serving(wait, limits=HttpLimits(max_queries=1)) as (client, engine):
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(b"GET /api/v3/query_sql?db=edge&q=x HTTP/1.1\r\nHost: gw\r\n\r\n")
            assert entered.acquire(timeout=DEADLINE_S)
        assert engine.cancels[0].wait(DEADLINE_S)
        assert client.sql().status == 200


def test_query_that_nothing_interrupts() -> None:
    """An engine that does not come back costs its client no more than the time limit, and then keeps its turn."""
    may_end = threading.Event()

    def wait() -> Result:
        assert may_end.wait(DEADLINE_S)
        return cpu_rows()

    with serving(wait, limits=HttpLimits(max_queries=1, max_waiting_queries=0, query_s=0.1)) as (client, engine):
        reply = client.sql()
        assert (reply.status, reply.json["error"][:29]) == (504, "the query did not end within ")
        assert engine.cancels[0].is_set()
        may_end.set()
        engine.threads[0].join(DEADLINE_S)
        assert client.sql().status == 200


def test_query_is_encoded_off_the_loop() -> None:
    """No format is encoded by the thread that moves everybody's bytes."""
    threads: list[threading.Thread] = []

    def note(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
        threads.append(threading.current_thread())
        return parquet_bytes(schema, batches)

    with serving(cpu_rows, encode_parquet=note) as (client, _):
        assert client.sql(format="parquet").status == 200
        assert threads[0] is not client.thread


def test_query_result_that_a_format_cannot_hold() -> None:
    """A type that Parquet lacks is the question's fault: one sentence, and other formats are not affected."""
    rows = result({"i": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with serving(lambda: rows) as (client, _):
        reply = client.sql(format="parquet")
        assert (reply.status, reply.json["error"][:31]) == (400, "parquet cannot hold this result")
        assert client.sql(format="json").status == 200


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_query_nested_without_end(stock: tuple[Client, FakeEngine], opening: bytes) -> None:
    """JSON nested deeper than any decoder goes is the client's fault, not ours."""
    body = b'{"q":"select 1","db":"edge","params":' + opening * 20_000
    assert stock[0].ask("POST", "/api/v3/query_sql", body).status == 400


def big() -> Result:
    """A result of several megabytes."""
    count = 60_000
    return result({"n": pa.array(range(count)), "s": pa.array(["x" * 60] * count)}, 9_999)


@pytest.mark.parametrize("name", FORMATS)
def test_query_large_result_in_pieces(name: str) -> None:
    """A large result comes in pieces and is whole."""
    with serving(big) as (client, _):
        reply = client.sql(format=name)
    assert reply.status == 200
    if name == "parquet":
        assert pq.read_table(io.BytesIO(reply.body)).num_rows == 60_000
        return
    assert reply.headers["transfer-encoding"] == "chunked"
    encode = {"json": json_array, "jsonl": json_lines, "csv": csv, "pretty": pretty}[name]
    rows = big()
    assert reply.body == b"".join(encode(rows.schema, rows.batches))


def test_query_stalled_reader_is_cut_off() -> None:
    """A client that does not read its result loses the connection, and the next query has its turn."""
    limits = HttpLimits(max_queries=1, send_timeout_s=0.05)
    with serving(big, limits=limits) as (client, _), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(DEADLINE_S)
        connection.connect(("127.0.0.1", client.port))
        connection.sendall(b"GET /api/v3/query_sql?db=edge&q=x HTTP/1.1\r\nHost: gw\r\n\r\n")
        assert client.sql(format="parquet").status == 200
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            response = http.client.HTTPResponse(connection)
            response.begin()
            response.read()


def test_query_other_languages_are_refused(stock: tuple[Client, FakeEngine]) -> None:
    """Flux and InfluxQL get one sentence that points to SQL."""
    client, _ = stock
    flux = client.ask("POST", "/api/v2/query?org=x", b'{"query":"from(bucket:1)"}')
    assert (flux.status, flux.json["code"]) == (501, "not implemented")
    assert flux.json["message"].startswith("Flux is not supported; use SQL")
    for method, target in (("GET", "/query?db=edge&q=SELECT+1"), ("POST", "/query"), ("GET", "/query")):
        reply = client.ask(method, target)
        assert (reply.status, reply.json["message"][:26]) == (501, "InfluxQL is not supported;")
    assert client.ask("GET", "/api/v3/query_influxql?db=edge&q=x").json["error"].startswith("InfluxQL is not")


@pytest.mark.parametrize("sql", ["SHOW DATABASES", "show databases;", " Show  Databases "])
def test_query_show_databases(stock: tuple[Client, FakeEngine], sql: str) -> None:
    """v1 set-ups ask for the databases, in the URL or as a form."""
    expected = {
        "results": [
            {"statement_id": 0, "series": [{"name": "databases", "columns": ["name"], "values": [["edge"]]}]},
        ],
    }
    query = urllib.parse.urlencode({"q": sql})
    assert stock[0].ask("GET", f"/query?db=edge&{query}").json == expected
    assert stock[0].ask("POST", "/query", query.encode()).json == expected


def test_query_show_databases_empty() -> None:
    """Without a database the answer has no values."""
    with serving(cpu_rows, databases=list) as (client, _):
        series = client.ask("GET", "/query?q=SHOW%20DATABASES").json["results"][0]["series"]
    assert series == [{"name": "databases", "columns": ["name"]}]
