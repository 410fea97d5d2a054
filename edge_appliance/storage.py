"""What keeps parts, wired: store, cache, uploader and the way to a part's file. Started and closed as one."""

from __future__ import annotations

import logging

from edge_appliance import durable
from edge_appliance.buffer import Buffer
from edge_appliance.catalog import Catalog
from edge_appliance.config import Config
from edge_appliance.config_store import StoreSection
from edge_appliance.errors import PathError
from edge_appliance.health import Health
from edge_appliance.metrics import Metrics
from edge_appliance.part_cache import PartCache
from edge_appliance.part_files import PartFiles
from edge_appliance.paths import Paths
from edge_appliance.store import open_store
from edge_appliance.store_port import Store
from edge_appliance.upload import Uploader, UploadSettings

_log = logging.getLogger(__name__)


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
        cache = PartCache(paths.cache, config.store.keep_local_bytes, metrics)
        self.files = PartFiles(paths.spool, store, cache)
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
        )

    def close(self) -> None:
        """Stop sending and fetching; parts on their way are sent again after the next start."""
        self.uploader.close()
        self.files.close()
