"""What to merge, what to retire and what to delete: pure decisions over the list of parts.

A merge takes whole part sets of one table and date that follow each other without a gap in the order of writing, and
its output carries the interval of them all. It is right only when nothing else has a rank inside that interval:
no other live set, and no row that is not persisted yet. Metadata that contradicts itself never retires anything.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from edge_appliance.core.delivery import TableKey
from edge_appliance.core.parts import (
    DAY_NS,
    EPOCH_ORDINAL,
    DateKey,
    Part,
    PartSetKey,
    complete_sets,
    replaced_by,
    utc_date,
)

StoredPolicy = Literal["closed", "all", "never"]
"""Which parts that the store has already may be merged: those of closed dates, all, or none."""

LEAST_PARTS: Final = 4
"""Parts of the widest table that may be open at once: with fewer, nothing would ever get less."""
_TINY_BYTES: Final = 2**20
"""Sizes below count as this one: what is tiny is similar."""


@dataclass(frozen=True, slots=True)
class MergePolicy:
    """When a merge is worth it."""

    target_bytes: int = 64 * 2**20
    """Of one merged part: it leaves by a single request, and is in memory as a whole meanwhile."""
    closed_parts: int = 4
    """Parts of a table that may stay on a closed date."""
    least_sets: int = 3
    """Similar sets that are merged while their date is open."""
    similar: int = 4
    """Sets are similar when the largest has at most this many times the bytes of the smallest."""
    most_parts: int = 16
    """Parts that are open at once."""
    most_columns: int = 84
    """Columns of all open parts together: each takes two thirds of a MiB (measured with pyarrow 26)."""
    closed_after_ns: int = 3_600 * 10**9
    """Late rows of a date are waited for this long."""
    stored: StoredPolicy = "closed"


@dataclass(frozen=True, slots=True)
class Merge:
    """Parts that become one set, in the order of writing."""

    parts: tuple[Part, ...]
    rank_lo: int
    rank_hi: int

    @property
    def size_bytes(self) -> int:
        """Bytes that are read, and at most written."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def date_key(self) -> DateKey:
        """Database, table and date."""
        part = self.parts[0]
        return part.database, part.table, part.date


@dataclass(frozen=True, slots=True)
class _Set:
    """One complete part set of a date, or something that no merge may reach over."""

    key: PartSetKey
    parts: tuple[Part, ...]
    is_free: bool

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def date_end_ns(date: dt.date) -> int:
    """The first ns behind a UTC date."""
    return (date.toordinal() - EPOCH_ORDINAL + 1) * DAY_NS


def by_date(parts: Iterable[Part]) -> Mapping[DateKey, list[Part]]:
    """Parts by table and date."""
    dates: dict[DateKey, list[Part]] = defaultdict(list)
    for part in parts:
        dates[part.database, part.table, part.date].append(part)
    return dates


# Merges --------------------------------------------------------------------------------------------------------


def plan_merges(
    parts: Iterable[Part],
    *,
    below_rank: int,
    now_ns: int,
    policy: MergePolicy,
    blocked: Collection[PartSetKey] = (),
    widths: Mapping[TableKey, int] = MappingProxyType({}),
) -> list[Merge]:
    """At most one merge of each table and date, those of closed dates first, then the oldest.

    `below_rank`: rows that are not in parts yet have this rank or a higher one. `blocked` sets cannot be read for now.
    `widths`: columns of each table; the wider it is, the fewer parts are open at once.
    """
    found: list[tuple[bool, Merge]] = []
    for (database, table, date), of_date in by_date(parts).items():
        is_closed = date_end_ns(date) + policy.closed_after_ns <= now_ns
        if len(of_date) < 2 or (is_closed and len(of_date) <= policy.closed_parts):
            continue
        takes_stored = policy.stored == "all" or (policy.stored == "closed" and is_closed)
        sets = _sets(of_date, below_rank, blocked, takes_stored=takes_stored)
        width = widths.get((database, table), 1)
        most = max(LEAST_PARTS, min(policy.most_parts, policy.most_columns // max(width, 1)))
        merge = _cheapest(sets, policy, most) if is_closed else _similar(sets, policy, most)
        if merge is not None:
            found.append((is_closed, merge))
    found.sort(key=lambda item: (not item[0], item[1].parts[0].date, item[1].rank_lo))
    return [merge for _, merge in found]


def _sets(parts: Sequence[Part], below_rank: int, blocked: Collection[PartSetKey], *, takes_stored: bool) -> list[_Set]:
    """Everything of one date in the order of writing, with what no merge may touch."""
    complete = complete_sets(parts)
    whole = {part for slices in complete.values() for part in slices}
    found = [_Set(key, tuple(slices), key not in blocked) for key, slices in complete.items()]
    found += [_Set(_key_of(part), (part,), is_free=False) for part in parts if part not in whole]
    found.sort(key=lambda item: (item.key.rank_lo, item.key.rank_hi))
    checked = []
    highest = -1
    for number, item in enumerate(found):
        lies_alone = item.key.rank_lo > highest and all(
            item.key.rank_hi < other.key.rank_lo for other in found[number + 1 : number + 2]
        )
        highest = max(highest, item.key.rank_hi)
        stored = {part.is_stored for part in item.parts}
        is_free = (
            item.is_free
            and lies_alone
            and item.key.rank_hi < below_rank
            and len(stored) == 1
            and (takes_stored or stored == {False})
        )
        checked.append(_Set(item.key, item.parts, is_free))
    return checked


def _key_of(part: Part) -> PartSetKey:
    return PartSetKey(part.database, part.table, part.date, part.node, part.incarnation, part.rank_lo, part.rank_hi)


def _runs(sets: Sequence[_Set]) -> Iterator[list[_Set]]:
    """Stretches of free sets of one writer that nothing interrupts."""
    run: list[_Set] = []
    for item in sets:
        is_next = bool(run) and (item.key.node, item.key.incarnation) == (run[0].key.node, run[0].key.incarnation)
        if run and not (item.is_free and is_next):
            yield run
            run = []
        if item.is_free:
            run.append(item)
    if run:
        yield run


def _cheapest(sets: Sequence[_Set], policy: MergePolicy, most_parts: int) -> Merge | None:
    """Of all stretches the one that takes the fewest bytes for each part less."""
    cost: float | None = None
    best: Merge | None = None
    for run in _runs(sets):
        for start in range(len(run)):
            size_bytes = number = 0
            for stop in range(start, len(run)):
                number += len(run[stop].parts)
                size_bytes += run[stop].size_bytes
                if number > most_parts:
                    break
                gone = number - max(1, -(-size_bytes // policy.target_bytes))
                if gone > 0 and (cost is None or size_bytes / gone < cost):
                    merge = _merge(run[start : stop + 1], sets)
                    cost, best = (cost, best) if merge is None else (size_bytes / gone, merge)
    return best


def _similar(sets: Sequence[_Set], policy: MergePolicy, most_parts: int) -> Merge | None:
    """The longest stretch of similar sets, the oldest of several; whatever has the target's size stays as it is."""
    best: Sequence[_Set] = ()
    for run in _runs(sets):
        for start in range(len(run)):
            sizes: list[int] = []
            number = total = 0
            for stop in range(start, len(run)):
                size_bytes = run[stop].size_bytes
                sizes.append(max(size_bytes, _TINY_BYTES))
                total += size_bytes
                number += len(run[stop].parts)
                if max(sizes) > policy.similar * min(sizes) or total > policy.target_bytes:
                    break
                if number > most_parts:
                    break
                if len(sizes) >= policy.least_sets and len(sizes) > len(best):
                    best = run[start : stop + 1]
    return _merge(best, sets) if best else None


def _merge(run: Sequence[_Set], sets: Sequence[_Set]) -> Merge | None:
    lo, hi = run[0].key.rank_lo, run[-1].key.rank_hi
    if len(run) == 1:
        # The slices of a single set: its own interval would repeat its name, so the output takes the rank below.
        lo -= 1
        if lo < 0 or any(item is not run[0] and item.key.rank_lo <= lo <= item.key.rank_hi for item in sets):
            return None
    return Merge(tuple(part for item in run for part in item.parts), lo, hi)


# Retention -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retention:
    """Which sets of parts have had their time, and which say contradictory things about it."""

    parts: tuple[Part, ...]
    contradictory: tuple[Part, ...] = ()


def plan_retention(
    parts: Iterable[Part], visible_from_ns: Mapping[str, int], *, below_rank: int = 2**63 - 1
) -> Retention:
    """Sets of dates that lie wholly before what their database still shows.

    `visible_from_ns` by database; one that is not named keeps everything. Sets go whole, because an incomplete one
    would be no set at all for whoever rebuilds the catalog.
    """
    going: list[Part] = []
    contradictory: list[Part] = []
    due = (
        part
        for part in parts
        if part.database in visible_from_ns
        and part.rank_hi < below_rank
        and date_end_ns(part.date) <= visible_from_ns[part.database]
    )
    for slices in complete_sets(due).values():
        bad = [part for part in slices if not _is_consistent(part)]
        contradictory += bad
        if not bad:
            going += slices
    return Retention(tuple(going), tuple(contradictory))


def plan_eviction(parts: Iterable[Part], max_bytes: Mapping[str, int], *, below_rank: int = 2**63 - 1) -> Retention:
    """Sets of the oldest dates of each database in `max_bytes` that must go for the rest to fit."""
    by_database: dict[str, list[Part]] = defaultdict(list)
    for part in parts:
        if part.database in max_bytes:
            by_database[part.database].append(part)
    going: list[Part] = []
    contradictory: list[Part] = []
    for database, own in by_database.items():
        excess_bytes = sum(part.size_bytes for part in own) - max_bytes[database]
        sets = sorted(complete_sets(own).values(), key=lambda slices: (slices[0].date, slices[0].rank_lo))
        for slices in sets:
            if excess_bytes <= 0:
                break
            if not all(map(_is_consistent, slices)):
                contradictory += slices
            elif slices[0].rank_hi < below_rank and all(part.is_stored for part in slices):
                going += slices
                excess_bytes -= sum(part.size_bytes for part in slices)
    return Retention(tuple(going), tuple(contradictory))


def _is_consistent(part: Part) -> bool:
    return part.min_time_ns <= part.max_time_ns and utc_date(part.min_time_ns) == part.date == utc_date(
        part.max_time_ns
    )


# Deletions in the store ----------------------------------------------------------------------------------------


def deletable(gone: Iterable[Part], live: Iterable[Part]) -> list[Part]:
    """Of the parts that the catalog let go those that the store need not keep any more.

    One that was merged stays until the store has all of what it became: until then it is all that the store has.
    """
    gone = list(gone)
    kept = set(replaced_by((part for part in live if not part.is_stored), gone))
    return [part for part in gone if part not in kept]
