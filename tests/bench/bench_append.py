"""Parse and append in this process, as the ingest thread does it.

Rates against a C parser, and what a line costs with many tables, series, fields, and with quoted strings.

Times are CPU times, and the best of some rounds counts, so that neighbours on the machine do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import psutil
from bench_lines import Shape, joined
from bench_table import Bar, Bench, cpu_seconds

from edge_appliance.buffer import Buffer
from edge_appliance.core.append import Appender
from edge_appliance.core.delivery import Delivery, Origin
from edge_appliance.core.schema import Schema
from edge_appliance.core.segment import Segment

ORIGIN = Origin("edge", "auto", (("device", "gw-01"),), "mqtt", "devices/gw-01/lp", "devices/{device}/lp")
GROUP_LINES = 5_000
"""Lines in a big group: what 20 ms bring at 250,000 lines a second."""
BODY_LINES = 100
SMALL_GROUP_LINES = 10
ROUNDS = 3
PEER = "line-protocol-parser (C)"
LEAST_RATIO = 10
LEAST_RATIO_SMALL = 8
MOST_SPREAD = 1.3
"""Cost of a line with many series or tables, as a multiple of that with few."""
BYTES_PER_SERIES = 1_500
"""Room that a million series are given, lines of the bench included."""

Groups = Sequence[list[Delivery]]


class AppendStep:
    """An appender with its open segment, and what the ingest thread does with them for each group."""

    def __init__(self) -> None:
        schema = Schema()
        self.appender = Appender(schema)
        self.segment = Segment(1, 1, 0.0)
        self.buffer = Buffer(schema, (), 2**40)
        self.buffer.start(self.segment)

    def append(self, groups: Groups, groups_per_publish: int = 1) -> int:
        """Append, encode for the log and publish, group by group; returns the number of accepted lines."""
        append, publish, segment = self.appender.append_group, self.buffer.publish, self.segment
        lines = 0
        for number, deliveries in enumerate(groups, 1):
            lines += append(segment, deliveries, [None] * len(deliveries)).lines
            if number % groups_per_publish == 0 or number == len(groups):
                publish()
        return lines


def grouped(payloads: Sequence[bytes], deliveries: int) -> Groups:
    """Deliveries with these payloads, in groups of `deliveries`."""
    now_ns = time.time_ns()
    return [
        [
            Delivery(ORIGIN, payload, now_ns + start + i)
            for i, payload in enumerate(payloads[start : start + deliveries])
        ]
        for start in range(0, len(payloads), deliveries)
    ]


def parse_and_append(bench: Bench) -> None:
    """Lines a second through the append step, in big groups and in groups of ten lines."""
    lines = Shape().lines(bench.size(400_000, 2_000))
    bodies = joined(lines, BODY_LINES)
    peer = _peer_rate(bench, lines)
    dropping = _peer_rate(bench, lines, keeps=False) if peer is not None else None
    big, small = Bar(">=", LEAST_RATIO), Bar(">=", LEAST_RATIO_SMALL)
    per_group = GROUP_LINES // BODY_LINES
    tens = grouped(joined(lines, SMALL_GROUP_LINES), 1)
    cases: list[tuple[str, Groups, int, Bar | None]] = [
        (f"groups of {GROUP_LINES:,} lines, {BODY_LINES} a delivery", grouped(bodies, per_group), 1, big),
        (f"groups of {GROUP_LINES:,} lines, one a delivery", grouped(lines, GROUP_LINES), 1, None),
        # The bar is for parsing and appending; showing the rows is a step of its own, with a cost for each table.
        ("groups of 10 lines in one delivery", tens, GROUP_LINES // SMALL_GROUP_LINES, small),
        ("groups of 10 lines in one delivery, each published", tens, 1, None),
        ("groups of 10 lines, one a delivery, each published", grouped(lines, SMALL_GROUP_LINES), 1, None),
    ]
    for what, groups, publish_every, bar in cases:
        rate = best_rate(lambda step, groups=groups, every=publish_every: step.append(groups, every), len(lines))
        # The append step keeps its rows, so it stands beside a parser that keeps its dicts.
        note = f"{rate / dropping:.2f}x of the parser dropping each dict at once ({dropping:,.0f})" if dropping else ""
        bench.add(f"80-byte lines, {what}", rate, "lines/s", peer=peer, peer_name=PEER, bar=bar, note=note)


def shapes(bench: Bench) -> None:
    """Lines a second by number of fields, and with quoted strings."""
    count = bench.size(200_000, 2_000)
    text = b"compressor 3 started after 12 s, door closed"
    cases = {
        "1 field": (Shape(fields=1), count),
        "5 fields": (Shape(fields=5), count),
        "50 fields": (Shape(fields=50), count // 10),
        "4 fields and a quoted string": (Shape(string=text), count),
        "4 fields and a quoted string with escapes": (Shape(string=text.replace(b" ", b'\\"')), count),
    }
    for what, (shape, number) in cases.items():
        lines = shape.lines(number)
        groups = grouped(joined(lines, BODY_LINES), GROUP_LINES // BODY_LINES)
        rate = best_rate(lambda step, groups=groups: step.append(groups), number)
        mean = sum(map(len, lines)) / number
        peer = _peer_rate(bench, lines)
        bench.add(
            f"{what}, {mean:.0f} bytes a line",
            rate,
            "lines/s",
            peer=peer,
            peer_name=PEER,
            note=f"{rate * mean / 1e6:.0f} MB/s",
        )


def tables(bench: Bench) -> None:
    """What a line costs with 1, 20 and 1,000 tables, when all series are known."""
    count = bench.size(300_000, 3_000)
    _spread(
        bench,
        {
            f"{number:,} {'table' if number == 1 else 'tables'}": Shape(tables=number, series=1_000)
            for number in (1, 20, 1_000)
        },
        count,
    )


def series(bench: Bench) -> None:
    """What a line costs with 10 to 1,000,000 series, all of them known; and what a new one costs."""
    steps = [10, 1_000, 100_000, 1_000_000]
    room = int(psutil.virtual_memory().available * 0.7 / BYTES_PER_SERIES)
    cases = {f"{number:,} series": Shape(tables=10, series=number) for number in steps if number <= room}
    if len(cases) < len(steps):
        bench.skip(f"{steps[-1]:,} series", "too little memory")
    if bench.scale < 0.5:
        cases = dict(list(cases.items())[:3])
    _spread(bench, cases, bench.size(300_000, 3_000))


def _spread(bench: Bench, cases: dict[str, Shape], count: int) -> None:
    """Cost of a line for each shape, beside the first one's."""
    first: float | None = None
    name = ""
    for what, shape in cases.items():
        step, size = AppendStep(), GROUP_LINES // BODY_LINES
        created_s = _append_pieces(step, shape, 0, shape.series)
        bench.add(f"a line of a new series, {what}", created_s / shape.series * 1e9, "ns")
        costs = []
        for turn in range(ROUNDS):
            groups = grouped(shape.bodies(count, BODY_LINES, first=shape.series + turn * count), size)
            costs.append(cpu_seconds(lambda groups=groups, step=step: step.append(groups)) / count * 1e9)
        bar = Bar("<=", MOST_SPREAD) if first is not None else None
        bench.add(f"a line of a known series, {what}", min(costs), "ns", peer=first, peer_name=name, bar=bar)
        if first is None:
            first, name = min(costs), what


def _append_pieces(step: AppendStep, shape: Shape, first: int, count: int) -> float:
    """CPU seconds of appending `count` lines, made piece by piece, because a million of them are large."""
    took_s, piece = 0.0, 100_000
    for start in range(first, first + count, piece):
        wanted = min(piece, first + count - start)
        groups = grouped(shape.bodies(wanted, BODY_LINES, first=start), GROUP_LINES // BODY_LINES)
        taken: list[int] = []
        took_s += cpu_seconds(lambda groups=groups, taken=taken: taken.append(step.append(groups)))
        assert taken == [wanted]
    return took_s


def best_rate(work: Callable[[AppendStep], int], lines: int) -> float:
    """Lines a second of CPU time; `work` gets a fresh step each round and must have all lines accepted."""

    def run() -> float:
        step, taken = AppendStep(), list[int]()
        took_s = cpu_seconds(lambda: taken.append(work(step)))
        assert taken == [lines], f"{taken} of {lines} lines were accepted"
        return took_s

    return lines / min(run() for _ in range(ROUNDS))


def _peer_rate(bench: Bench, lines: Iterable[bytes], *, keeps: bool = True) -> float | None:
    """Lines a second of the C parser, which parses one line into dicts; these are kept, or dropped at once."""
    try:
        from line_protocol_parser import parse_line
    except ImportError:
        bench.skip(PEER, "not installed")
        return None
    texts = [line.decode() for line in lines][:100_000]

    def keep() -> None:
        kept = [parse_line(text) for text in texts]
        assert len(kept) == len(texts)

    def drop() -> None:
        for text in texts:
            parse_line(text)

    return len(texts) / min(cpu_seconds(keep if keeps else drop) for _ in range(ROUNDS))
