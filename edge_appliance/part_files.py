"""Finds a local file for a part: in the spool, the store's directory or the cache, fetched if there is none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from edge_appliance.config_values import size_text, time_text
from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.errors import QueryError, StoreError
from edge_appliance.part_cache import PartCache
from edge_appliance.read_gate import ReadGate
from edge_appliance.spool import has_size
from edge_appliance.store_port import Store

_LOOKS: Final = 2
"""A part moves from spool to store once in its life: who misses it on both sides looks again."""
FETCHES: Final = 4
"""Parts fetched at once, for all queries together."""
_TICK_S: Final = 0.1
_SHARE: Final = 0.8
"""Of the query's time that fetching may take: the rest is for saying what is missing."""
_LEAST_S: Final = 0.5


class PartFiles:
    """Local files of parts. Thread-safe."""

    def __init__(self, spool_dir: Path, store: Store, cache: PartCache, gate: ReadGate | None = None) -> None:
        self._spool_dir = spool_dir
        self._store = store
        self._cache = cache
        self._gate = gate or ReadGate()
        self._fetchers: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def open_path(self, part: Part) -> Path:
        """Path of a whole local copy; raises StoreError when there is none.

        A copy of another size than the catalog says is damaged and passed over. The path may be gone a moment later,
        when the part moves; ask again then.
        """
        candidates = [self._spool_dir / part_name(part)]
        if self._store.directory is not None:
            candidates.insert(0 if part.is_stored else 1, self._store.directory / part_key(part))
        for _ in range(_LOOKS):
            for path in candidates:
                if has_size(path, part.size_bytes):
                    return path
            if self._cache.has(part):
                return self._cache.path(part)
        raise StoreError("open", part_key(part), "no whole local copy")

    def reading(self) -> AbstractContextManager[None]:
        """Whatever a view taken inside the block names is not deleted before its end."""
        return self._gate.reading()

    @contextmanager
    def held(self, parts: Collection[Part], until_s: float, check: Callable[[], None]) -> Iterator[None]:
        """Local copies of `parts` until the block ends, fetched where there is none.

        `check` is asked now and then, and raises when the query is over; so is `until_s`, by the monotonic clock.
        Raises QueryError, which names the time range that is missing, when the store does not give what is needed.
        """
        with self._cache.held(parts):
            missing = [part for part in parts if not self._is_local(part)]
            if missing:
                self._fetch_all(missing, until_s, check)
            yield

    def is_only_local(self, part: Part) -> bool:
        """Whether a copy that is not on this host cannot be fetched either."""
        return self._store.directory is not None or not part.is_stored

    def close(self) -> None:
        """Start no fetch any more; those in work end with the store."""
        with self._lock:
            if self._fetchers is not None:
                self._fetchers.shutdown(wait=False, cancel_futures=True)

    def _is_local(self, part: Part) -> bool:
        try:
            self.open_path(part)
        except StoreError:
            return False
        return True

    def _fetch_all(self, missing: Sequence[Part], until_s: float, check: Callable[[], None]) -> None:
        if self._store.directory is not None:
            raise _unavailable(missing, "their files are gone, or damaged")
        wanted_bytes = sum(part.size_bytes for part in missing)
        if wanted_bytes > self._cache.limit_bytes:
            raise _unavailable(
                missing,
                f"they have {size_text(wanted_bytes)}, and store.keep_local is {size_text(self._cache.limit_bytes)}: "
                "ask for a shorter time, or raise it",
            )
        futures = {self._pool().submit(self._fetch, part, until_s): part for part in missing}
        try:
            self._await(futures, missing, check)
        finally:
            for future in futures:
                future.cancel()

    def _await(self, futures: dict[Future[None], Part], missing: Sequence[Part], check: Callable[[], None]) -> None:
        pending = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_TICK_S, return_when=FIRST_EXCEPTION)
            for future in done:
                error = future.exception()
                if isinstance(error, StoreError):
                    left = [part for part in missing if not self._is_local(part)]
                    raise _unavailable(left or missing, error.reason) from error
                if error is not None:
                    raise error
            if pending:
                check()

    def _fetch(self, part: Part, until_s: float) -> None:
        self._cache.fetch(part, self._store, max(_LEAST_S, _SHARE * (until_s - time.monotonic())))

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._fetchers is None:
                self._fetchers = ThreadPoolExecutor(FETCHES, "fetch")
            return self._fetchers


def _unavailable(parts: Sequence[Part], reason: str) -> QueryError:
    table = parts[0].table
    first = time_text(min(part.min_time_ns for part in parts))
    last = time_text(max(part.max_time_ns for part in parts))
    number = f"{len(parts)} parts" if len(parts) > 1 else "one part"
    return QueryError("unavailable", f"{table}: {number} from {first} to {last} cannot be read here: {reason}")
