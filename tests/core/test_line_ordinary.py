"""Reading a line by the shape of one before it: the same row as reading it in full, or none at all."""

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_appliance.core import line_ordinary, line_protocol
from edge_appliance.core.delivery import Kind
from edge_appliance.core.line_ordinary import Shapes, read_fields
from edge_appliance.core.line_protocol import Context, parse, parse_alike, parse_spans

ARRIVAL_NS = 1_700_000_000_000_000_000

WORDS = [
    "1",
    "-1.5",
    "1.",
    ".5",
    "1e5",
    "-0",
    "1" * 41,
    "1i",
    "-9i",
    "1" * 19 + "i",
    "5u",
    "t",
    "FALSE",
    "nan",
    "",
    "+1",
]
STRINGS = ['""', '"a b,c=1"', '"x\ny"', r'"a\"b"', '"köln"', '"a"b"', '"a', '"\t"', '"\0"']
TIMES = ["", " 5", " -5", "  5", " 5 ", " 5\r", " 05", " 1x", " " + "9" * 19, " " + "9" * 20, " 1700000000", "\n", "\0"]
HEADS = ["m,a=1", "m", "m,b=x", r"m,a=\ 1", "n,v=1", "\ufeffm"]
FIELDS = st.lists(
    st.tuples(st.sampled_from(["v", "w", "a", "ä", "time"]), st.sampled_from(WORDS + STRINGS)), min_size=1, max_size=3
)
LINES = st.builds(
    lambda head, fields, time: f"{head} {','.join(f'{k}={v}' for k, v in fields)}{time}".encode(),
    st.sampled_from(HEADS),
    FIELDS,
    st.sampled_from(TIMES),
)


def context(**settings) -> Context:
    return Context("auto", ARRIVAL_NS, (("site", "k2"),), **settings)


def warmed(lines: list[bytes]) -> Context:
    """A context that has read `lines`, and knows the heads of the good ones."""
    heads = {}
    warm = context(heads=heads)
    for line in lines:
        for row in parse(line, warm).lines:
            heads[row.raw_head] = row.head
    return warm


def in_full(payload: bytes):
    """What the reader that knows every rule says."""
    with mock.patch.object(line_protocol._Reader, "_ordinary", return_value=None):
        return parse(payload, context())


@settings(max_examples=400, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=4), LINES)
def test_warm_context_changes_no_result(before, line):
    """Whatever was read before, a payload gives the rows and errors that the full reader gives."""
    warm = warmed([*before, line])
    assert parse(line, warm) == in_full(line)


@settings(max_examples=400, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=4), LINES)
def test_line_alike_is_the_only_row_of_its_payload(before, line):
    """A delivery that is read in one step is exactly one row, the full reader's, and its payload is its span."""
    row = parse_alike(line, warmed([*before, line]))
    if row is None:
        return
    head, shape, values, time_ns = row
    full = in_full(line)
    assert full.errors == []
    (expected,) = full.lines
    assert (head, shape, list(values), time_ns) == (
        expected.head,
        expected.shape,
        list(expected.values),
        expected.time_ns,
    )
    assert expected.span == line
    assert (full.sanitised, full.non_finite) == (False, 0)


@pytest.mark.parametrize("again", [parse, lambda line, warm: parse_spans([line], warm)], ids=["parse", "replay"])
@pytest.mark.parametrize("fields", [b"v=1.5,w=-2", b'v=1i,w=2u,x=t,y="s"'])
def test_second_line_alike_needs_no_search(again, fields):
    """The shape is really used: the next line with the same fields is not looked at field by field."""
    line = b"m,a=1 " + fields + b" 1700000000000000007"
    warm = warmed([line])
    with mock.patch.object(line_protocol, "read_ordinary_fields", side_effect=AssertionError):
        (row,) = again(line, warm).lines
        assert parse_alike(line, warm) is not None
    assert row.time_ns == 1_700_000_000_000_000_007


def test_line_alike_obeys_the_borders_of_its_time():
    """A time outside is left to the reader that rejects it."""
    warm = warmed([b"m v=1 1700000000"])
    warm.min_time_ns, warm.max_time_ns = 1_000_000_000 * 10**9, 2_000_000_000 * 10**9
    assert parse_alike(b"m v=1 1700000001", warm) is not None
    assert parse_alike(b"m v=1 999999999", warm) is None
    assert parse_alike(b"m v=1 2000000001", warm) is None


def test_shapes_are_bounded(monkeypatch):
    """A flood of field names costs no memory and no compiled expression beyond the limit."""
    monkeypatch.setattr(line_ordinary, "MAX_SHAPES", 3)
    shapes = Shapes()
    made = [shapes.of_ordinary("m", [(f"f{n}", Kind.FLOAT, 1.0)]) for n in range(10)]
    assert sum(shape.match is not None for shape in made) == 3
    assert len(shapes.latest) <= 3
    assert len({id(shapes.of([("f0", Kind.FLOAT, 2.0)])), id(made[0])}) == 1


def test_read_fields_refuses_what_is_not_ordinary():
    """Escapes in names, words out of range, nan, reserved names and stray commas are for the full reader."""
    assert read_fields('a=1,b=2i,c=3u,d=t,e="x"') is not None
    for body in (r"a\ b=1", "a=nan", "time=1", "_edge=1", "a=1,", "a=1,,b=2", "a", "", "a=" + "1" * 41, "a=1x"):
        assert read_fields(body) is None


def test_line_alike_with_a_field_named_like_one_of_its_tags_is_refused():
    """The shape comes from a series without that tag; on the series with it the line is a collision."""
    warm = warmed([b"m a=1", b"m,a=x v=1"])
    assert parse_alike(b"m a=2", warm) is not None
    assert parse_alike(b"m,a=x a=2", warm) is None
    assert [error.reason for error in parse(b"m,a=x a=2", warm).errors] == ["tag_field_collision"]
