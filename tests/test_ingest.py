"""Group commit: durable, then visible, then acknowledged; and what happens when the disk refuses."""

import base64
import errno
import gc
import os
import threading
import time
from pathlib import Path

import pytest
from core_harness import DEADLINE_S, Core

from edge_appliance import durable
from edge_appliance.core.delivery import LineError, Origin, Reason
from edge_appliance.core.segment import TableBuffer
from edge_appliance.dead_letters import read_dead_letters
from edge_appliance.errors import DiskError

THREADS: list[tuple[Core, threading.Thread]] = []


@pytest.fixture
def make_core(tmp_path):
    """Builds a core; whatever a test leaves running is stopped, so that its own failure is the one that is shown."""
    cores = []

    def make(**settings) -> Core:
        cores.append(Core(tmp_path, **settings))
        return cores[-1]

    yield make
    while THREADS:
        running, thread = THREADS.pop()
        running.ingest.stop()
        thread.join(DEADLINE_S)
    for core in cores:
        core.abandon()


@pytest.fixture
def core(make_core):
    return make_core()


class FailingSync:
    """Stands in for os.fdatasync: fails while `failures` last, and notes every call."""

    def __init__(self, monkeypatch, failures: int) -> None:
        self.failures = failures
        self.calls: list[str] = []
        self._real = os.fdatasync
        monkeypatch.setattr(durable.os, "fdatasync", self)

    def __call__(self, fd: int) -> None:
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        self.calls.append(path)
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._real(fd)


def wait_until(condition) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def run(core: Core) -> threading.Thread:
    thread = threading.Thread(target=core.ingest.run, daemon=True)
    thread.start()
    THREADS.append((core, thread))
    return thread


def test_group_is_synced_then_visible_then_acknowledged(core, monkeypatch):
    """At the sync nothing is visible yet; at the ack everything is."""
    events = []
    sync, post = core.wal.sync, core.committed.append
    monkeypatch.setattr(core.wal, "sync", lambda: (events.append(("sync", len(core.rows()))), sync())[1])
    core.ingest._on_committed = lambda c: (events.append(("ack", len(core.rows()))), post(c))
    core.write(b"p v=1 1\np v=2 2", b"q v=3 3")
    assert events == [("sync", 0), ("ack", 3)]
    assert core.acked == [1, 2]


def test_one_sync_for_a_group(core, monkeypatch):
    """A thousand messages of a group cost one fdatasync."""
    sync = FailingSync(monkeypatch, 0)
    core.write(*(b"p v=%d %d" % (n, n) for n in range(1000)))
    assert len(sync.calls) == 1
    assert len(core.acked) == 1000


def test_group_without_rows_writes_no_log_and_is_acknowledged(core):
    """Comments, blanks and rejected lines need no durability of ours, and must not come back for ever."""
    core.write(b"# note\n\n", b"", b"broken")
    assert core.acked == [1, 2, 3]
    assert core.wal.durable_sequence == core.wal.first_sequence - 1


def test_rejected_lines_are_kept_with_topic_and_reason(core):
    """A bad line is in the dead letters before its delivery is acknowledged, and costs no good one."""
    core.write(b"p v=1 1\np v=\np v=2 2")
    (letter,) = read_dead_letters(core.paths.dead_letters)
    assert letter["topic"] == "devices/d1/lp"
    assert letter["reason"] == "missing_field_value"
    assert letter["line"] == 2
    assert len(core.rows()) == 2
    assert core.metrics.rejected.value("missing_field_value") == 1


def test_dead_letters_on_a_full_disk_cost_no_good_line(core, monkeypatch):
    """When a reject cannot be kept it is counted, and the group goes on."""

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("edge_appliance.dead_letters.os.write", fail)
    monkeypatch.setattr("edge_appliance.dead_letters.os.open", fail)
    core.write(b"p v=1 1\np v=\n")
    assert core.acked == [1]
    assert len(core.rows()) == 1


def test_results_of_http_writes_name_rows_and_errors(core):
    """A waiting client learns what was stored and what was not."""
    (result,) = core.write_http(b"p v=1 1\np v=x 2")
    assert (result.rows, result.refused) == (1, "")
    assert [(e.line, e.reason) for e in result.errors] == [(2, Reason.BAD_FIELD_VALUE)]


def test_transport_rejects_are_kept_and_acknowledged(core):
    """A delivery without a route takes its place in the order of acks."""
    reject = LineError(0, 0, Reason.NO_ROUTE, "no route", b"x")
    core.commit(core.delivery(b"x", packet_id=7, reject=reject), core.delivery(b"p v=1 1", packet_id=8))
    assert core.acked == [7, 8]
    assert core.metrics.rejected.value("no_route") == 1


def test_redelivered_message_is_not_stored_again_but_acknowledged(core):
    """A line without a time would get a second arrival time: the log already holds it."""
    core.commit(core.delivery(b"p v=1", packet_id=5))
    core.commit(core.delivery(b"p v=1", packet_id=5, is_dup=True))
    assert len(core.rows()) == 1
    assert core.acked == [5, 5]
    assert core.metrics.redelivered.value() == 1


def test_redelivery_is_known_after_a_restart(core):
    """The log keeps the keys: a kill between sync and ack doubles nothing."""
    core.commit(core.delivery(b"p v=1", packet_id=5), core.delivery(b"p v=2", packet_id=6))
    again = core.restart()
    again.commit(again.delivery(b"p v=1", packet_id=5, is_dup=True), again.delivery(b"p v=2", packet_id=6, is_dup=True))
    assert len(again.rows()) == 2
    assert again.acked == [5, 6]
    again.abandon()


def test_redelivery_is_known_after_the_log_file_has_gone(make_core, tmp_path):
    """A persisted segment's file takes its keys to the catalog: cut, persist and two restarts double nothing."""
    core = make_core(persists=True)
    core.commit(core.delivery(b"p v=1", packet_id=5))
    core.ingest.cut()
    assert core.persister.drain(DEADLINE_S)
    again = core.restart().restart()
    again.commit(again.delivery(b"p v=1", packet_id=5, is_dup=True))
    assert again.rows() == []
    assert again.acked == [5]
    again.abandon()


@pytest.mark.parametrize(
    ("payload", "packet_id", "is_dup"),
    [(b"p v=2", 5, True), (b"p v=1", 6, True), (b"p v=1", 5, False)],
    ids=["other payload", "other packet id", "not marked as duplicate"],
)
def test_only_a_true_redelivery_is_left_out(core, payload, packet_id, is_dup):
    """DUP is a hint: whatever differs from what was logged is stored."""
    core.commit(core.delivery(b"p v=1", packet_id=5))
    core.commit(core.delivery(payload, packet_id=packet_id, is_dup=is_dup))
    assert len(core.rows()) == 2


def test_failed_sync_is_never_repeated_on_that_file_and_loses_nothing(core, monkeypatch):
    """The group goes to a new file under its own sequence, is acknowledged when durable there, and replays once."""
    core.write(b"p,a=1 v=1 1")
    first = core.wal.segment_id
    sync = FailingSync(monkeypatch, 1)
    core.write(b"p,a=2 v=2,w=3i 2", b"q v=t 3")
    assert core.acked == [1, 1, 2]
    assert core.wal.segment_id == first + 1
    assert len(sync.calls) == 2
    assert sync.calls[0] != sync.calls[1]
    rows = core.rows()
    assert [row[2] for row in rows] == [1, 2, 3]
    monkeypatch.undo()
    again = core.restart()
    assert again.rows() == rows
    again.abandon()


def test_failed_write_of_a_full_disk_goes_the_same_way(core, monkeypatch):
    """A short write and ENOSPC end in a new file or in read-only, never in an ack for what is not there."""
    core.write(b"p v=1 1")
    real, failures = os.pwrite, [1]

    def short(fd, data, offset):
        if failures and ".wal" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            failures.pop()
            real(fd, data[:100], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data, offset)

    monkeypatch.setattr("edge_appliance.wal.os.pwrite", short)
    core.write(b"p v=2 2")
    assert core.acked == [1, 1]
    monkeypatch.undo()
    again = core.restart()
    assert [row[2] for row in again.rows()] == [1, 2]
    again.abandon()


def test_disk_that_keeps_failing_holds_acks_and_heals_without_a_restart(core, monkeypatch):
    """READ_ONLY: nothing acknowledged, queries go on, HTTP is refused, and the first file that syncs ends it."""
    monkeypatch.setattr("edge_appliance.ingest.RETRY_S", (0.01,))
    core.write(b"p v=1 1")
    sync = FailingSync(monkeypatch, 10_000)
    thread = run(core)
    results = []
    core.inbox.put([core.delivery(b"p v=2 2", packet_id=9), core.delivery(b"p v=3 3", on_done=results.append)])
    wait_until(lambda: any(committed.results for committed in core.committed))
    for committed in core.committed:
        for on_done, result in committed.results:
            on_done(result)
    assert results[0].refused
    assert 9 not in core.acked
    assert [row[2] for row in core.rows()] == [1]
    assert "log" in core.health.degraded
    sync.failures = 0
    wait_until(lambda: 9 in core.acked)
    assert [row[2] for row in core.rows()] == [1, 2]
    assert core.health.held == ""
    core.ingest.stop()
    thread.join(DEADLINE_S)


def test_group_that_was_refused_whole_leaves_nothing_in_the_log(core, monkeypatch):
    """A group of HTTP writes on a failing disk: refused, not logged as an empty record, and the next one is stored."""
    monkeypatch.setattr("edge_appliance.ingest.RETRY_S", (0.0,))
    FailingSync(monkeypatch, 2)
    (result,) = core.write_http(b"p v=1 1")
    assert result.refused
    assert core.wal.next_sequence == core.wal.first_sequence
    assert core.health.held == ""
    assert core.write_http(b"p v=2 2")[0].rows == 1
    again = core.restart()
    assert [row[2] for row in again.rows()] == [2]
    again.abandon()


def test_stop_on_a_failing_disk_ends_the_thread_without_an_ack(core, monkeypatch):
    """A stop does not wait for a disk that never comes back; the broker still has the message."""
    FailingSync(monkeypatch, 10_000)
    thread = run(core)
    core.inbox.put([core.delivery(b"p v=2 2", packet_id=9)])
    wait_until(lambda: core.metrics.wal_failures.value() > 1)
    core.ingest.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert core.acked == []


@pytest.mark.parametrize(("sync_mode", "syncs"), [("group", 3), ("interval", 1), ("never", 0)])
def test_sync_modes_differ_in_their_syncs(make_core, monkeypatch, sync_mode, syncs):
    """`group` syncs before every ack; weaker modes are named and do what they say."""
    core = make_core(sync=sync_mode)
    sync = FailingSync(monkeypatch, 0)
    for n in range(3):
        core.write(b"p v=1 %d" % n)
    assert len(sync.calls) == syncs
    assert len(core.acked) == 3


def test_full_disk_holds_the_group_back_and_resumes_by_itself(make_core, monkeypatch):
    """Below `wal.min_free` nothing is taken from the inbox; with space again all of it is stored."""
    core = make_core(min_free_bytes=100)
    free = [10]
    monkeypatch.setattr("edge_appliance.room.free_bytes", lambda path: free[0])
    monkeypatch.setattr("edge_appliance.ingest.TICK_S", 0.01)
    thread = run(core)
    core.inbox.put([core.delivery(b"p v=1 1", packet_id=1)])
    wait_until(lambda: "read-only" in core.health.held)
    free[0] = 110  # above the limit, but not by enough to come back
    core.inbox.put([core.delivery(b"p v=2 2", packet_id=2)])
    time.sleep(0.05)
    assert core.acked == []
    free[0] = 1000
    wait_until(lambda: core.acked == [1, 2])
    assert core.health.held == ""
    core.ingest.stop()
    thread.join(DEADLINE_S)


def test_log_cap_holds_acks_until_a_segment_is_persisted(make_core, monkeypatch):
    """At `wal.max_bytes` acks stop; nothing is deleted but what became parts, and intake goes on after that."""
    monkeypatch.setattr("edge_appliance.ingest.TICK_S", 0.01)
    core = make_core(persists=True, wal_max_bytes=40_000)
    thread = run(core)
    for n in range(200):
        core.inbox.put([core.delivery(b"p v=%d %d" % (n, n), packet_id=n + 1)])
        wait_until(lambda n=n: len(core.acked) > n)
        assert core.wal.total_bytes <= 40_000 + 3 * 4096  # the last frame, a seal and the next header
    core.ingest.stop()
    thread.join(DEADLINE_S)
    assert core.acked == list(range(1, 201))
    assert core.metrics.persisted_rows.value() > 100


def test_full_buffer_holds_until_a_persist_frees_it(make_core, monkeypatch):
    """At the buffer limit intake waits for the workers and goes on without help."""
    monkeypatch.setattr("edge_appliance.ingest.TICK_S", 0.01)
    core = make_core(persists=True, buffer_limit_bytes=100_000)
    thread = run(core)
    for n in range(60):
        core.inbox.put(
            [core.delivery(b"\n".join(b"p v=%d %d" % (i, n * 1000 + i) for i in range(300)), packet_id=n + 1)]
        )
        wait_until(lambda n=n: len(core.acked) > n)
    core.ingest.stop()
    thread.join(DEADLINE_S)
    assert core.metrics.lines.value() == 60 * 300


def test_persisted_rows_are_freed_without_the_collector(make_core):
    """Memory goes with the last reader: a busy process may not run its collector for hours."""
    core = make_core(persists=True)

    def buffers() -> list[TableBuffer]:
        return [o for o in gc.get_objects() if isinstance(o, TableBuffer) and o.schema.name == "freed"]

    gc.collect()
    gc.disable()
    try:
        core.write(b"broken", b"\n".join(b'freed,uid=u%d v=1,s="x" %d' % (n, n) for n in range(50)))
        assert len(buffers()) == 1
        core.ingest.cut()
        core.sealed.clear()
        assert core.persister.drain(DEADLINE_S)
        wait_until(lambda: not buffers())
    finally:
        gc.enable()


def test_cut_by_size(make_core):
    """A segment that has grown to its limit is sealed and the next file opened; ranks follow the sequences."""
    core = make_core(segment_max_bytes=1000)
    first = core.wal.segment_id
    core.write(b"\n".join(b"p v=%d %d" % (n, n) for n in range(100)))
    core.ingest.cut_if_due(time.monotonic())
    assert [segment.id for segment in core.sealed] == [first]
    assert core.sealed[0].rank == core.wal.first_sequence - 1
    assert core.wal.segment_id == first + 1
    assert len(core.rows()) == 100


def test_cut_by_age_counts_from_the_first_row(make_core):
    """A quiet appliance makes no empty segments; an old row is persisted in time."""
    core = make_core(segment_max_age_s=60.0)
    now_s = time.monotonic()
    core.ingest.cut_if_due(now_s + 1000)
    assert core.sealed == []
    core.write(b"p v=1 1")
    core.ingest.cut_if_due(now_s + 1030)
    assert core.sealed == []
    core.ingest.cut_if_due(now_s + 1061)
    assert len(core.sealed) == 1


def test_cut_by_number_of_dates(make_core):
    """Scattered times become files, so their number cuts too."""
    core = make_core()
    day_ns = 86_400_000_000_000
    core.write(b"\n".join(b"p v=1 %d" % (day * day_ns) for day in range(2_001)))
    core.ingest.cut_if_due(time.monotonic())
    assert len(core.sealed) == 1


def test_failed_cut_goes_on_in_a_new_file(make_core, monkeypatch):
    """A disk that refuses the next file at the cut costs no row."""
    core = make_core(segment_max_bytes=100)
    core.write(b"p v=1 1")
    real, failures = os.open, [1]

    def fail_once(path, *arguments, **more):
        if failures and str(path).endswith(".wal"):
            failures.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *arguments, **more)

    monkeypatch.setattr("edge_appliance.wal.os.open", fail_once)
    core.ingest.cut_if_due(time.monotonic() + 10_000)
    monkeypatch.undo()
    core.write(b"p v=2 2")
    again = core.restart()
    assert [row[2] for row in again.rows()] == [1, 2]
    again.abandon()


def test_sync_of_nothing_is_not_counted(make_core):
    """Counted are calls of fdatasync, not looks at whether one is due."""
    core = make_core(sync="interval")
    core.write(b"p v=1 1")
    core.ingest.sync_late()
    count = core.metrics.wal_fsyncs.value()
    core.ingest.sync_late()
    assert core.metrics.wal_fsyncs.value() == count == 1


def poison(core: Core, monkeypatch, marker: bytes) -> None:
    """From now on appending a payload with `marker` fails, behind rows and definitions that were added."""
    real = core.appender.append_group

    def fail(segment, deliveries, keys):
        done = real(segment, deliveries, keys)
        if any(marker in delivery.payload for delivery in deliveries if delivery.reject is None):
            raise ZeroDivisionError("a fault of ours")
        return done

    monkeypatch.setattr(core.appender, "append_group", fail)


def test_want_of_memory_rejects_no_delivery(core, monkeypatch):
    """It says nothing about a delivery: the thread ends without an ack, also while it looks for one to blame."""
    tries = iter([ZeroDivisionError, MemoryError])

    def fail(segment, deliveries, keys):
        raise next(tries)

    monkeypatch.setattr(core.appender, "append_group", fail)
    with pytest.raises(MemoryError):
        core.write(b"p v=1 1")
    assert (core.acked, list(read_dead_letters(core.paths.dead_letters))) == ([], [])


def test_delivery_that_brings_out_a_fault_costs_itself_only(core, monkeypatch):
    """It becomes a dead letter with its bytes and is acknowledged, or a broker would send it again for ever."""
    core.write(b"p v=1 1")
    poison(core, monkeypatch, b"poison")
    core.write(b"p v=2,a=1i 2", b"p poison=3i 3\nq v=1 3", b"p v=4,poisoned=t 4", b"p v=5,b=t 5")
    assert core.acked == [1, 1, 2, 3, 4]
    rows = core.rows()
    assert [row[2] for row in rows] == [1, 2, 5]
    letters = list(read_dead_letters(core.paths.dead_letters))
    assert [letter["reason"] for letter in letters] == ["internal_error"] * 2
    assert base64.b64decode(letters[0]["sample"]) == b"p poison=3i 3\nq v=1 3"
    definitions = core.schema.definitions()
    assert [column.name for column in definitions[0].columns] == ["v", "a", "b"]
    again = core.restart()
    assert again.rows() == rows
    assert again.schema.definitions() == definitions
    again.abandon()


def test_redelivery_behind_its_original_in_one_group_is_stored_once(core):
    """Deliveries of a dead connection wait in the inbox: the broker's second copy may join them in the same group."""
    core.commit(
        core.delivery(b"p v=1", packet_id=5),
        core.delivery(b"p v=2", packet_id=6),
        core.delivery(b"p v=1", packet_id=5, is_dup=True),
        core.delivery(b"p v=9", packet_id=6),
        core.delivery(b"p v=2", packet_id=6, is_dup=True),
    )
    assert [row[3]["v"] for row in core.rows()] == [1, 2, 9, 2]
    assert core.acked == [5, 6, 5, 6, 6]


def test_late_sync_that_fails_keeps_the_rows_under_a_rank_of_their_own(make_core, monkeypatch):
    """In `interval` mode shown rows may be lost to the log: they stay in memory, and no other set gets their rank."""
    core = make_core(sync="interval")
    core.write(b"p v=1 1")
    core.ingest.cut()
    core.write(b"p v=2 2")
    core.write(b"p v=3 3")
    sync = FailingSync(monkeypatch, 1)
    core.ingest.sync_late()
    core.write(b"p v=4 4")
    assert [row[2] for row in core.rows()] == [1, 2, 3, 4]
    ranks = [segment.rank for segment in core.sealed]
    assert ranks == sorted(set(ranks))
    assert core.wal.next_sequence == 5
    assert len(sync.calls) >= 1


def test_hold_of_a_late_sync_is_over_with_the_new_file(make_core, monkeypatch):
    """Whoever asks whether writes are taken hears yes again without one that has to try."""
    monkeypatch.setattr("edge_appliance.ingest.RETRY_S", (0.01,))
    core = make_core(sync="interval")
    core.write(b"p v=1 1")
    core.write(b"p v=2 2")
    FailingSync(monkeypatch, 1)
    real, failures = core.wal.replace, [1]

    def fail_once(*arguments):
        if failures:
            failures.pop()
            raise DiskError("create", "x.wal", OSError(errno.EIO, os.strerror(errno.EIO)))
        return real(*arguments)

    monkeypatch.setattr(core.wal, "replace", fail_once)
    core.ingest.sync_late()
    assert failures == []
    assert core.health.held == ""


def test_start_without_a_log_is_read_only_until_one_can_be_opened(make_core, monkeypatch):
    """A disk that is full at the start costs acknowledgements, not queries, and needs no further start."""
    monkeypatch.setattr("edge_appliance.ingest.RETRY_S", (0.01,))
    make_core().write(b"p v=1 1")
    core = make_core()
    attempts, is_full = [], [True]

    def open_log():
        attempts.append(1)
        if is_full:
            raise DiskError("write", "2.wal", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return core.wal

    core.ingest.begin_when_open(open_log, core.replayed.recent)
    thread = run(core)
    core.inbox.put([core.delivery(b"p v=2 2", packet_id=9)])
    wait_until(lambda: len(attempts) > 2)
    assert "read-only" in core.health.held
    assert core.acked == []
    assert [row[2] for row in core.rows()] == [1]
    is_full.clear()
    wait_until(lambda: core.acked == [9])
    assert core.health.held == ""
    assert [row[2] for row in core.rows()] == [1, 2]
    core.ingest.stop()
    thread.join(DEADLINE_S)


def test_stop_while_there_is_no_log_ends_the_thread(core, monkeypatch):
    """A stop does not wait for a disk that stays full."""

    def open_log():
        raise DiskError("write", "2.wal", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    core.ingest.begin_when_open(open_log, core.replayed.recent)
    thread = run(core)
    core.ingest.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("is_stopped", [False, True], ids=["held", "stopped"])
def test_http_write_is_refused_when_no_new_file_can_be_made(core, monkeypatch, is_stopped):
    """A client hears 503 although its write was taken: nothing of it is stored, and it can go elsewhere."""
    monkeypatch.setattr("edge_appliance.ingest.RETRY_S", (0.01,))
    failures = [1]
    real = core.wal.replace

    def fail(*arguments):
        if failures:
            if is_stopped:
                core.ingest.stop()
            raise DiskError("create", "x.wal", OSError(errno.EROFS, os.strerror(errno.EROFS)))
        return real(*arguments)

    monkeypatch.setattr(core.wal, "replace", fail)
    FailingSync(monkeypatch, 1)
    thread = run(core)
    core.inbox.put([core.delivery(b"p v=1 1", packet_id=9), core.delivery(b"p v=2 2", on_done=print)])
    wait_until(lambda: any(committed.results for committed in core.committed))
    assert [result.refused for committed in core.committed for _, result in committed.results] == [
        "the log cannot be written"
    ]
    if not is_stopped:
        failures.clear()
        wait_until(lambda: core.acked == [9])
        assert [row[2] for row in core.rows()] == [1]
        core.ingest.stop()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_delivery_that_cannot_be_encoded_costs_itself_only(core):
    """What the log's format refuses is found before anything is written, and is a dead letter like a bad line."""
    origin = Origin("edge", "ns", (("site", "\udcff"),), "mqtt", "t", "t")
    core.commit(
        core.delivery(b"p v=1 1", packet_id=1),
        core.delivery(b"p v=2 2", packet_id=2, origin=origin),
        core.delivery(b"p v=3 3", packet_id=3),
    )
    assert core.acked == [1, 2, 3]
    assert [row[2] for row in core.rows()] == [1, 3]
    assert [letter["reason"] for letter in read_dead_letters(core.paths.dead_letters)] == ["internal_error"]
