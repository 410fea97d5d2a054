"""What senders could fill the memory with, on both appenders: it is bounded, or it is counted."""

import pytest
from support.appenders import Script, Side, Write

from edge_appliance.core import append_reference
from edge_appliance.core.append import KERNEL, Appender
from edge_appliance.core.delivery import Origin, Reason
from edge_appliance.core.line_ordinary import MAX_SHAPES_BYTES
from edge_appliance.core.line_split import MAX_PARTS
from edge_appliance.core.segment import MAX_ORIGIN_BYTES, MAX_ORIGINS

ORIGIN = Origin("edge", "ns", (), "mqtt", "t", "t")
APPENDERS = [append_reference.Appender] + [Appender] * (KERNEL == "compiled")


@pytest.fixture(params=APPENDERS, ids=["reference", "compiled"][: len(APPENDERS)])
def side(request):
    """An appender with its segment."""
    return Side(request.param, Script([]))


def _fields(count: int, value: bytes, name: bytes = b"f") -> bytes:
    return b",".join(b"%s%d=%s" % (name, number, value) for number in range(count))


@pytest.mark.parametrize("value", [b"1", b"nan", b'"a,b"', b"1e5"])
def test_fields_of_a_line_are_bounded(side, value):
    """A line of more fields than any table has columns is not read to its end, whatever they hold."""
    start = b"p " + _fields(MAX_PARTS, value) + b","
    results, *_ = side.write([Write(start + b"bad", ORIGIN)], fails=False)
    [error] = results[0][1]
    assert (error.reason, error.column) == (Reason.TOO_MANY_COLUMNS, len(start) + 1)
    assert error.message == f"the line has more than {MAX_PARTS} fields"


def test_tags_of_a_line_are_bounded(side):
    """The same for tags, of which a table has one column each."""
    start = b"p," + _fields(MAX_PARTS, b"x")
    results, *_ = side.write([Write(start + b",bad v=1", ORIGIN)], fails=False)
    [error] = results[0][1]
    assert (error.reason, error.column) == (Reason.TOO_MANY_COLUMNS, len(start) + 1)
    assert error.message == f"the line has more than {MAX_PARTS} tags"


def test_most_parts_are_read_to_the_end(side):
    """So many fields are still read; that the table would have too many columns is another message."""
    lines = [
        b"p v=1," + _fields(MAX_PARTS - 1, b"nan"),
        b"p " + _fields(MAX_PARTS, b"1"),
        b"p," + _fields(MAX_PARTS, b"x", b"t") + b" v=1",
    ]
    results, _, accepted, *_ = side.write([Write(b"\n".join(lines), ORIGIN)], fails=False)
    assert accepted == 1
    assert [error.message.partition(" columns")[0] for error in results[0][1]] == [
        f"table p would have {MAX_PARTS + 1}",
        f"table p would have {MAX_PARTS + 1}",
    ]


def test_shapes_of_rejected_lines_do_not_pile_up(side):
    """The names of lines that no table takes are not kept for ever."""
    for number in range(30):
        line = b"p " + _fields(MAX_PARTS, b"1", b"f%d_" % number)
        side.write([Write(line, ORIGIN)], fails=False)
    shapes = side.appender._shapes
    assert shapes.size_bytes <= MAX_SHAPES_BYTES
    assert sum(len(names) for names, _ in shapes._shapes) * 300 <= MAX_SHAPES_BYTES


def test_origins_without_a_good_line_do_not_pile_up(side):
    """However many topics bring nothing but rejected lines, and no segment to cut: what is kept of them is bounded."""
    for first in range(0, 4 * MAX_ORIGINS, 1_000):
        origins = [Origin("edge", "ns", (("device", str(first + n)),), "mqtt", "t", "t") for n in range(1_000)]
        side.write([Write(b"bad", origin) for origin in origins], fails=False)
    segment = side.segment
    assert max(len(segment.heads), len(segment.contexts), len(segment.readers) // 2) <= MAX_ORIGINS + 1_000


def test_long_topics_do_not_pile_up(side):
    """A topic may have 64 KiB: of such ones fewer are kept."""
    for number in range(400):
        topic = f"{number:065535}"
        side.write([Write(b"bad", Origin("edge", "ns", (("device", topic),), "mqtt", topic, "t"))], fails=False)
    segment = side.segment
    known = {id(key): key for key in [*segment.contexts, *segment.readers] if isinstance(key, Origin)}
    assert sum(len(origin.label) for origin in known.values()) <= MAX_ORIGIN_BYTES + len(topic)


def test_origins_are_found_again(side):
    """What is known of a series survives that its origin is forgotten, and the log names each context rightly."""
    device = Origin("edge", "ns", (("device", "a"),), "mqtt", "t", "t")
    side.write([Write(b"p v=1 1", device)], fails=False)
    crowd = [Origin("edge", "ns", (("device", str(n)),), "mqtt", "t", "t") for n in range(MAX_ORIGINS)]
    side.write([Write(b"bad", origin) for origin in crowd], fails=False)
    side.write([Write(b"p v=2 2", device), Write(b"p v=3 3", crowd[0])], fails=False)
    [buffer] = side.segment.tables.values()
    assert buffer.series == [(("device", "a"),), (("device", "0"),)]
    assert list(buffer.tail.series) == [0, 0, 1]
    assert Side(type(side.appender), Script([])).replay(side.records)[1][0][0][3] == buffer.series


def test_spellings_of_a_series_are_counted(side):
    """A series may be written in many ways, each of which is remembered: as memory of the segment."""
    text = b"x" * 10_000
    lines = [b"p,a=%s,b=%s v=1 1" % (b"\\q" * n, text) for n in range(10)]
    aliases = [b"p,b=%s,a=%s v=1 1" % (text, b"\\q" * n) for n in range(10)]
    side.write([Write(b"\n".join(lines[1:]), ORIGIN)], fails=False)
    before = side.segment.size_bytes, side.segment.series_bytes
    side.write([Write(b"\n".join(aliases[1:]), ORIGIN)], fails=True)
    assert (side.segment.size_bytes, side.segment.series_bytes) == before
    side.write([Write(b"\n".join(aliases[1:]), ORIGIN)], fails=False)
    assert side.segment.series_count == 9
    assert side.segment.series_bytes - before[1] >= 9 * len(text)


def test_long_names_of_tables_are_counted(side):
    """Each series is known by its bytes, the name of its table among them."""
    table = b"t" * 50_000
    lines = b"\n".join(b"%s,a=%d v=1" % (table, n) for n in range(10))
    side.write([Write(lines, ORIGIN)], fails=False)
    assert side.segment.series_bytes >= 10 * len(table)
