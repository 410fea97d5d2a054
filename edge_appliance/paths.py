"""Where everything lies in the data directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from edge_appliance import durable

RUNTIME_DIRECTORY: Final = Path("/run/edge-appliance")
"""Where the unit has its socket; systemd makes it and says so in the environment."""
CONTROL_NAME: Final = "control"


def control_path(environ: Mapping[str, str], data_dir: Path) -> Path:
    """Return where the daemon listens for commands: in its runtime directory, or without one beside its data."""
    return Path(environ.get("RUNTIME_DIRECTORY") or data_dir) / CONTROL_NAME


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
        self.incomplete = root / "catalog.incomplete"
        """There while the catalog may lack parts that are in object storage; it holds their incarnations."""

    def create(self) -> None:
        """Create what is missing; raises PathError."""
        for path in (self.root, self.wal, self.spool, self.cache, self.view, self.dead_letters, self.quarantine):
            durable.make_directory(path)
