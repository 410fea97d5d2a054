"""What queries cost the ingest: taking a view between groups as a table grows, and a query loop beside a writer."""

from __future__ import annotations

import threading
import time

from bench_append import BODY_LINES, ROUNDS, AppendStep, grouped
from bench_client import post_all
from bench_daemon import WRITE, daemon
from bench_lines import Shape, recent_ns
from bench_table import Bar, Bench, quantile

GROUP_LINES = 1_000
MOST_GROWTH = Bar("<=", 1.3)
PAUSE_S = 0.2
"""Between the queries beside a writer: what a dashboard with a few panels asks."""


def views(bench: Bench) -> None:
    """Cost of a view, small and large table; then rates of a writer alone and beside queries."""
    _growing(bench)
    _beside(bench)


def _growing(bench: Bench) -> None:
    """CPU time to take a view of one table after each group of 1,000 lines, early and late."""
    count = bench.size(1_000_000, 50_000)
    small, large = [], []
    for _ in range(ROUNDS):
        step, shape = AppendStep(), Shape(tables=1)
        times_us, append_us = [], []
        for group in grouped(shape.bodies(count, BODY_LINES), GROUP_LINES // BODY_LINES):
            start_s = time.process_time()
            step.append([group])
            middle_s = time.process_time()
            view = step.buffer.view("edge", ["engine00"])
            times_us.append((time.process_time() - middle_s) * 1e6)
            append_us.append((middle_s - start_s) * 1e6)
            assert view["engine00"].hot
        tenth = len(times_us) // 10
        small.append(quantile(times_us[:tenth], 0.5))
        large.append(quantile(times_us[-tenth:], 0.5))
    name = f"up to {count // 10:,} rows"
    what = f"view after each group of {GROUP_LINES:,} lines, at {count:,} rows, p50"
    note = f"appending such a group takes {quantile(append_us, 0.5):,.0f} us"
    bench.add(what, min(large), "us", peer=min(small), peer_name=name, bar=MOST_GROWTH, note=note)


def _beside(bench: Bench) -> None:
    """Lines a second of a writer, alone and while another client queries what is newest."""
    bodies = Shape(tables=1).bodies(bench.size(500_000, 20_000), GROUP_LINES, base_ns=recent_ns())
    alone, _ = _write(bench, "alone", bodies, queries=False)
    beside, answers_ms = _write(bench, "beside", bodies, queries=True)
    note = f"{len(answers_ms)} queries, p50 {quantile(answers_ms, 0.5):.0f} ms" if answers_ms else "no query in time"
    bench.add("ingest beside a query every 0.2 s", beside, "lines/s", peer=alone, peer_name="alone", note=note)


def _write(bench: Bench, name: str, bodies: list[bytes], *, queries: bool) -> tuple[float, list[float]]:
    """Lines a second, and how long each query took in milliseconds."""
    ended, answers_ms = threading.Event(), list[float]()
    with daemon(bench.directory / f"view-{name}") as appliance:
        appliance.start()
        post_all(appliance.http_port, WRITE, bodies[:1], 1)

        def ask() -> None:
            while not ended.wait(PAUSE_S):
                start_s = time.perf_counter()
                appliance.query("SELECT host, max(temp) FROM engine00 WHERE host = 'gw-000007' GROUP BY host")
                answers_ms.append((time.perf_counter() - start_s) * 1000)

        client = threading.Thread(target=ask)
        if queries:
            client.start()
        start_s = time.perf_counter()
        post_all(appliance.http_port, WRITE, bodies[1:], 4)
        took_s = time.perf_counter() - start_s
        ended.set()
        if queries:
            client.join()
    return (len(bodies) - 1) * GROUP_LINES / took_s, answers_ms
