"""Answers that do not depend on the route: JSON bodies and refusals, in the shape each API family reads.

Status codes decide what a client keeps: 4xx makes it drop the batch, 503 with Retry-After makes it wait. So a 4xx
is only for what can never succeed, and every temporary refusal is a 503.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiohttp import web

from edge_appliance.health import Health, Phase

REFUSAL: Final = web.ResponseKey("refusal", str)
"""Set on the answer to a rejected request: the one reason that the journal names."""

_encoder: Final = msgspec.json.Encoder(enc_hook=str)

_CODES: Final = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "not found",
    413: "request too large",
    415: "invalid",
    500: "internal error",
    501: "not implemented",
    503: "unavailable",
    504: "unavailable",
}
_STOP_RETRY_S: Final = 10
_RETRY_S_MAX: Final = 60


def json_answer(body: Any, status: int = 200) -> web.Response:
    """Compact JSON. Values that JSON lacks are sent as their text."""
    return web.Response(body=_encoder.encode(body), status=status, content_type="application/json")


def refuse(request: web.Request, status: int, message: str, *, retry_after_s: int = 0, line: int = 0) -> web.Response:
    """A rejected request, in the shape of its API family; `message` is one sentence for people."""
    body: dict[str, Any]
    if request.path.startswith("/api/v3/"):
        body = {"error": message}
    else:
        body = {"code": _CODES.get(status, "invalid"), "message": message}
        if line:
            body["line"] = line
    return refuse_with(body, status, message, retry_after_s=retry_after_s)


def refuse_with(body: Any, status: int, reason: str, *, retry_after_s: int = 0) -> web.Response:
    """A rejected request with a body of its own; `reason` is for the journal."""
    answer = json_answer(body, status)
    answer[REFUSAL] = reason
    if retry_after_s:
        answer.headers["Retry-After"] = str(retry_after_s)
    return answer


def unavailable_phase(health: Health) -> tuple[str, int] | None:
    """Why nothing is served yet or any more, and in how many seconds to try again; None while it is."""
    phase = health.phase
    if phase is Phase.RUNNING:
        return None
    if phase is Phase.STOPPING:
        return "stopping", _STOP_RETRY_S
    if phase is Phase.STARTING:
        return "starting", 1
    return str(health.progress), replay_left_s(health)


def replay_left_s(health: Health) -> int:
    """Whole seconds until the replay should be over, between 1 and a minute."""
    progress = health.progress
    if not progress.done_bytes:
        return 1
    left_s = progress.seconds * (progress.total_bytes - progress.done_bytes) / progress.done_bytes
    return max(1, min(_RETRY_S_MAX, round(left_s)))


def refuse_unless_running(request: web.Request, health: Health) -> web.Response | None:
    """503 while nothing is served; None when the request can go on."""
    why = unavailable_phase(health)
    return None if why is None else refuse(request, 503, why[0], retry_after_s=why[1])


def one_line(text: str, limit: int = 300) -> str:
    """`text` as it may stand in the journal: no control characters, bounded."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])
    return text[:limit]
