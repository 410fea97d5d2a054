"""`edge-appliance reload`: have the running daemon take over a changed configuration."""

from __future__ import annotations

import argparse
import json
from typing import Final

from edge_appliance import config
from edge_appliance.cli.command import Exit, add_config_option
from edge_appliance.cli.control import ask
from edge_appliance.errors import ConfigError
from edge_appliance.reload_plan import Outcome

EXAMPLES = "  edge-appliance reload --wait\n  systemctl reload edge-appliance"

_TIMEOUT_S: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument(
        "--wait", action="store_true", help="return when it has taken effect, and say what did and what needs a restart"
    )
    parser.add_argument("--json", action="store_true", help="wait, and say it as a JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Check the files first, so that their faults are named here; then ask the daemon to read them."""
    try:
        settings = config.load(arguments.config, purpose="check")
    except ConfigError as error:
        if not arguments.json:
            raise
        return _say(Outcome(faults=str(error)), as_json=True)
    waits = arguments.wait or arguments.json
    answer = ask(arguments.config, settings, "/reload", timeout_s=_TIMEOUT_S, waits=waits)
    return Exit.OK if answer is None else _say(Outcome(**answer), as_json=arguments.json)


def _say(outcome: Outcome, *, as_json: bool) -> int:
    listed = {**outcome._asdict(), "faults": outcome.faults.splitlines()}
    print(json.dumps(listed, indent=2, ensure_ascii=False) if as_json else outcome)
    return Exit.CONFIGURATION if outcome.faults else Exit.OK
