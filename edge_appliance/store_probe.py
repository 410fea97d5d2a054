"""What a store can really do: found out by doing it, since some servers ignore a condition without a word."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edge_appliance.errors import StoreError
from edge_appliance.health import Health
from edge_appliance.store_port import Store

_log = logging.getLogger(__name__)

PROBE_PREFIX: Final = "_edge/probe"
MAX_CLOCK_SKEW_S: Final = 60.0
"""Beyond that, signatures begin to be refused soon."""
PROBE_PERIOD_S: Final = 6 * 3_600.0
RETRY_S: Final = 60.0
_DATA: Final = b"edge-appliance probe"


@dataclass(frozen=True, slots=True)
class Probe:
    """What was tried; `reason` says why not, empty where it works."""

    steps: tuple[tuple[str, str], ...]
    """(what, reason), in order."""
    is_conditional: bool
    clock_skew_s: float | None
    """The store's clock minus ours."""

    @property
    def faults(self) -> list[str]:
        """Sentences about what does not work."""
        return [f"{what}: {reason}" for what, reason in self.steps if reason]


def probe_store(store: Store, node: str, clock_s: Callable[[], float]) -> Probe:
    """Create, create again, read a range, list, look and delete one small object.

    Raises StoreError when not even the first create works: then nothing can be said about the rest.
    """
    key = f"{PROBE_PREFIX}/{node}-{secrets.token_hex(8)}"
    before_s = clock_s()
    if not store.create(key, _DATA):
        raise StoreError("probe", key, "a name that was never used is said to be taken")
    after_s = clock_s()
    steps = [("create", "")]
    is_conditional = _does(steps, "create again", lambda: _second_create(store, key))
    _does(steps, "read a range", lambda: _range(store, key))
    _does(steps, "list", lambda: _listing(store, key))
    skews: list[float] = []
    _does(steps, "look", lambda: _look(store, key, before_s, after_s, skews))
    _does(steps, "delete", lambda: _deletion(store, key))
    return Probe(tuple(steps), is_conditional, skews[0] if skews else None)


def _does(steps: list[tuple[str, str]], what: str, step: Callable[[], str]) -> bool:
    try:
        reason = step()
    except StoreError as error:
        reason = error.reason
    steps.append((what, reason))
    return not reason


def _second_create(store: Store, key: str) -> str:
    is_overwritten = store.create(key, _DATA)
    return "an existing object was overwritten: this store ignores conditions" if is_overwritten else ""


def _range(store: Store, key: str) -> str:
    return "" if store.read(key, 5, 9) == _DATA[5:14] else "other bytes came than were asked for"


def _listing(store: Store, key: str) -> str:
    return "" if any(found.key == key for found in store.objects(PROBE_PREFIX)) else "the object is not in the listing"


def _look(store: Store, key: str, before_s: float, after_s: float, skews: list[float]) -> str:
    found = store.stat(key)
    if found is None or found.size_bytes != len(_DATA):
        return "the object is not there, or has another size"
    # The store notes whole seconds.
    skew_s = found.modified_s - after_s if found.modified_s > after_s else min(0.0, found.modified_s + 1 - before_s)
    skews.append(skew_s)
    if abs(skew_s) <= MAX_CLOCK_SKEW_S:
        return ""
    return f"this host's clock is {abs(skew_s):.0f} s {'behind' if skew_s > 0 else 'ahead of'} the store's"


def _deletion(store: Store, key: str) -> str:
    store.delete(key)
    return "the object is still there" if store.stat(key) is not None else ""


class Prober:
    """Probes the store when that is due, and tells it and health what came out. Thread-safe."""

    def __init__(self, store: Store, node: str, health: Health, clock_s: Callable[[], float] = time.time) -> None:
        self._store = store
        self._node = node
        self._health = health
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._due_s = 0.0

    def probe_if_due(self) -> None:
        """Probe now, or do nothing; a directory needs none. A store that is away is somebody else's to report."""
        if self._store.directory is not None or time.monotonic() < self._due_s:
            return
        with self._lock:
            if time.monotonic() < self._due_s:
                return
            try:
                probe = probe_store(self._store, self._node, self._clock_s)
            except StoreError:
                self._due_s = time.monotonic() + RETRY_S
                return
            self._due_s = time.monotonic() + PROBE_PERIOD_S
            self._store.is_conditional = probe.is_conditional
        if probe.faults:
            text = f"{self._store.name} cannot do everything: {'; '.join(probe.faults)}"
            _log.warning("%s", text)
            self._health.degrade("store_probe", text)
        else:
            self._health.restore("store_probe")
