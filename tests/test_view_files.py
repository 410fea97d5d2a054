"""Link directories: what they show, how they are shared, and that they go."""

from __future__ import annotations

import datetime as dt
import errno
from pathlib import Path

import pytest

from edge_appliance.core.interval import NO_TIME, Interval
from edge_appliance.core.parts import Part
from edge_appliance.core.query_types import SharedPart
from edge_appliance.errors import PathError, QueryError, StoreError
from edge_appliance.view_files import ViewFiles


def part(rank: int) -> Part:
    """A part of rank `rank`."""
    return Part("d", "t", dt.date(2026, 1, 1), "n", "i", rank, rank, 0, 1, 1, 1, 0, 9_000)


class Store:
    """Finds parts as files named by rank; `misses` look-ups fail first."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.misses = 0
        self.looks = 0

    def open_path(self, wanted: Part) -> Path:
        """Path of the part, or of nothing while it moves."""
        self.looks += 1
        if self.misses:
            self.misses -= 1
            return self.directory / "just moved"
        path = self.directory / str(wanted.rank_lo)
        if not path.exists():
            raise StoreError("open", path.name, "no whole local copy")
        return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with the parts 1 and 2."""
    store = Store(tmp_path / "store")
    for name in "12":
        (store.directory / name).write_text(name)
    return store


@pytest.fixture
def files(tmp_path: Path, store: Store) -> ViewFiles:
    """View files over that store."""
    return ViewFiles(tmp_path / "view", store)


def test_directories_show_exactly_the_parts(files: ViewFiles) -> None:
    """Parts alone lie flat; shared ones are labelled with place and own stretch in microseconds."""
    shared = (SharedPart(part(2), Interval(-1000, 5999)), SharedPart(part(1), NO_TIME))
    with files.linked((part(1),), shared) as (alone, labelled):
        assert [path.read_text() for path in alone.iterdir()] == ["1"]
        found = {path.parent.relative_to(labelled).as_posix(): path.read_text() for path in labelled.rglob("*.parquet")}
    assert found["_edge_part=0/_edge_lo=-1/_edge_hi=5"] == "2"
    (other,) = (name for name in found if name.startswith("_edge_part=1/"))
    lo, hi = (int(label.split("=")[1]) for label in other.split("/")[1:])
    assert lo > hi


def test_links_keep_the_bytes_of_a_part_that_is_removed(files: ViewFiles, store: Store) -> None:
    """A running query reads what was there when it began."""
    with files.linked((part(1),), ()) as (alone, _):
        (store.directory / "1").unlink()
        assert [path.read_text() for path in alone.iterdir()] == ["1"]


def test_same_parts_share_a_directory_until_the_last_user_is_gone(files: ViewFiles, store: Store) -> None:
    """One set of links for all queries over the same parts; none is left behind."""
    with files.linked((part(1),), ()) as (outer, _):
        with files.linked((part(1),), ()) as (inner, _), files.linked((part(2),), ()) as (other, _):
            assert inner == outer != other
        assert outer.exists()
        assert not other.exists()
    assert not outer.exists()
    assert store.looks == 2


def test_part_that_moves_is_looked_for_again(files: ViewFiles, store: Store) -> None:
    """From the spool to the store while we look: found all the same."""
    store.misses = 2
    with files.linked((part(1),), ()) as (alone, _):
        assert [path.read_text() for path in alone.iterdir()] == ["1"]


def test_part_without_a_copy_is_named_and_nothing_is_left(files: ViewFiles, tmp_path: Path) -> None:
    """The query is told which date is missing; half-made directories go."""
    with (
        pytest.raises(QueryError, match="2026-01-01 has no local copy") as caught,
        files.linked((part(1), part(7)), ()),
    ):
        pass
    assert caught.value.fault == "unavailable"
    assert list((tmp_path / "view").iterdir()) == []


def test_other_file_system_gets_symbolic_links(files: ViewFiles, mocker) -> None:
    """Where no hard link can be made the part is read in place."""
    mocker.patch.object(Path, "hardlink_to", side_effect=OSError(errno.EXDEV, "Invalid cross-device link"))
    with files.linked((part(1),), ()) as (alone, _):
        (link,) = alone.iterdir()
        assert link.is_symlink()
        assert link.read_text() == "1"


def test_other_errors_become_query_errors(files: ViewFiles, mocker) -> None:
    """A full disk is told to the query, not to the process."""
    mocker.patch.object(Path, "hardlink_to", side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(QueryError, match="No space left"), files.linked((part(1),), ()):
        pass


def test_leftovers_of_a_killed_process_go_at_start(tmp_path: Path, store: Store) -> None:
    """Nothing under the directory outlives the process that made it."""
    stale = tmp_path / "view" / "17" / "alone"
    stale.mkdir(parents=True)
    (stale / "x.parquet").hardlink_to(store.directory / "1")
    ViewFiles(tmp_path / "view", store)
    assert list((tmp_path / "view").iterdir()) == []
    assert (store.directory / "1").read_text() == "1"


def test_directory_that_cannot_be_made(tmp_path: Path, store: Store) -> None:
    """A path that is a file is an error of the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(PathError):
        ViewFiles(tmp_path / "file" / "view", store)
