"""`edge-appliance rejects list`: the dead letters, read from the disk; the daemon may run or not."""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Mapping
from typing import Final

from edge_appliance import config
from edge_appliance.cli.command import Exit, add_config_option, printable
from edge_appliance.config_values import time_text
from edge_appliance.dead_letters import read_dead_letters
from edge_appliance.paths import Paths

EXAMPLES = "  edge-appliance rejects list\n  edge-appliance rejects list --limit 1000 --json"

DEFAULT_LIMIT: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("action", choices=("list",), help="list: the newest rejected lines, newest last")
    parser.add_argument(
        "--limit", type=_positive_number, default=DEFAULT_LIMIT, metavar="N", help=f"default: {DEFAULT_LIMIT}"
    )
    parser.add_argument("--json", action="store_true", help="as a JSON list; 'sample' is base64 there")


def execute(arguments: argparse.Namespace) -> int:
    """Print the newest dead letters."""
    settings = config.load(arguments.config, purpose="ask")
    letters = list(read_dead_letters(Paths(settings.node.data_dir).dead_letters, arguments.limit))
    if arguments.json:
        print(json.dumps(letters, indent=2, ensure_ascii=False))
        return Exit.OK
    for letter in letters:
        print(describe(letter))
    if not letters:
        print("no rejected lines")
    return Exit.OK


def describe(letter: Mapping[str, object]) -> str:
    """Return when, where from, where in the message, why, and below it the beginning of the line itself."""
    arrival_ns, topic = letter.get("arrival_ns"), letter.get("topic")
    time = time_text(arrival_ns) if isinstance(arrival_ns, int) else "-"
    place = f"line {letter.get('line')}, column {letter.get('column')}"
    sample = base64.b64decode(str(letter.get("sample", ""))).decode("utf-8", "backslashreplace")
    return printable(f"{time}  {topic}  {place}: {letter.get('reason')}: {letter.get('message')}") + (
        f"\n    {printable(sample)}" if sample else ""
    )


def _positive_number(text: str) -> int:
    if not text.isdecimal() or (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return number
