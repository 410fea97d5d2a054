"""A memory control group for a child process, of either version, where root may make one."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest
from ports import wait_until

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


class MemoryGroup:
    """Processes started under `wrapper` share `limit_bytes`; the kernel kills what does not fit."""

    def __init__(self, limit_bytes: int) -> None:
        if os.geteuid() != 0:
            pytest.skip("a control group needs root")
        self._is_v1 = (_V1 / "memory.limit_in_bytes").exists()
        self.path = (_V1 if self._is_v1 else _V2) / f"edge-{uuid.uuid4().hex[:8]}"
        try:
            self.path.mkdir()
            (self.path / ("memory.limit_in_bytes" if self._is_v1 else "memory.max")).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"no memory control group can be made here: {error}")

    def __enter__(self) -> MemoryGroup:
        return self

    def __exit__(self, *_: object) -> None:
        wait_until(lambda: not (self.path / "cgroup.procs").read_text().strip(), "the control group is empty")
        self.path.rmdir()

    @property
    def wrapper(self) -> list[str]:
        """Command that runs another one inside of the group."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    @property
    def kills(self) -> int:
        """Processes that the kernel ended for want of memory."""
        text = (self.path / ("memory.oom_control" if self._is_v1 else "memory.events")).read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith("oom_kill ")))


def peak_rss_bytes(pid: int) -> int:
    """Highest resident size that a process ever had, its children of the same name included."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
