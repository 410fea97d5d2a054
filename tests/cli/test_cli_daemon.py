"""cli.query and cli.status against a small HTTP server that answers like the daemon."""

import http.server
import io
import json
import socket
import sys
import threading

import pytest

from edge_appliance.cli import main as cli
from edge_appliance.metrics import Metrics


class FakeDaemon(http.server.ThreadingHTTPServer):
    """Gives one prepared answer and keeps the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = (200, b"[]")
        self.breaks_off = False
        self.requests = []


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and POST alike."""

    def do_GET(self):
        """Keep the request, send the answer."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.path, self.headers, json.loads(body) if body else None))
        status, content = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) + self.server.breaks_off))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815 - http.server's name

    def log_message(self, *_):
        """Stay quiet."""


@pytest.fixture
def daemon():
    """A running fake."""
    with FakeDaemon() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(daemon, tmp_path):
    """Run a command against the fake."""
    path = tmp_path / "edge.toml"
    path.write_text(f'[http]\nlisten = "127.0.0.1:{daemon.server_port}"\n')

    def _ask(command, *arguments, extra=""):
        with path.open("a") as file:
            file.write(extra)
        return cli.main([command, "--config", str(path), *arguments])

    return _ask


@pytest.fixture
def nobody(tmp_path):
    """A configuration with an address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "nobody.toml"
    path.write_text(f'[http]\nlisten = "127.0.0.1:{port}"\n')
    return str(path), port


# Query

ROWS = [
    {"time": "2026-01-01T00:00:00.000000001Z", "host": "gw-01", "load": 1.5, "up": True},
    {"time": "2026-01-01T00:00:01.000000000Z", "host": "gw\x1b[31m", "load": None, "up": False},
]


@pytest.mark.parametrize("output", ["json", "jsonl", "csv", "parquet"])
def test_query_copies_the_answer(daemon, ask, capsysbinary, output):
    """The daemon's bytes reach stdout as they are, and it is asked for the wanted form."""
    daemon.answer = (200, b"\x00\xff anything\n")
    assert ask("query", "-o", output, "-d", "plants", "SELECT 1") == 0
    assert capsysbinary.readouterr().out == b"\x00\xff anything\n"
    (path, _, body) = daemon.requests[0]
    assert (path, body) == ("/api/v3/query_sql", {"db": "plants", "q": "SELECT 1", "format": output})


def test_query_json_ends_with_a_line_end(daemon, ask, capsysbinary):
    """A document without one gets it: the prompt must not stick to it."""
    daemon.answer = (200, b"[{}]")
    ask("query", "-o", "json", "SELECT 1")
    assert capsysbinary.readouterr().out == b"[{}]\n"


def test_query_table(daemon, ask, capsys):
    """A table shows every value, nothing for null, no control character, and the number of rows."""
    daemon.answer = (200, json.dumps(ROWS).encode())
    assert ask("query", "SELECT 1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["time", "host", "load", "up"]
    assert lines[2].split() == ["2026-01-01T00:00:00.000000001Z", "gw-01", "1.5", "true"]
    assert lines[3].split() == ["2026-01-01T00:00:01.000000000Z", r"gw\x1b[31m", "false"]
    assert lines[-1] == "(2 rows)"


def test_query_wide_table_in_a_pipe(daemon, ask, capsys):
    """A row stays on one line in a pipe, however wide it is."""
    daemon.answer = (200, json.dumps([{f"column_{n}": "x" * 30 for n in range(50)}]).encode())
    ask("query", "SELECT 1")
    assert capsys.readouterr().out.splitlines()[2].count("x" * 30) == 50


def test_query_long_table_is_cut(daemon, ask, capsys):
    """A table is for eyes: what is beyond a thousand rows is counted, and the way to it named."""
    daemon.answer = (200, json.dumps([{"n": n} for n in range(1234)]).encode())
    assert ask("query", "SELECT 1") == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-1] == "(1,234 rows)"
    assert output.err.startswith("234 more rows are not shown")


def test_query_empty_table(daemon, ask, capsys):
    """No rows are no error."""
    assert ask("query", "SELECT 1") == 0
    assert capsys.readouterr().out == "(0 rows)\n"


@pytest.mark.parametrize(
    ("routes", "database"),
    [
        ("", "edge"),
        ("[[mqtt.route]]\ntopic='a'\ndatabase='x'\n[[mqtt.route]]\ntopic='b'\ndatabase='x'\n", "x"),
        ("[[mqtt.route]]\ntopic='a'\ndatabase='x'\n[[mqtt.route]]\ntopic='b'\ndatabase='y'\n", "edge"),
    ],
)
def test_query_default_database(daemon, ask, routes, database):
    """Without -d it is the only configured database, else `edge`."""
    ask("query", "SELECT 1", extra=routes)
    assert daemon.requests[0][2]["db"] == database


def test_query_sends_the_token(daemon, ask, tmp_path):
    """The configured token goes with the request."""
    (tmp_path / "token").write_text("t0ken\n")
    ask("query", "SELECT 1", extra=f"token_file = '{tmp_path}/token'\n")
    assert daemon.requests[0][1]["Authorization"] == "Bearer t0ken"


def test_query_reads_sql_from_stdin(daemon, ask, monkeypatch):
    """`-` reads the SQL from stdin."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 2"))
    ask("query", "-")
    assert daemon.requests[0][2]["q"] == "SELECT 2"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, b"column 'x' not found"), "column 'x' not found"),
        ((404, b'{"error": "database \\"y\\" does not exist"}'), 'database "y" does not exist'),
        ((503, b'{"code": "unavailable", "message": "replaying the log: 5 %"}'), "replaying the log: 5 %"),
        ((401, b'{"error":"the request was not authenticated"}'), "http.token_file"),
        ((500, b""), "the daemon answered 500"),
        ((400, b"[1]"), "[1]"),
    ],
)
def test_query_refused(daemon, ask, capsys, answer, message):
    """A refusal is the daemon's own sentence on stderr, and 1."""
    daemon.answer = answer
    assert ask("query", "SELECT 1") == 1
    output = capsys.readouterr()
    assert message in output.err
    assert (output.out, output.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("output", ["table", "csv"])
def test_query_answer_breaks_off(daemon, ask, capsys, output):
    """An answer that breaks off is a failure, never a short result."""
    daemon.answer, daemon.breaks_off = (200, b"[]"), True
    assert ask("query", "-o", output, "SELECT 1") == 1
    assert "broke off" in capsys.readouterr().err


@pytest.mark.parametrize("sql", ["", " \n"])
def test_query_without_sql(ask, capsys, sql):
    """Empty SQL, as from an empty variable, is a wrong usage that never reaches the daemon."""
    assert ask("query", sql) == 2
    assert "the SQL is empty" in capsys.readouterr().err


def test_query_parquet_on_a_terminal(ask, monkeypatch, capsys):
    """Binary output is refused on a terminal, with the way out."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert ask("query", "-o", "parquet", "SELECT 1") == 2
    assert "redirect it" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["query", "SELECT 1"], ["status"], ["status", "--json"]])
def test_daemon_not_reachable(nobody, capsys, command):
    """Without a daemon there is one line with the address and what to look at, and 69."""
    path, port = nobody
    assert cli.main([*command, "--config", path]) == 69
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert f"127.0.0.1:{port}" in output.err
    assert "systemctl status edge-appliance" in output.err


def test_listening_on_all_addresses_is_asked_on_the_loopback(daemon, tmp_path):
    """0.0.0.0 is an address to listen on, not one to connect to."""
    (tmp_path / "token").write_text("x")
    path = tmp_path / "edge.toml"
    path.write_text(f"[http]\nlisten = '0.0.0.0:{daemon.server_port}'\ntoken_file = '{tmp_path}/token'\n")
    assert cli.main(["query", "--config", str(path), "SELECT 1"]) == 0
    assert daemon.requests[0][1]["Host"] == f"127.0.0.1:{daemon.server_port}"


# Status


def status_body(**changes):
    """A status as the daemon sends it, with some numbers in the metrics."""
    metrics = Metrics()
    metrics.deliveries.add(1200, "mqtt")
    metrics.deliveries.add(34, "http")
    metrics.lines.add(56_789)
    metrics.rejected.add(3, "bad_timestamp")
    metrics.acked.add(1200)
    metrics.broker_connected.set(1)
    metrics.buffer_bytes.set(16 << 20)
    metrics.buffer_limit.set(64 << 20)
    metrics.segments.set(1, "open")
    metrics.commit_seconds.observe(0.02)
    body = {
        "node": "gw-01",
        "version": "0.1.0",
        "up": "5m3s",
        "phase": "running",
        "status": "broker: connected",
        "ready": True,
        "degraded": {},
        "held": "",
        "replay": {"percent": 100},
        "metrics": metrics.snapshot(),
        "config": {},
    }
    return json.dumps(body | changes).encode()


def test_status_for_people(daemon, ask, capsys):
    """The human form has words, separators and units."""
    daemon.answer = (200, status_body())
    assert ask("status") == 0
    shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    shown = {name: text.strip() for name, text in shown.items()}
    assert shown["node"] == "gw-01, edge-appliance 0.1.0, up 5m3s"
    assert shown["state"] == "running: broker: connected"
    assert shown["broker"] == "connected"
    assert shown["deliveries"] == "1,234 (mqtt 1,200, http 34)"
    assert shown["lines"] == "56,789"
    assert shown["rejected"] == "3 (bad_timestamp 3)"
    assert shown["buffer"] == "16 MiB of 64 MiB (25%), segments (open 1)"
    assert shown["commit"] == "p50 ≤ 25 ms, p99 ≤ 25 ms"


def test_status_of_short_memory(daemon, ask, capsys):
    """The limit in effect and why, how fast memory fills, and what queries hold are in the line of the buffer."""
    metrics = Metrics()
    metrics.buffer_bytes.set(16 << 20)
    metrics.buffer_limit.set(64 << 20)
    metrics.buffer_effective_limit.set(32 << 20)
    metrics.buffer_rate.set(2 << 20)
    metrics.buffer_seconds_left.set(8)
    metrics.buffer_pinned.set(1 << 20)
    metrics.cool_downs.add(2)
    metrics.cool_down_seconds.add(7.4)
    daemon.answer = (200, status_body(metrics=metrics.snapshot()))
    assert ask("status") == 0
    (shown,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("buffer"))
    assert "16 MiB of 64 MiB (25%), limit now 32 MiB, the host is short of memory, grows by 2 MiB/s" in shown
    assert "full in 8 s, 1 MiB held by queries, was full 2 times, for 7 s" in shown


def test_status_in_trouble(daemon, ask, capsys):
    """What holds intake and what is degraded have lines of their own, each reason once."""
    daemon.answer = (
        200,
        status_body(held="the disk is full", degraded={"disk": "the disk is full", "wal_sync": "wal.sync is never"}),
    )
    assert ask("status") == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["state", "running"] in lines
    assert ["waiting", "nothing is acknowledged: the disk is full"] in lines
    assert [text for name, text in lines if name == "degraded"] == ["wal_sync: wal.sync is never"]


def test_status_during_replay(daemon, ask, capsys):
    """During replay its progress is shown, and that is no failure."""
    sentence = "replaying the log: 45 % of 120.0 MiB, 1,234 lines, 12 s left"
    daemon.answer = (200, status_body(phase="replaying", status=sentence, ready=False))
    assert ask("status") == 0
    assert f"state         {sentence}\n" in capsys.readouterr().out


def test_status_json(daemon, ask, capsys):
    """--json is the daemon's own object."""
    daemon.answer = (200, status_body())
    assert ask("status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(status_body())
    assert daemon.requests[0][0] == "/api/v1/status"


@pytest.mark.parametrize("body", [b"hello", b"[]", b"{}", b"\xff"])
def test_status_of_something_else(daemon, ask, capsys, body):
    """Another server on that port is said to be one."""
    daemon.answer = (200, body)
    assert ask("status") == 1
    assert "does not answer like edge-appliance" in capsys.readouterr().err


def test_status_watch_outlives_a_restart(daemon, ask, capsys, monkeypatch):
    """Watching goes on while the daemon is away, and ends with Ctrl-C."""
    status = json.dumps({"phase": "running", "status": "running", "metrics": {}}).encode()
    answers = [(200, status), (404, b"gone"), (200, status)]

    def sleep(_):
        if not answers:
            raise KeyboardInterrupt
        daemon.answer = answers.pop(0)

    monkeypatch.setattr("edge_appliance.cli.status.time.sleep", sleep)
    daemon.answer = answers.pop(0)
    assert ask("status", "--watch") == 130
    shown = capsys.readouterr().out
    assert (shown.count("state "), shown.count("gone")) == (2, 1)
    assert "\033" not in shown
