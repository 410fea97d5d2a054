"""From a sealed segment to listed parts: rate against a bare pyarrow write of the same sorted tables, and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
from bench_append import BODY_LINES, GROUP_LINES, ROUNDS, AppendStep, grouped
from bench_lines import Shape, joined, sensor_lines
from bench_table import Bar, Bench, seconds

from edge_appliance.catalog import Catalog
from edge_appliance.core.merge import sort_and_merge
from edge_appliance.core.parts import Part
from edge_appliance.core.segment import Segment
from edge_appliance.health import Health
from edge_appliance.host import usable_cores
from edge_appliance.metrics import Metrics
from edge_appliance.persist import Persister

LEAST_RATIO = Bar(">=", 0.5)
MOST_BYTES = Bar("<=", 2, of="value")
BARE = "bare pyarrow, zstd"
SENSOR_FIELDS = 5


def persist(bench: Bench) -> None:
    """Rows a second through the real workers, and bytes of the parts for a field value."""
    count = bench.size(500_000, 20_000)
    one, many = Shape(tables=1).lines(count), Shape().lines(count)
    sensors = sensor_lines(100, count // 100)
    _persist_lines(bench, "noisy values, one table", one, 4, least=LEAST_RATIO)
    _persist_lines(bench, "noisy values, 20 tables", many, 4)
    _persist_lines(bench, "sensor-like values, one table", sensors, SENSOR_FIELDS, least=LEAST_RATIO, most=MOST_BYTES)


def _persist_lines(
    bench: Bench, what: str, lines: list[bytes], fields: int, *, least: Bar | None = None, most: Bar | None = None
) -> None:
    step = AppendStep()
    rows = step.append(grouped(joined(lines, BODY_LINES), GROUP_LINES // BODY_LINES))
    step.segment.seal(1)
    slices = [slice_.table for row_set in step.segment.row_sets() for slice_ in sort_and_merge(row_set)]
    assert rows == len(lines) == sum(table.num_rows for table in slices), "each line has a key of its own"
    directory = bench.directory / f"persist-{what.replace(' ', '-')}"
    directory.mkdir()

    def write_bare() -> None:
        for number, table in enumerate(slices):
            pq.write_table(table, directory / f"bare-{number}.parquet", compression="zstd")

    ours, bare = [], []
    for turn in range(ROUNDS):
        ours.append(_persist(step.segment, directory / f"round-{turn}"))
        bare.append(seconds(write_bare))
    rate, peer = rows / min(ours), rows / min(bare)
    bench.add(f"persist, {what}", rate, "rows/s", peer=peer, peer_name=BARE, bar=least)
    values = rows * fields
    value, beside = _bytes(directory.glob("round-0/spool/*")) / values, _bytes(directory.glob("bare-*")) / values
    bench.add(f"Parquet bytes a field value, {what}", value, "B", peer=beside, peer_name=BARE, bar=most)


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
