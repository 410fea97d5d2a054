"""The catalog keeps what was committed, survives its own database, and never counts backwards."""

from __future__ import annotations

import datetime as dt
import shutil
import sqlite3
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_appliance import catalog_file, durable
from edge_appliance.catalog import COPY_PERIOD_S, Catalog
from edge_appliance.catalog_file import copy_path, read_catalog, write_catalog
from edge_appliance.core.catalog_state import CatalogState, DoneSetAside
from edge_appliance.core.delivery import ColumnDefinition, DeliveryKey, Kind, TableDefinition
from edge_appliance.core.parts import Part
from edge_appliance.errors import CatalogError, DiskError, NewerFormatError

DAY = dt.date(2026, 1, 2)
CPU = TableDefinition("edge", "cpu", (ColumnDefinition("host", Kind.TAG), ColumnDefinition("f", Kind.FLOAT)))


def make_part(rank: int = 7, number: int = 0) -> Part:
    """A part of edge.cpu."""
    return Part("edge", "cpu", DAY, "gw-01", "0123abcd", rank, rank, number, 1, 10, 1000, -(2**63), 2**63 - 1)


def open_catalog(directory: Path, node: str = "gw-01", **options: Any) -> Catalog:
    """The catalog of a test."""
    return Catalog.open(directory / "catalog.db", node=node, **options)


def done(future: Future[int]) -> int:
    """Result of a change, with a deadline."""
    return future.result(10)


def fill_up(catalog: Catalog) -> None:
    """Let the open database refuse to grow: a real SQLITE_FULL at the next change of some size."""

    def refuse() -> None:
        connection = catalog._connection
        assert connection is not None
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

    catalog._thread.submit(refuse).result(10)


MANY = [make_part(rank) for rank in range(1, 2_000)]


def test_created_catalog_is_empty_and_has_an_incarnation(tmp_path: Path) -> None:
    """A new catalog knows its node, an incarnation of 8 hex digits, and nothing else."""
    catalog = open_catalog(tmp_path)
    assert catalog.was_created
    assert catalog.state == CatalogState("gw-01", catalog.state.incarnation)
    assert len(bytes.fromhex(catalog.state.incarnation)) == 4
    catalog.close()


def test_everything_committed_is_there_after_reopening(tmp_path: Path) -> None:
    """Definitions with their order, parts, persisted segments, filters and numbers come back."""
    catalog = open_catalog(tmp_path)
    done(catalog.commit_persist(3, 7, [CPU], [make_part(7), make_part(7, 1)]))
    done(catalog.commit_persist(4, 9, [replace_columns(CPU, ("z", Kind.INT), ("a", Kind.STRING))], [make_part(9)]))
    done(catalog.forget_segment(3))
    done(catalog.mark_stored([make_part(7)]))
    done(catalog.save_filters(["b/+", "a/#"]))
    done(catalog.note_numbers(12, 99))
    done(catalog.commit_set_aside(DoneSetAside(5, 11, "edge", "cpu", -4), [CPU], [make_part(11)]))
    done(catalog.commit_prefix(5, 12, [CPU], [make_part(12)], []))
    before = catalog.state
    catalog.close()
    catalog = open_catalog(tmp_path)
    assert not catalog.was_created
    assert catalog.state == before
    assert [column.name for column in catalog.state.definitions[0].columns] == ["host", "f", "z", "a"]
    assert {part for part in before.parts if part.is_stored} == {replace(make_part(7), is_stored=True)}
    assert before.persisted_segments == {4}
    assert before.filters == ("b/+", "a/#")
    assert (before.max_segment_id, before.max_sequence, before.generation) == (12, 99, 8)
    catalog.close()


def replace_columns(definition: TableDefinition, *columns: tuple[str, Kind]) -> TableDefinition:
    """The same table with other columns."""
    return definition._replace(columns=tuple(ColumnDefinition(*column) for column in columns))


def test_committed_change_survives_a_kill(tmp_path: Path) -> None:
    """What a future confirmed is in a copy of the files as they lie there, without a clean close."""
    catalog = open_catalog(tmp_path)
    done(catalog.commit_persist(3, 7, [CPU], [make_part()]))
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name in ("catalog.db", "catalog.db-wal"):
        shutil.copy(tmp_path / name, crashed / name)
    catalog.close()
    assert read_catalog(crashed / "catalog.db") == catalog.state


def test_generation_rises_with_each_change(tmp_path: Path) -> None:
    """Each commit has the next generation, which its future gives."""
    catalog = open_catalog(tmp_path)
    generations = [done(catalog.note_numbers(1, 1)), done(catalog.forget_segment(1)), done(catalog.save_filters([]))]
    assert generations == [1, 2, 3]
    catalog.close()


def test_commit_twice_is_as_once(tmp_path: Path) -> None:
    """A persist that is repeated after an unknown outcome lists nothing twice."""
    catalog = open_catalog(tmp_path)
    done(catalog.commit_persist(3, 7, [CPU], [make_part()]))
    once = catalog.state
    done(catalog.commit_persist(3, 7, [CPU], [make_part()]))
    assert replace(catalog.state, generation=once.generation) == once
    catalog.close()


def test_numbers_never_fall(tmp_path: Path) -> None:
    """Lower numbers than those seen change nothing."""
    catalog = open_catalog(tmp_path)
    done(catalog.note_numbers(10, 100))
    done(catalog.note_numbers(2, 3))
    assert (catalog.state.max_segment_id, catalog.state.max_sequence) == (10, 100)
    catalog.close()


def test_column_keeps_its_first_kind(tmp_path: Path) -> None:
    """A later definition cannot change a column."""
    catalog = open_catalog(tmp_path)
    done(catalog.define([CPU]))
    done(catalog.define([replace_columns(CPU, ("f", Kind.INT), ("g", Kind.INT))]))
    expected = replace_columns(CPU, ("host", Kind.TAG), ("f", Kind.FLOAT), ("g", Kind.INT))
    assert catalog.state.definitions == [expected]
    catalog.close()
    assert read_catalog(tmp_path / "catalog.db").definitions == [expected]


def test_full_database_is_written_anew(tmp_path: Path) -> None:
    """After an SQLite error the change is in a new file, and the future is none the wiser."""
    catalog = open_catalog(tmp_path)
    done(catalog.commit_persist(3, 7, [CPU], []))
    inode = (tmp_path / "catalog.db").stat().st_ino
    fill_up(catalog)
    done(catalog.commit_persist(4, 2_000, [CPU], MANY))
    assert (tmp_path / "catalog.db").stat().st_ino != inode
    assert set(catalog.state.parts) == set(MANY)
    done(catalog.note_numbers(5, 2_001))
    catalog.close()
    assert read_catalog(tmp_path / "catalog.db") == catalog.state


def test_two_failures_change_nothing_and_heal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the new file cannot be written either, the caller hears it, and the next change that works has all."""
    catalog = open_catalog(tmp_path)
    done(catalog.commit_persist(3, 7, [CPU], []))
    before = catalog.state
    fill_up(catalog)
    publish = durable.publish
    monkeypatch.setattr(durable, "publish", refuse_publish)
    with pytest.raises(CatalogError, match="No space"):
        done(catalog.commit_persist(4, 2_000, [CPU], MANY))
    with pytest.raises(CatalogError, match="No space"):
        done(catalog.note_numbers(9, 9))
    assert catalog.state == before
    monkeypatch.setattr(durable, "publish", publish)
    done(catalog.commit_persist(4, 2_000, [CPU], MANY))
    assert catalog.state.generation == before.generation + 1
    catalog.close()
    assert read_catalog(tmp_path / "catalog.db") == catalog.state


def refuse_publish(temporary: object, final: object) -> None:
    """A disk that is full."""
    raise DiskError("publish", str(final), OSError(28, "No space left on device"))


@pytest.mark.parametrize("steps", range(1, 11))
def test_rewrite_cut_anywhere_leaves_one_whole_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """A crash between any two steps of putting a new file in place leaves the old state or the new one."""
    path = tmp_path / "catalog.db"
    old = CatalogState("gw-01", "0123abcd", generation=4, filters=("old",))
    new = replace(old, generation=5, filters=("new",))
    write_catalog(path, replace(old, generation=3))
    connection = sqlite3.connect(path)
    # A log that SQLite would play into whatever database lies beside it.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("INSERT OR REPLACE INTO filters VALUES (0, 'old')")
    connection.execute("UPDATE facts SET value = 4 WHERE name = 'generation'")
    connection.commit()
    crashed = tmp_path / "crashed"

    class Cut(BaseException):
        """The moment of the crash."""

    left = steps

    def cut_before(function: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                raise Cut
            return function(*arguments, **options)

        return step

    monkeypatch.setattr(durable.os, "replace", cut_before(durable.os.replace))
    monkeypatch.setattr(durable, "sync_directory", cut_before(durable.sync_directory))
    monkeypatch.setattr(Path, "unlink", cut_before(Path.unlink))
    is_cut = False
    try:
        write_catalog(path, new)
    except Cut:
        is_cut = True
    monkeypatch.undo()
    shutil.copytree(tmp_path, crashed, ignore=shutil.ignore_patterns("crashed"))
    connection.close()
    catalog = open_catalog(crashed)
    assert catalog.state in ((old, new) if is_cut else (new,))
    assert catalog.state.persisted_segments == frozenset()
    catalog.close()
    # The last case runs through: no step is missing above.
    assert is_cut is (steps < 10)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[: len(data) // 2], id="cut"),
        pytest.param(lambda data: b"\0" * len(data), id="zeros"),
        pytest.param(lambda data: data[:4096] + b"\xff" * (len(data) - 4096), id="pages"),
        pytest.param(lambda data: b"not a database at all", id="text"),
    ],
)
def test_damaged_catalog_is_refused_and_left_alone(tmp_path: Path, damage: Any) -> None:
    """Opening a damaged catalog is a CatalogError, and no new one takes its place unasked."""
    path = tmp_path / "catalog.db"
    open_catalog(tmp_path).close()
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(CatalogError):
        open_catalog(tmp_path)
    assert path.read_bytes() == damaged


def test_catalog_of_a_later_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer format is told from damage."""
    monkeypatch.setattr(catalog_file, "FORMAT_VERSION", catalog_file.FORMAT_VERSION + 1)
    open_catalog(tmp_path).close()
    monkeypatch.undo()
    with pytest.raises(NewerFormatError):
        open_catalog(tmp_path)


def test_other_node_id_means_a_new_incarnation(tmp_path: Path) -> None:
    """A renamed or copied state directory never writes names that the other one may write too."""
    catalog = open_catalog(tmp_path)
    done(catalog.commit_persist(3, 7, [CPU], [make_part()]))
    incarnation = catalog.state.incarnation
    catalog.close()
    catalog = open_catalog(tmp_path, node="gw-02")
    assert catalog.state.node == "gw-02"
    assert catalog.state.incarnation != incarnation
    assert catalog.state.parts == [make_part()]
    catalog.close()
    assert read_catalog(tmp_path / "catalog.db") == catalog.state


def test_log_of_a_lost_database_is_not_played_into_a_new_one(tmp_path: Path) -> None:
    """A `-wal` file whose database is gone must not change the one made in its place."""
    catalog = open_catalog(tmp_path)
    done(catalog.commit_persist(3, 7, [CPU], MANY))
    log = (tmp_path / "catalog.db-wal").read_bytes()
    catalog.close()
    (tmp_path / "catalog.db").unlink()
    (tmp_path / "catalog.db-wal").write_bytes(log)
    catalog = open_catalog(tmp_path)
    assert catalog.was_created
    assert catalog.state.parts == []
    catalog.close()


def test_copy_is_made_once_a_day(tmp_path: Path) -> None:
    """The first change of a day leaves a good copy, later ones do not."""
    now_s = [0.0]
    catalog = open_catalog(tmp_path, clock_s=lambda: now_s[0])
    copy = copy_path(tmp_path / "catalog.db")
    done(catalog.note_numbers(1, 1))
    assert read_catalog(copy).max_sequence == 1
    now_s[0] = COPY_PERIOD_S - 1
    done(catalog.note_numbers(2, 2))
    assert read_catalog(copy).max_sequence == 1
    now_s[0] = COPY_PERIOD_S
    done(catalog.note_numbers(3, 3))
    assert read_catalog(copy).max_sequence == 3
    catalog.close()


def test_closed_catalog_refuses(tmp_path: Path) -> None:
    """A change after the close is an error of the tree, and closing twice is none."""
    catalog = open_catalog(tmp_path)
    catalog.close()
    catalog.close()
    with pytest.raises(CatalogError, match="closed"):
        catalog.note_numbers(1, 1)


def test_names_may_be_anything(tmp_path: Path) -> None:
    """Table and column names with quotes, emoji and line ends are kept as they are."""
    catalog = open_catalog(tmp_path)
    odd = TableDefinition("d'\"", "t;\u2028\U0001f600", (ColumnDefinition('a"\\', Kind.BOOL),))
    done(catalog.define([odd]))
    catalog.close()
    assert read_catalog(tmp_path / "catalog.db").definitions == [odd]


def test_later_delivery_of_a_packet_id_wins_whatever_the_order_of_commits(tmp_path):
    """Segments may be persisted out of order: the key of the higher rank stays, also over a restart."""
    path = tmp_path / "catalog.db"
    catalog = Catalog.open(path, node="n")
    catalog.commit_persist(2, 20, [], [], [DeliveryKey(5, b"new"), DeliveryKey(6, b"x")]).result()
    catalog.commit_persist(1, 10, [], [], [DeliveryKey(5, b"old")]).result()
    expected = {5: (DeliveryKey(5, b"new"), 20), 6: (DeliveryKey(6, b"x"), 20)}
    assert catalog.state.logged == expected
    catalog.close()
    again = Catalog.open(path, node="n")
    assert again.state.logged == expected
    again.close()


def test_catalog_that_cannot_be_made_anew_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk gives an error of ours, with the path, and leaves the old files where they are."""

    def refuse(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("edge_appliance.catalog_file.write_change", refuse)
    with pytest.raises(CatalogError, match="full"):
        write_catalog(tmp_path / "catalog.db", CatalogState("gw-01", "0123abcd"))


def test_dropped_part_stays_dropped_whatever_is_marked_later(tmp_path: Path) -> None:
    """A mark for a part that is not listed any more lists nothing, in memory and after a restart."""
    catalog = open_catalog(tmp_path)
    done(catalog.commit_persist(1, 2, [], [make_part(1), make_part(2)]))
    done(catalog.drop_parts([make_part(1)]))
    done(catalog.mark_stored([make_part(1), make_part(2)]))
    assert catalog.state.parts == [replace(make_part(2), is_stored=True)]
    catalog.close()
    assert read_catalog(tmp_path / "catalog.db") == catalog.state


def test_set_asides_and_prefixes_go_with_their_segment(tmp_path: Path) -> None:
    """What replay must leave out of a log file is known as long as the file may be there, and no longer."""
    catalog = open_catalog(tmp_path)
    early = DoneSetAside(3, 7, "edge", "cpu", 1_000)
    done(catalog.commit_set_aside(early, [CPU], [make_part(7)]))
    done(catalog.commit_set_aside(DoneSetAside(4, 20, "edge", "cpu", 2_000), [], [make_part(20)]))
    done(catalog.commit_prefix(3, 9, [], [make_part(9)], [DeliveryKey(1, bytes(16))]))
    done(catalog.commit_prefix(3, 15, [], [make_part(15)], []))
    assert catalog.state.set_asides[7] == early
    assert catalog.state.prefixes == {3: 15}
    assert catalog.state.max_sequence == 20
    done(catalog.forget_segment(3))
    before = catalog.state
    assert list(before.set_asides) == [20]
    assert before.prefixes == {}
    catalog.close()
    catalog = open_catalog(tmp_path)
    assert catalog.state == before
    fill_up(catalog)
    done(catalog.commit_persist(9, 30, [CPU], MANY))
    assert catalog.state.set_asides == before.set_asides, "also in a catalog that was written anew"
    catalog.close()


def test_catalog_of_format_1_is_taken_over(tmp_path: Path) -> None:
    """A catalog of the first format has no set-asides, and gets room for them."""
    catalog = open_catalog(tmp_path)
    done(catalog.commit_persist(3, 7, [CPU], [make_part(7)]))
    catalog.close()
    connection = sqlite3.connect(tmp_path / "catalog.db")
    connection.executescript("DROP TABLE set_asides; DROP TABLE prefixes; PRAGMA user_version = 1;")
    connection.close()
    catalog = open_catalog(tmp_path)
    assert len(catalog.state.parts) == 1
    done(catalog.commit_prefix(3, 9, [], [], []))
    catalog.close()
    catalog = open_catalog(tmp_path)
    assert catalog.state.prefixes == {3: 9}
    catalog.close()
