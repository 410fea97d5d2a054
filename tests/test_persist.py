"""Persist: one commit point, the same end after a crash anywhere, and no table that pins the log."""

from __future__ import annotations

import datetime as dt
import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edge_appliance import durable, part_writer, persist
from edge_appliance.catalog import Catalog
from edge_appliance.core.columns import Chunk, RowSet, SeriesTags
from edge_appliance.core.delivery import ColumnDefinition, DeliveryKey, Kind, TableDefinition
from edge_appliance.core.line_protocol import Context, parse
from edge_appliance.core.line_text import row_lines
from edge_appliance.core.parts import Part, cover_intervals, part_name
from edge_appliance.errors import CatalogError, DiskError
from edge_appliance.health import Health
from edge_appliance.metrics import Metrics
from edge_appliance.parquet_file import read_footer
from edge_appliance.persist import Persister
from edge_appliance.spool import clean_spool
from edge_appliance.systemd import Station

DEADLINE_S = 20.0
DAY_NS = 86_400 * 10**9
COLUMNS = (ColumnDefinition("host", Kind.TAG), ColumnDefinition("f", Kind.FLOAT))


def make_set(table: str = "cpu", rank: int = 7, rows: int = 20, field: pa.Array | None = None) -> RowSet:
    """Rows of two series over two dates."""
    times = [(n % 2) * DAY_NS + n for n in range(rows)]
    series = pa.array([n % 2 for n in range(rows)], pa.uint32())
    values = pa.array([n / 2 for n in range(rows)]) if field is None else field
    chunk = Chunk(series, pa.array(times, pa.int64()), {"f": values}, 20 * rows)
    tags = SeriesTags([(("host", "a"),), (("host", "b"),)], 2)
    return RowSet("edge", table, rank, COLUMNS, tags, (chunk,), min(times), max(times), 20 * rows)


def make_poison(table: str = "bad") -> RowSet:
    """Rows that cannot become Parquet: text in a float column."""
    return make_set(table, field=pa.array(["x"] * 20))


class FakeSegment:
    """A sealed segment made by hand."""

    def __init__(self, id_: int, *row_sets: RowSet, rank: int = 7) -> None:
        self.id = id_
        self.rank = rank
        self._row_sets = list(row_sets)

    def row_sets(self) -> list[RowSet]:
        """All tables."""
        return list(self._row_sets)

    def definitions(self) -> list[TableDefinition]:
        """Their columns."""
        return [TableDefinition(row_set.database, row_set.table, row_set.columns) for row_set in self._row_sets]

    def delivery_keys(self) -> list[DeliveryKey]:
        """One delivery."""
        return [DeliveryKey(self.id, bytes(16))]


class World:
    """Directories, catalog and fakes of the neighbours, all noting what happens in `steps`."""

    def __init__(self, directory: Path) -> None:
        self.spool = directory / "spool"
        self.wal = directory / "wal"
        self.quarantine = directory / "quarantine"
        for path in (self.spool, self.wal):
            path.mkdir(exist_ok=True)
        self.catalog = Catalog.open(directory / "catalog.db", node="gw-01")
        # Its daily copy is made at the first change, and is no step of a persist.
        self.catalog.note_numbers(0, 0).result(DEADLINE_S)
        self.health = Health()
        self.metrics = Metrics()
        self.persisters: list[Persister] = []
        self.steps: list[str] = []
        self.shown: dict[int, list[Part]] = {}
        self.sent: list[Part] = []
        self.drop_error: Exception | None = None

    def persister(self, workers: int = 2, **options: Any) -> Persister:
        """A persister of this world that does not wait long between tries."""
        persister = Persister(
            workers,
            self.spool,
            self.quarantine,
            self.catalog,
            self,
            self,
            self.health,
            self.metrics,
            on_parts=self.sent.extend,
            first_pause_s=0.001,
            **options,
        )
        self.persisters.append(persister)
        return persister

    def close(self) -> None:
        """Also after a failed assertion: a persister tries for ever."""
        for persister in self.persisters:
            persister.close()
        self.catalog.close()

    def persisted(self, segment_id: int, parts: Sequence[Part]) -> None:
        """The buffer's side."""
        assert segment_id not in self.shown
        self.steps.append(f"show {segment_id}")
        self.shown[segment_id] = list(parts)

    def drop(self, segment_id: int) -> None:
        """The log's side."""
        if self.drop_error is not None:
            raise self.drop_error
        self.steps.append(f"drop {segment_id}")
        durable.remove(self.wal / f"{segment_id}.wal")

    def log_file(self, segment_id: int) -> Path:
        """The log file of a segment, which exists until it is dropped."""
        path = self.wal / f"{segment_id}.wal"
        path.touch()
        return path


@pytest.fixture
def world(tmp_path: Path) -> Any:
    """A fresh world, closed at the end."""
    world = World(tmp_path)
    yield world
    world.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for another thread, with a deadline."""
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    raise AssertionError("deadline passed")


def test_segment_becomes_listed_parts(world: World) -> None:
    """Parts of each table and date are whole in the spool, listed, shown and handed on; log file and row are gone."""
    log = world.log_file(3)
    persister = world.persister()
    persister.submit(FakeSegment(3, make_set("cpu"), make_set("mem")))
    assert persister.drain(DEADLINE_S)
    persister.close()
    parts = world.catalog.state.parts
    assert {(part.table, part.date) for part in parts} == {
        (table, dt.date(1970, 1, day)) for table in ("cpu", "mem") for day in (1, 2)
    }
    for part in parts:
        footer = read_footer(world.spool / part_name(part))
        assert footer.part == part
        assert footer.segments == (3, 3)
        assert (part.rank_lo, part.rank_hi, part.node) == (7, 7, "gw-01")
    assert sum(part.rows for part in parts) == 40
    assert sorted(path.name for path in world.spool.iterdir()) == sorted(map(part_name, parts))
    assert set(world.shown[3]) == set(parts) == set(world.sent)
    assert not log.exists()
    assert world.catalog.state.persisted_segments == frozenset()
    assert world.catalog.state.max_sequence == 7
    assert [definition.table for definition in world.catalog.state.definitions] == ["cpu", "mem"]
    assert world.metrics.persisted_rows.value() == 40
    assert world.metrics.parts.value("spooled") == 4
    assert world.metrics.spool_bytes.value() == sum(part.size_bytes for part in parts)


def test_steps_are_in_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write all, sync all, rename all, one directory sync, commit, show, drop, forget."""
    record(world, monkeypatch)
    world.log_file(3)
    persister = world.persister()
    persister.submit(FakeSegment(3, make_set("cpu"), make_set("mem")))
    assert persister.drain(DEADLINE_S)
    persister.close()
    expected = ["write"] * 4 + ["sync"] * 4 + ["rename"] * 4 + ["sync directory spool"]
    assert world.steps == [*expected, "commit", "show 3", "drop 3", "sync directory wal", "forget"]


def record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Note every durable step of a persist, and hand it to `on_step` first."""

    def wrap(target: Any, name: str, label: Callable[..., str]) -> None:
        original = getattr(target, name)

        def step(*arguments: Any, **options: Any) -> Any:
            world.steps.append(label(*arguments))
            return original(*arguments, **options)

        monkeypatch.setattr(target, name, step)

    wrap(part_writer, "write_part", lambda *_: "write")
    wrap(durable, "sync_file", lambda *_: "sync")
    wrap(durable, "sync_directory", lambda path: f"sync directory {Path(path).name}")
    wrap(os, "replace", lambda *_: "rename")
    wrap(world.catalog, "commit_persist", lambda *_: "commit")
    wrap(world.catalog, "forget_segment", lambda *_: "forget")


def test_slices_are_numbered_in_names_and_footers(world: World) -> None:
    """A set above the slice size becomes slices that cover only together."""
    persister = world.persister(slice_bytes=200)
    persister.submit(FakeSegment(3, make_set(rows=60)))
    assert persister.drain(DEADLINE_S)
    persister.close()
    parts = world.catalog.state.parts
    assert len(parts) > 4
    assert cover_intervals(parts) == {("edge", "cpu", dt.date(1970, 1, day)): [(7, 7)] for day in (1, 2)}
    assert cover_intervals(parts[1:]).keys() != cover_intervals(parts).keys()


def test_empty_segment_only_drops_its_log(world: World) -> None:
    """A segment without rows is committed without parts."""
    log = world.log_file(3)
    persister = world.persister()
    persister.submit(FakeSegment(3))
    assert persister.drain(DEADLINE_S)
    persister.close()
    assert not log.exists()
    assert world.shown == {3: []}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_disk_error_keeps_everything_and_heals(world: World, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """While the spool refuses, rows and log stay and health says so, however often; then it goes on by itself."""
    log = world.log_file(3)
    is_refusing = True
    tries = 0
    write_part = part_writer.write_part

    def refuse(path: Path, *arguments: Any) -> Part:
        nonlocal tries
        if is_refusing:
            tries += 1
            path.write_bytes(b"half of it")
            raise DiskError("write", str(path), OSError(number, os.strerror(number)))
        return write_part(path, *arguments)

    monkeypatch.setattr(part_writer, "write_part", refuse)
    persister = world.persister()
    persister.submit(FakeSegment(3, make_set()))
    wait_until(lambda: tries > persist.TABLE_FAILURES_MAX + 1)
    assert os.strerror(number) in world.health.degraded["persist"]
    assert log.exists()
    assert world.shown == {}
    assert not world.quarantine.exists()
    assert world.metrics.persist_failures.value() > persist.TABLE_FAILURES_MAX
    is_refusing = False
    assert persister.drain(DEADLINE_S)
    persister.close()
    assert world.health.degraded == {}
    assert len(world.catalog.state.parts) == 2


def test_failed_sync_is_never_tried_again_on_the_same_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a sync that failed all files are written anew, to other inodes."""
    inodes: list[int] = []
    sync_file = durable.sync_file

    def fail_once(path: Path) -> None:
        inodes.append(Path(path).stat().st_ino)
        if len(inodes) == 1:
            # Keeps the number from being given out again at once.
            os.link(path, world.wal / "kept")
            raise DiskError("fsync", str(path), OSError(errno.EIO, "Input/output error"))
        sync_file(path)

    monkeypatch.setattr(durable, "sync_file", fail_once)
    persister = world.persister()
    persister.submit(FakeSegment(3, make_set()))
    assert persister.drain(DEADLINE_S)
    persister.close()
    assert len(inodes) == 3
    assert inodes[0] not in inodes[1:]
    assert len(world.catalog.state.parts) == 2


def test_failed_commit_frees_nothing_and_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the catalog refuses, rows and log stay; the parts are not written again."""
    log = world.log_file(3)
    commit_persist = world.catalog.commit_persist
    calls: list[bool] = []

    def refuse_twice(*arguments: Any) -> Any:
        calls.append(log.exists() and not world.shown)
        if len(calls) < 3:
            raise CatalogError("catalog.db: disk I/O error")
        return commit_persist(*arguments)

    monkeypatch.setattr(world.catalog, "commit_persist", refuse_twice)
    writes: list[Path] = []
    monkeypatch.setattr(durable, "sync_file", writes.append)
    persister = world.persister()
    persister.submit(FakeSegment(3, make_set()))
    assert persister.drain(DEADLINE_S)
    persister.close()
    assert calls == [True] * 3
    assert len(writes) == 2
    assert not log.exists()


def test_poison_table_goes_to_quarantine_with_its_segment(world: World) -> None:
    """A table that always fails is kept as line protocol; the others become parts and the log goes."""
    log = world.log_file(3)
    persister = world.persister()
    persister.submit(FakeSegment(3, make_poison("b ad"), make_set("cpu")))
    assert persister.drain(DEADLINE_S)
    persister.close()
    assert not log.exists()
    assert {part.table for part in world.catalog.state.parts} == {"cpu"}
    (kept,) = world.quarantine.iterdir()
    comment, *lines = kept.read_text().splitlines()
    assert "'edge'" in comment
    assert len(lines) == 20
    assert "b ad" in world.health.degraded["quarantine"]
    assert "persist" not in world.health.degraded
    assert world.metrics.quarantine_files.value() == 1


def test_poison_table_is_tried_five_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that fails four times and then works becomes parts."""
    tries = 0
    merge = part_writer.sort_and_merge

    def fail_four_times(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries < persist.TABLE_FAILURES_MAX:
            raise ValueError("bad luck")
        return merge(*arguments)

    monkeypatch.setattr(part_writer, "sort_and_merge", fail_four_times)
    persister = world.persister()
    persister.submit(FakeSegment(3, make_set()))
    assert persister.drain(DEADLINE_S)
    persister.close()
    assert not world.quarantine.exists()
    assert len(world.catalog.state.parts) == 2


def test_quarantined_lines_parse_to_the_same_rows() -> None:
    """Names and values with every special character come back from the lines they are kept as."""
    columns = (
        ColumnDefinition("t, =\\g", Kind.TAG),
        ColumnDefinition("f= ,", Kind.FLOAT),
        ColumnDefinition("i", Kind.INT),
        ColumnDefinition("u", Kind.UINT),
        ColumnDefinition("b", Kind.BOOL),
        ColumnDefinition("s", Kind.STRING),
    )
    values = {
        "f= ,": pa.array([1e-300, None, -0.0], pa.float64()),
        "i": pa.array([None, -(2**63), 2**63 - 1], pa.int64()),
        "u": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "b": pa.array([True, False, None]),
        "s": pa.array(['a"\\', "two\nlines, x=1", None]),
    }
    series = pa.array([0, 1, 0], pa.uint32())
    times = pa.array([-5, 0, 2**62], pa.int64())
    tags = SeriesTags([(("t, =\\g", "v, =\\w"),), ()], 2)
    row_set = RowSet("edge", "m, \\x", 7, columns, tags, (Chunk(series, times, values, 0),), -5, 2**62, 0)
    parsed = parse(b"".join(row_lines(row_set)), Context("ns", 0, ()))
    assert not parsed.errors
    names = [column.name for column in columns[1:]]
    for row, line in enumerate(parsed.lines):
        assert line.head.measurement == "m, \\x"
        assert line.head.tags == tags.tags[row % 2]
        assert line.time_ns == times[row].as_py()
        expected = [(n, values[n][row].as_py()) for n in names if values[n][row].is_valid]
        assert [(name, value) for name, _, value in line.fields] == expected


def test_segments_are_committed_and_dropped_in_order(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later segment that is written first waits: its parts must not be older to readers than the rows before it."""
    gate = threading.Event()
    merge = part_writer.sort_and_merge

    def hold_first(row_set: RowSet, *more: int) -> Any:
        if row_set.table == "slow":
            gate.wait(DEADLINE_S)
        return merge(row_set, *more)

    monkeypatch.setattr(part_writer, "sort_and_merge", hold_first)
    first, second = world.log_file(3), world.log_file(4)
    persister = world.persister()
    persister.submit(FakeSegment(3, make_set("slow")))
    persister.submit(FakeSegment(4, make_set("cpu", rank=9), rank=9))
    wait_until(lambda: len(list(world.spool.glob("*.parquet"))) == 2)
    assert not persister.drain(0.05)
    assert world.shown == {}
    assert world.catalog.state.parts == []
    assert first.exists()
    assert second.exists()
    gate.set()
    assert persister.drain(DEADLINE_S)
    persister.close()
    assert [step for step in world.steps if step.startswith("show")] == ["show 3", "show 4"]
    assert [step for step in world.steps if step.startswith("drop")] == ["drop 3", "drop 4"]


def test_failed_drop_is_repeated_and_lets_the_rows_go(world: World) -> None:
    """While the log file cannot be unlinked the segment stays persisted in the catalog, and its rows are free."""
    world.log_file(3)
    world.drop_error = DiskError("unlink", "3.wal", OSError(errno.EROFS, "Read-only file system"))
    persister = world.persister(workers=1)
    persister.submit(FakeSegment(3, make_set()))
    wait_until(lambda: "persist" in world.health.degraded)
    assert 3 in world.shown
    assert world.catalog.state.persisted_segments == {3}
    world.drop_error = None
    assert persister.drain(DEADLINE_S)
    persister.close()
    assert world.catalog.state.persisted_segments == frozenset()
    assert world.health.degraded == {}


def test_at_most_so_many_tables_as_workers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more tables in work at once than workers, over all segments."""
    lock = threading.Lock()
    running = most = 0
    merge = part_writer.sort_and_merge

    def count(*arguments: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        yield from merge(*arguments)
        with lock:
            running -= 1

    monkeypatch.setattr(part_writer, "sort_and_merge", count)
    persister = world.persister(workers=2)
    for id_ in range(3, 6):
        persister.submit(FakeSegment(id_, *(make_set(f"t{id_}{n}", rank=id_) for n in range(4)), rank=id_))
    assert persister.drain(DEADLINE_S)
    persister.close()
    assert 1 <= most <= 2


def test_stop_between_slices_commits_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop in the middle of a table leaves the segment to the log: no part of it is published."""
    log = world.log_file(3)
    is_in_work, gate = threading.Event(), threading.Event()
    write_part = part_writer.write_part

    def hold(*arguments: Any) -> Part:
        is_in_work.set()
        gate.wait(DEADLINE_S)
        return write_part(*arguments)

    monkeypatch.setattr(part_writer, "write_part", hold)
    persister = world.persister(slice_bytes=100)
    persister.submit(FakeSegment(3, make_set()))
    assert is_in_work.wait(DEADLINE_S)
    closing = threading.Thread(target=persister.close)
    closing.start()
    wait_until(persister._stop.is_set)
    gate.set()
    closing.join(DEADLINE_S)
    assert log.exists()
    assert world.catalog.state.parts == []
    assert not list(world.spool.glob("*.parquet"))


class Crash(BaseException):
    """The moment at which the process is gone."""


def crash_at(world: World, monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], int]:
    """From durable step `number` on nothing happens any more; gives the number of steps that were begun."""
    begun = 0
    lock = threading.Lock()

    def wrap(target: Any, name: str) -> None:
        original = getattr(target, name)

        def step(*arguments: Any, **options: Any) -> Any:
            nonlocal begun
            with lock:
                begun += 1
                is_gone = begun > number
            if is_gone:
                raise Crash
            return original(*arguments, **options)

        monkeypatch.setattr(target, name, step)

    wrap(part_writer, "write_part")
    wrap(durable, "sync_file")
    wrap(durable, "sync_directory")
    wrap(os, "replace")
    wrap(os, "unlink")
    for name in ("commit_persist", "forget_segment"):
        wrap(world.catalog, name)
    wrap(world, "persisted")
    return lambda: begun


CRASH_STEPS = 22
"""Durable steps of the segment below, see the last case."""


@pytest.mark.parametrize("number", range(CRASH_STEPS + 1))
def test_crash_anywhere_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """After a crash at any step every row is in exactly one of log and listed parts, and a restart makes it parts."""
    world = World(tmp_path)
    log = world.log_file(3)
    begun = crash_at(world, monkeypatch, number)
    persister = world.persister(workers=1)
    job_is_over = threading.Event()
    until_done = persister._until_done

    def end(*arguments: Any) -> bool:
        try:
            return until_done(*arguments)
        except Crash:
            job_is_over.set()
            raise

    monkeypatch.setattr(persister, "_until_done", end)
    persister.submit(FakeSegment(3, make_set("cpu"), make_set("mem")))
    wait_until(lambda: job_is_over.is_set() or persister.drain(0) or begun() > number)
    persister.close()
    world.catalog.close()
    monkeypatch.undo()

    again = World(tmp_path)
    state = again.catalog.state
    clean_spool(again.spool, state.parts, is_trusted=True)
    assert sum(pq.read_metadata(again.spool / part_name(part)).num_rows for part in state.parts) in (0, 40)
    is_in_log = log.exists() and 3 not in state.persisted_segments
    assert is_in_log is not bool(state.parts)
    assert {path.name for path in again.spool.iterdir()} == set(map(part_name, state.parts))
    if is_in_log:
        persister = again.persister()
        persister.submit(FakeSegment(3, make_set("cpu"), make_set("mem")))
        assert persister.drain(DEADLINE_S)
        persister.close()
    assert sum(part.rows for part in again.catalog.state.parts) == 40
    again.catalog.close()
    # The last case runs through: no step is missing above.
    assert (begun() > number) is (number < CRASH_STEPS)


def test_stop_ends_a_segment_that_waits_for_its_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop does not wait for an older segment that cannot be written; both stay in the log."""
    write = part_writer.write_part

    def fail_slow(path: Path, table: pa.Table, footer: Any) -> Part:
        if footer.part.table == "slow":
            raise DiskError("write", str(path), OSError(errno.ENOSPC, "No space left on device"))
        return write(path, table, footer)

    monkeypatch.setattr(part_writer, "write_part", fail_slow)
    logs = [world.log_file(3), world.log_file(4)]
    persister = world.persister()
    persister.submit(FakeSegment(3, make_set("slow")))
    persister.submit(FakeSegment(4, make_set("cpu", rank=9), rank=9))
    wait_until(lambda: bool(list(world.spool.glob("*.parquet"))))
    persister.close()
    assert world.shown == {}
    assert all(log.exists() for log in logs)


def test_lack_of_memory_is_no_failure_of_a_table(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often memory is short, rows stay in memory and log until they are parts; none goes to the quarantine."""
    failures = [pa.ArrowMemoryError("malloc failed")] * (persist.TABLE_FAILURES_MAX + 1)
    write = part_writer.write_part

    def short_of_memory(path: Path, table: pa.Table, footer: Any) -> Part:
        if failures:
            raise failures.pop()
        return write(path, table, footer)

    monkeypatch.setattr(part_writer, "write_part", short_of_memory)
    world.log_file(3)
    persister = world.persister()
    persister.submit(FakeSegment(3, make_set()))
    assert persister.drain(DEADLINE_S)
    assert sum(part.rows for part in world.catalog.state.parts) == 20
    assert not world.quarantine.exists() or not list(world.quarantine.iterdir())


def test_busy_worker_must_get_on_and_an_idle_one_may_rest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog's station has a deadline while a slice is written, and none before and after."""
    now_s = [0.0]
    station = Station("worker", 10.0, clock=lambda: now_s[0])
    seen = []
    write_part = part_writer.write_part

    def slow(*arguments: Any) -> Part:
        now_s[0] += 9.0
        seen.append(station.is_fresh)
        now_s[0] += 2.0
        seen.append(station.is_fresh)
        return write_part(*arguments)

    monkeypatch.setattr(part_writer, "write_part", slow)
    persister = world.persister(stations=[station])
    now_s[0] = 1_000.0
    assert station.is_fresh
    persister.submit(FakeSegment(1, make_set()))
    assert persister.drain(DEADLINE_S)
    assert seen == [True, False] * (len(seen) // 2)  # one pair a slice
    now_s[0] += 1_000.0
    assert station.is_fresh
