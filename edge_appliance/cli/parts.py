"""`edge-appliance parts list`: the Parquet files that count, as the running daemon knows them."""

from __future__ import annotations

import argparse
import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from edge_appliance import config
from edge_appliance.cli.command import CommandError, Exit, add_config_option, printable
from edge_appliance.cli.daemon import Daemon, refusal
from edge_appliance.config_values import size_text

EXAMPLES = "  edge-appliance parts list\n  edge-appliance parts list -d plants -t boiler --json | jq -r .key"

_TIMEOUT_S: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("action", choices=("list",), help="list: all parts, the oldest first")
    parser.add_argument("-d", "--database", help="of this database only")
    parser.add_argument("-t", "--table", help="of this table only")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def execute(arguments: argparse.Namespace) -> int:
    """Print them, and how many there are."""
    chosen = {"db": arguments.database, "table": arguments.table}
    query = urlencode({key: value for key, value in chosen.items() if value is not None})
    daemon = Daemon(config.load(arguments.config, purpose="ask").http)
    number = size_bytes = rows = 0
    for part in listed(daemon, f"/api/v1/parts?{query}"):
        number, size_bytes, rows = number + 1, size_bytes + int(part["bytes"]), rows + int(part["rows"])
        print(json.dumps(part, ensure_ascii=False) if arguments.json else line(part))
    if not arguments.json:
        print(f"({number:,} parts, {rows:,} rows, {size_text(size_bytes)})")
    return Exit.OK


def listed(daemon: Daemon, path: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an answer that has one a line."""
    with daemon.get(path, timeout_s=_TIMEOUT_S) as response:
        if response.status != http.client.OK:
            raise refusal(response)
        try:
            for text in response:
                yield json.loads(text)
        except (http.client.HTTPException, ConnectionError, TimeoutError, ValueError) as error:
            raise CommandError(Exit.FAILED, "the answer broke off: the daemon closed the connection") from error


def line(part: Mapping[str, Any]) -> str:
    """One part for people: where, what, and whether the store has it."""
    place = "stored " if part["stored"] else "spooled"
    table = printable(f"{part['database']}.{part['table']}")
    times = f"{part['min_time']} to {part['max_time']}"
    return f"{part['date']}  {place}  {part['rows']:>11,} rows  {size_text(part['bytes']):>9}  {table}  {times}"
