"""Stand-ins for what a test of the HTTP side does not use, and what came back from a request."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from edge_appliance.core.delivery import Delivery


class NoInbox:
    """No write is sent here."""

    is_full = False

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Refuse."""
        raise AssertionError

    def withdraw(self, delivery: Delivery) -> bool:
        """Refuse."""
        raise AssertionError


class NoEngine:
    """No query is asked here."""

    def run(self, database: str, sql: str, params: Mapping[str, Any] | None = None, *, cancel: threading.Event) -> Any:
        """Refuse."""
        raise AssertionError


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)
