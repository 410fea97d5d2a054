"""Payloads of WAL records: they come back as they went in, and no bytes make a decoder raise anything foreign."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_appliance.core.delivery import ColumnDefinition, DeliveryKey, Kind, TableDefinition
from edge_appliance.core.wal_record import (
    GroupRecord,
    LoggedEntry,
    PersistBegin,
    decode_begin,
    decode_end,
    decode_group,
    encode_begin,
    encode_end,
    encode_group,
    group_rows,
)
from edge_appliance.errors import FormatError

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
definitions = st.builds(
    TableDefinition,
    names,
    names,
    st.lists(st.builds(ColumnDefinition, names, st.sampled_from(Kind)), max_size=4).map(tuple),
)
entries = st.builds(
    LoggedEntry,
    arrival_ns=st.integers(-(2**63), 2**63 - 1),
    clock_unset=st.booleans(),
    database=names,
    precision=st.sampled_from(["auto", "ns", "us", "ms", "s"]),
    tags=st.lists(st.tuples(names, names), max_size=3).map(tuple),
    source=st.sampled_from(["mqtt", "http"]),
    key=st.none() | st.builds(DeliveryKey, st.integers(0, 65535), st.binary(min_size=16, max_size=16)),
    times_crc=st.integers(0, 2**32 - 1),
    spans=st.lists(st.binary(max_size=20), max_size=4),
)
groups = st.builds(
    GroupRecord,
    parser_version=st.integers(0, 65535),
    definitions=st.lists(definitions, max_size=3),
    entries=st.lists(entries, max_size=5),
)


def entry(*spans, **changes):
    """An entry with unremarkable settings."""
    settings = {
        "arrival_ns": 1_700_000_000_000_000_000,
        "clock_unset": False,
        "database": "edge",
        "precision": "auto",
        "tags": (("device", "d1"),),
        "source": "mqtt",
        "key": None,
        "times_crc": 0,
    }
    return LoggedEntry(**{**settings, **changes}, spans=list(spans))


@given(groups)
def test_group_comes_back_as_it_went_in(record):
    """Every value of a group survives the log."""
    payload = encode_group(record)
    group = decode_group(payload)
    assert GroupRecord(group.parser_version, group.definitions, group.entries()) == record
    assert group_rows(payload) == record.rows


def test_group_keeps_line_feeds_inside_a_span():
    """A span is stored with its length and never split again."""
    record = GroupRecord(1, [], [entry(b'm s="a\nb" 1', b"", b"m f=1\r")])
    assert decode_group(encode_group(record)).entries()[0].spans == [b'm s="a\nb" 1', b"", b"m f=1\r"]


def test_group_stores_settings_once():
    """A thousand entries of one route cost their numbers and their text."""
    one = encode_group(GroupRecord(1, [], [entry(b"m f=1")]))
    many = encode_group(GroupRecord(1, [], [entry(b"m f=1")] * 1000))
    assert (len(many) - len(one)) / 999 == 8 + 1 + 3 * 4 + 4 + len(b"m f=1")


def test_group_refuses_a_digest_of_another_length():
    """A wrong digest would shift every key behind it."""
    with pytest.raises(ValueError, match="digest"):
        encode_group(GroupRecord(1, [], [entry(key=DeliveryKey(1, b"short"))]))


@given(st.binary(max_size=300))
def test_decoders_raise_only_format_errors_on_any_bytes(payload):
    """Even behind a good checksum nothing else escapes."""
    for decode in (decode_group, decode_begin, decode_end):
        try:
            decode(payload)
        except FormatError as error:
            assert 0 <= error.offset <= len(payload)


@given(groups, st.data())
def test_decode_group_survives_any_changed_byte(record, data):
    """A changed payload is another record or a FormatError."""
    payload = bytearray(encode_group(record))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with suppress(FormatError):
        decode_group(bytes(payload))


@given(groups, st.data())
def test_decode_group_refuses_a_cut_payload(record, data):
    """No prefix of a payload is taken for a shorter one."""
    payload = encode_group(record)
    with pytest.raises(FormatError):
        decode_group(payload[: data.draw(st.integers(0, len(payload) - 1))])


def test_decode_group_refuses_huge_counts_before_it_allocates():
    """A count is compared with the bytes that are left, not believed."""
    payload = struct.pack("<HHIIIII", 1, 0, 0, 0, 2**32 - 1, 0, 2**32 - 1)
    with pytest.raises(FormatError, match="ends too early"):
        decode_group(payload)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda b: b + b"x", "line lengths"),
        (lambda b: b[:-9] + struct.pack("<I", 4) + b[-5:], "line lengths"),
        (lambda b: b[:-13] + struct.pack("<I", 2) + b[-9:], "line counts"),
        (lambda b: b[:-21] + struct.pack("<I", 7) + b[-17:], "context"),
        (lambda b: b[:-22] + b"\x02" + b[-21:], "delivery keys"),
    ],
    ids=["text left over", "line too short", "wrong row count", "unknown context", "missing key"],
)
def test_decode_group_refuses_contradictions(change, reason):
    """Numbers that do not fit each other are an error, not a guess."""
    payload = encode_group(GroupRecord(1, [], [entry(b"m f=1")]))
    with pytest.raises(FormatError, match=reason):
        decode_group(change(payload))


@given(names, names, st.integers(-(2**63), 2**63 - 1))
def test_begin_comes_back_as_it_went_in(database, table, time_ns):
    """A set-aside names its table and its time."""
    assert decode_begin(encode_begin(database, table, time_ns)) == PersistBegin(database, table, time_ns)


@pytest.mark.parametrize("sequence", [0, 1, 2**64 - 1])
def test_end_comes_back_as_it_went_in(sequence):
    """An end names the sequence of its begin."""
    assert decode_end(encode_end(sequence)) == sequence


def test_begin_and_end_refuse_bytes_left_over():
    """A longer payload is of another format."""
    with pytest.raises(FormatError, match="left over"):
        decode_begin(encode_begin("a", "b", 1) + b"\0")
    with pytest.raises(FormatError, match="left over"):
        decode_end(encode_end(1) + b"\0")
