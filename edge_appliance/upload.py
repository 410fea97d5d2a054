"""The uploader: brings parts from the spool to the store, oldest first, and has them marked.

Put, mark in the catalog, show in the view, and only then let the spool's copy go: unlinked when it is the same file
as the store's, else kept in the cache within its budget. A crash between two of these leads to the same put again,
which is harmless. A store that refuses is tried again for ever with a growing pause: memory never waits for it, only
disk does. When the spool is full, either nothing is acknowledged any more, or the oldest parts are given up.

One thread decides; a few others each wait for one put.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from edge_appliance.catalog import Catalog
from edge_appliance.config_values import size_text
from edge_appliance.core.catalog_state import part_identity
from edge_appliance.core.pace import Pace
from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.core.upload_queue import UploadQueue, UploadSettings
from edge_appliance.errors import EdgeError, StoreError
from edge_appliance.health import Health, duration_text
from edge_appliance.metrics import Metrics
from edge_appliance.part_cache import PartCache
from edge_appliance.spool import count_parts, has_size
from edge_appliance.store_port import Store
from edge_appliance.store_probe import Prober

_log = logging.getLogger(__name__)

MARKS_AT_ONCE: Final = 64
"""Parts marked by one transaction of the catalog, which is one sync."""
MARK_DELAY_S: Final = 1.0
"""How long a part that the store has may wait for others before it is marked; a kill in between sends it again."""
LOG_PERIOD_S: Final = 60.0
"""An outage is one line a minute at most."""
BACK_SHARE: Final = 0.95
"""Share of spool.max_bytes below which a full spool takes parts again."""


class PartOwner(Protocol):
    """Who shows parts to queries: the buffer."""

    def replace_part(self, old: Part, new: Part) -> None:
        """Show `new` where `old` was."""

    def drop_parts(self, parts: Sequence[Part]) -> None:
        """Show `parts` no more."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    part: Part
    is_stored: bool
    """False without an error: it can never be, which was said."""
    error: EdgeError | None = None


class Uploader:
    """Empties the spool into the store."""

    def __init__(
        self,
        store: Store,
        spool_dir: Path,
        cache: PartCache,
        catalog: Catalog,
        buffer: PartOwner,
        health: Health,
        metrics: Metrics,
        settings: UploadSettings,
        node: str,
        before_mark: Callable[[Sequence[Part]], None] = lambda parts: None,
    ) -> None:
        self._before_mark = before_mark
        self._store = store
        self._prober = Prober(store, node, health)
        self._spool_dir = spool_dir
        self._cache = cache
        self._catalog = catalog
        self._buffer = buffer
        self._health = health
        self._metrics = metrics
        self._settings = settings
        self._pace = Pace(settings.max_bandwidth_bytes)
        self._changed = threading.Condition()
        self._queue = UploadQueue(settings.first_pause_s)
        self._known: frozenset[object] = frozenset()
        """Parts of an earlier run, which may have sent them."""
        self._in_flight: set[object] = set()
        self._outcomes: list[_Outcome] = []
        self._unmarked: list[Part] = []
        self._unmarked_since_s = 0.0
        self._spool_bytes = 0
        self._was_full = False
        self._logged_s: float | None = None
        self._is_stopped = False
        self._senders = ThreadPoolExecutor(settings.uploads, "upload-put")
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)

    def start(self) -> None:
        """Queue what the store does not have yet, and begin."""
        waiting = [part for part in self._catalog.state.parts if not part.is_stored]
        self._known = frozenset(map(part_identity, waiting))
        self.submit(waiting)
        self._thread.start()

    def submit(self, parts: Iterable[Part]) -> None:
        """Queue committed parts."""
        with self._changed:
            self._queue.add(part for part in parts if part_identity(part) not in self._in_flight)
            self._changed.notify_all()
        self._count()

    def withdraw(self, parts: Sequence[Part]) -> list[Part] | None:
        """Take `parts` off the queue, all or none: None when one of them is not in it, such as when it is on its way.

        Returns those that the store may have all the same, because they were tried before.
        """
        with self._changed:
            if not all(part in self._queue for part in parts):
                return None
            tried = [part for part in parts if self._queue.was_tried(part) or part_identity(part) in self._known]
            for part in parts:
                self._queue.remove(part)
            self._changed.notify_all()
        return tried

    @property
    def is_store_away(self) -> bool:
        """Whether the store does not take parts right now."""
        with self._changed:
            return self._queue.failing_since_s is not None

    def lack(self) -> str:
        """Why nothing may be acknowledged, in words; empty while the spool has room."""
        if self._settings.policy == "drop-oldest":
            return ""
        limit_bytes = self._settings.spool_max_bytes
        self._was_full = self._spool_bytes >= (limit_bytes * BACK_SHARE if self._was_full else limit_bytes)
        if not self._was_full:
            return ""
        waiting, limit = size_text(self._spool_bytes), size_text(limit_bytes)
        return f"the spool is full ({waiting} wait for the store, spool.max_bytes is {limit})"

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until the store has everything that was queued; False when it takes longer."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._queue or self._in_flight or self._outcomes or self._unmarked), timeout_s
            )

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop and close the store, which ends what is on its way; it is sent again after the next start."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._store.close()
        self._senders.shutdown(wait=True, cancel_futures=True)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    # The thread that decides

    def _run(self) -> None:
        self._tidy_spool()
        while self._wait():
            try:
                self._take_outcomes()
                self._mark_if_due()
                self._drop_beyond_limit()
                self._start_uploads()
            except EdgeError as error:
                self._complain(str(error))
                self._pause()
            except Exception:  # top of a thread: the parts stay in the spool and are tried again
                _log.exception("upload")
                self._pause()

    def _tidy_spool(self) -> None:
        """Unlink copies whose mark was durable when their unlink was not."""
        try:
            spooled = {path.name for path in self._spool_dir.iterdir()}
            for part in self._catalog.state.parts:
                if part.is_stored and part_name(part) in spooled:
                    self._let_go(part)
        except OSError as error:
            _log.warning("the spool is not tidied before the next start: %s", error)

    def _wait(self) -> bool:
        """Wait until there is something to do; False when stopped."""
        with self._changed:
            while not self._is_stopped and not self._outcomes:
                wait_s = self._idle_s(time.monotonic())
                if wait_s == 0:
                    break
                self._changed.wait(wait_s)
            return not self._is_stopped

    def _idle_s(self, now_s: float) -> float | None:
        """Seconds until something is due that nobody will wake us for."""
        waits = []
        if self._unmarked:
            waits.append(max(0.0, self._unmarked_since_s + MARK_DELAY_S - now_s) if self._in_flight else 0.0)
        queued_s = self._queue.wait_s(now_s)
        if queued_s is not None and len(self._in_flight) < self._settings.uploads:
            waits.append(max(queued_s, self._pace.wait_s(now_s)))
        if self._spool_bytes > self._settings.spool_max_bytes and self._is_dropping and self._droppable():
            waits.append(0.0)
        return min(waits, default=None)

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped, self._settings.first_pause_s)

    def _start_uploads(self) -> None:
        while True:
            with self._changed:
                now_s = time.monotonic()
                if len(self._in_flight) >= self._settings.uploads or self._pace.wait_s(now_s) or self._is_stopped:
                    return
                part = self._queue.take(now_s)
                if part is None:
                    return
                is_repeat = self._queue.was_tried(part) or part_identity(part) in self._known
                self._in_flight.add(part_identity(part))
                self._pace.start(part.size_bytes, now_s)
            self._senders.submit(self._send, part, is_repeat)

    def _take_outcomes(self) -> None:
        with self._changed:
            outcomes, self._outcomes = self._outcomes, []
            now_s = time.monotonic()
            for outcome in outcomes:
                self._in_flight.discard(part_identity(outcome.part))
                if outcome.error is not None:
                    self._queue.failed(outcome.part, now_s)
                    continue
                self._queue.succeeded(outcome.part)
                if outcome.is_stored:
                    self._unmarked_since_s = self._unmarked_since_s if self._unmarked else now_s
                    self._unmarked.append(outcome.part)
            self._changed.notify_all()
        self._tell(next((outcome.error for outcome in reversed(outcomes) if outcome.error is not None), None))

    def _mark_if_due(self) -> None:
        with self._changed:
            waited_s = time.monotonic() - self._unmarked_since_s
            is_due = (
                len(self._unmarked) >= MARKS_AT_ONCE or waited_s >= MARK_DELAY_S or not (self._in_flight or self._queue)
            )
            parts = list(self._unmarked) if is_due else []
        if not parts:
            return
        self._before_mark(parts)
        self._catalog.mark_stored(parts).result()
        for part in parts:
            self._buffer.replace_part(part, replace(part, is_stored=True))
            self._let_go(part)
        self._count()
        with self._changed:
            self._unmarked.clear()
            self._changed.notify_all()

    def _let_go(self, part: Part) -> None:
        """Let the spool's copy go. Not synced: one that a power cut brings back goes at the next start."""
        spooled = self._spool_dir / part_name(part)
        try:
            if self._store.directory is not None:
                stored = self._store.directory / part_key(part)
                if not has_size(stored, part.size_bytes):
                    return
                if stored.samefile(spooled):
                    spooled.unlink()
                    return
            self._cache.take(spooled, part)
        except FileNotFoundError:
            return
        except OSError as error:
            _log.warning("%s stays in the spool until the next start: %s", spooled.name, error)

    # The threads that send

    def _send(self, part: Part, is_repeat: bool) -> None:
        started_s = time.monotonic()
        try:
            outcome = _Outcome(part, self._put(part, is_repeat))
        except EdgeError as error:
            outcome = _Outcome(part, is_stored=False, error=error)
        except Exception as error:  # top of a thread: the part is tried again
            _log.exception("upload of %s", part_key(part))
            outcome = _Outcome(part, is_stored=False, error=StoreError("put", part_key(part), type(error).__name__))
        if outcome.is_stored:
            self._metrics.uploaded_parts.add()
            self._metrics.uploaded_bytes.add(part.size_bytes)
            self._metrics.upload_seconds.observe(time.monotonic() - started_s)
        elif outcome.error is not None:
            self._metrics.upload_failures.add()
        with self._changed:
            self._outcomes.append(outcome)
            self._changed.notify_all()

    def _put(self, part: Part, is_repeat: bool) -> bool:
        """Bring one part to the store; False when that can never succeed, which is said and not tried again."""
        key, spooled = part_key(part), self._spool_dir / part_name(part)
        if not has_size(spooled, part.size_bytes):
            stored = self._store.stat(key)
            if stored is not None and stored.size_bytes == part.size_bytes:
                return True
            return self._refuse(f"part {key} is listed but missing or damaged in the spool")
        self._prober.probe_if_due()
        if self._store.put(spooled, key, is_repeat=is_repeat):
            return True
        return self._refuse(f"the store holds another file of the name {key}; ours stays in the spool")

    def _refuse(self, reason: str) -> bool:
        self._health.degrade("parts", reason)
        _log.error("%s", reason)
        return False

    # A full spool

    @property
    def _is_dropping(self) -> bool:
        return self._settings.policy == "drop-oldest"

    def _droppable(self) -> list[Part]:
        """The oldest waiting parts, whole part sets, that must go for the spool to fit; none is on its way."""
        excess_bytes = self._spool_bytes - self._settings.spool_max_bytes
        return self._queue.oldest(excess_bytes, self._catalog.state.gone)

    def _drop_beyond_limit(self) -> None:
        """Give up the oldest parts: out of the catalog first, so that no query misses a file."""
        if not self._is_dropping or self._spool_bytes <= self._settings.spool_max_bytes:
            return
        with self._changed:
            going = self._droppable()
            for part in going:
                self._queue.remove(part)
        if not going:
            return
        try:
            self._catalog.drop_parts(going).result()
        except EdgeError:
            self.submit(going)
            raise
        self._buffer.drop_parts(going)
        for part in going:
            with suppress(OSError):
                (self._spool_dir / part_name(part)).unlink(missing_ok=True)
        rows = sum(part.rows for part in going)
        self._metrics.dropped_parts.add(len(going))
        self._metrics.dropped_rows.add(rows)
        reason = f"the spool was full: {rows:,} rows in {len(going)} parts are lost, the oldest of {part_key(going[0])}"
        _log.error("%s", reason)
        self._health.degrade("dropped", reason)
        self._count()

    # Telling

    def _count(self) -> None:
        self._spool_bytes = count_parts(self._metrics, self._catalog.state.parts)

    def _tell(self, error: EdgeError | None) -> None:
        """Say that the store does not take parts, and for how long; or that it does again."""
        now_s = time.monotonic()
        with self._changed:
            since_s = self._queue.failing_since_s
        if since_s is None:
            if self._logged_s is not None:
                _log.info("the store takes parts again")
            self._logged_s = None
            self._health.restore("store")
            self._metrics.store_away.set(0)
            return
        self._metrics.store_away.set(now_s - since_s)
        if error is None:
            return
        reason = error.reason if isinstance(error, StoreError) else str(error)
        waiting = f"{size_text(self._spool_bytes)} wait for the store: {reason}"
        self._health.degrade("store", waiting, since_s)
        self._complain(f"{waiting} (for {duration_text(now_s - since_s)})")

    def _complain(self, text: str) -> None:
        now_s = time.monotonic()
        if self._logged_s is None or now_s - self._logged_s >= LOG_PERIOD_S:
            self._logged_s = now_s
            _log.warning("%s", text)
