"""`edge-appliance catalog rebuild`: the catalog made anew from footers on the disk, the store and the log.

The daemon must be stopped. Nothing is deleted: the old catalog is kept in quarantine, and every complete part counts
unless a merged one covers it. What only the log knows comes back when the daemon replays it.
"""

from __future__ import annotations

import argparse
import sys

from edge_appliance import config, durable
from edge_appliance.adopt import rebuild_catalog
from edge_appliance.cli.command import CommandError, Exit, add_config_option
from edge_appliance.errors import StoreError
from edge_appliance.paths import Paths
from edge_appliance.reconcile import incarnations_known
from edge_appliance.remote_parts import find_remote_parts
from edge_appliance.store import open_store

EXAMPLES = "  edge-appliance catalog rebuild    # between systemctl stop edge-appliance and start"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config_option(parser)
    parser.add_argument("action", choices=("rebuild",), help="rebuild: from footers, store and log")


def execute(arguments: argparse.Namespace) -> int:
    """Rebuild, and say what was found."""
    settings = config.load(arguments.config, purpose="run")
    paths = Paths(settings.node.data_dir)
    paths.create()
    lock = durable.lock_directory(paths.root)
    store = open_store(settings.store)
    try:
        remote = None
        if store.directory is None:
            tell = lambda text: print(text, file=sys.stderr)  # noqa: E731
            remote = find_remote_parts(store, settings.node.id, paths.root, tell)
        state = rebuild_catalog(
            paths.catalog,
            node=settings.node.id,
            spool_dir=paths.spool,
            store=store,
            quarantine_dir=paths.quarantine,
            incarnations=incarnations_known(paths),
            remote=remote,
        )
        paths.incomplete.unlink(missing_ok=True)
    except StoreError as error:
        raise CommandError(Exit.FAILED, f"nothing was changed: {error}") from error
    finally:
        store.close()
        lock.release()
    rows = sum(part.rows for part in state.parts)
    print(f"{len(state.parts):,} parts with {rows:,} rows in {len(state.tables):,} tables; the old catalog is kept")
    return Exit.OK
