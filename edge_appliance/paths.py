"""Where everything lies in the data directory."""

from __future__ import annotations

from pathlib import Path

from edge_appliance import durable


class Paths:
    """Directories and files below `node.data_dir`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.wal = root / "wal"
        self.spool = root / "spool"
        self.cache = root / "cache"
        self.view = root / "view"
        self.dead_letters = root / "dead_letters"
        self.quarantine = root / "quarantine"
        self.catalog = root / "catalog.db"

    def create(self) -> None:
        """Create what is missing; raises PathError."""
        for path in (self.root, self.wal, self.spool, self.cache, self.view, self.dead_letters, self.quarantine):
            durable.make_directory(path)
