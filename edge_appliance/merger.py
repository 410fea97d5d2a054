"""Merges parts, one set of inputs after the other: plan, withdraw from the uploader, write, commit, show, throw away.

One transaction of the catalog is the only commit point: before it the new files are garbage, behind it the old
ones are. What cannot be read or written holds up itself alone, and is tried again with a growing pause.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Protocol

from edge_appliance import durable
from edge_appliance.catalog import Catalog
from edge_appliance.core.maintenance import Merge, MergePolicy, plan_merges
from edge_appliance.core.parts import DateKey, Part, PartSetKey, set_key
from edge_appliance.errors import EdgeError, QueryError, StoreError
from edge_appliance.health import Health
from edge_appliance.host import release_free_memory
from edge_appliance.metrics import Metrics
from edge_appliance.part_files import PartFiles
from edge_appliance.part_merge import MergeJob, write_merged
from edge_appliance.part_trash import PartTrash

_log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 10.0
LONGEST_PAUSE_S: Final = 3_600.0
FAILURES_TOLD: Final = 3
"""After so many failures in a row it is named in health."""
SPACE_FACTOR: Final = 1.2
"""Free space that a merge needs beyond wal.min_free, as a multiple of what it reads."""
FETCH_S: Final = 120.0
TRIES: Final = 8
"""Bad sets of one date that one run finds out."""

Outcome = Literal["done", "again", "later"]


class Outgoing(Protocol):
    """Who sends parts to the store: the uploader."""

    @property
    def is_store_away(self) -> bool:
        """Whether the store does not take parts right now."""

    def withdraw(self, parts: Sequence[Part]) -> list[Part] | None:
        """Take waiting parts back, all or none (None); returns those that may have been sent."""

    def submit(self, parts: Iterable[Part]) -> None:
        """Send parts."""


class PartOwner(Protocol):
    """Who shows parts to queries: the buffer."""

    @property
    def unpersisted_from(self) -> int:
        """The lowest rank that a row in memory has or will get."""

    def swap_parts(self, old: Sequence[Part], new: Sequence[Part]) -> None:
        """Show `new` instead of `old` in one step."""


@dataclass(slots=True)
class _Pause:
    failures: int
    until_s: float
    reason: str


class Merger:
    """Carries out what `plan_merges` proposes. Used by one thread."""

    def __init__(
        self,
        policy: MergePolicy,
        spool_dir: Path,
        files: PartFiles,
        catalog: Catalog,
        buffer: PartOwner,
        outgoing: Outgoing,
        trash: PartTrash,
        health: Health,
        metrics: Metrics,
        *,
        min_free_bytes: int = 0,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._policy = policy
        self._spool_dir = spool_dir
        self._files = files
        self._catalog = catalog
        self._buffer = buffer
        self._outgoing = outgoing
        self._trash = trash
        self._health = health
        self._metrics = metrics
        self._min_free_bytes = min_free_bytes
        self._first_pause_s = first_pause_s
        self._pauses: dict[PartSetKey | DateKey, _Pause] = {}

    def run(self, now_ns: int, check: Callable[[], None]) -> int:
        """Merge until nothing is left that can be merged now; returns the number of merges. `check` may raise."""
        done = 0
        left: dict[DateKey, int] = {}
        """Tries that a date still has in this run, once one has failed."""
        while merges := [merge for merge in self.proposed(now_ns) if left.get(merge.date_key, TRIES)]:
            for merge in merges:
                check()
                outcome = self._try(merge, check)
                if outcome == "done":
                    done += 1
                else:
                    left[merge.date_key] = left.get(merge.date_key, TRIES) - 1 if outcome == "again" else 0
        if done:
            release_free_memory()
        return done

    def proposed(self, now_ns: int) -> list[Merge]:
        """What would be merged now. Callable from any thread."""
        now_s = time.monotonic()
        paused = {key for key, pause in self._pauses.copy().items() if pause.until_s > now_s}
        # With the store away a merge of what it has would only fill the spool.
        policy = replace(self._policy, stored="never") if self._outgoing.is_store_away else self._policy
        # The ranks first: rows that are persisted meanwhile are parts then, and rank higher.
        below_rank = self._buffer.unpersisted_from
        state = self._catalog.state
        merges = plan_merges(
            state.parts,
            below_rank=below_rank,
            now_ns=now_ns,
            policy=policy,
            blocked={key for key in paused if isinstance(key, PartSetKey)},
            widths={key: 2 + len(columns) for key, columns in state.tables.items()},
        )
        return [merge for merge in merges if merge.date_key not in paused]

    def _try(self, merge: Merge, check: Callable[[], None]) -> Outcome:
        """Carry out one merge. "again": one of its sets is left alone from now on, the others may go without it."""
        if durable.free_bytes(self._spool_dir) < self._min_free_bytes + SPACE_FACTOR * merge.size_bytes:
            self._pause(merge.date_key, "there is no room on the disk for it")
            return "later"
        waiting = [part for part in merge.parts if not part.is_stored]
        tried = self._outgoing.withdraw(waiting)
        if tried is None:
            return "later"
        try:
            self._merge(merge, tried, check)
        except BaseException as error:
            self._outgoing.submit(waiting)
            if not isinstance(error, EdgeError):
                raise
            return self._note(merge, error)
        return "done"

    def _merge(self, merge: Merge, tried: Collection[Part], check: Callable[[], None]) -> None:
        started_s = time.monotonic()
        state = self._catalog.state
        with self._files.held(merge.parts, started_s + FETCH_S, check):
            paths = [self._files.open_path(part) for part in merge.parts]
            job = MergeJob(merge, paths, merge.parts[0].incarnation, state.generation, self._policy.target_bytes)
            parts = write_merged(job, self._spool_dir, check)
        # From here on nothing is undone: when the catalog fails its outcome is unknown, and either files may be listed.
        gone = [part for part in merge.parts if part.is_stored or part in tried]
        self._catalog.replace_parts(merge.parts, parts, gone).result()
        self._buffer.swap_parts(merge.parts, parts)
        self._trash.throw(merge.parts)
        self._outgoing.submit(parts)
        self._pauses.pop(merge.date_key, None)
        for part in merge.parts:
            self._pauses.pop(set_key(part), None)
        self._tell()
        self._metrics.merges.add()
        self._metrics.merged_parts.add(len(merge.parts))
        self._metrics.merged_bytes.add(merge.size_bytes)
        self._metrics.merge_seconds.observe(time.monotonic() - started_s)
        _log.info(
            "merged %d parts of %s.%s %s into %d, %.1f MiB to %.1f MiB",
            len(merge.parts),
            *merge.date_key,
            len(parts),
            merge.size_bytes / 2**20,
            sum(part.size_bytes for part in parts) / 2**20,
        )

    def _note(self, merge: Merge, error: EdgeError) -> Outcome:
        """Let whatever is at fault wait: part sets when they are known, else the whole date."""
        self._metrics.merge_failures.add()
        named = {getattr(error, name, None) for name in ("what", "path")}
        bad = [part for part in merge.parts if self._path(part) in named]
        if isinstance(error, QueryError | StoreError):  # no local copy, and none to be had
            bad = [part for part in merge.parts if self._path(part) is None and self._files.is_only_local(part)]
        for key in dict.fromkeys(map(set_key, bad)):
            self._pause(key, str(error))
        if not bad:
            self._pause(merge.date_key, str(error))
        return "again" if bad else "later"

    def _path(self, part: Part) -> str | None:
        try:
            return str(self._files.open_path(part))
        except StoreError:
            return None

    def _pause(self, key: PartSetKey | DateKey, reason: str) -> None:
        failures = self._pauses[key].failures + 1 if key in self._pauses else 1
        pause_s = min(self._first_pause_s * 2.0 ** (failures - 1), LONGEST_PAUSE_S)
        self._pauses[key] = _Pause(failures, time.monotonic() + pause_s, reason)
        _log.log(
            logging.WARNING if failures == FAILURES_TOLD else logging.INFO,
            "%s.%s %s is not merged for %.0f s: %s",
            *key[:3],
            pause_s,
            reason,
        )
        self._tell()

    def _tell(self) -> None:
        failing = [(key, pause) for key, pause in self._pauses.items() if pause.failures >= FAILURES_TOLD]
        if not failing:
            self._health.restore("merge")
            return
        key, pause = failing[0]
        others = f" (and {len(failing) - 1} others)" if len(failing) > 1 else ""
        self._health.degrade("merge", f"{key[0]}.{key[1]} of {key[2]} cannot be merged{others}: {pause.reason}")
