"""cli.wal on files made with the log's own codec."""

import pytest

from edge_appliance.cli import main as cli
from edge_appliance.core.delivery import ColumnDefinition, Kind, TableDefinition
from edge_appliance.core.wal_frame import (
    BLOCK_BYTES,
    FileHeader,
    FrameType,
    Predecessor,
    encode_frame,
    encode_header,
)
from edge_appliance.core.wal_record import GroupRecord, LoggedEntry, encode_begin, encode_group
from edge_appliance.wal_file import file_name

SALT = 7


def group(lines):
    """A group record with one entry of so many lines."""
    definition = TableDefinition("edge", "cpu", (ColumnDefinition("user", Kind.FLOAT),))
    spans = [b"cpu user=%d 1" % number for number in range(lines)]
    return encode_group(GroupRecord(1, [definition], [LoggedEntry(1, False, "edge", "ns", (), "mqtt", None, 0, spans)]))


def frame(sequence, kind=FrameType.GROUP, payload=None, durable=None, lines=3):
    """A frame; by default everything before it was durable."""
    payload = group(lines) if payload is None else payload
    return encode_frame(kind, sequence, sequence - 1 if durable is None else durable, SALT, payload, compress=False)


def header(segment_id, first_sequence, previous=None):
    """The header block of a file begun on 2026-01-01."""
    return encode_header(
        FileHeader(1, "gw-01", "0a1b2c3d", segment_id, first_sequence, SALT, 1_767_225_600 * 10**9, 1, previous)
    )


@pytest.fixture
def directory(tmp_path):
    """A log of two files, the first sealed by the second."""
    frames = [frame(1), frame(2, FrameType.PERSIST_BEGIN, encode_begin("edge", "cpu", 5)), frame(3, lines=4)]
    first = header(1, 1) + b"".join(frames)
    crc = int.from_bytes(frames[-1][60:64], "little")
    second = header(2, 4, Predecessor(1, len(first), crc)) + frame(4)
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / file_name(1)).write_bytes(first)
    (tmp_path / "wal" / file_name(2)).write_bytes(second)
    return tmp_path / "wal"


def damage(path, offset):
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_inspect_directory(directory, capsys):
    """Each file is shown with id, sequences, frames by type, entries, lines and bytes."""
    assert cli.main(["wal", "inspect", str(directory)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{directory}/{file_name(1)}  16 KiB",
        "  segment 1 of gw-01-0a1b2c3d, begun 2026-01-01T00:00:00Z",
        "  sequences 1-3: 2 GROUP, 1 PERSIST_BEGIN",
        "  2 entries, 7 lines",
        f"{directory}/{file_name(2)}  8 KiB",
        "  segment 2 of gw-01-0a1b2c3d, begun 2026-01-01T00:00:00Z",
        "  sequences 4-4: 1 GROUP",
        "  1 entries, 3 lines",
    ]


@pytest.mark.parametrize("action", ["inspect", "verify"])
def test_sound_log(directory, capsys, action):
    """A sound log ends with 0, also when the data directory is named."""
    assert cli.main(["wal", action, str(directory.parent)]) == 0
    assert "DAMAGE" not in capsys.readouterr().out


def test_verify_damage(directory, capsys):
    """A flipped bit in a durable record is damage with its coordinates, and verify ends with 1."""
    damage(directory / file_name(1), BLOCK_BYTES + 100)
    assert cli.main(["wal", "verify", str(directory)]) == 1
    text = capsys.readouterr().out
    assert f"DAMAGE at byte {BLOCK_BYTES}, {BLOCK_BYTES} bytes: payload checksum, sequences 1-1" in text
    assert text.endswith("2 file(s), 1 damaged\n")


def test_verify_single_file_knows_its_successor(directory, capsys):
    """A file cut short before the end that its successor states is damaged, even when asked for alone."""
    path = directory / file_name(1)
    path.write_bytes(path.read_bytes()[: -2 * BLOCK_BYTES])
    assert cli.main(["wal", "verify", str(path)]) == 1
    assert "1 file(s), 1 damaged" in capsys.readouterr().out


def test_torn_tail_is_no_damage(directory, capsys):
    """What a crash tore off the newest file had never been durable: shown, and not held against it."""
    path = directory / file_name(2)
    path.write_bytes(path.read_bytes() + frame(5)[:80])
    assert cli.main(["wal", "verify", str(directory)]) == 0
    cli.main(["wal", "inspect", str(path)])
    assert "torn by a crash at byte 8192" in capsys.readouterr().out


def test_damaged_header(directory, capsys):
    """Without its header a file is damaged, and its records are shown all the same."""
    damage(directory / file_name(1), 20)
    assert cli.main(["wal", "verify", str(directory)]) == 1
    text = capsys.readouterr().out
    assert "DAMAGE at byte 0" in text
    assert "sequences 1-3" in text


def test_payload_that_replay_could_not_decode(directory, capsys):
    """A good checksum is not enough: the record must decode."""
    path = directory / file_name(2)
    path.write_bytes(path.read_bytes() + frame(5, payload=b"nonsense", durable=4))
    assert cli.main(["wal", "verify", str(path)]) == 1
    assert "group record" in capsys.readouterr().out


def test_not_a_wal_file(tmp_path, capsys):
    """Another file is said to be one."""
    path = tmp_path / file_name(9)
    path.write_bytes(b"x" * 10_000)
    assert cli.main(["wal", "verify", str(path)]) == 1
    assert "DAMAGE: " in capsys.readouterr().out


def test_empty_directory(tmp_path, capsys):
    """No files are no damage."""
    assert cli.main(["wal", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no WAL files in {tmp_path}\n"


def test_path_does_not_exist(tmp_path, capsys):
    """A path that is not there is one line and 1."""
    assert cli.main(["wal", "inspect", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == f"{tmp_path}/nowhere: No such file or directory\n"


def test_looking_changes_nothing(directory):
    """Neither action touches the files, damaged ones included."""
    damage(directory / file_name(1), 20)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}
    cli.main(["wal", "inspect", str(directory)])
    cli.main(["wal", "verify", str(directory)])
    assert before == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}
