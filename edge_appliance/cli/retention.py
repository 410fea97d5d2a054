"""`edge-appliance retention --dry-run`: which dates the running daemon would delete next. It deletes by itself."""

from __future__ import annotations

import argparse
import json

from edge_appliance.cli.command import Exit, add_config_option, printable
from edge_appliance.cli.merge import planned

EXAMPLES = "  edge-appliance retention --dry-run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("--dry-run", action="store_true", required=True, help="show it; the daemon does it by itself")
    parser.add_argument("--json", action="store_true", help="the daemon's answer as it is")


def execute(arguments: argparse.Namespace) -> int:
    """Print the dates that are due."""
    plan = planned(arguments)
    if arguments.json:
        print(json.dumps(plan.get("expired", []), indent=2, ensure_ascii=False))
        return Exit.OK
    for expired in plan.get("expired", []):
        table = printable(f"{expired['database']}.{expired['table']}")
        print(f"{expired['date']}  {expired['rows']:>13,} rows  {table}")
    if not plan.get("expired"):
        print("nothing is to be deleted")
    if plan.get("clock") not in (None, "", "right"):
        print(f"the clock is {plan['clock']}")
    return Exit.OK
