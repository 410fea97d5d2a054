"""Line protocol by properties: on any bytes, on damaged lines, and on lines made from what they shall mean."""

from __future__ import annotations

import math
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge_appliance.core import line_protocol
from edge_appliance.core.delivery import Kind
from edge_appliance.core.line_protocol import Context, Limits, Parsed, locate_field, parse, parse_spans
from edge_appliance.core.line_split import split

ARRIVAL_NS = 1_700_000_000_000_000_000

FRAGMENTS = [
    *(b",", b"=", b" ", b"\n", b"\\", b'"', b"\t", b"\r", b"\0", b"#", b"\\\\", b'\\"', b"\\ ", b"\\,", b"\\="),
    *(b"p", b"p v=1", b"p,a=b v=1", b",a=", b" v=", b",w=", b'="', b'"\n', b"\np v=1\n", b' s="a,b c"', b"\r\n"),
    *(b"1", b"-5i", b"7u", b"t", b"nan", b"-Inf", b".5", b"1e400", b"99999999999999999999", b"1700000000000000000"),
    *(b"_edge", b"time", b"\xc3\xa9", "\U0001f600".encode(), b"\xff", b"\xef\xbb\xbf", b"\x0b", "\u0661".encode()),
]
damaged = st.lists(st.sampled_from(FRAGMENTS), max_size=24).map(b"".join)

LINES = [
    b"cpu,host=gw-01,core=3 user=12.5,system=3.25,idle=84.2 1700000000000000000",
    b"pump,site=a rpm=1200i,on=t,n=7u",
    b'alarm msg="Door \\"A\\" open, zone=3",ok=f 1700000000',
    b'oplog,hmi=p2 note="shift change\ncounter reset",n=2i',
    b"fan\\ speed,room=Server\\ Room\\,\\ East,rack=R\\=7 rpm=1420i -5\r",
    b"w v=nan,x=-.5e-3,y=7. 5000000001",
]


@st.composite
def nearly_good(draw) -> bytes:
    """Good lines with a few bytes replaced, inserted or removed."""
    text = bytearray(b"\n".join(draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=4))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(FRAGMENTS))
    return bytes(text)


payloads = st.one_of(damaged, nearly_good(), st.binary(max_size=60))
contexts = st.builds(
    Context,
    precision=st.sampled_from(["ns", "us", "ms", "s", "auto"]),
    arrival_ns=st.just(ARRIVAL_NS),
    route_tags=st.sampled_from([(), (("a", "1"), ("site", "x"))]),
    limits=st.sampled_from([None, Limits(), Limits(4, 3, 5), Limits(1 << 16, 1 << 16, 1 << 20, 30)]),
    min_time_ns=st.sampled_from([None, 0, 1_420_070_400_000_000_000]),
    max_time_ns=st.sampled_from([None, ARRIVAL_NS]),
)


def plain_context(**values) -> Context:
    """Nothing but the defaults."""
    return Context(precision="ns", arrival_ns=ARRIVAL_NS, **values)


def fates(parsed: Parsed) -> list[tuple]:
    """What became of each line, in order, without the line's place in the payload."""
    rows = [(line.number, (line.head, line.fields, line.time_ns, line.span, line.column)) for line in parsed.lines]
    errors = [(error.line, tuple(error)[1:]) for error in parsed.errors]
    return [fate for _, fate in sorted(rows + errors, key=lambda pair: pair[0])]


def naive_lines(text: bytes) -> list[tuple[int, bytes]]:
    """Lines by the rules read byte by byte, numbered by physical line; the oracle of `split`."""
    lines, start, number = [], 0, 1
    while start <= len(text):
        end = naive_line_end(text, start)
        lines.append((number, text[start:end]))
        number += text[start : end + 1].count(b"\n")
        start = end + 1
    return lines


def naive_line_end(text: bytes, start: int) -> int:
    """Walk one line: blanks, comment, head, then strings behind a free `=`."""
    at = start
    while text[at : at + 1] in (b" ", b"\t"):
        at += 1
    is_comment = text[at : at + 1] == b"#"
    in_head, opened_at, after_equals = True, -1, False
    while at < len(text):
        byte = text[at : at + 1]
        if byte == b"\n" and opened_at < 0:
            return at
        if is_comment:
            at += 1
            continue
        if byte == b"\\":
            after_equals = False
            at += 1 if text[at + 1 : at + 2] in (b"\n", b"") else 2
            continue
        if opened_at >= 0:
            opened_at = -1 if byte == b'"' else opened_at
        elif in_head:
            in_head = byte != b" "
        elif byte == b'"' and after_equals:
            opened_at = at
        after_equals = byte == b"=" and opened_at < 0 and not in_head
        at += 1
    if opened_at < 0:
        return len(text)
    first_lf = text.find(b"\n", opened_at)
    return len(text) if first_lf < 0 else first_lf


@settings(deadline=None, max_examples=400)
@given(payloads, contexts)
@example(b"", plain_context())
def test_any_bytes_raise_nothing(payload, context):
    """Every payload gives a result, also as a span of the log; so does the search for a field's place."""
    parse(payload, context)
    parse_spans([payload, payload[:3]], context)
    assert locate_field(payload, "v") >= 0


@settings(deadline=None, max_examples=400)
@given(payloads)
@example(b'p v="a\\\n"\nq v=1')
@example(b'p v="\\\nq v=1')
@example(b' # ="\np v=1')
def test_split_agrees_with_reading_byte_by_byte(payload):
    """Lines end where a reader of single bytes ends them."""
    assert list(split(payload)) == naive_lines(payload)


@settings(deadline=None, max_examples=300)
@given(payloads)
def test_each_line_is_counted_once(payload):
    """Rows and records together are the lines that are neither blank nor a comment."""
    text = payload.removeprefix(b"\xef\xbb\xbf").rstrip(b"\0")
    parsed = parse(payload, plain_context())
    if [error.reason for error in parsed.errors] == ["invalid_utf8"]:
        return
    trimmed = [line.removesuffix(b"\r").strip(b" \t") for _, line in naive_lines(text)]
    expected = sum(line != b"" and not line.startswith(b"#") for line in trimmed)
    assert len(parsed.lines) + len(parsed.errors) == expected


@settings(deadline=None, max_examples=300)
@given(payloads, contexts)
@example(b"\xef\xbb\xbf\xef\xbb\xbf", plain_context())
def test_neighbours_do_not_change_a_line(payload, context):
    """A line has the same fate alone as among the others of its payload."""
    context.limits = None
    text = payload.removeprefix(b"\xef\xbb\xbf").rstrip(b"\0")
    if b"\xff" in text or not is_utf8(text):
        return
    # LFs around it, here and there: a mark or a NUL at its edge would be removed.
    alone = [fate for _, line in naive_lines(text) for fate in fates(parse(b"\n" + line + b"\n", context))]
    assert fates(parse(b"\n" + text + b"\n", context)) == alone


def is_utf8(text: bytes) -> bool:
    """Whether the text is strict UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(deadline=None, max_examples=300)
@given(payloads, contexts)
def test_replayed_span_gives_the_same_row(payload, context):
    """What was accepted is accepted again from its span alone, to the same row, with and without known heads."""
    lines = parse(payload, context).lines
    spans = [line.span for line in lines]
    rows = [(line.head, line.raw_head, line.fields, line.time_ns, line.span) for line in lines]
    for heads in ({}, {line.raw_head: line.head for line in lines}):
        context.heads = heads
        replayed = parse_spans(spans, context)
        assert replayed.errors == []
        assert [(x.head, x.raw_head, x.fields, x.time_ns, x.span) for x in replayed.lines] == rows


@settings(deadline=None, max_examples=600)
@given(payloads, contexts)
def test_short_cut_agrees_with_full_reader(payload, context):
    """Known heads and the reader of ordinary lines change nothing but the time it takes."""
    with mock.patch.object(line_protocol._Reader, "_ordinary", return_value=None):
        expected = parse(payload, context)
        spans = [line.span for line in expected.lines]
        replayed = parse_spans([*spans, payload], context)
    assert parse(payload, context) == expected
    assert parse_spans([*spans, payload], context) == replayed
    context.heads = {line.raw_head: line.head for line in expected.lines}
    assert parse(payload, context) == expected
    assert parse_spans([*spans, payload], context) == replayed


# Lines made from their meaning

text = st.text(st.characters(exclude_characters="\0\t\n", codec="utf-8"), max_size=12)
names = text.filter(lambda name: not name.endswith("\\") and name.strip() and not name.startswith("_edge"))
columns = names.filter(lambda name: name not in ("time", "time_ns"))
values = st.one_of(
    st.tuples(st.just(Kind.FLOAT), st.floats(allow_nan=False, allow_infinity=False)),
    st.tuples(st.just(Kind.INT), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(Kind.UINT), st.integers(0, 2**64 - 1)),
    st.tuples(st.just(Kind.BOOL), st.booleans()),
    st.tuples(st.just(Kind.STRING), st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)),
)
WRITTEN = {
    Kind.FLOAT: repr,
    Kind.INT: "{}i".format,
    Kind.UINT: "{}u".format,
    Kind.BOOL: str,
    Kind.STRING: lambda value: '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"',
}


def escaped(name: str, *specials: str) -> str:
    """The name as it stands in a line; a backslash of its own is always written as a pair."""
    name = name.replace("\\", "\\\\")
    for special in specials:
        name = name.replace(special, "\\" + special)
    return name


@settings(deadline=None, max_examples=400)
@given(
    names.filter(lambda name: name[0] not in "# \ufeff"),
    st.dictionaries(columns, names, max_size=3),
    st.dictionaries(columns, values, min_size=1, max_size=4),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(["\n", "\r\n", ""]),
)
def test_written_line_is_read_back(measurement, tags, fields, time_ns, line_end):
    """Names, values and times come back as they were written, whatever characters are in them."""
    tags = {key: value for key, value in tags.items() if key not in fields}
    head = escaped(measurement, ",", " ")
    for key, value in tags.items():
        head += f",{escaped(key, ',', ' ', '=')}={escaped(value, ',', ' ', '=')}"
    body = ",".join(f"{escaped(key, ',', ' ', '=')}={WRITTEN[kind](value)}" for key, (kind, value) in fields.items())
    line = f"{head} {body}" if time_ns is None else f"{head} {body} {time_ns}"
    parsed = parse(f"{line}{line_end}".encode(), plain_context())
    assert parsed.errors == []
    (row,) = parsed.lines
    assert (row.head.measurement, dict(row.head.tags)) == (measurement, tags)
    assert row.fields == [(key, kind, value) for key, (kind, value) in fields.items()]
    assert row.time_ns == (ARRIVAL_NS if time_ns is None else time_ns)
    assert row.span == line.encode()


@settings(deadline=None, max_examples=300)
@given(st.from_regex(rb"[-+]?[0-9]{0,5}\.?[0-9]{0,3}([eE][-+]?[0-9]{0,3})?[iux_]?", fullmatch=True))
def test_number_forms(word):
    """A word is a float exactly when it has the documented form, and then the nearest value."""
    digits = word.removeprefix(b"-")
    mantissa, _, exponent = digits.replace(b"E", b"e").partition(b"e")
    whole, _, fraction = mantissa.partition(b".")
    is_float = (whole + fraction).isdigit() and (
        b"e" not in digits.lower() or (exponent[1:] if exponent[:1] in (b"+", b"-") else exponent).isdigit()
    )
    parsed = parse(b"p v=" + word, plain_context())
    if is_float and math.isfinite(float(word)):
        assert parsed.lines[0].fields == [("v", Kind.FLOAT, float(word))]
    else:
        assert all(kind is not Kind.FLOAT for line in parsed.lines for _, kind, _ in line.fields)
