"""Durable file operations: what is synced, in which order, and what an error leaves behind."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edge_appliance import durable
from edge_appliance.errors import DiskError, PathError


class Recorder:
    """Records syncs, renames, links and unlinks by name, in order, and really does them."""

    def __init__(self, monkeypatch):
        self.calls = []
        self._patch = monkeypatch
        for name in ("fsync", "fdatasync"):
            self._wrap(name, lambda fd: Path(f"/proc/self/fd/{fd}").readlink().name)
        self._wrap("replace", lambda source, target: Path(target).name)
        self._wrap("link", lambda source, target: Path(target).name)
        self._wrap("unlink", lambda path: Path(path).name)

    def _wrap(self, name, describe):
        real = getattr(os, name)

        def call(*args, **kwargs):
            self.calls.append((name, describe(*args)))
            return real(*args, **kwargs)

        self._patch.setattr(os, name, call)


def failing(error_number):
    """A system call that always fails."""

    def call(*_args, **_kwargs):
        raise OSError(error_number, os.strerror(error_number))

    return call


def names(directory):
    """What is in a directory."""
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def recorder(monkeypatch):
    """The order of the system calls that matter."""
    return Recorder(monkeypatch)


def test_publish_syncs_before_the_rename_and_the_directory_behind_it(tmp_path, recorder):
    """An empty file never shows under the final name after a power cut, and the name stays."""
    source = tmp_path / "part.tmp"
    source.write_bytes(b"rows")
    durable.publish(source, tmp_path / "part")
    assert recorder.calls == [("fsync", "part.tmp"), ("replace", "part"), ("fsync", tmp_path.name)]
    assert (tmp_path / "part").read_bytes() == b"rows"


def test_publish_across_directories_syncs_both(tmp_path, recorder):
    """The name that goes is durable like the one that comes."""
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "x").write_bytes(b"1")
    durable.publish(tmp_path / "from" / "x", tmp_path / "to" / "y")
    assert recorder.calls[-2:] == [("fsync", "to"), ("fsync", "from")]


def test_publish_keeps_the_old_content_when_the_sync_fails(tmp_path, monkeypatch):
    """A failed sync is an error, not a replaced file."""
    path, temporary = tmp_path / "state", tmp_path / "state.tmp"
    path.write_bytes(b"old")
    temporary.write_bytes(b"new")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(DiskError) as caught:
        durable.publish(temporary, path)
    assert caught.value.errno == errno.EIO
    assert path.read_bytes() == b"old"


def test_remove_syncs_the_directory(tmp_path, recorder):
    """A removed file does not come back."""
    path = tmp_path / "x"
    path.touch()
    assert durable.remove(path) is True
    assert recorder.calls == [("unlink", "x"), ("fsync", tmp_path.name)]


def test_remove_of_a_missing_file_still_syncs_the_directory(tmp_path, recorder):
    """Trying again after a failed directory sync makes the earlier unlink durable."""
    assert durable.remove(tmp_path / "gone") is False
    assert recorder.calls[-1] == ("fsync", tmp_path.name)


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_sync_data_keeps_the_error_number(tmp_path, monkeypatch, error_number):
    """The caller can tell a full disk from a broken one."""
    monkeypatch.setattr(os, "fdatasync", failing(error_number))
    with pytest.raises(DiskError) as caught:
        durable.sync_data(0, "log")
    assert (caught.value.operation, caught.value.path, caught.value.errno) == ("fdatasync", "log", error_number)


@pytest.mark.parametrize("word", [durable.sync_file, durable.sync_directory])
def test_sync_of_a_missing_path_is_a_disk_error(tmp_path, word):
    """Nothing foreign escapes."""
    with pytest.raises(DiskError) as caught:
        word(tmp_path / "missing")
    assert caught.value.errno == errno.ENOENT


def test_sync_directory_refuses_a_file(tmp_path):
    """A file in place of the directory is an error and not a sync of the wrong thing."""
    (tmp_path / "x").touch()
    with pytest.raises(DiskError):
        durable.sync_directory(tmp_path / "x")


def test_make_directory_syncs_every_parent_it_created_in(tmp_path, recorder):
    """Each new name is durable in its parent, from the top down."""
    durable.make_directory(tmp_path / "a" / "b")
    assert recorder.calls == [("fsync", tmp_path.name), ("fsync", "a")]
    assert (tmp_path / "a" / "b").is_dir()


def test_make_directory_of_an_existing_one_does_nothing(tmp_path, recorder):
    """No sync is spent on what is there."""
    durable.make_directory(tmp_path)
    assert recorder.calls == []


def test_make_directory_over_a_file_is_a_path_error(tmp_path):
    """The message names the path that is in the way."""
    (tmp_path / "x").touch()
    with pytest.raises(PathError, match="not a directory"):
        durable.make_directory(tmp_path / "x")
    with pytest.raises(PathError):
        durable.make_directory(tmp_path / "x" / "y")


def test_lock_directory_keeps_another_process_out(tmp_path):
    """Two daemons never share a data directory; the lock ends with its holder."""
    code = (
        "import sys; from edge_appliance import durable, errors\n"
        "try: durable.lock_directory(sys.argv[1])\n"
        "except errors.PathError as error: print(error.reason)\n"
        "else: print('locked')"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with durable.lock_directory(tmp_path):
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        assert answer.stdout == "in use by another process\n"
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == "locked\n"


def test_lock_directory_in_the_same_process_is_refused_too(tmp_path):
    """A second lock in one process is as wrong as in two; releasing twice is harmless."""
    handle = durable.lock_directory(tmp_path)
    with pytest.raises(PathError, match="in use by another process"):
        durable.lock_directory(tmp_path)
    handle.release()
    handle.release()
    durable.lock_directory(tmp_path).release()


def test_lock_directory_that_is_missing_is_a_path_error(tmp_path):
    """The exit code for a path that cannot be used depends on this type."""
    with pytest.raises(PathError):
        durable.lock_directory(tmp_path / "missing")


def test_link_or_copy_links_and_syncs_the_directory(tmp_path, recorder):
    """On one file system the second name costs no copy."""
    (tmp_path / "a").write_bytes(b"rows")
    durable.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").samefile(tmp_path / "b")
    assert recorder.calls == [("link", "b"), ("fsync", tmp_path.name)]


@pytest.mark.parametrize("error_number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_link_or_copy_copies_where_links_do_not_reach(tmp_path, monkeypatch, error_number):
    """The copy is synced before it gets its name."""
    (tmp_path / "a").write_bytes(b"rows")
    recorder = Recorder(monkeypatch)
    monkeypatch.setattr(os, "link", failing(error_number))
    durable.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"rows"
    assert not (tmp_path / "a").samefile(tmp_path / "b")
    assert recorder.calls[:3] == [("fsync", "b.tmp"), ("replace", "b"), ("fsync", tmp_path.name)]
    assert names(tmp_path) == ["a", "b"]


def test_link_or_copy_accepts_an_equal_file(tmp_path, recorder):
    """Doing it again after a crash is harmless, and makes the earlier try durable."""
    (tmp_path / "a").write_bytes(b"rows")
    (tmp_path / "b").write_bytes(b"rows")
    durable.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert recorder.calls[-2:] == [("fsync", "b"), ("fsync", tmp_path.name)]


@pytest.mark.parametrize("other", [b"ROWS", b"row", b""])
def test_link_or_copy_refuses_other_content_under_the_name(tmp_path, other):
    """A name never changes its content."""
    (tmp_path / "a").write_bytes(b"rows")
    (tmp_path / "b").write_bytes(other)
    with pytest.raises(DiskError) as caught:
        durable.link_or_copy(tmp_path / "a", tmp_path / "b")
    assert caught.value.errno == errno.EEXIST
    assert (tmp_path / "b").read_bytes() == other


def test_free_space_is_that_of_the_file_system(tmp_path):
    """It comes from statvfs; reserved blocks do not count."""
    stat = os.statvfs(tmp_path)
    assert 0 <= durable.free_bytes(tmp_path) <= stat.f_bfree * stat.f_frsize
    with pytest.raises(DiskError):
        durable.free_bytes(tmp_path / "missing")
