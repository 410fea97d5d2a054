"""Small answers about the appliance itself: alive, healthy, ready, its numbers and its state.

They answer in every phase, from memory, on the event loop.
"""

from __future__ import annotations

import datetime as dt
import time

from aiohttp import web

from edge_appliance.health import Phase
from edge_appliance.http.answers import json_answer, replay_left_s, unavailable_phase
from edge_appliance.http.dependencies import HttpDependencies

BUILD = "edge-appliance"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Probes:
    """The handlers of the probes."""

    def __init__(self, dependencies: HttpDependencies) -> None:
        self._needs = dependencies
        self._health = dependencies.health
        # Monotonic: the host clock of a gateway may be set long after the start.
        self._started_s = time.monotonic()

    async def ping(self, _: web.Request) -> web.Response:
        """204 with the version, which clients read from the headers."""
        return web.Response(status=204, headers={"X-Influxdb-Version": self._needs.version, "X-Influxdb-Build": BUILD})

    async def health(self, _: web.Request) -> web.Response:
        """Whether writes are acknowledged and queries answered: 503 when not, with the reasons.

        Degraded but serving is a pass that names its reasons: a probe that restarts us would not help.
        """
        why = unavailable_phase(self._health)
        held = self._health.held
        is_passing = why is None and not held
        degraded = self._health.degraded
        body = {
            "name": BUILD,
            "message": why[0] if why else self._message(degraded),
            "status": "pass" if is_passing else "fail",
            "version": self._needs.version,
            "checks": [{"name": key, "message": reason, "status": "fail"} for key, reason in degraded.items()],
        }
        return json_answer(body, 200 if is_passing else 503)

    async def ready(self, _: web.Request) -> web.Response:
        """200 once queries see every acknowledged row; before that 503 with the progress of the replay."""
        if self._health.is_ready:
            return json_answer({"status": "ready", "started": self._started(), "up": self._up()})
        replay = self._replay()
        body = {
            "status": self._health.phase.value,
            "percent": replay["percent"],
            "message": (unavailable_phase(self._health) or ("", 0))[0],
            "replay": replay,
            "started": self._started(),
            "up": self._up(),
        }
        answer = json_answer(body, 503)
        answer.headers["Retry-After"] = str(replay_left_s(self._health))
        return answer

    async def metrics(self, _: web.Request) -> web.Response:
        """Every number, as Prometheus text."""
        body = self._needs.metrics.render().encode()
        return web.Response(body=body, headers={"Content-Type": _METRICS_TYPE})

    async def status(self, _: web.Request) -> web.Response:
        """State, numbers and configuration for the `status` command."""
        body = {
            "node": self._needs.node,
            "version": self._needs.version,
            "started": self._started(),
            "up": self._up(),
            "phase": self._health.phase.value,
            "status": self._health.status_line(),
            "ready": self._health.is_ready,
            "degraded": self._health.degraded,
            "held": self._health.held,
            "replay": self._replay(),
            "metrics": self._needs.metrics.snapshot(),
            "config": dict(self._needs.status_details()),
        }
        return json_answer(body)

    def _message(self, degraded: dict[str, str]) -> str:
        return self._health.status_line() if degraded else "ready for queries and writes"

    def _replay(self) -> dict[str, object]:
        progress = self._health.progress
        is_known = progress.total_bytes or self._health.phase in (Phase.RUNNING, Phase.STOPPING)
        return {
            "percent": progress.percent if is_known else 0,
            "done_bytes": progress.done_bytes,
            "total_bytes": progress.total_bytes,
            "lines": progress.lines,
            "seconds": round(progress.seconds, 3),
        }

    def _started(self) -> str:
        # Whole seconds: clients parse this with anything from strptime up.
        started = dt.datetime.fromtimestamp(self._needs.started_ns // 10**9, dt.UTC)
        return started.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _up(self) -> str:
        up_s = int(time.monotonic() - self._started_s)
        hours, minutes, seconds = up_s // 3600, up_s // 60 % 60, up_s % 60
        return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
