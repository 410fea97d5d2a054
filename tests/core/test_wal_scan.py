"""Scanning a log: every change of its bytes is noticed, costs at most the record it hits, and invents nothing."""

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_appliance.core.wal_frame import BLOCK_BYTES, FrameType, Predecessor, encode_frame
from edge_appliance.core.wal_scan import Damage, Walk, find_salt, scan

SALT = 0x5EED
HEADER = bytes(BLOCK_BYTES)
GROUP = FrameType.GROUP


def frame(sequence, known, payload=None, *, kind=GROUP, salt=SALT, rows=None):
    """One frame; its payload tells its sequence."""
    payload = b"group %d" % sequence if payload is None else payload
    return encode_frame(
        kind, sequence, known, salt, payload, compress=False, rows=sequence * 10 if rows is None else rows
    )


def log(count, first=1):
    """A file with `count` groups, each synced before the next."""
    return HEADER + b"".join(frame(n, n - 1) for n in range(first, first + count))


def forge(one, offset, layout, value):
    """Change a header field of a frame and make its checksum good again."""
    changed = bytearray(one)
    struct.pack_into(layout, changed, offset, value)
    struct.pack_into("<I", changed, 60, zlib.crc32(changed[:60]))
    return bytes(changed)


def sequences(found):
    """Sequences of the records of a scan."""
    return [f.sequence for f in found.frames]


def check(data, **kwargs):
    """Scan with the usual salt and first sequence."""
    return scan(data, salt=SALT, first_sequence=1, **kwargs)


def test_scan_of_a_whole_log_gives_every_record():
    """Sequence, place, payload and rows come back."""
    found = check(log(3))
    assert [(f.sequence, f.durable_sequence, f.offset, f.length, f.payload, f.rows) for f in found.frames] == [
        (n, n - 1, n * BLOCK_BYTES, BLOCK_BYTES, b"group %d" % n, n * 10) for n in (1, 2, 3)
    ]
    assert (found.stop, found.valid_end, found.damaged, found.skipped) == ("end", 4 * BLOCK_BYTES, [], 0)


@pytest.mark.parametrize("data", [b"", b"x", HEADER, HEADER + bytes(3 * BLOCK_BYTES), HEADER + bytes(77)])
def test_scan_of_nothing_is_an_end(data):
    """No record, or blocks prepared for later ones, are no damage."""
    assert (check(data).frames, check(data).stop) == ([], "end")


def test_scan_cut_at_every_byte_of_the_last_two_records():
    """Only records whose bytes are gone are lost, and a cut is a torn tail; the padding is not missed."""
    data = log(4)
    ends = [n * BLOCK_BYTES + 64 + len(b"group 1") for n in (1, 2, 3, 4)]
    for length in range(3 * BLOCK_BYTES, len(data)):
        found = check(data[:length])
        whole = [n for n, end in enumerate(ends, 1) if end <= length]
        assert sequences(found) == whole, length
        assert found.valid_end == min(length, (len(whole) + 1) * BLOCK_BYTES)
        assert found.stop == ("end" if length <= found.valid_end else "torn")


@pytest.mark.slow
@pytest.mark.parametrize("change", [lambda byte: 0, lambda byte: byte ^ 0xFF, lambda byte: byte ^ 0x10])
def test_scan_with_every_byte_of_the_last_two_records_changed(change):
    """A changed record is noticed and nothing else is lost: damage when a later one proves it durable, else torn."""
    data = log(4)
    used = 64 + len(b"group 1")
    for at in range(3 * BLOCK_BYTES, len(data)):
        changed = bytearray(data)
        changed[at] = change(changed[at])
        found = check(bytes(changed))
        hit = at // BLOCK_BYTES
        if at % BLOCK_BYTES >= used or changed[at] == data[at]:
            assert (sequences(found), found.stop) == ([1, 2, 3, 4], "end"), at
        elif hit == 3:
            assert (sequences(found), found.stop) == ([1, 2, 4], "damaged"), at
            assert found.damaged[0][:2] == (3 * BLOCK_BYTES, BLOCK_BYTES)
            assert found.damaged[0][3:5] == (3, 3)
        else:
            assert (sequences(found), found.stop) == ([1, 2, 3], "torn"), at


def test_scan_with_every_bit_of_a_record_flipped():
    """No single bit of header or payload slips through, and none is blamed on a crash when it was durable."""
    data = log(3)
    for bit in range(8 * BLOCK_BYTES, 8 * (BLOCK_BYTES + 64 + 7)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        found = check(bytes(changed))
        assert (sequences(found), found.stop) == ([2, 3], "damaged"), bit


@pytest.mark.parametrize("size", [512, BLOCK_BYTES])
def test_scan_with_a_zeroed_sector(size):
    """A sector that the disk never wrote costs the record that it was part of."""
    data = HEADER + frame(1, 0) + frame(2, 1, b"x" * 9000) + frame(3, 2)
    for start in range(2 * BLOCK_BYTES, 5 * BLOCK_BYTES, size):
        changed = data[:start] + bytes(size) + data[start + size :]
        is_padding = start - 2 * BLOCK_BYTES >= 9064
        assert sequences(check(changed)) == ([1, 2, 3] if is_padding else [1, 3]), start


def test_damage_names_rows_when_the_frame_header_is_intact():
    """The loss is stated exactly when it can be."""
    data = bytearray(log(3))
    data[2 * BLOCK_BYTES + 64] ^= 1
    assert check(bytes(data)).damaged == [Damage(2 * BLOCK_BYTES, BLOCK_BYTES, "payload checksum", 2, 2, 20)]
    data[2 * BLOCK_BYTES] ^= 1
    assert check(bytes(data)).damaged == [Damage(2 * BLOCK_BYTES, BLOCK_BYTES, "no frame", 2, 2, None)]


def test_damage_over_several_records_is_one_range():
    """Adjacent losses are one range with first and last sequence."""
    data = log(5)
    data = data[: 2 * BLOCK_BYTES] + b"\xff" * 3 * BLOCK_BYTES + data[5 * BLOCK_BYTES :]
    assert check(data).damaged == [Damage(2 * BLOCK_BYTES, 3 * BLOCK_BYTES, "no frame", 2, 4)]


def test_record_behind_a_torn_one_is_kept():
    """Two records under one sync, the first lost: the second may be acknowledged, the first cannot be proven to be."""
    found = check(HEADER + bytes(BLOCK_BYTES) + frame(2, 0))
    assert (sequences(found), found.stop) == ([2], "torn")
    assert found.damaged[0].is_torn


def test_later_record_proves_an_earlier_loss():
    """A record two places behind states that the lost one was durable."""
    found = check(HEADER + bytes(BLOCK_BYTES) + frame(2, 0) + frame(3, 2))
    assert (sequences(found), found.stop) == ([2, 3], "damaged")
    assert found.damaged == [Damage(BLOCK_BYTES, BLOCK_BYTES, "no frame", 1, 1)]


def test_missing_sequence_is_a_hole():
    """Records that are gone without a trace are stated."""
    found = check(HEADER + frame(1, 0) + frame(4, 1))
    assert found.damaged == [Damage(2 * BLOCK_BYTES, 0, "hole", 2, 3)]
    assert found.stop == "damaged"


@pytest.mark.parametrize("again", [1, 2], ids=["older", "same"])
def test_sequence_that_runs_back_is_not_replayed(again):
    """A block that the disk wrote to a wrong place gives no record twice."""
    found = check(HEADER + frame(1, 0) + frame(2, 1) + frame(again, 0) + frame(3, 2))
    assert sequences(found) == [1, 2, 3]
    assert found.damaged[0].reason == "sequence runs back"


def test_seal_repeats_the_last_sequence():
    """A seal takes no sequence, and proves the record before it."""
    seal = frame(2, 2, b"", kind=FrameType.SEAL, rows=0)
    assert [f.type for f in check(log(2) + seal).frames] == [GROUP, GROUP, FrameType.SEAL]
    assert check(log(2) + seal).stop == "end"
    found = check(log(1) + bytes(BLOCK_BYTES) + seal)
    assert found.damaged == [Damage(2 * BLOCK_BYTES, BLOCK_BYTES, "no frame", 2, 2)]


def test_content_of_another_file_is_not_replayed():
    """What a recycled block still holds has another salt."""
    found = check(log(2) + frame(3, 2, salt=SALT + 1))
    assert (sequences(found), found.stop) == ([1, 2], "torn")


def sealed_at(data, count):
    """What a successor's header says when `count` records were durable."""
    frames = scan(data, salt=SALT).frames
    return Predecessor(1, (count + 1) * BLOCK_BYTES, frames[count - 1].crc if count else 0)


def test_sealed_file_hides_what_lies_behind_its_durable_length():
    """Ghosts of a failed sync are ignored, valid as they look, and so is junk there."""
    data = log(4)
    for tail in (b"", b"junk", bytes(9000), data[BLOCK_BYTES:]):
        found = check(data + tail, sealed=sealed_at(data, 2))
        assert (sequences(found), found.stop, found.valid_end) == ([1, 2], "end", 3 * BLOCK_BYTES)


def test_sealed_file_that_is_too_short_is_damaged():
    """A file that ends before its durable length lost acknowledged records, also when it ends at a boundary."""
    data = log(4)
    for length in (2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 100, 3 * BLOCK_BYTES):
        found = check(data[:length], sealed=sealed_at(data, 3))
        assert found.stop == "damaged"
        assert found.damaged[-1].offset + found.damaged[-1].length == 4 * BLOCK_BYTES
        assert found.damaged[-1].first_sequence == len(found.frames) + 1


@pytest.mark.parametrize("junk", [bytes(BLOCK_BYTES), b"\xff" * BLOCK_BYTES], ids=["zeros", "ones"])
def test_sealed_file_has_no_torn_tail(junk):
    """Inside the durable length a bad last record is damage, zeroed ones included."""
    data = log(3)
    found = check(data[: 3 * BLOCK_BYTES] + junk, sealed=sealed_at(data, 3))
    assert (sequences(found), found.stop) == ([1, 2], "damaged")


def test_sealed_file_with_another_last_record_is_noticed():
    """The successor's link fits only the file it was written for."""
    sealed = sealed_at(log(2), 2)
    other = HEADER + frame(1, 0) + frame(2, 1, b"other")
    assert check(other, sealed=sealed).damaged == [Damage(3 * BLOCK_BYTES, 0, "successor names another last record")]


def test_unknown_type_that_may_be_skipped_is_skipped_and_counted():
    """A hint of a later release does not stop an older one."""
    hint = forge(frame(2, 1, kind=FrameType.PERSIST_END), 5, "<B", 200)
    found = check(HEADER + frame(1, 0) + hint + frame(3, 2))
    assert (sequences(found), found.skipped, found.stop) == ([1, 3], 1, "end")


def test_unknown_type_that_must_not_be_skipped_is_damage():
    """Rows that this release cannot read are never lost in silence, even as the last record."""
    rows = forge(frame(2, 1), 5, "<B", 200)
    for tail in (b"", frame(3, 2)):
        found = check(HEADER + frame(1, 0) + rows + tail)
        assert found.damaged == [Damage(2 * BLOCK_BYTES, BLOCK_BYTES, "unknown type", 2, 2, 20)]
        assert found.stop == "damaged"


def test_unknown_frame_version_is_damage_and_never_a_torn_tail():
    """A record of a later layout is not decoded by guess."""
    later = forge(frame(2, 1), 4, "<B", 2)
    found = check(HEADER + frame(1, 0) + later)
    assert found.damaged == [Damage(2 * BLOCK_BYTES, BLOCK_BYTES, "unknown version", 2, 2, 20)]
    assert found.stop == "damaged"


def test_unreadable_range_is_damage_and_its_neighbours_are_read():
    """A bad sector costs its record, wherever it is in the file."""
    data = log(4)

    def read_at(offset, length):
        return None if offset // BLOCK_BYTES in {2, 4} else data[offset : offset + length]

    found = list(Walk(read_at, len(data), salt=SALT, first_sequence=1))
    assert found[-1] == Damage(4 * BLOCK_BYTES, BLOCK_BYTES, "unreadable", 4)
    assert [f if isinstance(f, Damage) else f.sequence for f in found[:-1]] == [
        *(1, Damage(2 * BLOCK_BYTES, BLOCK_BYTES, "unreadable", 2, 2), 3),
    ]


def test_knowledge_from_a_later_file_proves_a_lost_tail():
    """With the successor missing, a later file still shows that the tail had been durable."""
    data = log(2) + b"\xff" * BLOCK_BYTES
    walk = Walk(lambda o, n: data[o : o + n], len(data), salt=SALT, first_sequence=1, durable_sequence=5)
    assert [f for f in walk if isinstance(f, Damage)] == [Damage(3 * BLOCK_BYTES, BLOCK_BYTES, "no frame", 3)]


def test_find_salt_of_a_file_whose_header_is_damaged():
    """The first valid frame tells the salt; a file without one has none."""

    def salt_of(data):
        return find_salt(lambda offset, length: data[offset : offset + length], len(data))

    damaged = bytearray(log(2))
    damaged[BLOCK_BYTES + 64] ^= 1
    assert salt_of(log(2)) == salt_of(bytes(damaged)) == SALT
    assert salt_of(b"\xff" * 9000) is None
    assert salt_of(b"") is None


sizes = st.lists(st.integers(0, 3 * BLOCK_BYTES), min_size=1, max_size=6)


@settings(max_examples=50)
@given(sizes, st.data())
def test_any_prefix_of_a_log_gives_a_prefix_of_its_records(lengths, data):
    """A cut never reorders, doubles or invents."""
    whole = HEADER + b"".join(frame(n, n - 1, b"%d" % n * size) for n, size in enumerate(lengths, 1))
    everything = check(whole).frames
    assert len(everything) == len(lengths)
    found = check(whole[: data.draw(st.integers(0, len(whole)))])
    assert found.frames == everything[: len(found.frames)]
    assert found.stop != "damaged"


@settings(max_examples=50)
@given(sizes, st.data())
def test_any_overwritten_range_costs_only_the_records_it_hits(lengths, data):
    """What is not hit is there, what is there was written."""
    whole = HEADER + b"".join(frame(n, n - 1, b"%d" % n * size) for n, size in enumerate(lengths, 1))
    everything = check(whole).frames
    start = data.draw(st.integers(BLOCK_BYTES, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=200))[: len(whole) - start]
    found = check(whole[:start] + junk + whole[start + len(junk) :])
    missed = [f for f in everything if f.offset >= start + len(junk) or f.offset + f.length <= start]
    assert [f for f in everything if f in found.frames] == found.frames
    assert all(f in found.frames for f in missed)


@settings(max_examples=50)
@given(st.binary(max_size=3000), st.sampled_from([b"", b"EDGF", frame(1, 0)[:64]]), st.integers(0, 2**20))
def test_any_junk_is_scanned_without_an_error(junk, start, length):
    """Nothing is raised and nothing is invented."""
    found = scan(HEADER + start + junk, salt=SALT, first_sequence=1, sealed=Predecessor(1, length, 0))
    assert [f.sequence for f in found.frames] in ([], [1])
    assert scan(junk, salt=SALT).frames == []
