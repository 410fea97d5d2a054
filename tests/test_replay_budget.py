"""Replay within the memory budget: a log of any size gets on, with progress kept over kills, and nothing twice."""

from __future__ import annotations

import random

import pytest
from core_harness import Core
from row_model import DEADLINE_S, Model, engine_of

from edge_appliance import backlog
from edge_appliance.buffer import Buffer

A = ("edge", "a")
GROUPS, LINES = 60, 80
LIMIT = 16_000
"""A tenth of what the rows of the tests take."""


@pytest.fixture
def make_core(tmp_path):
    """Builds cores that are left at the end of the test."""
    cores = []

    def make(**settings) -> Core:
        cores.append(Core(tmp_path / "data", **settings))
        return cores[-1]

    yield make
    for core in cores:
        core.abandon()


@pytest.fixture
def sizes(monkeypatch):
    """Size of the buffer behind each group that is published."""
    seen = []
    real = Buffer.publish

    def publish(self):
        grown = real(self)
        seen.append(self.size_bytes)
        return grown

    monkeypatch.setattr(Buffer, "publish", publish)
    return seen


def load(core: Core, model: Model, groups=GROUPS, seed=7) -> None:
    """Rows in random order of time, with keys that are written again."""
    choose = random.Random(seed)
    for _ in range(groups):
        lines = [
            ("ab"[n % 5 == 0], f"h{n % 2}", choose.randrange(2_000), {"v": choose.randrange(99), "w": n})
            for n in range(LINES)
        ]
        model.write(core, *lines)


def test_log_of_ten_times_the_limit_is_replayed_within_it(make_core, sizes, tmp_path):
    """One file holds far more rows than memory may: at no time it passes the limit by more than one group."""
    core, model = make_core(), Model()
    load(core, model)
    assert core.buffer.size_bytes > 8 * LIMIT
    group = core.buffer.size_bytes // GROUPS
    sizes.clear()
    core = core.restart(buffer_limit_bytes=LIMIT)
    assert len(sizes) == GROUPS
    assert max(sizes) <= LIMIT + 2 * group
    assert core.catalog.state.prefixes
    model.check(engine_of(core, tmp_path / "sql"))
    core = core.restart(persists=True)
    assert core.persister.drain(DEADLINE_S)
    assert core.rows() == []
    assert core.catalog.state.prefixes == {}
    model.check(engine_of(core, tmp_path / "sql2"))


def test_log_that_fits_is_replayed_without_a_part(make_core, tmp_path):
    """Nothing is persisted during replay unless the budget demands it."""
    core, model = make_core(), Model()
    load(core, model, 5)
    core = core.restart()
    assert core.buffer.parts() == []
    model.check(engine_of(core, tmp_path / "sql"))


class Killed(BaseException):
    """Ends a replay where a kill would."""


def kill_at(monkeypatch, number: int, target, name: str) -> None:
    """Let the process end behind the `number`-th call of a function."""
    real, calls = getattr(target, name), []

    def call(*arguments, **options):
        result = real(*arguments, **options)
        calls.append(1)
        if len(calls) == number:
            raise Killed
        return result

    monkeypatch.setattr(target, name, call)


def test_kills_in_the_middle_never_start_from_zero(make_core, monkeypatch, tmp_path):
    """Each start goes on behind what the last one put into parts, so that any number of kills ends."""
    core, model = make_core(), Model()
    load(core, model)
    core.abandon()
    before, starts, is_killed = -1, 0, True
    while is_killed:
        starts += 1
        core = Core.__new__(Core)
        with monkeypatch.context() as patches:
            # Each start gets to its second look at a full buffer.
            kill_at(patches, 2, backlog.Backlog, "wait_until")
            try:
                core.__init__(tmp_path / "data", buffer_limit_bytes=LIMIT)
                is_killed = False
            except Killed:
                core.abandon()
        if is_killed:
            core = make_core(buffer_limit_bytes=2**30)
            model.check(engine_of(core, tmp_path / f"sql{starts}"), has_all_shapes=False)
            is_killed = bool(core.catalog.state.prefixes)
            progress = next(iter(core.catalog.state.prefixes.values()), GROUPS + 1)
            assert progress > before
            before = progress
        else:
            model.check(engine_of(core, tmp_path / f"sql{starts}"))
        core.abandon()
    assert starts > 3


def test_rows_set_aside_are_not_doubled_by_a_prefix(make_core, tmp_path):
    """Rows in parts of a set-aside whose record lies ahead stay out of the prefix; those in work keep their rank."""
    core, model = make_core(persists=True), Model()
    load(core, model, 30)
    core.ingest.set_aside(A)
    assert core.persister.drain(DEADLINE_S)
    (done,) = core.catalog.state.set_asides.values()
    parts = core.buffer.parts()
    core.persists = False
    load(core, model, 20, seed=8)
    core.ingest.set_aside(A)
    begin = core.wal.next_sequence - 1
    load(core, model, 10, seed=9)
    core = core.restart(buffer_limit_bytes=LIMIT)
    later = [part for part in core.buffer.parts() if part not in parts and part.rank_hi < done.sequence]
    assert later, "there were prefixes ahead of the set-aside"
    assert all(part.min_time_ns > done.time_ns for part in later if part.table == "a")
    model.check(engine_of(core, tmp_path / "sql"))
    core = core.restart(persists=True)
    assert core.persister.drain(DEADLINE_S)
    assert begin in {part.rank_lo for part in core.buffer.parts()} | {done.sequence, begin}
    model.check(engine_of(core, tmp_path / "sql2"))


def test_prefix_that_reaches_the_end_lets_the_file_go(make_core, tmp_path):
    """A file whose last group filled the buffer has nothing left; it goes when its prefix is in parts, not before."""
    core, model = make_core(), Model()
    load(core, model, 12)
    core = core.restart(buffer_limit_bytes=core.buffer.size_bytes, persists=True)
    assert core.persister.drain(DEADLINE_S)
    model.check(engine_of(core, tmp_path / "sql"))
    assert core.rows() == []
    assert [path.name for path in core.paths.wal.iterdir()] == [f"{core.wal.segment_id:020}.wal"]
    core = core.restart()
    model.check(engine_of(core, tmp_path / "sql2"))


def test_redelivery_is_known_behind_a_prefix(make_core):
    """Keys of deliveries whose rows went with a prefix are known after the next restart, too."""
    core, model = make_core(), Model()
    load(core, model)
    core.commit(core.delivery(b"a,host=x v=1,w=1", packet_id=9))
    load(core, model, 20, seed=9)
    core = core.restart(buffer_limit_bytes=LIMIT)
    core = core.restart(buffer_limit_bytes=2**30)
    rows = len(core.rows())
    core.commit(core.delivery(b"a,host=x v=1,w=1", packet_id=9, is_dup=True))
    assert core.acked == [9]
    assert len(core.rows()) == rows
