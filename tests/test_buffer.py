"""The current picture: each row exactly once, whatever moves."""

import datetime as dt
import threading

import pytest
from core_harness import ARRIVAL_NS, ORIGIN, rows_of

from edge_appliance.buffer import Buffer
from edge_appliance.core.append import Appender
from edge_appliance.core.columns import OPEN_RANK
from edge_appliance.core.delivery import Delivery
from edge_appliance.core.parts import Part
from edge_appliance.core.schema import Schema
from edge_appliance.core.segment import Segment


class Harness:
    """A buffer that is written to group by group."""

    def __init__(self, limit_bytes: int = 2**30) -> None:
        self.schema = Schema()
        self.buffer = Buffer(self.schema, [], limit_bytes)
        self.buffer.start(Segment(1, 1, 0.0))
        self.appender = Appender(self.schema)
        self.sequence = 0

    def write(self, payload: bytes) -> None:
        self.appender.append_group(self.buffer.state.open, [Delivery(ORIGIN, payload, ARRIVAL_NS)], [None])
        self.buffer.publish()
        self.sequence += 1

    def cut(self) -> Segment:
        return self.buffer.cut(Segment(self.buffer.state.open.id + 1, self.sequence + 1, 0.0))


def part(table: str, rows: int, rank: int = 1) -> Part:
    return Part("edge", table, dt.date(1970, 1, 1), "n", "00000000", rank, rank, 1, 1, rows, 100, 0, 10)


def count(view, table: str) -> int:
    """Rows of a table: those in memory and those its parts state."""
    if table not in view:
        return 0
    return sum(row_set.rows for row_set in view[table].hot) + sum(p.rows for p in view[table].parts)


def test_view_shows_published_rows_only():
    """What was appended and not published is in no view."""
    harness = Harness()
    harness.write(b"p v=1 1")
    harness.appender.append_group(
        harness.buffer.state.open, [Delivery(ORIGIN, b"p v=2 2\nq v=1 1", ARRIVAL_NS)], [None]
    )
    assert count(harness.buffer.view("edge"), "p") == 1
    assert harness.buffer.table_names("edge") == ["p"]
    harness.buffer.publish()
    assert count(harness.buffer.view("edge"), "p") == 2
    assert harness.buffer.table_names("edge") == ["p", "q"]


def test_view_is_immutable():
    """A view keeps showing what it showed, through writes, a cut and a persist."""
    harness = Harness()
    harness.write(b"p v=1 1")
    view = harness.buffer.view("edge")
    harness.write(b"p v=2,w=3i 2")
    sealed = harness.cut()
    harness.buffer.persisted(sealed.id, [part("p", 2)])
    assert [row[2] for row_set in view["p"].hot for row in rows_of(row_set)] == [1]
    assert view["p"].parts == ()


def test_sets_have_ascending_ranks_and_the_open_one_is_last():
    """Last write wins needs the order in which sets were cut off."""
    harness = Harness()
    for n in range(3):
        harness.write(b"p v=%d %d" % (n, n))
        if n < 2:
            harness.cut()
    assert [row_set.rank for row_set in harness.buffer.view("edge")["p"].hot] == [1, 2, OPEN_RANK]


def test_persisted_segment_is_replaced_by_its_parts_at_once():
    """Rows move from memory to parts in one step; no view misses or doubles them."""
    harness = Harness()
    harness.write(b"p v=1 1\nq v=1 1")
    sealed = harness.cut()
    harness.write(b"p v=2 2")
    before = harness.buffer.size_bytes
    harness.buffer.persisted(sealed.id, [part("p", 1), part("q", 1)])
    view = harness.buffer.view("edge")
    assert (count(view, "p"), count(view, "q")) == (2, 1)
    assert [row_set.rank for row_set in view["p"].hot] == [OPEN_RANK]
    assert harness.buffer.size_bytes < before


def test_replace_part_swaps_it_in_place():
    """A part that the store has now is the same part, not a second one."""
    harness = Harness()
    harness.write(b"p v=1 1")
    harness.buffer.persisted(harness.cut().id, [part("p", 1)])
    stored = part("p", 1).__class__(**{**_fields(part("p", 1)), "is_stored": True})
    harness.buffer.replace_part(part("p", 1), stored)
    assert harness.buffer.view("edge")["p"].parts == (stored,)
    assert harness.buffer.parts() == [stored]


def _fields(value: Part) -> dict:
    return {name: getattr(value, name) for name in Part.__dataclass_fields__}


def test_view_of_unknown_names_is_empty():
    """An unknown database or table is absent, not an error."""
    harness = Harness()
    harness.write(b"p v=1 1")
    assert harness.buffer.view("nope") == {}
    assert harness.buffer.view("edge", ["nope"]) == {}
    assert harness.buffer.columns("edge", "nope") is None


def test_configured_database_exists_before_its_first_row():
    """A fresh appliance answers for the databases of its routes instead of denying them."""
    buffer = Buffer(Schema(), [], 2**20, {"edge"})
    assert buffer.databases() == ["edge"]
    assert buffer.view("edge") == {}


def test_full_buffer_has_room_again_only_well_below_its_limit():
    """At the limit intake stops, and it does not flap at the edge."""
    harness = Harness(limit_bytes=10_000)
    while harness.buffer.has_room():
        harness.write(b"p v=1 1\np v=2 2\np v=3 3")
    harness.buffer.memory.configured_bytes = int(harness.buffer.size_bytes * 1.05)
    assert not harness.buffer.has_room()
    harness.buffer.memory.configured_bytes = int(harness.buffer.size_bytes * 1.2)
    assert harness.buffer.has_room()


@pytest.mark.slow
def test_readers_see_every_row_exactly_once_while_segments_are_cut_and_persisted():
    """A loop of views through 300 cuts and persists never misses or doubles a row."""
    harness = Harness()
    written, persisted, faults = [0], threading.Event(), []

    def read() -> None:
        while not persisted.is_set():
            low = written[0]
            seen = count(harness.buffer.view("edge"), "p")
            high = written[0] + 1
            if not low <= seen <= high:
                faults.append((low, seen, high))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for n in range(300):
        harness.write(b"p v=%d %d" % (n, n))
        written[0] += 1
        sealed = harness.cut()
        harness.buffer.persisted(sealed.id, [part("p", 1, n + 1)])
    persisted.set()
    for reader in readers:
        reader.join()
    assert faults == []
