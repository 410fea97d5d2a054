"""`edge-appliance export`: all rows of a time range, as Parquet, CSV or line protocol.

The range is asked for in pieces that the daemon answers from memory, so it may be of any length. Rows come in order of
time; those written meanwhile may or may not be among them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol
from urllib.parse import urlencode

import pyarrow as pa

from edge_appliance import config
from edge_appliance.cli.command import CommandError, Exit, add_config_option
from edge_appliance.cli.daemon import Daemon, refusal
from edge_appliance.cli.progress import Progress
from edge_appliance.cli.query import default_database
from edge_appliance.config_values import parse_time_ns
from edge_appliance.core.delivery import Kind
from edge_appliance.core.line_text import field_text, head_text
from edge_appliance.parquet_file import ParquetRows, decode_parquet

EXAMPLES = """\
  edge-appliance export -t boiler --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z january.parquet
  edge-appliance export -d plants -o lp - | gzip > plants.lp.gz"""

FORMS: Final = ("parquet", "csv", "lp")
PIECE_ROWS: Final = 100_000
"""Of one query: far below query.max_rows, and a few MiB."""
_TIMEOUT_S: Final = 10.0
_MIN_NS, _MAX_NS = -(2**63), 2**63 - 1


class Output(Protocol):
    """Where rows go."""

    def write(self, rows: pa.Table) -> None:
        """Append rows of the table."""

    def close(self) -> None:
        """End well."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("-d", "--database", help="default: the only one of the configured routes, else 'edge'")
    parser.add_argument("-t", "--table", action="append", help="several are possible with -o lp; default there: all")
    parser.add_argument("--from", dest="start", metavar="TIME", help="first time, such as 2026-01-01T00:00:00Z")
    parser.add_argument("--to", dest="stop", metavar="TIME", help="first time that is not exported any more")
    parser.add_argument("-o", "--output", choices=FORMS, help="default: by the file's name, else parquet")
    parser.add_argument("file", metavar="FILE", help="what to write; '-' is stdout")


def execute(arguments: argparse.Namespace) -> int:
    """Ask piece by piece, and write."""
    start, stop = _time(arguments.start, _MIN_NS), _time(arguments.stop, _MAX_NS)
    form = arguments.output or _form_of(arguments.file)
    settings = config.load(arguments.config, purpose="ask")
    source = _Source(settings, arguments.database or default_database(settings))
    columns = source.tables()
    tables = arguments.table or (sorted(columns) if form == "lp" else [])
    if form != "lp" and len(tables) != 1:
        raise CommandError(Exit.USAGE, f"state one table with -t: a {form} file has the columns of one")
    for table in tables:
        if table not in columns:
            raise CommandError(Exit.FAILED, f"there is no table {table!r} in the database {source.database!r}")
    with ExitStack() as opened:
        sink = _opened(arguments.file, opened)
        rows = 0
        progress = opened.enter_context(Progress("exporting", 0))
        for table in tables:
            output = _output(form, sink, table, columns[table])
            for piece in source.pieces(table, start, stop):
                output.write(piece)
                rows += piece.num_rows
                progress.reach(sink.tell() if sink.seekable() else 0, f"{rows:,} rows of {table}")
            output.close()
        sink.flush()
    print(f"{rows:,} rows exported", file=sys.stderr)
    return Exit.OK


def _time(text: str | None, default: int) -> int:
    if text is None:
        return default
    try:
        return parse_time_ns(text)
    except ValueError as error:
        raise CommandError(Exit.USAGE, str(error)) from error


def _form_of(file: str) -> str:
    suffix = Path(file).suffix.removeprefix(".")
    return suffix if suffix in FORMS else "parquet"


def _opened(file: str, stack: ExitStack) -> BinaryIO:
    if file == "-":
        if sys.stdout.isatty():
            raise CommandError(Exit.USAGE, "this is a lot for a terminal: redirect it, or name a file")
        return sys.stdout.buffer
    try:
        return stack.enter_context(Path(file).open("wb"))
    except OSError as error:
        raise CommandError(Exit.CANNOT_CREATE, f"{file}: {error.strerror}") from error


class _Source:
    """The daemon, asked for pieces of a table."""

    def __init__(self, settings: config.Config, database: str) -> None:
        self._daemon = Daemon(settings.http)
        self._timeout_s = settings.query.timeout_s + _TIMEOUT_S
        self._piece_rows = min(PIECE_ROWS, settings.query.max_rows)
        self.database = database

    def tables(self) -> Mapping[str, Mapping[str, str]]:
        """Columns and their kinds of all tables."""
        path = f"/api/v1/tables?{urlencode({'db': self.database})}"
        with self._daemon.get(path, timeout_s=_TIMEOUT_S) as response:
            if response.status != http.client.OK:
                raise refusal(response)
            found: Mapping[str, Mapping[str, str]] = json.loads(response.read())
        return found

    def pieces(self, table: str, start: int, stop: int) -> Iterator[pa.Table]:
        """Rows with times in [start, stop), by time; at least one piece, which may be empty."""
        name = '"' + table.replace('"', '""') + '"'
        spans = [(start, stop - 1)]
        is_any = False
        while spans:
            low, high = spans.pop()
            counted = "count(*) AS n, arrow_cast(min(time), 'Int64') AS lo, arrow_cast(max(time), 'Int64') AS hi"
            where = f"time >= {_literal(low)} AND time <= {_literal(high)}"
            (count,) = self._ask(f"SELECT {counted} FROM {name} WHERE {where}").to_pylist()
            if count["n"] > self._piece_rows and count["lo"] < count["hi"]:
                middle = (count["lo"] + count["hi"]) // 2
                spans += [(middle + 1, count["hi"]), (count["lo"], middle)]
            elif count["n"] or not (is_any or spans):
                is_any = True
                yield self._ask(f"SELECT * FROM {name} WHERE {where} ORDER BY time")

    def _ask(self, sql: str) -> pa.Table:
        body = {"db": self.database, "q": sql, "format": "parquet"}
        with self._daemon.post("/api/v3/query_sql", body, timeout_s=self._timeout_s) as response:
            if response.status != http.client.OK:
                raise refusal(response)
            try:
                return decode_parquet(response.read())
            except (http.client.HTTPException, ConnectionError, TimeoutError, pa.ArrowException) as error:
                raise CommandError(Exit.FAILED, "the answer broke off: the daemon closed the connection") from error


def _literal(time_ns: int) -> str:
    return f"arrow_cast(arrow_cast('{time_ns}', 'Int64'), 'Timestamp(ns, \"UTC\")')"


def _output(form: str, sink: BinaryIO, table: str, columns: Mapping[str, str]) -> Output:
    if form == "parquet":
        return ParquetRows(sink)
    if form == "csv":
        return _Csv(sink)
    return _Lines(sink, table, {name: Kind[kind.upper()] for name, kind in columns.items()})


class _Csv:
    """CSV with a header; a missing value is empty, an empty string is quoted."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._is_begun = False

    def write(self, rows: pa.Table) -> None:
        # Here and not above: only this form needs it.
        import pyarrow.csv  # noqa: PLC0415

        options = pyarrow.csv.WriteOptions(include_header=not self._is_begun)
        pyarrow.csv.write_csv(rows, self._sink, options)
        self._is_begun = True

    def close(self) -> None:
        pass


class _Lines:
    """Line protocol with times in ns, which `import` takes back unchanged."""

    def __init__(self, sink: BinaryIO, table: str, kinds: Mapping[str, Kind]) -> None:
        self._sink = sink
        self._table = table
        self._tags = [name for name, kind in kinds.items() if kind is Kind.TAG]
        self._fields = {name: kind for name, kind in kinds.items() if kind is not Kind.TAG}

    def write(self, rows: pa.Table) -> None:
        times = rows.column("time").cast(pa.int64()).to_pylist()
        tags = {name: rows.column(name).to_pylist() for name in self._tags if name in rows.column_names}
        fields = {name: rows.column(name).to_pylist() for name in self._fields if name in rows.column_names}
        self._sink.write("".join(self._texts(times, tags, fields)).encode())

    def _texts(
        self, times: Sequence[int], tags: Mapping[str, Sequence[Any]], fields: Mapping[str, Sequence[Any]]
    ) -> Iterator[str]:
        for row, time_ns in enumerate(times):
            head = head_text(self._table, tuple((k, values[row]) for k, values in tags.items() if values[row]))
            pairs = [
                field_text(name, self._fields[name], values[row])
                for name, values in fields.items()
                if values[row] is not None
            ]
            yield f"{head} {','.join(pairs)} {time_ns}\n"

    def close(self) -> None:
        pass
