"""Benches without a daemon: (b) parse and append, (d) sort, merge and write Parquet, (h) start of a command."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from bench_lines import body, line
from bench_table import Bench, seconds

from edge_appliance.catalog import Catalog
from edge_appliance.core.append import Appender
from edge_appliance.core.delivery import Delivery, Origin
from edge_appliance.core.merge import sort_and_merge
from edge_appliance.core.parts import Part
from edge_appliance.core.schema import Schema
from edge_appliance.core.segment import Segment
from edge_appliance.health import Health
from edge_appliance.host import usable_cores
from edge_appliance.metrics import Metrics
from edge_appliance.persist import Persister

ORIGIN = Origin("edge", "auto", (("device", "gw-01"),), "mqtt", "devices/gw-01/lp", "devices/{device}/lp")
GROUP = 200
"""Deliveries in a group: what 20 ms bring at 10,000 messages a second."""
MOST_START_S = 0.15
ROUNDS = 3
"""The best of these counts: on a shared machine the others show the neighbours."""


def parse_and_append(bench: Bench) -> None:
    """(b) Lines a second through the append step, against a C parser that only parses."""
    lines = [line(number) for number in range(bench.size(100_000, 2_000))]
    single = min(seconds(lambda: append(lines)[0]) for _ in range(ROUNDS))
    bodies = [b"\n".join(lines[i : i + 100]) for i in range(0, len(lines), 100)]
    joined = min(seconds(lambda: append(bodies, group=20)[0]) for _ in range(ROUNDS))
    bench.add("b", "parse + append, one line a message", rate(len(lines), single))
    bench.add("b", "parse + append, 100 lines a message", rate(len(lines), joined))
    try:
        from line_protocol_parser import parse_line
    except ImportError:
        bench.skip("b", "line-protocol-parser, parse only", "not installed")
        return
    texts = [text.decode() for text in lines]
    peer = min(seconds(lambda: [parse_line(text) for text in texts]) for _ in range(ROUNDS))
    bench.add("b", "line-protocol-parser (C), parse only, into dicts", rate(len(lines), peer))
    bench.add("b", "parse + append against it: one line · 100 lines", f"{peer / single:.2f}x · {peer / joined:.2f}x")


def append(payloads: list[bytes], group: int = GROUP) -> tuple[Segment, Schema]:
    """Append all payloads, group by group, as the ingest thread does."""
    schema = Schema()
    appender, segment = Appender(schema), Segment(1, 1, 0.0)
    now_ns = time.time_ns()
    for start in range(0, len(payloads), group):
        taken = payloads[start : start + group]
        deliveries = [Delivery(ORIGIN, payload, now_ns + start + i) for i, payload in enumerate(taken)]
        done = appender.append_group(segment, deliveries, [None] * len(deliveries))
        assert done.lines >= len(deliveries), done.results
        schema.commit()
        segment.publish(segment.freeze_large_tails())
    return segment, schema


def persist(bench: Bench) -> None:
    """(d) Rows a second from a sealed segment to listed parts, against pyarrow writing the same sorted tables."""
    count = bench.size(500_000, 5_000)
    segment, _ = append([body(first, 1_000) for first in range(0, count, 1_000)], group=5)
    segment.seal(1)
    (row_set,) = segment.row_sets()
    slices = list(sort_and_merge(row_set))
    rows = sum(slice_.table.num_rows for slice_ in slices)
    assert rows == count, "each line has a key of its own"

    def write_bare() -> None:
        for number, slice_ in enumerate(slices):
            pq.write_table(slice_.table, bench.directory / f"bare-{number}.parquet", compression="zstd")

    ours = min(_persist(segment, bench.directory / f"round-{number}") for number in range(ROUNDS))
    merged = min(seconds(lambda: list(sort_and_merge(row_set))) for _ in range(ROUNDS))
    bare = min(seconds(write_bare) for _ in range(ROUNDS))
    bench.add("d", f"persist: sort, merge, Parquet, syncs, catalog; {rows:,} rows", rate(rows, ours))
    bench.add("d", "of that: sort + merge", rate(rows, merged))
    bench.add("d", "bare pyarrow write of the same sorted tables, zstd", rate(rows, bare))
    bench.add("d", "persist against the bare write", f"{bare / ours:.2f}x")
    ours_bytes, bare_bytes = _bytes(bench.directory.glob("round-0/spool/*")), _bytes(bench.directory.glob("bare-*"))
    bench.add("d", "bytes a row: ours · bare", f"{ours_bytes / rows:.1f} · {bare_bytes / rows:.1f}")


class _Holder:
    """Stands in for the buffer and the log, which have nothing to do here."""

    def persisted(self, segment_id: int, parts: Sequence[Part]) -> None:
        """Have no view to change."""

    def drop(self, segment_id: int) -> None:
        """Have no file to unlink."""


def _persist(segment: Segment, directory: Path) -> float:
    """Seconds that the real workers take for `segment`."""
    for name in ("spool", "quarantine"):
        (directory / name).mkdir(parents=True)
    catalog = Catalog.open(directory / "catalog.sqlite", node="bench")
    holder = _Holder()
    persister = Persister(
        usable_cores(), directory / "spool", directory / "quarantine", catalog, holder, holder, Health(), Metrics()
    )

    def work() -> None:
        persister.submit(segment)
        assert persister.drain(120)

    took_s = seconds(work)
    persister.close()
    catalog.close()
    return took_s


def _bytes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def rate(count: int, took_s: float) -> str:
    """Lines a second."""
    return f"{count / took_s:,.0f} lines/s"


def start_of_commands(bench: Bench) -> None:
    """(h) What a person waits for before a command begins, against the bare interpreter."""
    config = bench.directory / "start.toml"
    config.touch()
    bare_s = _run_s("-c", "pass")
    bench.add("h", "python, doing nothing", f"{bare_s * 1000:.0f} ms")
    for command in (["version"], ["check-config", "--config", str(config)]):
        took_s = _run_s("-m", "edge_appliance", *command)
        bench.add("h", f"edge-appliance {command[0]}", f"{took_s * 1000:.0f} ms", "< 150 ms", took_s < MOST_START_S)


def _run_s(*arguments: str) -> float:
    return min(
        seconds(lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)) for _ in range(5)
    )
