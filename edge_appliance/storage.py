"""What keeps parts, wired: store, cache, uploader and the way to a part's file. Started and closed as one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Final

from edge_appliance import durable, host
from edge_appliance.buffer import Buffer
from edge_appliance.catalog import Catalog
from edge_appliance.config import Config
from edge_appliance.config_store import StoreSection
from edge_appliance.core.maintenance import MergePolicy
from edge_appliance.core.parts import Part
from edge_appliance.core.upload_queue import UploadSettings
from edge_appliance.errors import PathError
from edge_appliance.health import Health
from edge_appliance.maintain import Maintainer
from edge_appliance.manifests import Manifests
from edge_appliance.merger import Merger
from edge_appliance.metrics import Metrics
from edge_appliance.part_cache import PartCache
from edge_appliance.part_files import PartFiles
from edge_appliance.part_trash import PartTrash
from edge_appliance.paths import Paths
from edge_appliance.read_gate import ReadGate
from edge_appliance.retire import Retirer, visible_from
from edge_appliance.store import open_store
from edge_appliance.store_port import Store
from edge_appliance.trusted_clock import TrustedClock
from edge_appliance.upload import Uploader

_log = logging.getLogger(__name__)

CACHE_RESERVE: Final = 2
"""Free disk at which copies of stored parts go, as a multiple of wal.min_free. Merges stop next, then intake."""


def reach_store(settings: StoreSection, health: Health) -> Store:
    """Open the store, and say at once when its directory cannot be used; parts wait in the spool then."""
    store = open_store(settings)
    if store.directory is not None:
        try:
            durable.make_directory(store.directory)
        except PathError as error:
            _log.error("the store is not available, parts stay in the spool: %s", error)
            health.degrade("store", f"not available: {error}")
    return store


class Storage:
    """Everything between the catalog's list of parts and the store."""

    def __init__(
        self,
        config: Config,
        paths: Paths,
        store: Store,
        catalog: Catalog,
        buffer: Buffer,
        health: Health,
        metrics: Metrics,
    ) -> None:
        reserve_bytes = CACHE_RESERVE * config.wal.min_free_bytes
        cache, gate = PartCache(paths.cache, config.store.keep_local_bytes, metrics, reserve_bytes), ReadGate()
        self.files = PartFiles(paths.spool, store, cache, gate)
        manifests = Manifests(store, paths.spool, catalog)
        self.uploader = Uploader(
            store,
            paths.spool,
            cache,
            catalog,
            buffer,
            health,
            metrics,
            UploadSettings(
                uploads=config.store.uploads,
                max_bandwidth_bytes=config.store.max_bandwidth_bytes,
                spool_max_bytes=config.spool.max_bytes,
                policy=config.spool.policy,
            ),
            catalog.state.node,
            before_mark=manifests.write,
        )
        trash = PartTrash(store, paths.spool, cache, catalog, gate, metrics)
        maintain, databases = config.maintain, config.maintain.databases
        is_trusted = maintain.clock == "trusted"
        clock = TrustedClock(lambda: is_trusted or host.is_clock_synchronised())
        buffer.visible_from = functools.partial(visible_from, databases, clock)
        self._maintainer = Maintainer(
            maintain.period_s,
            Merger(
                MergePolicy(
                    target_bytes=maintain.merge_target_bytes,
                    closed_after_ns=int(maintain.closed_after_s * 1e9),
                    stored=maintain.merge_stored,
                ),
                paths.spool,
                self.files,
                catalog,
                buffer,
                self.uploader,
                trash,
                health,
                metrics,
                min_free_bytes=config.wal.min_free_bytes,
            ),
            Retirer(databases, clock, self.files, catalog, buffer, self.uploader, trash, health, metrics),
            trash,
            snapshot=manifests.snapshot,
            # A log that is not read yet may have rows of any rank; a catalog made anew may lack parts.
            is_allowed=lambda: not {"replay", "catalog"} & health.degraded.keys(),
        )

    def start(self) -> None:
        """Begin to send and to maintain, once the log is replayed."""
        self.uploader.start()
        self._maintainer.start()

    def plan(self) -> dict[str, object]:
        """What the next run of maintenance would do, as plain data."""
        return self._maintainer.plan()

    def take(self, parts: Sequence[Part]) -> None:
        """Parts are committed and shown."""
        self.uploader.submit(parts)
        self._maintainer.poke()

    def close(self) -> None:
        """Stop sending, fetching and merging; parts on their way are sent again after the next start."""
        self._maintainer.close()
        self.uploader.close()
        self.files.close()
