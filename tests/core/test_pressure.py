"""Memory pressure: what is decided in each case, and what that leads to over hours of simulated arrivals."""

import itertools
import math
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_appliance.core.pressure import (
    DECISION_PERIOD_S,
    SET_ASIDE_SHARE,
    Cut,
    HostLimit,
    Largest,
    Policy,
    Rate,
    SetAside,
    Situation,
    Wait,
    choose,
)

MIB = 2**20
POLICY = Policy(horizon_s=300.0, segment_max_age_s=3600.0, workers=2)
T1, T2 = ("edge", "one"), ("edge", "two")
NEAR = Situation(
    limit_bytes=128 * MIB,
    used_bytes=60 * MIB,
    in_jobs_bytes=0,
    jobs=0,
    rate=MIB,
    open_bytes=60 * MIB,
    idle_s=0.1,
    largest=Largest(T1, 50 * MIB),
)
"""68 s before the limit, one table that is worth it."""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, SetAside(T1), id="the largest table is set aside"),
        pytest.param({"rate": 0.2 * MIB}, Wait("far"), id="far from the limit nothing is done"),
        pytest.param({"rate": 0.0}, Wait("far"), id="nothing comes: never"),
        pytest.param({"used_bytes": 128 * MIB, "rate": 0.0}, SetAside(T1), id="at the limit also without a rate"),
        pytest.param({"used_bytes": 200 * MIB, "rate": 0.0}, SetAside(T1), id="above a limit that has shrunk"),
        pytest.param({"used_bytes": 31 * MIB, "rate": 99 * MIB}, Wait("in jobs"), id="a fast sender fills a quarter"),
        pytest.param({"in_jobs_bytes": 40 * MIB, "jobs": 1}, Wait("in jobs"), id="jobs free enough"),
        pytest.param({"jobs": 2}, Wait("workers busy"), id="no more jobs than workers"),
        pytest.param({"jobs": 1}, SetAside(T1), id="a second job while a worker is free"),
        pytest.param({"idle_s": 300.0}, Cut("idle"), id="an idle segment is cut"),
        pytest.param({"idle_s": 299.0}, SetAside(T1), id="not idle yet"),
        pytest.param({"largest": Largest(T1, 29 * MIB)}, Cut("many tables"), id="frees less than half: cut instead"),
        pytest.param({"largest": Largest(T1, 30 * MIB)}, SetAside(T1), id="frees half"),
        pytest.param({"largest": None}, Cut("many tables"), id="each table is being set aside: cut"),
        pytest.param(
            {"open_bytes": MIB, "largest": Largest(T1, MIB), "jobs": 1}, Wait("too small"), id="crumbs wait for a job"
        ),
        pytest.param(
            {"open_bytes": MIB, "largest": Largest(T1, MIB)}, Cut("many tables"), id="crumbs are all there is"
        ),
        pytest.param({"open_bytes": 0, "largest": None}, Wait("too small"), id="nothing is open"),
    ],
)
def test_decision(change, expected):
    """Each rule decides as it says."""
    assert choose(POLICY, replace(NEAR, **change)) == expected


def test_idle_follows_the_age_of_segments():
    """A tenth of the greatest age, at most 300 s."""
    assert replace(POLICY, segment_max_age_s=600.0).idle_s == 60.0
    assert replace(POLICY, segment_max_age_s=86_400.0).idle_s == 300.0


def test_time_left_counts_what_jobs_will_free():
    """Bytes in jobs are room already; else each relief would ask for the next one until it is done."""
    assert replace(NEAR, used_bytes=128 * MIB).seconds_left == 0.0
    assert replace(NEAR, used_bytes=128 * MIB, in_jobs_bytes=64 * MIB).seconds_left == 64.0
    assert replace(NEAR, rate=0.0).seconds_left == math.inf


# Rate


def test_rate_of_a_steady_stream_is_right_from_the_start_on():
    """After five seconds as well as after an hour, whatever the size of the groups."""
    for period_s in (0.02, 1.0):
        rate = Rate(100.0)
        now_s = 100.0
        for _ in range(int(200 / period_s)):
            now_s += period_s
            rate.add(now_s, int(1_000_000 * period_s))
            if now_s >= 106.0:
                assert rate.per_second(now_s) == pytest.approx(1e6, rel=0.12)
        assert rate.per_second(now_s) == pytest.approx(1e6, rel=0.02)


def test_rate_is_robust_to_one_burst():
    """A second of a hundred times as much moves a 30 s average by about three times, and is gone in minutes."""
    rate = Rate(0.0)
    for second in range(1, 601):
        rate.add(float(second), 1_000)
    rate.add(600.5, 100_000)
    assert rate.per_second(600.5) < 5_000
    assert rate.per_second(900.0) < 100


@given(st.lists(st.tuples(st.floats(-10, 1000), st.integers(0, 2**40)), max_size=50))
def test_rate_is_never_negative(events):
    """Whatever the clock reads, the rate is a finite number of bytes a second."""
    rate = Rate(0.0)
    for now_s, size_bytes in events:
        rate.add(now_s, size_bytes)
        assert 0 <= rate.per_second(now_s) < math.inf


# The limit in effect


def test_limit_shrinks_at_once_and_grows_back_slowly():
    """What the host lacks is taken from the limit in one step; it comes back by a tenth of the limit a minute."""
    limit = HostLimit(100 * MIB, reserve_bytes=50 * MIB)
    assert limit.sample(0.0, 80 * MIB, 60 * MIB) == 100 * MIB
    assert limit.sample(1.0, 80 * MIB, 20 * MIB) == 50 * MIB
    assert limit.is_shrunk
    assert limit.sample(2.0, 50 * MIB, 50 * MIB) == 50 * MIB, "the reserve is just there"
    assert limit.sample(62.0, 40 * MIB, 400 * MIB) == 60 * MIB
    for minute in range(2, 8):
        limit.sample(2.0 + 60 * minute, 40 * MIB, 400 * MIB)
    assert limit.effective_bytes == 100 * MIB
    assert not limit.is_shrunk


def test_limit_has_a_floor():
    """However short the host is, a quarter of the configured limit is left."""
    limit = HostLimit(100 * MIB, reserve_bytes=50 * MIB)
    assert limit.sample(0.0, 10 * MIB, 0) == 25 * MIB


def test_limit_does_not_flap():
    """A host that hovers around its reserve shrinks the limit once, not a bit more with each look."""
    limit = HostLimit(100 * MIB, reserve_bytes=50 * MIB)
    seen = [limit.sample(n * 0.5, 60 * MIB, (45 + 10 * (n % 2)) * MIB) for n in range(240)]
    assert min(seen) == 55 * MIB
    changes = sum(a != b for a, b in itertools.pairwise(seen))
    assert seen[-1] <= 65 * MIB, "it does not grow into what is not there"
    assert changes <= 242
    assert max(abs(a - b) for a, b in itertools.pairwise(seen)) <= 10 * MIB


def test_limit_grows_no_further_than_what_the_host_has():
    """Rows that fill a grown limit must not bring the host below its reserve again."""
    limit = HostLimit(100 * MIB, reserve_bytes=50 * MIB)
    limit.sample(0.0, 60 * MIB, 30 * MIB)
    for minute in range(1, 30):
        used = limit.effective_bytes
        limit.sample(60.0 * minute, used, 30 * MIB + 60 * MIB - used)
    assert limit.effective_bytes == 40 * MIB


# Simulation


@dataclass
class Sim:
    """A buffer with workers, fed by a pattern, in steps of a tenth of a second.

    A job takes as long as its bytes at `persist_rate`, on one worker. Sizes are bytes of rows by table; times of rows
    are in order unless `single_time` says that all are equal.
    """

    pattern: object
    limit: int = 128 * MIB
    persist_rate: float = 10 * MIB
    segment_max: int = 64 * MIB
    workers: int = 2
    single_time: bool = False
    now_s: float = 0.0
    tables: dict = field(default_factory=dict)
    pending: dict = field(default_factory=dict)
    jobs: list = field(default_factory=list)
    opened_s: float = 0.0
    written_s: float = 0.0
    files: int = 0
    cool_s: float = 0.0
    peak: int = 0
    set_asides: int = 0
    cuts: int = 0
    persisted: int = 0
    fill: list = field(default_factory=list)

    def used(self) -> int:
        return sum(self.tables.values()) + sum(job[1] for job in self.jobs)

    def run(self, seconds: float) -> "Sim":
        policy = Policy(300.0, 3600.0, self.workers)
        rate, is_full, decided_s, step = Rate(0.0), False, -1.0, 0.1
        for _ in range(int(seconds / step)):
            self.now_s += step
            self._work(step)
            is_full = self.used() >= self.limit * (0.9 if is_full else 1)
            if is_full:
                self.cool_s += step
            else:
                for table, size in self.pattern(self.now_s, step):
                    if size:
                        self.tables[table] = self.tables.get(table, 0) + int(size)
                        rate.add(self.now_s, int(size))
                        self.written_s = self.now_s
            self.peak = max(self.peak, self.used())
            self.fill.append(self.used() / self.limit)
            open_bytes = sum(self.tables.values())
            if open_bytes >= self.segment_max or (open_bytes and self.now_s - self.opened_s >= 3600):
                self._cut()
            if self.now_s - decided_s >= DECISION_PERIOD_S:
                decided_s = self.now_s
                self._act(choose(policy, self._situation(rate)))
        return self

    def _situation(self, rate: Rate) -> Situation:
        share = 1.0 if self.single_time else SET_ASIDE_SHARE
        free = [(size * share, table) for table, size in self.tables.items() if table not in self.pending]
        best = max(free, default=None)
        return Situation(
            self.limit,
            self.used(),
            sum(job[1] for job in self.jobs),
            len(self.jobs),
            rate.per_second(self.now_s),
            sum(self.tables.values()),
            self.now_s - self.written_s,
            Largest(best[1], int(best[0])) if best and best[0] else None,
        )

    def _act(self, action) -> None:
        if isinstance(action, Cut):
            self._cut()
        elif isinstance(action, SetAside):
            share = 1.0 if self.single_time else SET_ASIDE_SHARE
            size = int(self.tables[action.table] * share)
            self.tables[action.table] -= size
            self.pending[action.table] = True
            self.jobs.append([size, size, action.table])
            self.files += 1
            self.set_asides += 1

    def _cut(self) -> None:
        size = sum(self.tables.values())
        self.files += len(self.tables)
        self.cuts += 1
        self.tables, self.opened_s = {}, self.now_s
        self.jobs.append([size, size, None])

    def _work(self, step: float) -> None:
        """The oldest jobs get a worker each; memory is freed at a job's end."""
        for job in self.jobs[: self.workers]:
            job[0] -= self.persist_rate * step
        for job in [job for job in self.jobs if job[0] <= 0]:
            self.jobs.remove(job)
            self.persisted += job[1]
            self.pending.pop(job[2], None)


def steady(rate, tables=1):
    def pattern(now_s, step):
        return [(f"t{n}", rate * step / tables) for n in range(tables)]

    return pattern


def burst(now_s, step):
    """Three times the usual rate for a minute in each ten."""
    return [("t", (3 if now_s % 600 < 60 else 1) * 0.5 * MIB * step)]


def ramp(now_s, step):
    return [("t", now_s / 3600 * 4 * MIB * step)]


def alternating(now_s, step):
    """A flood into one table, then into another, then silence."""
    phase = int(now_s / 120) % 3
    return [] if phase == 2 else [(f"t{phase}", 2 * MIB * step)]


def tiny_tables(now_s, step, count=10_000):
    random_ = random.Random(int(now_s * 10))
    return [(f"t{random_.randrange(count)}", 0.5 * MIB * step / 20) for _ in range(20)]


PATTERNS = {
    "steady slow": (steady(20_000), {}),
    "steady": (steady(0.5 * MIB), {}),
    "steady fast": (steady(8 * MIB), {}),
    "five tables": (steady(0.5 * MIB, 5), {}),
    "burst": (burst, {}),
    "ramp": (ramp, {}),
    "alternating": (alternating, {}),
    "all one timestamp": (steady(0.5 * MIB), {"single_time": True}),
    "small limit": (steady(0.1 * MIB), {"limit": 8 * MIB, "segment_max": 4 * MIB}),
    "no cut by size": (steady(0.5 * MIB), {"segment_max": 2**40}),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_simulated_hour_has_no_cool_down_and_no_thrash(name):
    """Prediction keeps intake going, in files of a useful size, whatever the pattern of arrivals."""
    pattern, options = PATTERNS[name]
    sim = Sim(pattern, **options).run(3600)
    arrived = sum(size for n in range(36_000) for _, size in pattern(0.1 * (n + 1), 0.1))
    assert sim.cool_s == 0, "time in cool-down"
    assert sim.peak <= sim.limit
    jobs = sim.set_asides + sim.cuts
    # Each early job frees at least half of a quarter of the limit.
    assert jobs <= arrived / (sim.limit / 8) + 2
    if arrived > 2 * sim.limit:
        middle = sorted(sim.fill)[len(sim.fill) // 2]
        assert middle >= 0.08, "the buffer is kept as full as is useful"


def test_simulated_tiny_tables_are_cut_not_set_aside():
    """Ten thousand tables of a few rows go as one segment: one at a time would be ten thousand jobs."""
    sim = Sim(tiny_tables, segment_max=2**40).run(900)
    assert sim.set_asides == 0
    assert 1 <= sim.cuts <= 900 * 0.5 * MIB / (sim.limit / 8)
    assert sim.cool_s == 0


def test_simulated_overload_waits_and_goes_on():
    """At twice what the workers can do, cool-down holds intake to what they can, and never passes the limit."""
    sim = Sim(steady(8 * MIB), persist_rate=2 * MIB).run(600)
    assert sim.cool_s > 0
    assert sim.peak <= sim.limit * 1.02
    assert sim.persisted >= 0.9 * 600 * sim.workers * sim.persist_rate - sim.limit, "the workers were kept busy"


def test_simulated_burst_at_default_settings_causes_no_cool_down():
    """Three times the usual rate for a minute, more than workers can do, passes: the room was made before."""

    def pattern(now_s, step):
        return [("t", (6 if 600 <= now_s < 660 else 2) * MIB * step)]

    sim = Sim(pattern, limit=256 * MIB, persist_rate=2.5 * MIB).run(1200)
    assert sim.cool_s == 0
