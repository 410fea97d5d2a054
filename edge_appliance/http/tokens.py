"""Who may come in: one token, shown as `Token`, `Bearer` or `Basic`, or by v1 writers in the query string."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Final

from aiohttp import web

OPEN_PATHS: Final = frozenset({"/ping", "/health"})
"""Probes that need no token."""
_V1_PATHS: Final = frozenset({"/write", "/query"})


def is_allowed(request: web.Request, token: str | None) -> bool:
    """Whether the request shows the token, or needs none."""
    if token is None or request.path in OPEN_PATHS:
        return True
    shown = _shown_token(request)
    # Bytes: compare_digest refuses text beyond ASCII, and headers may hold any.
    return shown is not None and hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), token.encode())


def _shown_token(request: web.Request) -> str | None:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    scheme, credentials = scheme.lower(), credentials.strip()
    if scheme in ("token", "bearer"):
        return credentials
    if scheme == "basic":
        return _password(credentials)
    if not scheme and request.path in _V1_PATHS:
        return request.query.get("p")
    return None


def _password(credentials: str) -> str | None:
    try:
        pair = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    _user, colon, password = pair.partition(":")
    return password if colon else None
