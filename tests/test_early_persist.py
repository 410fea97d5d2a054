"""Set-asides end to end: rows of the open segment become parts early, and are there once at every moment and crash."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import threading
from pathlib import Path

import pytest
from core_harness import Core
from row_model import DEADLINE_S, Model, columns, engine_of

from edge_appliance import durable, part_writer
from edge_appliance.core.columns import OPEN_RANK
from edge_appliance.core.parts import complete_sets
from edge_appliance.core.wal_frame import FrameType

A, B = ("edge", "a"), ("edge", "b")
SEED = int(os.environ.get("EDGE_CRASH_SEED") or random.SystemRandom().randrange(2**32))

STORIES = int(os.environ.get("EDGE_STORIES") or 2)
"""Random stories to be told; `make stories` tells many more."""

PERSISTS = int(os.environ.get("EDGE_PERSISTS") or 40)


@pytest.fixture
def make_core(tmp_path):
    """Builds cores that are left at the end of the test."""
    cores = []

    def make(root=None, **settings) -> Core:
        cores.append(Core(root or tmp_path / "data", **{"persists": True, "workers": 2, **settings}))
        return cores[-1]

    yield make
    for core in cores:
        core.abandon()


def drained(core: Core) -> Core:
    assert core.persister.drain(DEADLINE_S)
    return core


def fill(core: Core, model: Model, table="a", count=100) -> None:
    """Rows with rising times from two hosts."""
    for start in range(0, count, 10):
        model.write(core, *((table, f"h{n % 2}", n * 1000, {"v": n}) for n in range(start, start + 10)))


def test_set_aside_moves_the_oldest_rows_to_parts(make_core, tmp_path):
    """About nine of ten rows, the oldest, are in parts with the rank of their PERSIST_BEGIN; the rest is in memory."""
    core, model = make_core(), Model()
    fill(core, model)
    before = core.buffer.size_bytes
    core.ingest.set_aside(A)
    drained(core)
    assert sum(part.rows for part in core.buffer.parts()) == 90
    assert {part.rank_lo for part in core.buffer.parts()} == {core.wal.next_sequence - 1}
    assert sorted(row[2] for row in core.rows()) == [n * 1000 for n in range(90, 100)]
    assert core.buffer.state.set_asides == ()
    assert core.buffer.size_bytes < before
    assert core.metrics.set_asides.value() == 1
    model.check(engine_of(core, tmp_path / "sql"))


def test_begin_is_durable_before_the_work_and_end_follows_with_a_group(make_core):
    """The workers get a set-aside after the sync of its PERSIST_BEGIN; PERSIST_END goes with the next group."""
    core, model = make_core(persists=False), Model()
    fill(core, model)
    durable_at = []
    core.ingest._on_set_aside = lambda aside: durable_at.append((aside.rank, core.wal.durable_sequence))
    core.ingest.set_aside(A)
    ((rank, durable_sequence),) = durable_at
    assert durable_sequence == rank
    (aside,) = core.buffer.state.set_asides
    core.persister.submit_set_aside(aside)
    drained(core)
    model.write(core, ("a", "h0", 5, {"v": 1}))
    core.wal.close()
    (file,) = core.wal.files()
    types = [frame.type for frame in core.wal.read(file, None)]
    assert types[-3:] == [FrameType.PERSIST_BEGIN, FrameType.PERSIST_END, FrameType.GROUP]


def test_later_write_of_a_key_that_is_set_aside_wins(make_core, tmp_path):
    """Rows that come behind the PERSIST_BEGIN rank above it, also when their times lie before the split."""
    core, model = make_core(), Model()
    engine = engine_of(core, tmp_path / "sql")
    fill(core, model)
    core.ingest.set_aside(A)
    model.write(core, ("a", "h1", 1000, {"v": -1}), ("a", "h0", 2000, {"w": 7}))
    model.check(engine)
    drained(core)
    model.check(engine)
    core.ingest.set_aside(A)
    model.write(core, ("a", "h1", 1000, {"v": -2}))
    drained(core)
    model.check(engine)
    core.ingest.cut()
    drained(core)
    model.check(engine)
    assert core.rows() == []


def test_table_of_one_time_is_set_aside_whole(make_core, tmp_path):
    """Equal times are never parted; the segment without rows is still cut by age, and its log file goes."""
    core, model = make_core(), Model()
    for n in range(50):
        model.write(core, ("a", f"h{n}", 77, {"v": n}))
    core.ingest.set_aside(A)
    drained(core)
    assert core.rows() == []
    segment = core.buffer.state.open
    assert not segment.is_empty
    core.ingest.cut_if_due(segment.opened_s + 3601)
    drained(core)
    assert [path.name for path in core.paths.wal.iterdir()] == [f"{core.wal.segment_id:020}.wal"]
    assert core.catalog.state.set_asides == {}
    model.check(engine_of(core, tmp_path / "sql"))


def test_rest_never_has_the_rank_of_a_set_aside(make_core, tmp_path):
    """A cut directly behind a PERSIST_BEGIN, at run time or by a crash: parts of both have names of their own."""
    core, model = make_core(), Model()
    fill(core, model)
    core.ingest.set_aside(A)
    begin = core.wal.next_sequence - 1
    core.ingest.cut()
    assert core.sealed[-1].rank == begin + 1
    drained(core)
    fill(core, model, "b")
    core.ingest.set_aside(B)
    begin = core.wal.next_sequence - 1
    core = core.restart()
    drained(core)
    assert {part.rank_lo for part in core.buffer.parts() if part.table == "b"} == {begin, begin + 1}
    assert core.wal.first_sequence > begin + 1
    assert len(complete_sets(core.buffer.parts())) == 4
    model.check(engine_of(core, tmp_path / "sql"))


def test_segment_waits_for_what_is_set_aside_of_it(make_core, monkeypatch, tmp_path):
    """A segment that is sealed while rows of it are being set aside is written without them, after them."""
    core, model = make_core(), Model()
    gate, real = threading.Event(), part_writer.write_part
    monkeypatch.setattr(part_writer, "write_part", lambda *a: (gate.wait(DEADLINE_S), real(*a))[1])
    engine = engine_of(core, tmp_path / "sql")
    fill(core, model)
    core.ingest.set_aside(A)
    model.write(core, ("a", "h1", 1000, {"v": -1}))
    core.ingest.cut()
    fill(core, model, "b", 20)
    model.check(engine)
    gate.set()
    drained(core)
    model.check(engine)
    ranks = sorted((part.rank_lo, part.rows) for part in core.buffer.parts())
    assert [rows for _, rows in ranks] == [90, 11]


def test_set_aside_is_committed_behind_older_segments(make_core, monkeypatch, tmp_path):
    """Its parts rank above rows of an older segment in memory, which readers let win: so it waits for that one."""
    core, model = make_core(), Model()
    gate, written, real = threading.Event(), threading.Event(), part_writer.PartWriter.publish

    def publish(self, parts):
        real(self, parts)
        if parts[0].table == "a":
            written.set()

    merge = part_writer.sort_and_merge
    monkeypatch.setattr(part_writer.PartWriter, "publish", publish)
    monkeypatch.setattr(
        part_writer, "sort_and_merge", lambda *a: (a[0].table == "b" and gate.wait(DEADLINE_S), merge(*a))[1]
    )
    model.write(core, ("b", "h", 1, {"v": 1}), ("a", "h", 1, {"v": 1}))
    core.ingest.cut()
    fill(core, model)
    core.ingest.set_aside(A)
    assert written.wait(DEADLINE_S)
    assert not core.persister.drain_set_asides(0.3)
    assert core.buffer.parts() == []
    model.check(engine_of(core, tmp_path / "sql"))
    gate.set()
    drained(core)
    model.check(engine_of(core, tmp_path / "sql2"))


def test_failing_set_aside_keeps_its_rows_and_blocks_no_reader(make_core, monkeypatch, tmp_path):
    """While the disk takes no parts the rows stay in memory, once; afterwards they are parts."""
    core, model = make_core(), Model()
    is_full, real = [True], part_writer.write_part

    def write(path, *arguments):
        if is_full:
            raise durable.DiskError("write", str(path), OSError(28, "No space left on device"))
        return real(path, *arguments)

    monkeypatch.setattr(part_writer, "write_part", write)
    engine = engine_of(core, tmp_path / "sql")
    fill(core, model)
    core.ingest.set_aside(A)
    core.ingest.cut()
    fill(core, model, "b")
    model.check(engine)
    is_full.clear()
    drained(core)
    model.check(engine)


def test_begin_that_cannot_be_written_costs_nothing(make_core, monkeypatch, tmp_path):
    """After a failed sync of a PERSIST_BEGIN the log goes on in a new file, and nothing was set aside."""
    core, model = make_core(), Model()
    fill(core, model)
    real, failures = durable.sync_data, [1]

    def fail_once(fd, path):
        if failures:
            failures.pop()
            raise durable.DiskError("fdatasync", path, OSError(5, "Input/output error"))
        real(fd, path)

    monkeypatch.setattr(durable, "sync_data", fail_once)
    core.ingest.set_aside(A)
    assert core.asides == []
    model.write(core, ("a", "h0", 2000, {"v": -1}))
    model.check(engine_of(core, tmp_path / "sql"))
    core = core.restart()
    drained(core)
    model.check(engine_of(core, tmp_path / "sql2"))


def test_group_that_fails_behind_a_begin_leaves_its_rank_alone(make_core, monkeypatch, tmp_path):
    """A PERSIST_BEGIN is the last durable record of its file: the rest of the segment ranks above it all the same."""
    core, model = make_core(), Model()
    fill(core, model)
    core.ingest.set_aside(A)
    begin = core.wal.next_sequence - 1
    real, failures = durable.sync_data, [1]

    def fail_once(fd, path):
        if failures:
            failures.pop()
            raise durable.DiskError("fdatasync", path, OSError(5, "Input/output error"))
        real(fd, path)

    monkeypatch.setattr(durable, "sync_data", fail_once)
    model.write(core, ("a", "h0", 99_000, {"v": -1}))
    assert core.sealed[-1].rank == begin + 1
    drained(core)
    model.check(engine_of(core, tmp_path / "sql"))
    core = core.restart()
    drained(core)
    model.check(engine_of(core, tmp_path / "sql2"))


# Restart


def test_begin_without_parts_is_persisted_under_its_own_rank(make_core, tmp_path):
    """After a kill behind the PERSIST_BEGIN its rows are a set of their own again, and become parts at the start."""
    core, model = make_core(persists=False), Model()
    fill(core, model)
    core.ingest.set_aside(A)
    begin = core.wal.next_sequence - 1
    model.write(core, ("a", "h0", 2000, {"v": -5}))
    core = core.restart()
    assert [aside.rank for aside in core.buffer.state.set_asides] == [begin]
    model.check(engine_of(core, tmp_path / "sql"))
    core = core.restart(persists=True)
    assert core.persister.drain_set_asides(DEADLINE_S)
    assert begin in {part.rank_lo for part in core.buffer.parts()}
    model.check(engine_of(core, tmp_path / "sql2"))
    drained(core)
    model.check(engine_of(core, tmp_path / "sql3"))


def test_set_aside_that_is_in_parts_is_left_out_at_replay(make_core, tmp_path):
    """Rows of a noted set-aside are not in memory again, and the rows around them are."""
    core, model = make_core(), Model()
    fill(core, model)
    core.ingest.set_aside(A)
    drained(core)
    model.write(core, ("a", "h0", 2000, {"v": -5}))
    core = core.restart(persists=False)
    assert core.buffer.state.set_asides == ()
    assert sorted(row[2] for row in core.rows()) == [2000, *(n * 1000 for n in range(90, 100))]
    model.check(engine_of(core, tmp_path / "sql"))


def test_lost_note_is_made_good_by_the_parts(make_core, tmp_path):
    """A catalog that was rebuilt from footers knows no set-asides; the cover of their parts leaves the rows out."""
    core, model = make_core(), Model()
    fill(core, model)
    core.ingest.set_aside(A)
    drained(core)
    model.write(core, ("a", "h0", 2000, {"v": -5}))
    core.catalog._thread.submit(core.catalog._connection.execute, "DELETE FROM set_asides").result()
    core = core.restart(persists=False)
    assert core.catalog.state.set_asides == {}
    assert sorted(row[2] for row in core.rows()) == [2000, *(n * 1000 for n in range(90, 100))]
    model.check(engine_of(core, tmp_path / "sql"))


def test_poison_table_that_was_set_aside_does_not_come_back(make_core, monkeypatch, tmp_path):
    """Rows that went to the quarantine are not replayed: the note counts, not the parts."""
    core, model = make_core(), Model()
    fill(core, model)
    real = part_writer.sort_and_merge

    def poison(row_set, *more):
        if row_set.table == "a":
            raise ValueError("poison")
        return real(row_set, *more)

    monkeypatch.setattr(part_writer, "sort_and_merge", poison)
    core.ingest.set_aside(A)
    drained(core)
    (kept,) = core.paths.quarantine.glob("*.lp")
    assert kept.read_text().count("\n") == 91
    core = core.restart(persists=False)
    assert len(core.rows()) == 10


class Snapshots:
    """Copies of the data directory behind every durable step, as a kill there would leave them."""

    def __init__(self, core: Core, directory: Path, monkeypatch) -> None:
        self._core = core
        self._directory = directory
        self._lock = threading.Lock()
        self.taken: list[tuple[str, Path]] = []
        self._take("start")
        self._wrap(monkeypatch, core.wal, "append")
        self._wrap(monkeypatch, core.wal, "sync")
        self._wrap(monkeypatch, core.wal, "cut")
        self._wrap(monkeypatch, core.wal, "drop")
        for name in ("commit_set_aside", "commit_persist", "forget_segment"):
            self._wrap(monkeypatch, core.catalog, name, waits=True)
        self._wrap(monkeypatch, core.buffer, "set_aside_persisted")
        self._wrap(monkeypatch, core.buffer, "persisted")
        self._wrap(monkeypatch, part_writer, "write_part")
        self._wrap(monkeypatch, durable, "sync_file")
        self._wrap(monkeypatch, durable, "sync_directory")
        self._wrap(monkeypatch, os, "replace")

    def _wrap(self, monkeypatch, target, name, *, waits=False) -> None:
        real = getattr(target, name)

        def step(*arguments, **options):
            result = real(*arguments, **options)
            if waits:
                result.result(DEADLINE_S)
            self._take(name)
            return result

        monkeypatch.setattr(target, name, step)

    def _take(self, label: str) -> None:
        with self._lock:
            path = self._directory / f"{len(self.taken):03}"
            shutil.copytree(self._core.root, path, ignore=shutil.ignore_patterns("*.copy*", "view"))
            self.taken.append((label, path))


@pytest.mark.slow
def test_kill_at_every_step_of_a_set_aside_and_of_a_persist(make_core, tmp_path, monkeypatch):
    """Whatever step is the last one, each row is there once after the restart, and after everything is persisted."""
    core, model = make_core(), Model()
    fill(core, model)
    fill(core, model, "b", 20)
    model.write(core, ("a", "h1", 1000, {"v": -1}), ("a", "h0", 3000, {"w": 7}))
    with monkeypatch.context() as patches:
        snapshots = Snapshots(core, tmp_path / "snapshots", patches)
        core.ingest.set_aside(A)
        assert core.persister.drain_set_asides(DEADLINE_S)
        core.ingest.cut()
        drained(core)
    labels = [label for label, _ in snapshots.taken]
    assert {"commit_set_aside", "set_aside_persisted", "commit_persist", "persisted", "drop", "forget_segment"} <= set(
        labels
    )
    assert len(labels) > 25
    for number, (label, path) in enumerate(snapshots.taken):
        print(number, label)
        again = make_core(path, persists=False)
        model.check(engine_of(again, tmp_path / f"sql{number}"), has_all_shapes=number % 3 == 0)
        if number % 3 == 0:
            own = model.copy()
            again = again.restart(persists=True)
            own.write(again, ("a", "h1", 1000, {"v": -3}))
            again.ingest.cut()
            drained(again)
            own.check(engine_of(again, tmp_path / f"sql{number}b"), has_all_shapes=False)
            assert again.rows() == []
        again.abandon()


# Any order of things


@pytest.mark.slow
@pytest.mark.parametrize("number", range(STORIES))
def test_any_order_of_writes_set_asides_cuts_and_restarts(make_core, tmp_path, number):
    """After every step of any story, kills included, each query shape shows each key once with its last values."""
    print(f"seed {SEED}, run {number}")
    choose = random.Random(f"{SEED}/{number}")
    core, model = make_core(), Model()
    engines = itertools.count()
    engine = engine_of(core, tmp_path / "sql")
    model.write(core, ("a", "x", 0, {"v": 1, "w": 1}), ("b", "x", 0, {"v": 1, "w": 1}))
    for _ in range(40):
        step = choose.choices(["write", "set aside", "cut", "drain", "restart", "stop persists"], [60, 14, 6, 8, 5, 3])[
            0
        ]
        if step == "write":
            lines = [
                (
                    choose.choice("ab"),
                    choose.choice("xy"),
                    choose.randrange(40),
                    {choose.choice("vw"): choose.randrange(99)},
                )
                for _ in range(choose.randrange(1, 12))
            ]
            model.write(core, *lines)
        elif step == "set aside":
            state = core.buffer.state
            busy = {aside.key for aside in state.set_asides}
            tables = [key for key, buffer in state.open.tables.items() if key not in busy and buffer.size_bytes]
            if tables:
                core.ingest.set_aside(choose.choice(tables))
        elif step == "cut" and not core.buffer.state.open.is_empty:
            core.ingest.cut()
        elif step == "drain" and core.persists:
            drained(core)
        elif step in {"restart", "stop persists"}:
            # A limit that no log fits into makes replay persist what it has read so far.
            limit = choose.choice([2**30, 2_500])
            core = core.restart(persists=step == "restart", buffer_limit_bytes=limit)
            engine = engine_of(core, tmp_path / f"sql{next(engines)}")
        model.check(engine, has_all_shapes=choose.random() < 0.2)
    core = core.restart(persists=True)
    if not core.buffer.state.open.is_empty:
        core.ingest.cut()
    drained(core)
    model.check(engine_of(core, tmp_path / "last"))
    assert core.rows() == []
    assert core.buffer.state.open.rank == OPEN_RANK
    assert core.buffer.size_bytes == 0, "all that was reserved is given back"
    core.abandon()


class Watched:
    """One table that grows by groups of ten rows, and a loop of queries that looks at it."""

    def __init__(self, core: Core, engine, table: str) -> None:
        self.table = table
        self.queries = 0
        self.wrong = []
        self._core = core
        self._engine = engine
        self._rows = 0
        self._shown = 0
        self._is_over = threading.Event()
        self._asked = threading.Condition()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self):
        self.write()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join(DEADLINE_S)

    def write(self) -> None:
        """Write a group. Times go back and forth, so that splits go through the middle of chunks."""
        first, self._rows = self._rows, self._rows + 10
        times = ((n * 7_919 % 10_007 + n % 3 * 10**6, n) for n in range(first, first + 10))
        self._core.write("\n".join(f"{self.table} id={n}i {time_ns}" for time_ns, n in times).encode())
        self._shown += 10

    def wait_for_query(self) -> None:
        """Wait until one more query has ended."""
        with self._asked:
            seen = self.queries
            assert self._asked.wait_for(lambda: self.queries > seen or not self._thread.is_alive(), DEADLINE_S)

    def _ask(self) -> None:
        while not self._is_over.is_set():
            low = self._shown
            answer = columns(self._engine, f"SELECT count(*), count(DISTINCT id), sum(id) FROM {self.table}")
            (rows,), (ids,), (total,) = answer
            high = self._rows
            if not (rows == ids and rows % 10 == 0 and low <= rows <= high and total == rows * (rows - 1) // 2):
                self.wrong.append((low, rows, ids, total, high))
            with self._asked:
                self.queries += 1
                self._asked.notify_all()


@pytest.mark.slow
def test_queries_see_each_row_once_through_many_persists(make_core, tmp_path):
    """A loop of queries beside set-asides, cuts and persists sees whole groups, all of them, and no row twice."""
    core = make_core()
    engine = engine_of(core, tmp_path / "sql")
    done = queries = 0
    for number in itertools.count():
        with Watched(core, engine, f"t{number}") as watched:
            for persist in range(min(60, PERSISTS - done)):
                for _ in range(3):
                    watched.write()
                if persist % 4 == 3:
                    core.ingest.cut()
                else:
                    core.ingest.set_aside(("edge", watched.table))
                if persist % 2:
                    watched.wait_for_query()
                assert core.persister.drain_set_asides(DEADLINE_S)
                done += 1
            drained(core)
        assert watched.wrong == []
        queries += watched.queries
        if done == PERSISTS:
            break
    assert queries >= PERSISTS // 2
    print(f"{done} persists, {queries} queries, {len(core.buffer.parts())} parts")
