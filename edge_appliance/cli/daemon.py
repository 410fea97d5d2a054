"""The running daemon, seen from a command: one HTTP request at a time, and plain words when there is no answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Final

from edge_appliance.cli.command import CommandError, Exit
from edge_appliance.config import HttpSection

CONNECT_TIMEOUT_S: Final = 5.0
MAX_ERROR_BYTES: Final = 64 << 10
"""An error is read for its message only."""

_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - we connect to it, we do not bind


class Daemon:
    """Requests to the daemon that listens where [http] says."""

    def __init__(self, settings: HttpSection) -> None:
        self._settings = settings
        self._host = _ANY_ADDRESS.get(settings.host, settings.host)
        self.address = f"[{self._host}]:{settings.port}" if ":" in self._host else f"{self._host}:{settings.port}"

    def get(self, path: str, *, timeout_s: float) -> http.client.HTTPResponse:
        """Return the answer to a GET, whatever its status."""
        return self._request("GET", path, None, timeout_s)

    def post(self, path: str, body: Mapping[str, object], *, timeout_s: float) -> http.client.HTTPResponse:
        """Return the answer to a POST of `body` as JSON, whatever its status."""
        return self._request("POST", path, json.dumps(body).encode(), timeout_s)

    def post_lines(self, path: str, lines: bytes, *, timeout_s: float) -> http.client.HTTPResponse:
        """Return the answer to a POST of line protocol, whatever its status."""
        return self._request("POST", path, lines, timeout_s, "text/plain")

    def _request(
        self, method: str, path: str, body: bytes | None, timeout_s: float, content: str = "application/json"
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host, self._settings.port, timeout=CONNECT_TIMEOUT_S)
        headers = {"Content-Type": content} if body is not None else {}
        if self._settings.token is not None:
            headers["Authorization"] = f"Bearer {self._settings.token.reveal()}"
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            connection.request(method, path, body, headers)
            return connection.getresponse()
        except TimeoutError as error:
            connection.close()
            raise self.unreachable("no answer in time") from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise self.unreachable(str(reason)) from error

    def unreachable(self, reason: str) -> CommandError:
        """Return the error for a daemon that does not answer."""
        return CommandError(
            Exit.UNREACHABLE,
            f"no daemon at {self.address} (http.listen): {reason}; is the unit stopped? "
            "See: systemctl status edge-appliance",
        )


def refusal(response: http.client.HTTPResponse) -> CommandError:
    """Return the error for an answer that is none: the daemon's own sentence where it gave one."""
    text = response.read(MAX_ERROR_BYTES).decode("utf-8", "replace").strip()
    try:
        body = json.loads(text)
        text = str(body.get("message") or body.get("error") or text)
    except (ValueError, AttributeError):
        pass  # plain text is the sentence itself
    if response.status == 401:
        text = "the daemon wants a token: the configuration must name the same http.token_file as the daemon's"
    return CommandError(Exit.FAILED, text or f"the daemon answered {response.status} {response.reason}")
