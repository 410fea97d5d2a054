"""The control socket: what only the service's own user and root may ask, on a socket in the file system.

    POST /reload           reload the configuration; answers when it is done
    POST /rejects/retry    send rejected lines again; answers how many had which outcome
    POST /rejects/purge    throw the kept rejected lines away; answers how many

It is no part of the TCP side: a token opens rows, not the process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from aiohttp import web

from edge_appliance.errors import EdgeError
from edge_appliance.reload_plan import Outcome
from edge_appliance.retry import Retry

_log = logging.getLogger(__name__)

_MODE: Final = 0o600
_STOP_S: Final = 1.0


class Control:
    """The socket, from `serve()` to `stop()`."""

    def __init__(self, path: Path, reload: Callable[[], Awaitable[Outcome]], rejects: Retry) -> None:
        self._path = path
        self._reload = reload
        self._rejects = rejects
        self._runner: web.AppRunner | None = None

    async def serve(self) -> None:
        """Listen. Without the socket all but `edge-appliance reload` works, so that it is no reason not to start."""
        app = web.Application()
        app.router.add_post("/reload", self._answer)
        app.router.add_post("/rejects/retry", self._retry)
        app.router.add_post("/rejects/purge", self._purge)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_S)
        await self._runner.setup()
        try:
            self._path.unlink(missing_ok=True)  # left by a process that was killed; the directory's lock is ours
            await web.UnixSite(self._runner, self._path).start()
            self._path.chmod(_MODE)
        except OSError as error:
            _log.warning("%s: cannot listen here, 'reload' will not work: %s", self._path, error.strerror or error)

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._path.unlink(missing_ok=True)

    async def _answer(self, _: web.Request) -> web.Response:
        outcome = await self._reload()
        return web.json_response(
            {"faults": outcome.faults, "applied": outcome.applied, "needs_restart": outcome.needs_restart}
        )

    async def _retry(self, _: web.Request) -> web.Response:
        try:
            return web.json_response(await self._rejects.retry())
        except EdgeError as error:
            return _failed(error)

    async def _purge(self, _: web.Request) -> web.Response:
        try:
            return web.json_response({"purged": await self._rejects.purge()})
        except EdgeError as error:
            return _failed(error)


def _failed(error: EdgeError) -> web.Response:
    return web.json_response({"error": str(error)}, status=500)
