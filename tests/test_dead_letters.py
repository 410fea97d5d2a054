"""Dead letters: kept with their reason, bounded on disk, readable while they are written."""

import base64
import errno
import os
from pathlib import Path

import pytest

from edge_appliance.core.delivery import LineError, Reason
from edge_appliance.dead_letters import DeadLetters, read_dead_letters
from edge_appliance.errors import DiskError
from edge_appliance.metrics import Metrics


def error(line=3, sample=b"cpu usage=\xff", message="no number"):
    """One rejected line."""
    return LineError(line, 7, Reason.BAD_FIELD_VALUE, message, sample)


def make(directory, max_bytes=1 << 20):
    """A writer with metrics of its own."""
    metrics = Metrics()
    return DeadLetters(directory / "dead", max_bytes, metrics), metrics


def lines_kept(directory, limit=None):
    """Line numbers of the letters on disk."""
    return [letter["line"] for letter in read_dead_letters(directory / "dead", limit)]


def on_disk(directory):
    """Bytes that the letters really take."""
    return sum(path.stat().st_size for path in (directory / "dead").iterdir())


def failing(error_number):
    """A system call that always fails."""

    def call(*_args, **_kwargs):
        raise OSError(error_number, os.strerror(error_number))

    return call


def record_syncs(monkeypatch):
    """Names of everything synced from now on."""
    names, real = [], os.fsync

    def fsync(fd):
        names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        return real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return names


def test_letter_comes_back_with_everything_it_says(tmp_path):
    """Topic, place, reason and bytes are there for whoever repairs the device."""
    letters, metrics = make(tmp_path)
    letters.append(1_700_000_000_000_000_001, "mqtt", "plants/1/lp", [error()])
    assert list(read_dead_letters(tmp_path / "dead")) == [
        {
            "arrival_ns": 1_700_000_000_000_000_001,
            "source": "mqtt",
            "topic": "plants/1/lp",
            "line": 3,
            "column": 7,
            "reason": "bad_field_value",
            "message": "no number",
            "sample": base64.b64encode(b"cpu usage=\xff").decode(),
        }
    ]
    assert metrics.dead_letters.value() == 1
    assert metrics.dead_letter_bytes.value() == on_disk(tmp_path)


def test_newest_letters_come_last_and_a_limit_keeps_them(tmp_path):
    """The last ones are what a person asks for, over file borders too."""
    letters, _ = make(tmp_path, max_bytes=8000)
    for line in range(1, 31):
        letters.append(1, "mqtt", "t", [error(line)])
    assert len(list((tmp_path / "dead").iterdir())) > 1
    assert lines_kept(tmp_path) == list(range(1, 31))
    assert lines_kept(tmp_path, 25) == list(range(6, 31))
    assert lines_kept(tmp_path, 100) == list(range(1, 31))
    assert lines_kept(tmp_path, 0) == []


def test_oldest_letters_go_at_the_limit_and_are_counted(tmp_path):
    """The directory never passes its limit, and kept plus dropped is everything."""
    letters, metrics = make(tmp_path, max_bytes=4000)
    for line in range(1, 201):
        letters.append(1, "mqtt", "t", [error(line)])
        assert on_disk(tmp_path) <= 4000
    kept = lines_kept(tmp_path)
    assert kept == list(range(201 - len(kept), 201))
    assert metrics.dead_letters.value() == 200
    assert metrics.dead_letters_dropped.value() == 200 - len(kept)
    assert metrics.dead_letter_bytes.value() == on_disk(tmp_path) > 2000


def test_one_delivery_larger_than_the_limit_keeps_its_last_lines(tmp_path):
    """A payload of nothing but bad lines is bounded like any other."""
    letters, metrics = make(tmp_path, max_bytes=4000)
    letters.append(1, "http", "10.0.0.1", [error(line) for line in range(1, 301)])
    assert on_disk(tmp_path) <= 4000
    assert lines_kept(tmp_path)[-1] == 300
    assert metrics.dead_letters.value() - metrics.dead_letters_dropped.value() == len(lines_kept(tmp_path))


def test_letter_larger_than_the_limit_is_dropped(tmp_path):
    """A limit is a limit."""
    letters, metrics = make(tmp_path, max_bytes=100)
    letters.append(1, "mqtt", "t" * 200, [error()])
    assert lines_kept(tmp_path) == []
    assert metrics.dead_letters_dropped.value() == 1


def test_letters_of_an_earlier_run_are_kept_and_count(tmp_path):
    """The limit holds over restarts, and names go on."""
    first, _ = make(tmp_path, max_bytes=4000)
    for line in range(1, 16):
        first.append(1, "mqtt", "t", [error(line)])
    first.close()
    letters, metrics = make(tmp_path, max_bytes=4000)
    assert metrics.dead_letter_bytes.value() == on_disk(tmp_path) > 0
    for line in range(16, 41):
        letters.append(1, "mqtt", "t", [error(line)])
        assert on_disk(tmp_path) <= 4000
    kept = lines_kept(tmp_path)
    assert kept == list(range(41 - len(kept), 41))


def test_letter_behind_a_torn_one_is_readable(tmp_path):
    """A crash in the middle of a letter costs that letter only."""
    first, _ = make(tmp_path)
    first.append(1, "mqtt", "t", [error(1), error(2)])
    first.close()
    (path,) = (tmp_path / "dead").iterdir()
    os.truncate(path, path.stat().st_size - 5)
    letters, _ = make(tmp_path)
    letters.append(1, "mqtt", "t", [error(3)])
    assert lines_kept(tmp_path) == [1, 3]


@pytest.mark.parametrize("junk", [b"", b"\n\n", b"\xff\xfe", b"[1]\n17\n", b'{"line": 9}'])
def test_junk_in_a_file_is_left_out(tmp_path, junk):
    """Reading never fails over what somebody wrote there."""
    (tmp_path / "dead").mkdir()
    (tmp_path / "dead" / "rejects-0000000001.jsonl").write_bytes(junk)
    (tmp_path / "dead" / "other.txt").write_bytes(b'{"line": 1}\n')
    assert lines_kept(tmp_path) == ([9] if b"9" in junk else [])


def test_reading_where_nothing_is_gives_nothing(tmp_path):
    """Asking before the first start is no error."""
    assert lines_kept(tmp_path) == []


def test_reading_survives_a_file_that_is_dropped_meanwhile(tmp_path):
    """The daemon drops files while a person lists them."""
    letters, _ = make(tmp_path, max_bytes=8000)
    for line in range(1, 31):
        letters.append(1, "mqtt", "t", [error(line)])
    reading = read_dead_letters(tmp_path / "dead")
    assert next(reading)["line"] == 1
    for path in (tmp_path / "dead").iterdir():
        path.unlink()
    assert all(letter["line"] < 31 for letter in reading)


def test_sync_is_due_once_a_second(tmp_path, monkeypatch):
    """One bad device does not cost a sync for every group."""
    letters, _ = make(tmp_path)
    letters.append(1, "mqtt", "t", [error()])
    syncs = record_syncs(monkeypatch)
    letters.sync_if_due(10.0)
    assert syncs == ["rejects-0000000001.jsonl", "dead"]
    letters.append(1, "mqtt", "t", [error()])
    letters.sync_if_due(10.9)
    assert len(syncs) == 2
    letters.sync_if_due(11.0)
    assert syncs[2:] == ["rejects-0000000001.jsonl"]
    letters.sync_if_due(20.0)
    assert len(syncs) == 3


def test_sync_covers_every_file_that_was_written(tmp_path, monkeypatch):
    """Letters in files that were left behind are durable too."""
    letters, _ = make(tmp_path, max_bytes=8000)
    letters.append(1, "mqtt", "t", [error(line) for line in range(30)])
    syncs = record_syncs(monkeypatch)
    letters.close()
    assert syncs == [*sorted(path.name for path in (tmp_path / "dead").iterdir()), "dead"]


def test_failed_write_leaves_whole_letters(tmp_path, monkeypatch):
    """A full disk is told, costs the letter, and nothing after it."""
    letters, metrics = make(tmp_path)
    letters.append(1, "mqtt", "t", [error(1)])
    real, calls = os.write, []

    def short(fd, data):
        calls.append(fd)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data[:20])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        with pytest.raises(DiskError) as caught:
            letters.append(1, "mqtt", "t", [error(2)])
    assert caught.value.errno == errno.ENOSPC
    letters.append(1, "mqtt", "t", [error(3)])
    assert lines_kept(tmp_path) == [1, 3]
    (path,) = (tmp_path / "dead").iterdir()
    assert path.read_bytes().count(b"\n") == 2
    assert metrics.dead_letter_bytes.value() == on_disk(tmp_path)


def test_file_is_left_after_a_failed_sync(tmp_path, monkeypatch):
    """Its content is unknown from then on, so it takes no more letters and is not synced again."""
    letters, _ = make(tmp_path)
    letters.append(1, "mqtt", "t", [error(1)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(DiskError):
            letters.sync()
    syncs = record_syncs(monkeypatch)
    letters.append(1, "mqtt", "t", [error(2)])
    letters.sync()
    assert syncs == ["rejects-0000000002.jsonl", "dead"]
    assert lines_kept(tmp_path) == [1, 2]


def test_sealed_file_keeps_the_letters_that_are_named(tmp_path):
    """What is written after the seal goes elsewhere, what is left of the sealed file keeps its place in the order."""
    letters, metrics = make(tmp_path)
    letters.append(1, "mqtt", "t", [error(1), error(2), error(3)])
    (path,) = letters.seal()
    letters.append(2, "mqtt", "t", [error(4)])
    letters.replace(path, [letter for letter in read_dead_letters(tmp_path / "dead") if letter["line"] == 2])
    assert lines_kept(tmp_path) == [2, 4]
    assert metrics.dead_letter_bytes.value() == on_disk(tmp_path)
    letters.replace(path, [])
    letters.replace(path, [{"line": 5}])  # it is gone, as when it had to make room
    assert lines_kept(tmp_path) == [4]


def test_new_letters_are_durable_before_old_ones_go(tmp_path, monkeypatch):
    """A line that was rejected once more never loses both of its letters in a power cut."""
    letters, _ = make(tmp_path)
    letters.append(1, "mqtt", "t", [error(1)])
    (path,) = letters.seal()
    letters.append(2, "mqtt", "t", [error(1)])
    order, real = record_syncs(monkeypatch), os.unlink

    def unlink(name, *arguments, **options):
        order.append(f"unlink {Path(name).name}")
        return real(name, *arguments, **options)

    monkeypatch.setattr(os, "unlink", unlink)
    letters.replace(path, [])
    assert order.index("rejects-0000000002.jsonl") < order.index(f"unlink {path.name}")


def test_purge(tmp_path):
    """All letters go, are counted, and the next one is kept as ever."""
    letters, metrics = make(tmp_path)
    for number in range(3):
        letters.append(number, "mqtt", "t", [error(number)])
    assert letters.purge() == 3
    assert (lines_kept(tmp_path), metrics.dead_letter_bytes.value()) == ([], 0)
    assert letters.purge() == 0
    letters.append(9, "mqtt", "t", [error(9)])
    assert lines_kept(tmp_path) == [9]
