"""The log directory: what is durable when, what a failed write or sync leaves behind, what damage costs."""

import errno
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_appliance.core.wal_frame import (
    BLOCK_BYTES,
    FORMAT_VERSION,
    Frame,
    FrameType,
    Predecessor,
    decode_header,
    encode_header,
)
from edge_appliance.core.wal_scan import Damage
from edge_appliance.errors import DiskError, FormatError, NewerFormatError
from edge_appliance.wal import Wal
from edge_appliance.wal_file import FileWalk, file_name, open_file

GROUP = FrameType.GROUP


def make(directory, **changes):
    """A log in `directory`/wal."""
    settings = {"node": "gw", "incarnation": "0badcafe", "sync": True, "clock_ns": lambda: 123}
    return Wal(directory / "wal", **{**settings, **changes})


def started(directory, **changes):
    """A new log with its first file, id 1, sequence 1."""
    wal = make(directory, **changes)
    wal.start(1, 1, 0)
    return wal


def commit(wal, *payloads):
    """Append and sync."""
    for payload in payloads:
        wal.append(GROUP, payload)
    wal.sync()


def replay(directory, **changes):
    """Everything the log holds, as a restart sees it: payloads and damage."""
    wal = make(directory, **changes)
    files = wal.files()
    found = []
    for file, successor in zip(files, [*files[1:], None], strict=True):
        for item in wal.read(file, successor.header if successor else None):
            found.append(item if isinstance(item, Damage) else (item.sequence, item.payload))
    return found


def wal_path(directory, segment_id):
    """Path of a segment's file."""
    return directory / "wal" / file_name(segment_id)


def quarantined(directory):
    """Names in quarantine."""
    place = directory / "quarantine"
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


@contextmanager
def failing(monkeypatch, name, error_number, when=lambda *args: True):
    """Let a system call fail where `when` says so; yields the list of calls that failed."""
    real, failed = getattr(os, name), []

    def call(*args, **kwargs):
        if when(*args):
            failed.append(args)
            raise OSError(error_number, os.strerror(error_number))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, call)
        yield failed


class Syncs:
    """Names of everything that was synced, in order."""

    def __init__(self, monkeypatch):
        self.names = []
        for name in ("fsync", "fdatasync"):
            self._wrap(monkeypatch, name)

    def _wrap(self, monkeypatch, name):
        real = getattr(os, name)

        def call(fd):
            self.names.append((name, Path(f"/proc/self/fd/{fd}").readlink().name))
            return real(fd)

        monkeypatch.setattr(os, name, call)


# Appending and syncing


def test_records_come_back_in_order(tmp_path):
    """What was appended is replayed, over several files."""
    wal = started(tmp_path)
    assert [wal.append(GROUP, b"a"), wal.append(GROUP, b"b")] == [1, 2]
    wal.sync()
    wal.cut(1)
    commit(wal, b"c" * 10_000)
    wal.close()
    assert replay(tmp_path) == [(1, b"a"), (2, b"b"), (3, b"c" * 10_000)]


def test_sync_moves_the_durable_sequence(tmp_path):
    """Appended is not durable; frames state what was durable when they were written."""
    wal = started(tmp_path)
    wal.append(GROUP, b"a")
    assert (wal.next_sequence, wal.durable_sequence) == (2, 0)
    wal.sync()
    assert (wal.next_sequence, wal.durable_sequence) == (2, 1)
    wal.append(GROUP, b"b")
    (file,) = make(tmp_path).files()
    assert [frame.durable_sequence for frame in FileWalk(file, None)] == [0, 1]


def test_start_syncs_the_directory_and_the_first_sync_the_header(tmp_path, monkeypatch):
    """Before the first ack the file has a durable name, header and record, for one fdatasync a group."""
    (tmp_path / "wal").mkdir()
    syncs = Syncs(monkeypatch)
    wal = started(tmp_path)
    assert syncs.names == [("fsync", "wal")]
    commit(wal, b"a")
    commit(wal, b"b", b"c")
    assert syncs.names[1:] == [("fdatasync", file_name(1))] * 2


def test_sync_without_new_records_costs_nothing(tmp_path, monkeypatch):
    """An idle log does not wear the flash out."""
    wal = started(tmp_path)
    commit(wal, b"a")
    syncs = Syncs(monkeypatch)
    wal.sync()
    assert syncs.names == []


def test_log_without_sync_never_syncs(tmp_path, monkeypatch):
    """Mode `never` is what it says, and still caps, cuts and replays."""
    (tmp_path / "wal").mkdir()
    syncs = Syncs(monkeypatch)
    wal = started(tmp_path, sync=False)
    commit(wal, b"a")
    wal.cut(0)
    commit(wal, b"b")
    wal.verify_durable(wal.files())
    assert syncs.names == []
    assert wal.durable_sequence == 2
    assert replay(tmp_path) == [(1, b"a"), (2, b"b")]


def test_append_opens_and_lists_nothing(tmp_path, monkeypatch):
    """A record costs one write to the file that is open anyway."""
    wal = started(tmp_path)
    for name in ("open", "listdir", "scandir", "stat"):
        monkeypatch.setattr(os, name, None)
    commit(wal, b"a")


def test_sizes_count_every_file(tmp_path):
    """The cap sees all bytes, also after a restart."""
    wal = started(tmp_path)
    assert (wal.file_bytes, wal.total_bytes, wal.file_count) == (BLOCK_BYTES, BLOCK_BYTES, 1)
    commit(wal, b"a")
    wal.cut(0)
    commit(wal, b"b", b"c")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "wal").iterdir())]
    assert (wal.file_bytes, wal.total_bytes, wal.file_count) == (sizes[1], sum(sizes), 2)
    wal.close()
    again = make(tmp_path)
    again.files()
    assert (again.total_bytes, again.file_count) == (sum(sizes), 2)
    again.start(3, 4, 0)
    assert (again.total_bytes, again.file_count) == (sum(sizes) + BLOCK_BYTES, 3)
    again.drop(1)
    assert (again.total_bytes, again.file_count) == (sizes[1] + BLOCK_BYTES, 2)


def test_rows_of_a_group_are_stated_in_its_frame(tmp_path):
    """Recovery can say how many rows a damaged payload held."""
    from edge_appliance.core.wal_record import GroupRecord, LoggedEntry, encode_group

    entry = LoggedEntry(1, False, "edge", "ns", (), "mqtt", None, 0, [b"m f=1", b"m f=2"])
    wal = started(tmp_path)
    commit(wal, encode_group(GroupRecord(1, [], [entry, entry])))
    commit(wal, b"x")
    path = wal_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[BLOCK_BYTES + 64] ^= 1
    path.write_bytes(data)
    damage = replay(tmp_path)[0]
    assert (damage.rows, damage.reason) == (4, "payload checksum")


# Cutting


def test_cut_links_the_files(tmp_path):
    """The next file's header names its predecessor's id, durable length and last record."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(FrameType.PERSIST_END, b"hint")
    wal.cut(9)
    assert (wal.segment_id, wal.first_sequence, wal.next_sequence, wal.durable_sequence) == (2, 3, 3, 2)
    first, second = make(tmp_path).files()
    frames = list(FileWalk(first, None))
    assert [frame.type for frame in frames] == [GROUP, FrameType.PERSIST_END, FrameType.SEAL]
    assert second.header.previous == Predecessor(1, frames[2].offset, frames[1].crc)
    assert (second.header.generation, second.header.created_ns, second.header.node) == (9, 123, "gw")


def test_cut_syncs_the_old_file_before_the_new_name(tmp_path, monkeypatch):
    """No record of the new file can be acknowledged before all of the old one is durable."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(GROUP, b"b")
    syncs = Syncs(monkeypatch)
    wal.cut(0)
    assert syncs.names == [("fdatasync", file_name(1)), ("fsync", "wal")]


def test_failed_cut_ends_the_old_file_and_replace_goes_on(tmp_path, monkeypatch):
    """A header that may come back after a crash must not hide later records of the old file."""
    wal = started(tmp_path)
    commit(wal, b"a")
    with failing(monkeypatch, "fsync", errno.EIO), pytest.raises(DiskError):
        wal.cut(0)
    with pytest.raises(DiskError):
        wal.append(GROUP, b"b")
    wal.replace(0)
    assert (wal.segment_id, wal.first_sequence) == (3, 2)
    commit(wal, b"b")
    assert replay(tmp_path) == [(1, b"a"), (2, b"b")]


def test_failed_seal_does_not_matter(tmp_path, monkeypatch):
    """The seal is a hint."""
    wal = started(tmp_path)
    commit(wal, b"a")
    with failing(monkeypatch, "pwrite", errno.ENOSPC, lambda fd, data, offset: offset == 2 * BLOCK_BYTES) as failed:
        wal.cut(0)
    assert failed
    commit(wal, b"b")
    assert replay(tmp_path) == [(1, b"a"), (2, b"b")]


# A failed write


def test_failed_write_takes_no_sequence(tmp_path, monkeypatch):
    """The same file goes on as if nothing had been tried."""
    wal = started(tmp_path)
    commit(wal, b"a")
    with failing(monkeypatch, "pwrite", errno.ENOSPC), pytest.raises(DiskError) as caught:
        wal.append(GROUP, b"b")
    assert caught.value.errno == errno.ENOSPC
    assert wal.append(GROUP, b"c") == 2
    wal.sync()
    assert replay(tmp_path) == [(1, b"a"), (2, b"c")]


@pytest.mark.parametrize("written", [1, 64, 5000])
def test_short_write_is_cut_back(tmp_path, monkeypatch, written):
    """A write that stops in the middle leaves nothing of its record."""
    wal = started(tmp_path, compress=False)
    commit(wal, b"a")
    size = wal_path(tmp_path, 1).stat().st_size
    real, calls = os.pwrite, []

    def short(fd, data, offset):
        calls.append(offset)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data[:written], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", short)
        with pytest.raises(DiskError) as caught:
            wal.append(GROUP, b"b" * 10_000)
    assert caught.value.errno == errno.ENOSPC
    assert calls == [size, size + written]
    assert wal_path(tmp_path, 1).stat().st_size == size == wal.file_bytes
    commit(wal, b"c")
    assert replay(tmp_path) == [(1, b"a"), (2, b"c")]


def test_short_write_without_an_error_is_finished(tmp_path, monkeypatch):
    """A short write alone is no failure."""
    wal = started(tmp_path)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:1000], offset))
    commit(wal, b"a" * 10_000)
    assert replay(tmp_path) == [(1, b"a" * 10_000)]


def test_write_of_nothing_is_a_full_disk(tmp_path, monkeypatch):
    """A write that makes no progress ends, and says why."""
    wal = started(tmp_path)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
    with pytest.raises(DiskError) as caught:
        wal.append(GROUP, b"a")
    assert caught.value.errno == errno.ENOSPC


def test_write_that_cannot_be_cut_back_ends_the_file(tmp_path, monkeypatch):
    """Nothing is written behind a torn record."""
    wal = started(tmp_path)
    commit(wal, b"a")
    with (
        failing(monkeypatch, "ftruncate", errno.EIO),
        failing(monkeypatch, "pwrite", errno.EIO),
        pytest.raises(DiskError),
    ):
        wal.append(GROUP, b"b")
    with pytest.raises(DiskError):
        wal.append(GROUP, b"b")
    wal.replace(0)
    commit(wal, b"b")
    assert replay(tmp_path) == [(1, b"a"), (2, b"b")]


def test_replace_after_a_failed_write_keeps_what_was_written_before(tmp_path, monkeypatch):
    """Records that were appended but wait for a sync are made durable, not capped off."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(GROUP, b"waiting")
    with failing(monkeypatch, "pwrite", errno.ENOSPC), pytest.raises(DiskError):
        wal.append(GROUP, b"b")
    wal.replace(0)
    assert (wal.first_sequence, wal.durable_sequence) == (3, 2)
    commit(wal, b"b")
    assert replay(tmp_path) == [(1, b"a"), (2, b"waiting"), (3, b"b")]


# A failed sync


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_failed_sync_ends_the_file(tmp_path, monkeypatch, error_number):
    """The file is never synced again, as the second sync would lie, and never appended to."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(GROUP, b"b")
    with failing(monkeypatch, "fdatasync", error_number), pytest.raises(DiskError) as caught:
        wal.sync()
    assert caught.value.errno == error_number
    assert wal.durable_sequence == 1
    syncs = Syncs(monkeypatch)
    for call in (wal.sync, lambda: wal.append(GROUP, b"c"), lambda: wal.cut(0)):
        with pytest.raises(DiskError):
            call()
    wal.replace(0)
    assert file_name(1) not in [name for _, name in syncs.names]


def test_replace_gives_sequences_again_and_caps_the_old_file(tmp_path, monkeypatch):
    """Records that were not durable are written again under their sequences; their ghosts are not replayed."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(GROUP, b"b")
    ghost = wal_path(tmp_path, 1).read_bytes()
    with failing(monkeypatch, "fdatasync", errno.EIO), pytest.raises(DiskError):
        wal.sync()
    wal.replace(4)
    assert (wal.segment_id, wal.first_sequence, wal.next_sequence) == (2, 2, 2)
    assert wal.append(GROUP, b"b again") == 2
    wal.sync()
    wal_path(tmp_path, 1).write_bytes(ghost)
    assert replay(tmp_path) == [(1, b"a"), (2, b"b again")]


def test_failed_sync_takes_ghosts_out_of_the_page_cache(tmp_path, monkeypatch):
    """A restart right after the failure must not believe records that the disk never took."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(GROUP, b"b")
    with failing(monkeypatch, "fdatasync", errno.EIO), pytest.raises(DiskError):
        wal.sync()
    assert replay(tmp_path) == [(1, b"a")]


def test_replace_that_fails_can_be_tried_again(tmp_path, monkeypatch):
    """On a bad disk new files are tried until one can be made; no name is used twice."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(GROUP, b"b")
    with failing(monkeypatch, "fdatasync", errno.EIO), pytest.raises(DiskError):
        wal.sync()
    with failing(monkeypatch, "fsync", errno.EIO), pytest.raises(DiskError):
        wal.replace(0)
    with failing(monkeypatch, "pwrite", errno.ENOSPC), pytest.raises(DiskError):
        wal.replace(0)
    wal.replace(0)
    assert wal.segment_id == 4
    commit(wal, b"b")
    assert replay(tmp_path) == [(1, b"a"), (2, b"b")]
    assert sorted(path.name for path in (tmp_path / "wal").iterdir()) == [file_name(1), file_name(4)]


def test_replace_of_a_file_that_never_synced_takes_over_its_link(tmp_path, monkeypatch):
    """A chain of files that all failed leaves the first one capped by the last."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(GROUP, b"b")
    ghost = wal_path(tmp_path, 1).read_bytes()
    with failing(monkeypatch, "fdatasync", errno.EIO):
        for _ in range(3):
            with pytest.raises(DiskError):
                wal.sync()
            wal.replace(0)
            assert wal.append(GROUP, b"b") == 2
    wal.sync()
    assert sorted(path.name for path in (tmp_path / "wal").iterdir()) == [file_name(1), file_name(4)]
    wal_path(tmp_path, 1).write_bytes(ghost)
    first, last = make(tmp_path).files()
    assert (first.id, last.id) == (1, 4)
    assert last.header.previous.segment_id == 1
    assert replay(tmp_path) == [(1, b"a"), (2, b"b")]


# Restart


def test_start_seals_the_last_file_at_its_valid_end(tmp_path):
    """No old file is appended to; a torn tail stays outside for ever."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(GROUP, b"torn")
    wal.close()
    path = wal_path(tmp_path, 1)
    os.truncate(path, path.stat().st_size - BLOCK_BYTES + 65)
    torn = replay(tmp_path)
    assert torn[0] == (1, b"a")
    assert torn[1].is_torn
    again = make(tmp_path)
    again.start(2, 2, 0)
    commit(again, b"b")
    assert replay(tmp_path) == [(1, b"a"), (2, b"b")]
    assert quarantined(tmp_path) == []


def test_start_raises_the_id_above_every_name(tmp_path):
    """Names in the log and in quarantine are never used again."""
    (tmp_path / "wal").mkdir()
    (tmp_path / "quarantine").mkdir()
    wal_path(tmp_path, 5).write_bytes(b"")
    (tmp_path / "quarantine" / (file_name(8) + "-1")).write_bytes(b"")
    wal = make(tmp_path)
    wal.start(2, 1, 0)
    assert wal.segment_id == 9


def test_verify_durable_syncs_files_and_directory_afresh(tmp_path, monkeypatch):
    """What replay read is on the disk before anything is acknowledged on top of it."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.cut(0)
    wal.close()
    again = make(tmp_path)
    files = again.files()
    again.drop(1)
    syncs = Syncs(monkeypatch)
    again.verify_durable(files)
    assert syncs.names == [("fsync", file_name(2)), ("fsync", "wal")]
    with failing(monkeypatch, "fsync", errno.EIO), pytest.raises(DiskError):
        again.verify_durable(files)


def test_drop_syncs_the_directory_and_may_be_repeated(tmp_path, monkeypatch):
    """A dropped file does not come back, and one that is gone is no error."""
    wal = started(tmp_path)
    wal.cut(0)
    syncs = Syncs(monkeypatch)
    wal.drop(1)
    wal.drop(1)
    assert syncs.names == [("fsync", "wal")] * 2
    assert not wal_path(tmp_path, 1).exists()
    with pytest.raises(ValueError, match="open segment"):
        wal.drop(2)


def test_use_out_of_order_is_refused(tmp_path):
    """Appending to a log that was not started is a fault of the caller."""
    wal = make(tmp_path)
    with pytest.raises(ValueError, match="not been started"):
        wal.append(GROUP, b"a")
    wal.start(1, 1, 0)
    with pytest.raises(ValueError, match="already"):
        wal.start(2, 1, 0)
    wal.close()
    wal.close()


# Damage


def test_empty_newest_file_is_removed_and_an_older_one_kept(tmp_path):
    """A crash while a file is made leaves its bare name, which had no record; an emptied older file is evidence."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.close()
    wal_path(tmp_path, 0).touch()
    wal_path(tmp_path, 2).touch()
    again = make(tmp_path)
    assert [file.id for file in again.files()] == [1]
    assert [error.what for error in again.quarantined] == [file_name(0)]
    assert quarantined(tmp_path) == [file_name(0)]
    assert not wal_path(tmp_path, 2).exists()
    assert again.last_segment_id == 2


@pytest.mark.parametrize("size", [1, 64, 4095, 4096, 9000])
@pytest.mark.parametrize("content", [b"\0", b"\xff", b"EDGEWAL\n"], ids=["zeros", "ones", "magic"])
def test_file_without_records_is_quarantined(tmp_path, size, content):
    """Short and garbage files are kept for a person, counted, and no reason not to start."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.close()
    wal_path(tmp_path, 2).write_bytes((content * 9000)[:size])
    again = make(tmp_path)
    assert [file.id for file in again.files()] == [1]
    assert [error.what for error in again.quarantined] in ([file_name(2)], ["WAL file header"])
    assert quarantined(tmp_path) == [file_name(2)]
    assert again.last_segment_id == 2


def test_file_under_a_wrong_name_is_quarantined(tmp_path):
    """A copy of a log file is not replayed a second time, and foreign names are no log files."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.close()
    wal_path(tmp_path, 2).write_bytes(wal_path(tmp_path, 1).read_bytes())
    (tmp_path / "wal" / "junk.wal").write_bytes(b"?")
    (tmp_path / "wal" / "note.txt").write_bytes(b"mine")
    assert replay(tmp_path) == [(1, b"a")]
    assert quarantined(tmp_path) == [file_name(2), "junk.wal"]
    assert (tmp_path / "wal" / "note.txt").exists()


def test_second_file_quarantined_under_a_name_keeps_the_first(tmp_path):
    """Quarantine never overwrites a whole file."""
    (tmp_path / "wal").mkdir()
    for content in (b"one", b"two"):
        wal_path(tmp_path, 2).write_bytes(content)
        make(tmp_path).files()
    assert quarantined(tmp_path) == [file_name(2), file_name(2) + "-1"]


def test_quarantine_that_fails_does_not_stop_the_start(tmp_path, monkeypatch, caplog):
    """A full disk leaves the file where it is, with a word in the journal."""
    (tmp_path / "wal").mkdir()
    wal_path(tmp_path, 2).write_bytes(b"junk")
    with failing(monkeypatch, "link", errno.ENOSPC):
        assert make(tmp_path).files() == []
    assert wal_path(tmp_path, 2).exists()
    assert "ignored where it is" in caplog.text


def test_file_of_a_later_release_refuses_the_start(tmp_path):
    """Rows of a later release are not taken for garbage."""
    import struct
    import zlib

    wal = started(tmp_path)
    wal.close()
    body = bytearray(wal_path(tmp_path, 1).read_bytes()[:4092])
    body[8] = FORMAT_VERSION + 1
    wal_path(tmp_path, 1).write_bytes(bytes(body) + struct.pack("<I", zlib.crc32(body)))
    with pytest.raises(NewerFormatError):
        make(tmp_path).files()
    assert wal_path(tmp_path, 1).exists()


def test_damaged_file_header_costs_no_record(tmp_path):
    """Frames are found without their file header, and the damage is told and kept."""
    wal = started(tmp_path)
    commit(wal, b"a")
    commit(wal, b"b")
    wal.close()
    with wal_path(tmp_path, 1).open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    assert replay(tmp_path) == [Damage(0, BLOCK_BYTES, "file header"), (1, b"a"), (2, b"b")]
    assert quarantined(tmp_path) == [file_name(1) + ".0"]


def test_damaged_bytes_are_kept_with_file_and_offset_in_the_name(tmp_path):
    """A person can look at what was lost; a second start keeps the same bytes once."""
    wal = started(tmp_path)
    for payload in (b"a", b"b", b"c"):
        commit(wal, payload)
    wal.close()
    path = wal_path(tmp_path, 1)
    data = bytearray(path.read_bytes())
    data[2 * BLOCK_BYTES + 64] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        damage, *frames = replay(tmp_path)[1:]
        assert (damage.offset, damage.length, damage.first_sequence) == (2 * BLOCK_BYTES, BLOCK_BYTES, 2)
        assert frames == [(3, b"c")]
    assert quarantined(tmp_path) == [f"{file_name(1)}.{2 * BLOCK_BYTES}"]
    kept = tmp_path / "quarantine" / f"{file_name(1)}.{2 * BLOCK_BYTES}"
    assert kept.read_bytes() == data[2 * BLOCK_BYTES : 3 * BLOCK_BYTES]


def test_torn_tail_is_not_quarantined(tmp_path):
    """A crash in the middle of a write is no corruption."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.append(GROUP, b"b" * 20)
    wal.close()
    os.truncate(wal_path(tmp_path, 1), 2 * BLOCK_BYTES + 80)
    found = replay(tmp_path)
    assert found[1:] == [Damage(2 * BLOCK_BYTES, 80, "cut short", 2, 2, 0, is_torn=True)]
    assert quarantined(tmp_path) == []


def test_deleted_successor_shows_that_the_tail_had_been_durable(tmp_path):
    """A file that was cut is damaged when its tail is gone, also when its successor is gone too."""
    wal = started(tmp_path)
    commit(wal, b"a")
    commit(wal, b"b")
    wal.cut(0)
    commit(wal, b"c")
    wal.cut(0)
    commit(wal, b"d")
    wal.close()
    wal_path(tmp_path, 2).unlink()
    os.truncate(wal_path(tmp_path, 1), 2 * BLOCK_BYTES + 70)
    with wal_path(tmp_path, 1).open("r+b") as file:
        file.seek(2 * BLOCK_BYTES + 64)
        file.write(b"?")
    found = replay(tmp_path)
    assert found[1].first_sequence == 2
    assert not found[1].is_torn


@pytest.mark.parametrize("bad", [range(2, 3), range(1, 4)], ids=["one sector", "all records"])
def test_unreadable_sectors_are_damage_after_retries(tmp_path, monkeypatch, bad):
    """A bad sector costs what is in it; the start goes on, and what can be read is kept."""
    wal = started(tmp_path)
    for payload in (b"a", b"b", b"c"):
        commit(wal, payload)
    wal.close()

    def is_bad(_fd, length, offset):
        return any(offset < (n + 1) * BLOCK_BYTES and offset + length > n * BLOCK_BYTES for n in bad)

    with failing(monkeypatch, "pread", errno.EIO, is_bad) as failed:
        found = replay(tmp_path)
    assert len(failed) > 3
    assert [item for item in found if not isinstance(item, Damage)] == [
        (n, payload) for n, payload in ((1, b"a"), (2, b"b"), (3, b"c")) if n not in bad
    ]
    (damage,) = [item for item in found if isinstance(item, Damage)]
    assert (damage.reason, damage.is_torn) == ("unreadable", False)
    kept = tmp_path / "quarantine" / f"{file_name(1)}.{damage.offset}"
    assert kept.read_bytes() == bytes(damage.length)


def test_read_error_that_goes_away_costs_nothing(tmp_path, monkeypatch):
    """A card often answers the second time."""
    wal = started(tmp_path)
    commit(wal, b"a")
    wal.close()
    tries = []
    with failing(monkeypatch, "pread", errno.EIO, lambda *args: tries.append(args) or len(tries) % 3):
        assert replay(tmp_path) == [(1, b"a")]


def test_read_holds_one_record_in_memory(tmp_path):
    """A log larger than memory is replayed as a stream."""
    import tracemalloc

    wal = started(tmp_path, compress=False)
    for _ in range(16):
        wal.append(GROUP, os.urandom(1 << 20))
    wal.close()
    again = make(tmp_path)
    (file,) = again.files()
    tracemalloc.start()
    count = sum(isinstance(found, Frame) for found in again.read(file, None))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 16
    assert peak < 6 << 20


@pytest.mark.slow
def test_every_byte_of_the_last_two_records_cut_or_changed_on_disk(tmp_path):
    """Through the directory as through the scanner: at most the record that was hit is lost."""
    wal = started(tmp_path)
    for payload in (b"a", b"b", b"c"):
        commit(wal, payload)
    wal.close()
    path = wal_path(tmp_path, 1)
    whole = path.read_bytes()
    expected = [(1, b"a"), (2, b"b"), (3, b"c")]
    for block in (2, 3):
        for at in (*range(block * BLOCK_BYTES, block * BLOCK_BYTES + 66), (block + 1) * BLOCK_BYTES - 1):
            for changed in (
                whole[:at],
                whole[:at] + b"\0" + whole[at + 1 :],
                whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
            ):
                path.write_bytes(changed)
                found = [item for item in replay(tmp_path) if not isinstance(item, Damage)]
                lost = [item for item in expected if item not in found]
                assert all(item in expected for item in found)
                is_cut = len(changed) < len(whole)
                assert lost in (
                    [],
                    [expected[block - 1]],
                    *((expected[block:], expected[block - 1 :]) if is_cut else ()),
                )


def test_open_file_reads_only(tmp_path):
    """Looking at a file moves nothing: tools may look while the daemon runs."""
    path = wal_path(tmp_path, 3)
    path.parent.mkdir()
    path.write_bytes(b"junk")
    with pytest.raises(FormatError):
        open_file(path)
    assert path.exists()
    with pytest.raises(DiskError):
        open_file(wal_path(tmp_path, 4))


def test_header_on_disk_is_the_encoded_one(tmp_path):
    """The file can be read by whoever knows the format."""
    wal = started(tmp_path)
    wal.close()
    block = wal_path(tmp_path, 1).read_bytes()
    header = decode_header(block)
    assert encode_header(header) == block
    assert (header.segment_id, header.first_sequence, header.previous) == (1, 1, None)


def test_every_file_has_a_salt_of_its_own(tmp_path):
    """What one file left on the disk is never taken for a record of another."""
    wal = started(tmp_path)
    for _ in range(5):
        wal.cut(0)
    assert len({file.salt for file in make(tmp_path).files()}) == 6


# A disk that is really full


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a tmpfs needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk_costs_only_what_was_refused(small_disk):
    """Everything that was synced is there, nothing half-written is, and the log goes on when there is room."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    wal = started(small_disk, compress=False)
    kept = []
    with pytest.raises(DiskError) as caught:
        while True:
            payload = os.urandom(70_000)
            commit(wal, payload)
            kept.append(payload)
    assert caught.value.errno == errno.ENOSPC
    assert len(kept) > 5
    assert [payload for _, payload in replay(small_disk)] == kept
    ballast.unlink()
    commit(wal, b"more")
    assert [payload for _, payload in replay(small_disk)] == [*kept, b"more"]


def test_file_that_is_dropped_while_the_log_is_opened_is_no_error(tmp_path, monkeypatch):
    """Workers drop files of a start that is not over yet: what is gone is neither listed, counted nor synced."""
    wal = started(tmp_path)
    commit(wal, b"one")
    wal.cut(0)
    commit(wal, b"two")
    wal.close()
    again = make(tmp_path)
    files = again.files()
    real = open_file

    def drop_first(path):
        if path == files[0].path:
            again.drop(files[0].id)
        return real(path)

    monkeypatch.setattr("edge_appliance.wal.open_file", drop_first)
    assert [file.id for file in again.files()] == [2]
    assert again.total_bytes == files[1].size_bytes
    again.verify_durable(files)
    again.start(1, 10, 0)
    assert again.file_count == 2
    again.close()


def test_replace_can_begin_behind_records_that_are_lost(tmp_path, monkeypatch):
    """Sequences of records that were shown and are not written again are not used a second time."""
    wal = started(tmp_path)
    for payload in (b"one", b"two", b"three"):
        wal.append(FrameType.GROUP, payload)
    with failing(monkeypatch, "fdatasync", errno.EIO), pytest.raises(DiskError):
        wal.sync()
    wal.replace(0, 3)
    assert wal.first_sequence == wal.next_sequence == 3
    wal.close()
