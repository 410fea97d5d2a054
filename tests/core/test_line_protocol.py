r"""Line protocol by cases: the bytes of a payload on the left, what becomes of each of its lines on the right.

Times, values and names are compared exactly. `X` in a table of words stands for the value of one field or for a time.
"""

from __future__ import annotations

import re
import time
from unittest import mock

import pytest
from support.appenders import Script, Write, differences

from edge_appliance.core import line_protocol
from edge_appliance.core.delivery import Kind, LineError, Origin, Reason
from edge_appliance.core.line_protocol import Context, Limits, Parsed, locate_field, parse, parse_spans
from edge_appliance.core.line_split import sample

ARRIVAL_NS = 1_700_000_000_000_000_000
DAY_NS = 86_400_000_000_000
MIN_TIME_NS = 1_420_070_400_000_000_000
INT64_MAX = 2**63 - 1


def context(**settings) -> Context:
    """Precision ns, no route, no borders, the default limits."""
    return Context(**{"precision": "ns", "arrival_ns": ARRIVAL_NS, **settings})


def row(table: str, fields: dict, tags: dict | None = None, t: int = ARRIVAL_NS) -> tuple:
    """An accepted line as `outcomes` shows it; a bare float, str or bool field stands for its kind."""
    kinds = {float: Kind.FLOAT, str: Kind.STRING, bool: Kind.BOOL}
    typed = {name: v if isinstance(v, tuple) else (kinds[type(v)], v) for name, v in fields.items()}
    return (table, tuple(sorted((tags or {}).items())), typed, t)


def i(value: int) -> tuple:
    """An int field."""
    return (Kind.INT, value)


def u(value: int) -> tuple:
    """A uint field."""
    return (Kind.UINT, value)


def outcomes(parsed: Parsed) -> list[tuple]:
    """(physical line, row or reason) of all lines, in order."""
    rows = [
        (line.number, (line.head.measurement, line.head.tags, {n: (k, v) for n, k, v in line.fields}, line.time_ns))
        for line in parsed.lines
    ]
    return sorted(rows + [(error.line, error.reason.value) for error in parsed.errors], key=lambda pair: pair[0])


def check(payload: bytes, expected, **settings) -> Parsed:
    """Parse and compare; a bare row or reason is the outcome of line 1. Both readers must agree."""
    expected = expected if isinstance(expected, list) else [(1, expected)]
    parsed = parse(payload, context(**settings))
    assert outcomes(parsed) == expected
    heads = {line.raw_head: line.head for line in parsed.lines}
    assert parse(payload, context(**settings, heads=heads)) == parsed
    with mock.patch.object(line_protocol._Reader, "_ordinary", return_value=None):
        assert parse(payload, context(**settings)) == parsed
    check_kernel(payload, **settings)
    spans = [line.span for line in parsed.lines]
    replayed = [(line.head, line.fields, line.time_ns) for line in parse_spans(spans, context(**settings)).lines]
    assert replayed == [(line.head, line.fields, line.time_ns) for line in parsed.lines]
    return parsed


def check_kernel(
    payload: bytes, precision="ns", route_tags=(), limits=None, min_time_ns=None, max_time_ns=None
) -> None:
    """Where the compiled kernel was built, it does the same: with a new series, and with a known one."""
    ahead_ns = None if max_time_ns is None else max_time_ns - ARRIVAL_NS
    write = Write(payload, Origin("edge", precision, route_tags, "mqtt", "t", "t", min_time_ns, ahead_ns))
    assert differences(Script([[write], [write, write]], limits)) == []


def table(*cases):
    """Parametrise by (payload, expected), each case named by its payload."""
    return pytest.mark.parametrize(
        ("payload", "expected"),
        [pytest.param(c[0], c[1], id=re.sub(r"[^ -~]", "", repr(c[0])[1:70])) for c in cases],
    )


def words(template: bytes, *cases):
    """Parametrise by (word, expected) with the word in the place of X."""
    return table(*((template.replace(b"X", word), expected) for word, expected in cases))


PUMP = row("pump", {"rpm": 1.0})


# Payload bytes


@pytest.mark.parametrize(
    ("payload", "expected", "sanitised"),
    [
        pytest.param(b"\xef\xbb\xbfpump rpm=1", [(1, PUMP)], True, id="mark"),
        pytest.param(b"pump rpm=1\0", [(1, PUMP)], True, id="nul-at-end"),
        pytest.param(b"\xef\xbb\xbfpump rpm=1\0\0\0", [(1, PUMP)], True, id="mark-and-nuls"),
        pytest.param(
            b"\xef\xbb\xbf\xef\xbb\xbfpump rpm=1", [(1, row("\ufeffpump", {"rpm": 1.0}))], True, id="one-mark"
        ),
        pytest.param(b"\0\0", [], True, id="nothing-but-nuls"),
        pytest.param(b"pump\xb0 rpm=1\0", [(1, "invalid_utf8")], True, id="then-rejected"),
        pytest.param(b"pump rpm=1", [(1, PUMP)], False, id="clean"),
        pytest.param(b"pump rpm=1\n\0\n", [(1, PUMP), (2, "nul_byte")], False, id="nul-not-at-end"),
    ],
)
def test_parse_cleaning(payload, expected, sanitised):
    """One byte-order mark and the NULs at the end are removed, and the payload is marked when they were."""
    assert check(payload, expected).sanitised is sanitised


@table(
    (b"pump rpm=1\r\nfan rpm=2\r\n", [(1, PUMP), (2, row("fan", {"rpm": 2.0}))]),
    (b"pump rpm=1 7 \r\n", row("pump", {"rpm": 1.0}, t=7)),
    (b"pump rpm=1\r", PUMP),
    (b"\r\n", []),
    (b"\n\n  \n", []),
    (b"", []),
    (b" \t\r\n\t", []),
    (b"\r\r\n", "missing_fields"),
    (b"\r \n", "missing_fields"),
    (b"pu\0mp rpm=1\nfan rpm=2", [(1, "nul_byte"), (2, row("fan", {"rpm": 2.0}))]),
    (b'pump s="a\0b"\nfan rpm=2', [(1, "nul_byte"), (2, row("fan", {"rpm": 2.0}))]),
    (b"pump rpm=1 5\r\r\n", "bad_timestamp"),
    (b"pump rpm=1 5\r \n", "bad_timestamp"),
    (b"pump rpm=1\nfan,u=\xb0C rpm=2", [(2, "invalid_utf8")]),
    (b"pump\xed\xb0\x80 rpm=1", "invalid_utf8"),
    (b"pump\xc0\xaf rpm=1", "invalid_utf8"),
    (b"pump\xf4\x90\x80\x80 rpm=1", "invalid_utf8"),
    (b"pump rpm=1\n# \xb0", [(2, "invalid_utf8")]),
    (b"pump rpm=1\n# caf\xc3", [(2, "invalid_utf8")]),
)
def test_parse_payload_bytes(payload, expected):
    """Line ends, NULs inside lines and bytes that are not UTF-8."""
    check(payload, expected)


# Lines, comments, separators


@table(
    (b"pump,site=a rpm=1200 1", row("pump", {"rpm": 1200.0}, {"site": "a"}, 1)),
    (b"pump rpm=1", PUMP),
    (b"  \tpump rpm=1 2", row("pump", {"rpm": 1.0}, t=2)),
    (b"pump  rpm=1   7  ", row("pump", {"rpm": 1.0}, t=7)),
    (b"pump rpm=1 \t", PUMP),
    (b"# note", []),
    (b"#pump rpm=1", []),
    (b"   # note\npump rpm=1 3", [(2, row("pump", {"rpm": 1.0}, t=3))]),
    (b'# k="x\npump rpm=1', [(2, PUMP)]),
    (b' \t# k ="x\npump rpm=1\n# ="', [(2, PUMP)]),
    (b"# it's 5\" wide\npump rpm=1", [(2, PUMP)]),
    (b"# a\0b\npump rpm=1", [(2, PUMP)]),
    (b"# a\\\npump rpm=1", [(2, PUMP)]),
    (b"\tpump rpm=1\n\n# x\nfan rpm=2", [(1, PUMP), (4, row("fan", {"rpm": 2.0}))]),
    (b"pump", "missing_fields"),
    (b"pump,site=a", "missing_fields"),
    (b"pump\trpm=1", "unexpected_tab"),
    (b"pump rpm=1\t7", "unexpected_tab"),
    (b"pump rpm=1 7\tx", "unexpected_tab"),
    (b"pump rpm=1 7 \tx", "unexpected_tab"),
    (b"pump rpm=1 \t7", "unexpected_tab"),
    (b"pump \trpm=1", "unexpected_tab"),
    (b"pu\\\tmp rpm=1", "unexpected_tab"),
    (b"pump r\\\tpm=1", "unexpected_tab"),
    (b"pump,a\t=b rpm=1", "unexpected_tab"),
    (b"pump,a=b\tc rpm=1", "unexpected_tab"),
    (b'pump s="a"\t', row("pump", {"s": "a"})),
    (b'pump s="a"\t7', "unexpected_tab"),
    (b"pump rpm=1 # x", "bad_timestamp"),
    (b"pump rpm=1 5 # x", "trailing_text"),
    (b"pump rpm=1 temp=2", "bad_timestamp"),
    (b"pump rpm=1 1 2", "trailing_text"),
    (b"pump rpm=1;fan rpm=2", "bad_field_value"),
    (b"online", "missing_fields"),
    (b'{"temperature":21.4,"linkquality":112}', "missing_tag_value"),
    (b"pump 5", "missing_field_value"),
)
def test_parse_lines(payload, expected):
    """What is a line, a comment or blank, and what separates its parts."""
    check(payload, expected)


# Measurement


@table(
    (rb"pu\ mp rpm=1", row("pu mp", {"rpm": 1.0})),
    (rb"pu\,mp rpm=1", row("pu,mp", {"rpm": 1.0})),
    (rb"pu\\mp rpm=1", row(r"pu\mp", {"rpm": 1.0})),
    (rb"pu\=mp rpm=1", row(r"pu\=mp", {"rpm": 1.0})),
    (rb"pu=mp rpm=1", row("pu=mp", {"rpm": 1.0})),
    (rb"pu\qmp rpm=1", row(r"pu\qmp", {"rpm": 1.0})),
    (rb"pu\\\ mp rpm=1", row(r"pu\ mp", {"rpm": 1.0})),
    (rb"pu\\=mp rpm=1", row(r"pu\=mp", {"rpm": 1.0})),
    (b'"pump" rpm=1', row('"pump"', {"rpm": 1.0})),
    (b'pu="mp rpm=1', row('pu="mp', {"rpm": 1.0})),
    (b"pu\rmp rpm=1", row("pu\rmp", {"rpm": 1.0})),
    (rb"\#p rpm=1", row(r"\#p", {"rpm": 1.0})),
    ("pömp,ort=Köln t=1".encode(), row("pömp", {"t": 1.0}, {"ort": "Köln"})),
    ("p\\ömp t=1".encode(), row("p\\ömp", {"t": 1.0})),
    (b"time rpm=1", row("time", {"rpm": 1.0})),
    (
        rb"fan\ speed,room=Server\ Room\,\ East,rack=R\=7 rpm=1420i",
        row("fan speed", {"rpm": i(1420)}, {"room": "Server Room, East", "rack": "R=7"}),
    ),
    (b",site=a rpm=1", "missing_measurement"),
    (b", rpm=1", "missing_measurement"),
    (rb"pump\\ rpm=1", "trailing_backslash"),
    (rb"pump\ rpm=1", "missing_fields"),
    (b"pump\\", "trailing_backslash"),
    (b"pump\\ \t\n", "trailing_backslash"),
    (b"pump\\\r\n", "trailing_backslash"),
)
def test_parse_measurement(payload, expected):
    """Escapes and faults of the measurement."""
    check(payload, expected)


# Tags


@table(
    (rb"pump,site=a\ b rpm=1", row("pump", {"rpm": 1.0}, {"site": "a b"})),
    (rb"pump,site=a\,b rpm=1", row("pump", {"rpm": 1.0}, {"site": "a,b"})),
    (rb"pump,site=a\=b rpm=1", row("pump", {"rpm": 1.0}, {"site": "a=b"})),
    (rb"pump,site=a=b rpm=1", row("pump", {"rpm": 1.0}, {"site": "a=b"})),
    (rb"pump,site=a\nb rpm=1", row("pump", {"rpm": 1.0}, {"site": r"a\nb"})),
    (rb"pump,site=a\\b rpm=1", row("pump", {"rpm": 1.0}, {"site": r"a\b"})),
    (rb"pump,site=a\\\=b rpm=1", row("pump", {"rpm": 1.0}, {"site": r"a\=b"})),
    (rb"pump,site=a\\=b rpm=1", row("pump", {"rpm": 1.0}, {"site": r"a\=b"})),
    (rb'pump,site="a" rpm=1', row("pump", {"rpm": 1.0}, {"site": '"a"'})),
    (rb"pump,site=C:\dir rpm=1", row("pump", {"rpm": 1.0}, {"site": r"C:\dir"})),
    (rb"pump,si\ te=a rpm=1", row("pump", {"rpm": 1.0}, {"si te": "a"})),
    (rb"pump,si\=te=a rpm=1", row("pump", {"rpm": 1.0}, {"si=te": "a"})),
    (b"pump,b=1,a=2 rpm=1", row("pump", {"rpm": 1.0}, {"a": "2", "b": "1"})),
    (b"pump,site=a\\\nb rpm=1", [(1, "trailing_backslash"), (2, row("b", {"rpm": 1.0}))]),
    (b"pump,site=a\nb rpm=1", [(1, "missing_fields"), (2, row("b", {"rpm": 1.0}))]),
    (b'pump,site="a\nb rpm=1', [(1, "missing_fields"), (2, row("b", {"rpm": 1.0}))]),
    (b"pump,site= rpm=1", "missing_tag_value"),
    (b"pump,site=,b=1 rpm=1", "missing_tag_value"),
    (b"pump,site rpm=1", "missing_tag_value"),
    (b"pump,site", "missing_tag_value"),
    (b"pump,site=", "missing_tag_value"),
    (b"pump,=a rpm=1", "missing_tag_key"),
    (b"pump,= rpm=1", "missing_tag_key"),
    (b"pump, rpm=1", "unexpected_comma"),
    (b"pump,", "unexpected_comma"),
    (b"pump,x,site=a rpm=1", "unexpected_comma"),
    (b"pump,site=a,, rpm=1", "unexpected_comma"),
    (b"pump,site=a, rpm=1", "unexpected_comma"),
    (b'pump,site="a b" rpm=1', "missing_field_value"),
    (rb"pump,d=C:\dir\ rpm=1", "missing_fields"),
    (rb"pump,d=C:\dir\\ rpm=1", "trailing_backslash"),
    (rb"pump,d=C:\dir\\,e=1 rpm=1", "trailing_backslash"),
    (rb"pump,a\\=1 rpm=1", "trailing_backslash"),
    (rb"pump,a\\ rpm=1", "trailing_backslash"),
    (rb"pump,a\\,b=1 rpm=1", "unexpected_comma"),
)
def test_parse_tags(payload, expected):
    """Escapes and faults of the tags."""
    check(payload, expected)


# Field keys and list


@table(
    (rb"pump a\ b=1", row("pump", {"a b": 1.0})),
    (rb"pump a\=b=1", row("pump", {"a=b": 1.0})),
    (rb"pump a\,b=1", row("pump", {"a,b": 1.0})),
    (rb"pump a\\b=1", row("pump", {r"a\b": 1.0})),
    (rb"pump a\"b=1", row("pump", {r"a\"b": 1.0})),
    (b'pump "a"=1', row("pump", {'"a"': 1.0})),
    (b"pump #a=1", row("pump", {"#a": 1.0})),
    (b"pump rpm=1,temp=2i 9", row("pump", {"rpm": 1.0, "temp": i(2)}, t=9)),
    (b'pump t=t,u=1u,s=""', row("pump", {"t": True, "u": u(1), "s": ""})),
    ("pump °C=1".encode(), row("pump", {"°C": 1.0})),
    (b"pump a,b=1", "unexpected_comma"),
    (b"pump ,a=1", "unexpected_comma"),
    (b"pump rpm=1,,temp=2", "unexpected_comma"),
    (b"pump rpm=1,", "unexpected_comma"),
    (b"pump rpm=1, 9", "unexpected_comma"),
    (b"pump rpm=1, temp=2", "unexpected_comma"),
    (b"pump rpm=1,temp=2,", "unexpected_comma"),
    (b"pump rpm=1,\ttemp=2", "unexpected_tab"),
    (b"pump =1", "missing_field_key"),
    (b"pump rpm=1,=2", "missing_field_key"),
    (b"pump rpm", "missing_field_value"),
    (b"pump rpm=", "missing_field_value"),
    (b"pump rpm=,a=1", "missing_field_value"),
    (b"pump rpm=\t1", "unexpected_tab"),
    (b"pump rpm =1", "missing_field_value"),
    (b"pump rpm= 1", "missing_field_value"),
    (rb"pump a\\=1", "trailing_backslash"),
    (b"pump a\\", "trailing_backslash"),
)
def test_parse_fields(payload, expected):
    """Escapes and faults of field keys and of the list."""
    check(payload, expected)


# Values


@words(
    b"p v=X",
    (b"1i", row("p", {"v": i(1)})),
    (b"-5i", row("p", {"v": i(-5)})),
    (b"-0i", row("p", {"v": i(0)})),
    (b"007i", row("p", {"v": i(7)})),
    (b"9223372036854775807i", row("p", {"v": i(2**63 - 1)})),
    (b"-9223372036854775808i", row("p", {"v": i(-(2**63))})),
    (b"0u", row("p", {"v": u(0)})),
    (b"18446744073709551615u", row("p", {"v": u(2**64 - 1)})),
    (b"12u", row("p", {"v": u(12)})),
    (b"0" * 5000 + b"12i", row("p", {"v": i(12)})),
    (b"9223372036854775808i", "number_out_of_range"),
    (b"-9223372036854775809i", "number_out_of_range"),
    (b"18446744073709551616u", "number_out_of_range"),
    (b"9" * 5000 + b"i", "number_out_of_range"),
    (b"+1i", "bad_field_value"),
    (b"-7u", "bad_field_value"),
    (b"1.5i", "bad_field_value"),
    (b"1e2i", "bad_field_value"),
    (b"1.0u", "bad_field_value"),
    (b"7I", "bad_field_value"),
    (b"i7", "bad_field_value"),
    (b"i", "bad_field_value"),
    ("\u0661i".encode(), "bad_field_value"),
)
def test_parse_integers(payload, expected):
    """Forms and ranges of int and uint values."""
    check(payload, expected)


@words(
    b"p v=X",
    (b"1", row("p", {"v": 1.0})),
    (b"-1", row("p", {"v": -1.0})),
    (b"1.5", row("p", {"v": 1.5})),
    (b"00.5", row("p", {"v": 0.5})),
    (b"1e5", row("p", {"v": 100000.0})),
    (b"1E-5", row("p", {"v": 0.00001})),
    (b"-1.5e+3", row("p", {"v": -1500.0})),
    (b".5", row("p", {"v": 0.5})),
    (b"-.5", row("p", {"v": -0.5})),
    (b"7.", row("p", {"v": 7.0})),
    (b"1.e5", row("p", {"v": 100000.0})),
    (b"2e-400", row("p", {"v": 0.0})),
    (b"5e-324", row("p", {"v": 5e-324})),
    (b"1e0000000001", row("p", {"v": 10.0})),
    (b"0.1234567890123456789012345678901234567890123", row("p", {"v": 0.12345678901234568})),
    (b"18446744073709551616", row("p", {"v": 1.8446744073709552e19})),
    (b"0" * 5000 + b"1", row("p", {"v": 1.0})),
    (b"1e400", "number_out_of_range"),
    (b"-1e400", "number_out_of_range"),
    (b"9" * 5000, "number_out_of_range"),
    (b"+1", "bad_field_value"),
    (b"1e5e", "bad_field_value"),
    (b"2e+", "bad_field_value"),
    (b"1.2.", "bad_field_value"),
    (b"0x10", "bad_field_value"),
    (b"1_000", "bad_field_value"),
    (b"2f", "bad_field_value"),
    (b"-.e1", "bad_field_value"),
    (b".", "bad_field_value"),
    (b"-", "bad_field_value"),
    (b"nan5", "bad_field_value"),
    (b"--1", "bad_field_value"),
    (b"1\x0b", "bad_field_value"),
    (b"1\r", row("p", {"v": 1.0})),
    ("\uff11".encode(), "bad_field_value"),
    (b"1,5", "missing_field_value"),
)
def test_parse_floats(payload, expected):
    """Forms and range of float values."""
    check(payload, expected)


@pytest.mark.parametrize(
    ("payload", "expected", "dropped"),
    [
        (b"p v=nan,ok=f", row("p", {"ok": False}), 1),
        (b"p v=-INF,w=2", row("p", {"w": 2.0}), 1),
        (b"p v=+Infinity,w=NaN,x=3", row("p", {"x": 3.0}), 2),
        (b"p v=nan", "non_finite", 1),
        (b"p v=Inf,w=nan 5", "non_finite", 2),
        (b"p v=-nan,w=x", "bad_field_value", 1),
        (b"p v=x,w=nan", "bad_field_value", 0),
        (b"p v=nan,w=1 x", "bad_timestamp", 1),
        (b"p v=nan\0", "non_finite", 1),
        (b"p v=nan\0,w=1", "nul_byte", 0),
        (b"p v=nan,w=1\np v=inf", [(1, row("p", {"w": 1.0})), (2, "non_finite")], 2),
        (b"p v=infinit", "bad_field_value", 0),
        (b"p v=++inf", "bad_field_value", 0),
    ],
)
def test_parse_no_value(payload, expected, dropped):
    """A nan or inf word drops its field and is counted; a line of nothing else is rejected."""
    assert check(payload, expected).non_finite == dropped


@words(
    b"p b=X",
    *((word, row("p", {"b": True})) for word in (b"t", b"T", b"true", b"True", b"TRUE")),
    *((word, row("p", {"b": False})) for word in (b"f", b"F", b"false", b"False", b"FALSE")),
    *((word, "bad_field_value") for word in (b"tRue", b"truex", b"oui", b"1b", b"tT", b"tf")),
)
def test_parse_booleans(payload, expected):
    """The ten boolean words and no other."""
    check(payload, expected)


@table(
    (b'p v=""', row("p", {"v": ""})),
    (b'p v="a b,c=1"', row("p", {"v": "a b,c=1"})),
    (rb'p v="a\"b"', row("p", {"v": 'a"b'})),
    (rb'p v="a\\"', row("p", {"v": "a\\"})),
    (rb'p v="a\\\""', row("p", {"v": 'a\\"'})),
    (rb'p v="a\\\\" 7', row("p", {"v": r"a\\"}, t=7)),
    (rb'p v="x\ny"', row("p", {"v": r"x\ny"})),
    (rb'p v="\q"', row("p", {"v": r"\q"})),
    (rb'p v="\,\ \="', row("p", {"v": r"\,\ \="})),
    ('p v="\\é"'.encode(), row("p", {"v": "\\é"})),
    (b'p v="a\\\nb"', row("p", {"v": "a\\\nb"})),
    (b'p v="a\tb"', row("p", {"v": "a\tb"})),
    (b'p v="a\r\nb\r"\r\n', row("p", {"v": "a\r\nb\r"})),
    (b'p v="# no comment"', row("p", {"v": "# no comment"})),
    (b'p v="a 7" 8', row("p", {"v": "a 7"}, t=8)),
    (b'p v="a 7"', row("p", {"v": "a 7"})),
    (b'p v="' + b'\\"' * 150 + b'"', row("p", {"v": '"' * 150})),
    (
        b'oplog,hmi=p2 note="shift change\ncounter reset",n=2i',
        row("oplog", {"note": "shift change\ncounter reset", "n": i(2)}, {"hmi": "p2"}),
    ),
    (b'p v="a",w="b\nc" 5\nq v=1 6', [(1, row("p", {"v": "a", "w": "b\nc"}, t=5)), (3, row("q", {"v": 1.0}, t=6))]),
    (rb'alarm msg="Door \"A\" open, zone=3",ok=t', row("alarm", {"msg": 'Door "A" open, zone=3', "ok": True})),
    (b"p v=abc", "bad_field_value"),
    (b"p v='abc'", "bad_field_value"),
    (b'p v=a"b"', "bad_field_value"),
    (b'p v="a', "unterminated_string"),
    (rb'p v="b\"', "unterminated_string"),
    (b'p v="', "unterminated_string"),
    (b'p v="a"c"', "bad_field_value"),
    (b'p v="x"1', "bad_field_value"),
    (b'p v="x"="y"', "bad_field_value"),
    (b'p v="x" "y"', "bad_timestamp"),
    (b'p v="abc\nq v=1', [(1, "unterminated_string"), (2, row("q", {"v": 1.0}))]),
    (b'p v="abc\nq v="x\nr v=1', [(1, "bad_field_value"), (3, row("r", {"v": 1.0}))]),
    (rb"p v=\"a", "bad_field_value"),
)
def test_parse_strings(payload, expected):
    """Strings: escapes, LFs inside, and what may follow the closing quote."""
    check(payload, expected)


# A quote behind a free `=` opens a string even where a string is not allowed


@table(
    (b'p v=a="x\ty"', "bad_field_value"),
    (b'p v=a="x\ty"\tz', "unexpected_tab"),
    (b"p v=a=b\tc", "unexpected_tab"),
    (b'p v=a="x', "unterminated_string"),
    (b'p v=1 a="b\tc"', "bad_timestamp"),
    (b'p v=1 a="b\nq v=1" \nr v=1', [(1, "bad_timestamp"), (3, row("r", {"v": 1.0}))]),
    (b'p v=1 5 a="b\nq v=1"\nr v=1', [(1, "trailing_text"), (3, row("r", {"v": 1.0}))]),
    (b'p v=1 a="b', "unterminated_string"),
    (b'p v=1 "b', "bad_timestamp"),
    (b'p v="a"x="b\nc"\nr v=1', [(1, "bad_field_value"), (3, row("r", {"v": 1.0}))]),
    (rb'p v=a\="x' + b"\nr v=1", [(1, "bad_field_value"), (2, row("r", {"v": 1.0}))]),
    (b'p,a="x\nr v=1\nq s="\n"', [(1, "missing_fields"), (2, row("r", {"v": 1.0})), (3, row("q", {"s": "\n"}))]),
    (b' p,a=" v="\n" 7\nr v=1', [(1, row("p", {"v": "\n"}, {"a": '"'}, t=7)), (3, row("r", {"v": 1.0}))]),
)
def test_parse_strings_in_odd_places(payload, expected):
    """Text inside a string is never read as a line or as a separator, also where no string may stand."""
    check(payload, expected)


# Time

TIME_CASES = [
    ("ns", b"1", 1),
    ("ns", b"-7", -7),
    ("ns", b"000", 0),
    ("ns", b"0" * 5000 + b"9", 9),
    ("ns", b"9223372036854775806", 9223372036854775806),
    ("ns", b"9223372036854775807", INT64_MAX),
    ("ns", b"-9223372036854775807", -9223372036854775807),
    ("us", b"1767225600000001", 1767225600000001000),
    ("ms", b"1767225600001", 1767225600001000000),
    ("s", b"1767225601", 1767225601000000000),
    ("auto", b"4999999998", 4999999998_000000000),
    ("auto", b"5000000001", 5000000001_000000),
    ("auto", b"4999999999998", 4999999999998_000000),
    ("auto", b"5000000000001", 5000000000001_000),
    ("auto", b"4999999999999998", 4999999999999998_000),
    ("auto", b"5000000000000001", 5000000000000001),
    ("auto", b"-5000000001", -5000000001_000000),
    ("auto", b"5000000000", 5000000000_000000),
    ("us", b"", ARRIVAL_NS),
    ("ns", b"9223372036854775809", "time_out_of_range"),
    ("ns", b"9" * 5000, "time_out_of_range"),
    ("ns", b"-" + b"9" * 20, "time_out_of_range"),
    ("s", b"9223372038", "time_out_of_range"),
    ("ms", b"-9223372036856", "time_out_of_range"),
    ("us", b"9223372036854777", "time_out_of_range"),
    *(
        ("ns", word, "bad_timestamp")
        for word in (b"+5", b"1.5", b"1e3", b"5i", b"abc", b"0x1", b"2026-01-01T00:00:01Z", b'"5"', b"-", b"1_0")
    ),
    ("ns", "²".encode(), "bad_timestamp"),
    ("ns", "\u0665".encode(), "bad_timestamp"),
    ("ns", b"\\ 5", "bad_timestamp"),
    ("ns", b"5,", "bad_timestamp"),
]


@pytest.mark.parametrize(("precision", "word", "expected"), TIME_CASES)
def test_parse_time(precision, word, expected):
    """Form, precision and range of the stated time."""
    expected = row("p", {"v": 1.0}, t=expected) if isinstance(expected, int) else expected
    check(b"p v=1 " + word, expected, precision=precision)


@pytest.mark.parametrize(
    ("time_ns", "is_inside"),
    [
        (MIN_TIME_NS, True),
        (MIN_TIME_NS - 1, False),
        (ARRIVAL_NS + DAY_NS, True),
        (ARRIVAL_NS + DAY_NS + 1, False),
    ],
)
def test_parse_time_borders(time_ns, is_inside):
    """Both borders are inside; without borders every time is accepted; a replay has none."""
    payload = b"p v=1 %d" % time_ns
    accepted = row("p", {"v": 1.0}, t=time_ns)
    borders = {"min_time_ns": MIN_TIME_NS, "max_time_ns": ARRIVAL_NS + DAY_NS}
    check(payload, accepted)
    check(payload, accepted if is_inside else "time_out_of_range", **borders)
    assert outcomes(parse_spans([payload], context(**borders))) == [(1, accepted)]


def test_parse_arrival_time_is_not_checked():
    """A filled-in arrival time passes borders that a stated time would not."""
    borders = {"min_time_ns": 0, "max_time_ns": 5}
    check(b"p v=1", row("p", {"v": 1.0}), **borders)
    check(b"p v=1 6", "time_out_of_range", **borders)


# Names and limits


@table(
    (b"x,a=1,a=2 v=1", "duplicate_tag"),
    (b"x,a=1,a=1 v=1", "duplicate_tag"),
    (b"x,a=1,b=1,a=1 v=1", "duplicate_tag"),
    (rb"x,a\ =1,a\ =1 v=1", "duplicate_tag"),
    (b"x v=1,v=2", "duplicate_field"),
    (b"x v=nan,v=2", "duplicate_field"),
    (b"x,v=a v=1", "tag_field_collision"),
    (b"x,v=a v=nan,w=1", "tag_field_collision"),
    (rb"x,a=1,A=2 a\ =3", row("x", {"a ": 3.0}, {"a": "1", "A": "2"})),
    (b"x,time=a v=1", "reserved_name"),
    (b"x,time_ns=a v=1", "reserved_name"),
    (b"x time=1", "reserved_name"),
    (b"x time=nan", "reserved_name"),
    (b"x time_ns=1", "reserved_name"),
    (b"x,_edge_id=1 v=1", "reserved_name"),
    (b"x _edge=1", "reserved_name"),
    (b"_edge v=1", "reserved_name"),
    (b"_edges v=1", "reserved_name"),
    (b"x Time=1,_ed=2", row("x", {"Time": 1.0, "_ed": 2.0})),
    (b"x time_=1,time_n=2,a_edge=3", row("x", {"time_": 1.0, "time_n": 2.0, "a_edge": 3.0})),
    (b"x,k=" + b"y" * 65536 + b" v=1", row("x", {"v": 1.0}, {"k": "y" * 65536})),
    (b"x,k=" + b"y" * 65537 + b" v=1", "value_too_long"),
    (b'x v="' + b"y" * 1048576 + b'"', row("x", {"v": "y" * 1048576})),
    (b'x v="' + b"y" * 1048577 + b'"', "value_too_long"),
    (b"x " + b"y" * 65536 + b"=1", row("x", {"y" * 65536: 1.0})),
    (b"x " + b"y" * 65537 + b"=1", "name_too_long"),
    (b"y" * 65537 + b" v=1", "name_too_long"),
    (b"x," + b"y" * 65537 + b"=1 v=1", "name_too_long"),
    (b"x,k=" + "é".encode() * 32769 + b" v=1", "value_too_long"),
    (rb"x,k=" + rb"\ " * 65536 + b" v=1", row("x", {"v": 1.0}, {"k": " " * 65536})),
    (b"x " + b",".join(b"k%d=1" % n for n in range(1000)), row("x", {f"k{n}": 1.0 for n in range(1000)})),
)
def test_parse_names(payload, expected):
    """Duplicates, reserved names and lengths, in bytes after unescaping."""
    check(payload, expected)


def test_parse_payload_too_large():
    """The limit itself is accepted; one byte more rejects the payload as a whole, before it is cleaned."""
    limits = Limits(payload_bytes=10)
    assert len(check(b"pump rpm=1", PUMP, limits=limits).lines) == 1
    parsed = check(b"pump rpm=1\0", [(0, "payload_too_large")], limits=limits)
    assert parsed.sanitised is False
    assert parsed.errors[0].column == 0


def test_parse_limits_of_a_known_head():
    """A head that is known from a time without limits is still rejected by them."""
    payload = b"pump,site=abcdef rpm=1"
    heads = {line.raw_head: line.head for line in parse(payload, context(limits=None)).lines}
    parsed = parse(payload, context(limits=Limits(tag_value_bytes=5), heads=heads))
    assert outcomes(parsed) == [(1, "value_too_long")]


@pytest.mark.parametrize(
    ("payload", "expected", "collisions"),
    [
        (b"p v=1", row("p", {"v": 1.0}, {"site": "north", "zone": "1"}), 0),
        (b"p,site=b v=1", row("p", {"v": 1.0}, {"site": "b", "zone": "1"}), 1),
        (b"p,a=b v=1", row("p", {"v": 1.0}, {"a": "b", "site": "north", "zone": "1"}), 0),
        (b"p site=1", "tag_field_collision", None),
        (b"p,site=1,site=2 v=1", "duplicate_tag", None),
    ],
)
def test_parse_route_tags(payload, expected, collisions):
    """Tags of the route join the line; a tag of the line beats one of the same key, and that is counted."""
    parsed = check(payload, expected, route_tags=(("site", "north"), ("zone", "1")))
    assert [line.head.collisions for line in parsed.lines] == ([] if collisions is None else [collisions])


# Whole payloads


@table(
    (
        b"p v=x\nq v=1\nr\ns v=2",
        [(1, "bad_field_value"), (2, row("q", {"v": 1.0})), (3, "missing_fields"), (4, row("s", {"v": 2.0}))],
    ),
    (b"# boot v1.8.2\n\nwifi,node=esp-31 rssi=-71i\n", [(3, row("wifi", {"rssi": i(-71)}, {"node": "esp-31"}))]),
    (
        b"channel,device=led-3 value=\nheap,device=led-3 value=128",
        [(1, "missing_field_value"), (2, row("heap", {"value": 128.0}, {"device": "led-3"}))],
    ),
    (b'p v=x,w="1\nq v=1\n2" 5\nr v=1', [(1, "bad_field_value"), (4, row("r", {"v": 1.0}))]),
    (b'p v="1\nq v=2\nr v="3\ns v=4', [(1, "bad_field_value"), (4, row("s", {"v": 4.0}))]),
    (b'\n# a\np note="1\n2\n3"\nq v=', [(3, row("p", {"note": "1\n2\n3"})), (6, "missing_field_value")]),
    (
        b"p,a=1 v=1,w=2 5\np,a=1 v=9 5",
        [(1, row("p", {"v": 1.0, "w": 2.0}, {"a": "1"}, 5)), (2, row("p", {"v": 9.0}, {"a": "1"}, 5))],
    ),
    (b"p v=1 7\np v=1 6\np v=1 8", [(n, row("p", {"v": 1.0}, t=t)) for n, t in ((1, 7), (2, 6), (3, 8))]),
    (
        b"c n=9007199254740993i,u=18446744073709551615u",
        row("c", {"n": i(9007199254740993), "u": u(18446744073709551615)}),
    ),
    (b"c n=nan,m=1\nc n=t", [(1, row("c", {"m": 1.0})), (2, row("c", {"n": True}))]),
)
def test_parse_whole_payloads(payload, expected):
    """A bad line costs itself only, and is found by its physical line."""
    check(payload, expected)


# Error records


@pytest.mark.parametrize(
    ("payload", "line", "column", "reason"),
    [
        (b"p v=1\n\n  pump rpm=x", 3, 12, "bad_field_value"),
        (b"pump", 1, 5, "missing_fields"),
        (b"pump  \r\n", 1, 5, "missing_fields"),
        (b"\t,a=1 v=1", 1, 2, "missing_measurement"),
        (b"pump,=a v=1", 1, 6, "missing_tag_key"),
        (b"pump,a= v=1", 1, 8, "missing_tag_value"),
        (b"pump,a v=1", 1, 7, "missing_tag_value"),
        (b"pump,a=1,,b=1 v=1", 1, 10, "unexpected_comma"),
        (b"pump,a=1, v=1", 1, 9, "unexpected_comma"),
        (b"pump v=1,,w=1", 1, 10, "unexpected_comma"),
        (b"pump v=1, 7", 1, 9, "unexpected_comma"),
        (b"pump a,b=1", 1, 7, "unexpected_comma"),
        (rb"pump\\ v=1", 1, 6, "trailing_backslash"),
        (rb"pump,a=b\\,c=d v=1", 1, 10, "trailing_backslash"),
        (b"pump =1", 1, 6, "missing_field_key"),
        (b"pump v=,w=1", 1, 8, "missing_field_value"),
        (b"pump v w=1", 1, 7, "missing_field_value"),
        (b'pump v="a"b', 1, 11, "bad_field_value"),
        (b"pump v=1,w=x", 1, 12, "bad_field_value"),
        (b"pump v=1e999", 1, 8, "number_out_of_range"),
        (b'pump w=1,v="a', 1, 12, "unterminated_string"),
        (b"pump v=1 7\tx", 1, 11, "unexpected_tab"),
        (b"pump v=1  x", 1, 11, "bad_timestamp"),
        (b"pump v=1 7  x", 1, 13, "trailing_text"),
        (b"pu\0mp v", 1, 3, "nul_byte"),
        (b"x,a=1,time=2 v=1", 1, 7, "reserved_name"),
        (b" _edge v=1", 1, 2, "reserved_name"),
        (b"x,time=1 _edge=1", 1, 3, "reserved_name"),
        (b"x,a=1,a=2 v=1", 1, 7, "duplicate_tag"),
        (b"x a=1,a=2", 1, 7, "duplicate_field"),
        (b"x,v=a w=1,v=1", 1, 11, "tag_field_collision"),
        (b"x w=1,v=nan", 1, 0, None),
        (b"x v=nan", 1, 5, "non_finite"),
        (b"x v=1  99999999999999999999", 1, 8, "time_out_of_range"),
        (b"x s=1," + b"y" * 65537 + b"=1", 1, 7, "name_too_long"),
        (b'x s="' + b"y" * 1048577 + b'"', 1, 5, "value_too_long"),
        (b"x,s=" + b"y" * 65537 + b" v=1", 1, 5, "value_too_long"),
        ('x s="äö",v=x'.encode(), 1, 14, "bad_field_value"),
        (b'x s="a\nb",v=x', 1, 13, "bad_field_value"),
        (b'a s="\n\n"\n x s="a\nb" x', 4, 12, "bad_timestamp"),
        ("\ufeffpump v=x".encode(), 1, 8, "bad_field_value"),
        ("ä\n# ö\npump ä".encode() + b"\xff", 3, 8, "invalid_utf8"),
    ],
)
def test_error_place(payload, line, column, reason):
    """A record names the physical line on which its line starts and the column of the fault, in bytes from 1."""
    errors = parse(payload, context()).errors
    found = [(e.line, e.column, e.reason.value) for e in errors if e.line == line]
    assert found == ([] if reason is None else [(line, column, reason)])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"p\t v=1\0x", "nul_byte"),
        (b"p,a=1,a=2 v=x", "bad_field_value"),
        (b"p,a=1,a=2 v=1 x", "bad_timestamp"),
        (b"p,a=1,a=2 v=1 1 x", "trailing_text"),
        (b"p v=1 99999999999999999999 x", "trailing_text"),
        (b"p v=1e999,w=x", "number_out_of_range"),
        (b"p v=x,w=1e999", "bad_field_value"),
        (b'p v=x,w="', "bad_field_value"),
        (b"p,a=1,a=2 time=1", "reserved_name"),
        (b"p,a=1,a=2 v=1,v=2", "duplicate_tag"),
        (b"p,v=1 v=1,w=1,w=2", "duplicate_field"),
        (b"p,v=" + b"y" * 65537 + b" v=1", "tag_field_collision"),
        (b"p,a=" + b"y" * 65537 + b" " + b"k" * 65537 + b"=1", "name_too_long"),
        (b"p,a=" + b"y" * 65537 + b" v=nan", "value_too_long"),
        (b"p v=nan 99999999999999999999", "non_finite"),
        (b"p,v=1 v=1 99999999999999999999", "tag_field_collision"),
    ],
)
def test_error_order(payload, reason):
    """Of several faults the first counts: NUL, syntax from the left, names, lengths, no field left, time."""
    check(payload, reason)


def test_error_sample_and_message():
    """A record shows the cleaned line's start and a message that names the key."""
    payload = b"  pump,site=a rpm=fast \r\n"
    assert parse(payload, context()).errors == [
        LineError(
            1,
            19,
            Reason.BAD_FIELD_VALUE,
            "field 'rpm': 'fast' is not a number, a boolean or a quoted string",
            b"pump,site=a rpm=fast",
        )
    ]


def test_error_message_stays_short():
    """A message shows a long name or value only in part, and control characters escaped."""
    message = parse(b"pump " + b"k\x1b" * 30_000 + b"=" + b"v" * 60_000, context()).errors[0].message
    assert len(message) < 400
    assert message.isprintable()


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (b"a" * 200, b"a" * 200),
        (b"a" * 201, b"a" * 200),
        (b"a" * 199 + "é".encode(), b"a" * 199),
        (b"a" * 198 + "é".encode() + b"b", b"a" * 198 + "é".encode()),
        (b"a" * 197 + "😀".encode(), b"a" * 197),
        (b"a" * 196 + "😀".encode() + b"b", b"a" * 196 + "😀".encode()),
        (b"\x80" * 300, b"\x80" * 197),
    ],
)
def test_sample_is_cut_at_a_character(span, expected):
    """A sample has at most 200 bytes and ends with a whole character."""
    assert sample(span) == expected


# Spans, places


def test_line_place_and_span():
    """A line knows its physical line, its column there and the text that goes to the log."""
    parsed = parse(b'\n \tp s="a\nb" 7 \r\nq v=1\r', context())
    assert [(line.number, line.column, line.span, line.raw_head) for line in parsed.lines] == [
        (2, 3, b'p s="a\nb" 7', b"p"),
        (4, 1, b"q v=1", b"q"),
    ]


def test_parse_known_head_is_shared():
    """Lines of one raw head share the head object, the known one if there is one."""
    lines = parse(b'p,a=1 v=1\np,a=1 v=2\r\n p,a=1 v="\\\\"', context()).lines
    assert len({id(line.head) for line in lines}) == 1
    known = lines[0].head
    again = parse(b"p,a=1 v=1\np,a=1 v=nan,w=1", context(heads={b"p,a=1": known})).lines
    assert all(line.head is known for line in again)


def test_parse_spans_decides_nothing():
    """A replayed line is not cleaned, bounded or limited, and a name reserved since does not matter."""
    spans = [b"p,_edge=1 time=2 99", b"p v=1 -5", b"abc def=1", b'p s="a\nb"']
    parsed = parse_spans(spans, context(limits=Limits(1, 1, 1, 1), min_time_ns=0, max_time_ns=1))
    assert outcomes(parsed) == [
        (1, row("p", {"time": 2.0}, {"_edge": "1"}, 99)),
        (2, row("p", {"v": 1.0}, t=-5)),
        (3, row("abc", {"def": 1.0})),
        (4, row("p", {"s": "a\nb"})),
    ]


def test_parse_spans_with_damage():
    """A span that is no line costs itself only and is found by its place."""
    parsed = parse_spans([b"p v=1", b"", b"p\xff v=1", b"p v=x", b"p v=2"], context())
    assert outcomes(parsed) == [
        (1, row("p", {"v": 1.0})),
        (2, "missing_measurement"),
        (3, "invalid_utf8"),
        (4, "bad_field_value"),
        (5, row("p", {"v": 2.0})),
    ]


@pytest.mark.parametrize(
    ("span", "name", "offset"),
    [
        (b"p,a=1 b=2,c=3 7", "b", 8),
        (b"p,a=1 b=2,c=3 7", "c", 12),
        (rb'p\ q s="b=1,",b=2', "b", 16),
        (rb"p a\ b=1", "a b", 7),
        (b"p a=nan,b=2", "b", 10),
        (b"p,a=1 b=2", "a", 0),
        (b"p", "a", 0),
        (b"", "a", 0),
    ],
)
def test_locate_field(span, name, offset):
    """The place of a field's value, or 0 when the line has no such field."""
    assert locate_field(span, name) == offset


# Shapes that would cost a careless reader time quadratic in their length

MIB = 1 << 20


def filled(head: bytes, unit: bytes, tail: bytes = b"", size: int = MIB) -> bytes:
    """A payload of nearly `size` bytes."""
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


@pytest.mark.slow
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(filled(b"", b'p v="\n', size=MIB // 4), id="strings-across-lines"),
        pytest.param(filled(b"", b'p v="\\"\n', size=MIB // 4), id="escaped-quotes"),
        pytest.param(filled(b'p v="', b'\\"', b'"'), id="one-string-of-escaped-quotes"),
        pytest.param(filled(b'p v="', b'\\"'), id="open-string-of-escaped-quotes"),
        pytest.param(filled(b'p v="\n', b"p v=1\n", size=MIB // 4), id="open-string-before-many-lines"),
        pytest.param(filled(b"p v=1 ", b"=", size=MIB // 4), id="equals"),
        pytest.param(filled(b"p v=", b'=""', size=MIB // 4), id="strings-in-a-word"),
        pytest.param(filled(b"p v=1 ", b'=""', size=MIB // 4), id="strings-in-the-time"),
        pytest.param(filled(b"p ", b'a="b,'), id="commas-in-strings"),
        pytest.param(filled(b"p ", b"a"), id="one-key"),
        pytest.param(filled(b"p ", b"a,"), id="commas"),
        pytest.param(filled(b"p ", b"a=1,", b"b", size=MIB // 4), id="fields-then-a-fault"),
        pytest.param(filled(b"p ", b'a="",', b"b", size=MIB // 4), id="strings-then-a-fault"),
        pytest.param(filled(b"p", b",a=1", b" v=x", size=MIB // 4), id="tags"),
        pytest.param(filled(b"", b"\\"), id="backslashes"),
        pytest.param(filled(b"p v=", b"\\"), id="backslashes-in-a-value"),
        pytest.param(filled(b"p v=", b"1"), id="digits"),
        pytest.param(filled(b"p v=", b"1", b"x"), id="digits-then-a-letter"),
        pytest.param(filled(b"p v=1.", b"1", b"x"), id="fraction-then-a-letter"),
        pytest.param(filled(b"p v=1e", b"1"), id="exponent"),
        pytest.param(filled(b"p v=0.", b"0", b"1"), id="zeros"),
        pytest.param(filled(b"p v=", b"1", b"i"), id="integer"),
        pytest.param(filled(b"p v=1 ", b"1"), id="time"),
        pytest.param(filled(b"p", b" ", b"v=1"), id="spaces"),
        pytest.param(filled(b"p v=1", b" ", b"x"), id="spaces-before-the-time"),
        pytest.param(filled(b"", b" \t"), id="blanks"),
        pytest.param(filled(b"p", b"\t ", b"v=1"), id="blanks-inside"),
        pytest.param(filled(b"p", b"\r"), id="carriage-returns"),
        pytest.param(filled(b"# ", b'="'), id="comment"),
    ],
)
def test_parse_hostile_shape_is_linear(payload):
    """A large payload of any shape is read in seconds of processor time; a quadratic reader would need hours."""
    started_s = time.process_time()
    heads = {line.raw_head: line.head for line in parse(b"p v=1", context()).lines}
    parse(payload, context(heads=heads))
    parse_spans([payload], context(heads=heads))
    assert time.process_time() - started_s < 20


@pytest.mark.parametrize(
    ("precision", "word", "text"),
    [
        ("ns", b"42000000000", "'42000000000' read as ns is 1970-01-01T00:00:42Z: before min_time"),
        ("auto", b"-42", "'-42' read by its magnitude is 1969-12-31T23:59:18Z: before min_time"),
        ("s", b"4102444800", "'4102444800' read as s is 2100-01-01T00:00:00Z: further ahead than max_future"),
    ],
)
def test_time_out_of_range_says_how_it_was_read(precision, word, text):
    """Whoever sends seconds to a route of nanoseconds sees in the record what became of them."""
    borders = {"min_time_ns": 1_420_070_400 * 10**9, "max_time_ns": 1_800_000_000 * 10**9}
    (error,) = parse(b"p v=1 " + word, Context(precision, 1_700_000_000 * 10**9, **borders)).errors
    assert error.reason is Reason.TIME_OUT_OF_RANGE
    assert text in error.message


def test_parse_leaves_nothing_of_a_delivery_behind():
    """A context that waits for its next message does not hold the rows of the last one."""
    settings = Context("ns", 1)
    parsed = parse(b"p v=1\np v=x\np v=nan,w=1", settings)
    assert (len(parsed.lines), len(parsed.errors), parsed.non_finite) == (2, 1, 1)
    assert [(r.lines, r.errors, r.heads) for r in settings.readers.values()] == [([], [], {})]
    assert parse(b"q v=1", settings).non_finite == 0
