"""Building and closing the whole, without its network."""

import asyncio
import errno
from pathlib import Path

from edge_appliance import config, durable
from edge_appliance.appliance import Appliance
from edge_appliance.errors import DiskError


def test_close_releases_everything_when_the_dead_letters_cannot_be_synced(tmp_path: Path, monkeypatch) -> None:
    """A stop on a failing disk closes catalog and lock all the same: the next start finds the directory free."""
    path = tmp_path / "edge.toml"
    path.write_text(f'[node]\ndata_dir = "{tmp_path / "data"}"\n')

    def fail() -> None:
        raise DiskError("fsync", "rejects", OSError(errno.EIO, "Input/output error"))

    async def scenario() -> None:
        appliance = Appliance(config.load(path), lambda: config.load(path), asyncio.get_running_loop())
        monkeypatch.setattr(appliance._dead_letters, "close", fail)
        appliance.close()

    asyncio.run(scenario())
    durable.lock_directory(tmp_path / "data").release()
