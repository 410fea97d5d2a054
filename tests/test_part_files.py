"""The way to a part's file: wherever it is, whole, fetched when it is only in the store, or named as missing."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import replace
from pathlib import Path

import pytest

from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.errors import QueryError, StoreError
from edge_appliance.metrics import Metrics
from edge_appliance.part_cache import PartCache
from edge_appliance.part_files import PartFiles
from edge_appliance.store_directory import DirectoryStore

PART = Part("edge", "cpu", dt.date(2026, 1, 2), "gw-01", "0123abcd", 7, 7, 0, 1, 1, 4, 0, 9)
SECOND_NS = 1_000_000_000


class FarStore(DirectoryStore):
    """A directory that counts as object storage: its files cannot be read in place."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.directory = None  # type: ignore[assignment]
        self.is_away = False

    def path(self, key: str) -> Path:
        return self.root / key

    def fetch(self, key: str, target: Path, size_bytes: int, timeout_s: float) -> None:
        if self.is_away:
            raise StoreError("fetch", key, "nobody answers: s3://plant")
        super().fetch(key, target, size_bytes, timeout_s)


def write(path: Path, text: str = "four") -> Path:
    """A file with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def part_files(tmp_path: Path, store: DirectoryStore | None = None, limit_bytes: int = 1000) -> PartFiles:
    """The way to the files of a data directory."""
    cache = PartCache(tmp_path / "cache", limit_bytes, Metrics())
    return PartFiles(tmp_path / "spool", store or DirectoryStore(tmp_path / "store"), cache)


def hold(files: PartFiles, *parts: Part) -> list[Path]:
    """Local paths of parts, as a query gets them."""
    with files.held(parts, time.monotonic() + 10, lambda: None):
        return [files.open_path(part) for part in parts]


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("place", ["spool", "store", "cache"])
def test_open_path_finds_the_copy_wherever_it_is(tmp_path: Path, place: str, is_stored: bool) -> None:
    """A part may have moved since the view was taken: every place is looked at."""
    where = {"spool": part_name(PART), "store": part_key(PART), "cache": part_name(PART)}
    expected = write(tmp_path / place / where[place])
    assert part_files(tmp_path).open_path(replace(PART, is_stored=is_stored)) == expected


def test_open_path_passes_over_damaged_copies(tmp_path: Path) -> None:
    """A copy of another size than listed is not used; without a whole one the answer is a StoreError."""
    write(tmp_path / "spool" / part_name(PART), "")
    files = part_files(tmp_path)
    with pytest.raises(StoreError, match="no whole local copy"):
        files.open_path(PART)
    whole = write(tmp_path / "store" / part_key(PART))
    assert files.open_path(PART) == whole


def test_held_fetches_what_is_only_in_the_store(tmp_path: Path) -> None:
    """Parts without a local copy are fetched into the cache, the others are left where they are."""
    store = FarStore(tmp_path / "far")
    other = replace(PART, rank_lo=8, rank_hi=8)
    store.write(part_key(PART), b"four")
    spooled = write(tmp_path / "spool" / part_name(other))
    files = part_files(tmp_path, store)
    assert hold(files, PART, other) == [tmp_path / "cache" / part_name(PART), spooled]
    store.is_away = True
    assert hold(files, PART) == [tmp_path / "cache" / part_name(PART)]
    files.close()


def test_store_that_is_away_names_the_missing_time_range(tmp_path: Path) -> None:
    """What cannot be fetched is named by table and time range, with the reason; what is local counts as there."""
    store = FarStore(tmp_path / "far")
    store.is_away = True
    gone = [
        replace(PART, rank_lo=r, rank_hi=r, min_time_ns=r * SECOND_NS, max_time_ns=(r + 1) * SECOND_NS)
        for r in (10, 12)
    ]
    write(tmp_path / "spool" / part_name(PART))
    files = part_files(tmp_path, store)
    with pytest.raises(QueryError) as caught:
        hold(files, PART, *gone)
    assert caught.value.fault == "unavailable"
    expected = "cpu: 2 parts from 1970-01-01T00:00:10Z to 1970-01-01T00:00:13Z cannot be read here: nobody answers"
    assert str(caught.value).startswith(expected)
    files.close()


def test_more_than_the_budget_is_refused_before_any_traffic(tmp_path: Path) -> None:
    """A query over more remote bytes than the cache may hold is told so."""
    store = FarStore(tmp_path / "far")
    files = part_files(tmp_path, store, limit_bytes=3)
    with pytest.raises(QueryError, match=r"store\.keep_local is 3 B"):
        hold(files, PART)


def test_lost_file_of_a_directory_store_is_told(tmp_path: Path) -> None:
    """Nothing can be fetched from a directory that has lost the file."""
    with pytest.raises(QueryError, match="gone, or damaged"):
        hold(part_files(tmp_path), PART)


def test_query_that_is_over_stops_waiting(tmp_path: Path) -> None:
    """Whatever `check` raises ends the wait, long before the fetch does."""

    class SlowStore(FarStore):
        def fetch(self, key: str, target: Path, size_bytes: int, timeout_s: float) -> None:
            released.wait(20)

    import threading

    released = threading.Event()

    def check() -> None:
        raise QueryError("timeout", "over")

    files = part_files(tmp_path, SlowStore(tmp_path / "far"))
    with pytest.raises(QueryError, match="over"), files.held([PART], time.monotonic() + 20, check):
        pass
    released.set()
    files.close()
