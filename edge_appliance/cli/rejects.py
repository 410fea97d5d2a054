"""`edge-appliance rejects`: the dead letters. `list` reads them from the disk; the daemon may run or not.

`retry` and `purge` are carried out by the daemon, which writes them.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from collections.abc import Mapping
from typing import Final

from edge_appliance import config
from edge_appliance.cli.command import CommandError, Exit, add_config_option, printable
from edge_appliance.cli.control import ask
from edge_appliance.config_values import time_text
from edge_appliance.dead_letters import read_dead_letters
from edge_appliance.paths import Paths
from edge_appliance.retry import OUTCOMES

EXAMPLES = """\
  edge-appliance rejects list --limit 1000 --json
  edge-appliance rejects show
  edge-appliance rejects retry
  edge-appliance rejects purge --yes"""

DEFAULT_LIMIT: Final = 20
_TIMEOUT_S: Final = 600.0
_ACTIONS: Final = (
    "list: the newest rejected lines, newest last; show: the same with all that is known of each; retry: send those "
    "again that were kept whole, as messages on their topics (a line without a time gets that of now); "
    "purge: throw all of them away"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("action", choices=("list", "show", "retry", "purge"), help=_ACTIONS)
    parser.add_argument(
        "--limit",
        type=_positive_number,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"of list and show; default: {DEFAULT_LIMIT}",
    )
    parser.add_argument("--yes", action="store_true", help="purge without asking")
    parser.add_argument("--json", action="store_true", help="as JSON; 'sample' is base64 there")


def execute(arguments: argparse.Namespace) -> int:
    """Print the newest dead letters, or have the daemon do something about all of them."""
    settings = config.load(arguments.config, purpose="ask")
    match arguments.action:
        case "retry":
            return _retry(arguments, settings)
        case "purge":
            return _purge(arguments, settings)
    letters = list(read_dead_letters(Paths(settings.node.data_dir).dead_letters, arguments.limit))
    if arguments.json:
        print(json.dumps(letters, indent=2, ensure_ascii=False))
        return Exit.OK
    for letter in letters:
        print(describe(letter) if arguments.action == "list" else describe_all(letter))
    if not letters:
        print("no rejected lines")
    return Exit.OK


def _retry(arguments: argparse.Namespace, settings: config.Config) -> int:
    """Returns 1 when letters are left, or came anew."""
    counts: dict[str, int] = ask(arguments.config, settings, "/rejects/retry", timeout_s=_TIMEOUT_S)
    if arguments.json:
        print(json.dumps(counts, indent=2))
    else:
        told = [f"{count:,} {OUTCOMES.get(outcome, outcome)}" for outcome, count in counts.items() if count]
        print("\n".join(told) or "no rejected lines")
    return Exit.FAILED if sum(counts.values()) > counts["stored"] else Exit.OK


def _purge(arguments: argparse.Namespace, settings: config.Config) -> int:
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise CommandError(Exit.USAGE, "purge throws all kept rejected lines away; confirm it with --yes")
        if input("throw all kept rejected lines away? [y/N] ").strip().lower() not in ("y", "yes"):
            return Exit.FAILED
    purged: int = ask(arguments.config, settings, "/rejects/purge", timeout_s=_TIMEOUT_S)["purged"]
    print(json.dumps({"purged": purged}) if arguments.json else f"{purged:,} rejected lines purged")
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


def describe_all(letter: Mapping[str, object]) -> str:
    """Return a line for each thing that is known, and the whole sample."""
    rows = [f"{key + ':':<12} {printable(str(value))}" for key, value in letter.items() if key != "sample"]
    return describe(letter) + "".join(f"\n    {row}" for row in rows) + "\n"


def _positive_number(text: str) -> int:
    if not text.isdecimal() or (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r}")
    return number
