"""The maintenance thread: merges, retention and deletions, in periods and soon after parts have come.

It runs at low priority, holds nobody up, and stops within one batch of a merge.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from edge_appliance.errors import EdgeError, StoreError
from edge_appliance.merger import Merger
from edge_appliance.part_trash import PartTrash
from edge_appliance.retire import Retirer

_log = logging.getLogger(__name__)

NICE: Final = 10
"""Of this thread: rows that come in go first."""
SWEEP_S: Final = 1.0
"""How often it is looked whether readers have let go."""
GAP_SHARE: Final = 0.1
"""Of the period, which has to lie between two runs however many parts come."""


class _Stopped(Exception):  # noqa: N818 - no error: the process was asked to stop
    """Raised inside a run when the process stops."""


class Maintainer:
    """Owns the thread."""

    def __init__(
        self,
        period_s: float,
        merger: Merger,
        retirer: Retirer,
        trash: PartTrash,
        *,
        snapshot: Callable[[], None] = lambda: None,
        is_allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        self._period_s = period_s
        self._merger = merger
        self._retirer = retirer
        self._trash = trash
        self._snapshot = snapshot
        """Brings what the store knows of tables up to date."""
        self._is_allowed = is_allowed
        """Whether the list of parts is known to be complete: else nothing is merged or deleted."""
        self._changed = threading.Condition()
        self._is_stopped = False
        self._is_poked = False
        self._thread = threading.Thread(target=self._run, name="maintain", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def poke(self) -> None:
        """Parts have come: look soon."""
        with self._changed:
            self._is_poked = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop; a merge in work is given up, its inputs stay."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def plan(self) -> dict[str, object]:
        """What the next run would do, as plain data. Callable from any thread."""
        if not self._is_allowed():
            return {"waits": "the log is not read to its end yet", "merges": [], "expired": []}
        return {
            "merges": [
                {
                    "database": merge.parts[0].database,
                    "table": merge.parts[0].table,
                    "date": merge.parts[0].date.isoformat(),
                    "parts": len(merge.parts),
                    "bytes": merge.size_bytes,
                }
                for merge in self._merger.proposed(time.time_ns())
            ],
            **self._retirer.proposed(),
        }

    def step(self) -> None:
        """One run."""
        if not self._is_allowed():
            return
        with suppress(StoreError):  # it is away, which the uploader says; once it is back it is tried again
            self._snapshot()
        self._retirer.run()
        self._merger.run(time.time_ns(), self._check)
        self._trash.sweep(self._check)

    def _check(self) -> None:
        if self._is_stopped:
            raise _Stopped

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while self._wait():
            try:
                self.step()
            except _Stopped:
                return
            except EdgeError as error:
                _log.warning("maintenance is tried again: %s", error)
            except Exception:  # top of a thread: parts stay as they are and it is tried again
                _log.exception("maintenance")

    def _wait(self) -> bool:
        """Wait for the next run, sweeping meanwhile; False when stopped."""
        gap_s, until_s = GAP_SHARE * self._period_s, time.monotonic() + self._period_s
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped, gap_s)
        while time.monotonic() < until_s:
            with self._changed:
                wait_s = min(SWEEP_S if self._trash.has_work else self._period_s, until_s - time.monotonic())
                if self._changed.wait_for(lambda: self._is_stopped or self._is_poked, max(0.0, wait_s)):
                    break
            if self._trash.has_work:
                self._sweep()
        with self._changed:
            self._is_poked = False
            return not self._is_stopped

    def _sweep(self) -> None:
        with suppress(EdgeError, _Stopped):
            self._trash.sweep(self._check)
