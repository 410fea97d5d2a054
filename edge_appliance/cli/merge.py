"""`edge-appliance merge --dry-run`: which parts the running daemon would merge next. It merges by itself."""

from __future__ import annotations

import argparse
import http.client
import json
from typing import Any, Final

from edge_appliance import config
from edge_appliance.cli.command import CommandError, Exit, add_config_option, printable
from edge_appliance.cli.daemon import Daemon, refusal
from edge_appliance.config_values import size_text

EXAMPLES = "  edge-appliance merge --dry-run"

_TIMEOUT_S: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("--dry-run", action="store_true", required=True, help="show it; the daemon does it by itself")
    parser.add_argument("--json", action="store_true", help="the daemon's answer as it is")


def execute(arguments: argparse.Namespace) -> int:
    """Print the merges that are due."""
    plan = planned(arguments)
    if arguments.json:
        print(json.dumps(plan.get("merges", []), indent=2, ensure_ascii=False))
        return Exit.OK
    for merge in plan.get("merges", []):
        table = printable(f"{merge['database']}.{merge['table']}")
        print(f"{merge['date']}  {merge['parts']:>4} parts  {size_text(merge['bytes']):>9}  {table}")
    if not plan.get("merges"):
        print("nothing is to be merged" + (f": {plan['waits']}" if "waits" in plan else ""))
    return Exit.OK


def planned(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the daemon's next run of maintenance would do."""
    daemon = Daemon(config.load(arguments.config, purpose="ask").http)
    with daemon.get("/api/v1/maintenance", timeout_s=_TIMEOUT_S) as response:
        if response.status != http.client.OK:
            raise refusal(response)
        try:
            plan = json.loads(response.read())
        except (http.client.HTTPException, ConnectionError, TimeoutError, ValueError) as error:
            raise CommandError(Exit.FAILED, f"{daemon.address} does not answer like edge-appliance") from error
    return dict(plan)
