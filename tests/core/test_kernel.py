"""The compiled kernel does what the reference does, to the byte: rows, errors, log payloads, sizes, definitions."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import support
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.appenders import IS_COMPILED, Script, Side, Write, differences

from edge_appliance.core import append_reference
from edge_appliance.core.append import Appender
from edge_appliance.core.delivery import MAX_ERRORS, ColumnDefinition, DeliveryKey, Kind, Origin, TableDefinition
from edge_appliance.core.line_names import Limits
from edge_appliance.core.schema import SchemaLimits
from edge_appliance.core.wal_record import GroupRecord, decode_group, encode_group

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="the kernel was not built")

TAGS = [(), (("a", "1"), ("site", "x"))]
ORIGINS = [
    Origin("edge", precision, tags, "mqtt", label, "r", first, ahead)
    for precision, tags, label, first, ahead in [
        ("ns", (), "plain", None, None),
        ("ns", TAGS[1], "tagged", None, None),
        ("auto", (), "auto", 0, 10**18),
        ("s", TAGS[1], "seconds", 1_420_070_400_000_000_000, 600 * 10**9),
        ("us", (), "micros", None, 0),
    ]
]

PIECES = [
    *(b",", b"=", b" ", b"\n", b"\\", b'"', b"\t", b"\r", b"\0", b"#", b"\\\\", b'\\"', b"\\ ", b"\\,", b"\\="),
    *(b"p", b"p v=1", b"p,a=b v=1", b",a=", b" v=", b",w=", b'="', b'"\n', b"\np v=1\n", b' s="a,b c"', b"\r\n"),
    *(b"1", b"-5i", b"7u", b"t", b"nan", b"-Inf", b".5", b"1e400", b"99999999999999999999", b"1700000000000000000"),
    *(b"_edge", b"time", b"\xc3\xa9", "\U0001f600".encode(), b"\xff", b"\xef\xbb\xbf", b"\x0b", "\u0661".encode()),
]
GOOD = [
    b"cpu,host=gw-01,core=3 user=12.5,system=3.25,idle=84.2 1700000000000000000",
    b"pump,site=a rpm=1200i,on=t,n=7u",
    b'alarm msg="Door \\"A\\" open, zone=3",ok=f 1700000000',
    b'oplog,hmi=p2 note="shift change\ncounter reset",n=2i',
    b"fan\\ speed,room=Server\\ Room\\,\\ East,rack=R\\=7 rpm=1420i -5\r",
    b"w v=nan,x=-.5e-3,y=7. 5000000001",
    b"p v=1",
    b"p,a=b v=1,w=2i",
]
WORDS = [
    *("0", "-0", "1", "0.1", "12.5", "-273.15", "1e5", "1.5E-3", "9007199254740993", "0.30000000000000004"),
    *("123456789012345678901234567890", "4.9e-324", "1.7976931348623157e308", "1e400", "-1e400", ".5", "5.", "-.5"),
    *("0i", "-0i", "5i", "-9223372036854775808i", "9223372036854775807i", "9223372036854775808i", "007i"),
    *("0u", "18446744073709551615u", "18446744073709551616u", "-1u", "9007199254740992i", "9007199254740993i"),
    *("t", "F", "true", "FALSE", "tRUE", "nan", "+Inf", "-infinity", "NaN1", ".", "-", "1_0", "0x1", "1e", "i", "u"),
    *('""', '"a"', '"a\\"b\\\\c\\d"', '"é"', '"two\nlines"', '"open', "", '"x"y', "1 2 3", "\t"),
]


@st.composite
def damaged(draw) -> bytes:
    """Good lines with a few bytes replaced, inserted or removed."""
    text = bytearray(b"\n".join(draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(PIECES))
    return bytes(text)


keys = st.sampled_from(["a", "b", "v", "w", "x", "e\\ f", "g\\=h", "i\\j", "time", "_edgex", "site", "é", "a\\\\b"])
lines = st.builds(
    lambda table, tags, fields, time: (
        f"{table}{''.join(f',{k}={v}' for k, v in tags)} {','.join(f'{k}={v}' for k, v in fields)}{time}"
    ).encode(),
    st.sampled_from(["p", "q", "r\\,s", "_edge"]),
    st.lists(st.tuples(keys, st.sampled_from(["1", "x\\ y", "é"])), max_size=2),
    st.lists(st.tuples(keys, st.one_of(st.sampled_from(WORDS), st.floats().map(repr))), min_size=1, max_size=4),
    st.sampled_from(
        ["", " 5", " 1700000000", " -1", " 9223372036854775807", " 99999999999999999999", " 86400000000000"]
    ),
)
payloads = st.one_of(
    st.lists(lines, min_size=1, max_size=5).map(b"\n".join),
    damaged(),
    st.lists(st.sampled_from(PIECES), max_size=24).map(b"".join),
    st.binary(max_size=60),
)
writes = st.builds(
    Write,
    payloads,
    st.sampled_from(ORIGINS),
    accept_partial=st.sampled_from([True, True, True, False]),
    clock_unset=st.booleans(),
    key=st.sampled_from([None, DeliveryKey(7, bytes(range(16)))]),
)
scripts = st.builds(
    Script,
    st.lists(st.lists(writes, min_size=1, max_size=4), min_size=1, max_size=4),
    limits=st.sampled_from([Limits(), Limits(), Limits(4, 3, 5), Limits(1 << 16, 1 << 16, 1 << 20, 30)]),
    schema_limits=st.sampled_from([None, None, SchemaLimits(1, 2, 3)]),
    failing=st.sets(st.integers(0, 3), max_size=2),
)


EXAMPLES = int(os.environ.get("EDGE_FUZZ_EXAMPLES", "400"))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(scripts)
def test_kernel_equals_the_reference(script):
    """Any bytes in any grouping, with groups that fail in between, give the same in every respect; so does replay."""
    assert differences(script) == []


@pytest.mark.parametrize("kind", list(Kind)[1:])
def test_replay_without_definitions_equals_the_reference(kind):
    """A log whose definitions are lost or contradict the lines: the same rows, the same words in the same order."""
    script = Script([])
    writer = Side(Appender, script)
    lines = b"\n".join(b'p,a=%d v=%di,w="x",x%d=1u %d' % (n % 3, n, n % 7, n) for n in range(2 * MAX_ERRORS))
    payloads = [b"p,a=9 u=1", lines, b"p v=7i\n\xc3\xa9,b=1 v=t"]
    for payload in payloads:
        writer.write([Write(payload, ORIGINS[0])], fails=False)
    seen = []
    for appender in (append_reference.Appender, Appender):
        side = Side(appender, script)
        side.schema.define(TableDefinition("edge", "p", (ColumnDefinition("v", kind),)))
        seen.append(repr(side.replay([without_definitions(record) for record in writer.records])))
    assert seen[0] == seen[1]


def without_definitions(record: bytes) -> bytes:
    """A logged group as damage to the ones before leaves it, whose second line now ends in what is no text."""
    group = decode_group(record)
    entries = group.entries()
    entries[0].spans = [span + b"\xff" if n == 1 else span for n, span in enumerate(entries[0].spans)]
    return encode_group(GroupRecord(group.parser_version, [], entries))


@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="this Python cannot be made to lack memory")
def test_want_of_memory_is_an_error_and_leaves_no_trace():
    """Whichever allocation fails, MemoryError comes out; taken back, the group can be appended as if nothing was."""
    # In a process of its own: allocations fail in all threads.
    program = [sys.executable, str(Path(support.__path__[0]) / "without_memory.py")]
    found = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "the same\n"), found.stderr


@pytest.mark.parametrize(
    "bad", [b"p v=", b"p,a=b v=t", b"p,a=b a=1", b"_edge v=1", b"p v=1,v=2", b"p v=1 x", b"p,a=b v=nan", b"q\\ v=1"]
)
def test_many_rejected_lines_are_counted_by_reason(bad):
    """Beyond the first thousand of a delivery, whatever is wrong with them, as in the reference."""
    payload = b"p,a=b v=1 5\n" + b"\n".join([bad] * 1_003 + [b"p v=", b"m"])
    assert differences(Script([[Write(payload, ORIGINS[0])]])) == []
