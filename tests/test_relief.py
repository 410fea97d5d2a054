"""Relief: the readings that decisions are made from, cool-down, and what is done about queries that hold memory."""

import threading
import time

import pytest
from core_harness import ARRIVAL_NS, DEADLINE_S, ORIGIN, Core
from row_model import engine_of

from edge_appliance import part_writer
from edge_appliance.buffer import Buffer
from edge_appliance.core.append import Appender
from edge_appliance.core.delivery import Delivery
from edge_appliance.core.pressure import Cut, Policy, SetAside, Wait
from edge_appliance.core.schema import Schema
from edge_appliance.core.segment import Segment
from edge_appliance.errors import QueryError
from edge_appliance.health import Health, Phase
from edge_appliance.metrics import Metrics
from edge_appliance.relief import Relief

MIB = 2**20


class World:
    """A buffer that is written to, its relief, and a host of which the test says what is available."""

    def __init__(self, limit_bytes: int) -> None:
        self.schema = Schema()
        self.buffer = Buffer(self.schema, [], limit_bytes)
        self.buffer.start(Segment(1, 1, 0.0))
        self.appender = Appender(self.schema)
        self.available = 2**40
        self.ended = []
        self.health, self.metrics = Health(), Metrics()
        self.relief = Relief(
            self.buffer,
            Policy(300.0, 3600.0, 2),
            50 * MIB,
            self.metrics,
            self.health,
            0.0,
            available_bytes=lambda: self.available,
            end_oldest_query=lambda: self.ended.append(1),
        )

    def write(self, now_s: float, table: str, rows: int) -> None:
        payload = "\n".join(f'{table} s="{"x" * 1_000}" {n}' for n in range(rows)).encode()
        self.appender.append_group(self.buffer.state.open, [Delivery(ORIGIN, payload, ARRIVAL_NS)], [None])
        self.relief.appended(now_s, self.buffer.publish())


def test_decides_by_size_and_rate_once_a_second():
    """A large table that grows fast is set aside; the next decision comes a second later."""
    world = World(32 * MIB)
    assert world.relief.decide(0.0) == Wait("far")
    for second in range(1, 11):
        world.write(float(second), "large", 1_000)
        world.write(float(second), "small", 10)
    assert world.relief.decide(10.0) == SetAside(("edge", "large"))
    assert world.relief.decide(10.5) == Wait("far")
    assert world.metrics.buffer_rate.value() == pytest.approx(1.05 * MIB, rel=0.2)
    assert 15 < world.metrics.buffer_seconds_left.value() < 25


def test_short_host_shrinks_the_limit_and_persists_but_stops_nothing():
    """Below the host's reserve the limit in effect falls, which persists rows; only the configured one stops intake."""
    world = World(32 * MIB)
    world.write(1.0, "a", 12_000)
    assert world.relief.decide(600.0) == Wait("far"), "nothing has come for minutes"
    world.available = 40 * MIB
    assert world.relief.decide(602.0) == Cut("idle")
    assert world.buffer.memory.effective_bytes < world.buffer.size_bytes
    world.health.enter(Phase.RUNNING)
    assert "the host is short of memory" in world.health.status_line()
    assert world.relief.cool_down(602.0, "") == ""
    assert world.metrics.buffer_effective_limit.value() < 32 * MIB


def test_cool_down_is_told_and_timed():
    """At the limit the words say so, or what keeps rows from being persisted; the time is counted."""
    world = World(4 * MIB)
    world.write(1.0, "a", 5_000)
    assert world.relief.cool_down(10.0, "").startswith("cool-down: the buffer is full (")
    assert world.relief.cool_down(11.0, "no space left").startswith("read-only: ")
    world.buffer.persisted(world.buffer.cut(Segment(2, 2, 0.0)).id, [])
    assert world.relief.cool_down(13.0, "") == ""
    assert world.metrics.cool_downs.value() == 1
    assert world.metrics.cool_down_seconds.value() == 3.0


def test_query_that_pins_what_is_persisted_is_ended_when_the_buffer_is_full():
    """Rows that only a query still reads count, and at the limit the oldest query has to go."""
    world = World(4 * MIB)
    world.write(1.0, "a", 5_000)
    view = world.buffer.view("edge")
    world.buffer.persisted(world.buffer.cut(Segment(2, 2, 0.0)).id, [])
    assert world.buffer.memory.account_bytes("pinned") > 4 * MIB
    assert world.relief.cool_down(10.0, "") != ""
    assert not world.ended, "most queries end by themselves"
    assert world.relief.cool_down(11.0, "") != ""
    assert world.ended
    del view
    assert world.relief.cool_down(12.0, "") == ""
    assert world.buffer.size_bytes == 0


def test_what_a_set_aside_gives_back_is_pinned_by_older_views(tmp_path):
    """Chunks that a query began to read before the swap count until it is over."""
    core = Core(tmp_path, persists=True)
    core.write("\n".join(f'a s="{"x" * 100}" {n}' for n in range(1_000)).encode())
    before = core.buffer.size_bytes
    view = core.buffer.view("edge")
    core.ingest.set_aside(("edge", "a"))
    assert core.persister.drain_set_asides(DEADLINE_S)
    memory = core.buffer.memory
    assert memory.account_bytes("pinned") > 0.8 * before
    assert memory.account_bytes("open") < 0.3 * before
    del view
    assert memory.account_bytes("pinned") == 0
    core.abandon()


@pytest.fixture
def core(tmp_path):
    core = Core(tmp_path, persists=True, buffer_limit_bytes=4 * MIB, segment_max_bytes=2**40, workers=2)
    yield core
    core.ingest.stop()
    core.abandon()


def test_full_buffer_stops_and_goes_on_without_a_human(core, monkeypatch):
    """While persists stand still the inbox keeps what comes; within two seconds of room it is taken."""
    gate, real = threading.Event(), part_writer.write_part
    monkeypatch.setattr(part_writer, "write_part", lambda *a: (gate.wait(DEADLINE_S), real(*a))[1])
    thread = threading.Thread(target=core.ingest.run, daemon=True)
    thread.start()
    body = "\n".join(f'a s="{"x" * 1_000}" {n}' for n in range(500))
    sent = 0
    deadline_s = time.monotonic() + DEADLINE_S
    while "cool-down" not in core.health.held:
        assert time.monotonic() < deadline_s
        if not core.inbox.is_full and sent < 40:
            core.inbox.put([core.delivery(body.encode(), packet_id=sent + 1)])
            sent += 1
        time.sleep(0.005)
    taken = len(core.acked)
    core.inbox.put([core.delivery(body.encode(), packet_id=sent + 1)])
    sent += 1
    time.sleep(0.1)
    assert len(core.acked) == taken
    assert core.buffer.size_bytes < 4 * MIB + 2 * MIB, "one group beyond the limit"
    gate.set()
    opened_s = time.monotonic()
    while len(core.acked) < sent:
        assert time.monotonic() < opened_s + DEADLINE_S
        time.sleep(0.005)
    assert core.health.held == ""
    core.ingest.stop()
    thread.join(DEADLINE_S)


def test_ended_query_says_why(core, tmp_path):
    """The oldest query ends with a reason; those that began later go on."""
    core.write(b"a v=1 1")
    engine = engine_of(core, tmp_path / "sql")
    first, second = engine._memory.watch(), engine._memory.watch()
    first.begin()
    second.begin()
    engine.end_oldest()
    with pytest.raises(QueryError, match="hold memory that new rows need"):
        first.check()
    second.check()
    del first
    engine.end_oldest()
    with pytest.raises(QueryError):
        second.check()
