"""`edge-appliance query`: SQL to the daemon, its answer to stdout."""

from __future__ import annotations

import argparse
import http.client
import json
import shutil
import sys
from typing import Final

from edge_appliance import config
from edge_appliance.cli.command import CommandError, Exit, add_config_option, printable
from edge_appliance.cli.daemon import Daemon, refusal

EXAMPLES = """\
  edge-appliance query 'SELECT * FROM cpu ORDER BY time DESC LIMIT 10'
  edge-appliance query -d plants -o csv 'SELECT * FROM boiler' > boiler.csv
  echo 'SELECT count(*) FROM cpu' | edge-appliance query -"""

OUTPUTS: Final = ("table", "json", "jsonl", "csv", "parquet")

MAX_TABLE_ROWS: Final = 1_000
"""A table is for eyes and is laid out in memory as a whole; the other forms stream any number of rows."""

_GRACE_S: Final = 10.0
"""Over the query's own time limit: the daemon's answer about a timeout should arrive, too."""

_COPY_BYTES: Final = 64 << 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("-d", "--database", help="default: the only one of the configured routes, else 'edge'")
    parser.add_argument("-o", "--output", choices=OUTPUTS, default="table", help="default: table")
    parser.add_argument("sql", metavar="SQL", help="one SELECT; '-' reads it from stdin")


def execute(arguments: argparse.Namespace) -> int:
    """Ask, and print the answer in the wanted form."""
    if arguments.output == "parquet" and sys.stdout.isatty():
        raise CommandError(
            Exit.USAGE, "parquet is not for terminals: redirect it, as in '… -o parquet SQL > file.parquet'"
        )
    sql = sys.stdin.read() if arguments.sql == "-" else arguments.sql
    if not sql.strip():
        raise CommandError(Exit.USAGE, "the SQL is empty: state one SELECT, such as 'SHOW TABLES'")
    settings = config.load(arguments.config, purpose="ask")
    daemon = Daemon(settings.http)
    body = {
        "db": arguments.database or default_database(settings),
        "q": sql,
        "format": "json" if arguments.output == "table" else arguments.output,
    }
    response = daemon.post("/api/v3/query_sql", body, timeout_s=settings.query.timeout_s + _GRACE_S)
    with response:
        if response.status != http.client.OK:
            raise refusal(response)
        try:
            if arguments.output == "table":
                print_table(json.loads(response.read()))
            else:
                copy(response, ends_line=arguments.output == "json")
        except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
            if isinstance(error, BrokenPipeError):
                raise  # our reader left, not the daemon
            raise CommandError(Exit.FAILED, "the answer broke off: the daemon closed the connection") from error
    return Exit.OK


def default_database(settings: config.Config) -> str:
    """Return the database of all routes if it is one, else the name that routes have by default."""
    databases = {route.database for route in settings.mqtt.routes}
    return databases.pop() if len(databases) == 1 else str(config.ROUTE_KEYS["database"].default)


def copy(response: http.client.HTTPResponse, *, ends_line: bool) -> None:
    """Copy the body to stdout as it comes; a JSON document gets a line end for the terminal's sake."""
    out = sys.stdout.buffer
    last = b""
    while chunk := response.read(_COPY_BYTES):
        out.write(chunk)
        last = chunk
    if response.length:
        # Read in pieces, a body that ends before its Content-Length raises nothing by itself (Python 3.11).
        raise http.client.IncompleteRead(last, response.length)
    if ends_line and not last.endswith(b"\n"):
        out.write(b"\n")
    out.flush()


def print_table(rows: list[dict[str, object]]) -> None:
    """Print rows as an aligned table, and below it how many there are."""
    # Here and not above: a terminal library is slow to import and only this form needs it.
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = rows[:MAX_TABLE_ROWS]
    columns = list(dict.fromkeys(name for row in shown for name in row))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        numeric = all(isinstance(row.get(name), (int, float, type(None))) for row in shown)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        table.add_row(*(Text(_cell(row.get(name))) for name in columns))
    # A pipe has no width: a row stays on one line there.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1_000_000
    if columns:
        Console(width=width, file=sys.stdout, highlight=False).print(table)
    hidden = len(rows) - len(shown)
    print(f"({len(rows):,} rows)" if len(rows) != 1 else "(1 row)")
    if hidden:
        print(f"{hidden:,} more rows are not shown here; -o csv or -o jsonl gives all", file=sys.stderr)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return printable(value if isinstance(value, str) else json.dumps(value))
