"""The directory store, the way to a part's local file, and what is left of the spool after a crash."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest

from edge_appliance.core.parts import Part, part_key, part_name
from edge_appliance.errors import StoreError
from edge_appliance.store import DirectoryStore, PartFiles, clean_spool

PART = Part("edge", "cpu", dt.date(2026, 1, 2), "gw-01", "0123abcd", 7, 7, 0, 1, 1, 4, 0, 9)


def write(path: Path, text: str = "four") -> Path:
    """A file with its directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_put_links_and_may_be_repeated(tmp_path: Path) -> None:
    """A put costs no copy on one file system, and a second one is success."""
    source = write(tmp_path / "part")
    store = DirectoryStore(tmp_path / "store")
    assert store.put(source, "a/b/c")
    assert store.put(source, "a/b/c")
    assert store.path("a/b/c").samefile(source)
    assert store.size_bytes("a/b/c") == 4


def test_put_never_overwrites(tmp_path: Path) -> None:
    """Another content under the name is a result, and stays."""
    store = DirectoryStore(tmp_path / "store")
    assert store.put(write(tmp_path / "one"), "key")
    assert not store.put(write(tmp_path / "two", "FOUR"), "key")
    assert store.path("key").read_text() == "four"


def test_refused_put_is_a_store_error(tmp_path: Path) -> None:
    """A store that cannot be written, and a source that is gone, raise with the key in the text."""
    write(tmp_path / "store")
    source = write(tmp_path / "part")
    with pytest.raises(StoreError, match="a/b"):
        DirectoryStore(tmp_path / "store").put(source, "a/b")
    with pytest.raises(StoreError, match="a/b"):
        DirectoryStore(tmp_path / "other").put(tmp_path / "gone", "a/b")


def test_size_of_nothing_is_none(tmp_path: Path) -> None:
    """A missing object, and one below a file, are no errors."""
    write(tmp_path / "file")
    assert DirectoryStore(tmp_path).size_bytes("gone") is None
    assert DirectoryStore(tmp_path).size_bytes("file/below") is None


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("place", ["spool", "store", "cache"])
def test_open_path_finds_the_copy_wherever_it_is(tmp_path: Path, place: str, is_stored: bool) -> None:
    """A part may have moved since the view was taken: every place is looked at."""
    spool, store, cache = tmp_path / "spool", tmp_path / "store", tmp_path / "cache"
    where = {"spool": spool / part_name(PART), "store": store / part_key(PART), "cache": cache / part_name(PART)}
    expected = write(where[place])
    files = PartFiles(spool, store, cache)
    assert files.open_path(replace(PART, is_stored=is_stored)) == expected


def test_open_path_passes_over_damaged_copies(tmp_path: Path) -> None:
    """A copy of another size than listed is not used; without a whole one the answer is a StoreError."""
    spool, store, cache = tmp_path / "spool", tmp_path / "store", tmp_path / "cache"
    write(spool / part_name(PART), "")
    files = PartFiles(spool, store, cache)
    with pytest.raises(StoreError, match="no whole local copy"):
        files.open_path(PART)
    whole = write(store / part_key(PART))
    assert files.open_path(PART) == whole


def test_clean_spool_keeps_what_is_listed(tmp_path: Path) -> None:
    """With a trusted catalog unfinished and unlisted files go, listed and foreign ones stay."""
    other = replace(PART, rank_lo=9, rank_hi=9)
    for name in (part_name(PART), part_name(other), part_name(other) + ".tmp", "README"):
        write(tmp_path / name)
    assert clean_spool(tmp_path, [PART], is_trusted=True) == sorted([part_name(other), part_name(other) + ".tmp"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([part_name(PART), "README"])


def test_clean_spool_without_trust_deletes_no_part(tmp_path: Path) -> None:
    """While the catalog may be older than the disk, only unfinished files go."""
    for name in (part_name(PART), part_name(PART) + ".tmp"):
        write(tmp_path / name)
    assert clean_spool(tmp_path, [], is_trusted=False) == [part_name(PART) + ".tmp"]
    assert [path.name for path in tmp_path.iterdir()] == [part_name(PART)]
