"""`edge-appliance show-config`: the settings, each with the file and line that it comes from. Secrets are not read."""

from __future__ import annotations

import argparse
import json
import re

from edge_appliance import config
from edge_appliance.cli.check_config import values_in_effect
from edge_appliance.cli.command import Exit, add_config_option
from edge_appliance.config_files import Document, KeyPath, read_documents

EXAMPLES = "  edge-appliance show-config\n  edge-appliance show-config --effective --json"

DEFAULT = "default"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("--effective", action="store_true", help="all values in effect, also those that no file states")
    parser.add_argument("--json", action="store_true", help="as one JSON array")


def execute(arguments: argparse.Namespace) -> int:
    """Print name, value and origin, one a line; a configuration with faults is refused as by `run`."""
    settings = config.load(arguments.config, purpose="ask")
    document = read_documents(arguments.config or config.DEFAULT_PATH, is_required=arguments.config is not None)
    rows = [(name, text, origin(document, name)) for name, text in values_in_effect(settings)]
    if not arguments.effective:
        rows = [row for row in rows if row[2] != DEFAULT]
    if arguments.json:
        named = [dict(zip(("key", "value", "origin"), row, strict=True)) for row in rows]
        print(json.dumps(named, indent=2, ensure_ascii=False))
        return Exit.OK
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for name, text, place in rows:
        print(f"{name:<{widths[0]}}  {text:<{widths[1]}}  {place}")
    if not rows:
        print("no file states anything: all values are the defaults, which --effective shows")
    return Exit.OK


def origin(document: Document, name: str) -> str:
    """Return file and line of a key by its name; the last file that states it has it."""
    place = document.places.get(_path(name))
    return f"{place[0]}:{place[1]}" if place else DEFAULT


def _path(name: str) -> KeyPath:
    """`mqtt.route 2.topic` is the key `topic` of the second route."""
    parts: list[str | int] = []
    for part in name.split("."):
        numbered = re.fullmatch(r"(\w+) (\d+)", part)
        parts += [numbered[1], int(numbered[2]) - 1] if numbered else [part]
    return tuple(parts)
