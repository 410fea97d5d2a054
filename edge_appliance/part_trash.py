"""Files of parts that the catalog let go: deleted once nobody reads them, and once the store can spare them.

What is due in the store is listed in the catalog, so a restart goes on with it; unlisted files in the spool are
garbage to the next start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from edge_appliance.catalog import Catalog
from edge_appliance.core.catalog_state import PartKey, part_identity
from edge_appliance.core.maintenance import deletable
from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.errors import StoreError
from edge_appliance.metrics import Metrics
from edge_appliance.part_cache import PartCache
from edge_appliance.read_gate import ReadGate
from edge_appliance.store_port import Store

_log = logging.getLogger(__name__)

LATE_PUT_S: Final = 3_600.0
"""A put whose answer was lost may still arrive: after this long the object is deleted once more."""
_AT_ONCE: Final = 256


class PartTrash:
    """What is to be deleted. Used by one thread."""

    def __init__(
        self, store: Store, spool_dir: Path, cache: PartCache, catalog: Catalog, gate: ReadGate, metrics: Metrics
    ) -> None:
        self._store = store
        self._spool_dir = spool_dir
        self._cache = cache
        self._catalog = catalog
        self._gate = gate
        self._metrics = metrics
        self._pinned: list[tuple[int, Sequence[Part]]] = []
        """With the epoch whose readers may still use them."""
        self._deleted_s: dict[PartKey, float] = {}
        """When the object of a part was deleted for the first time."""

    def throw(self, parts: Sequence[Part]) -> None:
        """Neither the catalog nor the buffer names `parts` any more."""
        self._pinned.append((self._gate.next_epoch(), parts))

    @property
    def has_work(self) -> bool:
        """Whether something could become due before anything else happens."""
        return bool(self._pinned)

    def sweep(self, check: Callable[[], None] = lambda: None) -> None:
        """Delete whatever may go now. An error of the store leaves the rest for the next time."""
        self._cache.trim()
        while self._pinned and self._gate.is_over(self._pinned[0][0]):
            _, parts = self._pinned.pop(0)
            for part in parts:
                with suppress(OSError):
                    (self._spool_dir / part_name(part)).unlink(missing_ok=True)
                self._cache.drop(part)
        pinned = {part_identity(part) for _, parts in self._pinned for part in parts}
        state = self._catalog.state
        due = [part for part in deletable(state.gone, state.parts) if part_identity(part) not in pinned]
        try:
            self._delete(due, check)
        except StoreError as error:
            _log.debug("deleted later: %s", error)
        self._metrics.gone_parts.set(len(self._catalog.state.gone_by_key) - len(self._deleted_s))

    def _delete(self, due: Sequence[Part], check: Callable[[], None]) -> None:
        done: list[Part] = []
        try:
            for part in due:
                check()
                if self._is_due(part):
                    self._store.delete(part_key(part))
                    if self._is_final(part):
                        done.append(part)
                if len(done) >= _AT_ONCE:
                    self._forget(done)
                    done = []
        finally:
            self._forget(done)

    def _is_due(self, part: Part) -> bool:
        first_s = self._deleted_s.get(part_identity(part))
        return first_s is None or time.monotonic() - first_s >= LATE_PUT_S

    def _is_final(self, part: Part) -> bool:
        """Whether nothing can bring the object back: a directory has no puts on their way."""
        if self._store.directory is not None or part_identity(part) in self._deleted_s:
            return True
        self._deleted_s[part_identity(part)] = time.monotonic()
        return False

    def _forget(self, parts: Sequence[Part]) -> None:
        if parts:
            self._catalog.forget_gone(parts).result()
            for part in parts:
                self._deleted_s.pop(part_identity(part), None)
