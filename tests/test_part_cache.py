"""The cache keeps to its budget, drops the least used first, never what a query holds, and fetches each part once."""

from __future__ import annotations

import datetime as dt
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from edge_appliance import durable
from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.errors import StoreError
from edge_appliance.metrics import Metrics
from edge_appliance.part_cache import PartCache
from edge_appliance.store_directory import DirectoryStore

DAY = dt.date(2026, 1, 2)


def make_part(rank: int) -> Part:
    """A stored part of four bytes."""
    return Part("edge", "cpu", DAY, "gw-01", "0123abcd", rank, rank, 0, 1, 1, 4, 0, 9, is_stored=True)


class CountingStore(DirectoryStore):
    """A directory that counts fetches and can hold them up."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetches = 0
        self.gate = threading.Event()
        self.gate.set()

    def fetch(self, key: str, target: Path, size_bytes: int, timeout_s: float) -> None:
        self.fetches += 1
        assert self.gate.wait(timeout_s)
        super().fetch(key, target, size_bytes, timeout_s)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    """A store with parts 1 to 5."""
    store = CountingStore(tmp_path / "store")
    for rank in range(1, 6):
        store.write(part_key(make_part(rank)), b"four")
    return store


def cached(directory: Path) -> list[int]:
    """Ranks of the files in the cache."""
    return sorted(int(path.name.split("-")[0]) for path in directory.glob("*.parquet"))


def make_cache(tmp_path: Path, limit_bytes: int = 8) -> PartCache:
    """A cache for two parts."""
    return PartCache(tmp_path / "cache", limit_bytes, Metrics())


def test_least_used_goes_first(tmp_path: Path, store: CountingStore) -> None:
    """Beyond the budget the copy that was used longest ago goes; using one keeps it."""
    cache = make_cache(tmp_path)
    for rank in (1, 2):
        cache.fetch(make_part(rank), store, 5)
    assert cache.has(make_part(1))
    cache.fetch(make_part(3), store, 5)
    assert cached(tmp_path / "cache") == [1, 3]
    assert cache.size_bytes == 8


def test_held_copies_stay(tmp_path: Path, store: CountingStore) -> None:
    """What a query holds is there until it ends, also beyond the budget; then the budget holds again."""
    cache = make_cache(tmp_path)
    with cache.held([make_part(1), make_part(2)]), cache.held([make_part(2), make_part(3)]):
        for rank in (1, 2, 3, 4):
            cache.fetch(make_part(rank), store, 5)
        assert cached(tmp_path / "cache") == [1, 2, 3]
    assert cache.size_bytes == 8


def test_spooled_copy_is_taken_or_goes(tmp_path: Path) -> None:
    """The spool's file is moved, not copied; without a budget it is gone."""
    (tmp_path / "spooled").write_text("four")
    cache = make_cache(tmp_path)
    cache.take(tmp_path / "spooled", make_part(1))
    assert not (tmp_path / "spooled").exists()
    assert cache.has(make_part(1))
    (tmp_path / "spooled").write_text("four")
    make_cache(tmp_path, 0).take(tmp_path / "spooled", make_part(2))
    assert cached(tmp_path / "cache") == []


def test_cache_is_found_again_and_cut_to_a_new_budget(tmp_path: Path, store: CountingStore) -> None:
    """After a restart the newest copies up to the budget are there; unfinished ones are not."""
    cache = make_cache(tmp_path, 100)
    for rank in (3, 1, 2):
        cache.fetch(make_part(rank), store, 5)
    (tmp_path / "cache" / "x.parquet.tmp").write_text("half")
    again = make_cache(tmp_path, 8)
    assert cached(tmp_path / "cache") == [1, 2]
    assert again.has(make_part(2))
    assert not again.has(make_part(3))
    assert not (tmp_path / "cache" / "x.parquet.tmp").exists()


def test_two_who_want_the_same_part_fetch_it_once(tmp_path: Path, store: CountingStore) -> None:
    """A part on its way is waited for, not fetched again."""
    cache = make_cache(tmp_path)
    store.gate.clear()
    threads = [threading.Thread(target=cache.fetch, args=(make_part(1), store, 20)) for _ in range(3)]
    for thread in threads:
        thread.start()
    store.gate.set()
    for thread in threads:
        thread.join(20)
    assert store.fetches == 1
    assert cache.has(make_part(1))


def test_object_of_another_size_is_refused(tmp_path: Path, store: CountingStore) -> None:
    """A short object, and a missing one, are errors, and leave nothing behind."""
    store.write(part_key(make_part(1)), b"two")
    cache = make_cache(tmp_path)
    with pytest.raises(StoreError, match="3 bytes, not 4"):
        cache.fetch(make_part(1), store, 5)
    with pytest.raises(StoreError, match="No such file"):
        cache.fetch(make_part(9), store, 5)
    assert list((tmp_path / "cache").iterdir()) == []


def test_damaged_copy_is_fetched_again(tmp_path: Path, store: CountingStore) -> None:
    """A copy that lost its end is no copy."""
    cache = make_cache(tmp_path)
    cache.fetch(make_part(1), store, 5)
    (tmp_path / "cache" / part_name(make_part(1))).write_text("")
    assert not cache.has(make_part(1))
    cache.fetch(make_part(1), store, 5)
    assert cache.has(make_part(1))
    assert store.fetches == 2


def test_full_disk_takes_copies_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With less free than the reserve the oldest copies go, as many as it takes, and no held one."""
    cache = PartCache(tmp_path / "cache", 1_000, Metrics(), reserve_bytes=500)
    parts = [replace(make_part(rank), size_bytes=100) for rank in range(4)]
    free = [10_000]
    monkeypatch.setattr(durable, "free_bytes", lambda path: free[0] - cache.size_bytes)
    for part in parts:
        spooled = tmp_path / "spooled"
        spooled.write_bytes(bytes(100))
        cache.take(spooled, part)
    assert cache.size_bytes == 400
    free[0] = 750
    with cache.held(parts[:1]):
        cache.trim()
        assert [cache.has(part) for part in parts] == [True, False, False, True]
    free[0] = 10_000
    cache.trim()
    assert cache.size_bytes == 200
