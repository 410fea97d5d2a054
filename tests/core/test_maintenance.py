"""What is merged, retired and deleted: decided on lists of parts, and checked against the rules by simulation."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from edge_appliance.core.maintenance import (
    Merge,
    MergePolicy,
    date_end_ns,
    deletable,
    plan_eviction,
    plan_merges,
    plan_retention,
)
from edge_appliance.core.parts import Part, complete_sets, set_key, surviving

MIB = 2**20
DAY = dt.date(2026, 1, 2)
START_NS = date_end_ns(DAY) - 86_400 * 10**9
OPEN_NS = START_NS + 3_600 * 10**9
CLOSED_NS = START_NS + 3 * 86_400 * 10**9


def part(rank: int, size: int = MIB, *, hi: int | None = None, date: dt.date = DAY, **changes: object) -> Part:
    """A spooled part of one slice."""
    first_ns = date_end_ns(date) - 86_400 * 10**9
    made = Part("edge", "cpu", date, "gw", "0123abcd", rank, hi or rank, 0, 1, 10, size, first_ns, first_ns + 9)
    return replace(made, **changes)  # type: ignore[arg-type]


def plan(parts: Sequence[Part], now_ns: int = OPEN_NS, below: int = 10**6, **policy: object) -> list[Merge]:
    """The plan with rows in memory from rank `below`."""
    return plan_merges(parts, below_rank=below, now_ns=now_ns, policy=MergePolicy(**policy))  # type: ignore[arg-type]


def ranks(merge: Merge) -> list[int]:
    """Of its inputs."""
    return [part.rank_lo for part in merge.parts]


def test_three_similar_sets_of_an_open_date_are_merged() -> None:
    """Two wait for a third; the outcome carries the whole interval."""
    assert plan([part(1), part(5)]) == []
    (merge,) = plan([part(1), part(9), part(5)])
    assert (ranks(merge), merge.rank_lo, merge.rank_hi) == ([1, 5, 9], 1, 9)


def test_sets_of_other_sizes_are_left_alone() -> None:
    """A large set is not written again for small ones; what has the target's size is never an input."""
    assert ranks(plan([part(1, 40 * MIB), part(2), part(3), part(4)])[0]) == [2, 3, 4]
    assert plan([part(n, 40 * MIB) for n in range(1, 5)]) == []


def test_rows_in_memory_bar_a_merge_over_them() -> None:
    """A set that ranks with or behind rows that are not persisted is no input."""
    parts = [part(n) for n in (1, 2, 3, 8)]
    assert ranks(plan(parts, below=8)[0]) == [1, 2, 3]
    assert plan(parts, below=3) == []


def test_no_merge_reaches_over_another_set() -> None:
    """A set in between that cannot be an input parts the stretch, whatever the reason."""
    others = [
        part(5, is_stored=True),
        part(5, slices=2),
        part(5, incarnation="ffffffff"),
    ]
    for other in others:
        parts = [part(3), part(4), other, part(6), part(7)]
        assert plan(parts, stored="never") == [], other
    assert plan([part(3), part(4), part(5), part(6)], below=10**6)[0].rank_hi == 6
    blocked = plan_merges(
        [part(n) for n in (3, 4, 5, 6, 7)],
        below_rank=99,
        now_ns=OPEN_NS,
        policy=MergePolicy(),
        blocked={set_key(part(5))},
    )
    assert blocked == []


def test_overlapping_intervals_are_never_merged() -> None:
    """Sets whose ranks overlap have no order: they are left to whoever can tell."""
    assert plan([part(1, hi=5), part(3), part(7), part(8)]) == []
    assert ranks(plan([part(1, hi=5), part(3), part(7), part(8), part(9)])[0]) == [7, 8, 9]


def test_stored_parts_are_merged_by_policy() -> None:
    """By default those of closed dates only, since outsiders see both generations for a moment."""
    parts = [part(n, is_stored=True) for n in range(1, 7)]
    assert plan(parts) == []
    assert len(plan(parts, CLOSED_NS)) == 1
    assert len(plan(parts, stored="all")) == 1
    assert plan(parts, CLOSED_NS, stored="never") == []


def test_closed_date_keeps_up_to_four_parts() -> None:
    """Four stay as they are; of five the cheapest stretch goes, and late rows do not write a large part again."""
    assert plan([part(n) for n in range(1, 5)], CLOSED_NS) == []
    merge = plan([part(1, 60 * MIB), *(part(n) for n in range(2, 6))], CLOSED_NS)[0]
    assert ranks(merge) == [2, 3, 4, 5]


def test_slices_of_a_single_set_are_merged_under_a_new_name() -> None:
    """One set of many slices cannot keep its interval, which names it: it takes the rank below, if that is free."""
    slices = [part(7, slice=n, slices=6) for n in range(6)]
    (merge,) = plan(slices, CLOSED_NS)
    assert (merge.rank_lo, merge.rank_hi) == (6, 7)
    assert plan([*slices, part(6, incarnation="ffffffff")], CLOSED_NS) == []


def carried_out(parts: list[Part], merge: Merge, target_bytes: int) -> list[Part]:
    """The list after a merge."""
    total = merge.size_bytes
    count = max(1, -(-total // target_bytes))
    made = [
        replace(
            merge.parts[0],
            rank_lo=merge.rank_lo,
            rank_hi=merge.rank_hi,
            slice=number,
            slices=count,
            size_bytes=total // count,
            is_stored=False,
        )
        for number in range(count)
    ]
    return [part for part in parts if part not in merge.parts] + made


@pytest.mark.parametrize("seed", range(20))
def test_any_load_ends_in_four_parts_and_keeps_every_rule(seed: int) -> None:
    """Random sets, slices and stored states: each merge keeps the order rule, and in the end four parts are left."""
    rng = random.Random(seed)
    parts: list[Part] = []
    rank = 1
    for _ in range(rng.randrange(5, 200)):
        rank += rng.randrange(1, 9)
        count = rng.choice((1, 1, 1, 3, 12))
        is_stored = rng.random() < 0.5
        size = rng.randrange(1_000, MIB)
        parts += [part(rank, size, slice=n, slices=count, is_stored=is_stored) for n in range(count)]
    written = 0
    for _ in range(1_000):
        merges = plan(parts, CLOSED_NS)
        if not merges:
            break
        (merge,) = merges
        for other in parts:
            assert other in merge.parts or not merge.rank_lo <= other.rank_lo <= merge.rank_hi
        written += merge.size_bytes
        after = carried_out(parts, merge, 64 * MIB)
        assert set(map(set_key, surviving([*parts, *after]))) == set(map(set_key, after)), "inputs lose if they return"
        parts = after
    assert len(parts) <= max(4, -(-sum(p.size_bytes for p in parts) // (64 * MIB)) + 1)
    assert len(complete_sets(parts)) >= 1
    assert written <= 6 * sum(p.size_bytes for p in parts)


def test_retention_takes_whole_dates_only() -> None:
    """A date goes when its last ns is before what is shown: not one ns earlier, over leap days and years alike."""
    for date in (dt.date(2024, 2, 29), dt.date(2025, 12, 31), dt.date(1969, 12, 31)):
        old = part(1, date=date)
        end_ns = date_end_ns(date)
        assert plan_retention([old], {"edge": end_ns - 1}).parts == ()
        assert plan_retention([old], {"edge": end_ns}).parts == (old,)
        assert plan_retention([old], {"other": end_ns}).parts == ()


def test_contradictory_metadata_retires_nothing() -> None:
    """A part whose times lie on another date than it says is kept and named, with its whole set."""
    bad = part(1, slices=2, max_time_ns=CLOSED_NS)
    plan_ = plan_retention([bad, part(1, slice=1, slices=2)], {"edge": CLOSED_NS})
    assert (plan_.parts, plan_.contradictory) == ((), (bad,))
    assert plan_eviction([replace(bad, slices=1, is_stored=True)], {"edge": 0}).parts == ()


def test_incomplete_and_unpersisted_sets_are_kept() -> None:
    """A set that lacks a slice is no set to judge; ranks that the log still has rows of stay, too."""
    assert plan_retention([part(1, slices=2)], {"edge": CLOSED_NS}).parts == ()
    assert plan_retention([part(7)], {"edge": CLOSED_NS}, below_rank=7).parts == ()


def test_eviction_takes_the_oldest_dates_until_the_rest_fits() -> None:
    """By bytes: oldest date first, and nothing that the store does not have."""
    days = [part(9 - n, date=DAY + dt.timedelta(days=n), is_stored=True) for n in range(4)]
    assert plan_eviction(days, {"edge": 2 * MIB}).parts == tuple(days[:2])
    assert plan_eviction(days, {"edge": 4 * MIB}).parts == ()
    assert plan_eviction([replace(days[0], is_stored=False), *days[1:]], {"edge": 3 * MIB}).parts == (days[1],)


def test_merged_objects_stay_until_the_store_has_the_outcome() -> None:
    """Deleting earlier would leave the store without these rows for as long as it is away."""
    inputs, outcome = [part(1), part(2), part(3)], part(1, hi=3)
    other = part(8)
    assert deletable([*inputs, other], [outcome]) == [other]
    assert deletable(inputs, [replace(outcome, is_stored=True)]) == inputs
    assert deletable(inputs, []) == inputs
