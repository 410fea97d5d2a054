"""Checks of the object store: everything the service does with it, on one small object of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from edge_appliance.cli.doctor import Finding, as_owner
from edge_appliance.config import Config
from edge_appliance.errors import EdgeError
from edge_appliance.store import open_store
from edge_appliance.store_probe import MAX_CLOCK_SKEW_S, probe_store


def probe(settings: Config) -> Iterator[Finding]:
    """Create, read, list and delete."""
    try:
        store = open_store(settings.store)
        if store.directory is not None and not store.directory.is_dir():
            yield Finding("store", "warn", f"{store.directory} is not there yet; the service makes it at its start")
            return
        with as_owner(store.directory) if store.directory is not None else contextlib.nullcontext():
            found = probe_store(store, settings.node.id, time.time)
    except (EdgeError, OSError) as error:
        yield Finding(
            "store", "fail", str(error), "address, credentials and rights of [store]; for a directory: its owner"
        )
        return
    for fault in found.faults:
        yield Finding("store", "fail", fault, "the credentials of [store] need the right to do this")
    if not found.faults:
        yield Finding("store", "pass", "create, read, list and delete work")
    if found.clock_skew_s is not None and abs(found.clock_skew_s) > MAX_CLOCK_SKEW_S:
        text = f"its clock is {found.clock_skew_s:+.0f} s from ours"
        yield Finding(
            "store", "warn", text, "set this machine's clock: stores refuse signatures that are off by minutes"
        )


CHECKS: Final = (probe,)
