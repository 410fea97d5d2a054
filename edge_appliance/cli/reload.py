"""`edge-appliance reload`: have the running daemon take over a changed configuration."""

from __future__ import annotations

import argparse
import http.client
import json
import socket
from pathlib import Path
from typing import Final

from edge_appliance import config
from edge_appliance.cli.command import CommandError, Exit, add_config_option
from edge_appliance.paths import CONTROL_NAME, RUNTIME_DIRECTORY
from edge_appliance.reload_plan import Outcome

EXAMPLES = "  edge-appliance reload --wait\n  systemctl reload edge-appliance"

_TIMEOUT_S: Final = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument(
        "--wait", action="store_true", help="return when it has taken effect, and say what did and what needs a restart"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Check the files first, so that their faults are named here; then ask the daemon to read them."""
    settings = config.load(arguments.config, purpose="check")
    connection = _Control(socket_path(arguments.config, settings))
    try:
        connection.request("POST", "/reload")
        if not arguments.wait:
            return Exit.OK
        outcome = Outcome(**json.loads(connection.getresponse().read()))
    except PermissionError as error:
        raise CommandError(Exit.FAILED, f"{connection.path}: only root and the service's user may reload") from error
    except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CommandError(
            Exit.UNREACHABLE,
            f"no daemon at {connection.path}: {reason}; is the unit stopped? See: systemctl status edge-appliance",
        ) from error
    finally:
        connection.close()
    print(outcome)
    return Exit.CONFIGURATION if outcome.faults else Exit.OK


def socket_path(named: Path | None, settings: config.Config) -> Path:
    """Where the daemon listens: as a service in its runtime directory, else in its data directory."""
    service = RUNTIME_DIRECTORY / CONTROL_NAME
    return service if named is None and service.exists() else settings.node.data_dir / CONTROL_NAME


class _Control(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(str(self.path))
