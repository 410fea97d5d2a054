"""Reloads the configuration, on SIGHUP and for `edge-appliance reload`. One with faults changes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from edge_appliance.config import Config
from edge_appliance.errors import ConfigError
from edge_appliance.health import Health
from edge_appliance.reload_plan import Outcome, plan
from edge_appliance.systemd import Notifier

_log = logging.getLogger(__name__)


class Reloader:
    """One task on the event loop, once the appliance runs. Who asks earlier waits; one reload serves all who wait."""

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        apply: Callable[[Config], None],
        notifier: Notifier,
        health: Health,
    ) -> None:
        """`load` reads files and runs in a thread; `apply` runs on the event loop."""
        self.config = config
        """What is in effect."""
        self._load = load
        self._apply = apply
        self._notifier = notifier
        self._health = health
        self._asked = asyncio.Event()
        self._waiting: list[asyncio.Future[Outcome]] = []

    def ask(self) -> asyncio.Future[Outcome]:
        """Ask for a reload of what the files hold from now on."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._asked.set()
        return answer

    async def run(self) -> None:
        """Serve those who ask, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            served, self._waiting = self._waiting, []
            outcome = await self._reload()
            for answer in served:
                if not answer.done():
                    answer.set_result(outcome)

    async def _reload(self) -> Outcome:
        self._notifier.reloading()
        try:
            new = await asyncio.to_thread(self._load)
        except ConfigError as error:
            outcome = Outcome(faults=str(error))
            _log.error("reload: %s", outcome, extra={"event": "reload_refused"})
        else:
            planned = plan(self.config, new)
            self._apply(planned.config)
            self.config = planned.config
            outcome = Outcome("", planned.applied, planned.needs_restart)
            level = logging.WARNING if planned.needs_restart else logging.INFO
            _log.log(level, "reload: %s", outcome, extra={"event": "reloaded"})
        finally:
            self._notifier.ready(self._health.status_line())
        return outcome
