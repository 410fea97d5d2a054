"""Parse and append: kinds and limits of tables, groups, rollback, and the way back through the log."""

import subprocess
import sys
import zlib
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_appliance.core import append_reference
from edge_appliance.core.append import KERNEL, Appender
from edge_appliance.core.delivery import Delivery, Kind, LineError, Origin, Reason
from edge_appliance.core.schema import Schema, SchemaLimits
from edge_appliance.core.segment import Segment
from edge_appliance.core.wal_record import decode_group

ARRIVAL_NS = 1_700_000_000_000_000_000
DAY_NS = 86_400_000_000_000


class Implementation:
    """The one under test."""

    appender = Appender


@pytest.fixture(params=["reference"] + ["compiled"] * (KERNEL == "compiled"), scope="module", autouse=True)
def implementation(request):
    """Every test here runs on both."""
    Implementation.appender = append_reference.Appender if request.param == "reference" else Appender
    yield
    Implementation.appender = Appender


class Harness:
    """An appender with its segment, committed group by group."""

    def __init__(self, limits: SchemaLimits | None = None) -> None:
        self.schema = Schema(limits)
        self.appender = Implementation.appender(self.schema)
        self.segment = Segment(1, 1, 0.0)
        self.records = []

    def origin(self, tags=(), precision="ns", **borders) -> Origin:
        return Origin("edge", precision, tuple(tags), "mqtt", "t", "t", **borders)

    def write(self, *payloads: bytes, accept_partial=True, origin=None, commit=True):
        origin = origin or self.origin()
        deliveries = [
            Delivery(origin, payload, ARRIVAL_NS + n, accept_partial=accept_partial)
            for n, payload in enumerate(payloads)
        ]
        group = self.appender.append_group(self.segment, deliveries, [None] * len(deliveries))
        if commit:
            self.records += [group.payload] if group.payload else []
            self.commit()
        return group

    def commit(self):
        frozen = self.segment.freeze_large_tails()
        self.schema.commit()
        self.segment.publish(frozen)

    def rows(self):
        return rows_of(self.segment)


def rows_of(segment):
    """All visible rows as (table, tags, time, fields without nulls), in order of each table."""
    rows = []
    for row_set in segment.row_sets():
        for chunk in row_set.chunks:
            fields = {
                c.name: chunk.field(c.name, c.kind).to_pylist() for c in row_set.columns if c.kind is not Kind.TAG
            }
            for n, (ref, time) in enumerate(zip(chunk.series.to_pylist(), chunk.time.to_pylist(), strict=True)):
                values = {name: column[n] for name, column in fields.items() if column[n] is not None}
                rows.append((row_set.table, dict(row_set.series.tags[ref]), time, values))
    return rows


def replay(records):
    """The segment that the log gives back."""
    appender, segment = Implementation.appender(Schema()), Segment(1, 1, 0.0)
    mismatches = []
    for record in records:
        done = appender.append_logged(segment, decode_group(record), None)
        appender.schema.commit()
        segment.publish(segment.freeze_large_tails())
        mismatches += done.mismatches
    return segment, appender.schema, mismatches


def definitions(group):
    """The definitions that a group logs."""
    return decode_group(group.payload).definitions


def reasons(group):
    return [(error.line, error.reason) for result in group.results for error in result.errors]


COLUMN_CASES = [
    (b"c n=5\nc n=6i", [{"n": 5.0}, {"n": 6.0}], []),
    (b"c n=5i\nc n=5.5", [{"n": 5}], [(2, Reason.TYPE_CONFLICT)]),
    (b"c n=5\nc n=9007199254740992i", [{"n": 5.0}, {"n": 9007199254740992.0}], []),
    (b"c n=5\nc n=9007199254740993i", [{"n": 5.0}], [(2, Reason.TYPE_CONFLICT)]),
    (b"c n=5\nc n=6u", [{"n": 5.0}], [(2, Reason.TYPE_CONFLICT)]),
    (b"c n=5i\nc n=6u", [{"n": 5}], [(2, Reason.TYPE_CONFLICT)]),
    (b'c n="a"\nc n=t', [{"n": "a"}], [(2, Reason.TYPE_CONFLICT)]),
    (b'c s="x"\nc,s=a v=1', [{"s": "x"}], [(2, Reason.TAG_FIELD_COLLISION)]),
    (b"c,s=a v=1\nc s=1", [{"v": 1.0}], [(2, Reason.TAG_FIELD_COLLISION)]),
    (b'c n=5i\nc n=t,m="z"\nc m=1', [{"n": 5}, {"m": 1.0}], [(2, Reason.TYPE_CONFLICT)]),
    (b"c n=nan,m=1\nc n=t", [{"m": 1.0}, {"n": True}], []),
    (
        b"c n=9007199254740993i,u=18446744073709551615u",
        [{"n": 9007199254740993, "u": 18446744073709551615}],
        [],
    ),
    (b"c,a=1 n=5\nc n=6,m=7i", [{"n": 5.0}, {"n": 6.0, "m": 7}], []),
    (b"p v=1 7\np v=1 6\np v=1 8", [{"v": 1.0}] * 3, []),
]


@pytest.mark.parametrize(("payload", "fields", "errors"), COLUMN_CASES, ids=range(len(COLUMN_CASES)))
def test_column_kinds(payload, fields, errors):
    """The first accepted line fixes a column's kind; a conflict costs its own line only."""
    harness = Harness()
    group = harness.write(payload)
    assert [row[3] for row in harness.rows()] == fields
    assert reasons(group) == errors


@pytest.mark.parametrize("splits", ["one payload", "one delivery a line", "one group a line"])
def test_column_kinds_do_not_depend_on_grouping(splits):
    """The same lines give the same rows however they arrive."""
    for payload, fields, errors in COLUMN_CASES:
        harness = Harness()
        lines = payload.split(b"\n")
        if splits == "one payload":
            groups = [harness.write(payload)]
        elif splits == "one delivery a line":
            groups = [harness.write(*lines)]
        else:
            groups = [harness.write(line) for line in lines]
        assert sorted(map(str, (row[3] for row in harness.rows()))) == sorted(map(str, fields))
        assert [reason for group in groups for _, reason in reasons(group)] == [reason for _, reason in errors]


def test_conflict_record_names_table_column_and_both_types():
    """Whoever reads the dead letter knows what to change on the device, and where in the line it is."""
    harness = Harness()
    harness.write(b"c n=5i")
    (error,) = harness.write(b"\n  c m=1,n=5.5 7").results[0].errors
    assert (error.line, error.column, error.reason) == (2, 11, Reason.TYPE_CONFLICT)
    for word in ("table c", "column n", "int", "float"):
        assert word in error.message
    assert error.sample == b"c m=1,n=5.5 7"


def test_rejected_line_leaves_no_table_column_or_series():
    """A line that is refused by its table defines nothing."""
    harness = Harness()
    harness.write(b"c n=5i")
    before = harness.schema.definitions()
    harness.write(b"c,site=new n=1.5,extra=1")
    assert harness.schema.definitions() == before
    assert [row_set.series.count for row_set in harness.segment.row_sets()] == [1]


def test_column_limit_is_inclusive_and_counts_tags():
    """The limit itself is accepted; one more is refused with its own reason."""
    harness = Harness(SchemaLimits(columns=3))
    assert reasons(harness.write(b"x,a=1 b=1,c=1")) == []
    assert reasons(harness.write(b"x,a=1 d=1", b"x,e=1 b=1")) == [
        (1, Reason.TOO_MANY_COLUMNS),
        (1, Reason.TOO_MANY_COLUMNS),
    ]
    assert reasons(harness.write(b"x,a=2 c=4")) == []


def test_table_limit():
    """One table too many is refused, and known tables go on."""
    harness = Harness(SchemaLimits(tables=1))
    assert reasons(harness.write(b"x v=1\ny v=1\nx v=2")) == [(2, Reason.TOO_MANY_TABLES)]
    assert len(harness.rows()) == 2


def test_route_tags_join_and_lose_against_tags_of_the_line():
    """The payload's own tag beats the route's, and is counted."""
    harness = Harness()
    origin = harness.origin(tags=[("dev", "d1"), ("site", "k2")])
    group = harness.write(b"door,site=munich open=t", b"door open=f", origin=origin)
    assert [row[1] for row in harness.rows()] == [{"dev": "d1", "site": "munich"}, {"dev": "d1", "site": "k2"}]
    assert group.tag_collisions == 1


def test_same_series_in_other_spellings_is_one_series():
    """Order and escapes of tags do not make a new series."""
    harness = Harness()
    harness.write(b"p,a=1,b=2 v=1 1\np,b=2,a=1 v=2 2\np,a=\\1,b=2 v=3 3")
    (row_set,) = harness.segment.row_sets()
    assert row_set.series.count == 2  # `\1` keeps its backslash: another value
    assert [row[1] for row in harness.rows()][:2] == [{"a": "1", "b": "2"}] * 2


def test_atomic_delivery_keeps_nothing_when_one_line_is_bad():
    """`accept_partial=false` is all or nothing, for errors of syntax and of tables alike."""
    for bad in (b"p v=", b"p w=t"):
        harness = Harness()
        harness.write(b"p w=1i 1")
        before = harness.schema.definitions()
        group = harness.write(b"p v=1 2\nq,x=1 y=2 3\n" + bad, accept_partial=False)
        assert len(reasons(group)) == 1
        assert group.results[0].rows == 0
        assert group.payload == b""
        assert [row[3] for row in harness.rows()] == [{"w": 1}]
        assert harness.schema.definitions() == before
        assert harness.write(b"p v=t,w=2i 9").results[0].rows == 1


def test_atomic_delivery_does_not_touch_its_neighbours():
    """Taking one delivery back keeps the rows of the same table around it."""
    harness = Harness()
    origin = harness.origin()
    deliveries = [
        Delivery(origin, b"p v=1 1", ARRIVAL_NS),
        Delivery(origin, b"p v=2 2\np v=t 3", ARRIVAL_NS + 1, accept_partial=False),
        Delivery(origin, b"p v=4 4", ARRIVAL_NS + 2),
    ]
    group = harness.appender.append_group(harness.segment, deliveries, [None] * 3)
    harness.commit()
    assert [result.rows for result in group.results] == [1, 0, 1]
    assert [row[2] for row in harness.rows()] == [1, 4]


def test_transport_rejects_take_their_place():
    """A delivery that the transport refused gives its record and no rows."""
    harness = Harness()
    reject = LineError(0, 0, Reason.NO_ROUTE, "no route", b"x")
    deliveries = [Delivery(harness.origin(), b"x v=1", ARRIVAL_NS, reject=reject)]
    group = harness.appender.append_group(harness.segment, deliveries, [None])
    assert group.results[0].errors == (reject,)
    assert not group.payload


def test_rollback_of_a_group_leaves_no_trace():
    """After a failed sync the same group can be appended to the next segment with the same result."""
    harness = Harness()
    harness.write(b"p,a=1 v=1 1")
    before = harness.schema.definitions(), harness.rows(), harness.segment.size_bytes
    harness.write(b"p,a=2 w=1i 2\nq v=1 3", commit=False)
    harness.segment.rollback()
    harness.schema.rollback()
    assert (harness.schema.definitions(), harness.rows(), harness.segment.size_bytes) == before
    harness.write(b"p,a=1 w=t 2")
    assert harness.rows()[-1][3] == {"w": True}


def test_rows_beyond_the_mark_are_invisible():
    """A reader sees a group only after it was published."""
    harness = Harness()
    harness.write(b"p v=1 1")
    harness.write(b"p v=2 2", commit=False)
    assert len(harness.rows()) == 1
    harness.commit()
    assert len(harness.rows()) == 2


def test_definitions_of_a_group_are_whole_at_first_use_in_a_file():
    """Each file can be read without any other, so it defines each table when it first uses it."""
    harness = Harness()
    first = harness.write(b"p,a=1 v=1")
    second = harness.write(b"p,a=1 v=1,w=2i")
    assert [c.name for c in definitions(first)[0].columns] == ["a", "v"]
    assert [c.name for c in definitions(second)[0].columns] == ["w"]
    harness.segment = Segment(2, 3, 0.0)
    third = harness.write(b"p v=1")
    assert [c.name for c in definitions(third)[0].columns] == ["a", "v", "w"]
    assert definitions(harness.write(b"p v=1")) == []


def test_times_crc_covers_the_rows_times():
    """Replay can tell when a line gives another time than it did."""
    harness = Harness()
    group = harness.write(b"p v=1 5\np v=x\np v=2 7")
    (entry,) = decode_group(group.payload).entries()
    assert entry.times_crc == zlib.crc32(array("q", [5, 7]))
    assert list(entry.spans) == [b"p v=1 5", b"p v=2 7"]


def test_one_delivery_brings_a_bounded_number_of_dates():
    """A body with more dates of one table than files we want to write is cut, with a reason."""
    harness = Harness()
    lines = [b"p v=1 %d" % (day * DAY_NS) for day in range(4_098)]
    group = harness.write(b"\n".join([*lines, b"p v=2 0"]))
    assert reasons(group) == [(4_097, Reason.TIME_OUT_OF_RANGE), (4_098, Reason.TIME_OUT_OF_RANGE)]
    assert harness.segment.pairs == 4_096


def test_chunks_freeze_and_keep_every_row():
    """Freezing moves rows from tail to chunks without losing or changing one."""
    harness = Harness()
    for start in range(0, 10_000, 2_500):
        harness.write(b"\n".join(b"p,s=%d v=%di %d" % (n % 3, n, n) for n in range(start, start + 2_500)))
    assert [row[3]["v"] for row in harness.rows()] == list(range(10_000))
    (row_set,) = harness.segment.row_sets()
    assert (row_set.min_time_ns, row_set.max_time_ns) == (0, 9_999)


def test_replay_gives_the_same_rows_under_other_limits():
    """Replay decides nothing: limits, borders and kinds of today do not matter for what was accepted."""
    harness = Harness()
    origin = harness.origin(tags=[("dev", "x")], precision="auto", min_time_ns=0, max_future_ns=10**18)
    harness.write(b"p n=5", b'p n=6i 1700000000\np bad\nq,a=\\,b s="x\ny"', origin=origin)
    harness.write(b"p n=7i,m=t 1700000000001", origin=origin)
    segment, schema, mismatches = replay(harness.records)
    assert mismatches == []
    assert rows_of(segment) == harness.rows()
    assert schema.definitions() == harness.schema.definitions()


def test_replay_leaves_out_what_a_part_covers():
    """Rows of a covered table and date stay out; others of the same record come back."""
    harness = Harness()
    harness.write(b"p v=1 1\np v=2 %d\nq v=3 1" % DAY_NS)
    appender, segment = Implementation.appender(Schema()), Segment(1, 1, 0.0)
    done = appender.append_logged(
        segment,
        decode_group(harness.records[0]),
        lambda database, table, day: (database, table, day) == ("edge", "p", 0),
    )
    appender.schema.commit()
    segment.publish(segment.freeze_large_tails())
    assert (done.lines, done.covered) == (2, 1)
    assert [(row[0], row[2]) for row in rows_of(segment)] == [("p", DAY_NS), ("q", 1)]


def test_replay_reports_a_line_that_gives_another_row():
    """A parser that reads a logged line differently is noticed, never silent."""
    harness = Harness()
    record = decode_group(harness.write(b"p v=1 5").payload)
    record.times_crcs[0] ^= 1
    done = Implementation.appender(Schema()).append_logged(Segment(1, 1, 0.0), record, None)
    assert len(done.mismatches) == 1


NAMES = st.sampled_from(["p", "q"])
FIELDS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "2i", "3u", "t", '"s"', "nan", "9007199254740993i"])),
    min_size=1,
    max_size=3,
)
LINES = st.builds(
    lambda name, tag, fields, time: f"{name}{tag} {','.join(f'{k}={v}' for k, v in fields)} {time}",
    NAMES,
    st.sampled_from(["", ",a=1", ",x=1", ",x=2", ",y=1,x=1"]),
    FIELDS,
    st.integers(0, 5),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.lists(LINES, min_size=1, max_size=4), min_size=1, max_size=3), min_size=1, max_size=4))
def test_counts_add_up_and_the_log_gives_the_same_rows(groups):
    """Lines in = rows + rejects, whatever the grouping; replaying the log gives the same rows and definitions."""
    harness = Harness()
    for payloads in groups:
        group = harness.write(*("\n".join(lines).encode() for lines in payloads))
        assert group.lines == sum(result.rows for result in group.results)
        for lines, result in zip(payloads, group.results, strict=True):
            assert result.rows + len(result.errors) == len(lines)
    segment, schema, mismatches = replay(harness.records)
    assert mismatches == []
    assert rows_of(segment) == harness.rows()
    assert schema.definitions() == harness.schema.definitions()


@pytest.mark.parametrize("again", [b"p w=7i 4", b"p w=1.5 4", b'p w="x" 4'], ids=["same kind", "other kind", "string"])
def test_column_of_a_delivery_that_was_taken_back_is_defined_anew(again):
    """Its kind is free again, and the next value defines it in schema and log: no row without its definition."""
    harness = Harness()
    harness.write(b"p v=1 1")
    harness.write(b"p w=3i 2\np v=t 3", accept_partial=False)
    group = harness.write(again)
    assert [column.name for definition in definitions(group) for column in definition.columns] == ["w"]
    assert harness.rows()[-1][2] == 4
    assert set(harness.rows()[-1][3]) == {"w"}
    replayed = Harness()
    for record in harness.records:
        replayed.appender.append_logged(replayed.segment, decode_group(record), None)
        replayed.commit()
    assert replayed.rows() == harness.rows()
    assert replayed.schema.definitions() == harness.schema.definitions()


def test_without_the_compiled_kernel_the_reference_runs():
    """A machine without a compiler gets the same, slower, and says so."""
    code = (
        "import sys; sys.modules['edge_appliance.core.kernel'] = None\n"
        "from edge_appliance.core import append, append_reference\n"
        "print(append.KERNEL, append.Appender is append_reference.Appender)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "reference True\n"
