"""Merges with a real catalog, spool and store: one commit point, nothing twice, and a bad part stalls only itself."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from merge_world import CLOSED_NS, OPEN_NS, MergeWorld
from part_makers import DAY, write_rows

from edge_appliance import durable
from edge_appliance.config_maintain import DatabaseSettings
from edge_appliance.core.interval import MIN_NS
from edge_appliance.core.maintenance import date_end_ns
from edge_appliance.core.parts import part_key, part_name
from edge_appliance.core.segment import Segment
from edge_appliance.errors import CatalogError, StoreError
from edge_appliance.maintain import Maintainer
from edge_appliance.part_cache import PartCache
from edge_appliance.part_trash import PartTrash
from edge_appliance.retire import Retirer, visible_from
from edge_appliance.store_directory import DirectoryStore
from edge_appliance.trusted_clock import TrustedClock


@pytest.fixture
def world(tmp_path: Path) -> Any:
    """A fresh world, whose catalog is closed at the end."""
    world = MergeWorld(tmp_path)
    yield world
    world.catalog.close()


def nothing() -> None:
    """No reason to stop."""


def test_spooled_parts_are_merged_and_their_files_go(world: MergeWorld) -> None:
    """The outcome is listed, shown and queued instead of its inputs, whose files go with the next sweep."""
    inputs = world.add_many((1, 2, 3))
    assert world.merger().run(OPEN_NS, nothing) == 1
    assert world.ranks == [(1, 3)]
    assert world.outgoing.waiting == world.catalog.state.parts
    world.trash.sweep()
    assert [path.name for path in world.spool.iterdir()] == [part_name(world.catalog.state.parts[0])]
    assert world.values() == [1, 2, 3]
    assert world.catalog.state.gone == [], "the store never had them"
    assert world.metrics.merged_parts.value() == len(inputs)


def test_files_stay_while_a_query_that_began_before_reads(world: MergeWorld) -> None:
    """A query takes its view, then links the files: between the two a merge must not delete them."""
    inputs = world.add_many((1, 2, 3))
    with world.files.reading():
        world.merger().run(OPEN_NS, nothing)
        with world.files.reading():
            world.trash.sweep()
            assert all((world.spool / part_name(part)).exists() for part in inputs)
    world.trash.sweep()
    assert not any((world.spool / part_name(part)).exists() for part in inputs)


def test_a_later_query_does_not_hold_the_files(world: MergeWorld) -> None:
    """Whoever begins after the swap sees the outcome only, and holds nothing up."""
    inputs = world.add_many((1, 2, 3))
    world.merger().run(OPEN_NS, nothing)
    with world.files.reading():
        world.trash.sweep()
        assert not any((world.spool / part_name(part)).exists() for part in inputs)


def test_stored_objects_go_only_when_the_store_has_the_outcome(world: MergeWorld) -> None:
    """Until then they are all that the store has of these rows; afterwards nothing of them is left, nor listed."""
    inputs = world.add_many(range(1, 7), is_stored=True)
    assert world.merger().run(CLOSED_NS, nothing) == 1
    world.trash.sweep()
    assert all(world.store.stat(part_key(part)) for part in inputs)
    assert len(world.catalog.state.gone) == 6
    (outcome,) = world.catalog.state.parts
    world.store.put(world.spool / part_name(outcome), part_key(outcome))
    world.catalog.mark_stored([outcome]).result(10)
    world.trash.sweep()
    assert [item.key for item in world.store.objects("")] == [part_key(outcome)]
    assert world.catalog.state.gone == []


def test_deletions_go_on_after_a_restart(tmp_path: Path) -> None:
    """What is due in the store is in the catalog: a kill between the swap and the deletion leaves nothing behind."""
    world = MergeWorld(tmp_path)
    inputs = world.add_many(range(1, 7), is_stored=True)
    world.merger().run(CLOSED_NS, nothing)
    world.catalog.mark_stored(world.catalog.state.parts).result(10)
    world.catalog.close()
    again = MergeWorld(tmp_path)
    again.trash.sweep()
    assert not any(again.store.stat(part_key(part)) for part in inputs)
    assert again.catalog.state.gone == []
    again.catalog.close()


def test_object_of_a_late_put_is_deleted_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put whose answer was lost may arrive after the deletion: an hour later the name is deleted again."""
    world = MergeWorld(tmp_path)
    (part,) = world.add_many((1,))
    deleted: list[str] = []
    store = DirectoryStore(tmp_path / "bucket")
    monkeypatch.setattr(store, "delete", deleted.append)
    monkeypatch.setattr(store, "directory", None)
    cache = PartCache(tmp_path / "none", 0, world.metrics)
    trash = PartTrash(store, world.spool, cache, world.catalog, world.gate, world.metrics)
    world.catalog.replace_parts([part], [], [part]).result(10)
    trash.sweep()
    trash.sweep()
    assert deleted == [part_key(part)]
    assert world.catalog.state.gone == [part]
    monkeypatch.setattr("edge_appliance.part_trash.LATE_PUT_S", 0.0)
    trash.sweep()
    assert deleted == [part_key(part)] * 2
    assert world.catalog.state.gone == []
    world.catalog.close()


def test_store_that_refuses_deletions_is_asked_again(world: MergeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the store stops nothing and forgets nothing."""
    parts = world.add_many((1, 2), is_stored=True)
    world.catalog.replace_parts(parts, [], parts).result(10)

    def refuse(key: str) -> None:
        raise StoreError("delete", key, "forbidden")

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "delete", refuse)
        world.trash.sweep()
    assert len(world.catalog.state.gone) == 2
    world.trash.sweep()
    assert world.catalog.state.gone == []


def test_part_that_is_being_sent_is_no_input(world: MergeWorld) -> None:
    """What the uploader does not give back stays as it is, and is merged later."""
    inputs = world.add_many((1, 2, 3))
    world.outgoing.waiting.remove(inputs[1])
    assert world.merger().run(OPEN_NS, nothing) == 0
    assert world.ranks == [(1, 1), (2, 2), (3, 3)]
    assert world.outgoing.waiting == [inputs[0], inputs[2]]


def test_input_that_may_have_been_sent_is_deleted_in_the_store(world: MergeWorld) -> None:
    """A put without an answer may have arrived: its object goes as if the store had it."""
    inputs = world.add_many((1, 2, 3))
    world.outgoing.tried = [inputs[0]]
    world.store.put(world.spool / part_name(inputs[0]), part_key(inputs[0]))
    world.merger().run(OPEN_NS, nothing)
    assert world.catalog.state.gone == [inputs[0]]


def test_rows_in_memory_bar_the_merge(world: MergeWorld) -> None:
    """A part that ranks with rows which are still in memory waits for them."""
    world.buffer.start(Segment(9, 2, 0.0))
    world.add_many((1, 2, 3))
    assert world.merger().run(OPEN_NS, nothing) == 0


def test_unreadable_part_stalls_only_itself(world: MergeWorld) -> None:
    """The stretches on both sides of it are merged; it is named after three tries, and merged once it can be read."""
    parts = world.add_many(range(1, 8))
    bad = world.spool / part_name(parts[3])
    content = bad.read_bytes()
    bad.write_bytes(bytes(len(content)))
    merger = world.merger()
    merger.run(OPEN_NS, nothing)
    assert world.ranks == [(n, n) for n in range(1, 8)], "it is tried again at once here"
    assert "cannot be merged" in world.health.degraded["merge"]
    paused = world.merger()
    paused._first_pause_s = 60.0
    paused.run(OPEN_NS, nothing)
    assert world.ranks == [(1, 3), (4, 4), (5, 7)]
    bad.write_bytes(content)
    merger.run(OPEN_NS, nothing)
    assert world.values() == list(range(1, 8))
    assert world.ranks == [(1, 7)]
    assert "merge" not in world.health.degraded


def test_missing_part_stalls_only_itself(world: MergeWorld) -> None:
    """A file that is gone is a bad part like any other."""
    parts = world.add_many(range(1, 8))
    (world.spool / part_name(parts[3])).unlink()
    merger = world.merger()
    merger._first_pause_s = 60.0
    merger.run(OPEN_NS, nothing)
    assert world.ranks == [(1, 3), (4, 4), (5, 7)]


def test_full_disk_stops_merges_and_nothing_else(world: MergeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the outcome nothing is begun; with room again it goes on by itself."""
    world.add_many((1, 2, 3))
    merger = world.merger()
    with monkeypatch.context() as patched:
        patched.setattr(durable, "free_bytes", lambda path: 100)
        assert merger.run(OPEN_NS, nothing) == 0
    assert len(list(world.spool.iterdir())) == 3
    assert merger.run(OPEN_NS, nothing) == 1


def test_catalog_that_fails_leaves_the_inputs(world: MergeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of a failed transaction is unknown: no file goes, the inputs wait again, the next try ends it."""
    world.add_many((1, 2, 3))
    merger = world.merger()

    def fail(*_: object) -> Any:
        raise CatalogError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(world.catalog, "replace_parts", fail)
        assert merger.run(OPEN_NS, nothing) == 0
    assert len(world.outgoing.waiting) == 3
    assert len(list(world.spool.glob("*.parquet"))) == 4
    assert merger.run(OPEN_NS, nothing) == 1
    world.trash.sweep()
    assert world.values() == [1, 2, 3]
    assert len(list(world.spool.iterdir())) == 1


def test_store_that_is_away_bars_merges_of_what_it_has(world: MergeWorld) -> None:
    """They would only fill the spool."""
    world.add_many(range(1, 7), is_stored=True)
    world.outgoing.is_store_away = True
    assert world.merger().run(CLOSED_NS, nothing) == 0


def test_any_load_ends_in_four_parts(world: MergeWorld) -> None:
    """Forty sets of a closed date, some sent and some not, end in at most four parts with all rows."""
    world.add_many(range(1, 21), is_stored=True)
    world.add_many(range(21, 41))
    world.merger().run(CLOSED_NS, nothing)
    assert len(world.ranks) <= 4
    assert world.values() == list(range(1, 41))


# Retention -----------------------------------------------------------------------------------------------------


def look_twice(world: MergeWorld, retirer: Retirer) -> None:
    """The clock counts when two looks agree."""
    for _ in range(2):
        retirer.run()
        world.monotonic_ns += 60 * 10**9
        world.wall_ns += 60 * 10**9


def on_days(world: MergeWorld, *days: int) -> None:
    """A part on each day from the first one on."""
    for number, day in enumerate(days):
        date = DAY + dt.timedelta(days=day)
        world.add(write_rows(world.spool, number + 1, [{"at": 5, "site": "a", "v": day}], date=date))


KEEP_TWO_DAYS = DatabaseSettings("edge", 2 * 86_400 * 10**9, None)


def test_expired_dates_go_and_no_others(world: MergeWorld) -> None:
    """Five days later, with two days of retention, days 0 to 2 are over; day 3 is not wholly."""
    on_days(world, 0, 1, 2, 3, 4)
    look_twice(world, world.retirer(KEEP_TWO_DAYS))
    world.trash.sweep()
    assert world.values() == [3, 4]
    assert len(list(world.spool.iterdir())) == 2
    assert world.metrics.expired_rows.value() == 3


def test_nothing_expires_by_a_clock_that_is_not_right(world: MergeWorld) -> None:
    """Not synchronised, seen once only, or stepped between two looks: nothing goes, and that is said."""
    on_days(world, 0, 1)
    world.retirer(KEEP_TWO_DAYS).run()
    assert "not known to be right" in world.health.status_line() or world.clock.now_ns is None
    world.wall_ns += 400 * 86_400 * 10**9
    world.retirer(KEEP_TWO_DAYS).run()
    world.clock = TrustedClock(lambda: False, lambda: world.wall_ns, lambda: world.monotonic_ns)
    look_twice(world, world.retirer(KEEP_TWO_DAYS))
    assert world.values() == [0, 1]


def test_contradicted_part_is_kept_and_named(world: MergeWorld) -> None:
    """What the catalog says about times is compared with the file's own footer before the rows go."""
    part = write_rows(world.spool, 1, [{"at": 5, "site": "a", "v": 1}])
    world.add(replace(part, max_time_ns=part.max_time_ns + 1))
    look_twice(world, world.retirer(KEEP_TWO_DAYS))
    assert world.values() == [1]
    assert "contradictory" in world.health.degraded["retention"]


def test_database_without_a_rule_keeps_everything(world: MergeWorld) -> None:
    """A rule is for the database it names."""
    on_days(world, 0)
    look_twice(world, world.retirer(DatabaseSettings("other", 3_600 * 10**9, None)))
    assert world.values() == [0]


def test_database_beyond_its_bytes_loses_its_oldest_days(world: MergeWorld) -> None:
    """By bytes, without any clock."""
    for day in range(3):
        part = write_rows(world.spool, day + 1, [{"at": 5, "v": day}], date=DAY + dt.timedelta(days=day))
        world.add(part, is_stored=True)
    size = world.catalog.state.parts[0].size_bytes
    world.retirer(DatabaseSettings("edge", None, 2 * size + 10)).run()
    assert world.values() == [1, 2]


def test_what_is_shown_follows_the_clock(world: MergeWorld) -> None:
    """Rows beyond retention are not shown, even before their files go; without a clock everything is."""
    rules = (KEEP_TWO_DAYS,)
    assert visible_from(rules, world.clock, "edge") == MIN_NS
    look_twice(world, world.retirer())
    shown_ns = visible_from(rules, world.clock, "edge")
    assert shown_ns == world.wall_ns - 2 * 86_400 * 10**9
    assert shown_ns < date_end_ns(DAY + dt.timedelta(days=3))
    assert visible_from(rules, world.clock, "other") == MIN_NS


# The thread ----------------------------------------------------------------------------------------------------


def test_thread_merges_when_poked_and_stops(world: MergeWorld) -> None:
    """Parts that come are merged without waiting for the period, files go, and the stop does not wait for it."""
    maintainer = Maintainer(0.5, world.merger(), world.retirer(), world.trash)
    maintainer.start()
    world.add_many(range(1, 7))
    maintainer.poke()
    wait_until(lambda: world.ranks == [(1, 6)] and len(list(world.spool.iterdir())) == 1)
    maintainer.close()
    assert not any(thread.name == "maintain" for thread in threading.enumerate())


def test_nothing_is_touched_while_the_history_is_incomplete(world: MergeWorld) -> None:
    """A list of parts that may lack some is no ground for merging or deleting."""
    world.add_many((1, 2, 3))
    maintainer = Maintainer(0.5, world.merger(), world.retirer(), world.trash, is_allowed=lambda: False)
    maintainer.step()
    assert world.ranks == [(1, 1), (2, 2), (3, 3)]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait with a deadline."""
    deadline = threading.Event()
    for _ in range(400):
        if condition():
            return
        deadline.wait(0.025)
    raise AssertionError("it did not happen")


def test_merge_that_is_stopped_leaves_nothing(world: MergeWorld) -> None:
    """A stop in the middle gives up the outcome and gives the inputs back."""
    world.add_many((1, 2, 3))
    calls = iter([None, RuntimeError("stop")])

    def stop() -> None:
        if (error := next(calls)) is not None:
            raise error

    with pytest.raises(RuntimeError, match="stop"):
        world.merger().run(OPEN_NS, stop)
    assert len(world.outgoing.waiting) == 3
    assert {path.name for path in world.spool.iterdir()} == set(map(part_name, world.outgoing.waiting))
