"""Restart: what was committed is back, once, with the rank it had; damage costs at most itself."""

import datetime as dt
import errno
import shutil
import sqlite3

import pytest
from core_harness import DEADLINE_S, Core, rows_of

from edge_appliance.core.append import Appender
from edge_appliance.core.line_protocol import PARSER_VERSION
from edge_appliance.core.parts import Part, part_name
from edge_appliance.core.wal_frame import BLOCK_BYTES, FrameType
from edge_appliance.core.wal_record import GroupRecord, encode_group
from edge_appliance.errors import DiskError
from edge_appliance.reconcile import open_catalog
from edge_appliance.recovery import Replay
from edge_appliance.store_directory import DirectoryStore
from edge_appliance.wal_file import open_file


@pytest.fixture
def core(tmp_path):
    return Core(tmp_path)


def wal_paths(core: Core):
    return sorted(core.paths.wal.glob("*.wal"))


def cut(core: Core) -> None:
    core.ingest.cut()


def test_everything_committed_is_back(core):
    """All rows, with their times, types and definitions, after a kill."""
    core.write(b'p,a=1 v=1.5,s="x\ny" 1', b"q v=7i")
    cut(core)
    core.write(b"p,a=1 v=2 2,bad\np,b=\xc3\xb6 u=18446744073709551615u 3")
    rows, definitions = core.rows(), core.schema.definitions()
    again = core.restart()
    assert again.rows() == rows
    assert again.schema.definitions() == definitions
    assert again.replayed.lines == len(rows) == 3
    again.abandon()


def test_ranks_are_those_of_before(core):
    """A segment that was cut keeps its rank; the newest one gets that of its last record."""
    core.write(b"p v=1 1")
    core.write(b"p v=2 2")
    cut(core)
    core.write(b"p v=3 3")
    ranks = [segment.rank for segment in core.sealed]
    again = core.restart()
    assert [segment.rank for segment in again.buffer.state.sealed] == [*ranks, ranks[-1] + 1]
    again.abandon()


def test_numbers_never_come_back(core):
    """Segment ids and sequences only grow, over many restarts with and without rows."""
    ids, sequences = [], []
    for n in range(6):
        if n % 2:
            core.write(b"p v=%d %d" % (n, n))
        ids.append(core.wal.segment_id)
        sequences.append(core.wal.next_sequence)
        core = core.restart()
    assert sorted(set(ids)) == ids
    assert sequences == sorted(sequences)
    core.abandon()


def test_empty_files_of_restarts_do_not_pile_up(core):
    """A crash loop leaves one file, not one for each start."""
    for _ in range(5):
        core = core.restart()
    assert len(wal_paths(core)) == 1
    core.abandon()


def test_persisted_segment_is_dropped_and_not_read_again(core):
    """What the catalog lists as parts is not replayed; its file goes."""
    core = core.restart(persists=True)
    core.write(b"p v=1 1")
    cut(core)
    assert core.persister.drain(DEADLINE_S)
    again = core.restart()
    assert again.rows() == []
    assert [part.rows for part in again.buffer.parts()] == [1]
    again.abandon()


def test_file_that_comes_back_after_its_unlink_shows_nothing(core):
    """A power cut can undo an unlink: rows that a listed part covers stay out."""
    core = core.restart(persists=True)
    core.write(b"p v=1 1\nq v=1 1")
    cut(core)
    (old, _) = wal_paths(core)
    kept = core.root / "kept"
    shutil.copy(old, kept)
    assert core.persister.drain(DEADLINE_S)
    shutil.copy(kept, old)
    again = core.restart(persists=False)
    assert again.rows() == []
    assert not old.exists()
    again.abandon()


def test_crash_between_commit_and_unlink_shows_rows_once(core):
    """The catalog transaction is the only commit point: the log file behind it is garbage."""
    core.write(b"p v=1 1")
    cut(core)
    (segment,) = core.sealed
    drop = core.wal.drop
    core.wal.drop = lambda segment_id: None  # the process dies before the unlink
    core.persister.submit(segment)
    core.persister.drain(DEADLINE_S)
    core.wal.drop = drop
    again = core.restart()
    assert again.rows() == []
    assert len(again.buffer.parts()) == 1
    again.abandon()


def test_crash_before_commit_keeps_the_rows_in_the_log(core):
    """A part that the catalog does not list counts for nothing, and its file is deleted at the next start."""
    core.write(b"p v=1 1")
    cut(core)
    (segment,) = core.sealed
    rows = core.rows()
    # The steps before the commit, as a kill would leave them.
    parts = core.persister._writer.write(segment.id, segment.row_sets()[0])
    core.persister._writer.publish(parts)
    orphan = core.paths.spool / part_name(parts[0])
    assert orphan.exists()
    core.abandon()
    catalog = open_catalog(core.paths, DirectoryStore(core.root / "store"), "gw-test", core.health)
    catalog.close()
    assert not orphan.exists()
    again = Core(core.root)
    assert again.rows() == rows
    again.abandon()


def test_damaged_record_costs_itself_only(core):
    """A flipped byte in the middle loses one record, which is kept in quarantine and named in health."""
    for n in range(5):
        core.write(b"p v=%d %d" % (n, n))
    (path,) = wal_paths(core)
    data = bytearray(path.read_bytes())
    data[3 * BLOCK_BYTES + 100] ^= 1
    path.write_bytes(data)
    again = core.restart()
    assert [row[2] for row in again.rows()] == [0, 1, 3, 4]
    assert "wal_damage" in again.health.degraded
    assert len(list(again.paths.quarantine.iterdir())) == again.metrics.quarantine_files.value() == 1
    again.abandon()


def test_record_without_entries_is_read_over(core):
    """A group that says nothing is no reason to stop a start."""
    core.write(b"p v=1 1")
    core.wal.append(FrameType.GROUP, encode_group(GroupRecord(PARSER_VERSION, [], [])))
    core.write(b"p v=2 2")
    again = core.restart()
    assert [row[2] for row in again.rows()] == [1, 2]
    again.abandon()


def damage_first_record(core):
    """Flip a byte in the first record of the oldest file."""
    path = wal_paths(core)[0]
    data = bytearray(path.read_bytes())
    data[BLOCK_BYTES + 100] ^= 1
    path.write_bytes(data)


def test_definition_in_a_damaged_record_is_taken_from_a_later_file(core):
    """The record that made a column is lost alone: the column keeps its kind, and later lines their rows."""
    core.write(b"p v=1i,u=1i 1")
    core.write(b"p v=2i,u=2i 2")
    cut(core)
    core.write(b"p v=3i 3")
    core.abandon()
    damage_first_record(core)
    again = Core(core.root)
    assert [(row[2], row[3]) for row in again.rows()] == [(2, {"v": 2, "u": 2}), (3, {"v": 3})]
    assert "wal_damage" in again.health.degraded
    again.abandon()


def test_column_whose_definition_is_lost_takes_ints_and_floats(core):
    """Without any definition left, an int may stand in a float column: no line behind the damage is refused."""
    core.write(b"p v=1 1")
    core.write(b"p v=2i 2")
    core.write(b"p v=3.5 3")
    damage_first_record(core)
    again = core.restart()
    assert [(row[2], row[3]) for row in again.rows()] == [(2, {"v": 2.0}), (3, {"v": 3.5})]
    assert "wal_mismatch" in again.health.degraded
    again.abandon()


def test_torn_tail_is_no_damage(core):
    """The last record cut short by a crash was never acknowledged: it is left out without a word in health."""
    core.write(b"p v=1 1")
    core.write(b"p v=2 2")
    (path,) = wal_paths(core)
    path.write_bytes(path.read_bytes()[: 2 * BLOCK_BYTES + 70])
    again = core.restart()
    assert [row[2] for row in again.rows()] == [1]
    assert again.health.degraded == {}
    again = again.restart()
    assert again.health.degraded == {}
    again.abandon()


def test_empty_newest_file_is_no_damage(core):
    """A power cut before the first group of a file leaves its name alone; nothing was lost, and nothing is degraded."""
    core.write(b"p v=1 1")
    core.abandon()
    (core.paths.wal / f"{99:020d}.wal").touch()
    again = Core(core.root)
    assert len(again.rows()) == 1
    assert again.health.degraded == {}
    assert list(again.paths.quarantine.iterdir()) == []
    assert again.wal.segment_id > 99
    again.abandon()


@pytest.mark.parametrize("content", [b"x" * 100, b"\0" * 5000], ids=["short", "zeros"])
def test_garbage_under_a_log_name_is_quarantined(core, content):
    """A file that holds no record never stops a start, and is not deleted."""
    core.write(b"p v=1 1")
    core.abandon()
    (core.paths.wal / f"{7:020d}.wal").write_bytes(content)
    again = Core(core.root)
    assert len(again.rows()) == 1
    assert "wal_quarantined" in again.health.degraded
    assert [path.name for path in again.paths.quarantine.iterdir()] == [f"{7:020d}.wal"]
    assert again.wal.segment_id > 7
    again.abandon()


def test_deleted_log_file_is_noticed(core):
    """A hole in the sequence is named with its range; everything else is back."""
    for n in range(3):
        core.write(b"p v=%d %d" % (n, n))
        cut(core)
    core.abandon()
    wal_paths(core)[1].unlink()
    again = Core(core.root)
    assert [row[2] for row in again.rows()] == [0, 2]
    assert "records 2 to 2" in again.health.degraded["wal_hole"]
    again.abandon()


def test_restarts_without_damage_degrade_nothing(core):
    """Cuts, persists and restarts in any order leave no false alarm."""
    core = core.restart(persists=True)
    for n in range(4):
        core.write(b"p v=%d %d" % (n, n))
        if n % 2:
            cut(core)
            core.persister.drain(DEADLINE_S)
        core = core.restart()
        assert core.health.degraded == {}
    core.abandon()


def test_log_larger_than_the_buffer_is_persisted_while_it_is_replayed(core):
    """A start never needs more memory than its limit plus one segment, however long the log is."""
    for n in range(20):
        core.write(b"\n".join(b"p v=%d %d" % (i, 1000 * n + i) for i in range(200)))
        cut(core)
    again = core.restart(persists=True, buffer_limit_bytes=30_000)
    assert again.persister.drain(DEADLINE_S)
    in_memory = sum(len(rows_of(row_set)) for view in again.buffer.view("edge").values() for row_set in view.hot)
    assert in_memory + sum(part.rows for part in again.buffer.parts()) == 4000
    again.abandon()


def test_stop_request_ends_the_replay(core):
    """SIGTERM during a long replay does not wait for its end, and changes nothing."""
    core.write(b"p v=1 1")
    core.abandon()
    before = {path: path.read_bytes() for path in wal_paths(core)}
    fresh = Core(core.root.parent / "other")
    replay = Replay(
        fresh.wal,
        fresh.catalog,
        fresh.buffer,
        fresh.appender,
        fresh.health,
        fresh.metrics,
        quarantine_dir=fresh.paths.quarantine,
        backlog=fresh.backlog,
        is_stopping=lambda: True,
    )
    assert replay.run([open_file(path) for path in before]) is None
    assert {path: path.read_bytes() for path in before} == before
    fresh.abandon()


def test_lost_catalog_is_made_anew_from_the_parts(core):
    """Without its catalog the appliance finds its parts, deletes none, and says that the history may have gaps."""
    core = core.restart(persists=True)
    core.write(b"p v=1 1")
    cut(core)
    assert core.persister.drain(DEADLINE_S)
    core.write(b"p v=2i 2\nq v=1 1")
    core.abandon()
    for path in core.root.glob("catalog.db*"):
        path.unlink()
    catalog = open_catalog(core.paths, DirectoryStore(core.root / "store"), "gw-test", core.health)
    assert [part.rows for part in catalog.state.parts] == [1]
    assert "catalog" in core.health.degraded
    catalog.close()
    again = Core(core.root)
    # The column is a float, as the part says, although the log's own line spells an int.
    assert [(row[0], row[3]) for row in again.rows()] == [("p", {"v": 2.0}), ("q", {"v": 1.0})]
    again.abandon()


def test_new_node_beside_the_parts_of_another_starts_without_alarm(core):
    """Two gateways may share a store: `gw` does not take the parts of `gw-test` for its own history."""
    directory = core.root / "store/edge/p/date=1970-01-01"
    directory.mkdir(parents=True)
    (directory / f"gw-test-0badcafe-{1:020}-{1:020}-0001.parquet").touch()
    core.abandon()
    for path in core.root.glob("catalog.db*"):
        path.unlink()
    for path in core.paths.wal.iterdir():
        path.unlink()
    catalog = open_catalog(core.paths, DirectoryStore(core.root / "store"), "gw", core.health)
    assert core.health.degraded == {}
    catalog.close()


def test_damaged_catalog_is_kept_and_made_anew(core):
    """Bytes of a catalog that cannot be read are in quarantine, and the appliance serves."""
    core = core.restart(persists=True)
    core.write(b"p v=1 1")
    cut(core)
    assert core.persister.drain(DEADLINE_S)
    core.abandon()
    core.paths.catalog.write_bytes(b"not a database" * 1000)
    for path in core.root.glob("catalog.db-*"):
        path.unlink()
    catalog = open_catalog(core.paths, DirectoryStore(core.root / "store"), "gw-test", core.health)
    assert [part.rows for part in catalog.state.parts] == [1]
    assert any(path.name.startswith("catalog.db") for path in core.paths.quarantine.iterdir())
    catalog.close()


def test_older_catalog_never_deletes_a_part(core):
    """A restored copy does not know the newest parts: they are adopted, not taken for garbage."""
    core = core.restart(persists=True)
    core.write(b"p v=1 1")
    cut(core)
    assert core.persister.drain(DEADLINE_S)
    backup = core.root / "backup.db"
    with sqlite3.connect(core.paths.catalog) as source, sqlite3.connect(backup) as target:
        source.backup(target)
    core.write(b"p v=2 2")
    cut(core)
    assert core.persister.drain(DEADLINE_S)
    core.write(b"p v=3 3")
    cut(core)
    core.persister.drain(DEADLINE_S)
    core.abandon()
    for path in core.root.glob("catalog.db*"):
        path.unlink()
    shutil.copy(backup, core.paths.catalog)
    catalog = open_catalog(core.paths, DirectoryStore(core.root / "store"), "gw-test", core.health)
    assert sorted(part.min_time_ns for part in catalog.state.parts) == [1, 2, 3]
    catalog.close()


def test_missing_part_is_named(core):
    """A listed part whose file is gone is said, once at start, and nothing is deleted for it."""
    core = core.restart(persists=True)
    core.write(b"p v=1 1")
    cut(core)
    assert core.persister.drain(DEADLINE_S)
    (part,) = core.buffer.parts()
    core.abandon()
    (core.paths.spool / part_name(part)).unlink()
    catalog = open_catalog(core.paths, DirectoryStore(core.root / "store"), "gw-test", core.health)
    assert "missing_parts" in core.health.degraded
    catalog.close()


def test_rows_are_not_taken_for_those_of_a_rank_given_out_since(core):
    """A file's rank is that of its own last record, however far behind it the next file begins."""
    core.write(b"p v=1 1")
    core = core.restart()
    part = Part("edge", "p", dt.date(1970, 1, 1), "gw-test", "00000000", 9, 9, 0, 1, 1, 100, 2, 2)
    # What a run without a log persists gets ranks and ids above those of the files that still wait.
    core.catalog.commit_persist(8, 9, [], [part]).result()
    core = core.restart()
    assert core.wal.first_sequence == 10
    for _ in range(2):
        core = core.restart()
        assert [row[2] for row in core.rows()] == [1]
        assert [segment.rank for segment in core.buffer.state.sealed] == [1]
    core.abandon()


def test_newest_file_that_a_part_covers_shows_nothing(core):
    """The last file of the log may be one that came back, too."""
    core = core.restart(persists=True)
    core.write(b"p v=1 1")
    (old,) = wal_paths(core)
    kept = core.root / "kept"
    shutil.copy(old, kept)
    cut(core)
    assert core.persister.drain(DEADLINE_S)
    core.abandon()
    for path in wal_paths(core):
        path.unlink()
    shutil.copy(kept, old)
    again = Core(core.root)
    assert again.rows() == []
    assert [part.rows for part in again.buffer.parts()] == [1]
    again.abandon()


def test_lines_that_bring_out_a_fault_do_not_stop_the_start(core, monkeypatch):
    """Replay leaves out what it cannot append, keeps the file, says so, and has everything else."""
    core.write(b"p v=1 1", b"p v=2,poison=1i 2\nr v=1 2", b"p v=3,w=2i 3")
    core.write(b"q v=4 4")
    real = Appender.append_logged

    def fail(self, segment, group, is_covered):
        done = real(self, segment, group, is_covered)
        if b"poison" in group.text:
            raise ZeroDivisionError("a fault of ours")
        return done

    monkeypatch.setattr(Appender, "append_logged", fail)
    again = core.restart()
    assert [(row[0], row[2]) for row in again.rows()] == [("p", 1), ("p", 3), ("q", 4)]
    assert "wal_mismatch" in again.health.degraded
    assert [path.suffix for path in again.paths.quarantine.iterdir()] == [".mismatch"]
    monkeypatch.undo()
    healed = again.restart()
    assert len(healed.rows()) == 5
    healed.abandon()


def test_want_of_memory_leaves_out_no_line(core, monkeypatch):
    """It says nothing about the lines: the start ends, and the next one has them all."""
    core.write(b"p v=1 1", b"p v=2 2")
    core.abandon()

    def fail(self, segment, group, is_covered):
        raise MemoryError

    monkeypatch.setattr(Appender, "append_logged", fail)
    with pytest.raises(MemoryError):
        Core(core.root)
    monkeypatch.undo()
    again = Core(core.root)
    assert [row[2] for row in again.rows()] == [1, 2]
    assert "wal_mismatch" not in again.health.degraded
    again.abandon()


def test_file_that_cannot_be_kept_does_not_stop_the_start(core, monkeypatch):
    """A disk without room for the copy of a file that replays differently costs the copy."""
    core.write(b"p v=1 1")

    def refuse(source, final):
        raise DiskError("link", str(final), OSError(errno.ENOSPC, "No space left on device"))

    def fail(self, segment, group, is_covered):
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("edge_appliance.replay_notes.durable.link_or_copy", refuse)
    monkeypatch.setattr(Appender, "append_logged", fail)
    again = core.restart()
    assert "is not kept" in again.health.degraded["wal_mismatch"]
    again.abandon()


def test_time_goes_on_behind_a_log_without_rows(core):
    """A clock that is unset at the next boot continues from when the newest file was made, not from 1970."""
    created_ns = open_file(wal_paths(core)[-1]).header.created_ns
    again = core.restart()
    assert again.replayed.last_arrival_ns == created_ns
    again.abandon()
