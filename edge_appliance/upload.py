"""The uploader: brings parts from the spool to the store, oldest first, and has them marked.

Put, mark in the catalog, show in the view, and only then let the spool's copy go: unlinked when it is the same file
as the store's, else kept in the cache within its limit. A crash between two of these leads to the same put again,
which is harmless. A store that refuses is tried again for ever with a growing pause: memory
never waits for it, only disk does.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from edge_appliance.catalog import Catalog
from edge_appliance.core.catalog_state import PartKey, part_identity
from edge_appliance.core.parts import Part, age, part_key, part_name
from edge_appliance.errors import EdgeError, StoreError
from edge_appliance.health import Health
from edge_appliance.metrics import Metrics
from edge_appliance.store import DirectoryStore, count_parts, has_size

_log = logging.getLogger(__name__)

PARTS_AT_ONCE: Final = 64
"""Parts marked by one transaction of the catalog, which is one sync."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
CACHE_LIMIT_BYTES: Final = 256 * 2**20
"""Copies of parts whose store is on another file system; the oldest go first."""
FAILURES_MAX: Final = 3
"""Failed parts after which the store itself is taken to be the reason; one bad part does not stop the others."""


class PartOwner(Protocol):
    """Who shows parts to queries: the buffer."""

    def replace_part(self, old: Part, new: Part) -> None:
        """Show `new` where `old` was."""
        ...


class Uploader:
    """One thread that empties the spool into the store."""

    def __init__(
        self,
        store: DirectoryStore,
        spool_dir: Path,
        cache_dir: Path,
        catalog: Catalog,
        buffer: PartOwner,
        health: Health,
        metrics: Metrics,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        cache_limit_bytes: int = CACHE_LIMIT_BYTES,
    ) -> None:
        self._store = store
        self._spool_dir = spool_dir
        self._cache_dir = cache_dir
        self._catalog = catalog
        self._buffer = buffer
        self._health = health
        self._metrics = metrics
        self._first_pause_s = first_pause_s
        self._cache_limit_bytes = cache_limit_bytes
        self._changed = threading.Condition()
        self._queue: dict[PartKey, Part] = {}
        self._is_busy = False
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)

    def start(self) -> None:
        """Queue what the store does not have yet, and begin."""
        self.submit([part for part in self._catalog.state.parts if not part.is_stored])
        self._thread.start()

    def submit(self, parts: Iterable[Part]) -> None:
        """Queue committed parts."""
        with self._changed:
            for part in parts:
                self._queue[part_identity(part)] = part
            self._changed.notify_all()
        count_parts(self._metrics, self._catalog.state.parts)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until the store has everything that was queued; False when it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._is_busy, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop after the part in work; the rest is queued again at the next start."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        self._tidy_spool()
        pause_s = self._first_pause_s
        while parts := self._next_parts():
            try:
                left, reason = self._upload(parts)
            except EdgeError as error:
                left, reason = parts, str(error)
            except Exception as error:  # top of a thread: the parts stay in the spool and are tried again
                _log.exception("upload")
                left, reason = parts, f"{type(error).__name__}: {error}"
            self._settle(left, reason)
            if not reason:
                pause_s = self._first_pause_s
                continue
            _log.warning("%d parts stay in the spool, next try in %.0f s: %s", len(left), pause_s, reason)
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopped, pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _tidy_spool(self) -> None:
        """Unlink copies whose mark was durable when their unlink was not."""
        try:
            spooled = {path.name for path in self._spool_dir.iterdir()}
            for part in self._catalog.state.parts:
                if part.is_stored and part_name(part) in spooled:
                    self._let_go(part)
        except OSError as error:
            _log.warning("the spool is not tidied before the next start: %s", error)

    def _next_parts(self) -> list[Part]:
        """Wait for the oldest parts; empty when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_stopped)
            if self._is_stopped:
                return []
            self._is_busy = True
            oldest = heapq.nsmallest(PARTS_AT_ONCE, self._queue.values(), key=age)
            for part in oldest:
                del self._queue[part_identity(part)]
            return oldest

    def _settle(self, left: Sequence[Part], reason: str) -> None:
        if reason:
            self._health.degrade("store", f"parts wait for the store: {reason}")
        else:
            self._health.restore("store")
        with self._changed:
            self._is_busy = False
            for part in left:
                self._queue[part_identity(part)] = part
            self._changed.notify_all()

    def _upload(self, parts: Sequence[Part]) -> tuple[list[Part], str]:
        """Put and mark; returns the parts to try again and why."""
        stored: list[Part] = []
        left: list[Part] = []
        reason = ""
        for part in parts:
            if len(left) >= FAILURES_MAX or self._is_stopped:
                left.append(part)
                continue
            try:
                if self._put(part):
                    stored.append(part)
            except StoreError as error:
                left.append(part)
                reason = str(error)
        if stored:
            self._catalog.mark_stored(stored).result()
        for part in stored:
            self._buffer.replace_part(part, replace(part, is_stored=True))
            self._let_go(part)
        count_parts(self._metrics, self._catalog.state.parts)
        return left, reason

    def _put(self, part: Part) -> bool:
        """Bring one part to the store; False when that can never succeed, which is said and not tried again."""
        key, spooled = part_key(part), self._spool_dir / part_name(part)
        if not has_size(spooled, part.size_bytes):
            if self._store.size_bytes(key) == part.size_bytes:
                return True
            return self._refuse(f"part {key} is listed but missing or damaged in the spool")
        if self._store.put(spooled, key):
            return True
        return self._refuse(f"the store holds another file of the name {key}; ours stays in the spool")

    def _refuse(self, reason: str) -> bool:
        self._health.degrade("parts", reason)
        _log.error("%s", reason)
        return False

    def _let_go(self, part: Part) -> None:
        """Let the spool's copy go. Not synced: one that a power cut brings back goes at the next start."""
        spooled, stored = self._spool_dir / part_name(part), self._store.path(part_key(part))
        try:
            if not has_size(stored, part.size_bytes):
                return
            if stored.samefile(spooled):
                spooled.unlink()
            else:
                self._cache_dir.mkdir(parents=True, exist_ok=True)
                spooled.replace(self._cache_dir / spooled.name)
                self._trim_cache()
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("%s stays in the spool until the next start: %s", spooled.name, error)

    def _trim_cache(self) -> None:
        """Delete the oldest cached parts beyond the limit; their names begin with their ranks."""
        cached = sorted(self._cache_dir.glob("*.parquet"), reverse=True)
        used_bytes = 0
        for path in cached:
            used_bytes += path.stat().st_size
            if used_bytes > self._cache_limit_bytes:
                path.unlink()
