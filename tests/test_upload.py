"""The uploader: each part reaches the store once in effect, and a store that refuses heals by itself."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_appliance import durable
from edge_appliance.catalog import Catalog
from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.core.upload_queue import UploadSettings
from edge_appliance.errors import CatalogError
from edge_appliance.health import Health
from edge_appliance.metrics import Metrics
from edge_appliance.part_cache import PartCache
from edge_appliance.store_directory import DirectoryStore
from edge_appliance.upload import Uploader

DEADLINE_S = 20.0


class World:
    """Spool, store and catalog with fakes of the neighbours."""

    def __init__(self, directory: Path) -> None:
        self.spool, self.cache, self.root = directory / "spool", directory / "cache", directory / "store"
        self.spool.mkdir(exist_ok=True)
        self.catalog = Catalog.open(directory / "catalog.db", node="gw-01")
        self.store = DirectoryStore(self.root)
        self.health = Health()
        self.metrics = Metrics()
        self.shown: list[tuple[Part, Part]] = []
        self.dropped: list[Part] = []

    def uploader(self, *, cache_limit_bytes: int = 1_000, first_pause_s: float = 0.001, **options: Any) -> Uploader:
        """An uploader that does not wait long between tries."""
        return Uploader(
            self.store,
            self.spool,
            PartCache(self.cache, cache_limit_bytes, self.metrics),
            self.catalog,
            self,
            self.health,
            self.metrics,
            UploadSettings(first_pause_s=first_pause_s, **options),
            "gw-01",
        )

    def replace_part(self, old: Part, new: Part) -> None:
        """The buffer's side."""
        self.shown.append((old, new))

    def drop_parts(self, parts: Sequence[Part]) -> None:
        """The buffer's side."""
        self.dropped += parts

    def add_part(self, rank: int, text: str = "content", number: int = 0, count: int = 1) -> Part:
        """A committed part in the spool: slice `number` of `count`."""
        day = dt.date(2026, 1, 2)
        part = Part("edge", "cpu", day, "gw-01", "0123abcd", rank, rank, number, count, 1, len(text), 0, 9)
        (self.spool / part_name(part)).write_text(text)
        self.catalog.commit_persist(rank, rank, [], [part]).result(DEADLINE_S)
        return part


@pytest.fixture
def world(tmp_path: Path) -> Any:
    """A fresh world, whose catalog is closed at the end."""
    world = World(tmp_path)
    yield world
    world.catalog.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, with a deadline."""
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("deadline passed")


def stored(part: Part) -> Part:
    """The part as the catalog lists it afterwards."""
    return replace(part, is_stored=True)


def assert_all_stored(world: World, parts: list[Part]) -> None:
    """The store has exactly these parts, the catalog says so, and the spool is empty."""
    assert set(world.catalog.state.parts) == set(map(stored, parts))
    assert sorted(path.relative_to(world.root).as_posix() for path in world.root.rglob("*.parquet")) == sorted(
        map(part_key, parts)
    )
    assert list(world.spool.iterdir()) == []


def test_parts_go_to_the_store_oldest_first(world: World) -> None:
    """Waiting parts and parts submitted later are stored, marked and shown in order of age; the spool is empty."""
    parts = [world.add_part(rank) for rank in (30, 10, 20)]
    uploader = world.uploader(uploads=1)
    uploader.start()
    assert uploader.wait_idle(DEADLINE_S)
    late = world.add_part(5)
    uploader.submit([late])
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert [old.rank_hi for old, _ in world.shown] == [10, 20, 30, 5]
    assert all(new == stored(old) for old, new in world.shown)
    assert_all_stored(world, [*parts, late])
    assert world.metrics.parts.value("stored") == 4
    assert world.metrics.spool_bytes.value() == 0


def test_part_submitted_twice_is_stored_once(world: World) -> None:
    """A part that is queued by the start and by the persister is no problem."""
    part = world.add_part(7)
    uploader = world.uploader()
    uploader.submit([part])
    uploader.start()
    uploader.submit([part])
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert_all_stored(world, [part])


@pytest.mark.parametrize("done", [[], ["link"], ["link", "mark"]], ids=["nothing", "link", "mark"])
def test_crash_between_steps_ends_the_same(world: World, done: list[str]) -> None:
    """Whatever a run before had done when it was cut, the next start brings the same end."""
    part = world.add_part(7)
    if "link" in done:
        assert world.store.put(world.spool / part_name(part), part_key(part))
    if "mark" in done:
        world.catalog.mark_stored([part]).result(DEADLINE_S)
    uploader = world.uploader()
    uploader.start()
    wait_until(lambda: not list(world.spool.iterdir()))
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert_all_stored(world, [part])


def test_mark_comes_behind_the_link_and_before_the_unlink(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the mark the store has the part durably and the spool still has it, too."""
    part = world.add_part(7)
    synced: list[str] = []
    sync_directory = durable.sync_directory
    monkeypatch.setattr(durable, "sync_directory", lambda path: (synced.append(Path(path).name), sync_directory(path)))
    mark_stored = world.catalog.mark_stored
    seen: list[tuple[bool, bool, str]] = []

    def look(parts: Any) -> Any:
        spooled, final = world.spool / part_name(part), world.root / part_key(part)
        seen.append((spooled.exists(), final.exists(), synced[-1]))
        return mark_stored(parts)

    monkeypatch.setattr(world.catalog, "mark_stored", look)
    uploader = world.uploader()
    uploader.start()
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert seen == [(True, True, "date=2026-01-02")]
    assert_all_stored(world, [part])


def test_unwritable_store_degrades_and_heals(world: World) -> None:
    """While the store refuses, parts stay and health says why; when it is back, it goes on by itself."""
    part = world.add_part(7)
    world.root.write_text("in the way")
    uploader = world.uploader()
    uploader.start()
    wait_until(lambda: "store" in world.health.degraded)
    assert world.catalog.state.parts == [part]
    assert (world.spool / part_name(part)).exists()
    world.root.unlink()
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert world.health.degraded == {}
    assert_all_stored(world, [part])


def test_one_refused_part_does_not_hold_the_others(world: World) -> None:
    """A part whose place is blocked waits, the others go."""
    blocked, *others = [world.add_part(rank) for rank in (1, 2, 3)]
    (world.root / part_key(blocked)).mkdir(parents=True)
    uploader = world.uploader()
    uploader.start()
    wait_until(lambda: sum(part.is_stored for part in world.catalog.state.parts) == 2)
    uploader.close()
    assert blocked in world.catalog.state.parts
    assert {old for old, _ in world.shown} == set(others)


def test_failed_mark_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that refuses the mark keeps the spool's copy, and the part is sent and marked again."""
    part = world.add_part(7)
    mark_stored = world.catalog.mark_stored
    tries = 0

    def refuse_once(parts: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise CatalogError("disk I/O error")
        assert (world.spool / part_name(part)).exists()
        return mark_stored(parts)

    monkeypatch.setattr(world.catalog, "mark_stored", refuse_once)
    uploader = world.uploader()
    uploader.start()
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert tries == 2
    assert_all_stored(world, [part])


def test_other_content_under_the_name_is_never_overwritten(world: World) -> None:
    """A name that the store holds with other bytes is said, not overwritten, and holds up nobody."""
    part, other = world.add_part(7), world.add_part(8)
    place = world.root / part_key(part)
    place.parent.mkdir(parents=True)
    place.write_text("foreign")
    uploader = world.uploader()
    uploader.start()
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert place.read_text() == "foreign"
    assert (world.spool / part_name(part)).read_text() == "content"
    assert part_key(part) in world.health.degraded["parts"]
    assert set(world.catalog.state.parts) == {part, stored(other)}


def test_missing_spool_file_is_said_and_not_tried_for_ever(world: World) -> None:
    """A listed part that is nowhere, or short, is named in health; it is never marked stored."""
    gone, short = world.add_part(7), world.add_part(8)
    (world.spool / part_name(gone)).unlink()
    (world.spool / part_name(short)).write_text("")
    uploader = world.uploader()
    uploader.start()
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert "missing or damaged" in world.health.degraded["parts"]
    assert set(world.catalog.state.parts) == {gone, short}
    assert list(world.root.rglob("*.parquet")) == []


def test_copied_parts_stay_in_a_bounded_cache(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the store is on another file system the newest copies stay in the cache, up to its limit."""

    def cross_device(source: object, target: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", cross_device)
    parts = [world.add_part(rank) for rank in range(1, 9)]
    uploader = world.uploader(cache_limit_bytes=2 * len("content"), uploads=1)
    uploader.start()
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert sorted(path.name for path in world.cache.iterdir()) == sorted(map(part_name, parts[-2:]))
    assert_all_stored(world, parts)


def test_close_before_start_and_in_a_pause(world: World) -> None:
    """A close never hangs: not unstarted, and not while the store is refused."""
    world.uploader().close()
    world.add_part(7)
    world.root.write_text("in the way")
    uploader = world.uploader(first_pause_s=1_000.0)
    uploader.start()
    wait_until(lambda: "store" in world.health.degraded)
    uploader.close()
    assert "upload" not in {thread.name for thread in threading.enumerate()}


def test_full_spool_stops_acknowledging_until_the_store_takes_parts(world: World) -> None:
    """At spool.max_bytes there is a reason not to acknowledge; it goes when the store is back."""
    world.root.write_text("in the way")
    parts = [world.add_part(rank) for rank in (1, 2)]
    uploader = world.uploader(spool_max_bytes=2 * len("content"))
    uploader.start()
    wait_until(lambda: "store" in world.health.degraded)
    assert "spool.max_bytes is 14 B" in uploader.lack()
    world.root.unlink()
    assert uploader.wait_idle(DEADLINE_S)
    assert uploader.lack() == ""
    uploader.close()
    assert_all_stored(world, parts)


def test_full_spool_drops_the_oldest_when_told_so(world: World) -> None:
    """With drop-oldest whole part sets go, the oldest first: from catalog, view and disk, counted and named."""
    world.root.write_text("in the way")
    old = [world.add_part(1, number=number, count=2) for number in (0, 1)]
    new = [world.add_part(rank) for rank in (2, 3)]
    uploader = world.uploader(spool_max_bytes=3 * len("content"), policy="drop-oldest")
    uploader.start()
    wait_until(lambda: len(world.catalog.state.parts) == 2)
    wait_until(lambda: "dropped" in world.health.degraded)
    assert uploader.lack() == ""
    assert set(world.catalog.state.parts) == set(new)
    assert sorted(world.dropped, key=lambda part: part.slice) == old
    assert sorted(path.name for path in world.spool.iterdir()) == sorted(map(part_name, new))
    assert world.metrics.dropped_rows.value() == 2
    world.root.unlink()
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert_all_stored(world, new)


def test_outage_is_told_with_its_length(world: World) -> None:
    """Health names the reason, what waits and for how long; afterwards nothing of it is left."""
    world.root.write_text("in the way")
    world.add_part(7)
    uploader = world.uploader()
    uploader.start()
    wait_until(lambda: "store" in world.health.degraded)
    told = world.health.degraded["store"]
    assert told.startswith("7 B wait for the store: ")
    assert told.endswith(" s)")
    wait_until(lambda: world.metrics.store_away.value() > 0)
    world.root.unlink()
    assert uploader.wait_idle(DEADLINE_S)
    uploader.close()
    assert world.health.degraded == {}
    assert world.metrics.store_away.value() == 0
