"""The directory store: links, conditions, listing, and errors with the key in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_appliance.errors import StoreError
from edge_appliance.store_directory import DirectoryStore


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
    found = store.stat("a/b/c")
    assert found is not None
    assert (found.key, found.size_bytes) == ("a/b/c", 4)


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


def test_nothing_is_none(tmp_path: Path) -> None:
    """A missing object, and one below a file, are no errors; nor is their deletion."""
    write(tmp_path / "file")
    store = DirectoryStore(tmp_path)
    assert store.stat("gone") is None
    assert store.stat("file/below") is None
    store.delete("gone/too")
    assert store.objects("gone") == []
