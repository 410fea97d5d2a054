"""Copies of parts that the store has, within a budget: uploaded ones that were kept, and those that a query fetched.

Whatever was used longest ago goes first, and nothing that a running query holds. A copy is only a copy: it may go at
any time, and one of the wrong size is not used.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from edge_appliance import durable
from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.errors import DiskError, StoreError
from edge_appliance.metrics import Metrics
from edge_appliance.spool import has_size
from edge_appliance.store_port import Store

_log = logging.getLogger(__name__)

_SUFFIX: Final = ".parquet"


class PartCache:
    """The cache directory. Thread-safe."""

    def __init__(self, directory: Path, limit_bytes: int, metrics: Metrics, reserve_bytes: int = 0) -> None:
        """With less than `reserve_bytes` free on the disk, copies go although their budget is not used up."""
        self._directory = directory
        self._metrics = metrics
        self.limit_bytes = limit_bytes
        self._reserve_bytes = reserve_bytes
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        """Sizes by name, the least recently used first."""
        self._held = Counter[str]()
        self._fetching: dict[str, threading.Lock] = {}
        self._find_files()
        self.trim()

    def _find_files(self) -> None:
        found = []
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in self._directory.iterdir():
                if path.name.endswith(durable.TEMPORARY_SUFFIX):
                    path.unlink()
                elif path.name.endswith(_SUFFIX):
                    stat = path.stat()
                    found.append((stat.st_mtime_ns, path.name, stat.st_size))
        except OSError as error:
            _log.warning("the cache cannot be read: %s", error)
        self._sizes = {name: size_bytes for _, name, size_bytes in sorted(found)}

    @property
    def size_bytes(self) -> int:
        """Bytes of all copies."""
        with self._lock:
            return sum(self._sizes.values())

    def path(self, part: Part) -> Path:
        """Where a copy of `part` is, or would be."""
        return self._directory / part_name(part)

    def has(self, part: Part) -> bool:
        """Whether there is a whole copy; one that is there counts as used now."""
        if not has_size(self.path(part), part.size_bytes):
            return False
        self._enter(part_name(part), part.size_bytes)
        with suppress(OSError):
            os.utime(self.path(part))
        return True

    @contextmanager
    def held(self, parts: Collection[Part]) -> Iterator[None]:
        """Keep copies of `parts` until the block ends, once they are there."""
        names = [part_name(part) for part in parts]
        with self._lock:
            self._held.update(names)
        try:
            yield
        finally:
            with self._lock:
                self._held.subtract(names)
                self._held = +self._held
            self.trim()

    def take(self, spooled: Path, part: Part) -> None:
        """Move the spool's copy here; it goes at once when there is no room."""
        spooled.replace(self.path(part))
        self._enter(part_name(part), part.size_bytes)
        self.trim()

    def drop(self, part: Part) -> None:
        """The part is gone for good."""
        self._remove(part_name(part))

    def fetch(self, part: Part, store: Store, timeout_s: float) -> None:
        """Bring a part from the store; one that somebody else is fetching is waited for."""
        name = part_name(part)
        with self._lock:
            turn = self._fetching.setdefault(name, threading.Lock())
        if not turn.acquire(timeout=timeout_s):
            raise StoreError("fetch", part_key(part), f"another query has been fetching it for {timeout_s:.0f} s")
        try:
            if not self.has(part):
                self._fetch(part, store, timeout_s)
        finally:
            turn.release()
            with self._lock:
                self._fetching.pop(name, None)

    def _fetch(self, part: Part, store: Store, timeout_s: float) -> None:
        final, key = self.path(part), part_key(part)
        temporary = final.with_name(final.name + durable.TEMPORARY_SUFFIX)
        try:
            store.fetch(key, temporary, part.size_bytes, timeout_s)
            size_bytes = temporary.stat().st_size
            if size_bytes != part.size_bytes:
                raise StoreError("fetch", key, f"the store's object has {size_bytes:,} bytes, not {part.size_bytes:,}")
            durable.publish(temporary, final)
        except OSError as error:
            raise StoreError("fetch", key, error.strerror or str(error)) from error
        except DiskError as error:
            raise StoreError("fetch", key, str(error)) from error
        finally:
            with suppress(OSError):
                temporary.unlink()
        self._enter(final.name, part.size_bytes)
        self._metrics.fetched_parts.add()
        self._metrics.fetched_bytes.add(part.size_bytes)
        self.trim()

    def _enter(self, name: str, size_bytes: int) -> None:
        with self._lock:
            self._sizes.pop(name, None)
            self._sizes[name] = size_bytes

    def trim(self) -> None:
        """Delete copies beyond the budget, or that the disk has no room for, except held ones."""
        lacking_bytes = 0
        with suppress(DiskError):
            lacking_bytes = self._reserve_bytes - durable.free_bytes(self._directory)
        with self._lock:
            excess_bytes = max(sum(self._sizes.values()) - self.limit_bytes, lacking_bytes)
            going = []
            for name, size_bytes in self._sizes.items():
                if excess_bytes <= 0:
                    break
                if name not in self._held:
                    going.append(name)
                    excess_bytes -= size_bytes
        for name in going:
            self._remove(name)
        self._metrics.cache_bytes.set(self.size_bytes)

    def _remove(self, name: str) -> None:
        with self._lock:
            self._sizes.pop(name, None)
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s stays in the cache: %s", name, error)
