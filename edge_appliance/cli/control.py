"""The running daemon's control socket, seen from a command."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from edge_appliance import config
from edge_appliance.cli.command import CommandError, Exit
from edge_appliance.paths import CONTROL_NAME, RUNTIME_DIRECTORY


def ask(named: Path | None, settings: config.Config, path: str, *, timeout_s: float, waits: bool = True) -> Any:
    """POST to the daemon of these settings; returns its JSON, or None without waiting for it.

    `named` is the configuration file that the caller named.
    """
    connection = _Connection(socket_path(named, settings), timeout_s)
    try:
        connection.request("POST", path)
        if not waits:
            return None
        response = connection.getresponse()
        answer = json.loads(response.read())
    except PermissionError as error:
        raise CommandError(Exit.FAILED, f"{connection.path}: only root and the service's user may ask this") from error
    except TimeoutError as error:
        raise CommandError(Exit.UNREACHABLE, f"no answer from the daemon within {timeout_s:g} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CommandError(
            Exit.UNREACHABLE,
            f"no daemon at {connection.path}: {reason}; is the unit stopped? See: systemctl status edge-appliance",
        ) from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise CommandError(Exit.FAILED, str(answer.get("error")))
    return answer


def socket_path(named: Path | None, settings: config.Config) -> Path:
    """Where the daemon listens: as a service in its runtime directory, else in its data directory."""
    service = RUNTIME_DIRECTORY / CONTROL_NAME
    return service if named is None and service.exists() else settings.node.data_dir / CONTROL_NAME


class _Connection(http.client.HTTPConnection):
    """HTTP over a socket in the file system."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))
