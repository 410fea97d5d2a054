"""The catalog: what is known for ever. Definitions, parts, persisted segments, numbers never to be used again.

The only importer of sqlite3. One thread owns the connection; every method hands it a change and returns a future.
While the process runs the contents in memory decide. The database follows, one synchronous transaction a change,
and each one raises the generation. After any SQLite error the outcome on disk is unknown: the contents are then
written whole to a new file, and only when that fails too does the caller get a CatalogError. Then nothing in memory
has changed, whoever asked keeps its rows and asks again, and the next change begins with a new file.

    catalog.db        the database        catalog.db.next   a complete new one that has yet to take its place
    catalog.db-wal    belongs to it       catalog.db.copy   a good copy, at most a day older than the last change
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from edge_appliance import catalog_rows as rows
from edge_appliance import durable
from edge_appliance.catalog_rows import CatalogState, Change, Contents
from edge_appliance.core.delivery import TableDefinition
from edge_appliance.core.parts import Part
from edge_appliance.errors import CatalogError, DiskError
